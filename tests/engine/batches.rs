//! Requests posted together: all of them or none, and without an allocation for each.

use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, PostError, SendWr, WcStatus};
use urnic_testkit::counting::Census;
use urnic_testkit::pair::{Pair, Setup, all_access};

const OK: WcStatus = WcStatus::Success;
/// Depth of the send queue of a pair's ends.
const DEPTH: u64 = 256;

fn rest(pair: &mut Pair) {
    pair.run_for(Duration::from_secs(5), |_| false);
}

fn drained(cq: &Cq) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll()).map(|wc| (wc.wr_id.0, wc.status)).collect()
}

fn scene() -> (Pair, Mr, Mr) {
    let pair = Pair::connect(Setup::default());
    let source = pair.a.pd.reg_mr(64, all_access()).unwrap();
    let sink = pair.b.pd.reg_mr(64, all_access()).unwrap();
    (pair, source, sink)
}

// spec: DDP-5.3-1, RDMAP-5.1-3, RDMAP-5.5-13
#[test]
fn batch_is_sent_only_when_posted_and_then_in_order() {
    let (mut pair, source, sink) = scene();
    let write = |id| SendWr::write(WrId(id), sink.remote(0), [source.sge(0..64)]);
    let mut batch = pair.a.qp.batch();
    for id in 1..5 {
        batch.push(write(id)).unwrap();
    }
    rest(&mut pair);
    assert_eq!((batch.len(), drained(&pair.a.cq)), (4, vec![]));
    // Requests posted meanwhile come before the batch.
    pair.a.qp.post_send(write(9)).unwrap();
    batch.post();
    assert!(batch.is_empty());
    rest(&mut pair);
    assert_eq!(drained(&pair.a.cq), [9, 1, 2, 3, 4].map(|id| (id, OK)));
    batch.post();
    rest(&mut pair);
    assert!(drained(&pair.a.cq).is_empty(), "it was posted once");
}

#[test]
fn batch_reserves_queue_slots_until_it_is_cleared_or_dropped() {
    let (mut pair, source, sink) = scene();
    let write = |id| SendWr::write(WrId(id), sink.remote(0), [source.sge(0..64)]);
    let mut batch = pair.a.qp.batch();
    for id in 0..DEPTH {
        batch.push(write(id)).unwrap();
    }
    assert_eq!(batch.push(write(0)), Err(PostError::Full));
    assert_eq!(pair.a.qp.post_send(write(0)), Err(PostError::Full));
    batch.clear();
    assert_eq!(pair.a.qp.sends_outstanding(), 0);
    batch.push(write(1)).unwrap();
    drop(batch);
    assert_eq!(pair.a.qp.sends_outstanding(), 0);
    rest(&mut pair);
    assert!(drained(&pair.a.cq).is_empty());
}

#[test]
fn a_request_that_cannot_be_posted_leaves_the_batch_as_it_was() {
    let (mut pair, source, sink) = scene();
    let foreign = pair.a.rnic.alloc_pd().reg_mr(8, all_access()).unwrap();
    let mut batch = pair.a.qp.batch();
    batch.push(SendWr::write(WrId(1), sink.remote(0), [source.sge(0..8)])).unwrap();
    let wrong = SendWr::write(WrId(2), sink.remote(0), [foreign.sge(0..8)]);
    assert_eq!(batch.push(wrong), Err(PostError::NotAssociated));
    batch.post();
    rest(&mut pair);
    assert_eq!(drained(&pair.a.cq), [(1, OK)]);
}

/// The connection ends between building and posting: the batch completes like requests posted then.
#[test]
fn a_batch_posted_after_the_end_is_flushed() {
    let (mut pair, source, sink) = scene();
    let mut batch = pair.a.qp.batch();
    batch.push(SendWr::write(WrId(1), sink.remote(0), [source.sge(0..8)])).unwrap();
    let id = pair.a.connection.unwrap();
    pair.link.a.port.abort(id);
    rest(&mut pair);
    assert!(drained(&pair.a.cq).is_empty());
    batch.post();
    assert_eq!(drained(&pair.a.cq), [(1, WcStatus::WrFlushErr)]);
    let refused = batch.push(SendWr::send(WrId(2), []));
    assert!(matches!(refused, Err(PostError::State(_))));
}

#[test]
fn batches_allocate_nothing() {
    let (mut pair, source, sink) = scene();
    let (qp, cq) = (pair.a.qp.clone(), pair.a.cq.clone());
    let mut batch = qp.batch();
    let mut round = || {
        for id in 0..8 {
            let wr = SendWr::write(WrId(id), sink.remote(0), [source.sge(0..64)]);
            batch.push(wr).unwrap();
        }
        batch.post();
        for id in 0..8 {
            assert_eq!(pair.wait(&cq).wr_id, WrId(id));
        }
    };
    for _ in 0..1000 {
        round();
    }
    let census = Census::begin();
    for _ in 0..1000 {
        round();
    }
    assert_eq!(census.end(), 0);
}
