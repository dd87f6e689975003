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
}

#[derive(Debug)]
struct Question {
    asked_at: Instant,
    waiting: Vec<u32>,
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
            self.learn(now, address, mac);
        }
        is_new
    }

    fn learn(&mut self, now: Instant, address: IpAddr, mac: [u8; 6]) {
        // A multicast address is never a host's own.
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return;
        }
        let known = self.known.get(&address).copied();
        if let Some(Known { mac: before, since }) = known {
            // Of several claims in a row the first is kept, unless there was a query: repeated
            // claims must not make every connection look up its route each time.
            let too_soon = now.nanos_since(since) < NEIGHBOUR_LOCK_NS;
            if before != mac && too_soon && !self.asked.contains_key(&address) {
                return;
            }
        }
        // Made-up addresses must not keep other neighbours from being reached. Connections
        // keep the route they have; an address that is dropped and needed is asked for again. The oldest
        // is dropped: two neighbours that are asked for in turn must not push each other out.
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
        let asked = question.is_some();
        self.woken.extend(question.into_iter().flat_map(|question| question.waiting));
        let has_moved = known.is_some_and(|known| known.mac != mac);
        // Connections may have a route to a neighbour that was forgotten. An answer counts at once. What was
        // not asked for counts once in a while: made-up claims would make every connection look for its
        // route at each. A peer that gets no acknowledgment repeats its question, which is such a claim.
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
            self.known.insert(address, Known { mac, since: now });
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
        let is_known = self.known.contains_key(&address);
        let is_asked = self.asked.contains_key(&address);
        // RFC 4861 §7.2.5: without Override an advertisement changes nothing that is reachable. A known
        // neighbour is only asked for when it does not answer.
        let counts = if is_known { overrides || is_asked } else { to_us || is_asked };
        if counts && !config.owns(address) {
            self.learn(now, address, mac);
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

    use smoltcp::phy::ChecksumCapabilities;
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
            neighbours.learn(Instant::ZERO, address, [2, 0, 0, 0, 0, 1]);
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
            neighbours.learn(Instant::ZERO, address(host), [2, 0, 0, 0, 0, 1]);
            // Hearing of a known one makes no difference.
            neighbours.learn(Instant::ZERO, address(host.saturating_sub(7)), [2, 0, 0, 0, 0, 1]);
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
        hear(&mut neighbours, &arp_request(MAC, PEER, OWN));
        assert!(!neighbours.has_forgotten);
        // One host invents as many hosts as are needed.
        for host in 0.. {
            if neighbours.lookup(peer).is_none() {
                break;
            }
            let host = Ipv4Addr::from(0x0A10_0000_u32 + host);
            hear(&mut neighbours, &arp_request([4; 6], host, OWN));
        }
        let before = neighbours.changes();
        assert_eq!(before, 1, "what was not asked for lets connections look for their routes once");
        ask(&mut neighbours, Instant::ZERO, None);
        hear(&mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!(neighbours.lookup(peer), Some([6; 6]));
        assert!(neighbours.changes() > before);
    }

    /// A connection that only acknowledges never asks: the question of its peer has to count.
    #[test]
    fn a_question_of_a_neighbour_that_was_forgotten_counts_within_a_second() {
        let mut neighbours = Neighbours::new((1, 2));
        let peer = IpAddr::V4(PEER);
        hear(&mut neighbours, &arp_request(MAC, PEER, OWN));
        let made_up = |host: u32| arp_request([4; 6], Ipv4Addr::from(0x0A10_0000_u32 + host), OWN);
        for host in 0.. {
            if neighbours.lookup(peer).is_none() {
                break;
            }
            hear(&mut neighbours, &made_up(host));
        }
        assert_eq!(neighbours.changes(), 1);
        let at = |ns| Instant::ZERO.plus_nanos(ns);
        hear_at(at(1), &mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!(neighbours.changes(), 1, "it was counted a moment ago");
        hear_at(at(NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!((neighbours.lookup(peer), neighbours.changes()), (Some([6; 6]), 2));
        hear_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request([6; 6], PEER, OWN));
        assert_eq!(neighbours.changes(), 2, "it is known");
    }

    /// smoltcp's answers have no Override.
    #[test]
    fn an_answer_without_override_counts_for_a_neighbour_that_was_asked_for() {
        let (own, peer) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), PEER_V6);
        let config = PortConfig { ipv6: Some((own, 64)), ..PortConfig::for_ipv4(OWN) };
        let mut neighbours = Neighbours::new((1, 2));
        let hear = |neighbours: &mut Neighbours, frame: &[u8]| {
            let opened = LinkFraming::Ethernet.open(frame).unwrap();
            assert!(neighbours.learn_from(Instant::ZERO, &config, &opened));
        };
        hear(&mut neighbours, &neighbour_solicitation(MAC, peer, own));
        assert_eq!(neighbours.lookup(peer.into()), Some(MAC));
        let moved = advertisement([4; 6], peer, own);
        hear(&mut neighbours, &moved);
        assert_eq!(neighbours.lookup(peer.into()), Some(MAC), "not asked for");
        let (mut refused, mut device) = (Refused::default(), |_: &TxFrame<'_>| Ok(()));
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        let (now, framing) = (Instant::ZERO, LinkFraming::Ethernet);
        neighbours.solicit(now, &config, framing, peer.into(), None, &mut outlet);
        hear(&mut neighbours, &moved);
        assert_eq!(neighbours.lookup(peer.into()), Some([4; 6]));
    }

    /// A solicited advertisement without Override.
    fn advertisement(mac: [u8; 6], peer: Ipv6Addr, own: Ipv6Addr) -> Vec<u8> {
        let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags: NdiscNeighborFlags::SOLICITED,
            target_addr: peer,
            lladdr: Some(RawHardwareAddress::from(EthernetAddress(mac))),
        });
        let ip = Ipv6Repr {
            src_addr: peer,
            dst_addr: own,
            next_header: IpProtocol::Icmpv6,
            payload_len: message.buffer_len(),
            hop_limit: 255,
        };
        let mut frame = [&[2; 6][..], &mac, &[0x86, 0xdd]].concat();
        let at = frame.len();
        frame.resize(at + ip.buffer_len() + message.buffer_len(), 0);
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut frame[at..]));
        let mut body = Icmpv6Packet::new_unchecked(&mut frame[at + ip.buffer_len()..]);
        message.emit(&peer, &own, &mut body, &ChecksumCapabilities::default());
        frame
    }

    #[test]
    fn a_multicast_link_address_is_not_learned() {
        let mut neighbours = Neighbours::new((1, 2));
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        neighbours.learn(Instant::ZERO, address, [0xff; 6]);
        neighbours.learn(Instant::ZERO, address, [0; 6]);
        assert!(neighbours.lookup(address).is_none());
    }

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn hear(neighbours: &mut Neighbours, frame: &[u8]) {
        hear_at(Instant::ZERO, neighbours, frame);
    }

    fn hear_at(now: Instant, neighbours: &mut Neighbours, frame: &[u8]) {
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
        hear(&mut neighbours, &arp_request(MAC, PEER, other));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), None, "overheard");
        hear(&mut neighbours, &arp_request(MAC, PEER, OWN));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some(MAC));
        let later = Instant::ZERO.plus_nanos(NEIGHBOUR_LOCK_NS);
        hear_at(later, &mut neighbours, &arp_request([4; 6], PEER, PEER));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some([4; 6]), "gratuitous ARP");
        assert_eq!(neighbours.changes(), 1);
        assert!(!neighbours.learn_provisionally(later, IpAddr::V4(PEER), MAC));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some([4; 6]), "a SYN changes nothing");
        hear(&mut neighbours, &arp_request(MAC, OWN, OWN));
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
        hear_at(at(0), &mut neighbours, &arp_request(first, PEER, OWN));
        hear_at(at(NEIGHBOUR_LOCK_NS - 1), &mut neighbours, &arp_request(second, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(first), 0));
        hear_at(at(NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(second, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(second), 1));
        // Receiving the same claim again does not renew the entry.
        hear_at(at(2 * NEIGHBOUR_LOCK_NS - 1), &mut neighbours, &arp_request(second, PEER, PEER));
        hear_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(first, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(first), 2));
        hear_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(third, PEER, PEER));
        assert_eq!(lookup(&neighbours), Some(first));
        ask(&mut neighbours, at(2 * NEIGHBOUR_LOCK_NS), None);
        hear_at(at(2 * NEIGHBOUR_LOCK_NS), &mut neighbours, &arp_request(third, PEER, PEER));
        assert_eq!((lookup(&neighbours), neighbours.changes()), (Some(third), 3));
    }

    #[test]
    fn an_answer_wakes_the_connections_that_wait_for_it_and_no_others() {
        let mut neighbours = Neighbours::new((1, 2));
        assert_eq!(ask(&mut neighbours, Instant::ZERO, Some(3)), 1);
        assert_eq!(ask(&mut neighbours, Instant::ZERO, Some(4)), 0, "asked a moment ago");
        hear(&mut neighbours, &arp_request(MAC, Ipv4Addr::new(10, 0, 0, 7), OWN));
        assert_eq!(neighbours.next_woken(), None);
        hear(&mut neighbours, &arp_request(MAC, PEER, PEER));
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
}
