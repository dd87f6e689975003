//! Both ends of a queue, with a connection between them over which messages are moved.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::{ConnectParams, Port, PortConfig};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, Pd, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::Device;
use urnic_netdev::memory::{self, LinkConfig};
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use urnic_testkit::pair::{A, B, End, Pair, all_access, pattern};

use crate::case::{Case, Layout, Link, Operation};

/// Both ends of a queue, turned by one thread.
pub(crate) struct Flow {
    ends: Pair<AnyDevice>,
    source: Arc<Mr>,
    sink: Arc<Mr>,
    /// Start of this queue's part of the memory.
    offset: usize,
    case: Case,
    posted: u64,
    completed: u64,
}

type AnyDevice = Box<dyn Device + Send>;

/// Objects of one end, which its queues are made of.
struct Host {
    rnic: Rnic,
    /// A domain and its memory for each queue, or one for all of them.
    memory: Vec<(Pd, Arc<Mr>)>,
}

impl Host {
    fn new(seed: u64, queues: usize, case: &Case, layout: Layout) -> Result<Self> {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let parts = if layout == Layout::OneMr { queues } else { 1 };
        let memory = (0..queues / parts)
            .map(|_| {
                let pd = rnic.alloc_pd();
                let mr = Arc::new(pd.reg_mr(parts * case.message_len, all_access())?);
                Ok((pd, mr))
            })
            .collect::<Result<_>>()?;
        Ok(Self { rnic, memory })
    }

    /// The memory of a queue.
    fn memory(&self, queue: usize) -> &(Pd, Arc<Mr>) {
        &self.memory[queue % self.memory.len()]
    }

    fn end(&self, queue: usize, window: usize) -> Result<End> {
        let (pd, cq) = (self.memory(queue).0.clone(), self.rnic.create_cq(2 * window)?);
        let config = QpConfig { send_depth: window, recv_depth: window, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config)?;
        Ok(End { rnic: self.rnic.clone(), pd, cq, qp, connection: None, events: Vec::new() })
    }
}

impl Flow {
    /// Returns `count` queues of one interface. All queue pairs are made first, as most
    /// applications do.
    pub(crate) fn queues(case: &Case, layout: Layout, count: usize) -> Result<Vec<Self>> {
        let [a, b] = [Host::new(1, count, case, layout)?, Host::new(2, count, case, layout)?];
        let ends = |host: &Host| -> Result<Vec<_>> {
            (0..count).map(|queue| host.end(queue, case.window)).collect()
        };
        let ends = ends(&a)?.into_iter().zip(ends(&b)?);
        let links = devices(case.link, count)?;
        let mut flows: Vec<_> = ends
            .zip(links)
            .enumerate()
            .map(|(queue, ((near, far), devices))| Self {
                ends: Pair::new([near, far], [A, B].map(PortConfig::for_ipv4), devices),
                source: Arc::clone(&a.memory(queue).1),
                sink: Arc::clone(&b.memory(queue).1),
                offset: if layout == Layout::OneMr { queue * case.message_len } else { 0 },
                case: *case,
                posted: 0,
                completed: 0,
            })
            .collect();
        let links = flows.iter_mut().map(|flow| &mut flow.ends.link);
        let ports = links.map(|link| (&mut link.a.port, &mut link.b.port));
        let (mut a, mut b): (Vec<_>, Vec<_>) = ports.unzip();
        Port::join(&mut a)?;
        Port::join(&mut b)?;
        Ok(flows)
    }

    /// Connects its ends, moves some messages, and checks that every byte arrives.
    pub(crate) fn connect(&mut self) -> Result<()> {
        let depth = u16::try_from(self.case.window)?;
        let offer = Offer { ird: depth, ord: depth, ..Offer::default() };
        let params = ConnectParams { offer, ..ConnectParams::default() };
        self.ends.establish(&params, B.into(), &offer);
        let (from, to) = match self.case.operation {
            Operation::Write => (&self.source, &self.sink),
            Operation::Read => (&self.sink, &self.source),
        };
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        let octets = pattern(7, self.case.message_len);
        from.copy_in(self.offset, &octets);
        self.advance(4 * self.case.window as u64)?;
        let mut arrived = vec![0; octets.len()];
        to.copy_out(self.offset, &mut arrived);
        ensure!(arrived == octets, "not every byte arrives with {:?}", self.case);
        Ok(())
    }

    /// Continues until `messages` more have completed, with the window always full.
    pub(crate) fn advance(&mut self, messages: u64) -> Result<()> {
        let target = self.completed + messages;
        loop {
            while let Some(wc) = self.ends.a.cq.poll() {
                ensure!(wc.status == WcStatus::Success, "{wc:?}");
                self.completed += 1;
            }
            if self.completed >= target {
                return Ok(());
            }
            while self.posted < self.completed + self.case.window as u64 {
                self.post()?;
            }
            ensure!(self.ends.link.step(), "the link is silent");
        }
    }

    fn post(&mut self) -> Result<()> {
        let (id, end) = (WrId(self.posted), self.offset + self.case.message_len);
        let local = self.source.sge(self.offset..end);
        let remote = self.sink.remote(self.offset as u64);
        let wr = match self.case.operation {
            Operation::Write => SendWr::write(id, remote, [local]),
            Operation::Read => SendWr::read(id, remote, local),
        };
        self.ends.a.qp.post_send(wr).context("the window fits the queue")?;
        self.posted += 1;
        Ok(())
    }
}

/// The devices at both ends of each queue.
fn devices(link: Link, queues: usize) -> Result<Vec<[AnyDevice; 2]>> {
    match link {
        Link::Memory => Ok((0..queues).map(|_| memory_link()).collect()),
        Link::VhostUser => vhost_user(queues),
    }
}

fn memory_link() -> [AnyDevice; 2] {
    // Without TCP checksums, as between the ends of a vhost-user device.
    let config = LinkConfig { tx_checksum: true, ..LinkConfig::default() };
    let (a, b) = memory::pair(config);
    [Box::new(a), Box::new(b)]
}

/// Frontend and backend of one vhost-user device.
fn vhost_user(queues: usize) -> Result<Vec<[AnyDevice; 2]>> {
    let folder = TempDir::new()?;
    let path = folder.path().join("socket");
    let mut backends = VhostUser::open_queues(&VhostUserConfig::backend(path.clone()), queues)?;
    let config = VhostUserConfig::frontend(path);
    let opening = thread::spawn(move || VirtioUser::open_queues(&config, queues));
    let mut now_ns = 0;
    while !(opening.is_finished() && backends.iter().all(Device::link_up)) {
        // The interval at which the first one checks the socket.
        now_ns += 10_000_000;
        for backend in &mut backends {
            backend.receive(now_ns, 1, &mut |_| ());
        }
        thread::yield_now();
    }
    let frontends = opening.join().expect("it does not panic")?;
    let pairs = frontends.into_iter().zip(backends);
    Ok(pairs.map(|(a, b)| [Box::new(a) as AnyDevice, Box::new(b)]).collect())
}
