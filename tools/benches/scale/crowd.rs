//! Two ports in memory with any number of connections between them.

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use urnic_engine::limits::{CONNECTIONS_USUAL, CQ_DEPTH_MAX};
use urnic_engine::mem::Access;
use urnic_engine::poll::Lockstep;
use urnic_engine::port::PortConfig;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::closing::Closing;
use urnic_testkit::counting::live_bytes;
use urnic_testkit::crowd;
use urnic_testkit::pair::{A, B, config, poller_of};

/// Bytes of a message.
const MESSAGE_LEN: usize = 64;
/// Connections that are closed before TIME-WAIT connections are counted.
const BEFORE: usize = 128;
/// Entries of a send queue and of a receive queue.
const DEPTH: usize = 16;

/// Objects of one end.
struct End {
    rnic: Rnic,
    cq: Cq,
    qps: Vec<Qp>,
    memory: Mr,
}

impl End {
    fn new(seed: u64, count: usize) -> Result<Self> {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq((DEPTH * count).min(CQ_DEPTH_MAX))?);
        let qp = || {
            pd.create_qp(QpConfig { send_depth: DEPTH, recv_depth: DEPTH, ..QpConfig::new(&cq) })
        };
        let qps = (0..count).map(|_| qp()).collect::<Result<_, _>>()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = pd.reg_mr(MESSAGE_LEN * count, access)?;
        Ok(Self { rnic, cq, qps, memory })
    }
}

/// Connections in full operation.
pub(crate) struct Crowd {
    link: Lockstep<MemoryDevice, MemoryDevice>,
    a: End,
    b: End,
    pub(crate) cost: Cost,
    /// The next connection to send.
    next: usize,
}

/// Cost of connections, at one end.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cost {
    /// Heap bytes of a queue pair that is not connected.
    pub(crate) qp_bytes: f64,
    /// Heap bytes that an idle connection adds.
    pub(crate) idle_bytes: f64,
    /// Heap bytes of a connection in TIME-WAIT.
    pub(crate) time_wait_bytes: f64,
    /// Connections opened in a second of processor time, which includes the work of both ends.
    pub(crate) opened_per_second: f64,
}

/// Returns the processor time of this thread in seconds.
fn on_processor() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the heap bytes of each of `count` connections in TIME-WAIT, including the tables of the
/// port.
fn time_wait_bytes(count: usize) -> f64 {
    let mut closing = Closing::new(count);
    // The buffers of the ports and of the link grow with the first connections only.
    closing.open_and_close(BEFORE);
    let rest = closing.link.now() + Duration::from_secs(100);
    closing.link.run_until(rest, |_| false);
    let before = live_bytes();
    closing.open_and_close(count);
    (live_bytes() - before) as f64 / count as f64
}

impl Crowd {
    /// Opens `count` connections.
    pub(crate) fn open(count: usize) -> Result<Self> {
        let before = live_bytes();
        let (a, b) = (End::new(1, count)?, End::new(2, count)?);
        let each = |octets: i64| octets as f64 / 2.0 / count as f64;
        let qp_bytes = each(live_bytes() - before);
        let (device_a, device_b) = memory::pair(LinkConfig::default());
        let of = |address| {
            let connections_max = CONNECTIONS_USUAL.max(count);
            PortConfig { connections_max, ..config(address) }
        };
        let (port_a, port_b) = (of(A), of(B));
        let link = Lockstep::new(
            poller_of(&a.rnic, port_a, device_a),
            poller_of(&b.rnic, port_b, device_b),
        );
        let time_wait_bytes = time_wait_bytes(count);
        let cost = Cost { qp_bytes, idle_bytes: 0.0, time_wait_bytes, opened_per_second: 0.0 };
        let mut crowd = Self { link, a, b, cost, next: 0 };
        let (before, began) = (live_bytes(), on_processor());
        crowd::connect(&mut crowd.link, [&crowd.a.qps, &crowd.b.qps]);
        crowd.cost.opened_per_second = count as f64 / (on_processor() - began);
        // Objects that were needed only to open the connections are freed.
        let rest = crowd.link.now() + Duration::from_secs(10);
        crowd.link.run_until(rest, |_| false);
        crowd.cost.idle_bytes = each(live_bytes() - before);
        Ok(crowd)
    }

    /// Sends messages over all connections in turn, `under_way` in flight at a time; returns the
    /// messages per second of processor time.
    pub(crate) fn messages(&mut self, count: usize, under_way: usize) -> Result<f64> {
        let began = on_processor();
        let (mut posted, mut completed) = (0, 0);
        while completed < count {
            while posted < count && posted - completed < under_way {
                let index = self.next;
                self.next = (self.next + 1) % self.a.qps.len();
                let offset = index * MESSAGE_LEN;
                let local = self.a.memory.sge(offset..offset + MESSAGE_LEN);
                let remote = self.b.memory.remote(offset as u64);
                let wr = SendWr::write(WrId(index as u64), remote, [local]);
                self.a.qps[index].post_send(wr).context("a send queue is full")?;
                posted += 1;
            }
            ensure!(self.link.step(), "the link is silent");
            while let Some(wc) = self.a.cq.poll() {
                ensure!(wc.status == WcStatus::Success, "{wc:?}");
                completed += 1;
            }
        }
        Ok(count as f64 / (on_processor() - began))
    }
}
