//! Messages that arrive without a posted receive, on queue pairs that let them wait.

mod bytes;
mod ends;
mod limits;
mod shared;

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, Qp, QpRules, RecvWr, SendOp, SendWr, Wc, WcOpcode, WcStatus};
use urnic_netdev::impair::ImpairConfig;
use urnic_netdev::memory::LinkConfig;
use urnic_testkit::pair::{Pair, Setup, all_access, content, fill};

/// Long enough for everything but timeouts.
const MOMENT: Duration = Duration::from_millis(100);

fn setup() -> Setup {
    Setup {
        link: LinkConfig { latency_ns: 10_000, ..LinkConfig::default() },
        rules: QpRules::IwarpWait,
        ..Setup::default()
    }
}

/// Lets a moment pass.
fn pause(pair: &mut Pair) {
    let deadline = pair.link.now() + MOMENT;
    while pair.link.now() < deadline && pair.link.step_within(deadline) {}
    pair.collect_events();
}

fn drain(cq: &Cq) -> Vec<(u64, WcStatus, usize)> {
    std::iter::from_fn(|| cq.poll())
        .map(|Wc { wr_id, status, byte_len, .. }| (wr_id.0, status, byte_len as usize))
        .collect()
}

/// Posts a receive of two elements, so that a segment may fall into both.
fn post(qp: &Qp, id: u64, inbox: &Mr, at: usize, len: usize) {
    let sges = [inbox.sge(at..at + len / 3), inbox.sge(at + len / 3..at + len)];
    qp.post_recv(RecvWr::new(WrId(id), sges)).unwrap();
}

fn send(qp: &Qp, id: u64, source: &Mr, len: usize) {
    qp.post_send(SendWr::send(WrId(id), [source.sge(0..len)])).unwrap();
}

/// Asserts that messages of these lengths wait, and are delivered in order when receives are posted
/// in batches. Other traffic behind them does not wait.
fn wait_and_are_delivered(setup: Setup, lens: &[usize], batch: usize) {
    let mut pair = Pair::connect(setup);
    let longest = *lens.iter().max().unwrap();
    let source = pair.a.pd.reg_mr(longest, Access::LOCAL_WRITE).unwrap();
    let expected = fill(&source, 3);
    let sink = pair.b.pd.reg_mr(longest, all_access()).unwrap();
    let back = pair.a.pd.reg_mr(longest, Access::LOCAL_WRITE).unwrap();
    for (index, len) in lens.iter().enumerate() {
        send(&pair.a.qp, index as u64, &source, *len);
    }
    let write = SendWr::write(WrId(100), sink.remote(0), [source.sge(0..longest)]);
    pair.a.qp.post_send(write.unsignaled()).unwrap();
    let read = SendWr::read(WrId(101), sink.remote(0), back.sge(0..longest));
    pair.a.qp.post_send(read).unwrap();
    let cq = pair.a.cq.clone();
    while pair.wait(&cq).wr_id != WrId(101) {}
    assert!(content(&back) == expected, "a Read behind Sends that wait is answered: {setup:?}");
    assert!(pair.b.cq.is_empty());

    let inbox = pair.b.pd.reg_mr(longest * batch, Access::LOCAL_WRITE).unwrap();
    let mut delivered = 0;
    while delivered < lens.len() {
        let now = batch.min(lens.len() - delivered);
        for place in 0..now {
            post(&pair.b.qp, (delivered + place) as u64, &inbox, place * longest, longest);
        }
        let cq = pair.b.cq.clone();
        for place in 0..now {
            let wc = pair.wait(&cq);
            let len = lens[delivered + place];
            assert_eq!(wc.wr_id, WrId((delivered + place) as u64), "{setup:?}");
            assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, len), "{setup:?}");
            let at = place * longest;
            assert!(content(&inbox)[at..at + len] == expected[..len], "{setup:?}");
        }
        delivered += now;
    }
    let counters = pair.link.b.port.counters(pair.b.connection.unwrap()).unwrap();
    let sent: usize = lens.iter().sum();
    assert_eq!(counters.rdma.bytes_without_receive, sent as u64, "{setup:?}");
    assert_eq!(counters.rdma.bytes_placed, (sent + longest) as u64, "{setup:?}");

    // With a receive posted before, nothing is held.
    post(&pair.b.qp, 7, &inbox, 0, longest);
    send(&pair.a.qp, 7, &source, longest);
    let cq = pair.b.cq.clone();
    assert_eq!(pair.wait(&cq).status, WcStatus::Success);
    let counters = pair.link.b.port.counters(pair.b.connection.unwrap()).unwrap();
    assert_eq!(counters.rdma.bytes_without_receive, sent as u64, "{setup:?}");
}

