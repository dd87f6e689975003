//! Unplanned ends.

use urnic_engine::limits::CLOSE_SILENCE_NS;
use urnic_engine::stream::{StartupFailure, StreamError, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpState, SendWr, WcStatus};
use urnic_engine::wire::terminate::TerminateCode;

use crate::teardown::duo::{Duo, OFFER};

const LOST: StreamEvent = StreamEvent::Failed(StreamError::ConnectionLost);

// spec: DDP-3-3
#[test]
fn outstanding_work_fails_within_the_user_timeout_of_a_vanished_peer() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    queues[0].post_receive(8, &duo.sides[0].memory, 10);
    let ids = duo.connect([&queues[0], &queues[1]]);
    let peer = duo.sides[1].memory.remote(0);
    queues[0]
        .qp
        .post_send(SendWr::write(WrId(1), peer, [duo.sides[0].memory.sge(0..500_000)]))
        .unwrap();
    queues[0].post_send(2, &duo.sides[0].memory, 10);
    duo.run(Duration::from_millis(1));
    duo.wire.set_link_up(false);
    let started = duo.now();
    duo.until(|duo| duo.sides[0].saw(ids[0], |event| *event == LOST));
    let waited = duo.now() - started;
    assert!(waited <= Duration::from_secs(101), "{waited:?}");
    assert_eq!(queues[0].sent(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(queues[0].received(), [(8, WcStatus::WrFlushErr)]);
    assert_eq!(queues[0].qp.state(), QpState::Error);
    assert_eq!(duo.port(0).connection_count(), 0);
}

/// The request was acknowledged, so TCP itself does not notice the peer's absence.
#[test]
fn a_response_that_does_not_come_is_missed_when_the_peer_vanishes() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    let peer = duo.sides[1].memory.remote(0);
    let sink = duo.sides[0].memory.sge(500_000..1_000_000);
    queues[0].qp.post_send(SendWr::read(WrId(1), peer, sink)).unwrap();
    duo.run(Duration::from_millis(1));
    duo.wire.set_link_up(false);
    let started = duo.now();
    duo.until(|duo| duo.sides[0].saw(ids[0], |event| *event == LOST));
    let waited = duo.now() - started;
    assert!(waited <= Duration::from_secs(101), "{waited:?}");
    assert_eq!(queues[0].sent(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(duo.port(0).connection_count(), 0);
}

/// As long as the peer's TCP answers, a Response may take any time. If none is awaited, nothing is
/// sent.
#[test]
fn probes_for_a_response_end_with_it() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    duo.connect([&queues[0], &queues[1]]);
    let peer = duo.sides[1].memory.remote(0);
    let sink = duo.sides[0].memory.sge(500_000..1_000_000);
    queues[0].qp.post_send(SendWr::read(WrId(1), peer, sink)).unwrap();
    duo.until(|_| queues[0].send.len() == 1);
    // The timer of the Response that came fires once more.
    duo.run(Duration::from_secs(100));
    assert!(duo.port(0).poll_timeout().is_none(), "nothing is left to do");
    duo.wire.set_link_up(false);
    duo.run(Duration::from_secs(1000));
    assert_eq!(duo.port(0).connection_count(), 1, "an idle connection is left alone");
}

#[test]
fn a_link_that_comes_back_in_time_loses_nothing() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    duo.connect([&queues[0], &queues[1]]);
    let peer = duo.sides[1].memory.remote(500_000);
    queues[0]
        .qp
        .post_send(SendWr::write(WrId(1), peer, [duo.sides[0].memory.sge(0..500_000)]))
        .unwrap();
    duo.run(Duration::from_millis(1));
    duo.wire.set_link_up(false);
    duo.run(Duration::from_secs(40));
    assert!(queues[0].sent().is_empty());
    duo.wire.set_link_up(true);
    duo.until(|_| queues[0].send.len() == 1);
    assert_eq!(queues[0].sent(), [(1, WcStatus::Success)]);
    let (mut source, mut sink) = (vec![0; 500_000], vec![0; 500_000]);
    duo.sides[0].memory.copy_out(0, &mut source);
    duo.sides[1].memory.copy_out(500_000, &mut sink);
    assert!(source == sink);
}

#[test]
fn a_peer_that_was_never_there_is_given_up() {
    let mut duo = Duo::listening();
    duo.wire.set_link_up(false);
    let queues = duo.sides[0].queues(64);
    queues.post_receive(1, &duo.sides[0].memory, 10);
    let params = urnic_engine::port::ConnectParams { offer: OFFER, ..Default::default() };
    let now = duo.now();
    let id = duo.port(0).connect(now, Duo::listener(), &queues.qp, &params).unwrap();
    duo.until(|duo| duo.port(0).connection_count() == 0);
    let failed = |event: &StreamEvent| {
        matches!(
            event,
            StreamEvent::StartupFailed(
                StartupFailure::Timeout
                    | StartupFailure::ConnectionLost
                    | StartupFailure::Refused
                    | StartupFailure::Unreachable
            )
        )
    };
    assert!(duo.sides[0].saw(id, failed), "{:?}", duo.sides[0].events);
    assert_eq!(queues.received(), [(1, WcStatus::WrFlushErr)]);
    // Queries for the peer's link address have stopped too.
    duo.run(Duration::from_secs(1));
    assert_eq!(duo.port(0).poll_timeout(), None);
}

