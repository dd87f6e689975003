//! RFC 6298: the retransmission timer; RFC 8985 §7: tail loss probes; RFC 9293 §3.8.6: windows.

use crate::conformance::script::{ESTABLISHED, config, listen};

fn established(table: &str) {
    listen(config(), &[ESTABLISHED, table].concat());
}

#[test]
fn an_acknowledgment_stops_the_timer() {
    // RFC 6298 §5.2.
    established(
        "
        0.010 ! write 100
        0.010 > P. 1:101 ack 1
        0.011 < .  1:1 ack 101
        9.000 ? connections 1
        ",
    );
}

#[test]
fn a_lost_tail_is_probed_for_before_the_timeout() {
    // RFC 8985 §7.2: a probe retransmits the last segment.
    established(
        "
        0.010 ! write 100
        0.010 > P. 1:101 ack 1
        *     > P. 1:101 ack 1
        0.013 < .  1:1 ack 101
        ",
    );
}

// spec: TCP-9293-16
#[test]
fn a_closed_window_is_probed() {
    // RFC 9293 §3.8.6.1 (MUST-36): probes go on as long as the peer answers them.
    established(
        "
        0.010 < .  1:1 ack 1 win 0
        0.020 ! write 100
        *     > .  0:0 ack 1
        0.045 < .  1:1 ack 1 win 60000
        0.045 > P. 1:101 ack 1
        0.046 < .  1:1 ack 101
        ",
    );
}

// spec: TCP-9293-13
#[test]
fn idle_connection_sends_nothing_by_default() {
    // RFC 9293 §3.8.4 (MUST-25): keep-alives "MUST default to off".
    established(
        "
        0.010     ? connections 1
        259200.000 ? connections 1
        259200.000 ! write 100
        259200.000 > P. 1:101 ack 1
        259200.001 < .  1:1 ack 101
        ",
    );
}

#[test]
fn keepalive_probes_an_idle_peer_while_it_is_on() {
    // RFC 9293 §3.8.4 (MUST-24, MUST-26): per connection, and only if nothing was received.
    established(
        "
        0.010     ! keepalive 7200
        3600.001  < .  1:1 ack 1
        10800.001 > .  0:0 ack 1
        10800.002 < .  1:1 ack 1
        18000.002 > .  0:0 ack 1
        18075.002 > .  0:0 ack 1
        18075.003 < .  1:1 ack 1
        18080.000 ! keepalive off
        99999.000 ? connections 1
        ",
    );
}

#[test]
fn a_window_that_stays_shut_keeps_the_connection_though_probes_are_lost() {
    // RFC 9293 §3.8.6.1 (MUST-37). Once a minute, two probes are lost: time alone is no reason to
    // give the connection up.
    established(
        "
        0.010 < .  1:1 ack 1 win 0
        0.020 ! write 100
        *     > .  0:0 ack 1
        0.045 < .  1:1 ack 1 win 0
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        90.00 < .  1:1 ack 1 win 0
        *     > .  0:0 ack 1
        *     > .  0:0 ack 1
        210.0 < .  1:1 ack 1 win 60000
        210.0 > P. 1:101 ack 1
        210.001 < .  1:1 ack 101
        ",
    );
}
