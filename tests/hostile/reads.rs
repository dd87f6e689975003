//! Read Requests that must not be answered, and Responses that were not asked for (RFC 5040 §5.2).

use urnic::types::WrId;
use urnic::verbs::{Mr, WcOpcode, WcStatus};

use crate::octets::{
    Place, READ_REQUEST, READ_RESPONSE, empty_write, read_header, read_request, tagged, untagged,
};
use crate::scene::{About, BASE, DEPTH, MOMENT, PART_LEN, Scene};

/// A sink at the peer; the victim must not look at it.
const SINK: Place = (0x1122_3344, 0x8877_6655_4433_2211);
const LEN: u64 = PART_LEN as u64;

fn read_is_refused(pick: fn(&Scene) -> &Mr, to: u64, size: u32, code: (u8, u8, u8)) {
    let scene = Scene::ready();
    let source = (pick(&scene).stag().0, to);
    scene.dies_of(&read_request(1, SINK, size, source), code, About::ReadRequest);
}

#[test]
fn a_read_is_answered_to_the_sink_it_names() {
    let mut scene = Scene::ready();
    let source = (scene.tags.all.stag().0, BASE + 100);
    scene.send(&read_request(1, SINK, 700, source));
    let at = PART_LEN / 2 + 100;
    let expected = tagged(READ_RESPONSE, SINK.0, SINK.1, &scene.memory()[at..at + 700]);
    assert_eq!(scene.answers(), [expected]);
    assert!(scene.recv_cq.is_empty() && scene.send_cq.is_empty());
}

#[test]
fn an_empty_read_needs_no_valid_source_and_is_answered() {
    let mut scene = Scene::ready();
    let writable = scene.tags.writable.stag().0;
    for (msn, source) in [(1, (0xDEAD, 0)), (2, (0, u64::MAX)), (3, (writable, 0))] {
        scene.send(&read_request(msn, (9, 7), 0, source));
    }
    assert_eq!(scene.answers(), vec![tagged(READ_RESPONSE, 9, 7, &[]); 3]);
}

#[test]
fn a_read_of_an_unknown_or_revoked_tag_is_refused() {
    let scene = Scene::ready();
    let source = (scene.tags.all.stag().0 ^ 1, BASE);
    scene.dies_of(&read_request(1, SINK, 1, source), (0, 1, 0), About::ReadRequest);
    let scene = Scene::ready();
    assert!(scene.tags.all.invalidate());
    let source = (scene.tags.all.stag().0, BASE);
    scene.dies_of(&read_request(1, SINK, 1, source), (0, 1, 0), About::ReadRequest);
}

#[test]
fn a_read_outside_the_buffer_is_refused() {
    let bounds = (0, 1, 1);
    let all: fn(&Scene) -> &Mr = |scene| &scene.tags.all;
    read_is_refused(all, BASE - 1, 1, bounds);
    read_is_refused(all, BASE - 1, 2, bounds);
    read_is_refused(all, BASE + LEN, 1, bounds);
    read_is_refused(all, BASE + LEN - 1, 2, bounds);
    read_is_refused(all, BASE, PART_LEN as u32 + 1, bounds);
    read_is_refused(all, BASE, u32::MAX, bounds);
    read_is_refused(all, 0, u32::MAX, bounds);
}

#[test]
fn a_read_that_reaches_the_end_of_the_offset_space_is_refused() {
    let wrap = (0, 1, 4);
    read_is_refused(|scene| &scene.tags.high, u64::MAX, 1, wrap);
    read_is_refused(|scene| &scene.tags.high, u64::MAX - 8, 9, wrap);
    read_is_refused(|scene| &scene.tags.all, u64::MAX - 8, u32::MAX, wrap);
}

#[test]
fn a_read_of_write_only_memory_is_refused() {
    read_is_refused(|scene| &scene.tags.writable, 0, 1, (0, 1, 2));
}

#[test]
fn a_read_of_memory_of_another_domain_or_stream_is_refused() {
    read_is_refused(|scene| &scene.tags.foreign, 0, 1, (0, 1, 3));
    read_is_refused(|scene| &scene.tags.private, 0, 1, (0, 1, 3));
}

