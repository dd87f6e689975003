//! Hostile input: wrong keys, forged answers, floods, random bytes.

use proptest::prelude::*;

use super::*;
use crate::limits::{NEIGHBOURS_MAX, PATHS_MAX};
use crate::wire::address::LinkAddress;
use crate::wire::arp::{ArpPacket, Operation};
use crate::wire::datagram::{DatagramType, header};
use crate::wire::mad::{
    Attribute, JoinState, McMemberRecord, Method, Notice, PathRecord, SaMad, Trap,
};
use crate::wire::packet::{GlobalRoute, PacketHeader};

/// Returns a valid packet from host 1 to host 0.
fn packet() -> PacketHeader {
    PacketHeader {
        service_level: 0,
        dlid: Lid(2),
        slid: Lid(3),
        global: None,
        p_key: PKey(0xffff),
        destination_qp: Qpn::from_bits(0x48),
        psn: 0,
        q_key: QKey(0x8001_0b1b),
        source_qp: Qpn::from_bits(0x49),
    }
}

fn global(destination: Gid) -> Option<GlobalRoute> {
    let source = Gid::new(Gid::DEFAULT_PREFIX, guid(1));
    Some(GlobalRoute { traffic_class: 0, flow_label: 0, hop_limit: 0, source, destination })
}

fn own_gid() -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, guid(0))
}

fn broadcast() -> Gid {
    MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff)).broadcast()
}

impl Scene {
    /// Delivers a packet to host 0, bypassing the switch.
    fn inject(&mut self, header: &PacketHeader, payload: &[u8]) {
        let mut octets = Vec::new();
        header.emit(payload, &mut octets);
        self.inject_octets(&octets);
    }

    fn inject_octets(&mut self, octets: &[u8]) {
        let now_ns = self.now_ns;
        self.fabric.lock().ports.get_mut(&Lid(2)).unwrap().push_packet(now_ns, octets);
        self.run(MS);
    }

    fn taken(&mut self, header: &PacketHeader, payload: &[u8]) -> bool {
        self.received[0].clear();
        self.inject(header, payload);
        !self.received[0].is_empty()
    }
}

fn udp() -> Vec<u8> {
    let datagram = datagram(1, ip4(0).into(), 100);
    [&header(DatagramType::Ipv4)[..], &datagram].concat()
}

// spec: IPOIB-6-2, IPOIB-9.1-2, IPOIB-9.1-4
#[test]
fn packets_with_a_wrong_key_or_for_others_are_counted_and_dropped() {
    let mut scene = Scene::up();
    let good = packet();
    assert!(scene.taken(&good, &udp()));
    // RFC 4391 §6: with and without a global header.
    assert!(scene.taken(&PacketHeader { global: global(own_gid()), ..good }, &udp()));
    let before = scene.counters(0);
    for wrong in [
        PacketHeader { p_key: PKey(0x8001), ..good },
        PacketHeader { q_key: QKey(0x0b1b), ..good },
        PacketHeader { destination_qp: Qpn::from_bits(0x50), ..good },
        PacketHeader { destination_qp: Qpn::GSI, ..good },
        PacketHeader { dlid: Lid(9), ..good },
        PacketHeader { global: global(Gid([7; 16])), ..good },
        // To a group of this host, but with this host's LID: no switch sends group packets to that
        // LID.
        PacketHeader { destination_qp: Qpn::MULTICAST, global: global(broadcast()), ..good },
        // To a group without a global header; to a group that this host is not in.
        PacketHeader { destination_qp: Qpn::MULTICAST, dlid: Lid(0xc000), ..good },
        PacketHeader {
            destination_qp: Qpn::MULTICAST,
            dlid: Lid(0xc000),
            global: global(Gid([0xff; 16])),
            ..good
        },
    ] {
        assert!(!scene.taken(&wrong, &udp()), "{wrong:?}");
    }
    let after = scene.counters(0);
    assert_eq!(after.p_key_mismatches - before.p_key_mismatches, 1);
    assert_eq!(after.q_key_mismatches - before.q_key_mismatches, 1);
    assert_eq!(after.foreign_packets - before.foreign_packets, 7);
    // Own copies; RFC 1122 §3.3.6: a unicast datagram sent to a group.
    let to_all = PacketHeader {
        destination_qp: Qpn::MULTICAST,
        dlid: Lid(0xc000),
        global: global(broadcast()),
        ..good
    };
    assert!(!scene.taken(&to_all, &udp()));
    let for_several = |to: [u8; 4]| {
        let mut payload = udp();
        payload[4 + 16..4 + 20].copy_from_slice(&to);
        payload
    };
    for (to, is_taken) in [
        ([255, 255, 255, 255], true),
        ([10, 0, 0, 255], true),
        ([224, 0, 0, 1], true),
        ([10, 0, 1, 255], false),
        ([10, 8, 0, 1], false),
    ] {
        assert_eq!(scene.taken(&to_all, &for_several(to)), is_taken, "{to:?}");
    }
    let own = GlobalRoute { source: own_gid(), ..global(broadcast()).unwrap() };
    let own = PacketHeader { global: Some(own), source_qp: Qpn::from_bits(0x48), ..to_all };
    assert!(!scene.taken(&own, &for_several([255; 4])));
    assert_eq!(scene.counters(0).own_copies, 1);
    // Another interface of the same port is another sender.
    let other = PacketHeader { source_qp: Qpn::from_bits(0x49), ..own };
    assert!(scene.taken(&other, &for_several([255; 4])));
    assert_eq!(scene.counters(0).own_copies, 1);
}

