//! An engine on a frame device: a port and its connections.

use std::net::{IpAddr, SocketAddr};
use std::task::Waker;

use arrayvec::ArrayVec;
use crossbeam::channel::Sender;
use rustix::event::{PollFd, PollFlags, poll};
use urnic_netdev::Device;

use crate::driver::Poller;
use crate::driver::clock::time_left;
use crate::driver::command::{Command, ConnectionKey};
use crate::driver::connection::{ConnectRequest, Notice};
use crate::driver::endpoint::{ConnectOptions, EndpointError};
use crate::driver::engine::Engine;
use crate::driver::events::{AddressWaiters, EndpointEvent, EventFeed};
use crate::driver::link::Link;
use crate::driver::registry::Registry;
use crate::driver::siblings::Siblings;
use crate::driver::wakeup::Wakeup;
use crate::limits::PORTS_MAX;
use crate::port::{ConnectParams, ConnectionId, ListenParams, Port, PortEvent};
use crate::time::Instant;
use crate::verbs::Qp;

/// A port, its device, and the handles of its connections.
#[derive(Debug)]
pub(crate) struct PortEngine<D> {
    poller: Poller<D>,
    registry: Registry<ConnectionId>,
    /// Where the endpoint's events go; the first of several ports speaks for all.
    feed: Option<EventFeed>,
    waiters: AddressWaiters,
    siblings: Option<Siblings>,
}

impl<D: Device> PortEngine<D> {
    pub(crate) fn new(port: Port, device: D, link: Link, feed: Option<EventFeed>) -> Self {
        Self {
            poller: Poller::new(port, device),
            registry: Registry::new(link),
            feed,
            waiters: AddressWaiters::default(),
            siblings: None,
        }
    }

    /// Makes it one of several whose ports are one station.
    pub(crate) fn with_siblings(self, siblings: Siblings) -> Self {
        Self { siblings: Some(siblings), ..self }
    }

    /// Whether a handle's connection is this port's.
    pub(crate) fn has(&self, key: ConnectionKey) -> bool {
        self.registry.id(key).is_some()
    }

    fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        qp: &Qp,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, EndpointError> {
        let ConnectOptions { startup, lower_layer, .. } = *options;
        let params = ConnectParams { startup, offer: options.offer(), lower_layer };
        Ok(self.poller.port.connect(now, remote, qp, &params)?)
    }

    pub(crate) fn listen(
        &mut self,
        local: SocketAddr,
        params: ListenParams,
        requests: Sender<ConnectRequest>,
    ) -> Result<SocketAddr, EndpointError> {
        let port = &mut self.poller.port;
        let local = SocketAddr::new(local.ip(), port.listen_at(local.port(), params)?);
        self.registry.listen(any_address(local), requests);
        Ok(local)
    }

    pub(crate) fn unlisten(&mut self, local: SocketAddr) {
        self.poller.port.unlisten(local.port());
        self.registry.unlisten(any_address(local));
    }

    fn dispatch_events(&mut self) {
        while let Some(event) = self.poller.port.poll_event() {
            match event {
                PortEvent::Incoming { connection, local, remote } => {
                    self.registry.incoming(connection, any_address(local), remote);
                }
                PortEvent::Stream { connection, event } => {
                    if !self.registry.event(connection, event) {
                        self.poller.port.abort(connection);
                    }
                }
                PortEvent::Closed { connection, counters } => {
                    self.registry.closed(connection, counters);
                }
                // Connections get over these by themselves, or say that they did not.
                of_the_port @ (PortEvent::AddressAcquired { .. }
                | PortEvent::AddressLost { .. }
                | PortEvent::LinkDown
                | PortEvent::LinkUp) => self.tell(&of_the_port),
            }
        }
    }

    fn tell(&mut self, event: &PortEvent) {
        if let PortEvent::AddressAcquired { address, .. } = event {
            self.waiters.tell(*address);
        }
        if let (Some(feed), Some(event)) = (&self.feed, EndpointEvent::of(event)) {
            feed.push(event);
        }
    }

