//! Each rule, and a session that breaks it.

use urnic_engine::wire::mpa::StartupKind;
use urnic_engine::wire::rdmap::Opcode;

use super::build::{fpdu, startup, tagged, untagged};
use super::*;

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;
const NOTE: Severity = Severity::Note;

/// Findings when the initiator sends these ULPDUs.
fn found(ulpdus: &[&[u8]]) -> Vec<(Severity, &'static str)> {
    let mut talk = Talk::started();
    for ulpdu in ulpdus {
        talk.fpdu(INITIATOR, ulpdu);
    }
    rules(&connection(&talk.file))
}

#[test]
fn headers_that_break_a_rule_are_errors() {
    let mut ddp_version = send(1, b"x");
    ddp_version[0] ^= 0b11;
    assert_eq!(found(&[&ddp_version]), [(ERROR, "RFC 5041 §4.1")]);
    let mut rdmap_version = send(1, b"x");
    rdmap_version[1] ^= 0xc0;
    assert_eq!(found(&[&rdmap_version]), [(ERROR, "RFC 5040 §4.1")]);
    assert_eq!(found(&[&[0x41; 10]]), [(ERROR, "RFC 5041 §4.1")]);
    let wrong_queue = untagged(Opcode::Send, 1, (1, 0), true, b"x");
    assert_eq!(found(&[&wrong_queue]), [(ERROR, "RFC 5040 §4.1")]);
    let no_queue = untagged(Opcode::Send, 9, (1, 0), true, b"x");
    assert_eq!(found(&[&no_queue]), [(ERROR, "RFC 5041 §4.3"), (ERROR, "RFC 5040 §4.1")]);
    let tagged_send = tagged(Opcode::Send, 1, 0, true, b"x");
    assert_eq!(found(&[&tagged_send]), [(ERROR, "RFC 5040 §4.1")]);
    let mut reserved = send(1, b"x");
    reserved[0] |= 0x3c;
    reserved[1] |= 0x30;
    assert_eq!(found(&[&reserved]), [(NOTE, "RFC 5041 §4.1"), (NOTE, "RFC 5040 §4.1")]);
    let wraps = write(1, u64::MAX, b"xy");
    assert_eq!(found(&[&wraps]), [(ERROR, "RFC 5041 §7.1")]);
    let long = untagged(Opcode::ReadRequest, 1, (1, 0), true, &[0; 29]);
    assert_eq!(found(&[&long]), [(ERROR, "RFC 5040 §4.4")]);
}

#[test]
fn messages_out_of_sequence_are_errors_once() {
    assert_eq!(found(&[&send(2, b"x"), &send(3, b"y")]), [(ERROR, "RFC 5041 §4.3")]);
    let middle = untagged(Opcode::Send, 0, (1, 5), true, b"x");
    assert_eq!(found(&[&middle, &send(2, b"y")]), [(ERROR, "RFC 5041 §4.3")]);
    let open = tagged(Opcode::RdmaWrite, 1, 0, false, b"abcd");
    assert_eq!(found(&[&open, &write(2, 0, b"x")]), [(ERROR, "RFC 5041 §5.2")]);
    assert_eq!(found(&[&open, &send(1, b"x"), &write(1, 4, b"x")]), []);
    // The message of an FPDU that cannot be used is unknown: so is the next one's place.
    let mut unusable = send(1, b"x");
    unusable[0] ^= 0b11;
    let only = [(ERROR, "RFC 5041 §4.1")];
    assert_eq!(found(&[&unusable, &send(7, b"y"), &send(8, b"z")]), only);
    assert_eq!(found(&[&open, &unusable, &write(2, 0, b"x")]), only);
}

#[test]
fn responses_answer_requests() {
    let answers = |response: &[u8]| {
        let mut talk = Talk::started();
        talk.fpdu(INITIATOR, &read_request(1, 5, 50, 8)).fpdu(RESPONDER, response);
        rules(&connection(&talk.file))
    };
    assert_eq!(answers(&read_response(5, 50, &[0; 8])), []);
    assert_eq!(answers(&read_response(5, 50, &[0; 7])), [(ERROR, "RFC 5040 §5.2")]);
    assert_eq!(answers(&read_response(6, 50, &[0; 8])), [(ERROR, "RFC 5040 §5.2")]);
    assert_eq!(answers(&read_response(5, 51, &[0; 8])), [(ERROR, "RFC 5040 §5.2")]);
    assert_eq!(found(&[&read_response(5, 0, b"x")]), [(ERROR, "RFC 5040 §5.2")]);
    assert_eq!(found(&[&read_request(1, 5, 0, 4)]), [(NOTE, "RFC 5040 §5.2")]);
}

