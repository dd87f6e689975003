//! Send with Invalidate: what a peer may take away, and what not (RFC 5040 §5.3, §8.1.1 (7)).

use urnic::verbs::{Mr, WcStatus};

use crate::octets::{
    SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE, WRITE, send_invalidate, tagged, untagged,
};
use crate::scene::{About, BASE, Scene};

fn is_refused(pick: fn(&Scene) -> &Mr) {
    for control in [SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE] {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        let stag = pick(&scene).stag().0;
        // The tag is probed afterwards: it has to be as good as before.
        let still_there = pick(&scene).stag();
        let ulpdu = send_invalidate(control, 1, stag, b"");
        scene.send(&ulpdu);
        scene.is_dead(&ulpdu, (0, 1, 9), About::Segment, WcStatus::WrFlushErr);
        assert_eq!(pick(&scene).stag(), still_there);
        assert!(pick(&scene).invalidate(), "the tag was still valid");
    }
}

#[test]
fn a_tag_of_the_stream_is_invalidated_at_delivery() {
    for control in [SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE] {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        let tag = scene.tags.own.stag();
        // RFC 5040 §5.3: all earlier Writes are placed first, even in the same segment.
        let before = scene.memory();
        scene.send_all(&[
            tagged(WRITE, tag.0, 0, b"in time"),
            send_invalidate(control, 1, tag.0, b"done"),
        ]);
        assert!(scene.memory() != before);
        let wc = scene.received();
        assert_eq!((wc.status, wc.byte_len, wc.invalidated), (WcStatus::Success, 4, Some(tag)));
        assert_eq!(wc.solicited, control == SEND_SOLICITED_INVALIDATE);
        assert!(!scene.tags.own.invalidate(), "it is invalid already");
        scene.dies_of(&tagged(WRITE, tag.0, 0, b"too late"), (1, 1, 0), About::Segment);
    }
}

#[test]
fn a_tag_is_valid_until_the_last_segment_of_the_send() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    let tag = scene.tags.own.stag().0;
    let mut first = untagged([0x01, 0x44], 0, 1, 0, b"first");
    first[2..6].copy_from_slice(&tag.to_be_bytes());
    scene.send(&first);
    scene.send(&tagged(WRITE, tag, 0, b"still"));
    assert!(scene.answers().is_empty());
    let mut last = untagged(SEND_INVALIDATE, 0, 1, 5, b"last");
    last[2..6].copy_from_slice(&tag.to_be_bytes());
    scene.send(&last);
    assert_eq!(scene.received().byte_len, 9);
    assert!(!scene.tags.own.invalidate());
}

#[test]
fn a_tag_shared_by_streams_cannot_be_invalidated() {
    is_refused(|scene| &scene.tags.all);
}

#[test]
fn a_tag_of_another_stream_or_domain_cannot_be_invalidated() {
    is_refused(|scene| &scene.tags.private);
    is_refused(|scene| &scene.tags.foreign);
}

#[test]
fn an_unknown_tag_cannot_be_invalidated() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    let ulpdu = send_invalidate(SEND_INVALIDATE, 1, scene.tags.all.stag().0 ^ 1, b"x");
    // Which code is not clear from the RFC; "cannot be invalidated" is true in any case.
    scene.dies_of(&ulpdu, (0, 1, 9), About::Segment);
}

#[test]
fn a_tag_cannot_be_invalidated_twice() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    scene.post_receive(100);
    let tag = scene.tags.own.stag().0;
    scene.send(&send_invalidate(SEND_INVALIDATE, 1, tag, b""));
    assert_eq!(scene.received().status, WcStatus::Success);
    scene.dies_of(&send_invalidate(SEND_INVALIDATE, 2, tag, b""), (0, 1, 9), About::Segment);
}

#[test]
fn a_revoked_tag_takes_no_octet_of_a_flood_of_writes() {
    let mut scene = Scene::ready();
    let tag = scene.tags.all.stag().0;
    scene.send(&tagged(WRITE, tag, BASE, &[1; 64]));
    assert!(scene.tags.all.invalidate());
    let before = scene.memory();
    let flood: Vec<Vec<u8>> =
        (0..40).map(|i| tagged(WRITE, tag, BASE + 16 * i, &[0xEE; 16])).collect();
    scene.send_all(&flood);
    assert!(scene.memory() == before);
    scene.is_dead(&flood[0], (1, 1, 0), About::Segment, WcStatus::WrFlushErr);
}
