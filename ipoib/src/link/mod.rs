//! An interface on one IPoIB subnet (RFC 4391, RFC 4392), sans-IO.
//!
//! [`handle_port`](Link::handle_port), [`handle_mad`](Link::handle_mad),
//! [`handle_packet`](Link::handle_packet), [`handle_timeout`](Link::handle_timeout) and
//! [`send`](Link::send) change state. The caller then drains [`poll_mad`](Link::poll_mad) and
//! [`poll_packet`](Link::poll_packet), and calls `handle_timeout` at
//! [`poll_timeout`](Link::poll_timeout).
//!
//! ```text
//!   membership   the broadcast group: the link is up while this port is in it
//!   groups       other groups: joined to receive, or to send only;  joins   their requests
//!   neighbour    IP address to link-layer address;  path   port to LID: both resolved on demand
//!   receive      received packets;  send   sent datagrams;  announce   announcements of own addresses
//!   lease        an IPv4 address by DHCP;  dhcp   its messages on the link
//! ```

mod announce;
mod config;
mod dhcp;
mod discovery;
mod groups;
mod joins;
mod lease;
mod membership;
mod neighbour;
mod path;
mod receive;
mod sa;
mod send;
mod waiting;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

pub use config::{LinkConfig, link_local};
pub use lease::Lease;
pub use membership::{DownReason, LinkState};
pub use send::SendError;

use crate::counters::Counters;
use crate::fabric::PortInfo;
use crate::limits::{SPARE_MAX, UNDELIVERABLE_MAX};
use crate::multicast::MulticastMap;
use crate::wire::address::{Gid, Lid, LinkAddress, PKey};
use crate::wire::datagram::HEADER_LEN;
use crate::wire::mad::{JoinState, MAD_LEN};
use announce::Announcing;
use groups::Groups;
use membership::Membership;
use neighbour::Neighbours;
use path::Paths;
use sa::Client;
use waiting::Budget;

const TRACE: &str = "urnic::ipoib";
/// Largest datagram before the broadcast group is joined, in bytes (RFC 4391 §7).
// spec: IPOIB-7-1
const MTU_DEFAULT: usize = 2048 - HEADER_LEN;

/// An interface on an IPoIB link.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    map: MulticastMap,
    port: Option<PortInfo>,
    /// The port's key of the link's partition: of a full member, or of a limited one.
    own_key: PKey,
    client: Client,
    membership: Membership,
    groups: Groups,
    /// IP groups that the host receives, besides those of the interface.
    ip_groups: BTreeSet<IpAddr>,
    neighbours: Neighbours,
    announcing: Announcing,
    dhcp: Option<lease::Client>,
    paths: Paths,
    budget: Budget,
    /// Joins (`true`) and leaves (`false`), sent when other requests have been answered.
    chores: VecDeque<(Gid, JoinState, bool)>,
    answers: VecDeque<(Lid, [u8; MAD_LEN])>,
    out: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Payloads for [`poll_undeliverable`](Self::poll_undeliverable).
    undeliverable: VecDeque<Vec<u8>>,
    psn: u32,
    counters: Counters,
}

