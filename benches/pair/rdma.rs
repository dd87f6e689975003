//! urnic's side: a stream of RDMA Writes, or Reads, between two ports.

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, PortConfig};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, SendWr, WcStatus};
use urnic_netdev::memory::{self, MemoryDevice};
use urnic_testkit::pair::{self, A, B, End};

use crate::case::{self, MEMORY_LEN, MESSAGE_LEN, WINDOW};

/// Two ports with a connection in full operation between them.
pub(crate) struct Pair {
    ends: pair::Pair<MemoryDevice>,
    source: Mr,
    sink: Mr,
    reads: bool,
    posted: usize,
    completed: u64,
    target: u64,
}

impl Pair {
    /// Connects, moves some messages, and checks that every byte arrived.
    pub(crate) fn connect(case: &case::Rdma) -> Self {
        let end = |seed| End::with_depths(seed, 2 * WINDOW, WINDOW);
        let (device_a, device_b) = memory::pair(case.link.config());
        let configs = [A, B].map(PortConfig::for_ipv4);
        let mut ends = pair::Pair::new([end(1), end(2)], configs, [device_a, device_b]);
        let startup =
            StartupConfig { crc: case.crc, markers: case.markers, ..StartupConfig::default() };
        let depth = u16::try_from(WINDOW).expect("a small window");
        let offer = Offer { ird: depth, ord: depth, ..Offer::default() };
        let params = ConnectParams { startup, offer, ..ConnectParams::default() };
        ends.establish(&params, B.into(), &offer);
        let source = ends.a.pd.reg_mr(MEMORY_LEN, Access::LOCAL_WRITE).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let sink = ends.b.pd.reg_mr(MEMORY_LEN, access).expect("memory");
        let reads = case.reads;
        let mut pair = Self { ends, source, sink, reads, posted: 0, completed: 0, target: 0 };
        let expected = case::pattern();
        let (from, to) = if case.reads { (1, 0) } else { (0, 1) };
        [&pair.source, &pair.sink][from].copy_in(0, &expected);
        pair.advance(4 * WINDOW as u64);
        let mut arrived = vec![0; MEMORY_LEN];
        [&pair.source, &pair.sink][to].copy_out(0, &mut arrived);
        assert!(arrived == expected, "every byte arrives with {case:?}");
        pair
    }

    /// Continues until `messages` more have completed, with the window always full.
    pub(crate) fn advance(&mut self, messages: u64) {
        self.target += messages;
        loop {
            while let Some(wc) = self.ends.a.cq.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                self.completed += 1;
            }
            if self.completed >= self.target {
                return;
            }
            while (self.posted as u64) < self.completed + WINDOW as u64 {
                self.post();
            }
            assert!(self.ends.link.step(), "something is in flight");
        }
    }

    fn post(&mut self) {
        let id = WrId(self.posted as u64);
        let (remote, local) = (self.sink.remote(0), self.source.sge(0..MESSAGE_LEN));
        let wr = if self.reads {
            SendWr::read(id, remote, local)
        } else {
            SendWr::write(id, remote, [local])
        };
        self.ends.a.qp.post_send(wr).expect("the window fits the queue");
        self.posted += 1;
    }
}
