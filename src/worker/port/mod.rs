//! An engine on a frame device: a port and its connections.

mod congestion;
pub(crate) mod handovers;
pub(crate) mod queues;

use std::net::{IpAddr, SocketAddr};
use std::task::Waker;

use arrayvec::ArrayVec;
use crossbeam::channel::Sender;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, info};
use urnic_netdev::Device;

use crate::clock::time_left;
use crate::config::ConnectOptions;
use crate::error::Error;
use crate::mail::channel::WorkerEnd;
use crate::mail::command::outbox::Outbox;
use crate::mail::command::{Command, ConnectionKey, Incoming};
use crate::mail::events::{AddressWaiters, EndpointEvent, EventFeed};
use crate::mail::figures::EndpointFigures;
use crate::mail::notice::Notice;
use crate::mail::wakeup::Wakeup;
use crate::worker::engine::{Engine, Owed};
use crate::worker::port::congestion::Congestion;
use crate::worker::port::handovers::Handovers;
use crate::worker::registry::Registry;
use urnic_engine::limits::PORTS_MAX;
use urnic_engine::poll::Poller;
use urnic_engine::port::{ConnectParams, ConnectionId, ListenParams, Port, PortError, PortEvent};
use urnic_engine::time::Instant;
use urnic_engine::verbs::Qp;

#[derive(Debug)]
pub(crate) struct PortEngine<D> {
    poller: Poller<D>,
    registry: Registry<ConnectionId>,
    /// Events of the endpoint, from the first queue only.
    feed: Option<EventFeed>,
    waiters: AddressWaiters,
    handovers: Option<Handovers>,
    congestion: Congestion,
}

impl<D: Device> PortEngine<D> {
    pub(crate) fn new(port: Port, device: D, outbox: Outbox, feed: Option<EventFeed>) -> Self {
        Self {
            poller: Poller::new(port, device),
            registry: Registry::new(outbox),
            feed,
            waiters: AddressWaiters::default(),
            handovers: None,
            congestion: Congestion::default(),
        }
    }

    pub(crate) fn with_handovers(self, handovers: Handovers) -> Self {
        Self { handovers: Some(handovers), ..self }
    }

    pub(crate) fn has(&self, key: ConnectionKey) -> bool {
        self.registry.id(key).is_some()
    }

    fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        qp: &Qp,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, Error> {
        let ConnectOptions { startup, lower_layer, keepalive, .. } = *options;
        let params = ConnectParams { startup, offer: options.offer(), lower_layer };
        check_traffic_class(options.traffic_class)?;
        let port = &mut self.poller.port;
        if let Some(local) = options.local {
            if local.port() != 0 {
                return Err(Error::Config("the endpoint chooses the TCP ports of its device"));
            }
            let ip = local.ip().to_canonical();
            if !ip.is_unspecified() && port.local_address_for(remote.ip()) != Some(ip) {
                return Err(PortError::NoSuchAddress(local.ip()).into());
            }
        }
        let id = port.connect(now, remote, qp, &params)?;
        if keepalive.is_some() {
            port.set_keepalive(now, id, keepalive)?;
        }
        Ok(id)
    }

    pub(crate) fn listen(
        &mut self,
        local: SocketAddr,
        params: ListenParams,
        requests: WorkerEnd<Incoming>,
    ) -> Result<SocketAddr, Error> {
        check_traffic_class(params.traffic_class)?;
        let port = &mut self.poller.port;
        let local = port.listen_at(local, params)?;
        self.registry.listen(local, requests);
        Ok(local)
    }

    pub(crate) fn unlisten(&mut self, local: SocketAddr) {
        self.poller.port.unlisten_at(local);
        self.registry.unlisten(local);
    }

