//! Link addresses of neighbours: learned from ARP and NDP, queried when missing.
//!
//! smoltcp has such a table too, but does not share it, and the engine's frames bypass smoltcp.
//!
//! Entries do not expire. RFC 1122 §2.3.2.1 requires one of four ways to find stale entries. Here
//! it is advice from above: a connection that gets no answer causes a query of its neighbour.

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

/// Time between two queries for the same neighbour.
const SOLICIT_INTERVAL_NS: u64 = 200_000_000;

#[derive(Debug)]
pub(crate) struct Neighbours {
    known: HashMap<IpAddr, Known, TableHash>,
    /// The addresses in `known`, oldest first.
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
    /// A neighbour that is new without a question, and may have been known, is not counted in `changes` yet.
    owes_change: bool,
    /// When such a neighbour was counted last.
    counted_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    mac: [u8; 6],
    /// Time at which the address was learned.
    since: Instant,
    evidence: Evidence,
}

/// How the link address of a neighbour came to be known, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// The source of a frame.
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
    /// Returns true if a claim of another link address replaces this one.
    fn gives_way_to(&self, evidence: Evidence, now: Instant, asked: bool) -> bool {
        match evidence {
            Evidence::Source => false,
            // RFC 4861 §7.2.5: such an advertisement does not replace a reachable address. A known
            // neighbour is queried only if it is silent, or if only the source of a frame is known:
            // then the answer counts as for an incomplete entry.
            Evidence::Advertised => asked,
            // Of several claims in a row the first is kept, unless there was a query: repeated
            // claims must not make every connection look up its route each time.
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

    /// Differs from every earlier value once a neighbour that is or was known has another link
    /// address.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Learns the source MAC of a frame from `address`, which is on this link, if no link address
    /// is known. Returns true if so: the neighbour should be queried. Any host can send such a
    /// frame, so it never changes a known entry.
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
        // Made-up addresses must not keep other neighbours from being reached. Connections keep their
        // routes; an evicted address that is needed is queried again. The oldest is evicted: two
        // neighbours that are queried in turn must not evict each other.
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
        // Connections may have a route to an evicted neighbour. An answer counts as a change at once. An
        // unsolicited claim counts once in a lock time, because made-up claims would make every connection
        // look up its route each time. A peer that gets no acknowledgment repeats its query, which is such
        // a claim.
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

    /// Number of connections that wait for an answer.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.asked.values().map(|question| question.waiting.len()).sum()
    }

    /// Takes a connection that need not wait for an answer any longer.
    pub(crate) fn next_woken(&mut self) -> Option<u32> {
        self.woken.pop()
    }

    /// Removes queries that are too old; a connection that still needs the answer repeats the
    /// query.
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

    /// Time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due.front().map(|(asked_at, _)| asked_at.plus_nanos(SOLICIT_INTERVAL_NS))
    }

    /// Learns from an ARP packet or a neighbour solicitation or advertisement; returns false if the
    /// frame is something else.
    pub(crate) fn learn_from(
        &mut self,
        now: Instant,
        config: &PortConfig,
        opened: &Opened<'_>,
    ) -> bool {
        let Some(Claim { address, mac, to_us, overrides }) = claim_in(config, opened) else {
            return false;
        };
        // RFC 826: what is known is brought up to date; new is what is said to this port or
        // what it asked for. No other host speaks for its own addresses.
        let known = self.known.contains_key(&address);
        let wanted = to_us || self.asked.contains_key(&address);
        if (known || wanted) && !config.owns(address) {
            let evidence = if overrides { Evidence::Overriding } else { Evidence::Advertised };
            self.learn(now, address, mac, evidence);
        }
        true
    }

    /// Queries a neighbour's link address, unless a recent query is unanswered. The connection in
    /// `waiting` is woken by the answer, or when it is time to repeat the query. Returns false if
    /// no connection will be woken.
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
        // As many queries as connections: each waits for one. Queries without a waiting connection
        // can wait.
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
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use smoltcp::wire::{
        Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
        RawHardwareAddress,
    };

    use super::*;
    use crate::port::interface::outlet::Refused;

    #[test]
    fn the_table_is_bounded_and_the_newest_neighbour_is_always_in_it() {
        let mut neighbours = Neighbours::new((1, 2));
        for host in 0..2 * NEIGHBOURS_MAX {
            let host = u32::try_from(host).unwrap();
            let address = IpAddr::V4(Ipv4Addr::from(host));
            neighbours.learn(Instant::ZERO, address, [2, 0, 0, 0, 0, 1], Evidence::Overriding);
            assert!(neighbours.lookup(address).is_some());
        }
        assert_eq!(
            (neighbours.known.len(), neighbours.order.len()),
            (NEIGHBOURS_MAX, NEIGHBOURS_MAX)
        );
    }

    #[test]
    fn a_neighbour_is_kept_until_as_many_others_have_come_as_the_table_holds() {
        let mut neighbours = Neighbours::new((1, 2));
        let address = |host: usize| IpAddr::V4(Ipv4Addr::from(u32::try_from(host).unwrap()));
        for host in 0..3 * NEIGHBOURS_MAX {
            neighbours.learn(
                Instant::ZERO,
                address(host),
                [2, 0, 0, 0, 0, 1],
                Evidence::Overriding,
            );
            // A repeated claim makes no difference.
            let known = address(host.saturating_sub(7));
            neighbours.learn(Instant::ZERO, known, [2, 0, 0, 0, 0, 1], Evidence::Overriding);
            let oldest = (host + 1).saturating_sub(NEIGHBOURS_MAX);
            assert!(neighbours.lookup(address(oldest)).is_some(), "{host}");
            assert!(oldest == 0 || neighbours.lookup(address(oldest - 1)).is_none(), "{host}");
        }
    }

    /// A connection keeps its route when the neighbour is evicted, and causes a query when the peer
    /// is silent.
    #[test]
    fn an_answer_for_a_neighbour_that_was_forgotten_counts_as_a_change() {
        let mut neighbours = Neighbours::new((1, 2));
        let peer = IpAddr::V4(PEER);
        receive(&mut neighbours, &arp_request(MAC, PEER, OWN));
        assert!(!neighbours.has_forgotten);
        // One host invents as many hosts as are needed.
        for host in 0.. {
            if neighbours.lookup(peer).is_none() {
                break;
            }
            let host = Ipv4Addr::from(0x0A10_0000_u32 + host);
            receive(&mut neighbours, &arp_request([4; 6], host, OWN));
        }
        let before = neighbours.changes();
        assert_eq!(before, 1, "what was not asked for lets connections look for their routes once");
        ask(&mut neighbours, Instant::ZERO, None);
        receive(&mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!(neighbours.lookup(peer), Some([6; 6]));
        assert!(neighbours.changes() > before);
    }

    /// A connection that only acknowledges never asks: the question of its peer has to count.
    #[test]
    fn a_question_of_a_neighbour_that_was_forgotten_counts_within_a_second() {
        let mut neighbours = Neighbours::new((1, 2));
        let peer = IpAddr::V4(PEER);
        receive(&mut neighbours, &arp_request(MAC, PEER, OWN));
        let made_up = |host: u32| arp_request([4; 6], Ipv4Addr::from(0x0A10_0000_u32 + host), OWN);
        for host in 0.. {
            if neighbours.lookup(peer).is_none() {
                break;
            }
            receive(&mut neighbours, &made_up(host));
        }
        assert_eq!(neighbours.changes(), 1);
        let at = |ns| Instant::ZERO.plus_nanos(ns);
        receive_at(at(1), &mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!(neighbours.changes(), 1, "it was counted a moment ago");
        receive_at(at(NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!((neighbours.lookup(peer), neighbours.changes()), (Some([6; 6]), 2));
        receive_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!(neighbours.changes(), 2, "it is known");
    }

    #[test]
    fn a_multicast_link_address_is_not_learned() {
        let mut neighbours = Neighbours::new((1, 2));
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        neighbours.learn(Instant::ZERO, address, [0xff; 6], Evidence::Overriding);
        neighbours.learn(Instant::ZERO, address, [0; 6], Evidence::Overriding);
        assert!(neighbours.lookup(address).is_none());
    }

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn receive(neighbours: &mut Neighbours, frame: &[u8]) {
        receive_at(Instant::ZERO, neighbours, frame);
    }

    fn receive_at(now: Instant, neighbours: &mut Neighbours, frame: &[u8]) {
        let config = PortConfig::for_ipv4(OWN);
        neighbours.learn_from(now, &config, &LinkFraming::Ethernet.open(frame).unwrap());
    }

    fn ask(neighbours: &mut Neighbours, now: Instant, waiting: Option<u32>) -> usize {
        let config = PortConfig::for_ipv4(OWN);
        let target = IpAddr::V4(PEER);
        let (mut refused, mut device) = (Refused::default(), |_: &TxFrame<'_>| Ok(()));
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        let waits =
            neighbours.solicit(now, &config, LinkFraming::Ethernet, target, waiting, &mut outlet);
        assert_eq!(waits, waiting.is_some());
        outlet.taken()
    }

    #[test]
    fn new_is_only_what_was_asked_for_or_said_to_us() {
        let mut neighbours = Neighbours::new((1, 2));
        let other = Ipv4Addr::new(10, 0, 0, 3);
        receive(&mut neighbours, &arp_request(MAC, PEER, other));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), None, "overheard");
        receive(&mut neighbours, &arp_request(MAC, PEER, OWN));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some(MAC));
        let later = Instant::ZERO.plus_nanos(NEIGHBOUR_LOCK_NS);
        receive_at(later, &mut neighbours, &arp_request([4; 6], PEER, PEER));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some([4; 6]), "gratuitous ARP");
        assert_eq!(neighbours.changes(), 1);
        assert!(!neighbours.learn_provisionally(later, IpAddr::V4(PEER), MAC));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some([4; 6]), "a SYN changes nothing");
        receive(&mut neighbours, &arp_request(MAC, OWN, OWN));
        assert_eq!(
            neighbours.lookup(IpAddr::V4(OWN)),
            None,
            "no other host speaks for an own address"
        );
    }

    #[test]
    fn what_a_frame_came_from_is_learned_provisionally_once_and_to_be_asked_for() {
        let mut neighbours = Neighbours::new((1, 2));
        assert!(neighbours.learn_provisionally(Instant::ZERO, IpAddr::V4(PEER), MAC));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some(MAC));
        assert!(!neighbours.learn_provisionally(Instant::ZERO, IpAddr::V4(PEER), MAC));
    }

    #[test]
    fn of_claims_in_a_row_the_first_holds_unless_it_was_asked_for() {
        let mut neighbours = Neighbours::new((1, 2));
        let at = |ns| Instant::ZERO.plus_nanos(ns);
        let lookup = |neighbours: &Neighbours| neighbours.lookup(IpAddr::V4(PEER));
        let (first, second, third) = (MAC, [4; 6], [6; 6]);
        receive_at(at(0), &mut neighbours, &arp_request(first, PEER, OWN));
        receive_at(at(NEIGHBOUR_LOCK_NS - 1), &mut neighbours, &arp_request(second, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(first), 0));
        receive_at(at(NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(second, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(second), 1));
        // Receiving the same claim again does not renew the entry.
        receive_at(
            at(2 * NEIGHBOUR_LOCK_NS - 1),
            &mut neighbours,
            &arp_request(second, PEER, PEER),
        );
        receive_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(first, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(first), 2));
        receive_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(third, PEER, PEER));
        assert_eq!(lookup(&neighbours), Some(first));
        ask(&mut neighbours, at(2 * NEIGHBOUR_LOCK_NS), None);
        receive_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(third, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(third), 3));
    }

    #[test]
    fn an_answer_wakes_the_connections_that_wait_for_it_and_no_others() {
        let mut neighbours = Neighbours::new((1, 2));
        assert_eq!(ask(&mut neighbours, Instant::ZERO, Some(3)), 1);
        assert_eq!(ask(&mut neighbours, Instant::ZERO, Some(4)), 0, "asked a moment ago");
        receive(&mut neighbours, &arp_request(MAC, Ipv4Addr::new(10, 0, 0, 7), OWN));
        assert_eq!(neighbours.next_woken(), None);
        receive(&mut neighbours, &arp_request(MAC, PEER, PEER));
        let mut woken: Vec<_> = std::iter::from_fn(|| neighbours.next_woken()).collect();
        woken.sort_unstable();
        assert_eq!(woken, [3, 4]);
        let at = neighbours.poll_timeout().unwrap();
        neighbours.handle_timeout(at);
        assert_eq!((neighbours.poll_timeout(), neighbours.next_woken()), (None, None));
    }

    #[test]
    fn a_question_is_asked_again_by_those_who_still_wait() {
        let mut neighbours = Neighbours::new((1, 2));
        ask(&mut neighbours, Instant::ZERO, Some(3));
        neighbours.handle_timeout(Instant::ZERO.plus_nanos(SOLICIT_INTERVAL_NS - 1));
        assert_eq!(neighbours.next_woken(), None);
        let later = Instant::ZERO.plus_nanos(SOLICIT_INTERVAL_NS);
        neighbours.handle_timeout(later);
        assert_eq!(neighbours.next_woken(), Some(3));
        assert_eq!(ask(&mut neighbours, later, None), 1);
    }

    const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    fn config_v6() -> PortConfig {
        PortConfig { ipv6: Some((OWN_V6, 64)), ..PortConfig::for_ipv4(OWN) }
    }

    /// Takes an advertisement in which the peer's address has `mac`.
    fn advertise(neighbours: &mut Neighbours, now: Instant, mac: [u8; 6], overrides: bool) {
        let mut flags = NdiscNeighborFlags::SOLICITED;
        flags.set(NdiscNeighborFlags::OVERRIDE, overrides);
        let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags,
            target_addr: PEER_V6,
            lladdr: Some(RawHardwareAddress::from(EthernetAddress(mac))),
        });
        let ip = Ipv6Repr {
            src_addr: PEER_V6,
            dst_addr: OWN_V6,
            next_header: IpProtocol::Icmpv6,
            payload_len: message.buffer_len(),
            hop_limit: 255,
        };
        let mut frame = vec![0; 14 + ip.buffer_len() + message.buffer_len()];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        let mut packet = Ipv6Packet::new_unchecked(&mut frame[14..]);
        ip.emit(&mut packet);
        message.emit(
            &PEER_V6,
            &OWN_V6,
            &mut Icmpv6Packet::new_unchecked(packet.payload_mut()),
            &smoltcp::phy::ChecksumCapabilities::default(),
        );
        let config = config_v6();
        assert!(neighbours.learn_from(now, &config, &LinkFraming::Ethernet.open(&frame).unwrap()));
    }

    fn ask_v6(neighbours: &mut Neighbours, now: Instant) {
        let config = config_v6();
        let target = IpAddr::V6(PEER_V6);
        let (mut refused, mut device) = (Refused::default(), |_: &TxFrame<'_>| Ok(()));
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        neighbours.solicit(now, &config, LinkFraming::Ethernet, target, None, &mut outlet);
        assert_eq!(outlet.taken(), 1);
    }

    /// RFC 4861 §7.2.5. smoltcp's answers have no Override.
    #[test]
    fn an_advertisement_without_override_replaces_only_a_silent_neighbour() {
        let lookup = |neighbours: &Neighbours| neighbours.lookup(IpAddr::V6(PEER_V6));
        let at = |locks| Instant::ZERO.plus_nanos(locks * NEIGHBOUR_LOCK_NS);
        let mut neighbours = Neighbours::new((1, 2));
        advertise(&mut neighbours, at(0), MAC, false);
        assert_eq!(lookup(&neighbours), None, "unknown, and no query");
        for first_overrides in [true, false] {
            let mut neighbours = Neighbours::new((1, 2));
            ask_v6(&mut neighbours, at(0));
            advertise(&mut neighbours, at(0), MAC, first_overrides);
            assert_eq!(lookup(&neighbours), Some(MAC));
            advertise(&mut neighbours, at(1), [4; 6], false);
            assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(MAC), 0), "no query");
            // A known neighbour is queried if it is silent.
            ask_v6(&mut neighbours, at(2));
            advertise(&mut neighbours, at(2), [4; 6], false);
            assert_eq!((lookup(&neighbours), neighbours.changes()), (Some([4; 6]), 1));
            advertise(&mut neighbours, at(3), [6; 6], false);
            assert_eq!((lookup(&neighbours), neighbours.changes()), (Some([4; 6]), 1));
            advertise(&mut neighbours, at(3), [6; 6], true);
            assert_eq!((lookup(&neighbours), neighbours.changes()), (Some([6; 6]), 2));
        }
    }

    /// RFC 4861 §7.2.8: a proxy answers without Override, so that the neighbour's own answer holds.
    #[test]
    fn of_two_answers_the_one_with_override_holds_whichever_comes_first() {
        let lookup = |neighbours: &Neighbours| neighbours.lookup(IpAddr::V6(PEER_V6));
        let (now, proxy) = (Instant::ZERO, [4; 6]);
        for own_first in [false, true] {
            let mut neighbours = Neighbours::new((1, 2));
            ask_v6(&mut neighbours, now);
            let mut answers = [(proxy, false), (MAC, true)];
            if own_first {
                answers.reverse();
            }
            for (mac, overrides) in answers {
                advertise(&mut neighbours, now, mac, overrides);
            }
            assert_eq!(lookup(&neighbours), Some(MAC));
            assert_eq!(neighbours.changes(), u64::from(!own_first), "routes are renewed");
            // From now on the first of several claims holds, as with others.
            advertise(&mut neighbours, now, [6; 6], true);
            assert_eq!(lookup(&neighbours), Some(MAC));
        }
    }

    #[test]
    fn the_strongest_evidence_for_an_address_is_what_counts() {
        let mut neighbours = Neighbours::new((1, 2));
        ask_v6(&mut neighbours, Instant::ZERO);
        for (mac, overrides) in [(MAC, false), (MAC, true), (MAC, false), ([4; 6], true)] {
            advertise(&mut neighbours, Instant::ZERO, mac, overrides);
            assert_eq!(neighbours.lookup(IpAddr::V6(PEER_V6)), Some(MAC));
        }
    }

    #[test]
    fn an_answer_confirms_what_a_frame_came_from_or_replaces_it() {
        for (overrides, mac) in [(false, MAC), (true, MAC), (false, [4; 6]), (true, [4; 6])] {
            let mut neighbours = Neighbours::new((1, 2));
            assert!(neighbours.learn_provisionally(Instant::ZERO, IpAddr::V6(PEER_V6), MAC));
            advertise(&mut neighbours, Instant::ZERO, [8; 6], false);
            assert_eq!(neighbours.lookup(IpAddr::V6(PEER_V6)), Some(MAC), "nothing was asked");
            ask_v6(&mut neighbours, Instant::ZERO);
            advertise(&mut neighbours, Instant::ZERO, mac, overrides);
            assert_eq!(neighbours.lookup(IpAddr::V6(PEER_V6)), Some(mac));
            assert_eq!(neighbours.changes(), u64::from(mac != MAC));
            // The question is answered, and what was said now holds.
            assert!(neighbours.asked.is_empty());
            advertise(&mut neighbours, Instant::ZERO, [8; 6], false);
            assert_eq!(neighbours.lookup(IpAddr::V6(PEER_V6)), Some(mac));
        }
    }

    /// A connection may have a route from before the table forgot the neighbour: the answer renews it,
    /// though the table has learned the new address meanwhile.
    #[test]
    fn an_answer_without_override_counts_for_a_neighbour_that_was_forgotten() {
        let mut neighbours = Neighbours::new((1, 2));
        neighbours.has_forgotten = true;
        assert!(neighbours.learn_provisionally(Instant::ZERO, IpAddr::V6(PEER_V6), MAC));
        ask_v6(&mut neighbours, Instant::ZERO);
        advertise(&mut neighbours, Instant::ZERO, MAC, true);
        let before = neighbours.changes();
        ask_v6(&mut neighbours, Instant::ZERO.plus_nanos(SOLICIT_INTERVAL_NS));
        advertise(&mut neighbours, Instant::ZERO, MAC, false);
        assert_eq!(neighbours.changes(), before + 1);
    }
}
