//! Sends and other untagged messages that fit no buffer or no rule (RFC 5041 §7.1, RFC 5040 §7.2).

use urnic_engine::verbs::WcStatus;

use crate::hostile::scene::{About, BASE, Scene};
use urnic_testkit::octets::{
    ATOMIC_RESPONSE, IMMEDIATE, READ_REQUEST, READ_RESPONSE, SEND, SEND_MORE, TERMINATE, WRITE,
    send, tagged, untagged,
};

fn ready_with_receives(lens: &[usize]) -> Scene {
    let mut scene = Scene::ready();
    for &len in lens {
        scene.post_receive(len);
    }
    scene
}

// spec: DDP-3-7, DDP-4.1-1, DDP-5.4-3, RDMAP-5.3-1, RDMAP-5.3-2
#[test]
fn a_send_that_fits_is_delivered_with_its_length() {
    let mut scene = ready_with_receives(&[100, 100, 100]);
    scene.send_all(&[send(1, &[7; 100]), send(2, b"short"), send(3, &[])]);
    for len in [100, 5, 0] {
        let wc = scene.received();
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, len));
    }
    assert!(scene.answers().is_empty());
}

// spec: DDP-7.1-1, RDMAP-5.3-2
#[test]
fn a_send_longer_than_its_buffer_is_refused() {
    for (buffer, len) in [(100, 101), (100, 1300), (0, 1)] {
        let scene = ready_with_receives(&[buffer, 2000]);
        let ulpdu = send(1, &vec![7; len]);
        scene.dies_with(&ulpdu, (1, 2, 5), About::Segment, WcStatus::LocLenErr);
    }
}

#[test]
fn a_send_that_outgrows_its_buffer_in_a_later_segment_is_refused() {
    let mut scene = ready_with_receives(&[100]);
    scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
    let ulpdu = untagged(SEND, 0, 1, 60, &[7; 41]);
    scene.dies_with(&ulpdu, (1, 2, 5), About::Segment, WcStatus::LocLenErr);
}

// spec: DDP-7.1-1, DDP-7.1-3
#[test]
fn a_send_without_a_posted_buffer_is_refused() {
    Scene::ready().dies_of(&send(1, b"x"), (1, 2, 2), About::Segment);
    Scene::ready().dies_of(&send(1, &[]), (1, 2, 2), About::Segment);
    let mut scene = ready_with_receives(&[10]);
    scene.send(&send(1, b"x"));
    assert_eq!(scene.received().status, WcStatus::Success);
    scene.dies_of(&send(2, b"x"), (1, 2, 2), About::Segment);
}

// spec: DDP-7.1-1
#[test]
fn a_message_number_beyond_the_posted_buffers_is_refused() {
    for msn in [0, 3, 4, 100, u32::MAX] {
        let scene = ready_with_receives(&[10, 10]);
        scene.dies_of(&send(msn, b"x"), (1, 2, 3), About::Segment);
    }
}

#[test]
fn a_message_number_that_was_used_is_refused() {
    let mut scene = ready_with_receives(&[10, 10]);
    scene.send(&send(1, b"x"));
    assert_eq!(scene.received().status, WcStatus::Success);
    scene.dies_of(&send(1, b"x"), (1, 2, 3), About::Segment);
}

#[test]
fn a_message_number_ahead_of_its_turn_is_refused() {
    let scene = ready_with_receives(&[10, 10]);
    scene.dies_of(&send(2, b"x"), (1, 2, 3), About::Segment);
}

#[test]
fn a_new_message_before_the_end_of_the_last_is_refused() {
    let mut scene = ready_with_receives(&[100, 100]);
    scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
    scene.dies_of(&send(2, b"x"), (1, 2, 3), About::Segment);
}

// spec: DDP-7.1-1
#[test]
fn a_message_offset_outside_the_buffer_is_refused() {
    for mo in [100, 101, 0x8000_0000, u32::MAX] {
        let scene = ready_with_receives(&[100]);
        scene.dies_of(&untagged(SEND, 0, 1, mo, b"x"), (1, 2, 4), About::Segment);
    }
}

