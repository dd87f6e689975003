//! Read Requests that must not be answered, and Responses without a Request (RFC 5040 §5.2).
//!
//! One file because each rule of Reads is broken from the same few states.

use urnic_engine::mem::Access;
use urnic_engine::time::Duration;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{
    Mr, PostError, QpState, RemoteBuffer, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::hostile::scene::{About, BASE, DEPTH, MOMENT, PART_LEN, Scene};
use urnic_testkit::octets::{
    CRC, ENHANCED, Place, READ_REQUEST, READ_RESPONSE, REQUEST_KEY, WRITE, empty_write,
    read_header, read_request, send_invalidate, startup, tagged, untagged,
};

/// A sink at the peer; the victim must not interpret it.
const SINK: Place = (0x1122_3344, 0x8877_6655_4433_2211);
const LEN: u64 = PART_LEN as u64;

fn read_is_refused(pick: fn(&Scene) -> &Mr, to: u64, size: u32, code: (u8, u8, u8)) {
    let scene = Scene::ready();
    let source = (pick(&scene).stag().0, to);
    scene.dies_of(&read_request(1, SINK, size, source), code, About::ReadRequest);
}

// spec: RDMAP-4.4-1, RDMAP-5.2-1, RDMAP-5.2.1-1, RDMAP-5.2.1-4, RDMAP-5.2.2-1
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

// spec: RDMAP-4.4-2, RDMAP-5.2.1-6, SEC-R-16
#[test]
fn an_empty_read_needs_no_valid_source_and_is_answered() {
    let mut scene = Scene::ready();
    let writable = scene.tags.writable.stag().0;
    for (msn, source) in [(1, (0xDEAD, 0)), (2, (0, u64::MAX)), (3, (writable, 0))] {
        scene.send(&read_request(msn, (9, 7), 0, source));
    }
    assert_eq!(scene.answers(), vec![tagged(READ_RESPONSE, 9, 7, &[]); 3]);
}

// spec: RDMAP-5.2.1-5, RDMAP-7.1-4, RDMAP-7.2-3
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

// spec: RDMAP-4.4-2, RDMAP-5.2.1-3, RDMAP-5.2.1-5, RDMAP-7.2-3, SEC-R-3, SEC-T-2
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

// spec: RDMAP-5.2.1-5, RDMAP-7.2-3
#[test]
fn a_read_that_reaches_the_end_of_the_offset_space_is_refused() {
    let wrap = (0, 1, 4);
    read_is_refused(|scene| &scene.tags.high, u64::MAX, 1, wrap);
    read_is_refused(|scene| &scene.tags.high, u64::MAX - 8, 9, wrap);
    read_is_refused(|scene| &scene.tags.all, u64::MAX - 8, u32::MAX, wrap);
}

// spec: RDMAP-5.2.1-5, SEC-R-5
#[test]
fn a_read_of_write_only_memory_is_refused() {
    read_is_refused(|scene| &scene.tags.writable, 0, 1, (0, 1, 2));
}

// spec: RDMAP-5.2.1-5, RDMAP-7.2-3, SEC-R-1, SEC-R-2
#[test]
fn a_read_of_memory_of_another_domain_or_stream_is_refused() {
    read_is_refused(|scene| &scene.tags.foreign, 0, 1, (0, 1, 3));
    read_is_refused(|scene| &scene.tags.private, 0, 1, (0, 1, 3));
}

// spec: RDMAP-4.2-1
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

// spec: RDMAP-5.2.2-2, RDMAP-6.1-3, SEC-R-11, SEC-T-5
#[test]
fn reads_up_to_the_agreed_depth_are_served_and_one_more_is_refused() {
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
        stream.extend(urnic_testkit::octets::fpdu(ulpdu, 0, false));
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

/// Returns a scene in which the victim has a Read of 500 bytes open, and the sink of the Read.
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

// spec: RDMAP-5.2-1, RDMAP-5.2.2-3, RDMAP-5.5-19
#[test]
fn expected_response_completes_the_read() {
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

/// Asserts that a Response that differs from the request leaves the sink alone.
fn forged(make: impl Fn(&Scene, Place) -> Vec<u8>, code: (u8, u8, u8)) {
    let (mut scene, sink) = reading();
    let before = (inbox(&scene), scene.memory());
    let ulpdu = make(&scene, sink);
    scene.send(&ulpdu);
    assert!((inbox(&scene), scene.memory()) == before, "{ulpdu:02x?}");
    scene.blamed = Some((WrId(0), WcStatus::BadRespErr));
    scene.is_dead(&ulpdu, code, About::Segment, WcStatus::WrFlushErr);
}

// spec: RDMAP-5.2.2-5, SEC-R-17
#[test]
fn response_to_another_sink_is_refused() {
    let code = (0, 2, 6);
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag ^ 1, to, &[1; 500]), code);
    forged(|scene, _| tagged(READ_RESPONSE, scene.tags.all.stag().0, BASE, &[1; 500]), code);
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to - 1, &[1; 500]), code);
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to + 1, &[1; 500]), code);
    forged(|_, (stag, _)| tagged(READ_RESPONSE, stag, u64::MAX, &[1; 500]), code);
}