#[test]
fn messages_after_a_terminate_are_errors() {
    let stop = terminate([0x11, 1, 0, 0]);
    assert_eq!(found(&[&stop]), [(WARNING, "RFC 5040 §4.8")]);
    assert_eq!(
        found(&[&stop, &send(1, b"x")]),
        [(WARNING, "RFC 5040 §4.8"), (ERROR, "RFC 5040 §5.4")]
    );
    let mut swapped = Talk::started();
    swapped.fpdu(INITIATOR, &terminate([0x21, 5, 0, 0]));
    let connection = connection(&swapped.file);
    assert_eq!(rules(&connection), [(WARNING, "RFC 5040 §4.8"), (NOTE, "RFC 5040 §4.8")]);
    let terminate = &connection.directions[0].terminate[0];
    assert_eq!((terminate.layer, terminate.etype, terminate.code), (1, 2, 5));
}

/// A peer that does not convert the fields of its Read Requests.
#[test]
fn read_requests_with_swapped_fields_are_recognised() {
    let mut talk = Talk::started();
    for msn in 1..=5_u32 {
        let (stag, to) = (0x0102_0300 + msn, 0x55d5_0000_1000 * u64::from(msn));
        let request = read_request(msn, stag.swap_bytes(), to.swap_bytes(), 4_u32.swap_bytes());
        talk.fpdu(INITIATOR, &request);
        talk.fpdu(RESPONDER, &read_response(stag, to, b"four"));
    }
    // One whose Response fits in neither byte order.
    talk.fpdu(INITIATOR, &read_request(6, 5, 50, 4_u32.swap_bytes()));
    talk.fpdu(RESPONDER, &read_response(5, 50, b"four"));
    let found = connection(&talk.file);
    assert_eq!(rules(&found), [(ERROR, "RFC 5040 §4.4"), (ERROR, "RFC 5040 §5.2")]);
    let [order, other] = &found.findings[..] else { panic!("{found:?}") };
    assert_eq!((order.frame, order.count), (5, 5));
    assert_eq!(order.frames, [5, 7, 9, 11, 13]);
    let start = "the fields of the Read Request are in little-endian order: read so, it asks for 4 bytes \
                 to STag 0x01020301 at 0x55d500001000";
    assert!(
        order.text.starts_with(start) && order.text.ends_with("(4 more like this)"),
        "{order:?}"
    );
    assert_eq!((other.frame, other.count), (16, 1));
}

#[test]
fn pad_that_is_not_zero_is_noted_once() {
    let mut talk = Talk::started();
    for msn in 1..=3 {
        // 18 bytes and 2 of length: no pad; one more byte: three of pad.
        let mut octets = fpdu(&send(msn, b"x"));
        let crc_at = octets.len() - 4;
        octets[crc_at - 1] = 7;
        let mut crc = urnic_engine::wire::crc32c::Crc32c::new();
        crc.update(&octets[..crc_at]);
        octets[crc_at..].copy_from_slice(&crc.finish().to_le_bytes());
        talk.send(INITIATOR, &octets);
    }
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), [(NOTE, "RFC 5044 §4.1")]);
    assert!(connection.findings[0].text.ends_with("(2 more like this)"));
}

#[test]
fn the_responder_waits_for_the_first_fpdu() {
    let mut talk = Talk::started();
    talk.fpdu(RESPONDER, &send(1, b"x")).fpdu(INITIATOR, &send(1, b"y"));
    assert_eq!(rules(&connection(&talk.file)), [(ERROR, "RFC 5044 §7.1.2")]);
    // The same order in the capture, but the acknowledgment shows that the FPDU had arrived.
    let mut talk = Talk::started();
    talk.ack[RESPONDER] = Some(talk.seq[INITIATOR] + 28);
    talk.fpdu(RESPONDER, &send(1, b"x")).fpdu(INITIATOR, &send(1, b"y"));
    assert_eq!(rules(&connection(&talk.file)), []);
}

