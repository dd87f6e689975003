//! RFC 9293 §3.6: closing a connection.

use crate::conformance::script::{ESTABLISHED, config, listen};

fn established(table: &str) {
    listen(config(), &[ESTABLISHED, table].concat());
}

#[test]
fn the_peer_closes_first() {
    established(
        "
        0.010 < F. 1:1 ack 1
        *     > .  1:1 ack 2
        0.020 ? peer-closed
        0.020 ! close
        0.020 > F. 1:1 ack 2
        0.021 < .  2:2 ack 2
        0.040 ? closed
        ",
    );
}

// spec: TCP-9293-8
#[test]
fn this_end_closes_first_and_waits() {
    // RFC 9293 §3.6.1: TIME-WAIT lasts two maximum segment lifetimes.
    established(
        "
        0.010 ! close
        0.010 > F. 1:1 ack 1
        0.011 < .  1:1 ack 2
        0.030 < F. 1:1 ack 2
        0.030 > .  2:2 ack 2
        0.030 ? closed
        59.00 ? connections 1
        61.00 ? connections 0
        ",
    );
}

#[test]
fn a_fin_repeated_in_time_wait_is_acknowledged_and_starts_the_wait_anew() {
    // RFC 9293 §3.10.7.4, TIME-WAIT.
    established(
        "
        0.010 ! close
        0.010 > F. 1:1 ack 1
        0.011 < F. 1:1 ack 2
        0.011 > .  2:2 ack 2
        0.011 ? closed
        30.00 < F. 1:1 ack 2
        30.00 > .  2:2 ack 2
        89.00 ? connections 1
        91.00 ? connections 0
        ",
    );
}

#[test]
fn both_ends_may_close_at_once() {
    // RFC 9293 §3.6 Figure 13.
    established(
        "
        0.010 ! close
        0.010 > F. 1:1 ack 1
        0.0110 < F. 1:1 ack 1
        0.0110 > .  2:2 ack 2
        0.0115 < .  2:2 ack 2
        0.0115 ? closed
        60.00 ? connections 1
        60.02 ? connections 0
        ",
    );
}

#[test]
fn data_before_a_close_is_sent_first() {
    established(
        "
        0.010 ! write 1500
        0.010 > .  1:1001 ack 1
        0.010 > P. 1001:1501 ack 1
        0.011 ! close
        0.011 > F. 1501:1501 ack 1
        0.012 < .  1:1 ack 1502
        ",
    );
}

#[test]
fn a_lost_fin_is_sent_again() {
    established(
        "
        0.010 ! close
        0.010 > F. 1:1 ack 1
        *     > F. 1:1 ack 1
        0.013 < .  1:1 ack 2
        ",
    );
}

/// RFC 9293 §3.10.7.4: the acknowledgment of our FIN ends LAST-ACK.
#[test]
fn a_syn_behind_the_last_acknowledgment_in_one_burst_opens_the_next_connection() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 < F. 1:1 ack 1
        *     > .  1:1 ack 2
        0.100 ! close
        0.100 > F. 1:1 ack 2
        0.101 <+ .  2:2 ack 2
        0.101 < S  5000:5000 win 60000 <mss=1000,sackOK>
        0.101 > S. 25250:25250 ack 5001
        0.101 ? closed
        0.101 ? connections 1
        ",
        ]
        .concat(),
    );
}