#[test]
fn a_message_offset_that_leaves_a_hole_or_repeats_is_refused() {
    for mo in [1, 50] {
        let scene = ready_with_receives(&[100]);
        scene.dies_of(&untagged(SEND, 0, 1, mo, b"x"), (1, 2, 4), About::Segment);
    }
    for mo in [0, 59, 61] {
        let mut scene = ready_with_receives(&[100]);
        scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
        scene.dies_of(&untagged(SEND, 0, 1, mo, b"x"), (1, 2, 4), About::Segment);
    }
}

// spec: DDP-7.1-1
#[test]
fn a_queue_that_does_not_exist_is_refused() {
    for qn in [4, 5, 0x0100_0000, u32::MAX] {
        let scene = ready_with_receives(&[100]);
        scene.dies_of(&untagged(SEND, qn, 1, 0, b"x"), (1, 2, 1), About::Segment);
    }
}

// spec: DDP-4.1-6, RDMAP-4.1-2, RDMAP-7.2-1
#[test]
fn wrong_version_is_reported_by_its_layer() {
    for version in [0, 2, 3] {
        let scene = ready_with_receives(&[100]);
        let ulpdu = untagged([0x40 | version, 0x43], 9, 1, 0, b"x");
        scene.dies_of(&ulpdu, (1, 2, 6), About::Segment);
        let scene = ready_with_receives(&[100]);
        let ulpdu = untagged([0x41, version << 6 | 0x3], 0, 1, 0, b"x");
        scene.dies_of(&ulpdu, (0, 2, 5), About::Segment);
        let scene = Scene::ready();
        let ulpdu = tagged([0xC1, version << 6], scene.tags.all.stag().0, BASE, b"x");
        scene.dies_of(&ulpdu, (0, 2, 5), About::Segment);
    }
}

#[test]
fn reserved_opcodes_are_refused() {
    for opcode in 0xC..=0xF {
        let scene = ready_with_receives(&[100]);
        let ulpdu = untagged([0x41, 0x40 | opcode], 0, 1, 0, b"x");
        scene.dies_of(&ulpdu, (0, 2, 6), About::Segment);
        let scene = Scene::ready();
        let ulpdu = tagged([0xC1, 0x40 | opcode], scene.tags.all.stag().0, BASE, b"x");
        scene.dies_of(&ulpdu, (0, 2, 6), About::Segment);
    }
}

// spec: RDMAP-4.1-1
#[test]
fn untagged_opcodes_in_tagged_segments_are_refused_before_placement() {
    for opcode in [0x1, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9, 0xA, 0xB] {
        let scene = ready_with_receives(&[100]);
        let ulpdu = tagged([0xC1, 0x40 | opcode], scene.tags.all.stag().0, BASE, b"x");
        scene.dies_of(&ulpdu, (0, 2, 6), About::Segment);
    }
}

// spec: RDMAP-4.1-1
#[test]
fn tagged_opcodes_in_untagged_segments_are_refused() {
    for control in [WRITE, READ_RESPONSE] {
        for qn in 0..4 {
            let scene = ready_with_receives(&[100]);
            let ulpdu = untagged([0x41, control[1]], qn, 1, 0, b"x");
            scene.dies_of(&ulpdu, (0, 2, 6), About::Segment);
        }
    }
}

// spec: RDMAP-4.1-1, RDMAP-7.2-1, EXT-4.1-1, EXT-8.2-1
#[test]
fn opcodes_on_the_wrong_queue_are_refused() {
    let homes =
        [(SEND, 0), (READ_REQUEST, 1), (TERMINATE, 2), (ATOMIC_RESPONSE, 3), (IMMEDIATE, 0)];
    for (control, home) in homes {
        for qn in (0..4).filter(|&qn| qn != home) {
            let scene = ready_with_receives(&[100]);
            let ulpdu = untagged(control, qn, 1, 0, &[0; 28]);
            scene.dies_of(&ulpdu, (0, 2, 6), About::Segment);
        }
    }
}

