//! RFC 9293 §3.5: establishing a connection; §3.7.1: the MSS option; RFC 7323 §2, §3; RFC 2018 §2.

use urnic_engine::tcp::Config;

use crate::conformance::script::{config, connect, listen};

#[test]
fn a_listener_answers_a_syn() {
    listen(
        config(),
        "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK>
        0.000 > S. 0:0 ack 1 <mss=1000,sackOK>
        0.010 < .  1:1 ack 1
        0.020 < P. 1:101 ack 1
        *     > .  1:1 ack 101
        0.030 ? read 100
        ",
    );
}

#[test]
fn an_active_open_completes() {
    connect(
        Config { window_scaling: false, ..config() },
        "
        0.000 > S  0:0 <mss=1000,sackOK>
        0.010 < S. 0:0 ack 1 win 60000 <mss=1000>
        0.010 > .  1:1 ack 1
        ",
    );
}

// spec: TCP-9293-5
#[test]
fn both_ends_may_open_at_once() {
    // RFC 9293 §3.5 Figure 7.
    connect(
        Config { window_scaling: false, ..config() },
        "
        0.000 > S  0:0 <mss=1000,sackOK>
        0.010 < S  0:0 win 60000 <mss=1000>
        0.010 > S. 0:0 ack 1
        0.020 < S. 0:0 ack 1 win 60000
        0.020 > .  1:1 ack 1
        ",
    );
}

#[test]
fn a_lost_syn_is_sent_again_at_doubling_intervals() {
    // RFC 6298 §2.1, §5.5.
    connect(
        Config { window_scaling: false, ..config() },
        "
        0.000 > S  0:0
        1.000 > S  0:0
        3.000 > S  0:0
        7.000 > S  0:0
        7.100 < S. 0:0 ack 1 win 60000 <mss=1000>
        7.100 > .  1:1 ack 1
        ",
    );
}

#[test]
fn a_lost_syn_ack_is_sent_again() {
    listen(
        config(),
        "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK>
        0.000 > S. 0:0 ack 1
        1.000 > S. 0:0 ack 1
        1.010 < .  1:1 ack 1
        ",
    );
}

#[test]
fn a_repeated_syn_gets_the_syn_ack_again() {
    listen(
        config(),
        "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK>
        0.000 > S. 0:0 ack 1
        0.500 < S  0:0 win 60000 <mss=1000,sackOK>
        0.500 > S. 0:0 ack 1
        0.600 < .  1:1 ack 1
        ",
    );
}

#[test]
fn options_come_back_only_if_they_were_offered() {
    // RFC 7323 §1.3, RFC 2018 §2.
    listen(
        Config { timestamps: true, ..config() },
        "
        0.000 < S  0:0 win 60000 <mss=1000>
        0.000 > S. 0:0 ack 1 <mss=1000>
        ",
    );
}

#[test]
fn timestamps_are_echoed() {
    // RFC 7323 §3.2.
    listen(
        Config { timestamps: true, ..config() },
        "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK,ts=100:0>
        0.000 > S. 0:0 ack 1 <mss=1000,sackOK,ts=0:100>
        ",
    );
}

// spec: TCP-9293-3
#[test]
fn without_an_mss_option_segments_are_of_536_octets() {
    // RFC 9293 MUST-15; MSS is kept a multiple of 8.
    listen(
        config(),
        "
        0.000 < S  0:0 win 60000
        0.000 > S. 0:0 ack 1
        0.001 < .  1:1 ack 1
        0.002 ! write 1000
        0.002 > .  1:537 ack 1
        0.002 > P. 537:1001 ack 1
        ",
    );
}