#[test]
fn the_initiator_waits_for_the_reply() {
    let mut talk = Talk::open();
    talk.send(INITIATOR, &startup(StartupKind::Request, false, b""));
    talk.fpdu(INITIATOR, &send(1, b"x"));
    talk.send(RESPONDER, &startup(StartupKind::Reply, false, b""));
    assert_eq!(rules(&connection(&talk.file)), [(ERROR, "RFC 5044 §7.1.2")]);
}

#[test]
fn failed_startups_are_reported() {
    let answered = |reply: &[u8]| {
        let mut talk = Talk::open();
        talk.send(INITIATOR, &startup(StartupKind::Request, true, b"")).send(RESPONDER, reply);
        connection(&talk.file)
    };
    let request = startup(StartupKind::Request, false, b"");
    assert_eq!(rules(&answered(&request)), [(ERROR, "RFC 5044 §7.1.2")]);
    let mut reject = startup(StartupKind::Reply, false, b"");
    reject[16] |= 0x20;
    let rejected = answered(&reject);
    assert_eq!(rules(&rejected), [(NOTE, "RFC 5044 §7.1.2")]);
    assert_eq!(rejected.mpa.unwrap().accepted, Some(false));
    let mut long = startup(StartupKind::Reply, false, b"");
    long[18] = 0xff;
    let malformed = answered(&long);
    assert!(rules(&malformed).contains(&(ERROR, "RFC 5044 §7.1.1")), "{malformed:?}");
    let mut reserved = startup(StartupKind::Reply, false, b"");
    reserved[16] |= 8;
    assert_eq!(rules(&answered(&reserved)), [(NOTE, "RFC 5044 §7.1.1")]);
}

#[test]
fn enhanced_startups_show_the_negotiated_values() {
    let agreed = |asked: [u8; 4], said: [u8; 4]| {
        let mut talk = Talk::open();
        for (side, kind, word) in
            [(INITIATOR, StartupKind::Request, asked), (RESPONDER, StartupKind::Reply, said)]
        {
            let mut frame = startup(kind, false, &word);
            // S, and revision 2.
            frame[16] |= 0x10;
            frame[17] = 2;
            talk.send(side, &frame);
        }
        connection(&talk.file)
    };
    assert_eq!(rules(&agreed([0, 1, 0, 1], [0, 1, 0, 1])), []);
    let kinds = agreed([0x80, 1, 0xC0, 1], [0x80, 1, 0x80, 1]);
    assert_eq!(rules(&kinds), [(NOTE, "RFC 6581 §9.2")]);
    assert!(kinds.findings[0].text.ends_with("zero-length RDMA Write"), "{:?}", kinds.findings);
    let unmatched = agreed([0xC0, 1, 0, 1], [0x80, 1, 0x80, 1]);
    assert_eq!(rules(&unmatched), [(WARNING, "RFC 6581 §9.2")]);
    let deep = agreed([0, 1, 0, 1], [0, 1, 0, 2]);
    assert_eq!(rules(&deep), [(WARNING, "RFC 6581 §9.1")]);
    // "Not negotiated" is not a number.
    assert_eq!(rules(&agreed([0, 1, 0x3F, 0xFF], [0x3F, 0xFF, 0x3F, 0xFF])), []);
}

#[test]
fn messages_missing_in_the_capture_are_a_warning() {
    let mut no_reply = Talk::open();
    no_reply.send(INITIATOR, &startup(StartupKind::Request, false, b""));
    assert_eq!(rules(&connection(&no_reply.file)), [(WARNING, "RFC 5044 §7.1")]);

    let mut midway = Talk::empty();
    midway.fpdu(INITIATOR, &send(5, b"x")).fpdu(RESPONDER, &send(5, b"y"));
    let connection_midway = connection(&midway.file);
    assert_eq!(rules(&connection_midway), [(WARNING, "RFC 5044 §7.1")]);
    assert!(connection_midway.mpa.is_none());

    let mut other = Talk::open();
    other.send(INITIATOR, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(rules(&connection(&other.file)), [(NOTE, "RFC 5044 §7.1")]);

    let mut gap = Talk::started();
    gap.fpdu(INITIATOR, &send(1, b"x")).skip(INITIATOR, 48).fpdu(INITIATOR, &send(3, b"y"));
    let connection_gap = connection(&gap.file);
    assert_eq!(rules(&connection_gap), [(WARNING, "RFC 9293 §3.4")]);
    assert_eq!(connection_gap.findings[0].frame, 6);

    let mut cut = Talk::started();
    cut.send(INITIATOR, &fpdu(&send(1, b"x"))[..12]).close(INITIATOR);
    assert_eq!(rules(&connection(&cut.file)), [(WARNING, "RFC 5044 §7.2")]);
}

#[test]
fn segments_that_cut_fpdus_are_noted() {
    let mut talk = Talk::started();
    let octets = fpdu(&send(1, &[1; 40]));
    talk.send(INITIATOR, &octets[..20]).send(INITIATOR, &octets[20..]);
    assert_eq!(rules(&connection(&talk.file)), [(NOTE, "RFC 5044 §5")]);
    let mut siw = Talk::started();
    let (body, crc) = octets.split_at(octets.len() - 4);
    siw.send(INITIATOR, body).send(INITIATOR, crc);
    let notes = rules(&connection(&siw.file));
    assert_eq!(notes, [(NOTE, "RFC 5044 §5"), (NOTE, "RFC 5044 §4.5")]);
}

#[test]
fn an_impossible_length_ends_what_can_be_decoded() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x")).send(INITIATOR, &[0xff; 100]);
    talk.fpdu(INITIATOR, &send(2, b"y"));
    let connection = connection(&talk.file);
    assert_eq!(rules(&connection), [(ERROR, "RFC 5044 §4.1")]);
    assert_eq!(connection.directions[0].fpdus, 1);
}