// spec: RDMAP-5.2.2-5, SEC-R-17
#[test]
fn a_response_of_another_length_is_refused() {
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to, &[1; 501]), (0, 2, 6));
    forged(|_, (stag, to)| tagged(READ_RESPONSE, stag, to, &[]), (0, 2, 7));
    // The bytes of a short Response are placed before its end is known.
    let (mut scene, (stag, to)) = reading();
    let short = tagged(READ_RESPONSE, stag, to, &[1; 499]);
    scene.send(&short);
    scene.blamed = Some((WrId(0), WcStatus::BadRespErr));
    scene.is_dead(&short, (0, 2, 7), About::Segment, WcStatus::WrFlushErr);
}

#[test]
fn a_response_that_skips_octets_is_refused() {
    let (mut scene, (stag, to)) = reading();
    let hole = tagged(READ_RESPONSE, stag, to + 1, &[1; 499]);
    scene.send(&hole);
    scene.blamed = Some((WrId(0), WcStatus::BadRespErr));
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

// spec: RDMAP-6.1-3, SEC-R-11
#[test]
fn outstanding_reads_stay_within_the_agreed_depth() {
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

// ---- Responses of the victim: what memory is read when ----

/// Sends a Read Request for `len` bytes of the victim's readable memory.
fn ask(scene: &mut Scene, len: u32) {
    let source = (scene.tags.readable.stag().0, 0);
    scene.send(&read_request(1, SINK, len, source));
}

fn readable(scene: &Scene, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    scene.tags.readable.copy_out(0, &mut octets);
    octets
}

#[test]
fn a_response_that_is_sent_again_is_what_it_was() {
    let mut scene = Scene::ready();
    let before = readable(&scene, 1200);
    scene.peer.deaf = true;
    ask(&mut scene, 1200);
    scene.tags.readable.copy_in(0, &[0xEE; 1200]);
    scene.peer.deaf = false;
    scene.run(Duration::from_secs(5));
    assert_eq!(scene.answers(), [tagged(READ_RESPONSE, SINK.0, SINK.1, &before)]);
}

#[test]
fn the_rest_of_a_response_that_the_path_has_cut_goes_with_its_beginning() {
    for taken in [1, 2, 15, 16, 17, 600, 1215, 1219] {
        let mut scene = Scene::ready();
        let before = readable(&scene, 1200);
        scene.peer.take_only = Some(taken);
        let received = scene.peer.received.len();
        let request = scene.fpdu(&read_request(1, SINK, 1200, (scene.tags.readable.stag().0, 0)));
        scene.peer.send(scene.now.as_nanos(), &request);
        scene.run(Duration::from_micros(50));
        assert_eq!(scene.peer.received.len() - received, taken);
        scene.tags.readable.copy_in(0, &[0xEE; 1200]);
        scene.run(Duration::from_secs(5));
        assert_eq!(scene.answers(), [tagged(READ_RESPONSE, SINK.0, SINK.1, &before)], "{taken}");
    }
}

#[test]
fn a_response_that_the_window_cuts_is_of_one_moment() {
    let mut scene = Scene::ready();
    scene.peer.window = 600;
    let received = scene.peer.received.len();
    let before = readable(&scene, 1200);
    ask(&mut scene, 1200);
    while scene.peer.received.len() == received {
        scene.run(Duration::from_millis(1));
    }
    scene.tags.readable.copy_in(0, &[0xEE; 1200]);
    scene.run(Duration::from_secs(10));
    let answers = scene.answers();
    assert!(answers.len() <= 2, "{answers:02x?}");
    // Each FPDU is from before the change or from after it.
    for answer in &answers {
        let at =
            u64::from_be_bytes(answer[6..14].try_into().unwrap()).wrapping_sub(SINK.1) as usize;
        let len = answer.len() - 14;
        assert!(answer[14..] == before[at..at + len] || answer[14..] == vec![0xEE; len]);
    }
}

/// The rest of a Send that was cut keeps its old bytes too, once its beginning was acknowledged.
#[test]
fn the_rest_of_a_send_that_the_path_has_cut_goes_with_its_beginning() {
    for taken in [1, 20, 60, 119] {
        let mut scene = Scene::ready();
        scene.inbox.copy_in(0, &[7; 100]);
        scene.peer.take_only = Some(taken);
        scene.post_send();
        scene.run(Duration::from_micros(50));
        scene.inbox.copy_in(0, &[9; 100]);
        scene.run(Duration::from_secs(5));
        assert_eq!(scene.answers()[0][18..], [7; 100], "{taken}");
        assert_eq!(scene.completed().status, WcStatus::Success);
    }
}

/// The peer's window cuts the Send: all of it keeps the bytes from the time when its beginning was
/// sent.
// spec: TCP-A.1-5
#[test]
fn the_rest_of_a_send_that_the_window_cuts_goes_with_its_beginning() {
    let mut scene = Scene::ready();
    scene.peer.window = 600;
    scene.send(&empty_write());
    // The acknowledgment of the first bytes closes the window.
    scene.peer.window = 0;
    scene.inbox.copy_in(0, &[7; 1200]);
    let received = scene.peer.received.len();
    scene.post(SendWr::send(WrId(0), [scene.inbox.sge(0..100), scene.inbox.sge(100..1200)]));
    while scene.peer.received.len() == received {
        scene.run(Duration::from_millis(1));
    }
    assert_eq!(scene.peer.received.len() - received, 600);
    scene.inbox.copy_in(0, &[9; 1200]);
    scene.offer_window(u16::MAX);
    assert_eq!(scene.answers()[0][18..], [7; 1200]);
    let counters = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
    assert_eq!(counters.rdma_tx.bytes_kept, 1200, "once");
}

#[test]
fn no_response_after_invalidation_by_the_peer() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    scene.peer.window = 0;
    let own = scene.tags.own.stag().0;
    let read = read_request(1, SINK, 64, (own, 0));
    scene.send_all(&[
        read.clone(),
        send_invalidate(urnic_testkit::octets::SEND_INVALIDATE, 1, own, b"done"),
    ]);
    let wc = scene.received();
    assert_eq!((wc.status, wc.invalidated), (WcStatus::Success, Some(Stag(own))));
    scene.tags.own.copy_in(0, &[0x5E; 64]);
    scene.run(Duration::from_secs(1));
    scene.offer_window(u16::MAX);
    scene.is_dead(&read, (0, 1, 0), About::ReadRequest, WcStatus::WrFlushErr);
    assert_eq!(scene.answers().len(), 1, "the Terminate and nothing else");
}

#[test]
fn no_response_after_deregistration() {
    for dropped in [false, true] {
        let mut scene = Scene::ready();
        scene.peer.window = 0;
        let stag = scene.tags.readable.stag().0;
        let read = read_request(1, SINK, 64, (stag, 0));
        scene.send(&read);
        if dropped {
            let other = scene.inbox_part(Access::REMOTE_READ);
            drop(std::mem::replace(&mut scene.tags.readable, other));
        } else {
            assert!(scene.tags.readable.invalidate());
        }
        scene.offer_window(u16::MAX);
        scene.is_dead(&read, (0, 1, 0), About::ReadRequest, WcStatus::WrFlushErr);
        assert_eq!(scene.answers().len(), 1, "the Terminate and nothing else");
    }
}

/// RFC 5040 §4.8: after the first bytes, the Terminate reports the rest.
// spec: RDMAP-4.8-6, RDMAP-5.4-2
#[test]
fn a_response_that_loses_its_source_says_how_far_it_came() {
    let mut scene = Scene::ready();
    scene.peer.window = 1460;
    let source = scene.tags.readable.stag().0;
    let request = scene.fpdu(&read_request(1, SINK, 4096, (source, 0)));
    scene.peer.send(scene.now.as_nanos(), &request);
    // The window of the request stays valid; the acknowledgment of the Response closes it.
    scene.peer.window = 0;
    scene.run(Duration::from_millis(1));
    let sent: usize = scene.answers().iter().map(|answer| answer.len() - 14).sum();
    assert!(sent > 0 && sent < 4096, "{sent}");
    let answers = scene.answers().len();
    assert!(scene.tags.readable.invalidate());
    scene.offer_window(u16::MAX);
    let all = scene.answers();
    let size = 4096 - sent as u32;
    let (sink, source) = ((SINK.0, SINK.1.wrapping_add(sent as u64)), (source, sent as u64));
    let mut rest = untagged(READ_REQUEST, 1, 1, 0, &read_header(sink, size, source));
    rest.truncate(46);
    assert_eq!(all.len(), answers + 1, "nothing but the Terminate follows");
    scene.is_dead(&rest, (0, 1, 0), About::ReadRequest, WcStatus::WrFlushErr);
}

// ---- flushed work ----

#[test]
fn flushed_data_is_retransmitted_unchanged() {
    let mut scene = Scene::ready();
    scene.inbox.copy_in(0, &[7; 100]);
    scene.peer.deaf = true;
    scene.post_send();
    scene.run(Duration::from_millis(20));
    let bad = tagged(WRITE, !scene.tags.all.stag().0, 0, b"bad");
    scene.send(&bad);
    scene.inbox.copy_in(0, &[0x5E; 100]);
    scene.run(Duration::from_millis(500));
    scene.peer.deaf = false;
    scene.run(Duration::from_secs(5));
    let answers = scene.answers();
    assert_eq!(answers.len(), 2, "the Send, and the Terminate");
    assert_eq!(answers[0][18..], [7; 100]);
    scene.is_dead(&bad, (1, 1, 0), About::Segment, WcStatus::WrFlushErr);
}

/// A peer that terminates the stream still gets the missing bytes, so that the connection can be
/// closed in order.
#[test]
fn data_flushed_by_a_terminate_is_retransmitted_unchanged() {
    let mut scene = Scene::ready();
    scene.inbox.copy_in(0, &[7; 100]);
    scene.peer.deaf = true;
    scene.post_send();
    scene.run(Duration::from_millis(1));
    scene.send(&untagged(urnic_testkit::octets::TERMINATE, 2, 1, 0, &[0, 0, 0, 0]));
    assert_eq!(scene.qp.state(), QpState::Error);
    scene.inbox.copy_in(0, &[0x5E; 100]);
    scene.peer.deaf = false;
    scene.run(Duration::from_secs(5));
    let answers = scene.answers();
    assert_eq!((answers.len(), &answers[0][18..]), (1, &[7; 100][..]));
    assert!(scene.peer.fin_received);
    scene.ends_in_order();
}

/// A Read that will not be answered ends the stream without a Terminate: earlier bytes that the
/// peer misses were not kept.
#[test]
fn flushed_data_that_was_not_kept_is_never_retransmitted() {
    let mut scene = Scene::ready();
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    scene.peer.deaf = true;
    scene.post_send();
    scene.run(Duration::from_millis(1));
    scene.post_read(8);
    scene.run(Duration::from_millis(1));
    assert_eq!(scene.qp.state(), QpState::Error);
    scene.inbox.copy_in(0, &[0x5E; 100]);
    scene.peer.deaf = false;
    scene.run(Duration::from_secs(10));
    assert!(scene.peer.reset_received, "all that is left is to reset");
    assert!(scene.answers().iter().all(|answer| !answer.ends_with(&[0x5E; 100])));
    assert!(scene.closed.is_some());
    // The peer has all of it: the connection ends in order.
    let mut scene = Scene::ready();
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    scene.post_send();
    scene.run(MOMENT);
    scene.post_read(8);
    scene.run(Duration::from_secs(100));
    assert!(!scene.peer.reset_received && scene.closed.is_some());
}

// ---- requests ----

/// Returns the sink that a Request of the victim names.
fn sink_of(request: &[u8]) -> Place {
    let stag = u32::from_be_bytes(request[18..22].try_into().unwrap());
    (stag, u64::from_be_bytes(request[22..30].try_into().unwrap()))
}

const REMOTE: RemoteBuffer = RemoteBuffer { stag: Stag(0xABCD), to: TaggedOffset(0x78) };

#[test]
fn a_fence_waits_for_the_answers_to_all_before_it() {
    let fenced: [fn(&Scene) -> SendWr; 5] = [
        |scene| SendWr::send(WrId(9), [scene.inbox.sge(0..100)]),
        |scene| SendWr::write(WrId(9), REMOTE, [scene.inbox.sge(0..100)]),
        |scene| SendWr::read(WrId(9), REMOTE, scene.inbox.sge(2000..2100)),
        |_| SendWr::new(WrId(9), SendOp::Immediate { value: 1, solicited: false }, []),
        |_| SendWr::new(WrId(9), SendOp::FetchAdd { remote: REMOTE, add: 1, mask: 0 }, []),
    ];
    for (kind, wr) in fenced.into_iter().enumerate() {
        let mut scene = Scene::ready();
        scene.post_read(700);
        scene.post_read(700);
        scene.post(wr(&scene).fenced());
        scene.run(MOMENT);
        assert_eq!(scene.answers().len(), 2, "kind {kind}");
        let sink = sink_of(&scene.answers()[0]);
        scene.send(&tagged(READ_RESPONSE, sink.0, sink.1, &[7; 700]));
        assert_eq!(scene.answers().len(), 2, "kind {kind}: one is still open");
        scene.send(&tagged(READ_RESPONSE, sink.0, sink.1, &[7; 700]));
        assert_eq!(scene.answers().len(), 3, "kind {kind}");
        scene.run(MOMENT);
    }
    // A fence waits for an Atomic as well; without a fence nothing waits.
    for (fence, answers) in [(true, 1), (false, 2)] {
        let mut scene = Scene::ready();
        let op = SendOp::FetchAdd { remote: REMOTE, add: 1, mask: 0 };
        scene.post(SendWr::new(WrId(0), op, []));
        let send = SendWr::send(WrId(9), [scene.inbox.sge(0..100)]);
        scene.post(if fence { send.fenced() } else { send });
        scene.run(MOMENT);
        assert_eq!(scene.answers().len(), answers);
    }
}

#[test]
fn an_answered_request_completes_when_it_is_acknowledged() {
    let mut scene = Scene::ready();
    scene.peer.deaf = true;
    scene.post_read(700);
    scene.run(MOMENT);
    let sink = (scene.inbox.stag().0, 1000);
    scene.send(&tagged(READ_RESPONSE, sink.0, sink.1, &[7; 700]));
    scene.run(Duration::from_secs(5));
    assert!(scene.send_cq.is_empty(), "not before it is acknowledged");
    scene.peer.deaf = false;
    scene.run(Duration::from_secs(20));
    assert_eq!(scene.completed().status, WcStatus::Success);
}

#[test]
fn answers_and_requests_take_turns() {
    let mut scene = Scene::ready();
    for id in 0..8 {
        scene.post(SendWr::send(WrId(id), [scene.inbox.sge(0..60_000)]));
    }
    let source = (scene.tags.all.stag().0, BASE + 100);
    scene.send(&read_request(1, SINK, 700, source));
    scene.run(MOMENT);
    let answers = scene.answers();
    let at = answers.iter().position(|ulpdu| ulpdu[..2] == READ_RESPONSE).unwrap();
    assert!(at * 2 < answers.len(), "{at} of {}", answers.len());
}

/// The other direction: a peer that sends Requests for ever does not block the victim's own
/// requests.
#[test]
fn requests_go_out_between_answers() {
    let mut scene = Scene::ready();
    scene.peer.window = 0;
    let source = (scene.tags.readable.stag().0, 0);
    let reads: Vec<Vec<u8>> = (1..=4).map(|msn| read_request(msn, SINK, 4096, source)).collect();
    scene.send_all(&reads);
    scene.post_send();
    scene.post_send();
    scene.offer_window(u16::MAX);
    let answers = scene.answers();
    let kinds: Vec<bool> = answers.iter().map(|ulpdu| ulpdu[..2] == [0x41, 0x43]).collect();
    let sends: Vec<usize> = (0..kinds.len()).filter(|at| kinds[*at]).collect();
    assert_eq!(sends.len(), 2, "{kinds:?}");
    assert!(sends[1] + 1 < answers.len() && sends[1] < answers.len() * 3 / 4, "{kinds:?}");
}

#[test]
fn a_read_is_refused_at_once_where_none_is_allowed() {
    // The peer's IRD is 0, as it states; or this end's own offer is 0.
    for (word, ord) in [([0, 0, 0, 4], DEPTH), ([0, 4, 0, 4], 0)] {
        let mut scene = Scene::new();
        scene.open();
        scene.request(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &word));
        scene.accept_with(ord);
        scene.send(&empty_write());
        let read = SendWr::read(WrId(5), REMOTE, scene.inbox.sge(0..8));
        assert_eq!(scene.qp.post_send(read), Err(PostError::OrdZero));
        let add = SendOp::FetchAdd { remote: REMOTE, add: 1, mask: 0 };
        assert_eq!(scene.qp.post_send(SendWr::new(WrId(5), add, [])), Err(PostError::OrdZero));
        let swap =
            SendOp::CmpSwap { remote: REMOTE, compare: 0, compare_mask: 0, swap: 0, swap_mask: 0 };
        assert_eq!(scene.qp.post_send(SendWr::new(WrId(5), swap, [])), Err(PostError::OrdZero));
        scene.post_send();
        scene.run(MOMENT);
        assert_eq!(scene.completed().status, WcStatus::Success, "nothing is in the way");
        scene.victim.port.disconnect(scene.connection.unwrap()).unwrap();
        scene.run(MOMENT);
        assert!(scene.peer.fin_received);
        scene.ends_in_order();
    }
}

