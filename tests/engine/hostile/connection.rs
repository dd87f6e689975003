//! Attacks on the connection itself by a peer, or by a host that guesses (RFC 5961, RFC 9293).

use urnic_engine::stream::{StreamError, StreamEvent};
use urnic_engine::tcp::{Flags, SeqNum};
use urnic_engine::time::Duration;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{QpState, RemoteBuffer, SendWr, WcStatus};

use crate::hostile::scene::{About, BASE, MOMENT, PART_LEN, Scene};
use urnic_testkit::octets::{WRITE, fpdu, send, tagged};

fn write(scene: &Scene, at: u64, octets: &[u8]) -> Vec<u8> {
    tagged(WRITE, scene.tags.all.stag().0, BASE + at, octets)
}

/// Returns the contents of the first buffer.
fn buffer(scene: &Scene, len: usize) -> Vec<u8> {
    scene.memory()[PART_LEN / 2..PART_LEN / 2 + len].to_vec()
}

/// Asserts that the stream still works.
fn still_works(scene: &mut Scene) {
    assert_eq!(scene.qp.state(), QpState::Rts);
    scene.send(&write(scene, 0, b"still here"));
    assert_eq!(buffer(scene, 10), b"still here");
    assert!(!scene.peer.fin_received && !scene.peer.reset_received);
}

fn inject(scene: &mut Scene, seq: SeqNum, flags: Flags) {
    scene.peer.send_flags(scene.now.as_nanos(), seq, flags);
    scene.run(MOMENT);
}

// spec: SEC-T-7
#[test]
fn guessed_reset_is_challenged() {
    let mut scene = Scene::ready();
    for ahead in [1, 2, 1000, 60_000] {
        let seq = scene.peer.seq_of(scene.peer.sent + ahead);
        let acks = scene.peer.pure_acks;
        inject(&mut scene, seq, Flags::RST);
        assert_eq!(scene.peer.pure_acks, acks + 1, "RFC 5961 §3.2: a challenge ACK");
    }
    for outside in [1 << 31, 100_000_000] {
        let seq = scene.peer.seq_of(scene.peer.sent + outside);
        inject(&mut scene, seq, Flags::RST);
    }
    let seq = SeqNum(scene.peer.seq_of(scene.peer.sent).0.wrapping_sub(1));
    inject(&mut scene, seq, Flags::RST);
    still_works(&mut scene);
}

// spec: DDP-6.2.2-1, RDMAP-7.1-1, TCP-9293-6
#[test]
fn an_exact_reset_ends_the_stream() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    scene.post_read(100);
    scene.run(MOMENT);
    let seq = scene.peer.seq_of(scene.peer.sent);
    inject(&mut scene, seq, Flags::RST | Flags::ACK);
    assert!(scene.events.contains(&StreamEvent::Failed(StreamError::ConnectionLost)));
    assert_eq!(scene.qp.state(), QpState::Error);
    assert_eq!(scene.completed().status, WcStatus::RetryExcErr);
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
    assert!(scene.closed.is_some());
}

// spec: SEC-T-7
#[test]
fn a_guessed_syn_is_challenged() {
    let mut scene = Scene::ready();
    for ahead in [0, 1, 1 << 20, 1 << 31] {
        let seq = scene.peer.seq_of(scene.peer.sent + ahead);
        let acks = scene.peer.pure_acks;
        inject(&mut scene, seq, Flags::SYN);
        assert_eq!(scene.peer.pure_acks, acks + 1, "RFC 5961 §4.2: a challenge ACK");
    }
    still_works(&mut scene);
}

#[test]
fn fin_far_ahead_is_ignored() {
    let mut scene = Scene::ready();
    let seq = scene.peer.seq_of(scene.peer.sent + (1 << 30));
    inject(&mut scene, seq, Flags::FIN | Flags::ACK);
    still_works(&mut scene);
}

// spec: TCP-A.3-2, SEC-T-7
#[test]
fn octets_far_ahead_of_the_window_are_not_taken() {
    let mut scene = Scene::ready();
    let before = scene.memory();
    let octets = fpdu(&write(&scene, 0, b"blind"), 0, false);
    for ahead in [1 << 28, 1 << 30, (1 << 31) - 1] {
        let at = scene.peer.sent + ahead;
        scene.peer.send_at(scene.now.as_nanos(), at, &octets);
        scene.run(MOMENT);
    }
    assert!(scene.memory() == before);
    still_works(&mut scene);
}

