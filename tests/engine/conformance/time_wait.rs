//! RFC 9293 §3.10.7.4, TIME-WAIT: only a record of the connection is left, and the wire does not
//! show that.

use crate::conformance::script::{ESTABLISHED, ESTABLISHED_WITHOUT_SACK, config, listen};
use urnic_engine::tcp::Config;

/// This end closed first, and then the peer, which had sent 100 bytes.
const CLOSED: &str = "
0.010 < .  1:101 ack 1
*     > .  1:1 ack 101
0.011 ! close
0.011 > F. 1:1 ack 101
0.012 < F. 101:101 ack 2
0.012 > .  2:2 ack 102
0.012 ? closed
0.012 ? waiting 1
";

fn closed(table: &str) {
    listen(config(), &[ESTABLISHED, CLOSED, table].concat());
}

#[test]
fn retransmissions_in_time_wait_are_acknowledged() {
    closed(
        "
        1.000 < F. 101:101 ack 2
        1.000 > .  2:2 ack 102
        # Data too, with the duplicate that it was.
        1.001 < .  1:101 ack 2
        1.001 > .  2:2 ack 102 <sack=1:101>
        1.002 < F. 51:101 ack 2
        1.002 > .  2:2 ack 102 <sack=51:101>
        # A probe of an idle connection.
        1.003 < .  101:101 ack 2
        1.003 > .  2:2 ack 102
        61.00 ? waiting 1
        61.10 ? waiting 0
        ",
    );
}

#[test]
fn each_segment_that_comes_again_is_acknowledged_to_a_peer_that_counts_them() {
    let table = "
        1.000 < .  1:51 ack 2
        1.000 > .  2:2 ack 102
        1.000 < .  51:101 ack 2
        1.000 > .  2:2 ack 102
        ";
    listen(config(), &[ESTABLISHED_WITHOUT_SACK, CLOSED, table].concat());
}

#[test]
fn segments_beyond_the_fin_are_acknowledged_and_dropped() {
    closed(
        "
        1.000 < .  103:203 ack 2
        1.000 > .  2:2 ack 102
        1.001 < .  50000:50000 ack 2
        1.001 > .  2:2 ack 102
        # Right at the end: text after a FIN is dropped.
        1.002 < .  102:202 ack 2
        # An acknowledgment of what was never sent (RFC 5961 §5.2), and one of all.
        1.003 < .  102:102 ack 3
        1.003 > .  2:2 ack 102
        1.004 < .  102:102 ack 2
        60.00 ? waiting 1
        60.10 ? waiting 0
        ",
    );
}

#[test]
fn exact_reset_ends_time_wait_silently() {
    closed(
        "
        1.000 < R  101:101
        1.001 < R  103:103
        1.002 < R  102:102 ack 2
        1.002 ? connections 0
        # Nothing is left: what comes then is reset.
        1.003 < F. 101:101 ack 2
        *     > R  2:2
        ",
    );
}

#[test]
fn a_syn_that_may_be_old_is_challenged() {
    // RFC 5961 §4.2; ten in five seconds (§7).
    let syn = "1.000 < S  101:101 win 60000 <mss=1000,sackOK>\n1.000 > .  2:2 ack 102\n";
    let silent = "1.000 < S  101:101 win 60000 <mss=1000,sackOK>\n";
    let later = "6.100 < SF 90:90 win 60000 <mss=1000,sackOK>\n6.100 > .  2:2 ack 102\n";
    closed(&[&syn.repeat(10), silent, silent, later].concat());
}

#[test]
fn a_syn_that_is_later_opens_the_next_connection_of_these_addresses() {
    // RFC 9293 §3.6.1 MAY-2. The port's initial number follows a clock of four microseconds.
    closed(
        "
        10.00 < S  103:103 win 60000 <mss=1000,sackOK>
        10.00 > S. 2500000:2500000 ack 104
        10.00 ? connections 1
        10.00 ? waiting 0
        10.01 < .  104:104 ack 2500001 win 60000
        10.02 < .  104:204 ack 2500001
        *     > .  2500001:2500001 ack 204
        10.05 ? read 100
        ",
    );
}

#[test]
fn a_syn_that_comes_with_the_last_segment_opens_one_too() {
    // The port was not polled between the two segments.
    listen(
        config(),
        &[
            ESTABLISHED,
            "
            0.010 ! close
            0.010 > F. 1:1 ack 1
            0.011 <+ F. 1:1 ack 2
            0.011 <  S  500:500 win 60000 <mss=1000,sackOK>
            0.011 > S. 2750:2750 ack 501
            0.011 ? closed
            0.011 ? connections 1
            0.011 ? waiting 0
            ",
        ]
        .concat(),
    );
}

// spec: TCP-9293-8
#[test]
fn timestamps_tell_old_segments_and_later_connections() {
    // RFC 7323 §5.3 R1; RFC 6191.
    listen(
        Config { timestamps: true, ..config() },
        "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK,ts=500:0>
        0.000 > S. 0:0 ack 1
        0.001 < .  1:1 ack 1 win 60000 <ts=500:0>
        0.010 ! close
        0.010 > F. 1:1 ack 1 <ts=0:500>
        0.011 < F. 1:1 ack 2 <ts=502:0>
        0.011 > .  2:2 ack 2 <ts=0:502>
        # Without a timestamp it is no segment of the connection.
        1.000 < F. 1:1 ack 2
        # An old one is answered; the wait does not begin anew.
        1.001 < F. 1:1 ack 2 <ts=400:0>
        1.001 > .  2:2 ack 2 <ts=0:502>
        1.002 < S  0:0 win 60000 <mss=1000,sackOK,ts=502:0>
        1.002 > .  2:2 ack 2 <ts=0:502>
        1.003 ? waiting 1
        # A later clock is enough, whatever the number.
        10.00 < S  0:0 win 60000 <mss=1000,sackOK,ts=503:0>
        10.00 > S. 2500000:2500000 ack 1
        10.00 ? waiting 0
        10.00 ? connections 1
        ",
    );
}
