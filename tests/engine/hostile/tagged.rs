//! RDMA Writes that must not be placed (RFC 5041 §7.1, §7.2).

use urnic_engine::verbs::Mr;

use crate::hostile::scene::{About, BASE, PART_LEN, Scene};
use urnic_testkit::octets::{WRITE, tagged};

const LEN: u64 = PART_LEN as u64;

/// Asserts that a Write of `len` bytes to offset `to` of a steering tag ends the stream.
fn write_is_refused(pick: fn(&Scene) -> &Mr, to: u64, len: usize, code: (u8, u8, u8)) {
    let scene = Scene::ready();
    let stag = pick(&scene).stag().0;
    let ulpdu = tagged(WRITE, stag, to, &vec![0xEE; len]);
    scene.dies_of(&ulpdu, code, About::Segment);
}

// spec: DDP-4.1-1, RDMAP-5.1-1, RDMAP-5.1-2, RDMAP-3.2-1
#[test]
fn a_write_inside_the_buffer_is_placed_and_nothing_else_changes() {
    let mut scene = Scene::ready();
    let mut expected = scene.memory();
    let stag = scene.tags.all.stag().0;
    for (at, len) in [(0, 1), (LEN - 1, 1), (100, 1000), (0, PART_LEN - 3)] {
        let octets: Vec<u8> = (0..len).map(|i| (i as u8) ^ 0x55).collect();
        scene.send(&tagged(WRITE, stag, BASE + at, &octets));
        // The first part begins after half a part of unused bytes.
        let start = PART_LEN / 2 + at as usize;
        expected[start..start + len].copy_from_slice(&octets);
        assert!(scene.memory() == expected, "{len} octets at {at}");
    }
    assert!(scene.recv_cq.is_empty(), "a Write is not delivered");
    assert!(scene.answers().is_empty());
}

// spec: DDP-7.1-2, RDMAP-5.1-5, RDMAP-6.2-1, RDMAP-7.1-3, SEC-T-1
#[test]
fn a_write_to_an_unknown_tag_is_refused() {
    for change in [1, 0x8000_0000, 0xFFFF_FFFF] {
        let scene = Scene::ready();
        let stag = scene.tags.all.stag().0 ^ change;
        scene.dies_of(&tagged(WRITE, stag, BASE, b"x"), (1, 1, 0), About::Segment);
    }
}

// spec: SEC-T-3
#[test]
fn a_write_to_a_revoked_tag_is_refused() {
    let scene = Scene::ready();
    assert!(scene.tags.all.invalidate());
    let ulpdu = tagged(WRITE, scene.tags.all.stag().0, BASE, b"x");
    scene.dies_of(&ulpdu, (1, 1, 0), About::Segment);
}

// spec: DDP-7.1-2, DDP-7.1-4, SEC-R-3, SEC-T-2
#[test]
fn a_write_outside_the_buffer_is_refused() {
    let bounds = (1, 1, 1);
    let all: fn(&Scene) -> &Mr = |scene| &scene.tags.all;
    write_is_refused(all, BASE - 1, 1, bounds);
    write_is_refused(all, BASE - 1, 2, bounds);
    write_is_refused(all, BASE + LEN, 1, bounds);
    write_is_refused(all, BASE + LEN - 1, 2, bounds);
    write_is_refused(all, BASE, PART_LEN + 1, bounds);
    write_is_refused(all, 0, 1, bounds);
    write_is_refused(all, 1 << 63, 1, bounds);
    write_is_refused(all, u64::MAX - 1, 1, bounds);
    let low: fn(&Scene) -> &Mr = |scene| &scene.tags.writable;
    write_is_refused(low, LEN, 1, bounds);
    write_is_refused(low, 1, PART_LEN, bounds);
}

// spec: DDP-7.1-2
#[test]
fn a_write_that_reaches_the_end_of_the_offset_space_is_refused() {
    let high: fn(&Scene) -> &Mr = |scene| &scene.tags.high;
    let wrap = (1, 1, 3);
    // RFC 5041 §7.1: the sum must not exceed 2^64 - 1; a sum of 2^64 wraps to 0.
    write_is_refused(high, u64::MAX, 1, wrap);
    write_is_refused(high, u64::MAX, 2, wrap);
    write_is_refused(high, u64::MAX - 8, 9, wrap);
    write_is_refused(|scene| &scene.tags.all, u64::MAX, 1, wrap);
}