// spec: DDP-3-11, DDP-5.3-4, TCP-A.3-3, SEC-T-9
#[test]
fn a_duplicate_with_other_content_never_overwrites() {
    let mut scene = Scene::ready();
    let start = scene.peer.sent;
    let real = write(&scene, 0, b"real");
    scene.send(&real);
    let fake = fpdu(&write(&scene, 0, b"fake"), 0, false);
    scene.peer.send_at(scene.now.as_nanos(), start, &fake);
    scene.run(MOMENT);
    assert_eq!(buffer(&scene, 4), b"real");
    // With new data behind it.
    let next = fpdu(&write(&scene, 4, b"next"), 0, false);
    scene.peer.send_at(scene.now.as_nanos(), start, &[&fake[..], &next].concat());
    scene.peer.sent += next.len() as u64;
    scene.run(MOMENT);
    assert_eq!(buffer(&scene, 8), b"realnext");
    still_works(&mut scene);
}

// spec: TCP-A.3-3
#[test]
fn a_duplicate_of_held_octets_with_other_content_never_replaces_them() {
    let mut scene = Scene::ready();
    let start = scene.peer.sent;
    let first = fpdu(&write(&scene, 0, b"gap!"), 0, false);
    let ahead = start + first.len() as u64;
    let held = fpdu(&write(&scene, 4, b"real"), 0, false);
    let fake = fpdu(&write(&scene, 4, b"fake"), 0, false);
    for octets in [&held, &fake] {
        scene.peer.send_at(scene.now.as_nanos(), ahead, octets);
        scene.run(MOMENT);
    }
    scene.peer.send_at(scene.now.as_nanos(), start, &first);
    scene.peer.sent = ahead + held.len() as u64;
    scene.run(MOMENT);
    assert_eq!(buffer(&scene, 8), b"gap!real");
    still_works(&mut scene);
}

// spec: DDP-3-9, DDP-6.2.1-3, MPA-7.2-2, TCP-9293-6, TCP-9293-9
#[test]
fn a_peer_may_close_its_half_and_still_receive() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    assert!(scene.events.contains(&StreamEvent::PeerClosed));
    assert_eq!(scene.received().status, WcStatus::WrFlushErr, "nothing can come any more");
    assert!(!scene.peer.fin_received, "RFC 5041 §6.2.1: the other half stays open");
    scene.post_send();
    scene.run(MOMENT);
    assert_eq!(scene.completed().status, WcStatus::Success);
    assert_eq!(scene.answers().len(), 1);
    scene.victim.port.disconnect(scene.connection.unwrap()).unwrap();
    scene.run(MOMENT);
    assert!(scene.peer.fin_received && !scene.peer.reset_received);
    assert!(scene.closed.is_some());
}

#[test]
fn a_peer_that_closes_in_the_middle_of_an_fpdu_has_failed() {
    for len in [1, 2, 3, 20, 30] {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        let before = scene.memory();
        let fpdu = scene.fpdu(&write(&scene, 0, &[0xEE; 40]));
        scene.send_octets(&fpdu[..len]);
        scene.peer.send_fin(scene.now.as_nanos());
        scene.run(MOMENT);
        let lost = StreamEvent::Failed(StreamError::ConnectionLost);
        assert!(scene.events.contains(&lost), "{len} octets: {:?}", scene.events);
        assert_eq!(scene.qp.state(), QpState::Error);
        assert_eq!(scene.received().status, WcStatus::WrFlushErr);
        assert!(scene.memory() == before);
        scene.run(Duration::from_secs(200));
        assert!(scene.closed.is_some());
    }
}

#[test]
fn a_peer_that_closes_with_our_reads_open_has_failed() {
    let mut scene = Scene::ready();
    scene.post_read(100);
    scene.run(MOMENT);
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    assert!(scene.events.contains(&StreamEvent::Failed(StreamError::ConnectionLost)));
    assert_eq!(scene.completed().status, WcStatus::RetryExcErr);
    assert!(scene.peer.fin_received, "this end closes too");
    scene.run(Duration::from_secs(1));
    assert!(scene.closed.is_some());
}

#[test]
fn octets_after_a_fin_are_not_taken() {
    let mut scene = Scene::ready();
    let before = scene.memory();
    let late = scene.fpdu(&write(&scene, 0, b"late"));
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    for at in [scene.peer.sent, scene.peer.sent + 1] {
        scene.peer.send_at(scene.now.as_nanos(), at, &late);
        scene.run(MOMENT);
    }
    assert!(scene.memory() == before);
}

#[test]
fn aborted_connection_is_reset_and_closed() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    scene.post_read(100);
    scene.victim.port.abort(scene.connection.unwrap());
    scene.run(MOMENT);
    assert!(scene.peer.reset_received && !scene.peer.fin_received);
    assert_eq!(scene.completed().status, WcStatus::RetryExcErr);
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
    assert!(scene.closed.is_some());
}

