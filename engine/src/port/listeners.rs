//! Listeners, and the slots in their backlogs. A connection that a peer opens has a half-open slot
//! until the peer has answered the SYN-ACK, then a waiting one until the peer's Request and the
//! application's answer. If the half-open slots are used up, SYNs are answered with cookies (RFC
//! 4987 §3.6). If the waiting slots are used up, [`Backlog`](tcp::Backlog) chooses the connection
//! to evict.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::limits::{COOKIE_ANSWERS_MAX, LISTEN_BACKLOG_MAX};
use crate::port::config::ListenParams;
use crate::port::interface::route::Route;
use crate::siphash::{Key, TableHash};
use crate::tcp::{self, SynRefusal};
use crate::time::Instant;

#[derive(Debug)]
pub(super) struct Listeners {
    by_tcp_port: HashMap<u16, Vec<Listener>, TableHash>,
    generation: u64,
    pub(super) cookies: tcp::SynCookies,
    cookie_answers: VecDeque<(Route, tcp::Header)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken;

impl Listeners {
    pub(super) fn new(table_key: Key, cookies: tcp::SynCookies) -> Self {
        Self {
            by_tcp_port: HashMap::with_hasher(TableHash::new(table_key)),
            generation: 0,
            cookies,
            cookie_answers: VecDeque::new(),
        }
    }

    pub(super) fn has_tcp_port(&self, tcp_port: u16) -> bool {
        self.by_tcp_port.contains_key(&tcp_port)
    }

    /// Adds a listener. As with the kernel's sockets, no two take connections to one address.
    pub(super) fn insert(&mut self, local: SocketAddr, params: ListenParams) -> Result<(), Taken> {
        let others = self.by_tcp_port.get(&local.port()).map_or(&[][..], Vec::as_slice);
        let is_taken = others.iter().any(|other| {
            other.covers(local.ip()) || covers(local.ip(), params.only_ipv6, other.local.ip())
        });
        if is_taken {
            return Err(Taken);
        }
        self.generation += 1;
        let listener = Listener::new(local, self.generation, params);
        self.by_tcp_port.entry(local.port()).or_default().push(listener);
        Ok(())
    }

    pub(super) fn remove_tcp_port(&mut self, tcp_port: u16) {
        self.by_tcp_port.remove(&tcp_port);
    }

    pub(super) fn remove(&mut self, local: SocketAddr) {
        if let Some(listeners) = self.by_tcp_port.get_mut(&local.port()) {
            listeners.retain(|listener| listener.local != local);
            if listeners.is_empty() {
                self.by_tcp_port.remove(&local.port());
            }
        }
    }

    pub(super) fn at(&mut self, local: SocketAddr) -> Option<&mut Listener> {
        let listeners = self.by_tcp_port.get_mut(&local.port())?;
        listeners.iter_mut().find(|listener| listener.covers(local.ip()))
    }

    pub(super) fn of(&mut self, slot: BacklogSlot) -> Option<&mut Listener> {
        let listeners = self.by_tcp_port.get_mut(&slot.tcp_port)?;
        listeners.iter_mut().find(|listener| listener.generation == slot.generation)
    }

    pub(super) fn release(&mut self, slot: BacklogSlot) {
        if let Some(listener) = self.of(slot) {
            listener.release(slot);
        }
    }

    pub(super) fn has_room_for_answer(&self) -> bool {
        self.cookie_answers.len() < COOKIE_ANSWERS_MAX
    }

    pub(super) fn push_answer(&mut self, route: Route, header: tcp::Header) {
        self.cookie_answers.push_back((route, header));
    }

    pub(super) fn next_answer(&mut self) -> Option<(Route, tcp::Header)> {
        self.cookie_answers.pop_front()
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.cookie_answers.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Listener {
    local: SocketAddr,
    generation: u64,
    pub(super) params: ListenParams,
    half_open: tcp::Backlog,
    waiting: tcp::Backlog,
    /// Time at which the last cookie was sent.
    pub(super) cookie_sent_at: Option<Instant>,
}

impl Listener {
    fn covers(&self, local: IpAddr) -> bool {
        covers(self.local.ip(), self.params.only_ipv6, local)
    }

    fn new(local: SocketAddr, generation: u64, params: ListenParams) -> Self {
        // Beyond the half-open slots, SYNs are answered with cookies, which take no slot.
        let half_open = params.backlog.clamp(1, LISTEN_BACKLOG_MAX);
        let waiting = tcp::Backlog::waiting(params.backlog);
        Self {
            local,
            generation,
            params,
            half_open: tcp::Backlog::new(half_open),
            waiting,
            cookie_sent_at: None,
        }
    }

    pub(super) const fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn expects_cookies(&self, now: Instant) -> bool {
        self.cookie_sent_at.is_some_and(|at| now.nanos_since(at) < tcp::COOKIE_VALID_NS)
    }

    /// Takes a half-open slot for a connection from `source`, whose SYN was checked.
    pub(super) fn take_half_open(&mut self, source: IpAddr) -> Result<BacklogSlot, SynRefusal> {
        let taken = self.half_open.take_free(source, NOT_YET)?;
        Ok(self.slot(Stage::HalfOpen(taken)))
    }

    /// For a connection that a cookie opens, if a waiting slot would be found for it.
    pub(super) fn take_arriving(&self, source: IpAddr) -> Option<BacklogSlot> {
        self.waiting.has_place_for(source).then(|| self.slot(Stage::Arriving))
    }

    pub(super) fn take_waiting(
        &mut self,
        source: IpAddr,
        connection: u32,
    ) -> Result<(BacklogSlot, Option<u32>), SynRefusal> {
        let taken = self.waiting.take(source, connection)?;
        Ok((self.slot(Stage::Waiting(taken.place)), taken.evicted))
    }

    pub(super) fn set_standing(&mut self, slot: BacklogSlot, standing: tcp::Standing) {
        if let Stage::Waiting(of) = slot.stage {
            self.waiting.set_standing(of, standing);
        }
    }

    pub(super) fn release(&mut self, slot: BacklogSlot) {
        match slot.stage {
            Stage::HalfOpen(of) => self.half_open.release(of),
            Stage::Arriving => {}
            Stage::Waiting(of) => self.waiting.release(of),
        }
    }

    const fn slot(&self, stage: Stage) -> BacklogSlot {
        let (tcp_port, generation) = (self.local.port(), self.generation);
        BacklogSlot { tcp_port, generation, stage, asked: false }
    }
}

/// Placeholder for the connection of a half-open slot, which is never evicted.
const NOT_YET: u32 = u32::MAX;

/// A slot in the backlog of a listener, which may have been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogSlot {
    tcp_port: u16,
    /// Generation of the listener. A later one at the same address has another.
    generation: u64,
    stage: Stage,
    pub(super) asked: bool,
}

impl BacklogSlot {
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    HalfOpen(tcp::BacklogPlace),
    Arriving,
    Waiting(tcp::BacklogPlace),
}

fn covers(listener: IpAddr, only_ipv6: bool, local: IpAddr) -> bool {
    match listener {
        // As IPv6 sockets of the kernel (RFC 3493 §5.3).
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => !only_ipv6 || local.is_ipv6(),
        IpAddr::V4(address) if address.is_unspecified() => local.is_ipv4(),
        address => address == local,
    }
}

pub(super) fn canonical(local: SocketAddr) -> SocketAddr {
    SocketAddr::new(local.ip().to_canonical(), local.port())
}
