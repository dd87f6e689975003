//! Orderly ends (RFC 5040 §6.2, RFC 5041 §6.2.1).

use std::sync::Arc;
use std::task::{Wake, Waker};

use urnic_engine::limits::MPA_FIRST_FPDU_TIMEOUT_NS;
use urnic_engine::port::ConnectionId;
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{PostError, QpState, SendWr, WcStatus};
use urnic_netdev::impair::ImpairConfig;

use crate::teardown::duo::{Duo, LINK, Queues};
use urnic_testkit::pair::TCP_PORT;

const LEN: usize = 300_000;

/// Posts a Write, a Read and a Send that take many round trips.
fn post_much(duo: &Duo, side: usize, queues: &Queues) {
    let (own, peer) = (&duo.sides[side].memory, &duo.sides[1 - side].memory);
    let halves = (own.sge(0..LEN), own.sge(LEN..2 * LEN));
    queues.qp.post_send(SendWr::write(WrId(1), peer.remote(600_000), [halves.0])).unwrap();
    queues.qp.post_send(SendWr::read(WrId(2), peer.remote(0), halves.1)).unwrap();
    queues.post_send(3, own, 1000);
}

const DONE: [(u64, WcStatus); 3] =
    [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)];

// spec: DDP-6.2.1-1
#[test]
fn closing_finishes_what_was_posted_and_then_refuses_more() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    queues[1].post_receive(9, &duo.sides[1].memory, 1000);
    let ids = duo.connect([&queues[0], &queues[1]]);
    post_much(&duo, 0, &queues[0]);
    duo.port(0).disconnect(ids[0]).unwrap();
    let refused = queues[0].qp.post_send(SendWr::send(WrId(4), []));
    assert_eq!(refused, Err(PostError::State(QpState::Closing)));
    duo.until(|duo| duo.sides[1].saw(ids[1], |event| *event == StreamEvent::PeerClosed));
    assert_eq!(queues[0].sent(), DONE);
    assert_eq!(queues[1].received(), [(9, WcStatus::Success)]);
    // RFC 5041 §6.2.1: the other half works as before.
    assert_eq!(queues[1].qp.state(), QpState::Rts);
    duo.port(1).disconnect(ids[1]).unwrap();
    duo.ends_empty();
    assert_eq!(queues[0].qp.state(), QpState::Error);
    assert_eq!(queues[1].qp.state(), QpState::Error);
}

#[test]
fn both_ends_may_close_at_once_with_data_in_flight() {
    for seed in 0..20 {
        let impair = ImpairConfig { loss: 0.02, reorder: 0.1, ..ImpairConfig::default() };
        let impair = if seed == 0 { ImpairConfig::default() } else { impair };
        let mut duo = Duo::new(LINK, impair, seed);
        duo.port(1).listen(TCP_PORT, urnic_engine::port::ListenParams::default()).unwrap();
        let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
        for side in [0, 1] {
            queues[side].post_receive(9, &duo.sides[side].memory, 1000);
        }
        let ids = duo.connect([&queues[0], &queues[1]]);
        for side in [0, 1] {
            post_much(&duo, side, &queues[side]);
        }
        for side in [0, 1] {
            duo.port(side).disconnect(ids[side]).unwrap();
        }
        duo.ends_empty();
        for side in [0, 1] {
            assert_eq!(queues[side].sent(), DONE, "seed {seed}, side {side}");
            assert_eq!(queues[side].received(), [(9, WcStatus::Success)], "seed {seed}");
        }
    }
}

// spec: DDP-6.2.1-4, MPA-7.2-1
#[test]
fn the_peer_reads_on_after_this_end_has_closed() {
    // RFC 5041 §6.2.1: after a half-close, reception and its responses continue.
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    queues[0].qp.post_send(SendWr::send(WrId(1), [])).unwrap();
    queues[1].post_receive(9, &duo.sides[1].memory, 10);
    duo.until(|_| !queues[1].received().is_empty());
    queues[0].post_receive(5, &duo.sides[0].memory, 100);
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.until(|duo| duo.sides[1].saw(ids[1], |event| *event == StreamEvent::PeerClosed));
    queues[1].post_send(7, &duo.sides[1].memory, 100);
    duo.until(|_| queues[0].recv.len() == 1);
    assert_eq!(queues[0].received(), [(5, WcStatus::Success)]);
    duo.port(1).disconnect(ids[1]).unwrap();
    duo.ends_empty();
    assert_eq!(queues[1].sent(), [(7, WcStatus::Success)]);
}

