//! An endpoint: one interface with its connections, as application threads see it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};

use crossbeam::channel::{bounded, unbounded};
use rustix::thread::{CpuSet, sched_setaffinity};
use urnic_netdev::Device;

use crate::driver::clock::monotonic_now;
use crate::driver::command::Command;
use crate::driver::connection::{Connecting, Listener};
use crate::driver::engine::Engine;
use crate::driver::events::{EndpointEvent, EventFeed};
use crate::driver::kernel::KernelEngine;
use crate::driver::link::{Link, Mailbox, turn};
use crate::driver::port_engine::PortEngine;
use crate::driver::queues::Queues;
use crate::driver::siblings::Siblings;
use crate::driver::worker::Worker;
use crate::limits::CONNECT_REQUESTS_MAX;
use crate::mpa::startup::{Offer, Rejection, StartupConfig};
use crate::port::{ListenParams, LowerLayer, Port, PortDrops, PortError};
use crate::stream::{PhaseError, StartupFailure};
use crate::time::{Duration, Instant};
use crate::verbs::{Cq, Qp, Rnic, Wc};

/// How an endpoint's worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Whether a thread of its own turns the endpoint. Otherwise the threads that wait for
    /// something (a completion, a connection) turn it meanwhile, and nothing happens while none
    /// does: the fewest hand-overs, so the lowest latency, for programs that are always waiting.
    pub own_thread: bool,
    /// How long to look for work before sleeping. Longer answers sooner, at the price of a busy
    /// core.
    pub spin: Duration,
    /// Core to pin the endpoint's thread to; those of further queues go on the cores after it.
    pub core: Option<usize>,
    /// How long data may stay unacknowledged before a connection over the kernel's TCP is given up
    /// (R2 of RFC 9293 §3.8.3). That of an engine is in [`PortConfig::tcp`](crate::port::PortConfig).
    pub user_timeout: Duration,
    /// How long an acknowledgment may wait for the rest of a burst, at least, on a device: see
    /// [`tcp::Config::ack_hold`](crate::tcp::Config::ack_hold). A segment that only acknowledges
    /// costs both ends and all between as much as one with data.
    pub ack_hold: Duration,
}

impl Default for EndpointConfig {
    /// A thread of its own that looks for work for 50 µs, on any core; peers have 100 s to answer;
    /// acknowledgments wait for 25 µs.
    fn default() -> Self {
        Self {
            own_thread: true,
            spin: Duration::from_micros(50),
            core: None,
            user_timeout: Duration::from_secs(100),
            ack_hold: Duration::from_micros(25),
        }
    }
}

/// What a connection is opened with.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// MPA settings.
    pub startup: StartupConfig,
    /// Private Data for the peer's application: at most 512 octets, 508 with RFC 6581.
    pub private_data: Vec<u8>,
    /// Inbound RDMA Reads and Atomics to accept at a time.
    pub ird: u16,
    /// Outbound RDMA Reads and Atomics wanted open at a time.
    pub ord: u16,
    /// How MPA uses TCP. Kernel sockets are always layered.
    pub lower_layer: LowerLayer,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            startup: StartupConfig::default(),
            private_data: Vec::new(),
            ird: READ_DEPTH,
            ord: READ_DEPTH,
            lower_layer: LowerLayer::default(),
        }
    }
}

impl ConnectOptions {
    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer { private_data: &self.private_data, ird: self.ird, ord: self.ord }
    }
}

/// Reads and Atomics open at a time unless told otherwise.
const READ_DEPTH: u16 = 16;

/// Why something could not be done with an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It did not happen in the time given.
    #[error("timed out")]
    Timeout,
    /// TCP could not connect, or listen.
    #[error("TCP: {}", io::Error::from(*.0))]
    Io(io::ErrorKind),
    /// The peer refused to start RDMA.
    #[error("the peer rejected the connection")]
    Rejected(Rejection),
    /// MPA could not be started.
    #[error("MPA startup failed: {0}")]
    Startup(StartupFailure),
    /// The port refused.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The call does not fit what the connection is doing.
    #[error(transparent)]
    Phase(#[from] PhaseError),
    /// The connection is over.
    #[error("the connection is over")]
    Closed,
    /// The endpoint has been shut down.
    #[error("the endpoint has been shut down")]
    Down,
}

