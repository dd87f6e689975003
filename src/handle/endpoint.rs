//! An endpoint: one interface with its connections, for application threads.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};
use rustix::thread::{CpuSet, sched_setaffinity};
use tracing::info;
use urnic_netdev::Device;
use urnic_netdev::loopback::Loopback;

use crate::clock::monotonic_now;
use crate::config::{ConnectOptions, EndpointConfig};
use crate::error::Error;
use crate::handle::connecting::Connecting;
use crate::handle::link::{Alive, Mailbox, WorkerLink};
use crate::handle::listener::Listener;
use crate::handle::watch::Watch;
use crate::mail::channel::{limited, unlimited};
use crate::mail::command::Command;
use crate::mail::events::{EndpointEvent, EventFeed};
use crate::worker::Worker;
use crate::worker::engine::Engine;
use crate::worker::kernel::KernelEngine;
use crate::worker::listen::listen_at_all;
use crate::worker::port::PortEngine;
use crate::worker::port::handovers::Handovers;
use crate::worker::port::queues::Queues;
use urnic_engine::limits::{CONNECT_REQUESTS_MAX, LISTEN_REQUESTED_MAX};
use urnic_engine::port::{ListenParams, Port, PortConfig, PortDrops};
use urnic_engine::time::Instant;
use urnic_engine::verbs::{Cq, Qp, Rnic, Wc};

/// One interface with its connections: a port on its device, or the kernel's TCP.
///
/// ```no_run
#[doc = include_str!("../../examples/connect.rs")]
/// ```
///
/// Dropping an endpoint ends its thread, and resets unclosed connections:
/// [`Connection::close`](crate::Connection::close) waits for an orderly end.
#[derive(Debug)]
pub struct Endpoint {
    links: Vec<WorkerLink>,
    threads: Vec<JoinHandle<()>>,
    next: AtomicUsize,
    /// Events of the first worker's interface. The worker has the other end, which ends with it.
    events: Receiver<EndpointEvent>,
}

impl Endpoint {
    /// An endpoint over the kernel's TCP sockets: layered (RFC 5044 §5), on all addresses of the
    /// machine, without any privilege.
    ///
    /// # Errors
    /// [`Error::System`] if the process may not open more descriptors or threads; [`Error::Config`]
    /// if [`EndpointConfig::core`] is not a core.
    pub fn kernel(rnic: &Rnic, config: &EndpointConfig) -> Result<Self, Error> {
        let mailbox = Mailbox::new(config)?;
        let feed = EventFeed::new();
        let mut endpoint = Self::without_workers(&feed);
        let engine = KernelEngine::new(rnic, mailbox.link.outbox.clone(), config, feed)?;
        endpoint.start(config, mailbox, Box::new(engine))?;
        info!(target: "urnic", own_thread = config.own_thread, "endpoint over the kernel's TCP");
        Ok(endpoint)
    }

