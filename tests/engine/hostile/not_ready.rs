//! Broken rules in messages that wait for a receive: a violation is found when the message arrives,
//! or when it is delivered.

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpConfig, QpRules, QpState, RecvWr, Srq, WcStatus};

use crate::hostile::scene::{About, DEPTH, MOMENT, Scene};
use urnic_testkit::octets::{
    self, CRC, REQUEST_KEY, SEND, SEND_INVALIDATE, SEND_MORE, fpdu, read_request, send,
    send_invalidate, untagged,
};

/// Returns a scene in full operation, with a victim whose messages wait for receives.
fn waiting() -> Scene {
    let mut scene = Scene::new();
    let config = QpConfig::with_cqs(scene.send_cq.clone(), scene.recv_cq.clone());
    let config = QpConfig { rules: QpRules::IwarpWait, ..config };
    scene.qp = scene.pd.create_qp(config).unwrap();
    start(&mut scene);
    scene
}

fn start(scene: &mut Scene) {
    scene.open();
    scene.request(&octets::startup(REQUEST_KEY, CRC, 1, b""));
    scene.accept();
    scene.send(&octets::empty_write());
}

/// RFC 5040 §6.1: requests that wait behind a message are outstanding, like requests that are being answered.
#[test]
fn requests_that_wait_behind_a_message_count_in_the_ird() {
    /// With InfiniBand's rules a peer has one more, for confirmations.
    const IRD: u16 = DEPTH + 1;
    let read = |scene: &Scene, msn| read_request(msn, (7, 0), 8, (scene.tags.readable.stag().0, 0));
    let waiting = || {
        let mut scene = Scene::new();
        let config = QpConfig::with_cqs(scene.send_cq.clone(), scene.recv_cq.clone());
        let rules = QpRules::InfiniBand;
        let config = QpConfig { rules, ..config };
        scene.qp = scene.pd.create_qp(config).unwrap();
        start(&mut scene);
        let before = scene.answers().len();
        scene.send(&send(1, b"x"));
        let reads: Vec<_> = (1..=IRD).map(|msn| read(&scene, msn.into())).collect();
        scene.send_all(&reads);
        assert_eq!(scene.answers().len(), before, "all wait");
        (scene, before)
    };
    let (mut scene, before) = waiting();
    scene.post_receive(100);
    scene.run(MOMENT);
    assert_eq!(scene.answers().len(), before + usize::from(IRD));
    // And now as many again.
    let again: Vec<_> = (1..=IRD).map(|msn| read(&scene, u32::from(IRD + msn))).collect();
    scene.send_all(&again);
    assert_eq!(scene.answers().len(), before + 2 * usize::from(IRD));

    let (mut scene, _) = waiting();
    let one_more = read(&scene, u32::from(IRD) + 1);
    scene.send(&one_more);
    assert_eq!(scene.qp.state(), QpState::Error);
}

/// Only whole messages hold up what is behind them: a request may come between the segments of one.
#[test]
fn a_request_amid_a_message_that_waits_is_answered_at_once() {
    let mut scene = Scene::new();
    let config = QpConfig::with_cqs(scene.send_cq.clone(), scene.recv_cq.clone());
    let rules = QpRules::InfiniBand;
    let config = QpConfig { rules, ..config };
    scene.qp = scene.pd.create_qp(config).unwrap();
    start(&mut scene);
    let before = scene.answers().len();
    scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
    scene.send(&read_request(1, (7, 0), 8, (scene.tags.readable.stag().0, 0)));
    assert_eq!(scene.answers().len(), before + 1);
    scene.send(&untagged(SEND, 0, 1, 60, &[7; 41]));
    scene.post_receive(200);
    scene.run(MOMENT);
    assert_eq!((scene.received().byte_len, scene.answers().len()), (101, before + 1));
}

/// Three messages that wait, of 10 bytes, none and 10.
fn with_three() -> Scene {
    let mut scene = waiting();
    scene.send_all(&[send(1, &[1; 10]), send(2, &[]), send(3, &[3; 10])]);
    scene
}

#[test]
fn a_message_that_waits_is_not_sent_again_nor_overtaken() {
    for msn in [0, 1, 3, 5, 100, u32::MAX] {
        with_three().dies_of(&send(msn, b"x"), (1, 2, 3), About::Segment);
        with_three().dies_of(&send(msn, b""), (1, 2, 3), About::Segment);
    }
    waiting().dies_of(&send(2, b"x"), (1, 2, 3), About::Segment);
}

#[test]
fn a_message_that_waits_has_no_holes() {
    for mo in [59, 61, 0, u32::MAX] {
        let mut scene = waiting();
        scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
        scene.dies_of(&untagged(SEND, 0, 1, mo, &[7; 41]), (1, 2, 4), About::Segment);
    }
}

