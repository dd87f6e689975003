//! RFC 9293 §3.5.2, §3.5.3 and §3.10.7: resets, sent and received.

use urnic_engine::tcp::Config;

use crate::conformance::script::{ESTABLISHED, config, connect, listen};

#[test]
fn an_ack_for_no_connection_is_reset() {
    listen(
        config(),
        "
        0.000 < .  1:1 ack 1
        0.000 > R  1:1
        ",
    );
}

#[test]
fn a_syn_to_a_port_nobody_listens_at_is_reset() {
    connect(
        Config { window_scaling: false, ..config() },
        "
        0.000 > S  0:0
        0.010 < S  0:0 port 50000
        0.010 > R. 0:0 ack 1
        0.020 < R. 0:0 ack 1
        0.030 ? closed
        ",
    );
}

#[test]
fn wrong_ack_of_a_syn_is_reset_and_syn_sent_remains() {
    // RFC 9293 §3.10.7.3, first step.
    connect(
        Config { window_scaling: false, ..config() },
        "
        0.000 > S  0:0
        0.010 < S. 0:0 ack 5 win 60000
        0.010 > R  5:5
        0.020 < S. 0:0 ack 1 win 60000
        0.020 > .  1:1 ack 1
        ",
    );
}

#[test]
fn abort_answers_the_next_segment_with_a_reset() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 ! write 100
        0.010 > P. 1:101 ack 1
        0.011 ! abort
        0.011 > R. 101:101 ack 1
        0.030 ? connections 0
        ",
        ]
        .concat(),
    );
}

// spec: TCP-5961-1
#[test]
fn a_reset_ends_the_connection() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 < R  1:1
        0.020 ? closed
        0.020 ? connections 0
        ",
        ]
        .concat(),
    );
}

/// RFC 9293 §3.10.7.4: the RST ends the connection at once, and the SYN behind it opens the next
/// one. A system that reuses a TCP port sends both in one burst.
#[test]
fn a_syn_behind_a_reset_in_one_burst_opens_the_next_connection() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 <+ R  1:1
        0.010 < S  5000:5000 win 60000 <mss=1000,sackOK>
        0.010 > S. 2500:2500 ack 5001
        0.010 ? closed
        0.010 ? connections 1
        # Half open, and with an ACK.
        0.020 <+ R. 5001:5001 ack 2501
        0.020 < S  9000:9000 win 60000 <mss=1000,sackOK>
        0.020 > S. 5000:5000 ack 9001
        0.020 ? closed
        0.020 ? connections 1
        ",
        ]
        .concat(),
    );
}

#[test]
fn data_behind_a_reset_in_one_burst_is_for_no_connection() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 <+ R  1:1
        0.010 < .  1:101 ack 1
        0.010 > R  1:1
        0.010 ? connections 0
        ",
        ]
        .concat(),
    );
}

#[test]
fn a_syn_behind_an_abort_that_is_not_sent_yet_opens_the_next_connection() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 !+ abort
        0.010 < S  5000:5000 win 60000 <mss=1000,sackOK>
        0.010 > S. 2500:2500 ack 5001
        0.010 ? connections 1
        ",
        ]
        .concat(),
    );
}

/// A SYN that is not later may be a duplicate, or forged: the peer still waits for the RST.
#[test]
fn a_syn_that_is_not_later_leaves_the_reset_of_an_abort_due() {
    for start in [0, 1, 4_000_000_000_u32] {
        let table = format!(
            "
        0.010 < P. 1:11 ack 1
        *     > .  1:1 ack 11
        0.100 !+ abort
        0.100 < S  {start}:{start} win 60000 <mss=1000,sackOK>
        0.100 > R. 1:1 ack 11
        0.100 ? connections 0
        "
        );
        listen(config(), &[ESTABLISHED, &table].concat());
    }
    // The first SYN comes again.
    listen(
        config(),
        "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK>
        0.000 > S. 0:0 ack 1
        0.001 !+ abort
        0.001 < S  0:0 win 60000 <mss=1000,sackOK>
        0.001 > R. 1:1 ack 1
        0.001 ? connections 0
        ",
    );
}

#[test]
fn an_older_timestamp_leaves_the_reset_of_an_abort_due() {
    let timestamps = Config { timestamps: true, ..config() };
    for (stamp, answer) in [(999, "R. 1:1 ack 1"), (1001, "S. 2500:2500 ack 5001")] {
        let table = format!(
            "
        0.000 < S  0:0 win 60000 <mss=1000,sackOK,ts=1000:0>
        0.000 > S. 0:0 ack 1
        0.001 < .  1:1 ack 1 win 60000 <ts=1000:0>
        0.010 !+ abort
        0.010 < S  5000:5000 win 60000 <mss=1000,sackOK,ts={stamp}:0>
        0.010 > {answer}
        "
        );
        listen(timestamps, &table);
    }
}