    /// An endpoint with its own TCP/IP stack on `device`, with the addresses of `port`. The package
    /// `urnic-netdev` has the devices.
    ///
    /// ```no_run
    #[doc = include_str!("../../examples/on_device.rs")]
    /// ```
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel).
    pub fn on_device<D: Device + Send + 'static>(
        rnic: &Rnic,
        device: D,
        port: PortConfig,
        config: &EndpointConfig,
    ) -> Result<Self, Error> {
        Self::on_queues(rnic, vec![device], port, config)
    }

    /// An endpoint on several queues of one interface, each of them a device: for example
    /// `Tap::open_queues` of `urnic-netdev`. Each queue has a thread of its own, on consecutive
    /// cores if cores are set. Without own threads, the waiting threads run all queues. Connections
    /// opened here take the queues in turn; a peer's connection is served at the queue at which its
    /// SYN arrives.
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel). [`Error::Config`] without a queue, [`Error::Port`] for several
    /// queues with [`PortConfig::dhcp`].
    pub fn on_queues<D: Device + Send + 'static>(
        rnic: &Rnic,
        queues: Vec<D>,
        port: PortConfig,
        config: &EndpointConfig,
    ) -> Result<Self, Error> {
        if queues.is_empty() {
            return Err(Error::Config("an endpoint needs a queue at least"));
        }
        let mac = port.mac;
        let with_port = |device: D| {
            let mut port = Port::new(rnic, port.clone(), device.capabilities());
            port.hold_acks(config.ack_hold);
            (port, Loopback::new(device, mac))
        };
        let mut queues: Vec<_> = queues.into_iter().map(with_port).collect();
        Port::join(&mut queues.iter_mut().map(|(port, _)| port).collect::<Vec<_>>())?;

        let workers = if config.own_thread { queues.len() } else { 1 };
        let mailboxes: Vec<_> =
            (0..workers).map(|_| Mailbox::new(config)).collect::<Result<_, _>>()?;
        let outbox_of = |queue: usize| &mailboxes[queue % workers].link.outbox;
        let wakeups: Vec<_> =
            (0..queues.len()).map(|queue| Arc::clone(outbox_of(queue).wakeup())).collect();
        let alone = queues.len() == 1;
        let feed = EventFeed::new();
        let mut endpoint = Self::without_workers(&feed);
        // With several queues only the first one reports the interface's events.
        let mut feed = Some(feed);
        let mut engines = Vec::with_capacity(queues.len());
        for (queue, ((port, device), handovers)) in
            queues.into_iter().zip(Handovers::among(&wakeups)).enumerate()
        {
            let engine = PortEngine::new(port, device, outbox_of(queue).clone(), feed.take());
            engines.push(if alone { engine } else { engine.with_handovers(handovers) });
        }
        let queue_count = engines.len();
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
        info!(target: "urnic", queue_count, own_thread = config.own_thread, "endpoint on a device");
        Ok(endpoint)
    }

    fn without_workers(feed: &EventFeed) -> Self {
        let events = feed.receiver().clone();
        Self { links: Vec::new(), threads: Vec::new(), next: AtomicUsize::new(0), events }
    }

    /// Adds a worker. If that fails, dropping the endpoint ends the earlier workers.
    fn start(
        &mut self,
        config: &EndpointConfig,
        mailbox: Mailbox,
        engine: Box<dyn Engine>,
    ) -> Result<(), Error> {
        let Mailbox { link, commands } = mailbox;
        let wakeup = Arc::clone(link.outbox.wakeup());
        let worker = Worker::new(engine, commands, wakeup, link.spin);
        if let Some(place) = &link.in_thread {
            place.set(worker);
            if config.own_thread {
                let place = Arc::clone(place);
                self.spawn(config, &link, move || place.run())?;
            }
        } else {
            self.spawn(config, &link, move || worker.run())?;
        }
        self.links.push(link);
        Ok(())
    }

    fn spawn(
        &mut self,
        config: &EndpointConfig,
        link: &WorkerLink,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let core = config.core.map(|core| core + self.threads.len());
        self.threads.push(spawn(body, core, Alive(Arc::clone(&link.end)))?);
        Ok(())
    }

    fn first(&self) -> &WorkerLink {
        &self.links[0]
    }

    /// Starts a connection to `remote` with `qp`, and returns at once.
    ///
    /// # Errors
    /// [`Error::Down`]. [`Connecting::wait`] reports all other errors.
    pub fn connect(
        &self,
        remote: SocketAddr,
        qp: &Qp,
        options: &ConnectOptions,
    ) -> Result<Connecting, Error> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let link = &self.links[turn % self.links.len()];
        let key = link.outbox.next_key();
        let (notices, notices_rx) = unlimited();
        let (qp, options) = (qp.clone(), Box::new(options.clone()));
        link.outbox.send(Command::Connect { key, remote, qp, options, notices })?;
        Ok(Connecting::new(link.clone(), link.outbox.claim(key), remote, notices_rx))
    }

    /// Waits for connections at `local`: an address of the endpoint's interface or machine, or the
    /// unspecified address of a family for all addresses of that family; `::` is for both families.
    /// With TCP port 0 the endpoint chooses a port.
    ///
    /// # Errors
    /// [`Error::Port`] with [`PortError::NoSuchAddress`](crate::PortError::NoSuchAddress) or
    /// [`PortError::PortTaken`](crate::PortError::PortTaken), and other errors of the kernel's TCP
    /// ([`Error::Io`]).
    pub fn listen(&self, local: SocketAddr, params: ListenParams) -> Result<Listener, Error> {
        let backlog = params.backlog.min(LISTEN_REQUESTED_MAX);
        let (requests, requests_rx) = limited(CONNECT_REQUESTS_MAX.max(backlog));
        let mut links = self.links.clone();
        let listen = |link: &mut WorkerLink, local| {
            let (reply, reply_rx) = bounded(1);
            let (params, requests) = (params.clone(), requests.clone());
            link.outbox.send(Command::Listen { local, params, requests, reply })?;
            link.receive(&reply_rx, None)?
        };
        let unlisten = |link: &mut WorkerLink, local| {
            // A worker that has ended does not listen.
            let _gone = link.outbox.send(Command::Unlisten { local, reply: None });
        };
        let local = listen_at_all(&mut links, local, listen, unlisten)?;
        Ok(Listener::new(links, local, requests_rx))
    }

    /// Closes all connections, also those whose handles were dropped: work posted so far is
    /// finished, and the FINs are sent. Waits for at most `timeout` until the peers have
    /// acknowledged everything, and shortly for their FINs. Then resets connections with unsent
    /// data. The kernel's TCP continues to send what it has accepted, unless the peer sends
    /// something, too.
    ///
    /// # Errors
    /// [`Error::Timeout`] if not everything was acknowledged, [`Error::Down`].
    pub fn finish(&self, timeout: Duration) -> Result<(), Error> {
        let until = monotonic_now() + timeout;
        let replies: Vec<_> = self
            .links
            .iter()
            .map(|link| {
                let (reply, done) = bounded(1);
                link.outbox.send(Command::Finish { until, reply })?;
                Ok((link, done))
            })
            .collect::<Result<_, Error>>()?;
        let mut finished = Ok(());
        for (link, done) in replies {
            // The worker answers in time, unless another thread keeps it from running.
            match link.receive(&done, Some((until - monotonic_now()) + FINISH_GRACE)) {
                Ok(true) => {}
                Ok(false) => finished = Err(Error::Timeout),
                Err(error) => finished = Err(error),
            }
        }
        finished
    }

    /// Takes a queue pair from its connection, or from an attempt at one. After the return, the
    /// endpoint uses no memory that its posted work or its peer names. Work that had not completed
    /// fails; sent bytes are delivered, and the connection closes in order. For applications that
    /// return memory which they have not allocated here.
    ///
    /// # Errors
    /// [`Error::Down`]: then no memory is used either.
    pub fn release(&self, qp: &Qp) -> Result<(), Error> {
        self.tell_all(|reply| Command::Release { qp: qp.clone(), reply })
    }

    fn tell_all(&self, command: impl Fn(Sender<()>) -> Command) -> Result<(), Error> {
        let mut told = Ok(());
        for link in &self.links {
            let (reply, done) = bounded::<()>(0);
            match link.outbox.send(command(reply)) {
                // The worker drops its end of the channel when it is done, or when it ends.
                Ok(()) => drop(link.receive(&done, None)),
                // The other workers still get the command.
                Err(error) => told = Err(error),
            }
        }
        told
    }

    /// Waits for an IPv4 address: at once if it was configured, otherwise from DHCP
    /// ([`PortConfig::dhcp`](urnic_engine::port::PortConfig::dhcp)). Over the kernel's TCP that is
    /// 0.0.0.0.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Down`].
    pub fn wait_address(&self, timeout: Duration) -> Result<IpAddr, Error> {
        // Room for the immediate answer and a later one.
        let (reply, reply_rx) = bounded(2);
        let until = monotonic_now() + timeout;
        self.first().outbox.send(Command::AwaitAddress { until, reply })?;
        // An existing address is returned, however short the timeout.
        if let Some(address) = self.first().receive(&reply_rx, None)? {
            return Ok(address);
        }
        let left = until - monotonic_now();
        self.first().receive(&reply_rx, Some(left))?.ok_or(Error::Timeout)
    }

    /// Takes the oldest event of the endpoint's interface, waiting for at most `timeout`;
    /// `Ok(None)` if none came. Only the last
    /// [`ENDPOINT_EVENTS_MAX`](urnic_engine::limits::ENDPOINT_EVENTS_MAX) events are kept. Over the
    /// kernel's TCP there are none.
    ///
    /// # Errors
    /// [`Error::Down`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<EndpointEvent>, Error> {
        match self.first().receive(&self.events, Some(timeout)) {
            Ok(event) => Ok(Some(event)),
            Err(Error::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the oldest completion of `cq`, waiting for at most `timeout`; `Ok(None)` if none came.
    /// Failed work completes too: check [`Wc::status`].
    ///
    /// # Errors
    /// [`Error::Down`].
    #[inline]
    pub fn wait(&self, cq: &Cq, timeout: Duration) -> Result<Option<Wc>, Error> {
        match cq.poll() {
            Some(wc) => Ok(Some(wc)),
            None => self.first().wait(cq, timeout),
        }
    }

    /// Runs an endpoint without a thread once; does nothing if it has one. After its spin time
    /// without work, sleeps until there is work, for at most `timeout`; never with a zero
    /// `timeout`. For applications that check several queues, or their own memory, between calls.
    ///
    /// # Errors
    /// [`Error::Down`].
    #[inline]
    pub fn turn(&self, timeout: Duration) -> Result<(), Error> {
        let link = self.first();
        let Some(worker) = &link.in_thread else {
            return if link.end.has_come() { Err(Error::Down) } else { Ok(()) };
        };
        let deadline = if timeout.is_zero() { Instant::ZERO } else { monotonic_now() + timeout };
        worker.turn(None, Some(deadline), link.spin)
    }

    /// Runs a [`polled`](EndpointConfig::polled) endpoint once, unless another thread is running
    /// it; never sleeps. With `stays`, the caller promises to call again soon: the endpoint's own
    /// thread leaves the work to the caller, until the caller [hands over](Self::hand_over) or has
    /// not called for half a millisecond. Does nothing for other endpoints.
    ///
    /// # Errors
    /// [`Error::Down`].
    #[inline]
    pub fn poll_turn(&self, stays: bool) -> Result<(), Error> {
        for link in &self.links {
            if let Some(worker) = &link.in_thread {
                worker.poll(link.outbox.wakeup(), stays)?;
            }
        }
        Ok(())
    }

    /// Lets the endpoint's own thread take over at once: the caller is about to sleep.
    pub fn hand_over(&self) {
        for (link, thread) in self.links.iter().zip(&self.threads) {
            if let Some(worker) = &link.in_thread {
                worker.hand_over(thread.thread());
            }
        }
    }

    /// Frames dropped before they reached a connection; zero over the kernel's TCP.
    ///
    /// # Errors
    /// [`Error::Down`].
    pub fn drops(&self) -> Result<PortDrops, Error> {
        let mut sum = PortDrops::default();
        for link in &self.links {
            let (reply, reply_rx) = bounded(1);
            link.outbox.send(Command::Drops { reply })?;
            sum += link.receive(&reply_rx, None)?;
        }
        Ok(sum)
    }

    /// A view of the counters for another thread, as in [`top`](crate::top).
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(&self.links)
    }

    /// A waker that ends the sleep of [`turn`](Self::turn), from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(self.first().outbox.wakeup()))
    }

    /// Runs an endpoint without a thread for at most `time`, or until it has had no work for its
    /// spin time. With a thread, sleeps for `time`.
    ///
    /// # Errors
    /// [`Error::Down`].
    pub fn run_for(&self, time: Duration) -> Result<(), Error> {
        let (_keeps_it_open, nothing) = bounded::<()>(0);
        match self.first().receive(&nothing, Some(time)) {
            Err(Error::Timeout) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for link in &self.links {
            if let Some(worker) = &link.in_thread {
                worker.stop();
            }
            // A worker that has ended has closed its connections.
            let _gone = link.outbox.send(Command::Shutdown);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker that panicked has logged that itself.
            let _panicked = thread.join();
        }
        for link in &self.links {
            if let Some(worker) = link.in_thread.as_ref().and_then(|place| place.take()) {
                worker.run();
            }
        }
    }
}

const FINISH_GRACE: Duration = Duration::from_millis(50);

fn spawn(
    work: impl FnOnce() + Send + 'static,
    core: Option<usize>,
    alive: Alive,
) -> Result<JoinHandle<()>, Error> {
    let (ready, ready_rx) = bounded(1);
    let body = move || {
        // The worker is dropped before it, even after a panic, and ends its connections.
        let _alive = alive;
        let pinned = core.map_or(Ok(()), pin);
        let runs = pinned.is_ok();
        if ready.send(pinned).is_ok() && runs {
            info!(target: "urnic", core, "worker started");
            work();
        }
    };
    let thread = thread::Builder::new()
        .name("urnic-port".to_owned())
        .spawn(body)
        .map_err(|error| Error::system("starting the endpoint's thread", &error))?;
    ready_rx.recv().map_err(|_| Error::Down)??;
    Ok(thread)
}

fn pin(core: usize) -> Result<(), Error> {
    if core >= CpuSet::MAX_CPU {
        return Err(Error::Config("EndpointConfig::core is no core of this machine"));
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|errno| {
        Error::system("pinning the endpoint's thread to its core", &io::Error::from(errno))
    })
}
