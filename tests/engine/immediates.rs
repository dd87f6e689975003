//! Sends and Writes with immediate data: delivery and completions.

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::time::Duration;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{
    Cq, PostError, QpRules, RecvWr, RemoteBuffer, SendOp, SendWr, Wc, WcOpcode, WcStatus,
};
use urnic_netdev::impair::ImpairConfig;
use urnic_netdev::memory::LinkConfig;
use urnic_testkit::pair::{Pair, Setup, all_access, content, fill};

const IMMEDIATE_DATA: u32 = 0x0102_0304;

fn send(id: u64, solicited: bool) -> SendWr {
    SendWr::new(WrId(id), SendOp::SendImmediate { immediate: IMMEDIATE_DATA, solicited }, [])
}

fn write(id: u64, remote: RemoteBuffer, solicited: bool) -> SendWr {
    let immediate = IMMEDIATE_DATA + 1;
    SendWr::new(WrId(id), SendOp::RdmaWriteImmediate { remote, immediate, solicited }, [])
}

fn drained(cq: &Cq) -> Vec<Wc> {
    std::iter::from_fn(|| cq.poll()).collect()
}

fn rest(pair: &mut Pair) {
    pair.run_for(Duration::from_secs(5), |_| false);
}

// spec: EXT-6-1
#[test]
fn payload_and_immediate_data_arrive_in_one_completion() {
    let lossy = ImpairConfig { loss: 0.02, reorder: 0.1, ..ImpairConfig::default() };
    for lower_layer in [LowerLayer::Optimized, LowerLayer::Layered] {
        for (markers, impair) in [(false, ImpairConfig::default()), (true, lossy)] {
            for len in [0, 1, 1400, 1460, 50_000] {
                let startup =
                    StartupConfig { markers, immediates: true, ..StartupConfig::default() };
                let link = LinkConfig { latency_ns: 10_000, ..LinkConfig::default() };
                let setup = Setup { lower_layer, startup, impair, link, ..Setup::default() };
                arrive_in_one_completion(setup, len);
                let rules = QpRules::IwarpWait;
                arrive_in_one_completion(Setup { rules, ..setup }, len);
            }
        }
    }
}

fn arrive_in_one_completion(setup: Setup, len: usize) {
    let mut pair = Pair::connect(setup);
    let source = pair.a.pd.reg_mr(50_000, all_access()).unwrap();
    let octets = fill(&source, 9);
    let sink = pair.b.pd.reg_mr(50_000, all_access()).unwrap();
    let inbox = pair.b.pd.reg_mr(50_000, Access::LOCAL_WRITE).unwrap();
    let receiver = pair.b.qp.clone();
    let receive = || {
        receiver.post_recv(RecvWr::new(WrId(10), [inbox.sge(0..50_000)])).unwrap();
        receiver.post_recv(RecvWr::new(WrId(11), [])).unwrap();
    };
    let late = setup.rules == QpRules::IwarpWait;
    if !late {
        receive();
    }
    // Another Write before it, and answers to the peer's Reads among all of them.
    let short = SendWr::write(WrId(0), sink.remote(0), [source.sge(0..3)]).unsignaled();
    let read = SendWr::read(WrId(20), source.remote(0), sink.sge(40_000..50_000)).unsignaled();
    for _ in 0..4 {
        pair.b.qp.post_send(read.clone()).unwrap();
    }
    let (mut send, mut write) = (send(1, false), write(2, sink.remote(7), true));
    send.sges.push(source.sge(0..len));
    write.sges.push(source.sge(0..len.min(30_000)));
    for wr in [short.clone(), send, short.clone(), write, short] {
        pair.a.qp.post_send(wr).unwrap();
    }
    rest(&mut pair);
    if late {
        assert!(drained(&pair.b.cq).is_empty(), "{setup:?}, {len}");
        receive();
        rest(&mut pair);
    }
    let sent = drained(&pair.a.cq);
    let found: Vec<_> = sent.iter().map(|wc| (wc.wr_id.0, wc.status, wc.opcode)).collect();
    let ok = WcStatus::Success;
    assert_eq!(found, [(1, ok, WcOpcode::Send), (2, ok, WcOpcode::RdmaWrite)], "{setup:?}, {len}");
    let len = u32::try_from(len).unwrap();
    let qp = pair.b.qp.number();
    let wc = Wc {
        wr_id: WrId(10),
        status: ok,
        opcode: WcOpcode::RecvSendImmediate,
        qp,
        byte_len: len,
        invalidated: None,
        solicited: false,
        value: IMMEDIATE_DATA.into(),
    };
    let written = Wc {
        wr_id: WrId(11),
        opcode: WcOpcode::RecvWriteImmediate,
        byte_len: len.min(30_000),
        solicited: true,
        value: (IMMEDIATE_DATA + 1).into(),
        ..wc
    };
    assert_eq!(drained(&pair.b.cq), [wc, written], "{setup:?}, {len}");
    let (len, found) = (len as usize, content(&sink));
    assert!(content(&inbox)[..len] == octets[..len], "{setup:?}, {len}");
    assert!(found[7..7 + len.min(30_000)] == octets[..len.min(30_000)], "{setup:?}, {len}");
}

#[test]
fn immediate_data_without_agreement_is_refused_when_posted() {
    let mut pair = Pair::connect(Setup::default());
    let nowhere = RemoteBuffer { stag: Stag(1), to: TaggedOffset(0) };
    assert_eq!(pair.a.qp.post_send(send(1, false)), Err(PostError::NoImmediates));
    assert_eq!(pair.a.qp.post_send(write(2, nowhere, false)), Err(PostError::NoImmediates));
    pair.a.qp.post_send(SendWr::write(WrId(3), nowhere, [])).unwrap();
    rest(&mut pair);
    let sent: Vec<_> = drained(&pair.a.cq).iter().map(|wc| (wc.wr_id.0, wc.status)).collect();
    assert_eq!(sent, [(3, WcStatus::Success)], "nothing is in the way");
}
