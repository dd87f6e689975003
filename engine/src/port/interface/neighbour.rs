//! Link addresses of neighbours: learned from ARP and NDP, queried when missing. smoltcp does not
//! share its table. Entries do not expire. RFC 1122 §2.3.2.1 requires one of four ways to find
//! stale entries. Here it is advice from above: a connection that gets no answer causes a query.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use smoltcp::wire::EthernetAddress;
use tracing::debug;
use urnic_netdev::TxFrame;

use crate::limits::{CONNECTIONS_MAX, NEIGHBOUR_LOCK_NS, NEIGHBOURS_MAX};
use crate::port::TRACE;
use crate::port::config::PortConfig;
use crate::port::interface::discovery::{Claim, arp_request, claim_in, neighbour_solicitation};
use crate::port::interface::framing::{LinkFraming, Opened};
use crate::port::interface::outlet::Outlet;
use crate::siphash::{Key, TableHash};
use crate::time::Instant;

const SOLICIT_INTERVAL_NS: u64 = 200_000_000;

#[derive(Debug)]
pub(crate) struct Neighbours {
    known: HashMap<IpAddr, Known, TableHash>,
    order: VecDeque<IpAddr>,
    /// Questions without an answer yet, and the connections that wait for it.
    asked: HashMap<IpAddr, Question, TableHash>,
    /// Unanswered queries, oldest first; entries of answered queries are stale.
    due: VecDeque<(Instant, IpAddr)>,
    /// Connections whose query was answered, or must be repeated.
    woken: Vec<u32>,
    /// Counts the times that a neighbour had, or may have had, another address than before.
    changes: u64,
    /// A neighbour was evicted: a neighbour that is not in the table may have been known before.
    has_forgotten: bool,
    /// A new neighbour without a question, which may have been known, is not counted yet.
    owes_change: bool,
    counted_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    mac: [u8; 6],
    since: Instant,
    evidence: Evidence,
}

/// How a link address came to be known, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    Source,
    /// An advertisement without Override: a proxy's, or an anycast address (RFC 4861 §7.2.4).
    Advertised,
    /// A claim that replaces what is known: ARP, a solicitation, an advertisement with Override.
    Overriding,
}

#[derive(Debug)]
struct Question {
    asked_at: Instant,
    waiting: Vec<u32>,
}

impl Known {
    fn gives_way_to(&self, evidence: Evidence, now: Instant, asked: bool) -> bool {
        match evidence {
            Evidence::Source => false,
            // RFC 4861 §7.2.5: such an advertisement does not replace a reachable address. A known
            // neighbour is queried only if it is silent, or if only the source of a frame is known.
            Evidence::Advertised => asked,
            // Of several claims in a row the first is kept, unless there was a query: else repeated
            // claims would make every connection look up its route each time.
            Evidence::Overriding => {
                let too_soon = now.nanos_since(self.since) < NEIGHBOUR_LOCK_NS;
                asked || !too_soon || self.evidence < Evidence::Overriding
            }
        }
    }
}

impl Neighbours {
    pub(crate) fn new(key: Key) -> Self {
        Self {
            known: HashMap::with_hasher(TableHash::new(key)),
            order: VecDeque::new(),
            asked: HashMap::with_hasher(TableHash::new(key)),
            due: VecDeque::new(),
            woken: Vec::new(),
            changes: 0,
            has_forgotten: false,
            owes_change: false,
            counted_at: None,
        }
    }

    pub(crate) fn lookup(&self, address: IpAddr) -> Option<[u8; 6]> {
        self.known.get(&address).map(|known| known.mac)
    }

    /// Differs from every earlier value once a neighbour may have another link address than before.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Learns the source MAC of a frame from `address`, which is on this link, if none is known,
    /// and returns true: the neighbour should be queried. Any host can send such a frame.
    pub(crate) fn learn_provisionally(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: [u8; 6],
    ) -> bool {
        let is_new = !self.known.contains_key(&address);
        if is_new {
            self.learn(now, address, mac, Evidence::Source);
        }
        is_new
    }