#[test]
fn a_read_request_of_another_length_is_refused() {
    // RFC 5040 §4.2: a Read Request carries its header and nothing else.
    for len in [0, 1, 27, 29, 100] {
        let scene = Scene::ready();
        let mut header = read_header(SINK, 1, (scene.tags.all.stag().0, BASE));
        header.resize(len, 0);
        let ulpdu = untagged(READ_REQUEST, 1, 1, 0, &header);
        scene.dies_of(&ulpdu, (0, 2, 7), About::Segment);
    }
}

#[test]
fn a_read_request_out_of_its_sequence_is_refused() {
    let source = |scene: &Scene| (scene.tags.all.stag().0, BASE);
    for msn in [0, u32::from(DEPTH) + 1, u32::MAX] {
        let scene = Scene::ready();
        let ulpdu = read_request(msn, SINK, 1, source(&scene));
        scene.dies_of(&ulpdu, (1, 2, 3), About::Segment);
    }
    let scene = Scene::ready();
    let ulpdu = read_request(2, SINK, 1, source(&scene));
    scene.dies_of(&ulpdu, (1, 2, 3), About::Segment);
}

#[test]
fn a_read_request_that_is_not_its_whole_message_is_refused() {
    let scene = Scene::ready();
    let header = read_header(SINK, 1, (scene.tags.all.stag().0, BASE));
    let ulpdu = untagged([0x01, 0x41], 1, 1, 0, &header);
    scene.dies_of(&ulpdu, (0, 2, 7), About::Segment);
    let scene = Scene::ready();
    let ulpdu = untagged(READ_REQUEST, 1, 1, 28, &header);
    scene.dies_of(&ulpdu, (1, 2, 4), About::Segment);
}

#[test]
fn as_many_reads_as_agreed_are_taken_and_one_more_is_refused() {
    let requests = |scene: &Scene, count: u32| -> Vec<Vec<u8>> {
        let source = (scene.tags.all.stag().0, BASE);
        (1..=count).map(|msn| read_request(msn, SINK, 8, source)).collect()
    };
    let depth = u32::from(DEPTH);
    let mut scene = Scene::ready();
    scene.send_all(&requests(&scene, depth));
    assert_eq!(scene.answers().len(), depth as usize);
    let scene = Scene::ready();
    let mut stream = Vec::new();
    let all = requests(&scene, depth + 1);
    for ulpdu in &all {
        stream.extend(crate::octets::fpdu(ulpdu, 0, false));
    }
    let last = all.last().unwrap();
    let mut scene = scene;
    scene.send_octets(&stream);
    scene.is_dead(last, (1, 2, 2), About::Segment, WcStatus::WrFlushErr);
}

#[test]
fn reads_that_are_answered_make_room_for_more() {
    let mut scene = Scene::ready();
    let source = (scene.tags.all.stag().0, BASE);
    for msn in 1..=3 * u32::from(DEPTH) {
        scene.send(&read_request(msn, SINK, 8, source));
    }
    assert_eq!(scene.answers().len(), 3 * usize::from(DEPTH));
}

// ---- Responses ----

/// The victim has a Read of 500 octets open, and this is the place it named.
fn reading() -> (Scene, Place) {
    let mut scene = Scene::ready();
    scene.post_read(500);
    scene.run(MOMENT);
    let request = scene.answers().pop().expect("the Read Request went out");
    assert_eq!((request.len(), &request[..2]), (46, &READ_REQUEST[..]));
    let stag = u32::from_be_bytes(request[18..22].try_into().unwrap());
    let to = u64::from_be_bytes(request[22..30].try_into().unwrap());
    assert_eq!(request[30..34], 500_u32.to_be_bytes());
    (scene, (stag, to))
}

fn inbox(scene: &Scene) -> Vec<u8> {
    let mut octets = vec![0; scene.inbox.len()];
    scene.inbox.copy_out(0, &mut octets);
    octets
}

