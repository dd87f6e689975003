//! Completions that promise placement at the peer: the data is there at that moment, on every
//! carrier of the stream, and whatever happens to it.

use urnic_engine::port::LowerLayer;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{CompletionLevel, RecvWr, SendWr, WcStatus};
use urnic_netdev::impair::ImpairConfig;
use urnic_netdev::memory::LinkConfig;
use urnic_testkit::pair::{Pair, Setup, all_access, pattern};

const LEN: usize = 20_000;
const WRITES: usize = 40;

/// Posts Writes and Sends, some without completions. Returns true if the data of each was there
/// when it completed.
fn all_were_there(setup: Setup) -> bool {
    let mut pair = Pair::connect(setup);
    let len = LEN * WRITES;
    let source = pair.a.pd.reg_mr(len, all_access()).unwrap();
    let sink = pair.b.pd.reg_mr(len, all_access()).unwrap();
    let inbox = pair.b.pd.reg_mr(WRITES, all_access()).unwrap();
    source.copy_in(0, &pattern(3, len));
    for (at, id) in (0..WRITES).zip(0..) {
        pair.b.qp.post_recv(RecvWr::new(WrId(id), [inbox.sge(at..at + 1)])).unwrap();
        let octets = source.sge(at * LEN..(at + 1) * LEN);
        let write = SendWr::write(WrId(2 * id), sink.remote((at * LEN) as u64), [octets]);
        let write = if id % 3 == 0 { write.unsignaled() } else { write };
        pair.a.qp.post_send(write).unwrap();
        let send = SendWr::send(WrId(2 * id + 1), [source.sge(at * LEN..at * LEN + 1)]);
        pair.a.qp.post_send(send).unwrap();
    }
    let (expected, cq) = (pattern(3, len), pair.a.cq.clone());
    let (mut were_there, mut last) = (true, None);
    let done = pair.run_for(Duration::from_secs(60), |_| {
        while let Some(wc) = cq.poll() {
            assert_eq!(wc.status, WcStatus::Success, "{setup:?}");
            let (at, mut there, mut sent) = (wc.wr_id.0 / 2, vec![0; LEN], [0]);
            let at = usize::try_from(at).unwrap();
            sink.copy_out(at * LEN, &mut there);
            inbox.copy_out(at, &mut sent);
            were_there &= there == expected[at * LEN..(at + 1) * LEN];
            were_there &= wc.wr_id.0 % 2 == 0 || sent[0] == expected[at * LEN];
            last = Some(wc.wr_id.0);
        }
        last == Some(2 * WRITES as u64 - 1)
    });
    assert!(done, "{setup:?}");
    assert_eq!(pair.a.qp.sends_outstanding(), 0);
    were_there
}

#[test]
fn completed_writes_are_placed_at_the_peer() {
    let lossy = ImpairConfig { loss: 0.02, reorder: 0.1, ..ImpairConfig::default() };
    let link = LinkConfig { latency_ns: 50_000, ..LinkConfig::default() };
    for lower_layer in [LowerLayer::Optimized, LowerLayer::Layered] {
        for (impair, seed) in [(ImpairConfig::default(), 0), (lossy, 1), (lossy, 2)] {
            let completion = CompletionLevel::Placed;
            let setup = Setup { link, impair, lower_layer, completion, seed, ..Setup::default() };
            assert!(all_were_there(setup), "{setup:?}");
        }
    }
}