#[test]
fn a_message_that_waited_and_outgrows_its_receive_is_refused_by_its_segment() {
    for (buffer, at, len) in [(100, 60, 41), (59, 0, 60), (0, 0, 60)] {
        let mut scene = waiting();
        let first = untagged(SEND_MORE, 0, 1, 0, &[7; 60]);
        let second = untagged(SEND, 0, 1, 60, &[7; 41]);
        scene.send_all(&[first.clone(), second.clone()]);
        assert!(scene.answers().is_empty());
        scene.post_receive(buffer);
        scene.post_receive(200);
        scene.run(MOMENT);
        let blamed = if at == 0 { first } else { second };
        assert_eq!(blamed.len(), 18 + len);
        scene.is_dead(&blamed, (1, 2, 5), About::Segment, WcStatus::LocLenErr);
    }
}

#[test]
fn later_segment_beyond_the_receive_of_a_partial_message_fails() {
    let mut scene = waiting();
    scene.send(&untagged(SEND_MORE, 0, 1, 0, &[7; 60]));
    scene.post_receive(100);
    scene.run(MOMENT);
    let rest = untagged(SEND, 0, 1, 60, &[7; 41]);
    scene.dies_with(&rest, (1, 2, 5), About::Segment, WcStatus::LocLenErr);
}

/// RFC 5040 §5.3: the tag is invalidated when the message is delivered, so it is checked then.
#[test]
fn held_message_cannot_invalidate_a_foreign_tag() {
    let mut scene = waiting();
    let message = send_invalidate(SEND_INVALIDATE, 1, 0xDEAD_BEEF, b"x");
    scene.send(&message);
    assert!(scene.answers().is_empty());
    scene.post_receive(10);
    scene.run(MOMENT);
    scene.is_dead(&message, (0, 1, 9), About::Segment, WcStatus::WrFlushErr);
}

/// Returns a victim whose queue pair takes its receives from a shared queue of 16.
fn sharing(rules: QpRules, markers: bool) -> (Scene, Srq) {
    let mut scene = Scene::with_startup(StartupConfig { markers, ..StartupConfig::default() });
    let srq = scene.pd.create_srq(16).unwrap();
    let config = QpConfig::with_cqs(scene.send_cq.clone(), scene.recv_cq.clone());
    let config = QpConfig { rules, srq: Some(srq.clone()), ..config };
    scene.qp = scene.pd.create_qp(config).unwrap();
    for id in 0..16 {
        srq.post_recv(RecvWr::new(WrId(id), [scene.inbox.sge(0..1000)])).unwrap();
    }
    (scene, srq)
}

/// Before a message beyond a gap, the number of messages that fit into the gap is limited; only if
/// all are possible, receives are taken for them.
// spec: SEC-T-4
#[test]
fn message_beyond_a_gap_reserves_receives_for_the_messages_before_it() {
    for (before, msn, is_possible) in [(1, 2, true), (1, 3, false), (3, 4, true), (3, 5, false)] {
        let (mut scene, srq) = sharing(QpRules::Iwarp, true);
        start(&mut scene);
        let (now, origin) = (scene.now.as_nanos(), scene.peer.sent);
        let mut first = Vec::new();
        for msn in 1..=before {
            first.extend(fpdu(&send(msn, b""), origin - scene.origin + first.len() as u64, true));
        }
        let at = origin + first.len() as u64;
        // Long enough for a marker, which points to its start.
        let last = fpdu(&send(msn, &[8; 900]), at - scene.origin, true);
        scene.peer.send_at(now, at, &last);
        scene.run(MOMENT);
        let taken = if is_possible { msn as usize } else { 0 };
        assert_eq!((before, msn, srq.len()), (before, msn, 16 - taken));
        if is_possible {
            scene.peer.send_at(scene.now.as_nanos(), origin, &first);
            scene.run(MOMENT);
            let lens: Vec<_> = (0..msn).map(|_| scene.recv_cq.poll().unwrap().byte_len).collect();
            assert_eq!(lens.iter().sum::<u32>(), 900, "{lens:?}");
        } else {
            assert_eq!(scene.qp.state(), QpState::Error);
        }
    }
}

/// RFC 5042 §6.4.3.1: a wrong number takes no receive from the other queue pairs.
// spec: SEC-T-4
#[test]
fn a_wrong_message_number_does_not_empty_a_shared_queue() {
    for rules in [QpRules::Iwarp, QpRules::IwarpWait] {
        for msn in [0, 2, 3, 16, 17, 100_000, u32::MAX] {
            let (mut scene, srq) = sharing(rules, false);
            start(&mut scene);
            scene.dies_of(&send(msn, b""), (1, 2, 3), About::Segment);
            assert_eq!(srq.len(), 16);
        }
    }
}
