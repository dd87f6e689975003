//! No message waits for a timer: each operation completes at both ends before the clock advances.
//!
//! A timer would be that of a delayed or held acknowledgment, of pacing, or of a probe. The link has
//! no latency, so the clock of the pair advances only for timers.

use std::num::NonZeroUsize;

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, PortConfig};
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, RecvWr, SendOp, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::pair::{A, B, End, Pair, all_access, config};

const SIZES: [usize; 8] = [0, 1, 8, 64, 512, 4096, 9000, 100_000];
const LEN_MAX: usize = 100_000;
const COUNT_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    Send,
    Read,
    FetchAdd,
    WriteImmediate,
}

impl Op {
    const ALL: [Self; 5] =
        [Self::Write, Self::Send, Self::Read, Self::FetchAdd, Self::WriteImmediate];

    /// A request for `len` bytes of `local`, to or from `remote`.
    fn request(self, local: &Mr, remote: &Mr, len: usize) -> SendWr {
        let (id, to) = (WrId(0), remote.remote(0));
        match self {
            Self::Write => SendWr::write(id, to, [local.sge(0..len)]),
            Self::Send => SendWr::send(id, [local.sge(0..len)]),
            Self::Read => SendWr::read(id, to, local.sge(0..len)),
            Self::FetchAdd => SendWr::new(id, SendOp::FetchAdd { remote: to, add: 1, mask: 0 }, []),
            Self::WriteImmediate => {
                let op = SendOp::RdmaWriteImmediate { remote: to, immediate: 7, solicited: false };
                SendWr::new(id, op, [local.sge(0..len)])
            }
        }
    }

    fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImmediate)
    }
}

/// A pair in full operation, with memory at both ends.
struct Scene {
    pair: Pair<MemoryDevice>,
    local: Mr,
    remote: Mr,
}

impl Scene {
    fn new(link: LinkConfig, hold: Duration) -> Self {
        let ends = [1, 2].map(|seed| End::with_depths(seed, 256, 64));
        let configs = [A, B].map(|address| {
            let mut config: PortConfig = config(address);
            config.tcp.ack_hold = hold;
            config
        });
        let (a, b) = memory::pair(link);
        let mut pair = Pair::new(ends, configs, [a, b]);
        let startup = StartupConfig { immediates: true, ..StartupConfig::default() };
        let offer = Offer { private_data: b"", ird: 16, ord: 16 };
        let params = ConnectParams { startup, offer, ..ConnectParams::default() };
        pair.establish(&params, B.into(), &offer);
        let access = all_access() | Access::FOR_ATOMIC;
        let local = pair.a.pd.reg_mr(LEN_MAX, access).unwrap();
        let remote = pair.b.pd.reg_mr(LEN_MAX, access).unwrap();
        let mut scene = Self { pair, local, remote };
        // The first segments of a connection are acknowledged one by one.
        for _ in 0..20 {
            for op in [Op::Write, Op::Read] {
                scene.post(op, 8, 1);
                scene.rest();
                assert!(scene.pair.a.cq.poll().is_some());
            }
        }
        scene
    }

    fn post(&self, op: Op, len: usize, count: usize) {
        let Self { pair, local, remote } = self;
        for _ in 0..count {
            if op.takes_receive() {
                let receive = RecvWr::new(WrId(1), [remote.sge(0..LEN_MAX)]);
                pair.b.qp.post_recv(receive).unwrap();
            }
        }
        for _ in 0..count {
            pair.a.qp.post_send(op.request(local, remote, len)).unwrap();
        }
    }

    /// Runs until the link is idle.
    fn rest(&mut self) {
        self.pair.run_for(Duration::from_secs(10), |_| false);
    }

    /// Polls both ends until nothing moves. Returns the completions at both ends.
    fn complete_at_once(&mut self) -> [usize; 2] {
        let link = &mut self.pair.link;
        let now = link.now();
        while link.a.poll(now) + link.b.poll(now) > 0 {}
        [&self.pair.a.cq, &self.pair.b.cq].map(|cq| {
            std::iter::from_fn(|| cq.poll())
                .inspect(|wc| assert_eq!(wc.status, WcStatus::Success))
                .count()
        })
    }
}

#[test]
fn no_operation_waits_for_a_timer_at_either_end() {
    let super_frames = NonZeroUsize::new(65_000);
    for mtu in [1500, 9000] {
        for super_frame_len_max in [None, super_frames] {
            for hold in [Duration::ZERO, Duration::from_micros(25)] {
                let tx_checksum = super_frame_len_max.is_some();
                let link = LinkConfig {
                    mtu,
                    super_frame_len_max,
                    tx_checksum,
                    queue_frames: 4096,
                    ..LinkConfig::default()
                };
                let mut scene = Scene::new(link, hold);
                for op in Op::ALL {
                    let sizes = if op == Op::FetchAdd { &[8][..] } else { &SIZES };
                    for &len in sizes {
                        for count in [1, 2, 4, COUNT_MAX] {
                            scene.post(op, len, count);
                            let received = if op.takes_receive() { count } else { 0 };
                            assert_eq!(
                                scene.complete_at_once(),
                                [count, received],
                                "{count} of {op:?} with {len} bytes, hold {hold:?}, {link:?}"
                            );
                            scene.rest();
                        }
                    }
                }
            }
        }
    }
}