/// One interface with its connections: a port on its device, or the kernel's TCP.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use urnic::driver::{ConnectOptions, Endpoint, EndpointConfig, random_seed};
/// use urnic::verbs::{QpConfig, Rnic, RnicConfig};
///
/// let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
/// let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default())?;
/// let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64));
/// let (send_cq, recv_cq) = (cq.clone(), cq.clone());
/// let qp = pd.create_qp(QpConfig { send_cq, recv_cq, send_depth: 32, recv_depth: 32 })?;
/// let connecting = endpoint.connect("192.0.2.1:7174".parse()?, &qp, &ConnectOptions::default())?;
/// let connection = connecting.wait(Duration::from_secs(10))?;
/// // … qp.post_send(…), endpoint.wait(&cq, …) …
/// connection.disconnect();
/// # Ok(())
/// # }
/// ```
///
/// Dropping an endpoint ends its connections and its thread.
#[derive(Debug)]
pub struct Endpoint {
    /// One for each worker: at least one.
    links: Vec<Link>,
    threads: Vec<JoinHandle<()>>,
    /// Which worker opens the next connection.
    next: AtomicUsize,
    feed: EventFeed,
}

impl Endpoint {
    /// An endpoint over the kernel's TCP sockets: layered (RFC 5044 §5), on all the machine's
    /// addresses, without any privilege.
    ///
    /// # Errors
    /// When the process may not open more descriptors or threads.
    pub fn kernel(rnic: &Rnic, config: &EndpointConfig) -> io::Result<Self> {
        let mailbox = Mailbox::new(config)?;
        let engine = KernelEngine::new(rnic, mailbox.link.clone(), config.user_timeout)?;
        let mut endpoint = Self::without_workers(EventFeed::new());
        endpoint.start(config, mailbox, Box::new(engine))?;
        Ok(endpoint)
    }