// spec: DDP-3-10, RDMAP-7-1, TCP-9293-7
#[test]
fn a_peer_that_never_closes_after_a_terminate_is_dropped_in_the_end() {
    let mut scene = Scene::ready();
    scene.send(&tagged(WRITE, 0, 0, b"x"));
    assert!(scene.peer.fin_received, "after the Terminate");
    for _ in 0..200 {
        scene.send_octets(b"and on and on");
        scene.run(Duration::from_secs(1));
    }
    assert!(scene.closed.is_some(), "the connection does not stay for ever");
}

// spec: SEC-R-19
#[test]
fn octets_held_for_a_peer_that_leaves_gaps_are_bounded_and_given_back() {
    let mut scene = Scene::ready();
    let start = scene.peer.sent;
    let ulpdu = write(&scene, 0, &[0xEE; 1000]);
    let one = fpdu(&ulpdu, 0, false);
    // Every second byte of the window.
    let stream = one.repeat(60_000 / one.len());
    for at in (1..stream.len()).step_by(2) {
        scene.peer.send_at(scene.now.as_nanos(), start + at as u64, &stream[at..=at]);
        scene.run(Duration::from_micros(5));
    }
    let counters = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
    assert!(counters.mpa.bytes_held_peak <= 64 << 10, "{:?}", counters.mpa);
    // TCP retransmits everything that was not acknowledged.
    for _ in 0..3 {
        for (index, segment) in stream.chunks(1400).enumerate() {
            let at = start + 1400 * index as u64;
            scene.peer.send_at(scene.now.as_nanos(), at, segment);
            scene.run(Duration::from_micros(50));
        }
    }
    scene.peer.sent = start + stream.len() as u64;
    scene.run(MOMENT);
    assert_eq!(scene.peer.acknowledged, scene.peer.sent);
    assert!(buffer(&scene, 1000) == [0xEE; 1000]);
    still_works(&mut scene);
}

#[test]
fn an_error_behind_a_gap_is_reported_and_nothing_before_it_is_lost_silently() {
    // A refused FPDU that was placed ahead ends the stream at once (RFC 5041 §7.1).
    let config = urnic_engine::mpa::startup::StartupConfig { markers: true, ..Default::default() };
    let mut scene = Scene::started(config);
    scene.send(&urnic_testkit::octets::empty_write());
    scene.post_receive(100);
    let at = scene.peer.sent - scene.origin;
    let first = fpdu(&send(1, b"first"), at, true);
    let ulpdu = tagged(WRITE, 0, 0, &[0xEE; 1000]);
    let second = fpdu(&ulpdu, at + first.len() as u64, true);
    let ahead = scene.peer.sent + first.len() as u64;
    let before = scene.memory();
    scene.peer.send_at(scene.now.as_nanos(), ahead, &second);
    scene.run(MOMENT);
    let gap = scene.peer.sent;
    scene.peer.send_at(scene.now.as_nanos(), gap, &first);
    scene.peer.sent = ahead + second.len() as u64;
    scene.run(MOMENT);
    assert!(scene.memory() == before);
    scene.is_dead(&ulpdu, (1, 1, 0), About::Segment, WcStatus::WrFlushErr);
}

/// RFC 9293 §3.8.6.2.1: an FPDU that was begun in a small window goes on as slowly as any new data.
// spec: TCP-9293-17
#[test]
fn slightly_opened_window_sends_no_small_segment() {
    let mut scene = Scene::ready();
    scene.offer_window(700);
    let remote = RemoteBuffer { stag: Stag(7), to: TaggedOffset(0) };
    scene.post(SendWr::write(WrId(1), remote, [scene.inbox.sge(0..4000)]));
    // The override timer sends 700 bytes: an FPDU is begun.
    scene.run(Duration::from_millis(300));
    scene.peer.window = 20;
    let mut steps = Vec::new();
    for _ in 0..10_000 {
        let before = scene.peer.received.len();
        scene.run(Duration::from_micros(100));
        steps.push(scene.peer.received.len() - before);
    }
    steps.retain(|len| *len > 0);
    assert!((2..=12).contains(&steps.len()), "one for each time that the timer runs: {steps:?}");
    assert!(steps[1..].iter().all(|len| *len == 20), "{steps:?}");
    scene.offer_window(u16::MAX);
    scene.run(Duration::from_secs(1));
    assert_eq!(scene.completed().wr_id, WrId(1));
    let payload: usize = scene.answers().iter().map(|ulpdu| ulpdu.len() - 14).sum();
    assert_eq!(payload, 4000);
}