/// Linux 6.1: `siw_get_trailer` overwrites the first part of a CRC with the second.
#[test]
fn a_refused_crc_that_is_right_and_came_in_two_segments_is_siws() {
    let refuse = terminate([0x20, 2, 0, 0]);
    let split_at = |left: usize| {
        let mut talk = Talk::started();
        let octets = fpdu(&send(1, b"four"));
        let (first, second) = octets.split_at(octets.len() - left);
        talk.send(INITIATOR, first).send(INITIATOR, second).fpdu(RESPONDER, &refuse);
        connection(&talk.file)
    };
    for (left, is_siw) in [(2, true), (4, false), (6, false)] {
        let found = split_at(left);
        let is_named = found.findings.iter().any(|one| one.text.contains("siw of Linux 6.1"));
        assert_eq!(is_named, is_siw, "{left} bytes in the second segment");
        assert_eq!(found.directions[1].profile, is_siw.then_some("siw"));
    }
    // A wrong CRC is refused rightly.
    let mut talk = Talk::started();
    let mut octets = fpdu(&send(1, b"four"));
    *octets.last_mut().unwrap() ^= 1;
    let (first, second) = octets.split_at(octets.len() - 2);
    talk.send(INITIATOR, first).send(INITIATOR, second).fpdu(RESPONDER, &refuse);
    assert_eq!(connection(&talk.file).directions[1].profile, None);
}

#[test]
fn tcp_errors_are_reported_with_their_first_frame() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x"));
    talk.window = 0;
    talk.fpdu(RESPONDER, &send(1, b"y")).fpdu(RESPONDER, &send(2, b"y"));
    talk.window = 1000;
    let closed = talk.frames - 1;
    // All of it is acknowledged by now.
    let seq = talk.seq[INITIATOR];
    talk.frame(INITIATOR, seq.wrapping_sub(28), 0x10, &fpdu(&send(1, b"x")));
    let again = talk.frames;
    let found = connection(&talk.file);
    assert_eq!(rules(&found), [(NOTE, "RFC 9293 §3.8.6"), (NOTE, "RFC 9293 §3.8.1")]);
    assert_eq!(found.findings.iter().map(|one| one.frame).collect::<Vec<_>>(), [closed, again]);
    assert_eq!(found.findings[0].text, "responder: closed its window, 1 time in all");
    assert_eq!(found.findings[0].costs, "The sender stops until the window opens.");
}

#[test]
fn segments_longer_than_the_mss_were_not_on_the_wire() {
    let found = |mss| {
        let mut talk = Talk { mss: Some(mss), ..Talk::empty() }.opened().in_full_operation();
        let [first, second] = [1, 2].map(|msn| fpdu(&send(msn, &[7; 100])));
        talk.send(INITIATOR, &[first, second].concat());
        rules(&connection(&talk.file))
    };
    assert_eq!(found(1000), []);
    assert_eq!(found(200), [(NOTE, "capture")]);
}

