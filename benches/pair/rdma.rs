//! urnic's side: a stream of messages between two ports.

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, PortConfig};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, RecvWr, SendWr, WcStatus};
use urnic_netdev::memory::{self, MemoryDevice};
use urnic_testkit::pair::{self, A, B, End};

use crate::case::{self, Op};

/// Two ports with a connection in full operation between them.
pub(crate) struct Pair {
    ends: pair::Pair<MemoryDevice>,
    source: Mr,
    sink: Mr,
    op: Op,
    message_len: usize,
    depth: usize,
    posted: usize,
    completed: u64,
    target: u64,
}

impl Pair {
    /// Connects, moves some messages, and checks that every byte arrived.
    pub(crate) fn connect(case: &case::Rdma) -> Self {
        let case::Rdma { op, message_len, depth, .. } = *case;
        let end = |seed| End::with_depths(seed, 2 * depth, depth);
        let (device_a, device_b) = memory::pair(case.link.config());
        let configs = [A, B].map(PortConfig::for_ipv4);
        let mut ends = pair::Pair::new([end(1), end(2)], configs, [device_a, device_b]);
        let startup =
            StartupConfig { crc: case.crc, markers: case.markers, ..StartupConfig::default() };
        let reads = u16::try_from(depth).expect("a small window");
        let offer = Offer { ird: reads, ord: reads, ..Offer::default() };
        let params = ConnectParams { startup, offer, ..ConnectParams::default() };
        ends.establish(&params, B.into(), &offer);
        let source = ends.a.pd.reg_mr(message_len, Access::LOCAL_WRITE).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let sink = ends.b.pd.reg_mr(message_len, access).expect("memory");
        let (posted, completed, target) = (0, 0, 0);
        let mut pair =
            Self { ends, source, sink, op, message_len, depth, posted, completed, target };
        if op == Op::Send {
            (0..depth).for_each(|_| pair.post_receive());
        }
        let expected = &case::pattern()[..message_len];
        let (from, to) = if op == Op::Read { (1, 0) } else { (0, 1) };
        [&pair.source, &pair.sink][from].copy_in(0, expected);
        pair.advance(4 * depth as u64);
        let mut arrived = vec![0; message_len];
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
            while let Some(wc) = self.ends.b.cq.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                self.post_receive();
            }
            if self.completed >= self.target {
                return;
            }
            while (self.posted as u64) < self.completed + self.depth as u64 {
                self.post();
            }
            assert!(self.ends.link.step(), "something is in flight");
        }
    }

    fn post(&mut self) {
        let id = WrId(self.posted as u64);
        let (remote, local) = (self.sink.remote(0), self.source.sge(0..self.message_len));
        let wr = match self.op {
            Op::Write => SendWr::write(id, remote, [local]),
            Op::Read => SendWr::read(id, remote, local),
            Op::Send => SendWr::send(id, [local]),
        };
        self.ends.a.qp.post_send(wr).expect("the window fits the queue");
        self.posted += 1;
    }

    fn post_receive(&self) {
        let local = self.sink.sge(0..self.message_len);
        self.ends.b.qp.post_recv(RecvWr::new(WrId(0), [local])).expect("room for each message");
    }
}
