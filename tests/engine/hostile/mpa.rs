//! Invalid FPDUs (RFC 5044 §4, §6, §8).

use urnic_engine::limits::{BAD_FPDU_DROPS_AHEAD_MAX, BAD_FPDU_DROPS_MAX};
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::time::Duration;
use urnic_engine::verbs::{QpState, WcStatus};

use crate::hostile::scene::{About, BASE, MOMENT, PART_LEN, Scene};
use urnic_testkit::octets::{
    CRC, REQUEST_KEY, WRITE, empty_write, fpdu, fpdu_with_length, reseal, send, startup, tagged,
};

const CRC_ERROR: (u8, u8, u8) = (2, 0, 2);
const FRAMING_ERROR: (u8, u8, u8) = (2, 0, 3);

fn ready_with_markers() -> Scene {
    let mut scene = Scene::started(StartupConfig { markers: true, ..StartupConfig::default() });
    scene.send(&empty_write());
    scene
}

/// Returns a Write of a pattern to the start of the first buffer.
fn write(scene: &Scene, len: usize) -> Vec<u8> {
    let octets: Vec<u8> = (0..len).map(|i| (i * 7) as u8 | 1).collect();
    tagged(WRITE, scene.tags.all.stag().0, BASE, &octets)
}

/// Sends bytes at the end of the peer's stream, without counting them as sent.
fn try_send(scene: &mut Scene, octets: &[u8]) {
    let at = scene.peer.sent;
    scene.peer.send_at(scene.now.as_nanos(), at, octets);
    scene.run(MOMENT);
}

/// RFC 5044 §8: the segment is dropped in the hope of a better copy, but a limited number of times.
fn dies_when_repeated(mut scene: Scene, octets: &[u8], code: (u8, u8, u8)) {
    let memory = scene.memory();
    for _ in 0..BAD_FPDU_DROPS_MAX {
        try_send(&mut scene, octets);
        assert!(scene.answers().is_empty(), "{:?}", scene.events);
        assert_eq!(scene.peer.acknowledged, scene.peer.sent, "what is dropped is not acknowledged");
    }
    scene.send_octets(octets);
    scene.is_dead(&[], code, About::Nothing, WcStatus::WrFlushErr);
    assert!(scene.memory() == memory);
}

fn flipped(fpdu: &[u8], bit: usize) -> Vec<u8> {
    let mut octets = fpdu.to_vec();
    octets[bit / 8] ^= 1 << (bit % 8);
    octets
}

// spec: MPA-4.4-5, MPA-8-4
#[test]
fn an_fpdu_with_a_bad_crc_is_dropped_until_a_good_copy_comes() {
    let mut scene = Scene::ready();
    let before = scene.memory();
    let good = scene.fpdu(&write(&scene, 100));
    try_send(&mut scene, &flipped(&good, 300));
    assert!(scene.memory() == before);
    assert_eq!(scene.peer.acknowledged, scene.peer.sent);
    scene.send_octets(&good);
    assert_eq!(scene.peer.acknowledged, scene.peer.sent);
    assert!(scene.memory() != before && scene.answers().is_empty());
    let counters = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
    assert_eq!(counters.mpa.crc_bad, 1);
}

// spec: DDP-7-1, RDMAP-6.2-1, MPA-8-6, TCP-A.3-8
#[test]
fn an_fpdu_whose_crc_never_becomes_good_ends_the_stream() {
    let scene = Scene::ready();
    let bad = flipped(&scene.fpdu(&write(&scene, 100)), 300);
    dies_when_repeated(scene, &bad, CRC_ERROR);
}

#[test]
fn no_fpdu_with_a_flipped_bit_is_placed() {
    let mut scene = Scene::ready();
    let ulpdu = write(&scene, 9);
    for bit in 16..scene.fpdu(&ulpdu).len() * 8 {
        let before = scene.memory();
        let good = scene.fpdu(&ulpdu);
        try_send(&mut scene, &flipped(&good, bit));
        assert!(scene.memory() == before, "bit {bit}");
        scene.send_octets(&good);
        // So that the next one changes something.
        scene.send(&tagged(WRITE, scene.tags.all.stag().0, BASE, &[0; 9]));
        assert!(scene.answers().is_empty(), "bit {bit}: {:?}", scene.events);
    }
}

