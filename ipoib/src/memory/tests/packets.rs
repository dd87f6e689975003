//! Packets that a host sends, as the fabric carries them.

use super::*;
use crate::fabric::Packets;
use crate::limits::{ANNOUNCE_INTERVAL_NS, ANNOUNCEMENTS, REACHABLE_NS};
use crate::link::link_local;
use crate::wire::address::Lid;
use crate::wire::packet::PacketHeader;

impl Scene {
    /// Takes the packets that wait for a host.
    fn packets_to(&self, host: usize) -> Vec<(PacketHeader, Vec<u8>)> {
        let mut packets = Vec::new();
        self.fabric.port(guid(host)).unwrap().receive_packets(u64::MAX, 64, &mut |octets| {
            let (header, payload) = PacketHeader::parse(octets).unwrap();
            packets.push((header, payload.to_vec()));
        });
        packets
    }
}

#[test]
fn each_packet_has_the_next_sequence_number() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    for _ in 0..3 {
        scene.send(0, &datagram(0, ip4(1).into(), 100)).unwrap();
    }
    let packets = scene.packets_to(1);
    let first = packets[0].0.psn;
    let numbers: Vec<u32> = packets.iter().map(|(header, _)| header.psn - first).collect();
    assert_eq!(numbers, [0, 1, 2]);
    for (header, _) in packets {
        assert_eq!((header.slid, header.dlid, header.global), (Lid(2), Lid(3), None));
        assert_eq!((header.source_qp, header.destination_qp), (qpn(0), qpn(1)));
    }
}

fn qpn(host: usize) -> Qpn {
    settings(host).qpn
}

/// RFC 4861 §7.2.2, §7.3.3: a question comes from an address of the target's kind. The first goes
/// to the solicited-node group, and a probe to the neighbour itself.
#[test]
fn questions_have_the_addresses_of_their_kind() {
    const SOLICITATION: u8 = 135;
    for (own, peer) in [(ip6(0), ip6(1)), (link_local(guid(0)), link_local(guid(1)))] {
        let mut scene = Scene::up();
        let asked = |scene: &mut Scene| {
            scene.send(0, &datagram(0, peer.into(), 100)).unwrap();
            let packets = scene.packets_to(1);
            let questions = packets.into_iter().filter(|(_, octets)| octets[44] == SOLICITATION);
            let questions: Vec<_> = questions
                .map(|(header, octets)| {
                    let to: [u8; 16] = octets[28..44].try_into().unwrap();
                    assert_eq!(octets[12..28], own.octets());
                    (header.global.is_some(), Ipv6Addr::from(to))
                })
                .collect();
            questions
        };
        // The group exists: the first question goes there at once.
        scene.run(10 * SECOND);
        let first = asked(&mut scene);
        let [.., a, b, c] = peer.octets();
        let group =
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
        assert!(first.is_empty() || first == [(true, group)], "{first:?}");
        scene.run(2 * SECOND);
        assert!(scene.arrives(0, peer.into(), 100, 1));
        scene.run(REACHABLE_NS);
        assert_eq!(asked(&mut scene), [(false, peer)], "a probe");
    }
}

/// A packet to another subnet needs a global header, which routers read.
#[test]
fn packets_to_another_subnet_have_a_global_header() {
    let mut scene = Scene::new(FabricConfig::default(), 2);
    let elsewhere = Gid::new(0xfec0_0000_0000_0001, guid(1));
    scene.fabric.lock().ports.get_mut(&Lid(3)).unwrap().info.prefix = 0xfec0_0000_0000_0001;
    scene.run(MS);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.send(0, &datagram(0, ip4(1).into(), 100)).unwrap();
    let (header, _) = scene.packets_to(1).pop().unwrap();
    let route = header.global.unwrap();
    let own = Gid::new(Gid::DEFAULT_PREFIX, guid(0));
    assert_eq!((route.source, route.destination, route.hop_limit), (own, elsewhere, 64));
}

/// RFC 826, RFC 4861 §7.2.5: an announcement updates what a host knows, and adds nothing.
#[test]
fn announcements_fill_no_table() {
    let mut scene = Scene::up();
    scene.run(10 * SECOND);
    assert!(scene.hosts.iter().all(|host| host.link().table_lens() == (0, 0)));
}

/// RFC 5227 §2.3, RFC 4861 §7.2.6: several announcements, with a pause between them.
#[test]
fn announcements_have_their_number_and_pause() {
    let mut scene = Scene::new(FabricConfig::default(), 1);
    scene.run(MS);
    let first = scene.counters(0).datagrams_sent;
    assert!(first > 0);
    for number in 1..u64::from(ANNOUNCEMENTS) {
        scene.run(ANNOUNCE_INTERVAL_NS - 2 * MS);
        assert_eq!(scene.counters(0).datagrams_sent, first * number);
        scene.run(2 * MS);
        assert_eq!(scene.counters(0).datagrams_sent, first * (number + 1));
    }
    scene.run(10 * ANNOUNCE_INTERVAL_NS);
    assert_eq!(scene.counters(0).datagrams_sent, first * u64::from(ANNOUNCEMENTS));
}