// spec: DDP-4.2-4
#[test]
fn write_to_the_last_valid_offset_is_placed() {
    let mut scene = Scene::ready();
    let before = scene.memory();
    let stag = scene.tags.high.stag().0;
    scene.send(&tagged(WRITE, stag, u64::MAX - 8, &[0xEE; 8]));
    assert!(scene.answers().is_empty(), "{:?}", scene.events);
    assert!(scene.memory() != before);
}

// spec: DDP-7.1-2, SEC-R-5
#[test]
fn a_write_to_read_only_memory_is_refused() {
    write_is_refused(|scene| &scene.tags.readable, 0, 1, (1, 1, 0));
}

// spec: DDP-8.2-1, SEC-R-1, SEC-R-20
#[test]
fn a_write_to_memory_of_another_domain_is_refused() {
    write_is_refused(|scene| &scene.tags.foreign, 0, 1, (1, 1, 2));
}

// spec: DDP-8.2-1, SEC-R-2, SEC-R-20
#[test]
fn a_write_to_memory_of_another_stream_is_refused() {
    write_is_refused(|scene| &scene.tags.private, 0, 1, (1, 1, 2));
}

#[test]
fn a_write_to_memory_of_its_own_stream_is_placed() {
    let mut scene = Scene::ready();
    let stag = scene.tags.own.stag().0;
    scene.send(&tagged(WRITE, stag, 0, b"mine"));
    assert!(scene.answers().is_empty());
}

// spec: DDP-5.2-7, RDMAP-5.1-4
#[test]
fn an_empty_write_needs_no_valid_buffer() {
    // RFC 5041 §5.2: STag and TO of a zero-length message are not checked.
    let mut scene = Scene::ready();
    for (stag, to) in [(0, 0), (0xDEAD_BEEF, u64::MAX), (scene.tags.foreign.stag().0, 5)] {
        scene.send(&tagged(WRITE, stag, to, &[]));
    }
    assert!(scene.answers().is_empty());
    assert!(
        scene.events.iter().all(|e| !matches!(e, urnic_engine::stream::StreamEvent::Failed(_)))
    );
}

// spec: DDP-4.1-6
#[test]
fn wrong_ddp_version_is_reported_before_a_bad_tag() {
    for version in [0, 2, 3] {
        let scene = Scene::ready();
        let control = [0xC0 | version, 0x40];
        scene.dies_of(&tagged(control, 0, 0, b"x"), (1, 1, 4), About::Segment);
    }
}

// spec: DDP-4.1-5
#[test]
fn reserved_bits_of_the_control_octets_are_ignored() {
    let mut scene = Scene::ready();
    let before = scene.memory();
    let stag = scene.tags.all.stag().0;
    // RFC 5041 §4.1, RFC 5040 §4.1: reserved bits are not checked on reception.
    scene.send(&tagged([0xC1 | 0x3C, 0x40 | 0x30], stag, BASE, b"fine"));
    assert!(scene.answers().is_empty());
    assert!(scene.memory() != before);
}

// spec: DDP-6.2.2-3, DDP-7.1-6
#[test]
fn the_first_fpdu_of_all_in_error_gets_its_terminate() {
    // RFC 5044 §7.1.2 (4): one valid FPDU permits the responder to send, and for MPA this one is
    // valid.
    let scene = Scene::started(urnic_engine::mpa::startup::StartupConfig::default());
    scene.dies_of(&tagged(WRITE, 0, 0, b"x"), (1, 1, 0), About::Segment);
}

// spec: RDMAP-7.1-5
#[test]
fn the_first_of_two_errors_in_one_segment_is_reported() {
    let scene = Scene::ready();
    let first = tagged(WRITE, scene.tags.readable.stag().0, 0, b"first");
    let second = tagged(WRITE, scene.tags.all.stag().0, 0, b"second");
    let mut stream = scene.fpdu(&first);
    stream.extend(urnic_testkit::octets::fpdu(&second, 0, false));
    let flushed = urnic_engine::verbs::WcStatus::WrFlushErr;
    scene.dies_of_octets(&stream, &first, (1, 1, 0), About::Segment, flushed);
}

