//! Multicast: the four cases of RFC 4391 §10, joins and leaves, created and deleted groups.

use super::*;
use crate::limits::{GROUP_IDLE_NS, GROUPS_MAX, IP_GROUPS_MAX, REFRESH_NS};

fn group(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mgid(text: &str) -> Gid {
    MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff)).group(group(text)).unwrap()
}

/// Returns a scene with a group that one host receives.
fn with_a_receiver() -> (Scene, IpAddr) {
    let mut scene = Scene::up();
    let to = group("239.1.2.3");
    scene.hosts[1].join_group(scene.now_ns, to);
    scene.run(MS);
    (scene, to)
}

// spec: IPOIB-4.1-4, IPOIB-ARCH-2
#[test]
fn broadcasts_reach_all_hosts_but_their_sender() {
    let mut scene = Scene::new(FabricConfig::default(), 3);
    scene.run(MS);
    for to in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        assert!(scene.arrives(0, to.into(), 100, 1));
        assert_eq!(scene.received[2].pop(), scene.received[1].pop());
    }
    assert!(scene.received[0].is_empty());
}

/// RFC 4391 §10: a sender that is no member joins an existing group to send only. A missing
/// link-local group gets nothing, and datagrams to another missing group go to the routers.
// spec: IPOIB-10-1
#[test]
fn sender_handles_the_four_cases_of_a_group() {
    let mut scene = Scene::new(FabricConfig::default(), 4);
    scene.run(MS);
    let (link, site) = ("224.0.0.251", "239.1.2.3");
    // No such group, and it is link-local.
    assert!(!scene.arrives(0, group(link), 100, 1));
    assert_eq!(scene.counters(0).without_group, 1);
    // No such group, but routers.
    scene.hosts[2].join_group(scene.now_ns, group("224.0.0.2"));
    scene.run(MS);
    assert!(scene.arrives(0, group(site), 100, 2), "to the routers");
    // The group exists.
    scene.hosts[1].join_group(scene.now_ns, group(site));
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid(site)), Some(1));
    assert!(scene.arrives(0, group(site), 100, 1), "told of by a Report");
    assert!(scene.received[2].len() == 1, "the routers get no copy more");
    assert_eq!(scene.fabric.members(mgid(site)), Some(2));
    // The sender is a member.
    scene.hosts[3].join_group(scene.now_ns, group(site));
    scene.run(MS);
    assert!(scene.arrives(1, group(site), 100, 3));
    assert!(scene.received[0].is_empty(), "who sends only hears nothing");
}

// spec: IPOIB-10-2, IPOIB-ARCH-14
#[test]
fn deleted_group_is_not_sent_to_until_it_is_created_again() {
    let mut scene = Scene::up();
    let to = group("ff02::1:3");
    scene.hosts[1].join_group(scene.now_ns, to);
    scene.run(MS);
    assert!(scene.arrives(0, to, 100, 1));
    scene.hosts[1].leave_group(scene.now_ns, to);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("ff02::1:3")), None);
    let unroutable = scene.fabric.counters().unroutable;
    assert!(!scene.arrives(0, to, 100, 1));
    assert_eq!(scene.fabric.counters().unroutable, unroutable, "the MLID is not used again");
    scene.hosts[1].join_group(scene.now_ns, to);
    scene.run(MS);
    assert!(scene.arrives(0, to, 100, 1));
}

/// RFC 4391 §10: a group is created with the parameters of the broadcast group; §4: all MGIDs of a
/// link have its scope.
// spec: IPOIB-5-1, IPOIB-10-3, IPOIB-ARCH-9
#[test]
fn a_group_is_made_like_the_broadcast_group() {
    let link = LinkConfig { scope: Scope::SITE_LOCAL, ..settings(0) };
    let mut scene = Scene::with(FabricConfig::default(), vec![(link, vec![PKey(0xffff)])]);
    scene.run(MS);
    assert!(!scene.hosts[0].link_up(), "there is no such broadcast group");
    scene.fabric.add_partition(PKey(0xffff), Scope::SITE_LOCAL, QKey(0x8005_0b1b));
    scene.run(10 * SECOND);
    assert!(scene.hosts[0].link_up());
    let state = scene.fabric.lock();
    let mut made = 0;
    for record in state.administrator.records().filter(|record| record.mgid.0[1] == 0x15) {
        made += 1;
        assert_eq!((record.q_key, record.mtu & 0x3f), (QKey(0x8005_0b1b), 4));
    }
    assert_eq!(made, 1 + 4, "all hosts, all nodes, two solicited nodes");
}