#[test]
fn no_fpdu_with_a_flipped_bit_in_its_length_is_placed() {
    for bit in 0..16 {
        let mut scene = Scene::ready();
        let before = scene.memory();
        let bad = flipped(&scene.fpdu(&write(&scene, 9)), bit);
        // Long enough to complete the longest FPDU with garbage.
        let mut stream = bad;
        stream.resize(70_000, 0xA5);
        for segment in stream.chunks(14_000) {
            scene.send_octets(segment);
        }
        assert!(scene.memory() == before, "bit {bit}");
    }
}

// spec: MPA-7.1.2-9
#[test]
fn a_first_fpdu_with_a_bad_crc_does_not_let_the_responder_send() {
    let mut scene = Scene::started(StartupConfig::default());
    scene.post_send();
    scene.run(MOMENT);
    assert!(scene.answers().is_empty(), "silent before the initiator's first FPDU");
    let good = scene.fpdu(&empty_write());
    try_send(&mut scene, &flipped(&good, 77));
    assert!(scene.answers().is_empty());
    scene.send_octets(&good);
    assert_eq!(scene.answers().len(), 1);
    assert_eq!(scene.completed().status, WcStatus::Success);
}

#[test]
fn a_marker_that_contradicts_the_length_ends_the_stream() {
    for pointer in [0_u16, 4, 0x0FF0, 0xFFFC] {
        let mut scene = ready_with_markers();
        let mut bad = scene.fpdu(&write(&scene, 1000));
        let marker = 512 - (scene.peer.sent - scene.origin) as usize;
        let right = u16::from_be_bytes([bad[marker + 2], bad[marker + 3]]);
        assert_eq!(usize::from(right), marker, "the marker is where it is looked for");
        bad[marker + 2..marker + 4].copy_from_slice(&pointer.to_be_bytes());
        // The CRC is good and covers the marker, so there is no better copy to wait for.
        let memory = scene.memory();
        scene.send_octets(&reseal(&bad));
        scene.is_dead(&[], FRAMING_ERROR, About::Nothing, WcStatus::WrFlushErr);
        assert!(scene.memory() == memory);
    }
}

#[test]
fn bad_fpdus_at_two_places_in_turn_end_the_stream_as_those_at_one() {
    let mut scene = ready_with_markers();
    let at = scene.peer.sent;
    let first = scene.fpdu(&write(&scene, 600));
    let second = fpdu(&write(&scene, 600), at + first.len() as u64 - scene.origin, true);
    let third_at = at + (first.len() + second.len()) as u64;
    let third = fpdu(&write(&scene, 600), third_at - scene.origin, true);
    scene.peer.send_at(scene.now.as_nanos(), at + first.len() as u64, &second);
    scene.run(MOMENT);
    for _ in 0..BAD_FPDU_DROPS_MAX {
        scene.peer.send_at(scene.now.as_nanos(), third_at, &flipped(&third, 4500));
        scene.run(MOMENT);
        try_send(&mut scene, &flipped(&first, 4500));
        assert_eq!(scene.qp.state(), QpState::Rts, "{:?}", scene.events);
    }
    try_send(&mut scene, &flipped(&first, 4500));
    assert_eq!(scene.qp.state(), QpState::Error);
}