// spec: EXT-6.3-1, EXT-6.1-1
#[test]
fn immediate_data_arrives_in_the_completion() {
    let mut scene = ready_with_receives(&[100, 0]);
    scene.send(&untagged(IMMEDIATE, 0, 1, 0, &0x0102_0304_0506_0708_u64.to_be_bytes()));
    let wc = scene.received();
    assert_eq!((wc.status, wc.byte_len, wc.value), (WcStatus::Success, 8, 0x0102_0304_0506_0708));
    assert_eq!(wc.opcode, urnic_engine::verbs::WcOpcode::RecvImmediate);
    scene.send(&untagged([0x41, 0x49], 0, 2, 0, &[0xFF; 8]));
    let wc = scene.received();
    assert_eq!((wc.value, wc.solicited), (u64::MAX, true));
}

// spec: EXT-6.3-2
#[test]
fn immediate_data_of_another_length_is_refused() {
    // RFC 7306 §6.3: exactly eight bytes.
    for len in [0, 7, 9, 100] {
        let scene = ready_with_receives(&[100]);
        let ulpdu = untagged(IMMEDIATE, 0, 1, 0, &vec![1; len]);
        scene.dies_of(&ulpdu, (0, 2, 7), About::Segment);
    }
}

// spec: EXT-6.3-1
#[test]
fn immediate_data_needs_a_posted_buffer() {
    let ulpdu = untagged(IMMEDIATE, 0, 1, 0, &[1; 8]);
    Scene::ready().dies_of(&ulpdu, (1, 2, 2), About::Segment);
}

// spec: RDMAP-4.1-4
#[test]
fn the_invalidate_field_of_a_plain_send_is_ignored() {
    let mut scene = ready_with_receives(&[100]);
    let stag = scene.tags.own.stag().0;
    scene.send(&urnic_testkit::octets::send_invalidate(SEND, 1, stag, b"x"));
    let wc = scene.received();
    assert_eq!((wc.status, wc.invalidated), (WcStatus::Success, None));
    scene.send(&tagged(WRITE, stag, 0, b"still valid"));
    assert!(scene.answers().is_empty());
}

/// RFC 7306 §6.3: Immediate Data is a whole message of its own, and ends no Send.
#[test]
fn immediate_data_that_is_a_part_of_a_message_is_refused() {
    for control in [[0x01, 0x48], [0x01, 0x49]] {
        let scene = ready_with_receives(&[100]);
        scene.dies_of(&untagged(control, 0, 1, 0, &[1; 8]), (0, 2, 7), About::Segment);
    }
    let mut scene = ready_with_receives(&[100]);
    scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
    scene.dies_of(&untagged(IMMEDIATE, 0, 1, 60, &[1; 8]), (0, 2, 7), About::Segment);
}

/// An error of a message that is placed ahead of its turn and does not fit names its own buffer,
/// not the first one.
#[test]
fn placement_error_names_the_buffer_of_its_message() {
    use urnic_engine::mpa::startup::StartupConfig;

    for revoked in [false, true] {
        let startup = StartupConfig { markers: true, ..StartupConfig::default() };
        let mut scene = Scene::started(startup);
        scene.send(&urnic_testkit::octets::empty_write());
        let part = scene.inbox_part(urnic_engine::mem::Access::LOCAL_WRITE);
        scene.post_receive(1000);
        let len = if revoked { 1000 } else { 100 };
        let second =
            urnic_engine::verbs::RecvWr::new(urnic_engine::types::WrId(1), [part.sge(0..len)]);
        scene.qp.post_recv(second).unwrap();
        if revoked {
            assert!(part.invalidate());
        }
        let at = scene.peer.sent - scene.origin;
        let first = urnic_testkit::octets::fpdu(&send(1, &[7; 900]), at, true);
        let ahead = urnic_testkit::octets::fpdu(&send(2, &[8; 900]), at + first.len() as u64, true);
        let place = scene.peer.sent + first.len() as u64;
        scene.peer.send_at(scene.now.as_nanos(), place, &ahead);
        scene.run(crate::hostile::scene::MOMENT);
        let statuses: Vec<_> =
            std::iter::from_fn(|| scene.recv_cq.poll()).map(|wc| (wc.wr_id.0, wc.status)).collect();
        let own = if revoked { WcStatus::LocProtErr } else { WcStatus::LocLenErr };
        assert_eq!(statuses, [(0, WcStatus::WrFlushErr), (1, own)]);
    }
}
