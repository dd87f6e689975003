//! Requests that fail in their turn, and Reads into several elements: completions and their order.

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::{ConnectParams, LowerLayer};
use urnic_engine::stream::{StreamError, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, RecvWr, SendOp, SendWr, WcStatus};
use urnic_engine::wire::terminate::TerminateCode;
use urnic_testkit::pair::{Pair, Setup, all_access, content, fill, pattern};

const LAYERS: [LowerLayer; 2] = [LowerLayer::Optimized, LowerLayer::Layered];

fn drained(cq: &Cq) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll()).map(|wc| (wc.wr_id.0, wc.status)).collect()
}

fn rest(pair: &mut Pair) {
    pair.run_for(Duration::from_secs(5), |_| false);
}

fn failed_locally(events: &[StreamEvent]) -> bool {
    events.contains(&StreamEvent::Failed(StreamError::LocalProtection))
}

fn told_of_a_local_error(events: &[StreamEvent]) -> bool {
    events.iter().any(|event| {
        matches!(event, StreamEvent::Terminated(terminate)
            if terminate.code == TerminateCode::LOCAL_CATASTROPHIC)
    })
}

/// A request without access to its memory is accepted. Earlier requests complete, then it fails,
/// and later requests are flushed.
#[test]
fn a_request_without_access_fails_in_its_turn() {
    for lower_layer in LAYERS {
        for len in [1, 100_000] {
            let mut pair = Pair::connect(Setup { lower_layer, ..Setup::default() });
            let source = pair.a.pd.reg_mr(len, Access::LOCAL_WRITE).unwrap();
            let expected = fill(&source, 7);
            let sink = pair.b.pd.reg_mr(len, all_access()).unwrap();
            let back = pair.a.pd.reg_mr(len, Access::LOCAL_WRITE).unwrap();
            let cq = pair.a.cq.clone();
            let write = |id| SendWr::write(WrId(id), sink.remote(0), [source.sge(0..len)]);
            for wr in [
                write(1).unsignaled(),
                write(2),
                SendWr::read(WrId(3), sink.remote(0), back.sge(0..len)),
                SendWr::write(WrId(4), sink.remote(0), []).inaccessible().unsignaled(),
                write(5).unsignaled(),
                write(6),
            ] {
                pair.a.qp.post_send(wr).unwrap();
            }
            rest(&mut pair);
            let (ok, flushed) = (WcStatus::Success, WcStatus::WrFlushErr);
            let statuses = drained(&cq);
            let case = format!("{lower_layer:?}, {len}");
            assert_eq!(
                statuses,
                [(2, ok), (3, ok), (4, WcStatus::LocProtErr), (5, flushed), (6, flushed)],
                "{case}"
            );
            assert!(content(&sink) == expected && content(&back) == expected, "{case}");
            assert!(failed_locally(&pair.a.events), "{case}: {:?}", pair.a.events);
            // RFC 5040 §7.1 (1): an error of the other end that no segment caused.
            assert!(told_of_a_local_error(&pair.b.events), "{case}: {:?}", pair.b.events);
        }
    }
}

/// Every operation may fail like this; nothing of it reaches the peer.
// spec: EXT-8.1-1
#[test]
fn no_kind_of_request_without_access_sends_anything() {
    let pair = Pair::connect(Setup::default());
    let sink = pair.b.pd.reg_mr(8, all_access()).unwrap();
    let remote = sink.remote(0);
    drop(pair);
    for op in [
        SendOp::Send { invalidate: None, solicited: true },
        SendOp::RdmaWrite { remote },
        SendOp::RdmaRead { remote },
        SendOp::FetchAdd { remote, add: 1, mask: 0 },
    ] {
        let mut pair = Pair::connect(Setup::default());
        pair.a.qp.post_send(SendWr::new(WrId(1), op, []).inaccessible()).unwrap();
        rest(&mut pair);
        assert_eq!(drained(&pair.a.cq), [(1, WcStatus::LocProtErr)], "{op:?}");
        assert!(told_of_a_local_error(&pair.b.events), "{op:?}: {:?}", pair.b.events);
        assert!(drained(&pair.b.cq).is_empty(), "{op:?}");
    }
}

