//! RFC 5044 §7.1: from TCP's handshake to full operation, and every failure on the way.

use urnic_engine::limits::{EARLY_BYTES_MAX, EARLY_PIECES_MAX};
use urnic_engine::mpa::startup::{Fallback, Revision, StartupConfig};

use crate::conformance::octets::{CRC, empty_write, request, startup};
use crate::conformance::script::{ESTABLISHED, config, initiate, listen, respond};

/// Flag of a Reply that rejects.
const REJECT: u8 = 0x20;

fn reply(flags: u8) -> Vec<u8> {
    startup(b"MPA ID Rep Frame", flags)
}

/// Returns the settings of revision 1, which every peer knows.
fn plain() -> StartupConfig {
    StartupConfig {
        revision: Revision::One,
        fallback: Fallback::empty(),
        ..StartupConfig::default()
    }
}

/// TCP's handshake with a responder.
const ACCEPTED: &str = "
0.000 < S  0:0 win 60000 <mss=1000,sackOK>
0.000 > S. 0:0 ack 1
0.001 < .  1:1 ack 1 win 60000
";

/// TCP's handshake with an initiator, and its Request.
const CONNECTED: &str = "
0.000 > S  0:0
0.001 < S. 0:0 ack 1 win 60000 <mss=1000,sackOK>
0.001 > P. 1:21 ack 1
0.002 < .  1:1 ack 21
";

fn responds(peer_octets: &[u8], table: &str) -> Vec<u8> {
    respond(peer_octets, &[ACCEPTED, table].concat())
}

fn initiates(peer_octets: &[u8], table: &str) {
    let octets = initiate(peer_octets, plain(), &[CONNECTED, table].concat());
    assert_eq!(octets[..20], request());
}

/// The responder has accepted the peer's Request.
const STARTED: &str = "
0.010 < P. 1:21 ack 1
0.010 > .  1:1 ack 21
0.010 ? request
0.010 ! accept
0.010 > P. 1:21 ack 21
0.010 ? established
0.011 < .  21:21 ack 21
";

// spec: MPA-7.1.2-2
#[test]
fn a_responder_is_silent_until_the_request_is_whole() {
    // §7.1.2 (2).
    let octets = responds(
        &request(),
        "
        0.010 < P. 1:11 ack 1
        *     > .  1:1 ack 11
        0.020 < P. 11:20 ack 1
        *     > .  1:1 ack 20
        0.030 < P. 20:21 ack 1
        0.030 > .  1:1 ack 21
        0.030 ? request
        0.030 ! accept
        0.030 > P. 1:21 ack 21
        0.031 < .  21:21 ack 21
        ",
    );
    assert_eq!(octets, reply(CRC));
}

#[test]
fn a_frame_that_is_no_request_is_answered_with_a_close_and_nothing_else() {
    // §7.1.2 (2), (5), (8).
    let mut no_key = request();
    no_key[15] ^= 1;
    for peer_octets in [no_key, reply(CRC)] {
        let octets = responds(
            &peer_octets,
            "
            0.010 < P. 1:21 ack 1
            0.010 > F. 1:1 ack 21
            0.010 ? startup-failed
            0.011 < F. 21:21 ack 2
            0.011 > .  2:2 ack 22
            ",
        );
        assert!(octets.is_empty());
    }
}

#[test]
fn a_request_that_never_ends_is_given_up() {
    // §7.1.2 (10).
    responds(
        &request(),
        "
        0.010  < P. 1:20 ack 1
        *      > .  1:1 ack 20
        29.900 ? connections 1
        30.000 > F. 1:1 ack 20
        30.001 ? startup-failed
        30.001 < F. 20:20 ack 2
        30.001 > .  2:2 ack 21
        ",
    );
}