/// RFC 4391 §6: reserved bytes are ignored; other types are dropped.
// spec: IPOIB-6-1
#[test]
fn encapsulations_that_are_unknown_are_dropped_and_reserved_octets_ignored() {
    let mut scene = Scene::up();
    let mut payload = udp();
    payload[2..4].fill(0xff);
    assert!(scene.taken(&packet(), &payload));
    for kind in [[0x80, 0x35], [0x12, 0x34], [0x86, 0xdd]] {
        payload[..2].copy_from_slice(&kind);
        assert!(!scene.taken(&packet(), &payload));
    }
    assert!(!scene.taken(&packet(), &[8, 0]));
    let long = [&header(DatagramType::Ipv4)[..], &datagram(1, ip4(0).into(), 2045)].concat();
    assert!(!scene.taken(&packet(), &long), "longer than the MTU");
    assert_eq!(scene.counters(0).bad_datagrams, 5);
}

#[test]
fn forged_management_datagrams_change_nothing() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    let state = scene.state(0);
    let asked = scene.fabric.asked();
    let path = PathRecord {
        dlid: Lid(77),
        ..PathRecord::query(own_gid(), Gid::new(Gid::DEFAULT_PREFIX, guid(1)), PKey(0xffff))
    };
    let deleted = Notice { trap: Trap::GroupDeleted, gid: broadcast() };
    let gone = Notice { trap: Trap::GidOut, gid: path.dgid };
    let join = scene.fabric.lock().administrator.records().next().unwrap();
    let join = McMemberRecord { port_gid: own_gid(), join_state: JoinState(1), ..join };
    for (from, mad) in [
        // From the administrator's port, but without a request.
        (Lid(1), SaMad::new(Method::GetResp, Attribute::PathRecord, 7, &path.to_bytes())),
        (Lid(1), SaMad::new(Method::GetResp, Attribute::McMemberRecord, 7, &join.to_bytes())),
        (Lid(1), SaMad::new(Method::Set, Attribute::McMemberRecord, 7, &join.to_bytes())),
        // From another port.
        (Lid(3), SaMad::new(Method::Report, Attribute::Notice, 7, &deleted.to_bytes())),
        (Lid(3), SaMad::new(Method::Report, Attribute::Notice, 8, &gone.to_bytes())),
        (Lid(3), SaMad::new(Method::GetResp, Attribute::PathRecord, 7, &path.to_bytes())),
    ] {
        scene.fabric.forge_mad(scene.now_ns, guid(0), from, &mad.to_bytes());
    }
    scene.fabric.forge_mad(scene.now_ns, guid(0), Lid(1), &[0; MAD_LEN]);
    scene.run(MS);
    let counters = scene.counters(0);
    assert_eq!((counters.mads_refused, counters.mads_malformed), (6, 1));
    assert_eq!((scene.state(0), scene.fabric.asked()), (state, asked));
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
}