// spec: DDP-6.2.2-1, DDP-6.2.2-2, RDMAP-7.1-1
#[test]
fn posted_requests_are_flushed_after_an_error_of_the_peer() {
    let mut scene = Scene::ready();
    for len in [10, 20, 30] {
        scene.post_receive(len);
    }
    scene.peer.window = 0;
    scene.send(&urnic_testkit::octets::empty_write());
    scene.post_send();
    scene.post_send();
    scene.run(crate::hostile::scene::MOMENT);
    scene.peer.window = u16::MAX;
    scene.dies_of(&tagged(WRITE, 0, 0, b"x"), (1, 1, 0), About::Segment);
}

/// RFC 5044 §5.1: the segments that a device cuts from a super-frame contain whole FPDUs, even if
/// the segments are so short that the smallest MULPDU does not fit the rest of the first one.
// spec: MPA-5.1-3, TCP-A.1-1, TCP-A.1-2
#[test]
fn a_super_frame_is_cut_between_fpdus() {
    use std::num::NonZeroUsize;

    use urnic_engine::mpa::startup::StartupConfig;
    use urnic_engine::types::{Stag, TaggedOffset, WrId};
    use urnic_engine::verbs::{RemoteBuffer, SendWr};
    use urnic_netdev::memory::LinkConfig;

    for first_len in [0, 4, 40, 100] {
        let link = LinkConfig {
            super_frame_len_max: NonZeroUsize::new(65_535),
            tx_checksum: true,
            ..LinkConfig::default()
        };
        let mut scene = Scene::with_link(StartupConfig::default(), link);
        scene.peer.mss = 152;
        scene.open();
        scene.request(&urnic_testkit::octets::startup(
            urnic_testkit::octets::REQUEST_KEY,
            urnic_testkit::octets::CRC,
            1,
            b"",
        ));
        scene.accept();
        scene.send(&urnic_testkit::octets::empty_write());
        let before = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
        let remote = RemoteBuffer { stag: Stag(1), to: TaggedOffset(0) };
        scene.post(SendWr::send(WrId(0), [scene.inbox.sge(0..first_len)]));
        scene.post(SendWr::write(WrId(1), remote, [scene.inbox.sge(0..1000)]));
        scene.post(SendWr::send(WrId(2), [scene.inbox.sge(0..first_len)]));
        scene.run(crate::hostile::scene::MOMENT);
        let counters = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
        let segments = counters.alignment.segments - before.alignment.segments;
        let fpdus = counters.fpdus_framed - before.fpdus_framed;
        assert_eq!(scene.answers().len() as u64, fpdus);
        assert_eq!(counters.alignment.segments, counters.alignment.segments_aligned, "{first_len}");
        assert!(segments <= fpdus, "{first_len}: {segments} segments of {fpdus} FPDUs");
        let fits = |ulpdu: &Vec<u8>| (ulpdu.len() + 2).next_multiple_of(4) + 4 <= 152;
        assert!(scene.answers().iter().all(fits), "{first_len}");
    }
}

/// An empty last segment ends a Write and counts; a Write of nothing at all does not.
#[test]
fn each_segment_of_a_write_is_counted_the_empty_last_one_too() {
    let more = [WRITE[0] & !0x40, WRITE[1]];
    let mut scene = Scene::ready();
    let stag = scene.tags.all.stag().0;
    for (control, len, expected) in [
        (WRITE, 0, (0, 0)),
        (more, 12, (0, 1)),
        (WRITE, 0, (1, 2)),
        (WRITE, 0, (1, 2)),
        (WRITE, 5, (2, 3)),
        (more, 8, (2, 4)),
        (more, 0, (2, 5)),
        (WRITE, 1, (3, 6)),
    ] {
        scene.send(&tagged(control, stag, BASE, &vec![7; len]));
        let counted = (scene.qp.writes_delivered(), scene.qp.write_segments_delivered());
        assert_eq!(counted, expected, "{control:?} {len}");
    }
}