// spec: IPOIB-ARCH-13
#[test]
fn groups_that_are_sent_to_are_bounded_and_left_when_idle() {
    let mut scene = Scene::up();
    for at in 0..=u8::MAX {
        for to in [Ipv4Addr::new(239, 1, 0, at), Ipv4Addr::new(239, 2, 0, at)] {
            scene.hosts[1].join_group(scene.now_ns, to.into());
        }
        scene.run(MS);
    }
    // More groups than the table holds were requested: the surplus is not received.
    let joined = scene.fabric.lock().administrator.records().count();
    assert!(
        joined <= GROUPS_MAX + 3,
        "{joined}: with those of the other host, and the broadcast group"
    );
    for at in 0..=u8::MAX {
        for to in [Ipv4Addr::new(239, 1, 0, at), Ipv4Addr::new(239, 2, 0, at)] {
            scene.send(0, &datagram(0, to.into(), 40)).unwrap();
        }
        scene.run(MS);
    }
    scene.run(GROUP_IDLE_NS + 120 * SECOND);
    let state = scene.fabric.lock();
    let sender = Gid::new(Gid::DEFAULT_PREFIX, guid(0));
    assert_eq!(state.administrator.memberships(sender), 5, "its own");
}

/// Leaving drops an unanswered join with its waiting payloads; a granted join is left.
#[test]
fn a_group_that_is_left_before_it_is_joined_leaves_nothing_behind() {
    let mut scene = Scene::up();
    let to = group("239.1.2.3");
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(SECOND);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), None, "the join was under way");
    scene.fabric.set_silent(true);
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.run(100 * MS);
    scene.send(0, &datagram(0, to, 100)).unwrap();
    assert!(scene.hosts[0].link().waiting_octets() > 0);
    scene.hosts[0].leave_group(scene.now_ns, to);
    assert_eq!(scene.hosts[0].link().waiting_octets(), 0);
    assert_eq!(scene.counters(0).waiting_dropped, 1);
    scene.fabric.set_silent(false);
    scene.run(60 * SECOND);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), None, "the join was not repeated");
}

#[test]
fn a_group_that_made_room_and_is_used_again_is_not_left() {
    let mut scene = Scene::new(FabricConfig::default(), 3);
    scene.run(MS);
    // Besides its own: all hosts, all nodes, two solicited nodes.
    let last = u8::try_from(GROUPS_MAX - 4).unwrap();
    for at in 0..=last {
        let (to, member) = (Ipv4Addr::new(239, 1, 0, at), if at == last { 2 } else { 1 });
        scene.hosts[member].join_group(scene.now_ns, to.into());
        scene.run(MS);
        scene.send(0, &datagram(0, to.into(), 40)).unwrap();
        scene.run(MS);
    }
    let first = mgid("239.1.0.0");
    assert!(scene.arrives(0, group("239.1.0.0"), 40, 1));
    assert_eq!(scene.fabric.members(first), Some(2));
    scene.run(REFRESH_NS + SECOND);
    assert_eq!(scene.fabric.members(first), Some(2));
    assert_eq!(scene.fabric.members(mgid("239.1.0.1")), Some(1), "the next made room, and is left");
}

/// An administrator joins and leaves each state of a membership separately.
// spec: IPOIB-ARCH-8
#[test]
fn a_receiver_that_had_sent_only_leaves_nothing_behind() {
    let (mut scene, to) = with_a_receiver();
    assert!(scene.arrives(0, to, 100, 1));
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(2));
    assert!(scene.arrives(1, to, 100, 0));
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(1));
}

#[test]
fn a_join_to_send_only_whose_answer_was_lost_is_left_with_the_other() {
    let (mut scene, to) = with_a_receiver();
    scene.fabric.set_mute(1);
    scene.send(0, &datagram(0, to, 100)).unwrap();
    scene.run(MS);
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(2));
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(SECOND);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(1));
}

/// The administrator refuses to end a state that is not held: a lost join must not prevent leaving
/// the other states.
#[test]
fn a_join_to_send_only_that_was_lost_keeps_no_membership() {
    let (mut scene, to) = with_a_receiver();
    scene.fabric.set_silent(true);
    scene.send(0, &datagram(0, to, 100)).unwrap();
    scene.run(25 * SECOND);
    scene.fabric.set_silent(false);
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.run(SECOND);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(2));
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(SECOND);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(1));
}

/// Leaves for a silent administrator are bounded.
#[test]
fn leaves_that_wait_are_bounded() {
    let mut scene = Scene::up();
    scene.fabric.set_silent(true);
    let mut most = 0;
    for round in 0..60_u8 {
        for at in 0..60 {
            let to = Ipv4Addr::new(239, 3, round, at);
            scene.send(0, &datagram(0, to.into(), 40)).unwrap();
        }
        scene.run(20 * SECOND);
        most = most.max(scene.hosts[0].link().chores_len());
    }
    assert!(most <= 2 * GROUPS_MAX, "{most}");
    assert!(most > GROUPS_MAX, "{most}");
}

