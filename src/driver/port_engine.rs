//! An engine on a frame device: a port and its connections.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::task::Waker;

use crossbeam::channel::Sender;
use rustix::event::{PollFd, PollFlags, poll};
use urnic_netdev::Device;

use crate::driver::Poller;
use crate::driver::clock::time_left;
use crate::driver::command::Command;
use crate::driver::connection::{ConnectRequest, Notice};
use crate::driver::endpoint::{ConnectOptions, EndpointError, Link};
use crate::driver::engine::Engine;
use crate::driver::registry::Registry;
use crate::driver::wakeup::Wakeup;
use crate::port::{ConnectParams, ConnectionId, ListenParams, Port, PortEvent};
use crate::time::Instant;
use crate::verbs::Qp;

/// A port, its device, and the handles of its connections.
#[derive(Debug)]
pub(crate) struct PortEngine<D> {
    poller: Poller<D>,
    registry: Registry<ConnectionId>,
}

impl<D: Device> PortEngine<D> {
    pub(crate) fn new(port: Port, device: D, link: Link) -> Self {
        Self { poller: Poller::new(port, device), registry: Registry::new(link) }
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

    fn listen(
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
                PortEvent::AddressAcquired { .. }
                | PortEvent::AddressLost { .. }
                | PortEvent::LinkDown
                | PortEvent::LinkUp => {}
            }
        }
    }
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
            Command::Unlisten { local } => {
                self.poller.port.unlisten(local.port());
                self.registry.unlisten(any_address(local));
            }
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
            Command::Drops { reply } => drop(reply.send(self.poller.port.drops())),
            Command::Shutdown => {}
        }
    }

    fn turn(&mut self, now: Instant) -> usize {
        let moved = self.poller.poll(now);
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
        let device = &self.poller.device;
        let Some(readiness) = device.readiness() else {
            // A device without a descriptor has to be asked again soon, but for one that is gone.
            let pause = if device.link_up() { ASK_AGAIN_NS } else { LINK_DOWN_RETRY_NS };
            let soon = now.plus_nanos(pause);
            let until = deadline.map_or(soon, |deadline| deadline.min(soon));
            wait_for(&mut [PollFd::new(wakeup, PollFlags::IN)], now, Some(until));
            return;
        };
        let mut interest = PollFlags::IN;
        if self.poller.port.has_ready() {
            interest |= PollFlags::OUT;
        }
        let down = !device.link_up();
        let readiness = readiness.as_fd();
        let mut descriptors =
            [PollFd::new(wakeup, PollFlags::IN), PollFd::new(&readiness, interest)];
        // A device whose link is down may report errors for ever: ask it now and then.
        let (count, until) = if down {
            let later = now.plus_nanos(LINK_DOWN_RETRY_NS);
            (1, Some(deadline.map_or(later, |deadline| deadline.min(later))))
        } else {
            (2, deadline)
        };
        wait_for(&mut descriptors[..count], now, until);
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

fn wait_for(descriptors: &mut [PollFd<'_>], now: Instant, until: Option<Instant>) {
    let left = until.map(|until| time_left(now, until));
    // Interrupted, or refused for lack of memory: the worker looks for work and comes back.
    let _woken = poll(descriptors, left.as_ref());
}

/// How long a device without a descriptor is left alone.
const ASK_AGAIN_NS: u64 = 100_000;
/// How often a device is asked whether its link has returned.
const LINK_DOWN_RETRY_NS: u64 = 20_000_000;
/// Turns in which the last resets get out.
const SHUTDOWN_TURNS: usize = 64;