    /// Returns the number of events: the thread that runs this engine may wait for one of them.
    fn dispatch_events(&mut self) -> usize {
        let mut told = 0;
        while let Some(event) = self.poller.port.poll_event() {
            told += 1;
            match event {
                PortEvent::Incoming { connection, listener, remote, .. } => {
                    self.registry.incoming(connection, listener, remote);
                }
                PortEvent::Stream { connection, event } => {
                    if !self.registry.event(connection, event) {
                        self.poller.port.abort(connection);
                    }
                }
                PortEvent::Closed { connection, counters } => {
                    self.registry.closed(connection, counters);
                }
                // Connections recover from these by themselves, or report that they did not.
                of_the_port @ (PortEvent::AddressAcquired { .. }
                | PortEvent::AddressLost { .. }
                | PortEvent::AddressOverdue
                | PortEvent::LinkDown
                | PortEvent::LinkUp) => self.tell(&of_the_port),
            }
        }
        told
    }

    pub(crate) fn figures(&self) -> EndpointFigures {
        // A connection that ends at this moment is counted when it has ended.
        let figures = self.registry.figures(|id| self.poller.port.counters(id).unwrap_or_default());
        EndpointFigures { refusals: self.poller.device.refusals(), ..figures }
    }

    fn tell(&mut self, event: &PortEvent) {
        if let PortEvent::AddressAcquired { address, .. } = event {
            self.waiters.tell(*address);
        }
        if let (Some(feed), Some(event)) = (&self.feed, EndpointEvent::of(event)) {
            info!(target: "urnic", ?event, "interface");
            feed.push(event);
        }
    }

    fn await_address(&mut self, until: Instant, reply: Sender<Option<IpAddr>>) {
        let address = self.poller.port.config().ipv4.map(|(address, _)| IpAddr::V4(address));
        // The caller may no longer wait.
        let _gone = reply.try_send(address);
        if address.is_none() {
            self.waiters.add(until, reply);
        }
    }

    fn watch(&self) -> (Option<PollFd<'_>>, Option<u64>) {
        let device = &self.poller.device;
        match device.readiness() {
            // A device whose link is down may report errors continuously: poll it at intervals.
            _ if !device.link_up() => (None, Some(LINK_DOWN_RETRY_NS)),
            // A device without a descriptor must be polled again soon.
            None => (None, Some(ASK_AGAIN_NS)),
            Some(readiness) => {
                let mut interest = PollFlags::IN;
                let mut pause = device.check_interval_ns();
                if self.poller.port.has_ready() {
                    match self.congestion.retry_ns() {
                        None => interest |= PollFlags::OUT,
                        Some(retry) => pause = Some(pause.map_or(retry, |ns| ns.min(retry))),
                    }
                }
                let descriptor = PollFd::from_borrowed_fd(readiness, interest);
                (Some(descriptor), pause)
            }
        }
    }
}

/// Sleeps until one of the engines has input, or as [`Engine::wait`] says.
pub(crate) fn wait_for_any<D: Device>(
    engines: &[PortEngine<D>],
    now: Instant,
    deadline: Option<Instant>,
    wakeup: &Wakeup,
) {
    let mut descriptors = ArrayVec::<_, { PORTS_MAX + 1 }>::new();
    descriptors.push(PollFd::new(wakeup, PollFlags::IN));
    let mut until = deadline;
    let mut watched = ArrayVec::<_, PORTS_MAX>::new();
    for engine in engines {
        let (descriptor, pause) = engine.watch();
        watched.extend(descriptor.is_some().then_some(&engine.congestion));
        descriptors.extend(descriptor);
        let asked = pause.map(|pause| now.plus_nanos(pause));
        until = [until, asked].into_iter().flatten().min();
    }
    let left = until.map(|until| time_left(now, until));
    // Interrupted, or refused for lack of memory: the worker looks for work and returns.
    let _woken = poll(&mut descriptors, left.as_ref());
    for (descriptor, congestion) in descriptors[1..].iter().zip(watched) {
        congestion.note_writable(descriptor.revents().contains(PollFlags::OUT));
    }
}