#[test]
fn a_read_that_the_peer_can_no_longer_answer_fails() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    queues[1].post_receive(9, &duo.sides[1].memory, 10);
    let ids = duo.connect([&queues[0], &queues[1]]);
    duo.port(1).disconnect(ids[1]).unwrap();
    duo.until(|duo| duo.sides[0].saw(ids[0], |event| *event == StreamEvent::PeerClosed));
    assert_eq!(queues[0].qp.state(), QpState::Rts);
    queues[0].post_send(1, &duo.sides[0].memory, 0);
    let (sink, peer) = (duo.sides[0].memory.sge(0..10), duo.sides[1].memory.remote(0));
    queues[0].qp.post_send(SendWr::read(WrId(2), peer, sink)).unwrap();
    queues[0].post_receive(3, &duo.sides[0].memory, 10);
    duo.ends_empty();
    let sent = queues[0].sent();
    assert_eq!(sent, [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(queues[0].received(), [(3, WcStatus::WrFlushErr)], "posted after the peer closed");
}

#[test]
fn a_responder_that_closes_before_it_may_send_still_sends_what_was_posted() {
    // RFC 5044 §7.1.2 (4) keeps it silent until the initiator's first FPDU.
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    queues[0].post_receive(1, &duo.sides[0].memory, 100);
    queues[1].post_receive(2, &duo.sides[1].memory, 100);
    let ids = duo.connect([&queues[0], &queues[1]]);
    queues[1].post_send(3, &duo.sides[1].memory, 100);
    duo.port(1).disconnect(ids[1]).unwrap();
    duo.run(Duration::from_secs(1));
    queues[0].post_send(4, &duo.sides[0].memory, 100);
    duo.until(|_| queues[0].recv.len() == 1);
    assert_eq!(queues[0].received(), [(1, WcStatus::Success)]);
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.ends_empty();
    assert_eq!(queues[1].sent(), [(3, WcStatus::Success)]);
    assert_eq!(queues[1].received(), [(2, WcStatus::Success)]);
}

#[test]
fn responder_whose_peer_closes_before_its_first_fpdu_fails_its_work() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    queues[1].post_send(3, &duo.sides[1].memory, 100);
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.ends_empty();
    assert_eq!(queues[1].sent(), [(3, WcStatus::RetryExcErr)]);
}

#[test]
fn receives_are_flushed_when_the_connection_ends() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    for id in 0..5 {
        queues[0].post_receive(id, &duo.sides[0].memory, 10);
        queues[1].post_receive(id, &duo.sides[1].memory, 10);
    }
    let ids = duo.connect([&queues[0], &queues[1]]);
    for side in [0, 1] {
        duo.port(side).disconnect(ids[side]).unwrap();
    }
    duo.ends_empty();
    let flushed: Vec<_> = (0..5).map(|id| (id, WcStatus::WrFlushErr)).collect();
    assert_eq!(queues[0].received(), flushed);
    assert_eq!(queues[1].received(), flushed);
}

/// Its reference count shows who holds the waker.
struct Held;

impl Wake for Held {
    fn wake(self: Arc<Self>) {
        unreachable!("nothing completes");
    }
}

#[test]
fn close_event_comes_at_time_wait_and_only_the_addresses_are_kept() {
    // RFC 9293 §3.10.7.4: the end is reported then; §3.6.1: TIME-WAIT lasts two segment lifetimes.
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    let held = Arc::new(Held);
    for queues in &queues {
        queues.send.req_notify(&Waker::from(Arc::clone(&held)));
    }
    drop(queues);
    assert_eq!(Arc::strong_count(&held), 3, "the connections hold their queue pairs");
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.run(Duration::from_millis(10));
    duo.port(1).disconnect(ids[1]).unwrap();
    duo.until(|duo| !duo.sides[0].closed.is_empty() && !duo.sides[1].closed.is_empty());
    let closed_at = duo.now();
    assert!(closed_at.as_nanos() < 1_000_000_000);
    assert_eq!(Arc::strong_count(&held), 1, "no queue pair is held any more");
    // The end that closed first keeps the addresses; its application has no handle of them.
    assert_eq!([0, 1].map(|side| duo.port(side).connection_count()), [1, 0]);
    assert!(duo.port(0).counters(ids[0]).is_err() && duo.port(0).path_mtu(ids[0]).is_err());
    duo.run(Duration::from_secs(59));
    assert_eq!(duo.port(0).connection_count(), 1);
    duo.ends_empty();
    assert_eq!(duo.sides.each_ref().map(|side| side.closed.len()), [1, 1], "told once");
    let waited = duo.now() - closed_at;
    assert!(waited < Duration::from_secs(61), "{waited:?}");
}