/// The startup frame is cut into segments, and they come in another order: each is sent once.
#[test]
fn a_request_whose_parts_come_in_any_order_is_read_without_a_retransmission() {
    for (first, second, third) in [("6:21", "1:6", ""), ("14:21", "5:14", "1:5")] {
        let mut table = format!(
            "
        0.010 < P. {first} ack 1
        0.010 > .  1:1 ack 1
        "
        );
        let mut last = second;
        if !third.is_empty() {
            table += &format!(
                "
        0.011 < P. {second} ack 1
        0.011 > .  1:1 ack 1
        # Again, cut otherwise.
        0.012 < P. 4:14 ack 1
        0.012 > .  1:1 ack 1
        "
            );
            last = third;
        }
        table += &format!(
            "
        0.020 < P. {last} ack 1
        0.020 > .  1:1 ack 21
        0.020 ? request
        0.030 ! accept
        0.030 > P. 1:21 ack 21
        0.031 < .  21:21 ack 21
        "
        );
        assert_eq!(responds(&request(), &table), reply(CRC));
    }
}

#[test]
fn a_reply_whose_parts_come_in_any_order_is_read_without_a_retransmission() {
    initiates(
        &reply(CRC),
        "
        0.010 < P. 11:21 ack 21
        0.010 > .  21:21 ack 1
        0.010 ? connections 1
        0.020 < P. 1:11 ack 21
        0.020 > .  21:21 ack 21
        0.020 ? established
        0.040 ! post
        0.040 > P. 21:45 ack 21
        0.041 < .  21:21 ack 45
        ",
    );
}

/// §7.1.2 (4): a responder must not send FPDUs before the initiator has. One whose FPDUs overtake its Reply
/// is treated as one whose segments come in order: nothing is lost, and the connection closes at once.
#[test]
fn an_fpdu_that_comes_before_the_reply_is_taken_behind_it() {
    initiates(
        &[reply(CRC), empty_write(), empty_write()].concat(),
        "
        0.010 < P. 21:41 ack 21
        0.010 > .  21:21 ack 1
        # The Reply comes in parts, and with a part of the next FPDU.
        0.011 < P. 11:21 ack 21
        0.011 > .  21:21 ack 1
        0.012 < P. 41:51 ack 21
        0.012 > .  21:21 ack 1
        0.020 < P. 1:11 ack 21
        0.020 > F. 21:21 ack 51
        0.020 > .  22:22 ack 51
        0.020 ? established
        0.020 ? failed
        0.021 < F. 51:51 ack 22
        0.021 > .  22:22 ack 52
        ",
    );
}

#[test]
fn streaming_octets_that_come_in_any_order_are_read_without_a_retransmission() {
    listen(
        config(),
        &[
            ESTABLISHED,
            "
        0.010 < P. 501:1001 ack 1
        0.010 > .  1:1 ack 1
        0.011 < P. 1001:1501 ack 1
        0.011 > .  1:1 ack 1
        0.020 < P. 1:501 ack 1
        0.020 > .  1:1 ack 1501
        0.020 ? read 1500
        ",
        ]
        .concat(),
    );
}

/// Bytes beyond the limit of a copy, or in one piece too many, are not received: the peer retransmits them.
#[test]
fn copies_of_startup_octets_beyond_a_gap_are_bounded() {
    let far = 1 + EARLY_BYTES_MAX as u32;
    let mut table = format!(
        "
        0.010 < P. {}:{} ack 1
        0.010 > .  1:1 ack 1
        0.011 < P. 101:{} ack 1
        0.011 > .  1:1 ack 1
        0.020 < P. 1:101 ack 1
        0.020 > .  1:1 ack {far}
        0.020 ? read {EARLY_BYTES_MAX}
        ",
        far - 1,
        far + 9,
        far - 1,
    );
    for piece in 0..=EARLY_PIECES_MAX as u32 {
        let (at, time) = (far + 1 + piece, 100 + piece);
        table += &format!(
            "
        0.{time} < P. {at}:{} ack 1
        0.{time} > .  1:1 ack {far}
        ",
            at + 1
        );
    }
    let end = far + 1 + EARLY_PIECES_MAX as u32;
    table += &format!(
        "
        0.200 < P. {far}:{} ack 1
        0.200 > .  1:1 ack {end}
        ",
        far + 1
    );
    let mut script = ESTABLISHED.to_owned();
    script += &table;
    listen(config(), &script);
}

#[test]
fn octets_behind_the_request_end_the_startup() {
    // §7.1.2 (3): the initiator waits for the Reply.
    responds(
        &request(),
        "
        0.010 < P. 1:22 ack 1
        0.010 > F. 1:1 ack 22
        0.010 ? startup-failed
        0.011 < F. 22:22 ack 2
        0.011 > .  2:2 ack 23
        ",
    );
}

