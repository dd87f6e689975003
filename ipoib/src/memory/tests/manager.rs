//! Subnet manager and administrator: busy, silent, stopped, replaced.

use super::*;
use crate::limits::{ANNOUNCE_INTERVAL_NS, ANNOUNCEMENTS, REACHABLE_NS, REFRESH_NS};
use crate::link::DownReason;

#[test]
fn requests_to_a_busy_administrator_are_repeated() {
    let mut scene = Scene::new(FabricConfig::default(), 2);
    scene.fabric.set_busy(5);
    scene.run(MS);
    assert!(!scene.hosts[0].link_up());
    scene.run(5 * SECOND);
    assert!(scene.hosts.iter().all(Device::link_up));
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
}

#[test]
fn requests_to_a_silent_administrator_back_off_and_it_is_reported() {
    let mut scene = Scene::new(FabricConfig::default(), 1);
    scene.fabric.set_silent(true);
    scene.run(SECOND);
    assert_eq!(scene.counters(0).requests_sent, 3, "at once, after 250 ms, after 750 ms");
    while scene.counters(0).requests_unanswered == 0 {
        assert!(scene.now_ns < 31 * SECOND);
        scene.run(SECOND);
    }
    assert_eq!(scene.state(0), LinkState::Down(DownReason::Silent));
    assert_eq!(scene.counters(0).requests_unanswered, 1);
    let sent = scene.counters(0).requests_sent;
    assert!(sent < 14, "{sent}");
    scene.fabric.set_silent(false);
    scene.run(20 * SECOND);
    assert!(scene.hosts[0].link_up());
}

#[test]
fn an_answer_that_comes_twice_counts_once() {
    let mut scene = Scene::new(FabricConfig::default(), 1);
    scene.fabric.set_double(3);
    scene.run(MS);
    assert!(scene.hosts[0].link_up());
    assert_eq!(scene.counters(0).mads_refused, 3);
}

/// A link stays up while the administrator is silent: the switches still forward.
#[test]
fn an_administrator_that_goes_silent_later_takes_nothing_with_it() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.fabric.set_silent(true);
    scene.run(4 * REFRESH_NS);
    assert!(scene.hosts.iter().all(Device::link_up));
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
}

#[test]
fn after_a_restart_of_the_manager_all_is_joined_and_subscribed_again() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.fabric.restart_manager();
    scene.run(MS);
    assert!(scene.hosts.iter().all(Device::link_up));
    assert!(scene.arrives(0, ip4(1).into(), 100, 1), "by new paths");
    assert!(scene.arrives(0, ip6(1).into(), 100, 1), "by new groups");
    assert_eq!(scene.fabric.lock().administrator.subscriptions(), 8);
    assert_eq!(scene.counters(0).link_ups, 2);
}

/// The hosts get no notification: they refresh their memberships periodically.
#[test]
fn memberships_that_an_administrator_has_forgotten_come_back_by_themselves() {
    let mut scene = Scene::up();
    let lid = scene.fabric.lock().administrator.lid;
    scene.fabric.lock().administrator.restart(lid);
    assert!(!scene.arrives(0, Ipv4Addr::BROADCAST.into(), 100, 1));
    scene.run(REFRESH_NS + SECOND);
    assert!(scene.arrives(0, Ipv4Addr::BROADCAST.into(), 100, 1));
}

#[test]
fn link_goes_down_and_up_with_its_port() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.fabric.set_link(scene.now_ns, guid(1), false);
    scene.run(MS);
    assert_eq!(scene.state(1), LinkState::Down(DownReason::PortDown));
    assert!(!scene.arrives(0, ip4(1).into(), 100, 1));
    assert_eq!(scene.send(1, &datagram(1, ip4(0).into(), 100)), Err(TransmitError::LinkDown));
    scene.fabric.set_link(scene.now_ns, guid(1), true);
    scene.run(10 * SECOND);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    assert!(scene.arrives(1, ip6(0).into(), 100, 0));
}

/// Traps 64 and 65 report that a path has changed.
#[test]
fn a_peer_with_another_lid_is_found() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
    scene.fabric.set_link(scene.now_ns, guid(1), false);
    scene.fabric.move_port(guid(1));
    scene.run(MS);
    scene.fabric.set_link(scene.now_ns, guid(1), true);
    scene.run(MS);
    assert!(scene.arrives(0, ip4(1).into(), 100, 1));
}

/// A subnet manager that changes a port's LID sends no trap. The others learn it by the port's
/// announcement or, if all announcements are lost, because the port does not answer at its old LID.
#[test]
fn unannounced_lid_change_of_a_peer_is_detected() {
    for (announces, within_ns) in [(true, 3 * SECOND), (false, REACHABLE_NS + 10 * SECOND)] {
        let mut scene = Scene::up();
        assert!(scene.arrives(0, ip4(1).into(), 100, 1));
        assert!(scene.arrives(0, ip6(1).into(), 100, 1));
        // A path that was just queried is not queried again.
        scene.run(SECOND);
        let asked = scene.fabric.asked().paths;
        scene.fabric.move_port(guid(1));
        if !announces {
            for _ in 0..2 * ANNOUNCEMENTS {
                for _ in 0..3 {
                    scene.hosts[1].receive(scene.now_ns, 64, &mut |_| {});
                    scene.now_ns += MS;
                }
                scene.fabric.lock().ports.get_mut(&Lid(2)).unwrap().clear();
                scene.now_ns += ANNOUNCE_INTERVAL_NS / 2;
            }
        }
        let begin_ns = scene.now_ns;
        for to in [IpAddr::V4(ip4(1)), IpAddr::V6(ip6(1))] {
            while !scene.arrives(0, to, 100, 1) {
                assert!(scene.now_ns < begin_ns + within_ns, "{to} {announces}");
                scene.run(SECOND);
            }
        }
        let asked = scene.fabric.asked().paths - asked;
        assert!(asked <= 8, "{asked}");
    }
}