#[test]
fn a_leave_that_is_repeated_does_not_undo_a_later_join() {
    let mut scene = Scene::up();
    let to = group("239.1.2.3");
    let mgid = mgid("239.1.2.3");
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.hosts[1].join_group(scene.now_ns, to);
    scene.run(MS);
    scene.fabric.set_mute(1);
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid), Some(1));
    scene.hosts[0].join_group(scene.now_ns, to);
    for _ in 0..20 {
        scene.run(SECOND);
        assert_eq!(scene.fabric.members(mgid), Some(2));
    }
}

/// Counterpart of the test above: the leave of a send-only group.
#[test]
fn a_leave_that_is_repeated_does_not_undo_a_join_to_send_only() {
    let (mut scene, to) = with_a_receiver();
    assert!(scene.arrives(0, to, 100, 1));
    // After a long idle time the group is left, and the answer is lost.
    scene.run(GROUP_IDLE_NS - SECOND);
    for _ in 0..400 {
        if scene.fabric.members(mgid("239.1.2.3")) == Some(2) {
            scene.fabric.set_mute(100);
            scene.run(100 * MS);
        }
    }
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(1));
    scene.fabric.set_mute(0);
    scene.send(0, &datagram(0, to, 100)).unwrap();
    for _ in 0..20 {
        scene.run(SECOND);
        assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(2));
    }
    assert!(scene.arrives(0, to, 100, 1));
}

/// A silent administrator does not end memberships.
#[test]
fn groups_stay_while_the_administrator_is_silent() {
    let (mut scene, to) = with_a_receiver();
    assert!(scene.arrives(0, to, 100, 1));
    scene.fabric.set_silent(true);
    for _ in 0..12 {
        scene.run(10 * SECOND);
        assert!(scene.arrives(0, to, 100, 1));
    }
}

#[test]
fn unanswered_leave_is_repeated() {
    let mut scene = Scene::up();
    let to = group("239.1.2.3");
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.run(MS);
    scene.fabric.set_silent(true);
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(60 * SECOND);
    scene.fabric.set_silent(false);
    scene.run(2 * REFRESH_NS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), None);
}

#[test]
fn pending_leave_survives_a_lid_change() {
    let mut scene = Scene::up();
    let to = group("239.1.2.3");
    scene.hosts[0].join_group(scene.now_ns, to);
    scene.run(MS);
    scene.fabric.set_silent(true);
    scene.hosts[0].leave_group(scene.now_ns, to);
    scene.run(MS);
    scene.fabric.move_port(guid(0));
    scene.fabric.set_silent(false);
    scene.run(2 * SECOND);
    assert!(scene.hosts[0].link_up());
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), None);
}

/// Returns a datagram that reports by IGMPv2 that a group is joined or left.
fn report(kind: u8, [a, b, c, d]: [u8; 4]) -> Vec<u8> {
    let head = [0x46, 0xc0, 0, 32, 0, 0, 0x40, 0, 1, 2, 0, 0];
    let to = [224, 0, 0, 2, 0x94, 4, 0, 0];
    [&head[..], &ip4(0).octets(), &to, &[kind, 0, 0, 0, a, b, c, d]].concat()
}

/// RFC 4391 §10: the link joins and leaves the host's groups.
// spec: IPOIB-10-4
#[test]
fn reports_of_the_host_join_and_leave() {
    let mut scene = Scene::up();
    scene.send(0, &report(0x16, [239, 1, 2, 3])).unwrap();
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(1));
    assert!(scene.arrives(1, group("239.1.2.3"), 100, 0));
    scene.send(0, &report(0x17, [239, 1, 2, 3])).unwrap();
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), None);
}