#[test]
fn the_response_that_was_asked_for_completes_the_read() {
    let (mut scene, (stag, to)) = reading();
    scene.send(&tagged([0x81, 0x42], stag, to, &[1; 200]));
    assert!(scene.send_cq.is_empty(), "the Response is not whole");
    scene.send(&tagged(READ_RESPONSE, stag, to + 200, &[2; 300]));
    let wc = scene.completed();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (WrId(0), WcStatus::Success, 500));
    assert_eq!(wc.opcode, WcOpcode::RdmaRead);
    let octets = inbox(&scene);
    assert!(octets[1000..1200] == [1; 200] && octets[1200..1500] == [2; 300]);
    assert!(octets[1500..].iter().all(|&octet| octet == 0));
}

#[test]
fn a_response_to_nothing_is_refused() {
    let scene = Scene::ready();
    let ulpdu = tagged(READ_RESPONSE, scene.tags.all.stag().0, BASE, b"forged");
    scene.dies_of(&ulpdu, (0, 2, 6), About::Segment);
    Scene::ready().dies_of(&tagged(READ_RESPONSE, 0, 0, &[]), (0, 2, 6), About::Segment);
}

/// A Response that differs from what was asked for leaves the sink alone.
fn forged(make: impl Fn(&Scene, Place) -> Vec<u8>, code: (u8, u8, u8)) {
    let (mut scene, sink) = reading();
    let before = (inbox(&scene), scene.memory());
    let ulpdu = make(&scene, sink);
    scene.send(&ulpdu);
    assert!((inbox(&scene), scene.memory()) == before, "{ulpdu:02x?}");
    scene.is_dead(&ulpdu, code, About::Segment, WcStatus::WrFlushErr);
}

#[test]
fn a_response_to_another_place_is_refused() {
    let code = (0, 2, 6);
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag ^ 1, to, &[1; 500]), code);
    forged(|scene, _| tagged(READ_RESPONSE, scene.tags.all.stag().0, BASE, &[1; 500]), code);
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to - 1, &[1; 500]), code);
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to + 1, &[1; 500]), code);
    forged(|_, (stag, _)| tagged(READ_RESPONSE, stag, u64::MAX, &[1; 500]), code);
}

#[test]
fn a_response_of_another_length_is_refused() {
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to, &[1; 501]), (0, 2, 6));
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to, &[]), (0, 2, 7));
    // What comes short is placed before its end shows.
    let (mut scene, (stag, to)) = reading();
    let short = tagged(READ_RESPONSE, stag, to, &[1; 499]);
    scene.send(&short);
    scene.is_dead(&short, (0, 2, 7), About::Segment, WcStatus::WrFlushErr);
}

#[test]
fn a_response_that_skips_octets_is_refused() {
    let (mut scene, (stag, to)) = reading();
    let hole = tagged(READ_RESPONSE, stag, to + 1, &[1; 499]);
    scene.send(&hole);
    scene.is_dead(&hole, (0, 2, 6), About::Segment, WcStatus::WrFlushErr);
}

#[test]
fn a_second_response_to_one_read_is_refused() {
    let (mut scene, (stag, to)) = reading();
    let response = tagged(READ_RESPONSE, stag, to, &[1; 500]);
    scene.send(&response);
    assert_eq!(scene.completed().status, WcStatus::Success);
    scene.dies_of(&response, (0, 2, 6), About::Segment);
}

#[test]
fn no_more_reads_are_open_than_agreed() {
    let mut scene = Scene::ready();
    for _ in 0..DEPTH + 3 {
        scene.post_read(8);
    }
    scene.run(MOMENT);
    assert_eq!(scene.answers().len(), usize::from(DEPTH));
    let place = Place::from((scene.inbox.stag().0, 1000));
    scene.send(&tagged(READ_RESPONSE, place.0, place.1, &[1; 8]));
    assert_eq!(scene.answers().len(), usize::from(DEPTH) + 1);
    scene.send(&empty_write());
    assert_eq!(scene.completed().status, WcStatus::Success);
    assert_eq!(scene.answers().len(), usize::from(DEPTH) + 1);
}
