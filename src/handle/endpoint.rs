//! An endpoint: one interface with its connections, as application threads see it.

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
use urnic_engine::limits::{CONNECT_REQUESTS_MAX, LISTEN_ASKED_MAX};
use urnic_engine::port::{ListenParams, Port, PortConfig, PortDrops};
use urnic_engine::time::Instant;
use urnic_engine::verbs::{Cq, Qp, Rnic, Wc};

/// One interface with its connections: a port on its device, or the kernel's TCP.
///
/// ```no_run
#[doc = include_str!("../../examples/connect.rs")]
/// ```
///
/// Dropping an endpoint ends its thread, and resets connections that are not closed by then:
/// [`Connection::close`](crate::Connection::close) waits for an orderly end.
#[derive(Debug)]
pub struct Endpoint {
    /// One for each worker: at least one.
    links: Vec<WorkerLink>,
    threads: Vec<JoinHandle<()>>,
    /// Which worker opens the next connection.
    next: AtomicUsize,
    /// Of the first worker's interface. The other end is the worker's: it ends with that.
    events: Receiver<EndpointEvent>,
}

impl Endpoint {
    /// An endpoint over the kernel's TCP sockets: layered (RFC 5044 §5), on all the machine's
    /// addresses, without any privilege.
    ///
    /// # Errors
    /// [`Error::System`] when the process may not open more descriptors or threads;
    /// [`Error::Config`] when [`EndpointConfig::core`] is no core.
    pub fn kernel(rnic: &Rnic, config: &EndpointConfig) -> Result<Self, Error> {
        let mailbox = Mailbox::new(config)?;
        let feed = EventFeed::new();
        let mut endpoint = Self::without_workers(&feed);
        let engine = KernelEngine::new(rnic, mailbox.link.outbox.clone(), config, feed)?;
        endpoint.start(config, mailbox, Box::new(engine))?;
        info!(target: "urnic", own_thread = config.own_thread, "endpoint over the kernel's TCP");
        Ok(endpoint)
    }

    /// An endpoint with a TCP/IP stack of its own on `device`, which has the addresses of `port`. The
    /// devices are in the package `urnic-netdev`: a TAP interface, a packet socket or AF_XDP socket
    /// beside the kernel, or one end of a link in memory.
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

    /// An endpoint on several queues of one interface, each a device by itself: for example
    /// `Tap::open_queues` of `urnic-netdev`. Each queue is turned by a thread of its own, on the core
    /// after that of the one before if cores are asked for, or all by the threads that wait.
    ///
    /// Connections opened here take turns among the queues. One that a peer opens is served at the
    /// queue at which its SYN arrives.
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
        // With several queues only the first one tells of the interface.
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

    /// Adds a worker for `engine`. When that fails, dropping the endpoint ends those before.
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

    /// The worker that answers for the whole endpoint.
    fn first(&self) -> &WorkerLink {
        &self.links[0]
    }

    /// Starts a connection to `remote` with `qp`. Returns at once; [`Connecting::wait`] waits.
    ///
    /// # Errors
    /// [`Error::Down`]. All else is told by [`Connecting::wait`].
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

    /// Waits for connections at `local`, an address of the endpoint's interface or machine, or the
    /// unspecified one of a family, which stands for all of that family; `::` stands for those of
    /// both families. TCP port 0 lets the endpoint choose one.
    ///
    /// # Errors
    /// [`Error::Port`] with [`PortError::NoSuchAddress`](crate::PortError::NoSuchAddress) or
    /// [`PortError::PortTaken`](crate::PortError::PortTaken), and whatever else keeps the kernel's TCP
    /// from it ([`Error::Io`]).
    pub fn listen(&self, local: SocketAddr, params: ListenParams) -> Result<Listener, Error> {
        let backlog = params.backlog.min(LISTEN_ASKED_MAX);
        let (requests, requests_rx) = limited(CONNECT_REQUESTS_MAX.max(backlog));
        let mut links = self.links.clone();
        let listen = |link: &mut WorkerLink, local| {
            let (reply, reply_rx) = bounded(1);
            let (params, requests) = (params.clone(), requests.clone());
            link.outbox.send(Command::Listen { local, params, requests, reply })?;
            link.receive(&reply_rx, None)?
        };
        let unlisten = |link: &mut WorkerLink, local| {
            // A worker that is gone listens no more.
            let _gone = link.outbox.send(Command::Unlisten { local, reply: None });
        };
        let local = listen_at_all(&mut links, local, listen, unlisten)?;
        Ok(Listener::new(links, local, requests_rx))
    }