    fn learn(&mut self, now: Instant, address: IpAddr, mac: [u8; 6], evidence: Evidence) {
        // A multicast address is never a host's own.
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return;
        }
        let known = self.known.get(&address).copied();
        let asked = self.asked.contains_key(&address);
        if let Some(known) = known
            && known.mac != mac
            && !known.gives_way_to(evidence, now, asked)
        {
            return;
        }
        // Made-up addresses must not keep other neighbours from being reached: an evicted address
        // that is needed is queried again. The oldest is evicted: two neighbours queried in turn
        // must not evict each other.
        if known.is_none() {
            if self.known.len() >= NEIGHBOURS_MAX
                && let Some(dropped) = self.order.pop_front()
            {
                self.known.remove(&dropped);
                self.has_forgotten = true;
            }
            self.order.push_back(address);
        }
        let question = self.asked.remove(&address);
        self.woken.extend(question.into_iter().flat_map(|question| question.waiting));
        let has_moved = known.is_some_and(|known| known.mac != mac);
        // Connections may have a route to an evicted neighbour. An answer counts as a change at
        // once, an unsolicited claim once in a lock time, because made-up claims would make every
        // connection look up its route each time. A peer that gets no acknowledgment repeats its
        // query, which is such a claim.
        self.changes += u64::from(has_moved || (asked && self.has_forgotten));
        self.owes_change |= known.is_none() && !asked && self.has_forgotten;
        let is_due = self.counted_at.is_none_or(|at| now.nanos_since(at) >= NEIGHBOUR_LOCK_NS);
        if self.owes_change && is_due {
            self.owes_change = false;
            self.counted_at = Some(now);
            self.changes += 1;
        }
        if has_moved || known.is_none() {
            // Unsolicited claims are not traced: any host can repeat them, under any address.
            if asked {
                debug!(target: TRACE, %address, mac = %EthernetAddress(mac), "neighbour resolved");
            } else if has_moved {
                debug!(target: TRACE, %address, mac = %EthernetAddress(mac), "neighbour moved");
            }
            self.known.insert(address, Known { mac, since: now, evidence });
        } else if let Some(known) = self.known.get_mut(&address) {
            known.evidence = known.evidence.max(evidence);
        }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.asked.values().map(|question| question.waiting.len()).sum()
    }

    pub(crate) fn next_woken(&mut self) -> Option<u32> {
        self.woken.pop()
    }

    /// A connection that still needs the answer repeats its query.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(asked_at, address)) = self.due.front()
            && now.nanos_since(asked_at) >= SOLICIT_INTERVAL_NS
        {
            self.due.pop_front();
            if self.asked.get(&address).is_some_and(|question| question.asked_at == asked_at)
                && let Some(question) = self.asked.remove(&address)
            {
                debug!(target: TRACE, %address, "neighbour has not answered");
                self.woken.extend(question.waiting);
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due.front().map(|(asked_at, _)| asked_at.plus_nanos(SOLICIT_INTERVAL_NS))
    }

    /// False for frames other than ARP, neighbour solicitations and advertisements.
    pub(crate) fn learn_from(
        &mut self,
        now: Instant,
        config: &PortConfig,
        opened: &Opened<'_>,
    ) -> bool {
        let Some(Claim { address, mac, to_us, overrides }) = claim_in(config, opened) else {
            return false;
        };
        // RFC 826: what is known is brought up to date; new is what is said to this port or what it
        // asked for.
        let known = self.known.contains_key(&address);
        let wanted = to_us || self.asked.contains_key(&address);
        if (known || wanted) && !config.owns(address) {
            let evidence = if overrides { Evidence::Overriding } else { Evidence::Advertised };
            self.learn(now, address, mac, evidence);
        }
        true
    }

    /// Queries a link address, unless a recent query is unanswered. The connection in `waiting` is
    /// woken by the answer, or to repeat the query. Returns false if no connection will be woken.
    pub(crate) fn solicit(
        &mut self,
        now: Instant,
        config: &PortConfig,
        framing: LinkFraming,
        target: IpAddr,
        waiting: Option<u32>,
        outlet: &mut Outlet<'_>,
    ) -> bool {
        let waits = waiting.is_some();
        if let Some(question) = self.asked.get_mut(&target) {
            question.waiting.extend(waiting);
            return waits;
        }
        let mut frame = match (target, config.address_for(target)) {
            (IpAddr::V4(target), Some(IpAddr::V4(own))) => arp_request(config.mac, own, target),
            (IpAddr::V6(target), Some(IpAddr::V6(own))) => {
                neighbour_solicitation(config.mac, own, target)
            }
            _ => return false,
        };
        // As many queries as connections: each waits for one. Others can wait.
        if self.due.len() >= CONNECTIONS_MAX && waiting.is_none() {
            return false;
        }
        let waiting = waiting.into_iter().collect();
        self.asked.insert(target, Question { asked_at: now, waiting });
        self.due.push_back((now, target));
        framing.seal(&mut frame);
        let frame = TxFrame::whole(&frame);
        // Dropped as if lost on the link: the query is repeated.
        let _lost = outlet.send(&frame);
        waits
    }
}

#[cfg(test)]
mod tests;