#[test]
fn a_connection_opened_to_nobody_is_given_up_too() {
    for disconnects in [false, true] {
        let mut duo = Duo::listening();
        duo.wire.set_link_up(false);
        let now = duo.now();
        let layer = urnic_engine::port::LowerLayer::default();
        let id = duo.port(0).open(now, Duo::listener(), layer).unwrap();
        duo.run(Duration::from_secs(1));
        if disconnects {
            duo.port(0).disconnect(id).unwrap();
        }
        duo.until(|duo| duo.port(0).connection_count() == 0);
        let waited = duo.now() - now;
        assert_eq!(waited < Duration::from_secs(2), disconnects, "{waited:?}");
    }
}

#[test]
fn connect_to_a_closed_port_is_refused_at_once() {
    let mut duo = Duo::listening();
    let queues = duo.sides[0].queues(64);
    let params = urnic_engine::port::ConnectParams { offer: OFFER, ..Default::default() };
    let mut remote = Duo::listener();
    remote.set_port(9);
    let now = duo.now();
    let id = duo.port(0).connect(now, remote, &queues.qp, &params).unwrap();
    duo.until(|duo| duo.port(0).connection_count() == 0);
    let lost = StreamEvent::StartupFailed(StartupFailure::Refused);
    assert!(duo.sides[0].saw(id, |event| *event == lost));
    assert!(duo.now().as_nanos() < 1_000_000_000);
}

// spec: SEC-R-10
#[test]
fn an_overflowing_completion_queue_ends_only_the_streams_that_use_it() {
    let mut duo = Duo::listening();
    let good = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let bad = [duo.sides[0].queues(64), duo.sides[1].queues(2)];
    for id in 0..10 {
        good[1].post_receive(id, &duo.sides[1].memory, 10);
        bad[1].post_receive(id, &duo.sides[1].memory, 10);
    }
    let good_ids = duo.connect([&good[0], &good[1]]);
    let bad_ids = duo.connect([&bad[0], &bad[1]]);
    for id in 0..6 {
        good[0].post_send(id, &duo.sides[0].memory, 10);
        bad[0].post_send(id, &duo.sides[0].memory, 10);
    }
    duo.until(|duo| duo.sides[0].saw(bad_ids[0], |e| matches!(e, StreamEvent::Terminated(_))));
    assert!(bad[1].recv.overflowed());
    let overflow = StreamEvent::Failed(StreamError::CompletionQueueOverflow);
    assert!(duo.sides[1].saw(bad_ids[1], |event| *event == overflow));
    // RFC 5040 §4.8: a local failure that no message caused.
    let told = |event: &StreamEvent| {
        matches!(event, StreamEvent::Terminated(terminate)
            if terminate.code == TerminateCode::LOCAL_CATASTROPHIC)
    };
    assert!(duo.sides[0].saw(bad_ids[0], told));
    assert_eq!([&bad[0], &bad[1]].map(|queues| queues.qp.state()), [QpState::Error; 2]);
    // RFC 5042 §6.4.6: overflow harms only the streams of this queue.
    duo.until(|_| good[1].recv.len() == 6);
    assert!(!good[1].recv.overflowed() && !good[1].send.overflowed());
    assert_eq!([&good[0], &good[1]].map(|queues| queues.qp.state()), [QpState::Rts; 2]);
    assert_eq!(good[0].sent().len(), 6);
    duo.port(0).disconnect(good_ids[0]).unwrap();
    duo.port(1).disconnect(good_ids[1]).unwrap();
    duo.ends_empty();
}

#[test]
fn an_overflowing_send_completion_queue_ends_its_stream() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(2), duo.sides[1].queues(64)];
    for id in 0..10 {
        queues[1].post_receive(id, &duo.sides[1].memory, 10);
    }
    let ids = duo.connect([&queues[0], &queues[1]]);
    for id in 0..6 {
        queues[0].post_send(id, &duo.sides[0].memory, 10);
    }
    duo.until(|duo| duo.sides[1].saw(ids[1], |e| matches!(e, StreamEvent::Terminated(_))));
    assert!(queues[0].send.overflowed());
    assert_eq!(queues[0].qp.state(), QpState::Error);
    duo.ends_empty();
}

#[test]
fn outstanding_read_from_a_vanished_peer_does_not_block_closing() {
    let mut duo = Duo::listening();
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let ids = duo.connect([&queues[0], &queues[1]]);
    let remote = duo.sides[1].memory.remote(0);
    let sink = duo.sides[0].memory.sge(0..500_000);
    queues[0].qp.post_send(SendWr::read(WrId(1), remote, sink)).unwrap();
    duo.run(Duration::from_millis(2));
    // In the middle of the Response, with the request acknowledged.
    duo.wire.set_link_up(false);
    duo.run(Duration::from_millis(1));
    duo.port(1).abort(ids[1]);
    duo.run(Duration::from_millis(1));
    duo.wire.set_link_up(true);
    duo.port(0).disconnect(ids[0]).unwrap();
    let told_at = duo.now();
    duo.until(|duo| duo.port(0).connection_count() == 0);
    // A probe for the Response shows that the peer's TCP does not know the connection.
    let (waited, bound) = (duo.now() - told_at, Duration::from_nanos(CLOSE_SILENCE_NS) / 4);
    assert!(waited <= bound, "{waited:?}");
    assert_eq!(queues[0].sent(), [(1, WcStatus::RetryExcErr)]);
}