    fn await_address(&mut self, until: Instant, reply: Sender<IpAddr>) {
        self.waiters.add(until, reply);
        if let Some((address, _)) = self.poller.port.config().ipv4 {
            self.waiters.tell(IpAddr::V4(address));
        }
    }

    /// What to wait for: the device's descriptor, if that may be relied on, and how long at most.
    fn watch(&self) -> (Option<PollFd<'_>>, Option<u64>) {
        let device = &self.poller.device;
        match device.readiness() {
            // A device whose link is down may report errors for ever: ask it now and then.
            _ if !device.link_up() => (None, Some(LINK_DOWN_RETRY_NS)),
            // A device without a descriptor has to be asked again soon.
            None => (None, Some(ASK_AGAIN_NS)),
            Some(readiness) => {
                let mut interest = PollFlags::IN;
                if self.poller.port.has_ready() {
                    interest |= PollFlags::OUT;
                }
                let descriptor = PollFd::from_borrowed_fd(readiness, interest);
                (Some(descriptor), device.check_interval_ns())
            }
        }
    }
}

/// Sleeps until one of the engines, which have one worker, has input, or as [`Engine::wait`] says.
pub(crate) fn wait_for_any<D: Device>(
    engines: &[PortEngine<D>],
    now: Instant,
    deadline: Option<Instant>,
    wakeup: &Wakeup,
) {
    let mut descriptors = ArrayVec::<_, { PORTS_MAX + 1 }>::new();
    descriptors.push(PollFd::new(wakeup, PollFlags::IN));
    let mut until = deadline;
    for engine in engines {
        let (descriptor, pause) = engine.watch();
        descriptors.extend(descriptor);
        let asked = pause.map(|pause| now.plus_nanos(pause));
        until = [until, asked].into_iter().flatten().min();
    }
    let left = until.map(|until| time_left(now, until));
    // Interrupted, or refused for lack of memory: the worker looks for work and comes back.
    let _woken = poll(&mut descriptors, left.as_ref());
}

/// A port listens at all its addresses: only the TCP port tells listeners apart.
const fn any_address(local: SocketAddr) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), local.port())
}

impl<D: Device + Send> Engine for PortEngine<D> {
    fn handle_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Connect { key, remote, qp, options, notices } => {
                match self.connect(now, remote, &qp, &options) {
                    Ok(id) => self.registry.opened(id, key, remote, notices),
                    // The handle may be gone already.
                    Err(error) => drop(notices.send(Notice::Refused(error))),
                }
            }
            Command::Listen { local, params, requests, reply } => {
                drop(reply.send(self.listen(local, params, requests)));
            }
            Command::Unlisten { local } => self.unlisten(local),
            Command::Accept { key, qp, offer } => {
                if let Some(id) = self.registry.id(key)
                    && let Err(error) = self.poller.port.accept(id, &qp, &offer.offer())
                {
                    self.registry.refused(id, error.into());
                }
            }
            Command::Reject { key, offer } => {
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
            Command::AwaitAddress { until, reply } => self.await_address(until, reply),
            Command::Drops { reply } => drop(reply.send(self.poller.port.drops())),
            Command::Shutdown => {}
        }
    }

    fn turn(&mut self, now: Instant) -> usize {
        let mut moved = self.poller.receive(now);
        if let Some(siblings) = &self.siblings {
            // Before anything is answered. Whoever is told our link address may send to any of the
            // queues at once, and the port there has to know his; so it looks here before it answers.
            siblings.send(&mut self.poller.port);
            moved += siblings.receive(now, &mut self.poller.port);
        }
        moved += self.poller.transmit(now);
        self.dispatch_events();
        moved
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        self.poller.next_wakeup()
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.poller.port.arm_doorbell(waker)
    }

    fn disarm(&mut self) {
        self.poller.port.disarm_doorbell();
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
}

/// How long a device without a descriptor is left alone.
const ASK_AGAIN_NS: u64 = 100_000;
/// How often a device is asked whether its link has returned.
const LINK_DOWN_RETRY_NS: u64 = 20_000_000;
/// Turns in which the last resets get out.
const SHUTDOWN_TURNS: usize = 64;