impl Link {
    /// Creates a link that is down until [`handle_port`](Self::handle_port).
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        Self {
            map: config.map(),
            port: None,
            own_key: config.p_key,
            client: Client::new(config.seed),
            membership: Membership::default(),
            groups: Groups::default(),
            ip_groups: BTreeSet::new(),
            neighbours: Neighbours::default(),
            announcing: Announcing::default(),
            dhcp: config.dhcp.then(|| lease::Client::new(config.seed)),
            paths: Paths::default(),
            budget: Budget::default(),
            chores: VecDeque::new(),
            answers: VecDeque::new(),
            out: VecDeque::new(),
            spare: Vec::new(),
            undeliverable: VecDeque::new(),
            psn: 0,
            counters: Counters::default(),
            config,
        }
    }

    /// Returns the link's settings.
    #[must_use]
    pub const fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the port as the subnet manager has set it up, once known.
    #[must_use]
    pub const fn port(&self) -> Option<&PortInfo> {
        self.port.as_ref()
    }

    /// Returns the largest datagram, in bytes: the broadcast group's MTU, less the encapsulation.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        match self.membership.state() {
            LinkState::Up { mtu, .. } => mtu,
            LinkState::Down(_) => MTU_DEFAULT,
        }
    }

    /// Returns the state of the link, with the reason if it is down.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.membership.state()
    }

    /// Returns true if the address is this interface's.
    #[must_use]
    pub fn owns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.config.ipv4.is_some_and(|(own, _)| own == address),
            IpAddr::V6(address) => self.own_ipv6().contains(&Some(address)),
        }
    }

    /// The configured address, and the link-local one.
    fn own_ipv6(&self) -> [Option<Ipv6Addr>; 2] {
        let given = self.config.ipv6.map(|(address, _)| address);
        let of_link = self.port.as_ref().map(|port| link_local(port.guid));
        [given, of_link.filter(|_| given.is_some())]
    }

    /// RFC 4391 §9.1.1.
    // spec: IPOIB-9.1-2
    fn own_address(&self) -> LinkAddress {
        LinkAddress { qpn: self.config.qpn, gid: self.own_gid() }
    }

    fn own_gid(&self) -> Gid {
        self.port.as_ref().map_or(Gid([0; 16]), PortInfo::gid)
    }

    fn own_lid(&self) -> Lid {
        self.port.as_ref().map_or(Lid(0), |port| port.lid)
    }

    /// Returns the next management datagram to send, and its destination port.
    pub fn poll_mad(&mut self, now_ns: u64) -> Option<(Lid, [u8; MAD_LEN])> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        let sm_lid = self.port.as_ref().map(|port| port.sm_lid)?;
        let mad = self.client.poll(now_ns)?;
        self.counters.requests_sent += 1;
        Some((sm_lid, mad))
    }

    /// Returns true if no request is outstanding or deferred.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.chores.is_empty() && self.client.poll_timeout().is_none()
    }

    /// Returns the next packet to send. Return its allocation by [`recycle`](Self::recycle).
    pub fn poll_packet(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Returns the next datagram without an answering neighbour or a path, which a router reports
    /// to its sender (RFC 1812 §5.2.7.1, RFC 4861 §7.2.2). The last [`UNDELIVERABLE_MAX`] are kept.
    pub fn poll_undeliverable(&mut self) -> Option<Vec<u8>> {
        let mut payload = self.undeliverable.pop_front()?;
        Some(payload.split_off(HEADER_LEN.min(payload.len())))
    }

    /// Counts payloads without a path, and keeps them for error reporting.
    fn without_path(&mut self, payloads: impl IntoIterator<Item = Vec<u8>>) {
        self.counters.without_path += self.keep_undeliverable(payloads);
    }

    /// Returns the number of payloads.
    fn keep_undeliverable(&mut self, payloads: impl IntoIterator<Item = Vec<u8>>) -> u64 {
        let mut count = 0;
        for payload in payloads {
            count += 1;
            if self.undeliverable.len() >= UNDELIVERABLE_MAX {
                self.undeliverable.pop_front();
            }
            self.undeliverable.push_back(payload);
        }
        count
    }

    /// Takes back the allocation of a packet that was sent.
    pub fn recycle(&mut self, packet: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(packet);
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) or
    /// [`poll_mad`](Self::poll_mad).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let due = [
            self.client.poll_timeout(),
            self.neighbours.poll_timeout(),
            self.membership.poll_timeout(),
            self.dhcp_timeout(),
            self.announcing_timeout(),
        ];
        due.into_iter().flatten().min()
    }

    /// Runs timers.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(outcome) = self.client.poll_silent(now_ns) {
            self.counters.requests_unanswered += 1;
            self.handle_outcome(now_ns, outcome);
        }
        self.run_membership(now_ns);
        self.run_chores(now_ns);
        self.run_dhcp(now_ns);
        self.run_announcing(now_ns);
        while let Some(due) = self.neighbours.poll_due(now_ns, &mut self.budget) {
            match due {
                neighbour::Due::Ask(ip) => self.ask_neighbour(now_ns, ip, None),
                neighbour::Due::Probe(ip, at) => self.ask_neighbour(now_ns, ip, Some(at)),
                neighbour::Due::Lost(at) => {
                    let dropped = self.paths.forget(at.gid, &mut self.budget);
                    self.counters.without_path += dropped;
                }
                neighbour::Due::Silent(payloads) => {
                    self.counters.neighbours_silent += self.keep_undeliverable(payloads);
                }
            }
        }
    }
}

/// `head` begins the datagram.
#[must_use]
pub(crate) fn destination(head: &[u8]) -> Option<IpAddr> {
    send::destination(head).map(|(_, to)| to)
}

#[cfg(test)]
impl Link {
    pub(crate) fn table_lens(&self) -> (usize, usize) {
        (self.neighbours.len(), self.paths.len())
    }

    pub(crate) fn chores_len(&self) -> usize {
        self.chores.len()
    }

    pub(crate) const fn waiting_octets(&self) -> usize {
        self.budget.used()
    }
}
