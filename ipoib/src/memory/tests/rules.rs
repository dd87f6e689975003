//! Rules of RFC 4391 and of IP on a link without faults: which host answers, which datagrams go to
//! routers, and how long learned addresses are used.

use super::*;
use crate::limits::{PATH_REFRESH_NS, REACHABLE_NS, REPORTS_WAITING_MAX};
use crate::link::Link;
use crate::wire::address::Lid;
use crate::wire::datagram::{DatagramType, header};
use crate::wire::mad::{Attribute, MAD_LEN, Method, Notice, SaMad, Trap};
use crate::wire::packet::{GlobalRoute, PacketHeader};

impl Scene {
    /// Sends host 0 a Report of the administrator about a port.
    fn report(&self, transaction: u64, trap: Trap, gid: Gid) {
        let mad = of_report(transaction, trap, gid);
        self.fabric.forge_mad(self.now_ns, guid(0), SM_LID, &mad);
    }

    /// Returns the number of packets that host 0 sends for one datagram to host 1.
    fn packets_with_a_datagram(&mut self) -> u64 {
        let before = self.counters(0).datagrams_sent;
        assert!(self.arrives(0, ip4(1).into(), 100, 1));
        self.counters(0).datagrams_sent - before
    }
}

fn of_report(transaction: u64, trap: Trap, gid: Gid) -> [u8; MAD_LEN] {
    let notice = Notice { trap, gid }.to_bytes();
    SaMad::new(Method::Report, Attribute::Notice, transaction, &notice).to_bytes()
}

fn gid(host: usize) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, guid(host))
}

/// RFC 1122 §3.3.6, RFC 8200: a packet to a group does not carry a unicast datagram.
#[test]
fn ipv6_for_one_host_is_not_taken_from_a_group() {
    let mut scene = Scene::up();
    let broadcast = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff)).broadcast();
    let route = GlobalRoute {
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 0,
        source: gid(1),
        destination: broadcast,
    };
    let packet = PacketHeader {
        service_level: 0,
        dlid: Lid(0xc000),
        slid: Lid(3),
        global: Some(route),
        p_key: PKey(0xffff),
        destination_qp: Qpn::MULTICAST,
        psn: 0,
        q_key: QKey(0x8001_0b1b),
        source_qp: Qpn::from_bits(0x49),
    };
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for (to, is_taken) in [(ip6(0), false), (all_nodes, true)] {
        let datagram = datagram(1, to.into(), 100);
        let payload = [&header(DatagramType::Ipv6)[..], &datagram].concat();
        let mut octets = Vec::new();
        packet.emit(&payload, &mut octets);
        scene.received[0].clear();
        scene.fabric.lock().ports.get_mut(&Lid(2)).unwrap().push_packet(scene.now_ns, &octets);
        scene.run(MS);
        assert_eq!(scene.received[0] == [datagram], is_taken, "{to}");
    }
}

/// RFC 4861 §7.2.3: addresses with the same last three bytes share a solicited-node group.
#[test]
fn a_solicitation_for_another_host_is_not_answered() {
    let mut scene = Scene::up();
    let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 1, 0, 0, 1);
    assert_eq!(other.octets()[13..], ip6(0).octets()[13..]);
    let before = scene.counters(0).datagrams_sent;
    assert!(!scene.arrives(1, other.into(), 100, 0));
    assert_eq!(scene.counters(0).datagrams_sent, before);
}

/// RFC 4391 §10: routers get no datagrams to link-local groups.
#[test]
fn groups_of_the_link_without_a_member_are_not_sent_to_routers() {
    let mut scene = Scene::up();
    for routers in ["224.0.0.2", "ff02::2"] {
        scene.hosts[1].join_group(scene.now_ns, routers.parse().unwrap());
    }
    scene.run(MS);
    for (group, is_sent) in [
        ("224.0.0.251", false),
        ("224.0.1.1", true),
        ("ff01::fb", false),
        ("ff02::fb", false),
        ("ff05::fb", true),
        ("ff0e::fb", true),
    ] {
        assert_eq!(scene.arrives(0, group.parse().unwrap(), 100, 1), is_sent, "{group}");
    }
}

// spec: IPOIB-9.1-5
#[test]
fn path_is_refreshed_in_time_and_used_meanwhile() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    let asked = scene.fabric.asked().paths;
    scene.run(PATH_REFRESH_NS);
    for _ in 0..3 {
        assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    }
    // Both directions: the peer is probed, and answers.
    assert_eq!(scene.fabric.asked().paths - asked, 2);
    // An unanswered query does not end the known path.
    scene.run(PATH_REFRESH_NS);
    scene.fabric.set_silent(true);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.run(60 * SECOND);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    assert_eq!(scene.counters(0).without_path, 0);
}

/// RFC 4391 §9.1.1: a port that returns may have another queue pair.
#[test]
fn peer_named_by_a_report_is_resolved_again() {
    let mut scene = Scene::up();
    scene.run(2 * REACHABLE_NS);
    for _ in 0..2 {
        assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    }
    assert_eq!(scene.packets_with_a_datagram(), 1);
    scene.report(1, Trap::GidIn, gid(1));
    scene.run(MS);
    assert_eq!(scene.packets_with_a_datagram(), 2, "with a question");
    assert_eq!(scene.packets_with_a_datagram(), 1, "which was answered");
}

#[test]
fn reports_that_come_all_at_once_are_answered_up_to_a_bound() {
    let mut link = Link::new(settings(0));
    let port = PortInfo {
        guid: guid(0),
        prefix: Gid::DEFAULT_PREFIX,
        lid: Lid(2),
        sm_lid: SM_LID,
        is_active: true,
        mtu_octets: 2048,
        p_keys: vec![PKey(0xffff)],
    };
    link.handle_port(1, port);
    for transaction in 0..2 * REPORTS_WAITING_MAX as u64 {
        link.handle_mad(1, SM_LID, &of_report(transaction, Trap::GidIn, gid(7)));
    }
    assert_eq!(link.counters().reports, REPORTS_WAITING_MAX as u64);
}

#[test]
fn report_of_a_joined_group_sends_no_request() {
    let mut scene = Scene::up();
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    scene.hosts[1].join_group(scene.now_ns, group);
    scene.hosts[0].join_group(scene.now_ns, group);
    scene.run(MS);
    let asked = scene.fabric.asked().joins;
    let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
    scene.report(1, Trap::GroupCreated, map.group(group).unwrap());
    scene.run(MS);
    assert_eq!(scene.fabric.asked().joins, asked);
    assert!(scene.arrives(1, group, 100, 0));
}

/// RFC 4391 §4: a limited member receives nothing from other limited members.
// spec: IPOIB-ARCH-3
#[test]
fn a_port_with_both_kinds_of_a_key_is_a_full_member() {
    for keys in [[0x0001, 0x8001], [0x8001, 0x0001]] {
        let of = |host, keys: &[u16]| {
            let link = LinkConfig { p_key: PKey(0x8001), ..settings(host) };
            (link, keys.iter().map(|key| PKey(*key)).collect())
        };
        let hosts = vec![of(0, &keys), of(1, &[0x0001])];
        let mut scene = Scene::with(FabricConfig::default(), hosts);
        scene.fabric.add_partition(PKey(0x8001), Scope::LINK_LOCAL, QKey(0x8002_0b1b));
        scene.run(MS);
        assert!(scene.arrives(0, ip4(1).into(), 100, 1), "{keys:x?}");
        assert!(scene.arrives(1, ip4(0).into(), 100, 0), "{keys:x?}");
    }
}
