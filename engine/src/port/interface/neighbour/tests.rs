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
    assert_eq!((neighbours.known.len(), neighbours.order.len()), (NEIGHBOURS_MAX, NEIGHBOURS_MAX));
}

#[test]
fn a_neighbour_is_kept_until_as_many_others_have_come_as_the_table_holds() {
    let mut neighbours = Neighbours::new((1, 2));
    let address = |host: usize| IpAddr::V4(Ipv4Addr::from(u32::try_from(host).unwrap()));
    for host in 0..3 * NEIGHBOURS_MAX {
        neighbours.learn(Instant::ZERO, address(host), [2, 0, 0, 0, 0, 1], Evidence::Overriding);
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
fn answer_for_an_evicted_neighbour_counts_as_a_change() {
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
fn request_of_an_evicted_neighbour_counts_within_a_second() {
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
fn neighbours_are_learned_only_from_solicited_or_addressed_claims() {
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
    assert_eq!(neighbours.lookup(IpAddr::V4(OWN)), None, "no other host speaks for an own address");
}

#[test]
fn provisional_entry_is_created_once_per_neighbour() {
    let mut neighbours = Neighbours::new((1, 2));
    assert!(neighbours.learn_provisionally(Instant::ZERO, IpAddr::V4(PEER), MAC));
    assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some(MAC));
    assert!(!neighbours.learn_provisionally(Instant::ZERO, IpAddr::V4(PEER), MAC));
}

#[test]
fn locked_neighbour_keeps_the_first_of_unsolicited_claims() {
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
    receive_at(at(2 * NEIGHBOUR_LOCK_NS - 1), &mut neighbours, &arp_request(second, PEER, PEER));
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
fn solicitation_is_repeated_while_connections_wait() {
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
fn advertisement_with_override_wins_in_any_order() {
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
fn strongest_evidence_decides_the_link_address() {
    let mut neighbours = Neighbours::new((1, 2));
    ask_v6(&mut neighbours, Instant::ZERO);
    for (mac, overrides) in [(MAC, false), (MAC, true), (MAC, false), ([4; 6], true)] {
        advertise(&mut neighbours, Instant::ZERO, mac, overrides);
        assert_eq!(neighbours.lookup(IpAddr::V6(PEER_V6)), Some(MAC));
    }
}

#[test]
fn answer_confirms_or_replaces_a_provisional_entry() {
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
fn answer_without_override_restores_an_evicted_neighbour() {
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
