//! Waiting messages when the stream ends, by either end, in order or not.

use urnic_engine::mem::Access;
use urnic_engine::stream::StreamEvent;
use urnic_engine::stream::error::StreamError;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpState, RecvWr, SendWr, WcStatus};
use urnic_testkit::pair::{Pair, content, fill};

use super::{drain, pause, post, send, setup};

/// Returns a pair in which three messages of 5000 bytes wait at `b`.
fn with_three() -> (Pair, Vec<u8>) {
    let mut pair = Pair::connect(setup());
    let source = pair.a.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    let expected = fill(&source, 9);
    for id in 0..3 {
        send(&pair.a.qp, id, &source, 5000);
    }
    pause(&mut pair);
    assert_eq!(drain(&pair.a.cq).len(), 3);
    assert!(pair.b.qp.messages_wait() && !pair.a.qp.messages_wait());
    (pair, expected)
}

#[test]
fn a_message_that_waited_and_is_too_long_ends_the_stream() {
    let (mut pair, _) = with_three();
    let inbox = pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    post(&pair.b.qp, 0, &inbox, 0, 5000);
    post(&pair.b.qp, 1, &inbox, 0, 4999);
    post(&pair.b.qp, 2, &inbox, 0, 5000);
    pause(&mut pair);
    let ends =
        [(0, WcStatus::Success, 5000), (1, WcStatus::LocLenErr, 0), (2, WcStatus::WrFlushErr, 0)];
    assert_eq!(drain(&pair.b.cq), ends);
    let told = pair.a.events.iter().find_map(|event| match event {
        StreamEvent::Terminated(terminate) => Some(terminate.clone()),
        _ => None,
    });
    let told = told.expect("a Terminate");
    assert_eq!(told.code, urnic_engine::wire::terminate::TerminateCode::DDP_UNTAGGED_TOO_LONG);
}

/// RFC 5040 §8.1.1 (6): no packet changes revoked memory, however early it arrived.
#[test]
fn a_message_that_waited_is_not_placed_in_memory_that_was_revoked() {
    let (mut pair, _) = with_three();
    let inbox = pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    post(&pair.b.qp, 0, &inbox, 0, 5000);
    assert!(inbox.invalidate());
    pause(&mut pair);
    assert_eq!(drain(&pair.b.cq), [(0, WcStatus::LocProtErr, 0)]);
    assert!(content(&inbox).iter().all(|octet| *octet == 0));
}

#[test]
fn a_peer_that_has_closed_has_its_messages_delivered() {
    let (mut pair, expected) = with_three();
    pair.link.a.port.disconnect(pair.a.connection.unwrap()).unwrap();
    pause(&mut pair);
    assert!(pair.b.events.contains(&StreamEvent::PeerClosed));
    let inbox = pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    for id in 0..5 {
        post(&pair.b.qp, id, &inbox, 0, 5000);
        pause(&mut pair);
        if id < 3 {
            assert_eq!(drain(&pair.b.cq), [(id, WcStatus::Success, 5000)]);
            assert!(content(&inbox) == expected);
        }
        assert_eq!(pair.b.qp.messages_wait(), id < 2);
    }
    assert!(pair.b.cq.is_empty(), "as without messages that wait: until this end closes");
    pair.link.b.port.disconnect(pair.b.connection.unwrap()).unwrap();
    pair.run_for(Duration::from_secs(10), |_| false);
    assert_eq!(drain(&pair.b.cq), [(3, WcStatus::WrFlushErr, 0), (4, WcStatus::WrFlushErr, 0)]);
}

#[test]
fn receives_behind_the_last_message_of_a_peer_that_has_closed_are_flushed() {
    let (mut pair, _) = with_three();
    pair.link.a.port.disconnect(pair.a.connection.unwrap()).unwrap();
    pause(&mut pair);
    let inbox = pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    for id in 0..5 {
        post(&pair.b.qp, id, &inbox, 0, 5000);
    }
    pause(&mut pair);
    let statuses: Vec<_> = drain(&pair.b.cq).iter().map(|(_, status, _)| *status).collect();
    let (ok, flushed) = (WcStatus::Success, WcStatus::WrFlushErr);
    assert_eq!(statuses, [ok, ok, ok, flushed, flushed]);
}

#[test]
fn closing_end_may_take_waiting_messages_until_the_peer_closes() {
    let (mut pair, _) = with_three();
    pair.link.b.port.disconnect(pair.b.connection.unwrap()).unwrap();
    pause(&mut pair);
    assert_eq!(pair.b.qp.state(), QpState::Closing);
    let inbox = pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    post(&pair.b.qp, 0, &inbox, 0, 5000);
    pause(&mut pair);
    assert_eq!(drain(&pair.b.cq), [(0, WcStatus::Success, 5000)]);
    pair.link.a.port.disconnect(pair.a.connection.unwrap()).unwrap();
    pair.run_for(Duration::from_secs(10), |_| false);
    assert_eq!((pair.b.connection, pair.b.qp.state()), (None, QpState::Error));
    assert!(pair.b.cq.is_empty(), "two messages were given up, and no receive was theirs");
}

#[test]
fn lost_stream_discards_its_waiting_messages() {
    let (mut pair, _) = with_three();
    pair.link.a.port.abort(pair.a.connection.unwrap());
    pause(&mut pair);
    assert_eq!(pair.b.qp.state(), QpState::Error);
    assert!(pair.b.cq.is_empty(), "no receive was posted");
    assert!(pair.b.events.contains(&StreamEvent::Failed(StreamError::ConnectionLost)));
    assert!(pair.b.qp.post_recv(RecvWr::new(WrId(0), [])).is_err());
    assert!(pair.a.qp.post_send(SendWr::send(WrId(0), [])).is_err());
}
