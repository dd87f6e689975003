//! RFC 2018 §3 and §4, RFC 2883 §4: the receiver's reports beyond its acknowledgment number.

use urnic_engine::tcp::Config;

use crate::conformance::octets::{empty_write, request};
use crate::conformance::script::{config, respond_with};

/// Handshake that negotiates SACK, without timestamps.
const SACK: &str = "
0.000 < S  0:0 win 60000 <mss=1000,sackOK>
0.000 > S. 0:0 ack 1 <mss=1000,sackOK>
0.001 < .  1:1 ack 1 win 60000
0.010 < P. 1:21 ack 1
0.010 > .  1:1 ack 21 <>
0.010 ? request
0.010 ! accept
0.010 > P. 1:21 ack 21 <>
0.010 ? established
0.011 < .  21:21 ack 21
";

/// Returns an MPA Request without private data, and a long row of FPDUs: fifty fill a segment of
/// these tables.
fn peer_octets() -> Vec<u8> {
    [request(), empty_write().repeat(1000)].concat()
}

fn receives(config: Config, tables: &[&str]) {
    respond_with(config, &peer_octets(), &tables.concat());
}

fn reports(table: &str) {
    receives(config(), &[SACK, table]);
}

// spec: TCP-2018-2
#[test]
fn the_first_block_holds_the_newest_segment_and_earlier_blocks_follow() {
    // RFC 2018 §4: "The first SACK block [..] MUST specify the contiguous block of data containing
    // the segment which triggered this ACK"; it SHOULD be "filled out by repeating the most
    // recently reported SACK blocks".
    reports(
        "
        0.020 < .  1021:2021 ack 21
        0.020 > .  21:21 ack 21 <sack=1021:2021>
        0.021 < .  5021:6021 ack 21
        0.021 > .  21:21 ack 21 <sack=5021:6021,sack=1021:2021>
        0.022 < .  3021:4021 ack 21
        0.022 > .  21:21 ack 21 <sack=3021:4021,sack=5021:6021,sack=1021:2021>
        ",
    );
}

#[test]
fn a_segment_that_continues_a_block_moves_it_to_the_front() {
    reports(
        "
        0.020 < .  1021:2021 ack 21
        0.020 > .  21:21 ack 21 <sack=1021:2021>
        0.021 < .  3021:4021 ack 21
        0.021 > .  21:21 ack 21 <sack=3021:4021,sack=1021:2021>
        0.022 < .  5021:6021 ack 21
        0.022 > .  21:21 ack 21 <sack=5021:6021,sack=3021:4021,sack=1021:2021>
        # It joins two blocks: one is left of them.
        0.023 < .  2021:3021 ack 21
        0.023 > .  21:21 ack 21 <sack=1021:4021,sack=5021:6021>
        ",
    );
}

/// Five blocks; the last report omits the first one.
const FIVE: &str = "
0.020 < .  1021:2021 ack 21
0.020 > .  21:21 ack 21
0.021 < .  3021:4021 ack 21
0.021 > .  21:21 ack 21
0.022 < .  5021:6021 ack 21
0.022 > .  21:21 ack 21
0.023 < .  7021:8021 ack 21
0.023 > .  21:21 ack 21 <sack=7021:8021,sack=5021:6021,sack=3021:4021,sack=1021:2021>
0.024 < .  9021:10021 ack 21
0.024 > .  21:21 ack 21 <sack=9021:10021,sack=7021:8021,sack=5021:6021,sack=3021:4021>
";

#[test]
fn at_most_four_blocks_are_reported() {
    // RFC 2018 §3: the option space holds four.
    reports(FIVE);
}