/// A receive without access to its memory fails when a message comes for it, after earlier
/// receives. For a message without payload it is as good as any.
#[test]
fn a_receive_without_access_fails_when_a_message_comes_for_it() {
    for lower_layer in LAYERS {
        let mut pair = Pair::connect(Setup { lower_layer, ..Setup::default() });
        let source = pair.a.pd.reg_mr(50_000, Access::LOCAL_WRITE).unwrap();
        let inbox = pair.b.pd.reg_mr(50_000, Access::LOCAL_WRITE).unwrap();
        let expected = fill(&source, 3);
        pair.b.qp.post_recv(RecvWr::new(WrId(10), []).inaccessible()).unwrap();
        pair.b.qp.post_recv(RecvWr::new(WrId(11), [inbox.sge(0..50_000)])).unwrap();
        pair.b.qp.post_recv(RecvWr::new(WrId(12), []).inaccessible()).unwrap();
        pair.b.qp.post_recv(RecvWr::new(WrId(13), [])).unwrap();
        rest(&mut pair);
        assert!(drained(&pair.b.cq).is_empty(), "no message has come");
        pair.a.qp.post_send(SendWr::send(WrId(0), [])).unwrap();
        for id in [1, 2] {
            pair.a.qp.post_send(SendWr::send(WrId(id), [source.sge(0..50_000)])).unwrap();
        }
        rest(&mut pair);
        let ok = WcStatus::Success;
        assert_eq!(
            drained(&pair.b.cq),
            [(10, ok), (11, ok), (12, WcStatus::LocProtErr), (13, WcStatus::WrFlushErr)],
            "{lower_layer:?}"
        );
        assert!(content(&inbox) == expected, "{lower_layer:?}");
        assert!(failed_locally(&pair.b.events), "{lower_layer:?}: {:?}", pair.b.events);
        assert!(told_of_a_local_error(&pair.a.events), "{lower_layer:?}: {:?}", pair.a.events);
    }
}

/// A Read of several elements is sent as several Reads with one completion, even if fewer may be
/// outstanding.
// spec: RDMAP-5.2.2-6
#[test]
fn a_read_fills_its_elements_one_after_the_other() {
    for ord in [1, 2, 8] {
        let setup = Setup::default();
        let mut pair = unconnected(setup);
        let offer = Offer { private_data: b"", ird: ord, ord };
        let params = ConnectParams { offer, ..ConnectParams::default() };
        pair.establish(&params, urnic_testkit::pair::B.into(), &offer);
        let source = pair.b.pd.reg_mr(30_000, all_access()).unwrap();
        let octets = fill(&source, 5);
        let sink = pair.a.pd.reg_mr(40_000, Access::LOCAL_WRITE).unwrap();
        let elements = [0..7, 20_000..30_000, 100..101, 10_000..15_000];
        let read = |id, from: u64| {
            let op = SendOp::RdmaRead { remote: source.remote(from) };
            SendWr::new(WrId(id), op, elements.clone().map(|range| sink.sge(range)))
        };
        pair.a.qp.post_send(read(1, 9)).unwrap();
        pair.a.qp.post_send(read(2, 9).fenced().unsignaled()).unwrap();
        pair.a
            .qp
            .post_send(SendWr::new(WrId(3), SendOp::RdmaRead { remote: source.remote(0) }, []))
            .unwrap();
        let cq = pair.a.cq.clone();
        let wc = pair.wait(&cq);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (WrId(1), WcStatus::Success, 15_008));
        let wc = pair.wait(&cq);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (WrId(3), WcStatus::Success, 0));
        let (mut at, found) = (9, content(&sink));
        for range in elements {
            let len = range.len();
            assert!(found[range.clone()] == octets[at..at + len], "{range:?} with an ORD of {ord}");
            at += len;
        }
    }
}

/// One element that is no longer registered fails the whole Read, once.
#[test]
fn a_read_of_several_elements_fails_as_one() {
    let mut pair = Pair::connect(Setup::default());
    let source = pair.b.pd.reg_mr(3000, all_access()).unwrap();
    let [kept, gone] = [1, 2].map(|_| pair.a.pd.reg_mr(1000, Access::LOCAL_WRITE).unwrap());
    let op = SendOp::RdmaRead { remote: source.remote(0) };
    let read = SendWr::new(WrId(1), op, [kept.sge(0..1000), gone.sge(0..1000)]);
    pair.a.qp.post_send(read).unwrap();
    assert!(gone.invalidate());
    rest(&mut pair);
    assert_eq!(drained(&pair.a.cq), [(1, WcStatus::LocProtErr)]);

    // And so does the peer's refusal of the second of its Requests.
    let mut pair = Pair::connect(Setup::default());
    let source = pair.b.pd.reg_mr(1500, all_access()).unwrap();
    let sink = pair.a.pd.reg_mr(2000, Access::LOCAL_WRITE).unwrap();
    sink.copy_in(0, &pattern(1, 2000));
    let op = SendOp::RdmaRead { remote: source.remote(0) };
    let read = SendWr::new(WrId(1), op, [sink.sge(0..1000), sink.sge(1000..2000)]);
    pair.a.qp.post_send(read).unwrap();
    pair.a.qp.post_send(SendWr::send(WrId(2), [])).unwrap();
    rest(&mut pair);
    assert_eq!(drained(&pair.a.cq), [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
}

fn unconnected(setup: Setup) -> Pair {
    use urnic_netdev::impair::Impair;
    use urnic_testkit::pair::{A, B, End, config};

    let (a, b) = urnic_netdev::memory::pair(setup.link);
    let devices = [Impair::new(a, setup.impair, 1), Impair::new(b, setup.impair, 2)];
    Pair::new([End::new(1), End::new(2)], [config(A), config(B)], devices)
}
