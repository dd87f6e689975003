//! An endpoint: one interface with its connections, as application threads see it.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};
use rustix::thread::{CpuSet, sched_setaffinity};
use urnic_netdev::Device;

use crate::driver::clock::monotonic_now;
use crate::driver::command::{Command, ConnectionKey};
use crate::driver::connection::{Connecting, Listener};
use crate::driver::engine::Engine;
use crate::driver::kernel::KernelEngine;
use crate::driver::port_engine::PortEngine;
use crate::driver::wakeup::Wakeup;
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
    /// Core to pin the endpoint's thread to.
    pub core: Option<usize>,
}

impl Default for EndpointConfig {
    /// A thread of its own that looks for work for 50 µs, on any core.
    fn default() -> Self {
        Self { own_thread: true, spin: Duration::from_micros(50), core: None }
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

/// The way from handles to their worker.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    commands: Sender<Command>,
    wakeup: Arc<Wakeup>,
    key_next: Arc<AtomicU64>,
    /// How long to look before sleeping.
    spin: Duration,
    /// The worker, when it has no thread of its own.
    in_thread: Option<Arc<Mutex<Option<Worker>>>>,
}

impl Link {
    pub(crate) fn next_key(&self) -> ConnectionKey {
        ConnectionKey(self.key_next.fetch_add(1, Ordering::Relaxed))
    }

    /// Hands a request to the worker.
    pub(crate) fn send(&self, command: Command) -> Result<(), EndpointError> {
        self.commands.send(command).map_err(|_| EndpointError::Down)?;
        self.wakeup.ring();
        Ok(())
    }

    /// Waits for a message, turning the worker meanwhile if nobody else does.
    pub(crate) fn receive<T>(
        &self,
        from: &Receiver<T>,
        timeout: Option<Duration>,
    ) -> Result<T, EndpointError> {
        let deadline = timeout.map(|timeout| monotonic_now() + timeout);
        let Some(worker) = &self.in_thread else {
            let received = match timeout {
                Some(timeout) => from.recv_timeout(timeout),
                None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            return received.map_err(|error| match error {
                RecvTimeoutError::Timeout => EndpointError::Timeout,
                RecvTimeoutError::Disconnected => EndpointError::Down,
            });
        };
        loop {
            match from.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(EndpointError::Down),
                Err(TryRecvError::Empty) => {}
            }
            if deadline.is_some_and(|deadline| monotonic_now() >= deadline) {
                return Err(EndpointError::Timeout);
            }
            turn(worker, deadline)?;
        }
    }

    /// Waits for a completion, turning the worker meanwhile if nobody else does.
    fn wait(&self, cq: &Cq, timeout: Duration) -> Result<Option<Wc>, EndpointError> {
        let started = monotonic_now();
        let deadline = started + timeout;
        loop {
            if let Some(wc) = cq.poll() {
                return Ok(Some(wc));
            }
            if let Some(worker) = &self.in_thread {
                turn(worker, Some(deadline))?;
            }
            let now = monotonic_now();
            if now >= deadline {
                return Ok(cq.poll());
            }
            if self.in_thread.is_some() || now - started < self.spin {
                // Lets a worker that shares this core go on.
                thread::yield_now();
            } else {
                UNPARK.with(|waker| cq.req_notify(waker));
                // What came before the request is not announced.
                if cq.is_empty() {
                    thread::park_timeout(deadline - now);
                }
            }
        }
    }
}

/// Ends a [`thread::park`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Wakes the thread it is made in, when that waits for a completion.
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Turns a worker without a thread, or waits a little for the thread that does it just now.
fn turn(worker: &Mutex<Option<Worker>>, deadline: Option<Instant>) -> Result<(), EndpointError> {
    let mut guard = match worker.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(_)) => return Err(EndpointError::Down),
        Err(TryLockError::WouldBlock) => {
            thread::yield_now();
            return Ok(());
        }
    };
    guard.as_mut().ok_or(EndpointError::Down)?.turn_or_wait(deadline);
    Ok(())
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
    link: Link,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// An endpoint over the kernel's TCP sockets: layered (RFC 5044 §5), on all the machine's
    /// addresses, without any privilege.
    ///
    /// # Errors
    /// When the process may not open more descriptors or threads.
    pub fn kernel(rnic: &Rnic, config: &EndpointConfig) -> io::Result<Self> {
        Self::start(config, |link| Ok(Box::new(KernelEngine::new(rnic, link)?)))
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
        Self::start(config, |link| Ok(Box::new(PortEngine::new(port, device, link))))
    }

    fn start(
        config: &EndpointConfig,
        engine: impl FnOnce(Link) -> io::Result<Box<dyn Engine>>,
    ) -> io::Result<Self> {
        let (sender, commands) = unbounded();
        let wakeup = Wakeup::new()?;
        let in_thread = (!config.own_thread).then(|| Arc::new(Mutex::new(None)));
        let key_next = Arc::new(AtomicU64::new(0));
        let (spin, for_worker) = (config.spin, Arc::clone(&wakeup));
        let link = Link { commands: sender, wakeup, key_next, spin, in_thread };
        let engine = engine(link.clone())?;
        let worker = Worker::new(engine, commands, for_worker, spin);
        let thread = match &link.in_thread {
            Some(place) => {
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
                None
            }
            None => Some(spawn(worker, config.core)?),
        };
        Ok(Self { link, thread })
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
        let key = self.link.next_key();
        let (notices, notices_rx) = unbounded();
        let (qp, options) = (qp.clone(), Box::new(options.clone()));
        self.link.send(Command::Connect { key, remote, qp, options, notices })?;
        Ok(Connecting::new(self.link.clone(), key, remote, notices_rx))
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
        let (reply, reply_rx) = bounded(1);
        self.link.send(Command::Listen { local, params, requests, reply })?;
        let local = self.link.receive(&reply_rx, None)??;
        Ok(Listener::new(self.link.clone(), local, requests_rx))
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
            None => self.link.wait(cq, timeout),
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
        let Some(worker) = &self.link.in_thread else { return Ok(()) };
        let deadline = if timeout.is_zero() { Instant::ZERO } else { monotonic_now() + timeout };
        turn(worker, Some(deadline))
    }

    /// Frames dropped before any connection saw them. What an endpoint over the kernel's TCP drops
    /// is the kernel's business: all zero.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn drops(&self) -> Result<PortDrops, EndpointError> {
        let (reply, reply_rx) = bounded(1);
        self.link.send(Command::Drops { reply })?;
        self.link.receive(&reply_rx, None)
    }

    /// Ends the sleep of [`turn`](Self::turn), from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.link.wakeup))
    }

    /// Lets an endpoint without a thread work for `time` at most, or until it has nothing to do for
    /// as long as its spin time; with a thread, sleeps for `time`.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn run_for(&self, time: Duration) -> Result<(), EndpointError> {
        let (_keeps_it_open, nothing) = bounded::<()>(0);
        match self.link.receive(&nothing, Some(time)) {
            Err(EndpointError::Timeout) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A worker that is gone has ended its connections.
        let _gone = self.link.send(Command::Shutdown);
        if let Some(place) = &self.link.in_thread {
            let worker = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(worker) = worker {
                worker.run();
            }
        }
        if let Some(thread) = self.thread.take() {
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