// spec: TCP-2018-1
#[test]
fn at_most_three_blocks_are_reported_beside_timestamps() {
    // RFC 2018 §3: with timestamps "a maximum of 3 SACK blocks".
    receives(
        Config { timestamps: true, window_scaling: false, ..config() },
        &["
        0.000 < S  0:0 win 60000 <mss=1012,sackOK,ts=100:0>
        0.000 > S. 0:0 ack 1 <mss=1000,sackOK,ts=0:100>
        0.001 < .  1:1 ack 1 <ts=101:0>
        0.010 < P. 1:21 ack 1 <ts=110:1>
        0.010 > .  1:1 ack 21 <ts=0:110>
        0.010 ? request
        0.010 ! accept
        0.010 > P. 1:21 ack 21 <ts=0:110>
        0.010 ? established
        0.011 < .  21:21 ack 21 <ts=111:10>
        0.020 < .  1021:2021 ack 21 <ts=120:10>
        0.020 > .  21:21 ack 21 <ts=0:111,sack=1021:2021>
        0.021 < .  3021:4021 ack 21 <ts=121:10>
        0.021 > .  21:21 ack 21 <ts=0:111,sack=3021:4021,sack=1021:2021>
        0.022 < .  5021:6021 ack 21 <ts=122:10>
        0.022 > .  21:21 ack 21 <ts=0:111,sack=5021:6021,sack=3021:4021,sack=1021:2021>
        0.023 < .  7021:8021 ack 21 <ts=123:10>
        0.023 > .  21:21 ack 21 <ts=0:111,sack=7021:8021,sack=5021:6021,sack=3021:4021>
        "],
    );
}

// spec: TCP-2018-1
#[test]
fn no_sack_blocks_without_sack_permitted() {
    // RFC 2018 §4: "If [..] the data receiver has not received a SACK-Permitted option for a given
    // connection, the data receiver MUST NOT send SACK options on that connection".
    receives(
        config(),
        &["
        0.000 < S  0:0 win 60000 <mss=1000>
        0.000 > S. 0:0 ack 1 <mss=1000>
        0.001 < .  1:1 ack 1 win 60000
        0.010 < P. 1:21 ack 1
        0.010 > .  1:1 ack 21 <>
        0.010 ? request
        0.010 ! accept
        0.010 > P. 1:21 ack 21 <>
        0.010 ? established
        0.011 < .  21:21 ack 21
        0.020 < .  1021:2021 ack 21
        0.020 > .  21:21 ack 21 <>
        0.021 < .  2021:3021 ack 21
        0.021 > .  21:21 ack 21 <>
        # RFC 2883 §3: nor a duplicate.
        0.022 < .  2021:3021 ack 21
        0.022 > .  21:21 ack 21 <>
        "],
    );
}

// spec: TCP-A.2-5
#[test]
fn data_segments_carry_no_blocks() {
    // All data segments must have room for the same number of bytes (RFC 5044 appendix A.1). RFC
    // 2018 §4 requires blocks in ACKs that report a gap: each such ACK is sent separately and has
    // them.
    reports(
        "
        # RFC 5044 §7.1.2 (4): a responder's first FPDU comes after the initiator's.
        0.019 < .  21:1021 ack 21
        *     > .  21:21 ack 1021
        0.020 < .  2021:3021 ack 21
        0.020 > .  21:21 ack 1021 <sack=2021:3021>
        0.021 ! post
        0.021 > P. 21:45 ack 1021 <>
        0.022 < .  4021:5021 ack 45
        0.022 > .  45:45 ack 1021 <sack=4021:5021,sack=2021:3021>
        ",
    );
}

#[test]
fn sack_block_ends_when_the_gap_before_it_is_filled() {
    reports(
        "
        0.020 < .  1021:2021 ack 21
        0.020 > .  21:21 ack 21 <sack=1021:2021>
        0.021 < .  3021:4021 ack 21
        0.021 > .  21:21 ack 21 <sack=3021:4021,sack=1021:2021>
        0.022 < .  21:1021 ack 21
        0.022 > .  21:21 ack 2021 <sack=3021:4021>
        0.023 < .  2021:3021 ack 21
        0.023 > .  21:21 ack 4021 <>
        ",
    );
}

// spec: TCP-2883-1
#[test]
fn a_duplicate_below_the_acknowledgment_number_is_the_first_block_once() {
    // RFC 2883 §4.1: reported once, in the next acknowledgment, before the blocks of RFC 2018.
    reports(
        "
        0.020 < .  21:1021 ack 21
        0.020 < .  1021:2021 ack 21
        0.020 > .  21:21 ack 2021 <>
        0.021 < .  3021:4021 ack 21
        0.021 > .  21:21 ack 2021 <sack=3021:4021>
        0.022 < .  21:1021 ack 21
        0.022 > .  21:21 ack 2021 <sack=21:1021,sack=3021:4021>
        0.023 < .  4021:5021 ack 21
        0.023 > .  21:21 ack 2021 <sack=3021:5021>
        ",
    );
}

#[test]
fn a_duplicate_above_it_is_followed_by_the_block_it_lies_in() {
    // RFC 2883 §4.2: "the second SACK block [..] SHOULD specify the [larger] block".
    reports(
        "
        0.020 < .  1021:2021 ack 21
        0.020 > .  21:21 ack 21 <sack=1021:2021>
        0.021 < .  2021:3021 ack 21
        0.021 > .  21:21 ack 21 <sack=1021:3021>
        0.022 < .  1021:2021 ack 21
        0.022 > .  21:21 ack 21 <sack=1021:2021,sack=1021:3021>
        0.023 < .  5021:6021 ack 21
        0.023 > .  21:21 ack 21 <sack=5021:6021,sack=1021:3021>
        # The block with the duplicate comes before the newest (RFC 2883 §4.2, third example).
        0.024 < .  2021:3021 ack 21
        0.024 > .  21:21 ack 21 <sack=2021:3021,sack=1021:3021,sack=5021:6021>
        ",
    );
}

#[test]
fn a_duplicate_leaves_room_for_three_blocks() {
    // RFC 2883 §4: the duplicate's block is one of the four.
    reports(
        &[
            FIVE,
            "
        0.025 < .  9021:10021 ack 21
        0.025 > .  21:21 ack 21 <sack=9021:10021,sack=9021:10021,sack=7021:8021,sack=5021:6021>
        ",
        ]
        .concat(),
    );
}

/// RFC 2883 §4.2: only a part of the segment has arrived before.
#[test]
fn the_repeated_part_of_a_segment_is_reported() {
    reports(
        "
        # Held beyond a gap, which the segment fills.
        0.020 < .  1021:1421 ack 21
        0.020 > .  21:21 ack 21 <sack=1021:1421>
        0.021 < .  21:1421 ack 21
        0.021 > .  21:21 ack 1421 <sack=1021:1421>
        # Acknowledged.
        0.022 < .  1021:1821 ack 21
        0.022 > .  21:21 ack 1821 <sack=1021:1421>
        # Beyond a gap.
        0.023 < .  3021:3421 ack 21
        0.023 > .  21:21 ack 1821 <sack=3021:3421>
        0.024 < .  2821:3821 ack 21
        0.024 > .  21:21 ack 1821 <sack=3021:3421,sack=2821:3821>
        # Two parts: the first is reported.
        0.025 < .  4221:4421 ack 21
        0.025 > .  21:21 ack 1821 <sack=4221:4421,sack=2821:3821>
        0.026 < .  3621:4621 ack 21
        0.026 > .  21:21 ack 1821 <sack=3621:3821,sack=2821:4621>
        # What follows has not come before.
        0.027 < .  1821:2821 ack 21
        0.027 > .  21:21 ack 4621 <>
        ",
    );
}
