//! RFC 5961: blind in-window attacks; RFC 9293 §3.10.7.4: acceptability.

use crate::conformance::script::{ESTABLISHED, config, listen};

fn established(table: &str) {
    listen(config(), &[ESTABLISHED, table].concat());
}

// spec: TCP-5961-1
#[test]
fn a_reset_inside_the_window_is_challenged() {
    // RFC 5961 §3.2: only the exact sequence number resets.
    established(
        "
        0.010 < R  100:100
        0.010 > .  1:1 ack 1
        0.020 ? connections 1
        ",
    );
}

// spec: TCP-5961-1
#[test]
fn a_reset_outside_the_window_is_ignored() {
    established(
        "
        0.010 < R  4000000000:4000000000
        0.020 ? connections 1
        ",
    );
}

// spec: TCP-5961-2
#[test]
fn a_syn_in_an_established_connection_is_challenged() {
    // RFC 5961 §4.2: whatever its sequence number.
    established(
        "
        0.010 < S  0:0 win 60000
        0.010 > .  1:1 ack 1
        1.500 < S  500:500 win 60000
        1.500 > .  1:1 ack 1
        ",
    );
}

// spec: TCP-5961-3
#[test]
fn ack_of_unsent_data_is_answered_and_ignored() {
    // RFC 5961 §5.2, RFC 9293 §3.10.7.4.
    established(
        "
        0.010 < P. 1:101 ack 5000
        0.010 > .  1:1 ack 1
        0.020 ? read 0
        ",
    );
}

#[test]
fn an_octet_outside_the_window_is_answered_with_an_ack() {
    // RFC 9293 §3.10.7.4, first step.
    established(
        "
        0.010 < P. 100001:100002 ack 1
        0.010 > .  1:1 ack 1
        ",
    );
}

#[test]
fn data_without_an_ack_is_dropped() {
    established(
        "
        0.010 < P  1:101
        0.600 ? read 0
        ",
    );
}