#[test]
fn a_rejection_leaves_tcp_open_for_octets_of_both() {
    // §7.1.2 (6).
    let octets = responds(
        &request(),
        "
        0.010 < P. 1:21 ack 1
        0.010 > .  1:1 ack 21
        0.010 ! reject
        0.010 > P. 1:21 ack 21
        0.011 < P. 21:1021 ack 21
        *     > .  21:21 ack 1021
        0.020 ? read 1000
        0.020 ! write 10
        0.020 > P. 21:31 ack 1021
        0.021 < .  1021:1021 ack 31
        0.030 ! close
        0.030 > F. 31:31 ack 1021
        0.031 < F. 1021:1021 ack 32
        0.031 > .  32:32 ack 1022
        ",
    );
    assert_eq!(octets, [reply(CRC | REJECT), vec![7; 10]].concat());
}

// spec: MPA-7.1.2-9
#[test]
fn a_responder_sends_nothing_before_the_first_fpdu() {
    // §7.1.2 (4).
    responds(
        &[request(), empty_write()].concat(),
        &[
            STARTED,
            "
        0.020 ! post
        9.000 < P. 21:41 ack 21
        9.000 > P. 21:45 ack 41
        9.001 < .  41:41 ack 45
        ",
        ]
        .concat(),
    );
}

#[test]
fn a_first_fpdu_with_a_bad_crc_does_not_let_the_responder_send() {
    // §7.1.2 (4): received "and validated". §8: the segment may be dropped.
    let mut fpdu = empty_write();
    fpdu[19] ^= 1;
    responds(
        &[request(), fpdu].concat(),
        &[
            STARTED,
            "
        0.020 ! post
        0.030 < P. 21:41 ack 21
        0.030 > .  21:21 ack 21
        9.000 ? connections 1
        ",
        ]
        .concat(),
    );
}

#[test]
fn a_silenced_responder_closes_after_a_bound() {
    // §7.1.2 (4); RFC 5041 §6.2.1: a close first sends posted requests.
    responds(
        &request(),
        &[
            STARTED,
            "
        1.000  ! post
        1.000  ! close
        30.900 ? connections 1
        31.000 > F. 21:21 ack 21
        31.001 ? failed
        31.001 < F. 21:21 ack 22
        31.001 > .  22:22 ack 22
        ",
        ]
        .concat(),
    );
}

// spec: MPA-7.1.2-6
#[test]
fn an_initiator_sends_no_fpdu_before_the_reply() {
    // §7.1.2 (3).
    initiates(
        &reply(CRC),
        "
        0.010 < P. 1:20 ack 21
        *     > .  21:21 ack 20
        0.030 < P. 20:21 ack 21
        0.030 > .  21:21 ack 21
        0.030 ? established
        0.040 ! post
        0.040 > P. 21:45 ack 21
        0.041 < .  21:21 ack 45
        ",
    );
}

#[test]
fn mpa_request_instead_of_a_reply_ends_the_startup() {
    // §7.1.2 (8): two initiators.
    initiates(
        &request(),
        "
        0.010 < P. 1:21 ack 21
        0.010 > F. 21:21 ack 21
        0.010 ? startup-failed
        0.011 < F. 21:21 ack 22
        0.011 > .  22:22 ack 22
        ",
    );
}

#[test]
fn a_reply_that_never_comes_is_given_up() {
    // §7.1.2 (10).
    initiates(
        &[],
        "
        29.900 ? connections 1
        30.000 > F. 21:21 ack 1
        30.001 ? startup-failed
        30.001 < F. 1:1 ack 22
        30.001 > .  22:22 ack 2
        ",
    );
}

#[test]
fn a_rejected_initiator_keeps_its_connection() {
    // §7.1.2 (3).
    initiates(
        &reply(CRC | REJECT),
        "
        0.010 < P. 1:21 ack 21
        0.010 > .  21:21 ack 21
        0.010 ? rejected
        0.020 ! write 10
        0.020 > P. 21:31 ack 21
        0.021 < P. 21:31 ack 31
        0.021 > .  31:31 ack 31
        0.021 ? read 10
        ",
    );
}