impl<D: Device + Send> Engine for PortEngine<D> {
    fn handle_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Connect { key, remote, qp, options, notices } => {
                match self.connect(now, remote, &qp, &options) {
                    Ok(id) => self.registry.opened(id, key, remote, notices),
                    Err(error) => {
                        debug!(target: "urnic", %remote, %error, "cannot connect");
                        // The handle may have been dropped.
                        notices.tell(Notice::Refused(Box::new(error)));
                    }
                }
            }
            Command::Listen { local, params, requests, reply } => {
                drop(reply.send(self.listen(local, params, requests)));
            }
            Command::Unlisten { local, reply } => {
                self.unlisten(local);
                drop(reply);
            }
            Command::Release { qp, reply } => {
                self.poller.port.release_qp(&qp);
                drop(reply);
            }
            Command::Accept { key, qp, offer } => {
                if let Some(id) = self.registry.id(key)
                    && let Err(error) = self.poller.port.accept(id, &qp, &offer.offer())
                {
                    self.registry.refused(id, error.into());
                }
            }
            Command::Reject { key, offer } => {
                self.registry.rejected();
                if let Some(id) = self.registry.id(key) {
                    // A connection that is over needs no refusal.
                    let _over = self.poller.port.reject(id, &offer.offer());
                    let _over = self.poller.port.disconnect(id);
                }
            }
            Command::Disconnect { key } => {
                if let Some(id) = self.registry.id(key) {
                    let _over = self.poller.port.disconnect(id);
                }
            }
            Command::Abort { key } => {
                if let Some(id) = self.registry.id(key) {
                    self.poller.port.abort(id);
                }
            }
            Command::Counters { key, reply } => {
                if let Some(id) = self.registry.id(key)
                    && let Ok(counters) = self.poller.port.counters(id)
                {
                    drop(reply.send(Box::new(counters)));
                }
            }
            Command::Figures { reply } => drop(reply.send(self.figures())),
            Command::AwaitAddress { until, reply } => self.await_address(until, reply),
            Command::Drops { reply } => drop(reply.send(self.poller.port.drops())),
            // Handled by the worker.
            Command::Finish { .. } | Command::Shutdown => {}
        }
    }

    fn turn(&mut self, now: Instant) -> usize {
        let mut moved = self.poller.receive(now);
        if let Some(handovers) = &self.handovers {
            // A neighbour that learns this interface's link address may send to any of its queues
            // at once, and the port there needs the neighbour's address. So each queue receives
            // handovers before it answers.
            handovers.send(&mut self.poller.port);
            moved += handovers.receive(now, &mut self.poller.port);
        }
        let sent = self.poller.transmit(now);
        self.congestion.note_transmit(sent > 0, self.poller.port.has_ready());
        moved += sent;
        moved + self.dispatch_events()
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        self.poller.next_wakeup()
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.poller.port.arm_doorbell(waker)
    }

    fn disarm(&mut self, waker: &Waker) {
        self.poller.port.disarm_doorbell(waker);
    }

    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup) {
        wait_for_any(std::slice::from_ref(self), now, deadline, wakeup);
    }

    fn shutdown(&mut self, now: Instant) {
        for id in self.registry.all() {
            self.poller.port.abort(id);
        }
        for _ in 0..SHUTDOWN_TURNS {
            if self.turn(now) == 0 {
                break;
            }
        }
    }

    fn close_all(&mut self, _now: Instant) {
        for id in self.registry.all() {
            let _over = self.poller.port.disconnect(id);
        }
    }

    fn owed(&self) -> Owed {
        let port = &self.poller.port;
        let of = |id| if port.is_end_acknowledged(id) { Owed::Answers } else { Owed::Octets };
        self.registry.all().into_iter().map(of).max().unwrap_or(Owed::Nothing)
    }

    fn abort_owing(&mut self) {
        for id in self.registry.all() {
            if !self.poller.port.is_end_acknowledged(id) {
                self.poller.port.abort(id);
            }
        }
    }
}

/// Pause before a device without a descriptor is polled again.
const ASK_AGAIN_NS: u64 = 100_000;
const LINK_DOWN_RETRY_NS: u64 = 20_000_000;
const SHUTDOWN_TURNS: usize = 64;

/// The port sends all packets with class 0. The lowest two bits belong to TCP (RFC 3168 §5).
fn check_traffic_class(wanted: Option<u8>) -> Result<(), Error> {
    match wanted {
        Some(class) if class & !3 != 0 => {
            Err(Error::Config("a device of urnic's own has no traffic classes"))
        }
        _ => Ok(()),
    }
}
