//! Send with Invalidate: tags that a peer may invalidate, and others (RFC 5040 §5.3, §8.1.1 (7)).

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Wake, Waker};

use urnic_engine::mem::Access;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, PostError, RecvWr, WcStatus};

use crate::hostile::scene::{About, BASE, Scene, check_terminate};
use urnic_testkit::octets::{
    SEND, SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE, WRITE, send, send_invalidate, tagged,
    untagged,
};

fn is_refused(pick: fn(&Scene) -> &Mr) {
    for control in [SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE] {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        let stag = pick(&scene).stag().0;
        // The tag is checked afterwards: it must work as before.
        let still_there = pick(&scene).stag();
        let ulpdu = send_invalidate(control, 1, stag, b"");
        scene.send(&ulpdu);
        scene.is_dead(&ulpdu, (0, 1, 9), About::Segment, WcStatus::WrFlushErr);
        assert_eq!(pick(&scene).stag(), still_there);
        assert!(pick(&scene).invalidate(), "the tag was still valid");
    }
}

// spec: RDMAP-3.2-1, RDMAP-5.3-5, RDMAP-5.3-6, SEC-T-3
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

// spec: DDP-4.2-2
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

// spec: SEC-R-7
#[test]
fn a_tag_shared_by_streams_cannot_be_invalidated() {
    is_refused(|scene| &scene.tags.all);
}

// spec: RDMAP-5.3-5, RDMAP-7.2-2
#[test]
fn a_tag_of_another_stream_or_domain_cannot_be_invalidated() {
    is_refused(|scene| &scene.tags.private);
    is_refused(|scene| &scene.tags.foreign);
}

// spec: RDMAP-7.2-2, SEC-T-1
#[test]
fn an_unknown_tag_cannot_be_invalidated() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    let ulpdu = send_invalidate(SEND_INVALIDATE, 1, scene.tags.all.stag().0 ^ 1, b"x");
    // The RFC does not specify the code clearly; "cannot be invalidated" is true in any case.
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

// spec: DDP-3-8, DDP-7.1-5, SEC-R-6
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

/// Drops a registration when it is called, as an application may.
struct Revoke(Mutex<Option<Mr>>);

impl Wake for Revoke {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// The region table is locked while received data is placed, and an invalidation waits for the
/// lock.
#[test]
fn a_waker_that_revokes_memory_is_called_when_the_burst_is_placed() {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let mut scene = Scene::ready();
        let mr = scene.pd.reg_mr(64, Access::REMOTE_WRITE).unwrap();
        scene.post_receive(64);
        let revoke = Arc::new(Revoke(Mutex::new(Some(mr))));
        scene.recv_cq.req_notify(&Waker::from(Arc::clone(&revoke)));
        let write = tagged(WRITE, scene.tags.writable.stag().0, 0, b"x");
        scene.send_all(&[write, untagged(SEND, 0, 1, 0, b"y")]);
        assert!(revoke.0.lock().unwrap().is_none(), "it was called");
        done.send(()).unwrap();
    });
    let ended = is_done.recv_timeout(std::time::Duration::from_secs(20));
    assert!(ended.is_ok(), "the engine's thread waits for itself, or panicked");
}

#[test]
fn a_send_out_of_its_order_invalidates_nothing() {
    // A message number too high, and a segment that does not continue its message.
    for (msn, mo, code) in [(2, 0, (1, 2, 3)), (1, 1, (1, 2, 4))] {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        scene.post_receive(100);
        let tag = scene.tags.own.stag().0;
        let mut ulpdu = untagged(SEND_INVALIDATE, 0, msn, mo, b"x");
        ulpdu[2..6].copy_from_slice(&tag.to_be_bytes());
        scene.send(&ulpdu);
        scene.is_dead(&ulpdu, code, About::Segment, WcStatus::WrFlushErr);
        assert!(scene.tags.own.invalidate(), "a refused message has no effect");
    }
}

/// Asserts that the victim's receive completes with a protection error, and that the stream ends by
/// a local error.
fn ends_locally(scene: &Scene, place: usize) {
    let answers = scene.answers();
    assert_eq!(answers.len(), 1);
    check_terminate(&answers[0], &[], (0, 0, 0), About::Nothing);
    assert!(scene.peer.fin_received);
    let statuses: Vec<_> = std::iter::from_fn(|| scene.recv_cq.poll()).collect();
    for (index, wc) in statuses.iter().enumerate() {
        let expected = if index == place { WcStatus::LocProtErr } else { WcStatus::WrFlushErr };
        assert_eq!(wc.status, expected, "{index}");
    }
    assert!(statuses.len() > place);
}

// spec: SEC-R-6
#[test]
fn no_message_is_placed_in_invalidated_memory() {
    for dropped in [false, true] {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        scene.post_receive(100);
        let look = scene.inbox_twin();
        let before = look();
        if dropped {
            let other = scene.inbox_part(Access::LOCAL_WRITE);
            drop(std::mem::replace(&mut scene.inbox, other));
        } else {
            assert!(scene.inbox.invalidate());
        }
        scene.send(&send(1, b"hello"));
        assert!(look() == before, "no packet changes it any more");
        ends_locally(&scene, 0);
    }
}

/// An empty message places nothing, so it needs no valid memory.
#[test]
fn an_empty_send_needs_no_memory() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    assert!(scene.inbox.invalidate());
    scene.send(&send(1, b""));
    assert_eq!((scene.received().status, scene.answers().len()), (WcStatus::Success, 0));
}

#[test]
fn a_message_is_placed_in_all_of_its_buffer_or_in_none() {
    // Index of the revoked element; a message of 150 bytes needs the first two of 100.
    for (revoked, arrives) in [(0, false), (1, false), (2, true)] {
        let mut scene = Scene::ready();
        let access = Access::LOCAL_WRITE;
        let parts = [0; 3].map(|_| scene.inbox_part(access));
        let sges = parts.each_ref().map(|part| part.sge(50..150));
        scene.qp.post_recv(RecvWr::new(WrId(7), sges)).unwrap();
        assert!(parts[revoked].invalidate());
        let message: Vec<u8> = (1..=150).collect();
        scene.send(&send(1, &message));
        let mut octets = vec![0; 300];
        for (index, part) in parts.iter().enumerate() {
            part.copy_out(50, &mut octets[100 * index..][..100]);
        }
        if arrives {
            assert_eq!((&octets[..150], &octets[150..]), (&message[..], &[0; 150][..]));
            assert_eq!(scene.recv_cq.poll().unwrap().status, WcStatus::Success);
        } else {
            assert_eq!(octets, [0; 300], "{revoked}");
            ends_locally(&scene, 0);
        }
    }
}

#[test]
fn memory_of_another_domain_or_stream_is_no_receive_buffer() {
    let scene = Scene::ready();
    let post = |sge| scene.qp.post_recv(RecvWr::new(WrId(7), [sge]));
    assert_eq!(post(scene.tags.foreign.sge(0..100)), Err(PostError::NotAssociated));
    assert_eq!(post(scene.tags.private.sge(0..100)), Err(PostError::NotAssociated));
    assert_eq!(post(scene.tags.own.sge(0..100)), Ok(()));
    assert_eq!(post(scene.tags.all.sge(0..100)), Ok(()));
}