#[test]
fn stale_connection_id_is_refused_after_slot_reuse() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    duo.port(0).abort(ids[0]);
    duo.ends_empty();
    assert_eq!(duo.port(0).disconnect(ids[0]), Err(urnic_engine::port::PortError::NoConnection));
    let lost = StreamEvent::Failed(urnic_engine::stream::StreamError::ConnectionLost);
    assert!(duo.sides[1].saw(ids[1], |event| *event == lost));
    // The slot is reused; the old id does not name the new connection.
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let again = duo.connect([&queues[0], &queues[1]]);
    assert_ne!(again[0], ids[0]);
    assert!(duo.port(0).counters(ids[0]).is_err());
    duo.port(0).abort(ids[0]);
    duo.run(Duration::from_millis(10));
    assert_eq!(queues[0].qp.state(), QpState::Rts);
}

#[test]
fn a_queue_pair_serves_one_connection_in_its_life() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    let params = urnic_engine::port::ConnectParams {
        offer: crate::teardown::duo::OFFER,
        ..Default::default()
    };
    let now = duo.now();
    for _ in 0..2 {
        let refused = duo.port(0).connect(now, Duo::listener(), &queues[0].qp, &params);
        let in_use =
            urnic_engine::port::PortError::Phase(urnic_engine::stream::PhaseError::QpInUse);
        assert_eq!(refused, Err(in_use));
        duo.port(0).abort(ids[0]);
        duo.run(Duration::from_secs(1));
    }
    duo.ends_empty();
}

/// Makes an initiator that has sent no FPDU, and a responder that closes with work that it
/// therefore may not send. `ahead` runs before.
fn a_silenced_responder_closes(ahead: impl FnOnce(&mut Duo, [ConnectionId; 2])) -> Silenced {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    queues[0].post_receive(8, &duo.sides[0].memory, 10);
    let ids = duo.connect([&queues[0], &queues[1]]);
    queues[1].post_send(1, &duo.sides[1].memory, 10);
    queues[1].post_send(2, &duo.sides[1].memory, 10);
    duo.run(Duration::from_millis(1));
    ahead(&mut duo, ids);
    let told_at = duo.now();
    duo.port(1).disconnect(ids[1]).unwrap();
    Silenced { duo, queues, ids, told_at }
}

struct Silenced {
    duo: Duo,
    queues: [Queues; 2],
    ids: [ConnectionId; 2],
    told_at: Instant,
}

const BOUND: Duration = Duration::from_nanos(MPA_FIRST_FPDU_TIMEOUT_NS);

const GIVEN_UP: [(u64, WcStatus); 2] = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];

#[test]
fn closing_gives_up_an_initiator_that_vanished_before_its_first_fpdu() {
    // RFC 5044 §7.1.2 (4): nothing may be sent, so nothing detects that the peer has left.
    let Silenced { mut duo, queues, ids, told_at } = a_silenced_responder_closes(|duo, ids| {
        duo.wire.set_link_up(false);
        duo.port(0).abort(ids[0]);
        duo.run(Duration::from_millis(1));
        duo.wire.set_link_up(true);
    });
    duo.until(|duo| duo.port(1).connection_count() == 0);
    let waited = duo.now() - told_at;
    assert!(BOUND <= waited && waited < BOUND + Duration::from_secs(1), "{waited:?}");
    assert_eq!(queues[1].sent(), GIVEN_UP);
    assert_eq!(queues[1].qp.state(), QpState::Error);
    let lost = StreamEvent::Failed(urnic_engine::stream::StreamError::ConnectionLost);
    assert!(duo.sides[1].saw(ids[1], |event| *event == lost));
    duo.ends_empty();
}

#[test]
fn closing_gives_up_an_initiator_that_stays_and_sends_no_fpdu() {
    let Silenced { mut duo, queues, ids, told_at } = a_silenced_responder_closes(|_, _| {});
    duo.until(|duo| duo.sides[0].saw(ids[0], |event| *event == StreamEvent::PeerClosed));
    let waited = duo.now() - told_at;
    assert!(BOUND <= waited && waited < BOUND + Duration::from_secs(1), "{waited:?}");
    assert_eq!(queues[1].sent(), GIVEN_UP);
    assert_eq!(queues[0].received(), [(8, WcStatus::WrFlushErr)]);
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.ends_empty();
}

#[test]
fn closing_waits_for_a_first_fpdu_that_comes_in_time() {
    let Silenced { mut duo, queues, ids, .. } = a_silenced_responder_closes(|_, _| {});
    queues[0].post_receive(9, &duo.sides[0].memory, 10);
    duo.run(Duration::from_secs(20));
    assert!(queues[1].sent().is_empty());
    let sink = duo.sides[1].memory.remote(0);
    queues[0].qp.post_send(SendWr::write(WrId(3), sink, [])).unwrap();
    duo.until(|duo| duo.sides[0].saw(ids[0], |event| *event == StreamEvent::PeerClosed));
    assert_eq!(queues[1].sent(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(queues[0].received(), [(8, WcStatus::Success), (9, WcStatus::Success)]);
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.ends_empty();
}