/// Even the administrator's answer must match the request.
#[test]
fn answer_about_another_port_is_ignored() {
    let mut scene = Scene::new(FabricConfig::default(), 1);
    // The administrator does not answer; the forger knows the transaction.
    scene.fabric.set_silent(true);
    scene.hosts[0].receive(scene.now_ns, 64, &mut |_| {});
    let record = scene.fabric.lock().administrator.records().next().unwrap();
    for transaction in 0..64 {
        let mad =
            SaMad::new(Method::GetResp, Attribute::McMemberRecord, transaction, &record.to_bytes());
        scene.fabric.forge_mad(scene.now_ns, guid(0), Lid(1), &mad.to_bytes());
    }
    scene.run(MS);
    assert!(!scene.hosts[0].link_up());
    assert_eq!(scene.counters(0).mads_refused, 64);
}

/// Neighbours and paths are bounded for any ARP traffic; entries in use remain.
#[test]
fn a_flood_of_arp_fills_no_table_beyond_its_bound() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    for i in 0..3000_u32 {
        let [_, _, a, b] = i.to_be_bytes();
        let sender = LinkAddress {
            qpn: Qpn::from_bits(100),
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(u64::from(i) << 8)),
        };
        let arp = ArpPacket {
            operation: Operation::Request,
            sender,
            sender_ip: Ipv4Addr::new(10, 1, a, b),
            target: [0; 20],
            target_ip: ip4(0),
        };
        let payload = [&header(DatagramType::Arp)[..], &arp.to_bytes()].concat();
        let mut octets = Vec::new();
        packet().emit(&payload, &mut octets);
        let now_ns = scene.now_ns;
        scene.hosts[0].link_packet(now_ns, &octets);
    }
    let (neighbours, paths) = scene.hosts[0].link().table_lens();
    assert!(neighbours <= NEIGHBOURS_MAX && paths <= PATHS_MAX, "{neighbours} {paths}");
    scene.run(5 * SECOND);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    assert!(scene.arrives(1, ip4(0).into(), 100, 0));
}

#[test]
fn malformed_arp_teaches_nothing() {
    let mut scene = Scene::up();
    let good = ArpPacket {
        operation: Operation::Request,
        sender: LinkAddress {
            qpn: Qpn::from_bits(0x49),
            gid: Gid::new(Gid::DEFAULT_PREFIX, guid(1)),
        },
        sender_ip: ip4(1),
        target: [0; 20],
        target_ip: ip4(0),
    };
    let before = scene.hosts[0].link().table_lens();
    for wrong in [
        ArpPacket { sender_ip: ip4(0), ..good },
        ArpPacket { sender_ip: Ipv4Addr::BROADCAST, ..good },
        ArpPacket { sender_ip: Ipv4Addr::UNSPECIFIED, ..good },
        ArpPacket { sender: LinkAddress { gid: broadcast(), ..good.sender }, ..good },
        ArpPacket { sender: LinkAddress { qpn: Qpn::GSI, ..good.sender }, ..good },
    ] {
        let payload = [&header(DatagramType::Arp)[..], &wrong.to_bytes()].concat();
        scene.inject(&packet(), &payload);
    }
    assert_eq!(scene.hosts[0].link().table_lens(), before);
    assert_eq!(scene.counters(0).bad_datagrams, 5);
    // RFC 4391 §9.1.1: the reserved byte of an address is ignored.
    let mut payload = [&header(DatagramType::Arp)[..], &good.to_bytes()].concat();
    payload[4 + 8] = 0x80;
    scene.inject(&packet(), &payload);
    assert_eq!(scene.hosts[0].link().table_lens().0, before.0 + 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_octets_do_not_harm_a_link(
        octets in prop::collection::vec(any::<u8>(), 0..300),
        kind in prop::sample::select(vec![0x0800_u16, 0x0806, 0x86dd]),
        at in 0_usize..300,
        flip in 1_u8..,
    ) {
        let mut scene = Scene::up();
        scene.inject_octets(&octets);
        let payload = [&kind.to_be_bytes()[..], &[0, 0], &octets].concat();
        scene.inject(&packet(), &payload);
        let mut whole = Vec::new();
        packet().emit(&udp(), &mut whole);
        let at = at % whole.len();
        whole[at] ^= flip;
        scene.inject_octets(&whole);
        let mut mad = [0; MAD_LEN];
        mad[..3].copy_from_slice(&[1, 3, 2]);
        let len = octets.len().min(MAD_LEN - 3);
        mad[3..3 + len].copy_from_slice(&octets[..len]);
        scene.fabric.forge_mad(scene.now_ns, guid(0), Lid(1), &mad);
        scene.run(MS);
        prop_assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    }
}