#[test]
fn bad_fpdus_beyond_the_next_one_end_the_stream_in_the_end() {
    let mut scene = ready_with_markers();
    let at = scene.peer.sent;
    let first = scene.fpdu(&write(&scene, 600));
    let second = fpdu(&write(&scene, 600), at + first.len() as u64 - scene.origin, true);
    let third_at = at + (first.len() + second.len()) as u64;
    let third = flipped(&fpdu(&write(&scene, 600), third_at - scene.origin, true), 4500);
    scene.peer.send_at(scene.now.as_nanos(), at + first.len() as u64, &second);
    for _ in 0..BAD_FPDU_DROPS_AHEAD_MAX {
        scene.peer.send_at(scene.now.as_nanos(), third_at, &third);
        scene.run(Duration::from_micros(100));
    }
    assert_eq!(scene.qp.state(), QpState::Rts, "{:?}", scene.events);
    scene.peer.send_at(scene.now.as_nanos(), third_at, &third);
    scene.run(MOMENT);
    assert_eq!(scene.qp.state(), QpState::Error);
}

#[test]
fn drop_count_restarts_when_delivery_progresses() {
    let mut scene = Scene::ready();
    for _ in 0..3 {
        let good = scene.fpdu(&write(&scene, 100));
        for _ in 0..BAD_FPDU_DROPS_MAX {
            try_send(&mut scene, &flipped(&good, 300));
        }
        scene.send_octets(&good);
        assert_eq!(scene.qp.state(), QpState::Rts);
    }
}

#[test]
fn a_stream_that_failed_holds_nothing() {
    let mut scene = Scene::ready();
    let at = scene.peer.sent;
    for n in 0..40_u64 {
        scene.peer.send_at(scene.now.as_nanos(), at + 5000 + 1400 * n, &[7; 1400]);
    }
    scene.run(MOMENT);
    assert!(scene.victim.port.bytes_held() > 0);
    let bad = flipped(&scene.fpdu(&write(&scene, 100)), 300);
    for _ in 0..=BAD_FPDU_DROPS_MAX {
        try_send(&mut scene, &bad);
    }
    assert_eq!(scene.qp.state(), QpState::Error);
    assert_eq!(scene.victim.port.bytes_held(), 0, "RFC 5044 §8: nothing more is passed up");
}

#[test]
fn reserved_bits_of_a_marker_are_ignored() {
    let mut scene = ready_with_markers();
    let before = scene.memory();
    let mut odd = scene.fpdu(&write(&scene, 1000));
    let marker = 512 - (scene.peer.sent - scene.origin) as usize;
    // RFC 5044 §4.2, erratum 1427: reserved bytes ignored, low bits masked, both in the CRC.
    odd[marker] = 0xDE;
    odd[marker + 1] = 0xAD;
    odd[marker + 3] |= 3;
    scene.send_octets(&reseal(&odd));
    assert!(scene.memory() != before && scene.answers().is_empty());
    assert_eq!(scene.peer.acknowledged, scene.peer.sent);
}

#[test]
fn fpdus_of_every_length_and_marker_phase_are_placed() {
    let mut scene = ready_with_markers();
    let stag = scene.tags.all.stag().0;
    for len in 0..600 {
        let octets = vec![len as u8 | 0x80; len];
        scene.peer.send(0, &scene.fpdu(&tagged(WRITE, stag, BASE, &octets)));
        scene.run(Duration::from_micros(100));
        let start = PART_LEN / 2;
        assert!(scene.memory()[start..start + len] == octets, "{len} octets");
    }
    assert!(scene.answers().is_empty());
}

#[test]
fn a_length_that_no_ulpdu_can_have_ends_the_stream() {
    for len in [0_u16, 1, 13, 64_769, 65_535] {
        let scene = Scene::ready();
        let content = vec![0x41; usize::from(len).min(30)];
        let bad = fpdu_with_length(len.to_be_bytes(), &content, 0, false);
        dies_when_repeated(scene, &bad, FRAMING_ERROR);
    }
}

// spec: DDP-4.4-1
#[test]
fn a_ulpdu_shorter_than_its_header_ends_the_stream() {
    for len in 14..18 {
        let scene = Scene::ready();
        let ulpdu = &send(1, b"")[..len];
        scene.dies_of(ulpdu, FRAMING_ERROR, About::Nothing);
    }
}

