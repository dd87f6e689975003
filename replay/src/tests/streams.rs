//! Counts of streams and messages.

use sha2::{Digest, Sha256};
use urnic_engine::wire::mpa::StartupKind;

use super::build::{fpdu, startup, tagged};
use super::*;
use crate::report::hex;
use urnic_engine::wire::rdmap::Opcode;

#[test]
fn a_lawful_session_gives_no_findings() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"hello there"))
        .fpdu(RESPONDER, &read_request(1, 7, 100, 10))
        .fpdu(INITIATOR, &read_response(7, 100, &[5; 10]))
        .fpdu(RESPONDER, &write(8, u64::MAX - 3, b"last"))
        .fpdu(INITIATOR, &send(2, b""))
        .close(INITIATOR)
        .close(RESPONDER);
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), []);
    assert_eq!(
        (&*connection.initiator, &*connection.responder),
        ("10.0.0.1:40000", "10.0.0.2:7174")
    );
    let [initiator, responder] = &connection.directions[..] else { panic!("two directions") };
    assert_eq!((initiator.segments, initiator.segments_aligned), (4, 3));
    assert_eq!((initiator.fpdus, initiator.crc_good, initiator.crc_bad), (3, 3, 0));
    assert_eq!(initiator.fpdus_by_opcode["send"], 2);
    assert_eq!(initiator.messages["read_response"], 1);
    assert_eq!(initiator.buffers[0].sha256, Some(hex(&Sha256::digest([5; 10]))));
    assert_eq!((initiator.bytes_placed, initiator.bytes_held_peak), (21, 0));
    assert_eq!(responder.buffers[0].first_offset, u64::MAX - 3);
    assert_eq!(responder.buffers[0].stag, "0x00000008");
}

#[test]
fn the_first_octets_win_and_a_repetition_is_no_new_fpdu() {
    let mut talk = Talk::started();
    let seq = talk.seq[INITIATOR];
    talk.fpdu(INITIATOR, &write(1, 0, &[1; 8]));
    let other = fpdu(&write(1, 0, &[2; 8]));
    talk.frame(INITIATOR, seq, 0x10, &other);
    let connection = connection(&talk.file);
    let initiator = &connection.directions[0];
    assert_eq!((initiator.segments, initiator.segments_retransmitted, initiator.fpdus), (3, 1, 1));
    assert_eq!(initiator.segments_aligned, 2);
    assert_eq!(initiator.buffers[0].sha256, Some(hex(&Sha256::digest([1; 8]))));
}

#[test]
fn octets_beyond_a_gap_wait_until_it_closes() {
    let mut talk = Talk::started();
    let first = fpdu(&write(1, 0, &[1; 8]));
    let seq = talk.seq[INITIATOR];
    talk.skip(INITIATOR, u32::try_from(first.len()).unwrap());
    talk.fpdu(INITIATOR, &write(1, 8, &[2; 8])).fpdu(INITIATOR, &write(1, 16, &[3; 8]));
    talk.frame(INITIATOR, seq, 0x10, &first);
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), []);
    let initiator = &connection.directions[0];
    assert_eq!((initiator.segments_out_of_order, initiator.fpdus), (2, 3));
    assert_eq!(initiator.buffers[0].bytes, 24);
    assert!(initiator.bytes_held_peak > 0);
}

#[test]
fn full_operation_waits_for_a_late_startup() {
    // The Reply and the initiator's first bytes are in the wrong order, as in a capture taken by
    // several threads.
    let mut talk = Talk::open();
    talk.send(INITIATOR, &startup(StartupKind::Request, false, b"ask"));
    let reply = startup(StartupKind::Reply, false, b"answer");
    let seq = talk.seq[RESPONDER];
    talk.skip(RESPONDER, u32::try_from(reply.len()).unwrap());
    talk.fpdu(INITIATOR, &send(1, b"x")).fpdu(RESPONDER, &send(1, b"y"));
    talk.frame(RESPONDER, seq, 0x10, &reply);
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), []);
    assert_eq!(connection.directions.iter().map(|one| one.fpdus).sum::<u64>(), 2);
    let mpa = connection.mpa.unwrap();
    assert_eq!(
        (&*mpa.initiator_private_data, &*mpa.responder_private_data),
        ("61736b", "616e73776572")
    );
}

#[test]
fn streaming_octets_may_precede_the_startup() {
    let mut talk = Talk::open();
    talk.send(INITIATOR, b"EHLO MPA ID").send(RESPONDER, b"250 rdma\r\n");
    let request = startup(StartupKind::Request, false, b"");
    talk.send(INITIATOR, &request[..5]).send(INITIATOR, &request[5..]);
    talk.send(RESPONDER, &startup(StartupKind::Reply, false, b""));
    talk.fpdu(INITIATOR, &send(1, b"x"));
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), []);
    assert_eq!(connection.directions[0].fpdus, 1);
}