/// RFC 5040 §7.1 (1): a local error while a Request is built: the Terminate takes the Request's
/// place.
// spec: RDMAP-7.1-2
#[test]
fn read_into_deregistered_memory_fails_locally() {
    let mut scene = Scene::ready();
    scene.peer.window = 0;
    scene.post_send();
    scene.post_read(500);
    scene.post_send();
    let before = inbox(&scene);
    assert!(scene.inbox.invalidate());
    scene.offer_window(u16::MAX);
    assert_eq!(scene.answers().len(), 2, "the Send before it, and the Terminate");
    assert_eq!(inbox(&scene), before);
    let first = scene.send_cq.poll();
    // The Send was acknowledged when the error showed, or not: either is right.
    let status = first.map(|wc| (wc.wr_id, wc.status)).unwrap();
    assert!([WcStatus::Success, WcStatus::WrFlushErr].contains(&status.1) && status.0 == WrId(0));
    let rest: Vec<_> = std::iter::from_fn(|| scene.send_cq.poll()).collect();
    let rest: Vec<_> = rest.iter().map(|wc| (wc.wr_id.0, wc.status)).collect();
    assert_eq!(rest, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    let code = (0, 0, 0);
    crate::hostile::scene::check_terminate(
        scene.answers().last().unwrap(),
        &[],
        code,
        About::Nothing,
    );
    assert!(scene.peer.fin_received);
}

/// Data framed before the error is a segment of its own, with the Terminate in the next one.
#[test]
fn terminate_instead_of_a_request_is_in_its_own_segment() {
    for len in [1300, 1400, 1412, 1416] {
        let mut scene = Scene::ready();
        scene.peer.window = 0;
        scene.send(&empty_write());
        let send = SendWr::send(WrId(0), [scene.tags.own.sge(0..len)]);
        scene.post(send);
        scene.post_read(500);
        assert!(scene.inbox.invalidate());
        scene.offer_window(u16::MAX);
        assert_eq!(scene.answers().len(), 2, "{len}");
        let counters = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
        let alignment = counters.alignment;
        assert_eq!(alignment.segments, alignment.segments_aligned, "{len}: {alignment:?}");
        assert_eq!(alignment.segments, alignment.frames, "the Reply counts as neither");
    }
}

/// The lookup for a Read is not locked when the next request changes the table.
#[test]
fn a_read_and_an_invalidation_go_in_one_turn() {
    let mut scene = Scene::ready();
    let stag = scene.tags.own.stag();
    scene.post_read(100);
    scene.post(SendWr::new(WrId(1), SendOp::LocalInvalidate { stag }, []));
    scene.post_send();
    scene.run(MOMENT);
    assert_eq!(scene.answers().len(), 2);
    assert!(!scene.tags.own.invalidate(), "it is invalid already");
}

#[test]
fn response_into_deregistered_memory_fails_locally() {
    let mut scene = Scene::ready();
    scene.peer.deaf = true;
    scene.post_send();
    scene.post_read(500);
    scene.post_read(400);
    scene.run(MOMENT);
    let before = inbox(&scene);
    assert!(scene.inbox.invalidate());
    let response = tagged(READ_RESPONSE, scene.inbox.stag().0, 1000, &[1; 500]);
    scene.send(&response);
    assert_eq!(inbox(&scene), before);
    scene.peer.deaf = false;
    scene.run(Duration::from_secs(5));
    // RFC 5041 §7.2: DDP finds an invalid tag.
    scene.blamed = Some((WrId(1), WcStatus::LocProtErr));
    scene.is_dead(&response, (1, 1, 0), About::Segment, WcStatus::WrFlushErr);
}

#[test]
fn memory_of_another_domain_or_stream_is_no_sink_and_no_source() {
    let scene = Scene::ready();
    let refused = Err(PostError::NotAssociated);
    let post = |wr| scene.qp.post_send(wr);
    let (foreign, private) = (&scene.tags.foreign, &scene.tags.private);
    assert_eq!(post(SendWr::read(WrId(0), REMOTE, foreign.sge(0..8))), refused);
    assert_eq!(post(SendWr::read(WrId(0), REMOTE, private.sge(0..8))), refused);
    assert_eq!(post(SendWr::send(WrId(0), [foreign.sge(0..8)])), refused);
    assert_eq!(post(SendWr::write(WrId(0), REMOTE, [foreign.sge(0..8)])), refused);
    let mixed = [scene.tags.own.sge(0..8), foreign.sge(0..8)];
    assert_eq!(post(SendWr::send(WrId(0), mixed)), refused);
    assert_eq!(post(SendWr::read(WrId(0), REMOTE, scene.tags.own.sge(0..8))), Ok(()));
    // A Send uses this end's own memory, whatever stream may reach it from outside.
    assert_eq!(post(SendWr::send(WrId(0), [private.sge(0..8)])), Ok(()));
}