const LENS: [usize; 7] = [1, 30_000, 0, 5, 1460, 100_001, 17];

#[test]
fn a_message_waits_for_its_receive() {
    for len in [0, 1, 100, 100_001] {
        wait_and_are_delivered(setup(), &[len.max(1), len], 1);
    }
}

#[test]
fn messages_wait_in_order_on_every_lower_layer() {
    for markers in [false, true] {
        for lower_layer in [LowerLayer::default(), LowerLayer::Layered] {
            for batch in [1, 3, 7] {
                let startup = StartupConfig { markers, ..StartupConfig::default() };
                wait_and_are_delivered(Setup { startup, lower_layer, ..setup() }, &LENS, batch);
            }
        }
    }
}

#[test]
fn messages_that_arrive_out_of_order_wait_in_order() {
    for seed in 0..40 {
        let impair = ImpairConfig {
            loss: 0.05,
            reorder: 0.2,
            resegment: if seed % 2 == 0 { 0.0 } else { 0.3 },
            ..ImpairConfig::default()
        };
        let startup = StartupConfig { markers: seed % 3 == 0, ..StartupConfig::default() };
        wait_and_are_delivered(Setup { impair, startup, seed, ..setup() }, &LENS, 2);
    }
}

/// The rest of a message arrives after its receive was posted.
#[test]
fn a_message_that_came_in_part_goes_on_in_its_receive() {
    for seed in 0..20 {
        let impair = ImpairConfig { loss: 0.05, reorder: 0.2, ..ImpairConfig::default() };
        let link = LinkConfig {
            latency_ns: 50_000,
            rate_bits_per_second: Some(100_000_000),
            ..LinkConfig::default()
        };
        let mut pair = Pair::connect(Setup { link, impair, seed, ..setup() });
        let source = pair.a.pd.reg_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
        let expected = fill(&source, 3);
        let inbox = pair.b.pd.reg_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
        send(&pair.a.qp, 0, &source, 1 << 20);
        send(&pair.a.qp, 1, &source, 10);
        let id = pair.b.connection.unwrap();
        let is_held = |pair: &mut Pair| {
            let counters = pair.link.b.port.counters(id).unwrap();
            counters.rdma.bytes_without_receive > 20_000 * seed
        };
        assert!(pair.run_for(Duration::from_secs(60), is_held));
        post(&pair.b.qp, 0, &inbox, 0, 1 << 20);
        post(&pair.b.qp, 1, &inbox, 0, 10);
        let cq = pair.b.cq.clone();
        assert_eq!((pair.wait(&cq).wr_id, pair.wait(&cq).byte_len), (WrId(0), 10));
        assert!(content(&inbox) == expected);
    }
}

#[test]
fn invalidation_and_events_happen_at_delivery() {
    let mut pair = Pair::connect(setup());
    let cq = pair.b.cq.clone();
    let revoked = pair.b.pd.reg_mr(16, Access::REMOTE_READ | Access::REMOTE_INVALIDATE).unwrap();
    let invalidate = SendOp::Send { invalidate: Some(revoked.stag()), solicited: true };
    pair.a.qp.post_send(SendWr::new(WrId(0), invalidate, [])).unwrap();
    let immediate = SendOp::Immediate { value: 0x0102_0304_0506_0708, solicited: false };
    pair.a.qp.post_send(SendWr::new(WrId(1), immediate, [])).unwrap();
    pause(&mut pair);
    // Another registration may still be invalidated until the message is delivered.
    assert!(pair.b.cq.is_empty());
    for id in [0, 1] {
        pair.b.qp.post_recv(RecvWr::new(WrId(id), [])).unwrap();
    }
    let first = pair.wait(&cq);
    assert_eq!((first.wr_id, first.invalidated), (WrId(0), Some(revoked.stag())));
    assert!(first.solicited && !revoked.invalidate(), "it is invalid already");
    let second = pair.wait(&cq);
    assert_eq!((second.wr_id, second.opcode), (WrId(1), WcOpcode::RecvImmediate));
    assert_eq!((second.value, second.byte_len), (0x0102_0304_0506_0708, 8));
}

#[test]
fn queue_pair_without_the_option_does_not_wait_for_receives() {
    let rules = QpRules::default();
    let mut pair = Pair::connect(Setup { rules, ..setup() });
    pair.a.qp.post_send(SendWr::send(WrId(0), [])).unwrap();
    pause(&mut pair);
    assert_eq!(pair.b.qp.state(), urnic_engine::verbs::QpState::Error);
}