/// RFC 7323 §2.2.
#[test]
fn windows_are_scaled_if_both_syns_say_so_and_unknown_without_a_syn() {
    let windows = |talk: Talk| {
        let mut talk = talk.in_full_operation();
        talk.fpdu(INITIATOR, &send(1, b"x")).fpdu(RESPONDER, &send(1, b"x"));
        let [sent, answered] = &connection(&talk.file).directions[..] else { panic!() };
        [sent.window_max, answered.window_max]
    };
    let empty = || Talk { window: 501, ..Talk::empty() };
    for (window_scale, shown) in [
        ([Some(7), Some(7)], [501 << 7; 2]),
        ([Some(2), Some(7)], [501 << 7, 501 << 2]),
        ([Some(7), None], [501; 2]),
        ([None, Some(7)], [501; 2]),
        ([None, None], [501; 2]),
    ] {
        let talk = Talk { window_scale, ..empty() }.opened();
        assert_eq!(windows(talk), shown.map(Some), "{window_scale:?}");
    }
    assert_eq!(windows(empty()), [None; 2]);
}

#[test]
fn frames_without_a_timestamp_are_not_the_first_with_payload() {
    let mut talk = Talk::started();
    assert_eq!(connection(&talk.file).span_ns, 0);
    talk.now_us = 5_000_000;
    talk.fpdu(INITIATOR, &send(1, b"x")).wait(30).fpdu(INITIATOR, &send(2, b"x"));
    assert_eq!(connection(&talk.file).span_ns, 30_000);
    let page = crate::report::page::of(&[crate::replay_pictured("test", || Ok(&talk.file[..]))]);
    assert!(page.contains(" within 30 µs ("), "{page}");
}

/// A Terminate about a Read Request does not concern written memory.
#[test]
fn only_a_terminate_about_a_tagged_segment_refuses_what_was_placed() {
    let is_refused = |error: [u8; 2], ulpdu: &[u8], len: usize| {
        let mut talk = Talk::started();
        let mut stop = terminate([error[0], error[1], 0xc0, 0]);
        stop.extend(u16::try_from(ulpdu.len()).unwrap().to_be_bytes());
        stop.extend(&ulpdu[..len]);
        talk.fpdu(INITIATOR, &write(0x55, 0x1000, b"twelve octet"));
        talk.fpdu(INITIATOR, ulpdu).fpdu(RESPONDER, &stop);
        let found = connection(&talk.file);
        assert!(found.directions[1].terminate[0].about.is_some(), "{found:?}");
        assert!(!found.is_refused_memory(1));
        found.is_refused_memory(0)
    };
    assert!(!is_refused([0x01, 0], &read_request(1, 7, 0, 4), 18));
    let written = write(0x55, 0x2000, b"more");
    assert!(is_refused([0x01, 0], &written, 14));
    assert!(is_refused([0x11, 1], &written, 14));
}

/// RFC 5040 §4.8: the Terminate contains the header of the segment in error.
#[test]
fn a_terminate_names_the_segment_it_is_about() {
    let about = |ulpdu: &[u8], len: usize| {
        let mut talk = Talk::started();
        let header = &ulpdu[..len];
        let mut stop = terminate([0x11, 1, 0xc0, 0]);
        stop.extend(u16::try_from(ulpdu.len()).unwrap().to_be_bytes());
        stop.extend(header);
        talk.fpdu(INITIATOR, ulpdu).fpdu(RESPONDER, &stop);
        connection(&talk.file).directions[1].terminate[0].about.clone().unwrap()
    };
    let told = about(&write(0x55, 0x1000, b"twelve octet"), 14);
    assert_eq!(told, "RDMA Write of 12 bytes to STag 0x00000055 at 0x1000");
    let told = about(&send(1, b"x"), 18);
    assert_eq!(told, "Send of 1 bytes, message 1 of queue 0 at offset 0");
}

/// The page lists each with its own frame, even if the picture merges their marks.
#[test]
fn each_terminate_is_listed_with_its_own_frame() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &untagged(Opcode::Terminate, 2, (1, 0), true, &[0x02]));
    let mut told = Vec::new();
    for code in 5..=7 {
        talk.fpdu(INITIATOR, &terminate([0x02, code, 0, 0]));
        told.push(format!("Terminate 0/2/{code:02X} in frame {}: ", talk.frames));
    }
    let page = crate::report::page::of(&[crate::replay_pictured("test", || Ok(&talk.file[..]))]);
    for (terminate, told) in told.iter().enumerate() {
        assert!(page.contains(told), "{terminate}: {told}");
    }
    assert_eq!(page.matches("It ended the stream").count(), 3);
}