#[test]
fn ports_used_again_are_another_connection() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x")).close(INITIATOR).close(RESPONDER);
    let mut again = Talk::started();
    again.fpdu(INITIATOR, &send(1, b"y")).fpdu(RESPONDER, &send(1, b"z"));
    // The second conversation with other sequence numbers.
    let mut second = Talk::empty();
    second.seq = [5_000_000, 77];
    second.frame(INITIATOR, 5_000_000, 2, &[]);
    second.frame(RESPONDER, 77, 0x12, &[]);
    second.seq = [5_000_001, 78];
    second.send(INITIATOR, &startup(StartupKind::Request, false, b""));
    second.send(RESPONDER, &startup(StartupKind::Reply, false, b""));
    second.fpdu(INITIATOR, &send(1, b"y")).fpdu(RESPONDER, &send(1, b"z"));
    talk.file.extend(&second.file[24..]);
    let report = replay(&talk.file);
    let fpdus: Vec<u64> = report
        .connections
        .iter()
        .map(|one| one.directions.iter().map(|direction| direction.fpdus).sum())
        .collect();
    assert_eq!(fpdus, [1, 2]);
}

#[test]
fn a_segment_damaged_on_its_way_is_left_out() {
    let mut talk = Talk::started();
    let octets = fpdu(&write(1, 0, &[1; 100]));
    talk.send(INITIATOR, &octets);
    let at = talk.file.len() - 30;
    talk.file[at] ^= 1;
    // The retransmission.
    talk.seq[INITIATOR] -= u32::try_from(octets.len()).unwrap();
    talk.send(INITIATOR, &octets);
    for msn in 1..=3 {
        talk.fpdu(INITIATOR, &send(msn, b"more"));
    }
    let report = replay(&talk.file);
    assert_eq!((report.frames_skipped, report.frames_corrupt), (1, 1));
    assert_eq!((report.findings.len(), report.findings[0].frame), (1, 5));
    let initiator = &report.connections[0].directions[0];
    assert_eq!((initiator.segments_retransmitted, initiator.crc_bad, initiator.fpdus), (0, 0, 4));
}

#[test]
fn a_wrong_checksum_alone_does_not_hide_what_nothing_else_brings() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &write(1, 0, &[1; 100]));
    let at = talk.file.len() - 30;
    talk.file[at] ^= 1;
    for msn in 1..=3 {
        talk.fpdu(INITIATOR, &send(msn, b"more"));
    }
    let report = replay(&talk.file);
    assert_eq!((report.frames_skipped, report.findings.len()), (0, 1));
    let initiator = &report.connections[0].directions[0];
    assert_eq!((initiator.crc_bad, initiator.fpdus), (1, 4));
}

#[test]
fn checksums_left_to_the_device_do_not_matter() {
    let mut talk = Talk::empty();
    talk.checksums = false;
    talk.frame(INITIATOR, 1000, 2, &[]);
    talk.frame(RESPONDER, 77, 0x12, &[]);
    talk.seq = [1001, 78];
    talk.send(INITIATOR, &startup(StartupKind::Request, false, b""));
    talk.send(RESPONDER, &startup(StartupKind::Reply, false, b""));
    talk.fpdu(INITIATOR, &send(1, b"x"));
    let report = replay(&talk.file);
    assert_eq!(report.findings, []);
    assert_eq!(report.connections[0].directions[0].fpdus, 1);
}

#[test]
fn counts_go_on_behind_a_wrong_crc() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"one"));
    let mut bad = fpdu(&send(2, b"two"));
    bad[25] ^= 0x40;
    talk.send(INITIATOR, &bad).fpdu(INITIATOR, &send(3, b"three")).fpdu(INITIATOR, &send(5, b""));
    let connection = connection(&talk.file);
    let initiator = &connection.directions[0];
    assert_eq!((initiator.fpdus, initiator.crc_good, initiator.crc_bad), (4, 3, 1));
    assert_eq!(initiator.fpdus_by_opcode["send"], 3);
    // No finding about message 2, but message 4 is missing.
    assert_eq!(
        rules(&connection),
        [(Severity::Error, "RFC 5044 §4.4"), (Severity::Error, "RFC 5041 §4.3")]
    );
    assert_eq!(connection.findings[0].frame, 6);
}

#[test]
fn segments_of_a_message_are_fpdus_and_one_message() {
    let mut talk = Talk::started();
    let part = |to: u64, last| tagged(Opcode::RdmaWrite, 3, to, last, &[9; 64]);
    talk.fpdu(INITIATOR, &part(0, false))
        .fpdu(INITIATOR, &part(64, false))
        .fpdu(INITIATOR, &part(128, true));
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), []);
    assert_eq!(connection.directions[0].fpdus_by_opcode["rdma_write"], 3);
    assert_eq!(connection.directions[0].messages["rdma_write"], 1);
}
