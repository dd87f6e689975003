//! Neighbours: resolved, confirmed, moved, bounded.

use super::*;
use crate::limits::{ANNOUNCE_INTERVAL_NS, ANNOUNCEMENTS, REACHABLE_NS, UNDELIVERABLE_MAX};

#[test]
fn datagrams_queued_for_address_resolution_arrive_in_order() {
    let mut scene = Scene::up();
    let sent: Vec<_> = (0..8).map(|i| datagram(0, ip4(1).into(), 100 + i)).collect();
    for datagram in &sent {
        scene.send(0, datagram).unwrap();
    }
    scene.run(MS);
    assert_eq!(scene.received[1], sent);
}

#[test]
fn a_neighbour_that_does_not_answer_is_given_up() {
    let mut scene = Scene::up();
    // All announcements have been sent.
    scene.run(10 * SECOND);
    for to in [IpAddr::V4(ip4(7)), IpAddr::V6(ip6(7))] {
        for _ in 0..40 {
            scene.send(0, &datagram(0, to, 100)).unwrap();
        }
    }
    let sent = scene.counters(0).datagrams_sent;
    scene.run(10 * SECOND);
    assert_eq!(scene.counters(0).waiting_dropped, 2 * 24, "16 of each wait");
    assert_eq!(scene.counters(0).neighbours_silent, 2 * 16);
    let given_up = std::iter::from_fn(|| scene.hosts[0].poll_undeliverable()).collect::<Vec<_>>();
    assert_eq!(given_up.len(), 2 * 16, "whose senders can be told");
    assert!(given_up.iter().all(|datagram| datagram.len() == 100));
    let asked = scene.counters(0).datagrams_sent - sent;
    assert_eq!(
        asked, 2,
        "three questions of ARP, the first at once; there is no group of solicitations to send to"
    );
}

/// RFC 4391 §9.4: a restarted peer has another queue pair.
// spec: IPOIB-9.1-2, IPOIB-9.4-1
#[test]
fn a_peer_with_another_queue_pair_is_found() {
    for lost in [0, 1, ANNOUNCEMENTS] {
        let mut scene = Scene::up();
        assert!(scene.arrives(0, ip4(1).into(), 100, 1));
        let fabric = scene.fabric.clone();
        let again = LinkConfig { qpn: Qpn::from_bits(0x9999), ..settings(1) };
        let port = MemoryPort::new(fabric.clone(), guid(1));
        scene.hosts[1] = IpoibDevice::new(port, again);
        for at in 0..lost {
            for _ in 0..2 {
                scene.now_ns += MS;
                scene.hosts[1].receive(scene.now_ns, 64, &mut |_| {});
            }
            scene.fabric.lock().ports.get_mut(&Lid(2)).unwrap().clear();
            if at + 1 < ANNOUNCEMENTS {
                assert!(!scene.arrives(0, ip4(1).into(), 100, 1), "it is not known yet");
                scene.now_ns += ANNOUNCE_INTERVAL_NS - 20 * MS;
            }
        }
        if lost < ANNOUNCEMENTS {
            scene.run(20 * MS);
            assert!(scene.arrives(0, ip4(1).into(), 100, 1), "by announcement {lost}");
        }
        scene.run(REACHABLE_NS);
        let deadline_ns = scene.now_ns + 10 * SECOND;
        while !scene.arrives(0, ip4(1).into(), 100, 1) {
            assert!(scene.now_ns < deadline_ns, "not found in ten seconds");
            scene.run(SECOND);
        }
    }
}

/// RFC 4861 §7.3.3: probes run on a timer, even with rare datagrams.
#[test]
fn a_peer_that_is_sent_to_rarely_is_found_by_the_second_datagram() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    let again = LinkConfig { qpn: Qpn::from_bits(0x9999), ..settings(1) };
    scene.hosts[1] = IpoibDevice::new(MemoryPort::new(scene.fabric.clone(), guid(1)), again);
    // All its announcements are lost.
    for _ in 0..2 * ANNOUNCEMENTS {
        for _ in 0..2 {
            scene.hosts[1].receive(scene.now_ns, 64, &mut |_| {});
            scene.now_ns += MS;
        }
        scene.fabric.lock().ports.get_mut(&Lid(2)).unwrap().clear();
        scene.now_ns += ANNOUNCE_INTERVAL_NS / 2;
    }
    scene.run(REACHABLE_NS);
    assert!(!scene.arrives(0, ip4(1).into(), 100, 1));
    scene.run(60 * SECOND);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
}

/// Neighbours that changed while this port was down are resolved when it is up again.
#[test]
fn a_peer_that_has_changed_while_this_port_was_away_is_found_at_once() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.fabric.set_link(scene.now_ns, guid(0), false);
    scene.run(MS);
    let again = LinkConfig { qpn: Qpn::from_bits(0x9999), ..settings(1) };
    scene.hosts[1] = IpoibDevice::new(MemoryPort::new(scene.fabric.clone(), guid(1)), again);
    scene.run(10 * SECOND);
    scene.fabric.set_link(scene.now_ns, guid(0), true);
    scene.run(MS);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
}

#[test]
fn other_networks_are_reached_by_the_gateway() {
    let link =
        |host| LinkConfig { gateway_v4: Some(ip4(1)), gateway_v6: Some(ip6(1)), ..settings(host) };
    let hosts = (0..2).map(|host| (link(host), vec![PKey(0xffff)])).collect();
    let mut scene = Scene::with(FabricConfig::default(), hosts);
    scene.run(MS);
    assert!(scene.arrives(0, "192.0.2.9".parse().unwrap(), 100, 1));
    assert!(scene.arrives(0, "2001:db8::9".parse().unwrap(), 100, 1));
    let mut scene = Scene::up();
    let far = datagram(0, "192.0.2.9".parse().unwrap(), 100);
    assert_eq!(scene.send(0, &far), Err(TransmitError::Refused), "there is no way");
}

#[test]
fn a_limited_number_of_undeliverable_datagrams_is_kept() {
    let mut scene = Scene::up();
    for to in 10..20 {
        for len in 100..116 {
            scene.send(0, &datagram(0, ip4(to).into(), len)).unwrap();
        }
    }
    scene.run(10 * SECOND);
    assert_eq!(scene.counters(0).neighbours_silent, 160);
    let kept = std::iter::from_fn(|| scene.hosts[0].poll_undeliverable()).count();
    assert_eq!(kept, UNDELIVERABLE_MAX, "the last ones");
}

/// Datagrams that wait for a missing path, and later ones, can be reported.
#[test]
fn datagrams_without_a_path_are_reported_as_undeliverable() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.fabric.set_link(scene.now_ns, guid(1), false);
    scene.run(MS);
    for len in [100, 101] {
        scene.send(0, &datagram(0, ip4(1).into(), len)).unwrap();
    }
    scene.run(MS);
    scene.send(0, &datagram(0, ip4(1).into(), 102)).unwrap();
    let given_up = std::iter::from_fn(|| scene.hosts[0].poll_undeliverable());
    let lens: Vec<_> = given_up.map(|datagram| datagram.len()).filter(|len| *len >= 100).collect();
    assert_eq!(lens, [100, 101, 102]);
    // Probes have no path either.
    assert!(scene.counters(0).without_path >= 3);
}