    /// An endpoint of a port on the device that the port was made for.
    ///
    /// # Errors
    /// When the process may not open more descriptors or threads.
    pub fn port<D: Device + Send + 'static>(
        port: Port,
        device: D,
        config: &EndpointConfig,
    ) -> io::Result<Self> {
        Self::ports(vec![(port, device)], config)
    }

    /// An endpoint of several queues of one interface, each with a port made for it. The ports are
    /// one station ([`Port::join`]); each is turned by a thread of its own, on the core after that
    /// of the one before if cores are asked for, or all by the threads that wait.
    ///
    /// Connections opened here take turns among the queues. One that a peer opens is served at the
    /// queue at which its SYN arrives.
    ///
    /// # Errors
    /// When there is no port or the ports are not one station ([`io::ErrorKind::InvalidInput`]), and
    /// when the process may not open more descriptors or threads.
    pub fn ports<D: Device + Send + 'static>(
        mut queues: Vec<(Port, D)>,
        config: &EndpointConfig,
    ) -> io::Result<Self> {
        let mut ports: Vec<_> = queues.iter_mut().map(|(port, _)| port).collect();
        let joined = Port::join(&mut ports);
        joined.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        if queues.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let workers = if config.own_thread { queues.len() } else { 1 };
        let mailboxes: Vec<_> =
            (0..workers).map(|_| Mailbox::new(config)).collect::<io::Result<_>>()?;
        let link_of = |queue: usize| &mailboxes[queue % workers].link;
        let wakeups: Vec<_> =
            (0..queues.len()).map(|queue| Arc::clone(&link_of(queue).wakeup)).collect();
        let alone = queues.len() == 1;
        let mut endpoint = Self::without_workers(EventFeed::new());
        let mut engines = Vec::with_capacity(queues.len());
        let places = Siblings::among(&wakeups).into_iter().enumerate();
        for ((mut port, device), (queue, siblings)) in queues.into_iter().zip(places) {
            port.hold_acks(config.ack_hold);
            let feed = (queue == 0).then(|| endpoint.feed.clone());
            let engine = PortEngine::new(port, device, link_of(queue).clone(), feed);
            engines.push(if alone { engine } else { engine.with_siblings(siblings) });
        }
        if config.own_thread || alone {
            for (mailbox, engine) in mailboxes.into_iter().zip(engines) {
                endpoint.start(config, mailbox, Box::new(engine))?;
            }
        } else {
            for mailbox in mailboxes {
                let all = std::mem::take(&mut engines);
                endpoint.start(config, mailbox, Box::new(Queues::new(all)))?;
            }
        }
        Ok(endpoint)
    }

    const fn without_workers(feed: EventFeed) -> Self {
        Self { links: Vec::new(), threads: Vec::new(), next: AtomicUsize::new(0), feed }
    }

    /// Adds a worker for `engine`. When that fails, dropping the endpoint ends those before.
    fn start(
        &mut self,
        config: &EndpointConfig,
        mailbox: Mailbox,
        engine: Box<dyn Engine>,
    ) -> io::Result<()> {
        let Mailbox { link, commands } = mailbox;
        let worker = Worker::new(engine, commands, Arc::clone(&link.wakeup), link.spin);
        match &link.in_thread {
            Some(place) => {
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
            }
            None => {
                let core = config.core.map(|core| core + self.threads.len());
                self.threads.push(spawn(worker, core)?);
            }
        }
        self.links.push(link);
        Ok(())
    }

    /// The worker that answers for the whole endpoint.
    fn first(&self) -> &Link {
        &self.links[0]
    }

    /// Starts a connection to `remote` with `qp`. Returns at once; [`Connecting::wait`] waits.
    ///
    /// # Errors
    /// [`EndpointError::Down`]. All else is told by [`Connecting::wait`].
    pub fn connect(
        &self,
        remote: SocketAddr,
        qp: &Qp,
        options: &ConnectOptions,
    ) -> Result<Connecting, EndpointError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let link = &self.links[turn % self.links.len()];
        let key = link.next_key();
        let (notices, notices_rx) = unbounded();
        let (qp, options) = (qp.clone(), Box::new(options.clone()));
        link.send(Command::Connect { key, remote, qp, options, notices })?;
        Ok(Connecting::new(link.clone(), key, remote, notices_rx))
    }

    /// Waits for connections at `local`. TCP port 0 lets the endpoint choose one.
    ///
    /// # Errors
    /// When the address is not the endpoint's, or its TCP port is taken.
    pub fn listen(
        &self,
        local: SocketAddr,
        params: ListenParams,
    ) -> Result<Listener, EndpointError> {
        let (requests, requests_rx) = bounded(CONNECT_REQUESTS_MAX);
        let mut local = local;
        // The first worker chooses the TCP port if that is left open; the others take the same. A
        // listener that is dropped for a refusal ends those before.
        let mut listening = Vec::with_capacity(self.links.len());
        for link in &self.links {
            let (reply, reply_rx) = bounded(1);
            let (params, requests) = (params.clone(), requests.clone());
            let asked = link.send(Command::Listen { local, params, requests, reply });
            match asked.and_then(|()| link.receive(&reply_rx, None)?) {
                Ok(chosen) => local = chosen,
                Err(error) => {
                    drop(Listener::new(listening, local, requests_rx));
                    return Err(error);
                }
            }
            listening.push(link.clone());
        }
        Ok(Listener::new(listening, local, requests_rx))
    }

    /// Waits until the endpoint has an IPv4 address, at once if it was given one, else from DHCP
    /// ([`PortConfig::dhcp`](crate::port::PortConfig::dhcp)). Over the kernel's TCP that is
    /// 0.0.0.0: all addresses of the machine.
    ///
    /// # Errors
    /// [`EndpointError::Timeout`], [`EndpointError::Down`].
    pub fn wait_address(&self, timeout: Duration) -> Result<IpAddr, EndpointError> {
        let (reply, reply_rx) = bounded(1);
        let until = monotonic_now() + timeout;
        self.first().send(Command::AwaitAddress { until, reply })?;
        self.first().receive(&reply_rx, Some(timeout))
    }

    /// Takes the oldest event of the endpoint's interface, waiting for one for at most `timeout`;
    /// `Ok(None)` when none came. Of events that nobody takes, the last
    /// [`ENDPOINT_EVENTS_MAX`](crate::limits::ENDPOINT_EVENTS_MAX) are kept. Over the kernel's TCP
    /// there are none.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<EndpointEvent>, EndpointError> {
        match self.first().receive(self.feed.receiver(), Some(timeout)) {
            Ok(event) => Ok(Some(event)),
            Err(EndpointError::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the oldest completion of `cq`, waiting for one for at most `timeout`; `Ok(None)` when
    /// none came.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    #[inline]
    pub fn wait(&self, cq: &Cq, timeout: Duration) -> Result<Option<Wc>, EndpointError> {
        match cq.poll() {
            Some(wc) => Ok(Some(wc)),
            None => self.first().wait(cq, timeout),
        }
    }

    /// Lets an endpoint without a thread work once; when there has been nothing to do for as long as
    /// its spin time, sleeps until there is, for at most `timeout`. With a zero `timeout` it never
    /// sleeps. For programs that look at several queues, or at their own memory, between turns.
    ///
    /// With a thread of its own there is nothing to be done here.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    #[inline]
    pub fn turn(&self, timeout: Duration) -> Result<(), EndpointError> {
        let Some(worker) = &self.first().in_thread else { return Ok(()) };
        let deadline = if timeout.is_zero() { Instant::ZERO } else { monotonic_now() + timeout };
        turn(worker, Some(deadline))
    }

    /// Frames dropped before any connection saw them. What an endpoint over the kernel's TCP drops
    /// is the kernel's business: all zero.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn drops(&self) -> Result<PortDrops, EndpointError> {
        let mut sum = PortDrops::default();
        for link in &self.links {
            let (reply, reply_rx) = bounded(1);
            link.send(Command::Drops { reply })?;
            sum += link.receive(&reply_rx, None)?;
        }
        Ok(sum)
    }

    /// Ends the sleep of [`turn`](Self::turn), from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.first().wakeup))
    }

    /// Lets an endpoint without a thread work for `time` at most, or until it has nothing to do for
    /// as long as its spin time; with a thread, sleeps for `time`.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn run_for(&self, time: Duration) -> Result<(), EndpointError> {
        let (_keeps_it_open, nothing) = bounded::<()>(0);
        match self.first().receive(&nothing, Some(time)) {
            Err(EndpointError::Timeout) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for link in &self.links {
            // A worker that is gone has ended its connections.
            let _gone = link.send(Command::Shutdown);
            if let Some(place) = &link.in_thread {
                let worker = place.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(worker) = worker {
                    worker.run();
                }
            }
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so itself.
            let _panicked = thread.join();
        }
    }
}

fn spawn(worker: Worker, core: Option<usize>) -> io::Result<JoinHandle<()>> {
    let (ready, ready_rx) = bounded(1);
    let body = move || {
        let pinned = core.map_or(Ok(()), |core| {
            let mut set = CpuSet::new();
            if core >= CpuSet::MAX_CPU {
                return Err(io::Error::from(io::ErrorKind::InvalidInput));
            }
            set.set(core);
            sched_setaffinity(None, &set).map_err(io::Error::from)
        });
        let runs = pinned.is_ok();
        if ready.send(pinned).is_ok() && runs {
            worker.run();
        }
    };
    let thread = thread::Builder::new().name("urnic-port".to_owned()).spawn(body)?;
    ready_rx.recv().map_err(io::Error::other)??;
    Ok(thread)
}
