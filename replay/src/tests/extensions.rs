//! RFC 7306 and RFC 6581: each rule, and a session that breaks it.

use urnic_engine::types::{Stag, TaggedOffset};
use urnic_engine::wire::mpa::StartupKind;
use urnic_engine::wire::rdmap::{AtomicOpcode, AtomicRequest, AtomicResponse, Opcode};

use super::build::{startup, tagged, untagged};
use super::*;

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;
const NOTE: Severity = Severity::Note;

fn atomic(msn: u32, id: u32, opcode: u8) -> Vec<u8> {
    let request = AtomicRequest {
        opcode: AtomicOpcode::from_bits(opcode),
        request_id: id,
        stag: Stag(9),
        to: TaggedOffset(8),
        data: 1,
        mask: 0,
        compare: 0,
        compare_mask: u64::MAX,
    };
    untagged(Opcode::AtomicRequest, 1, (msn, 0), true, &request.to_bytes())
}

fn answer(msn: u32, id: u32) -> Vec<u8> {
    let response = AtomicResponse { request_id: id, original: 7 };
    untagged(Opcode::AtomicResponse, 3, (msn, 0), true, &response.to_bytes())
}

/// Findings when the sides send these ULPDUs.
fn found(ulpdus: &[(usize, Vec<u8>)]) -> Vec<(Severity, &'static str)> {
    let mut talk = Talk::started();
    for (side, ulpdu) in ulpdus {
        talk.fpdu(*side, ulpdu);
    }
    rules(&connection(&talk.file))
}

#[test]
fn atomic_operations_are_answered_in_order() {
    let asked = [(INITIATOR, atomic(1, 5, 0)), (INITIATOR, atomic(2, 6, 2))];
    let with = |answers: &[(usize, Vec<u8>)]| found(&[&asked[..], answers].concat());
    assert_eq!(with(&[(RESPONDER, answer(1, 5)), (RESPONDER, answer(2, 6))]), []);
    let swapped = with(&[(RESPONDER, answer(1, 6)), (RESPONDER, answer(2, 5))]);
    assert_eq!(swapped, [(ERROR, "RFC 7306 §5.2.2")], "both are one finding");
    assert_eq!(with(&[(RESPONDER, answer(1, 5))]), [(NOTE, "RFC 7306 §5.2.1")]);
    let three =
        with(&[(RESPONDER, answer(1, 5)), (RESPONDER, answer(2, 6)), (RESPONDER, answer(3, 6))]);
    assert_eq!(three, [(ERROR, "RFC 7306 §5.2.2")]);
}

#[test]
fn atomic_messages_have_their_form() {
    for opcode in [1, 3, 15] {
        let pair = [(INITIATOR, atomic(1, 5, opcode)), (RESPONDER, answer(1, 5))];
        assert_eq!(found(&pair), [(ERROR, "RFC 7306 §5.2.1")], "operation {opcode}");
    }
    for len in [0, 51, 53, 200] {
        let request = untagged(Opcode::AtomicRequest, 1, (1, 0), true, &vec![0; len]);
        assert_eq!(found(&[(INITIATOR, request)]), [(ERROR, "RFC 7306 §5.2.1")], "{len}");
    }
    let split = untagged(Opcode::AtomicRequest, 1, (1, 0), false, &[0; 52]);
    assert_eq!(found(&[(INITIATOR, split)]), [(ERROR, "RFC 7306 §5.2.1")]);
    for len in [0, 11, 13] {
        let response = untagged(Opcode::AtomicResponse, 3, (1, 0), true, &vec![0; len]);
        assert_eq!(found(&[(INITIATOR, response)]), [(ERROR, "RFC 7306 §5.2.2")], "{len}");
    }
}

#[test]
fn messages_of_the_extensions_have_their_queues() {
    for (opcode, queue) in [
        (Opcode::Immediate, 1),
        (Opcode::ImmediateSolicited, 3),
        (Opcode::AtomicRequest, 0),
        (Opcode::AtomicResponse, 1),
    ] {
        let wrong = untagged(opcode, queue, (1, 0), true, &[0; 8]);
        assert_eq!(found(&[(INITIATOR, wrong)]), [(ERROR, "RFC 7306 §4.1")], "{opcode}");
        let in_tagged = tagged(opcode, 1, 0, true, &[0; 8]);
        assert_eq!(found(&[(INITIATOR, in_tagged)]), [(ERROR, "RFC 7306 §4.1")], "{opcode}");
    }
}

#[test]
fn immediate_data_is_eight_octets_behind_a_write() {
    let immediate = |msn, len: usize, last| {
        (INITIATOR, untagged(Opcode::Immediate, 0, (msn, 0), last, &vec![1; len]))
    };
    let written = (INITIATOR, write(1, 0, b"data"));
    assert_eq!(found(&[written.clone(), immediate(1, 8, true)]), []);
    for len in [0, 7, 9] {
        let wrong = found(&[written.clone(), immediate(1, len, true)]);
        assert_eq!(wrong, [(ERROR, "RFC 7306 §6.3")], "{len}");
    }
    let split = [written.clone(), immediate(1, 8, false)];
    assert_eq!(found(&split), [(ERROR, "RFC 7306 §6.3")]);
    let alone = [(NOTE, "RFC 7306 §6")];
    assert_eq!(found(&[immediate(1, 8, true)]), alone);
    assert_eq!(found(&[written.clone(), immediate(1, 8, true), immediate(2, 8, true)]), alone);
    assert_eq!(found(&[written, (INITIATOR, send(1, b"x")), immediate(2, 8, true)]), alone);
    // The beginning is not in the capture: there may have been a Write.
    let mut midway = Talk::empty();
    for msn in 1..=4 {
        midway.fpdu(INITIATOR, &untagged(Opcode::Immediate, 0, (msn, 0), true, &[1; 8]));
    }
    let found = connection(&midway.file);
    assert!(found.findings.iter().filter(|one| one.rule == "RFC 7306 §6").count() <= 1);
}