/// A router forwards others' datagrams through the device: their reports are not the host's own.
#[test]
fn reports_that_are_forwarded_change_nothing() {
    let mut scene = Scene::up();
    let from = |mut datagram: Vec<u8>, source: &[u8]| {
        let at = if source.len() == 4 { 12 } else { 8 };
        datagram[at..at + source.len()].copy_from_slice(source);
        datagram
    };
    let to_host = |mut datagram: Vec<u8>| {
        datagram[16..20].copy_from_slice(&ip4(1).octets());
        datagram
    };
    scene.hosts[0].join_group(scene.now_ns, group("239.1.2.3"));
    scene.hosts[0].join_group(scene.now_ns, group("ff15::7"));
    scene.run(MS);
    let stranger = [10, 8, 0, 1];
    let stranger6: Ipv6Addr = "fd08::1".parse().unwrap();
    for forwarded in [
        to_host(from(report(0x17, [239, 1, 2, 3]), &stranger)),
        from(report(0x17, [239, 1, 2, 3]), &stranger),
        to_host(from(report(0x16, [239, 1, 2, 4]), &stranger)),
        from(mld_report(132, "ff15::7"), &stranger6.octets()),
        from(mld_report(131, "ff15::8"), &stranger6.octets()),
    ] {
        scene.send(0, &forwarded).unwrap();
        scene.run(MS);
    }
    for (group, members) in
        [("239.1.2.3", Some(1)), ("239.1.2.4", None), ("ff15::7", Some(1)), ("ff15::8", None)]
    {
        assert_eq!(scene.fabric.members(mgid(group)), members, "{group}");
    }
    // RFC 3376 §4.2.13, RFC 3810 §5.2.13: a host without an address may report, too; MLD reports
    // come from a link-local address.
    scene.send(0, &from(report(0x17, [239, 1, 2, 3]), &[0; 4])).unwrap();
    let of_link: Ipv6Addr = "fe80::77".parse().unwrap();
    scene.send(0, &from(mld_report(132, "ff15::7"), &of_link.octets())).unwrap();
    scene.send(0, &from(mld_report(131, "ff15::8"), &[0; 16])).unwrap();
    scene.run(MS);
    for (group, members) in [("239.1.2.3", None), ("ff15::7", None), ("ff15::8", Some(1))] {
        assert_eq!(scene.fabric.members(mgid(group)), members, "{group}");
    }
}

/// Returns a datagram that reports by MLDv1 that a group is joined or left.
fn mld_report(kind: u8, group: &str) -> Vec<u8> {
    let group: Ipv6Addr = group.parse().unwrap();
    let head = [0x60, 0, 0, 0, 0, 32, 0, 1];
    let to = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let router_alert = [58, 0, 5, 2, 0, 0, 1, 0];
    let message = [kind, 0, 0, 0, 0, 0, 0, 0];
    [&head[..], &ip6(0).octets(), &to, &router_alert, &message, &group.octets()].concat()
}

#[test]
fn groups_reported_while_the_link_is_down_are_joined_later() {
    let mut scene = Scene::new(FabricConfig::default(), 1);
    let sent = scene.send(0, &report(0x16, [239, 1, 2, 3]));
    assert_eq!(sent, Err(TransmitError::LinkDown));
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("239.1.2.3")), Some(1));
}

/// RFC 4391 §4: two IPv6 groups may share one InfiniBand group, which is left with the last of
/// them.
#[test]
fn group_with_two_ip_groups_is_left_with_the_last() {
    let mut scene = Scene::up();
    let (one, other) = (group("ff15::1:3"), group("ff18:1::1:3"));
    assert_eq!(mgid("ff15::1:3"), mgid("ff18:1::1:3"));
    for joined in [one, other] {
        scene.hosts[0].join_group(scene.now_ns, joined);
    }
    scene.run(MS);
    scene.hosts[0].leave_group(scene.now_ns, one);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("ff15::1:3")), Some(1));
    scene.hosts[0].leave_group(scene.now_ns, other);
    scene.run(MS);
    assert_eq!(scene.fabric.members(mgid("ff15::1:3")), None);
}

#[test]
fn received_groups_are_limited() {
    let mut scene = Scene::up();
    for at in 0..=IP_GROUPS_MAX {
        let [.., low] = at.to_be_bytes();
        scene.send(0, &report(0x16, [239, 7, 0, low])).unwrap();
        scene.run(MS);
    }
    assert_eq!(scene.counters(0).groups_refused, 1);
    assert_eq!(scene.fabric.members(mgid("239.7.0.0")), Some(1));
    assert_eq!(scene.fabric.members(mgid("239.7.0.128")), None);
}

/// A join that still waits for the administrator is dropped with its group.
#[test]
fn a_group_that_is_left_while_its_join_waits_is_not_joined() {
    let mut scene = Scene::up();
    let now_ns = scene.now_ns;
    let groups = (0..100).map(|number| IpAddr::from([239, 1, 1, number])).collect::<Vec<_>>();
    for group in &groups {
        scene.hosts[0].join_group(now_ns, *group);
    }
    scene.hosts[0].leave_group(now_ns, groups[99]);
    scene.run(SECOND);
    let members = [98, 99].map(|at| scene.fabric.members(mgid(&groups[at].to_string())));
    assert_eq!(members, [Some(1), None]);
}