    /// Closes all connections, those whose handles are gone included, for a process that ends: work
    /// posted so far is finished, and the peers are told. Waits for at most `timeout` until they have
    /// acknowledged it, and shortly for their own ends. What is not sent by then is reset; what the
    /// kernel's TCP has taken it goes on to send, unless the peer sends something, too.
    ///
    /// # Errors
    /// [`Error::Timeout`] when not all was, [`Error::Down`].
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
            // The worker answers in time, unless another thread keeps it from turning.
            match link.receive(&done, Some((until - monotonic_now()) + FINISH_GRACE)) {
                Ok(true) => {}
                Ok(false) => finished = Err(Error::Timeout),
                Err(error) => finished = Err(error),
            }
        }
        finished
    }

    /// Takes a queue pair back from its connection, or from an attempt at one: when this returns, the
    /// endpoint neither reads nor writes memory that work posted to it names, nor what its peer names.
    /// Work that had not completed fails; what was sent is delivered, and the connection closes in
    /// order. For programs that give memory back which they have not allocated here.
    ///
    /// # Errors
    /// [`Error::Down`]: then nothing is used any more either.
    pub fn release(&self, qp: &Qp) -> Result<(), Error> {
        self.tell_all(|reply| Command::Release { qp: qp.clone(), reply })
    }

    /// Sends a command to each worker and waits until all have carried it out.
    fn tell_all(&self, command: impl Fn(Sender<()>) -> Command) -> Result<(), Error> {
        let mut told = Ok(());
        for link in &self.links {
            let (reply, done) = bounded::<()>(0);
            match link.outbox.send(command(reply)) {
                // The worker drops its end when it is done, or when it is gone.
                Ok(()) => drop(link.receive(&done, None)),
                // The others are told all the same.
                Err(error) => told = Err(error),
            }
        }
        told
    }

    /// Waits until the endpoint has an IPv4 address, at once if it was given one, else from DHCP
    /// ([`PortConfig::dhcp`](urnic_engine::port::PortConfig::dhcp)). Over the kernel's TCP that is
    /// 0.0.0.0: all addresses of the machine.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Down`].
    pub fn wait_address(&self, timeout: Duration) -> Result<IpAddr, Error> {
        // The answer of now, and the one to come.
        let (reply, reply_rx) = bounded(2);
        let until = monotonic_now() + timeout;
        self.first().outbox.send(Command::AwaitAddress { until, reply })?;
        // However short the time: an address that is there is told.
        if let Some(address) = self.first().receive(&reply_rx, None)? {
            return Ok(address);
        }
        let left = until - monotonic_now();
        self.first().receive(&reply_rx, Some(left))?.ok_or(Error::Timeout)
    }

    /// Takes the oldest event of the endpoint's interface, waiting for one for at most `timeout`;
    /// `Ok(None)` when none came. Of events that are not taken, the last
    /// [`ENDPOINT_EVENTS_MAX`](urnic_engine::limits::ENDPOINT_EVENTS_MAX) are kept. Over the kernel's TCP
    /// there are none.
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

    /// Takes the oldest completion of `cq`, waiting for one for at most `timeout`; `Ok(None)` when
    /// none came. Failed work completes too: look at [`Wc::status`].
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

    /// Lets an endpoint without a thread work once; when there has been nothing to do for as long as
    /// its spin time, sleeps until there is, for at most `timeout`. With a zero `timeout` it never
    /// sleeps. For programs that look at several queues, or at their own memory, between turns.
    ///
    /// With a thread of its own there is nothing to be done here.
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

    /// Lets an endpoint that is [`polled`](EndpointConfig::polled) work once, unless another thread does
    /// so just now; never sleeps. With `stays`, the caller will come again soon: the endpoint's own
    /// thread leaves the work to it, until it [hands over](Self::hand_over) or has not come for half
    /// a millisecond.
    ///
    /// Other endpoints are not helped by that: one with a thread of its own needs no other, and one
    /// without has [`turn`](Self::turn).
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

    /// The thread that came to [`poll_turn`](Self::poll_turn) is about to sleep: the endpoint's own
    /// thread takes over at once.
    pub fn hand_over(&self) {
        for (link, thread) in self.links.iter().zip(&self.threads) {
            if let Some(worker) = &link.in_thread {
                worker.hand_over(thread.thread());
            }
        }
    }

    /// Frames dropped before any connection saw them. What an endpoint over the kernel's TCP drops
    /// is the kernel's business: all zero.
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

    /// Looks at what the endpoint has counted, from another thread: [`top`](crate::top) does.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(&self.links)
    }

    /// Ends the sleep of [`turn`](Self::turn), from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(self.first().outbox.wakeup()))
    }

    /// Lets an endpoint without a thread work for `time` at most, or until it has nothing to do for
    /// as long as its spin time; with a thread, sleeps for `time`.
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
            // A worker that is gone has ended its connections.
            let _gone = link.outbox.send(Command::Shutdown);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker that panicked has said so itself.
            let _panicked = thread.join();
        }
        for link in &self.links {
            if let Some(worker) = link.in_thread.as_ref().and_then(|place| place.take()) {
                worker.run();
            }
        }
    }
}

/// How long a worker that has to answer by some time is waited for beyond it.
const FINISH_GRACE: Duration = Duration::from_millis(50);

fn spawn(
    work: impl FnOnce() + Send + 'static,
    core: Option<usize>,
    alive: Alive,
) -> Result<JoinHandle<()>, Error> {
    let (ready, ready_rx) = bounded(1);
    let body = move || {
        // The worker goes before it, even if it panics, and ends what it has served.
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

/// Keeps the calling thread on a core.
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
