//! The limits for waiting messages: at the limit TCP's window closes, and nothing is lost.

use urnic_engine::limits::{
    HELD_BYTES_MAX, HELD_ROOM_MIN, HELD_SEGMENTS_MAX, RECEIVE_WINDOW_BYTES,
};
use urnic_engine::mem::Access;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{RecvWr, SendWr, WcStatus};
use urnic_testkit::pair::{Pair, content, fill};

use super::{drain, post, send, setup};

const LEN: usize = 128 << 10;

#[test]
fn a_stream_that_is_full_closes_its_window_and_goes_on_later() {
    let mut pair = Pair::connect(setup());
    let source = pair.a.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let expected = fill(&source, 5);
    let inbox = pair.b.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    // Four times as much as may wait.
    let count = 4 * HELD_BYTES_MAX / LEN;
    assert!(count <= 256);
    for id in 0..count {
        send(&pair.a.qp, id as u64, &source, LEN);
    }
    let id = pair.b.connection.unwrap();
    let held = |pair: &Pair| {
        let counters = pair.link.b.port.counters(id).unwrap();
        usize::try_from(counters.rdma.bytes_without_receive).unwrap()
    };
    // However long that lasts, the peer probes the closed window and is answered.
    for _ in 0..10 {
        pair.run_for(Duration::from_secs(60), |_| false);
        let most = HELD_BYTES_MAX.max(RECEIVE_WINDOW_BYTES as usize);
        let held = held(&pair);
        assert!((HELD_BYTES_MAX - 2 * HELD_ROOM_MIN..=most).contains(&held), "{held}");
    }
    assert!(drain(&pair.a.cq).len() < count);
    let cq = pair.b.cq.clone();
    for id in 0..count {
        post(&pair.b.qp, id as u64, &inbox, 0, LEN);
        let wc = pair.wait(&cq);
        assert_eq!((wc.wr_id, wc.status), (WrId(id as u64), WcStatus::Success));
        assert!(content(&inbox) == expected);
    }
    assert!(held(&pair) <= count * LEN);
    assert!(
        pair.a
            .events
            .iter()
            .chain(&pair.b.events)
            .all(|event| { !matches!(event, urnic_engine::stream::StreamEvent::Failed(_)) })
    );
}

/// Messages without bytes fill it too.
#[test]
fn empty_messages_are_bounded_too() {
    let mut pair = Pair::connect(setup());
    let (mut posted, mut waited) = (0, 0);
    let fill = |pair: &mut Pair, posted: &mut u64| {
        while pair.a.qp.post_send(SendWr::send(WrId(*posted), [])).is_ok() {
            *posted += 1;
        }
    };
    fill(&mut pair, &mut posted);
    let full = pair.run_for(Duration::from_secs(600), |pair| {
        waited += drain(&pair.a.cq).len();
        fill(pair, &mut posted);
        // The window that was open at the limit takes some more.
        waited > HELD_SEGMENTS_MAX + RECEIVE_WINDOW_BYTES as usize / 24 + 256
    });
    assert!(!full, "{waited} messages wait");
    assert!(waited >= HELD_SEGMENTS_MAX, "{waited}");
    let cq = pair.b.cq.clone();
    for id in 0..posted {
        pair.b.qp.post_recv(RecvWr::new(WrId(id), [])).unwrap();
        if id % 200 == 199 || id + 1 == posted {
            for id in id - id % 200..=id {
                let wc = pair.wait(&cq);
                assert_eq!((wc.wr_id, wc.status), (WrId(id), WcStatus::Success));
            }
            drop(drain(&pair.a.cq));
        }
    }
}