/// Builds a connection with these words in its enhanced startup frames.
fn agreed(asked: [u8; 4], said: [u8; 4]) -> Talk {
    let mut talk = Talk::open();
    for (side, kind, word) in
        [(INITIATOR, StartupKind::Request, asked), (RESPONDER, StartupKind::Reply, said)]
    {
        let mut frame = startup(kind, false, &word);
        frame[16] |= 0x10;
        frame[17] = 2;
        talk.send(side, &frame);
    }
    talk
}

#[test]
fn the_first_fpdu_of_the_peer_to_peer_model_is_the_rtr_message() {
    // RDMA Write and Read are offered; Write is chosen.
    let first = |ulpdu: &[u8]| {
        let mut talk = agreed([0x80, 1, 0xC0, 1], [0x80, 1, 0x80, 1]);
        talk.fpdu(INITIATOR, ulpdu).fpdu(INITIATOR, &send(1, b"x"));
        rules(&connection(&talk.file)).split_off(1)
    };
    assert_eq!(first(&write(1, 0, b"")), []);
    assert_eq!(first(&write(1, 0, b"data")), [(ERROR, "RFC 6581 §9.2")]);
    let read = first(&read_request(1, 1, 0, 0));
    assert_eq!(read, [(ERROR, "RFC 6581 §9.2"), (NOTE, "RFC 5040 §5.2")]);
    let stopped = first(&terminate([0x20, 7, 0, 0]));
    assert!(!stopped.contains(&(ERROR, "RFC 6581 §9.2")), "{stopped:?}");
    // In the client-server model no message is required.
    let mut plain = agreed([0, 1, 0, 1], [0, 1, 0, 1]);
    plain.fpdu(INITIATOR, &send(1, b"x"));
    assert_eq!(rules(&connection(&plain.file)), []);
}

#[test]
fn differing_models_and_depths_are_reported() {
    let told = |asked, said| rules(&connection(&agreed(asked, said).file));
    assert_eq!(told([0, 1, 0, 1], [0x80, 1, 0x80, 1]), [(WARNING, "RFC 6581 §9.2")]);
    assert_eq!(told([0, 1, 0xC0, 1], [0, 1, 0, 1]), [(NOTE, "RFC 6581 §9.2")]);
    assert_eq!(told([0, 1, 0, 8], [0, 2, 0, 1]), [(NOTE, "RFC 6581 §9.1")]);
    assert_eq!(told([0, 1, 0x3F, 0xFF], [0, 2, 0, 1]), [(WARNING, "RFC 6581 §9.1")]);
    assert_eq!(told([0x3F, 0xFF, 0, 1], [0, 2, 0, 1]), [(WARNING, "RFC 6581 §9.1")]);
}

#[test]
fn requests_above_the_ird_of_the_peer_are_reported() {
    let asked = |ird: u8, answers_first: bool| {
        let mut talk = agreed([0, 1, 0, ird], [0, ird, 0, 1]);
        talk.fpdu(INITIATOR, &read_request(1, 5, 50, 8));
        if answers_first {
            talk.fpdu(RESPONDER, &read_response(5, 50, &[0; 8]));
        }
        talk.fpdu(INITIATOR, &atomic(2, 3, 0));
        if !answers_first {
            talk.fpdu(RESPONDER, &read_response(5, 50, &[0; 8]));
        }
        talk.fpdu(RESPONDER, &answer(1, 3));
        rules(&connection(&talk.file))
    };
    assert_eq!(asked(1, true), []);
    assert_eq!(asked(2, false), []);
    assert_eq!(asked(1, false), [(ERROR, "RFC 6581 §9.1")]);
}

/// From the Send to the Terminate that names it, on the page and in the picture.
#[test]
fn time_from_a_send_to_its_terminate_is_shown() {
    let page_of = |about: u32| {
        let mut talk = Talk::started();
        talk.now_us = 1_000_000;
        for msn in 1..=3 {
            talk.wait(1000).fpdu(INITIATOR, &send(msn, b"x"));
        }
        // DDP layer, untagged: no buffer. With the header of the segment in error.
        let mut stop = terminate([0x12, 2, 0xc0, 0]);
        stop.extend(19_u16.to_be_bytes());
        stop.extend(&send(about, b"x")[..18]);
        talk.wait(5000).fpdu(RESPONDER, &stop);
        crate::report::page::of(&[crate::replay_pictured("test", || Ok(&talk.file[..]))])
    };
    let page = page_of(2);
    assert!(
        page.contains("From its Send to the Terminate of the other end that is about it: 6 ms")
    );
    assert!(page.contains("send to the terminate that is about it: 1 time; half within 6 ms"));
    assert!(!page_of(9).contains("that is about it:"), "there was no such Send");
}