// spec: MPA-4.1-3
#[test]
fn pad_octets_may_be_anything_but_count_for_the_crc() {
    let mut scene = Scene::ready();
    let before = scene.memory();
    let good = scene.fpdu(&write(&scene, 5));
    let pad = 2 + 14 + 5;
    let mut padded = good;
    assert!(padded[pad..pad + 3] == [0; 3]);
    padded[pad..pad + 3].fill(0xFF);
    try_send(&mut scene, &padded);
    assert!(scene.memory() == before, "the CRC was over zeros");
    scene.send_octets(&reseal(&padded));
    assert!(scene.memory() != before && scene.answers().is_empty());
}

// spec: SEC-T-8
#[test]
fn random_octets_where_an_fpdu_should_start_end_the_stream() {
    let mut noise: u32 = 1;
    for round in 0..8_usize {
        let mut scene = Scene::ready();
        let before = scene.memory();
        let mut stream: Vec<u8> = std::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 17;
            noise ^= noise << 5;
            noise as u8
        })
        .take(70_000)
        .collect();
        // A possible length, so that the CRC decides.
        stream[0] = round as u8 * 0x1F;
        stream[1] = 0x40;
        for segment in stream.chunks(1400) {
            scene.send_octets(segment);
            if scene.peer.acknowledged < scene.peer.sent {
                // Dropped: TCP then retransmits it.
                let at = scene.peer.sent - segment.len() as u64;
                for _ in 0..BAD_FPDU_DROPS_MAX {
                    scene.peer.send_at(scene.now.as_nanos(), at, segment);
                    scene.run(MOMENT);
                }
            }
        }
        assert!(scene.memory() == before);
        scene.is_dead(&[], CRC_ERROR, About::Nothing, WcStatus::WrFlushErr);
    }
}

fn started_with_crc(ours: bool, theirs: bool) -> Scene {
    let config = StartupConfig { crc: theirs, ..StartupConfig::default() };
    let mut scene = Scene::with_startup(config);
    scene.open();
    let flags = if ours { CRC } else { 0 };
    scene.request(&startup(REQUEST_KEY, flags, 1, b""));
    scene.accept();
    scene
}

// spec: MPA-4.1-4, MPA-4.4-2, MPA-4.4-6
#[test]
fn crcs_are_checked_unless_both_ends_said_no() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut scene = started_with_crc(ours, theirs);
        let before = scene.memory();
        let mut odd = scene.fpdu(&write(&scene, 9));
        let crc_at = odd.len() - 4;
        odd[crc_at..].copy_from_slice(&[0xDE, 0xAD, 0xBE, 0xEF]);
        try_send(&mut scene, &odd);
        let placed = scene.memory() != before;
        assert_eq!(placed, !ours && !theirs, "{ours} {theirs}");
    }
}

// spec: MPA-5.1-4
#[test]
fn fpdus_in_segments_of_one_octet_are_placed() {
    for markers in [false, true] {
        let mut scene = if markers { ready_with_markers() } else { Scene::ready() };
        let before = scene.memory();
        let fpdu = scene.fpdu(&write(&scene, 700));
        let now_ns = scene.now.as_nanos();
        scene.peer.send_cut(now_ns, &fpdu, 1);
        scene.run(MOMENT);
        assert!(scene.memory() != before && scene.answers().is_empty());
        assert_eq!(scene.peer.acknowledged, scene.peer.sent);
    }
}

#[test]
fn an_fpdu_whose_octets_come_backwards_is_placed_when_the_first_arrives() {
    for markers in [false, true] {
        let mut scene = if markers { ready_with_markers() } else { Scene::ready() };
        let before = scene.memory();
        let fpdu = scene.fpdu(&write(&scene, 200));
        let start = scene.peer.sent;
        for (index, octet) in fpdu.iter().enumerate().rev() {
            assert!(scene.memory() == before);
            scene.peer.send_at(scene.now.as_nanos(), start + index as u64, &[*octet]);
            scene.run(Duration::from_micros(100));
        }
        scene.peer.sent += fpdu.len() as u64;
        assert!(scene.memory() != before && scene.answers().is_empty());
    }
}
