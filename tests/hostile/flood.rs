//! Many peers that are none (RFC 4987, RFC 5042 §6.4.1).

use std::net::Ipv4Addr;

use urnic::limits::{LISTEN_BACKLOG_MAX, MPA_REQUEST_TIMEOUT_NS, NEIGHBOURS_MAX};
use urnic::time::Duration;

use crate::octets::{CRC, REQUEST_KEY, empty_write, startup};
use crate::scene::{MOMENT, PEER, Scene};

/// Sends SYNs from made-up hosts that never answer.
fn flood(scene: &mut Scene, count: usize) {
    scene.peer.deaf = true;
    for index in 0..count {
        let host = Ipv4Addr::from(0x0A01_0000 + index as u32);
        scene.peer.pose_as((host, 1000));
        scene.peer.send_syn(scene.now.as_nanos());
        scene.run(Duration::from_micros(5));
    }
    scene.peer.deaf = false;
}

/// An honest peer is served.
fn is_open_for_business(scene: &mut Scene) {
    scene.peer.pose_as((PEER, 50_000));
    scene.open();
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    scene.accept();
    scene.send(&empty_write());
    assert!(scene.answers().is_empty());
}

#[test]
fn connections_in_setup_are_bounded_and_given_up() {
    let mut scene = Scene::new();
    flood(&mut scene, LISTEN_BACKLOG_MAX + 100);
    assert_eq!(scene.victim.port.connection_count(), LISTEN_BACKLOG_MAX);
    scene.run(Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS) + MOMENT);
    assert_eq!(scene.victim.port.connection_count(), 0);
    is_open_for_business(&mut scene);
}

#[test]
fn an_honest_peer_is_served_in_the_middle_of_a_flood() {
    let mut scene = Scene::new();
    flood(&mut scene, 100_000);
    let counters = *scene.victim.port.port_counters();
    assert_eq!(scene.victim.port.connection_count(), LISTEN_BACKLOG_MAX);
    assert_eq!(counters.cookies_sent, 100_000 - LISTEN_BACKLOG_MAX as u64);
    is_open_for_business(&mut scene);
    assert_eq!(scene.victim.port.port_counters().cookies_redeemed, 1);
    assert_eq!(scene.victim.port.connection_count(), LISTEN_BACKLOG_MAX + 1);
}

#[test]
fn made_up_cookies_open_nothing_and_are_not_answered() {
    let mut scene = Scene::new();
    flood(&mut scene, LISTEN_BACKLOG_MAX + 1);
    scene.peer.pose_as((PEER, 50_000));
    for guess in 0..1000 {
        let seq = scene.peer.seq_of(guess);
        scene.peer.send_flags(scene.now.as_nanos(), seq, urnic::tcp::Flags::ACK);
    }
    scene.run(MOMENT);
    assert_eq!(scene.victim.port.connection_count(), LISTEN_BACKLOG_MAX);
    assert_eq!(scene.victim.port.port_counters().cookies_redeemed, 0);
    assert!(!scene.peer.reset_received, "somebody's first segment may have been lost");
}

#[test]
fn many_hosts_in_turn_use_nothing_up() {
    let mut scene = Scene::new();
    for _ in 0..2 * NEIGHBOURS_MAX / LISTEN_BACKLOG_MAX {
        flood(&mut scene, LISTEN_BACKLOG_MAX);
        scene.run(Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS) + MOMENT);
    }
    assert_eq!(scene.victim.port.connection_count(), 0);
    is_open_for_business(&mut scene);
}

#[test]
fn segments_of_no_connection_are_answered_with_a_reset_or_not_at_all() {
    let mut scene = Scene::new();
    scene.peer.pose_as((PEER, 60_000));
    let seq = scene.peer.seq_of(0);
    for flags in 0..=0x3F_u8 {
        let flags = urnic::tcp::Flags::from_bits_retain(flags & !2);
        scene.peer.send_flags(scene.now.as_nanos(), seq, flags);
        scene.run(Duration::from_millis(1));
        assert_eq!(scene.victim.port.connection_count(), 0, "{flags:?}");
    }
    assert!(scene.peer.reset_received);
    is_open_for_business(&mut scene);
}
