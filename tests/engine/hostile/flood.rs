//! Floods by many false peers (RFC 4987, RFC 5042 §6.4.1).

use std::net::Ipv4Addr;
use std::ops::Range;

use urnic_engine::limits::{
    CONNECTIONLESS_BURST_MAX, CONNECTIONLESS_PER_SECOND_MAX, LISTEN_BACKLOG_MAX,
    LISTEN_WAITING_MAX, MPA_REQUEST_TIMEOUT_NS, NEIGHBOURS_MAX,
};
use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::ListenParams;
use urnic_engine::stream::StreamEvent;
use urnic_engine::tcp::Flags;
use urnic_engine::time::Duration;

use crate::hostile::scene::{LISTEN_PORT, MOMENT, PEER, Scene};
use urnic_testkit::octets::{CRC, REQUEST_KEY, empty_write, startup};

/// One host with many connections.
const HOG: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);

/// Opens connections that are established and stay silent.
fn stay_silent(scene: &mut Scene, hosts: impl IntoIterator<Item = (Ipv4Addr, u16)>) {
    for host in hosts {
        scene.open_as(host);
        assert!(scene.peer.is_established(), "{host:?}");
    }
}

fn of_the_hog(count: usize) -> impl Iterator<Item = (Ipv4Addr, u16)> {
    (0..count).map(|n| (HOG, 10_000 + n as u16))
}

/// Sends SYNs from made-up hosts that never answer, at the highest rate that a port accepts.
fn flood(scene: &mut Scene, count: usize) {
    let pause = Duration::from_nanos(1_000_000_000 / CONNECTIONLESS_PER_SECOND_MAX);
    flood_each(scene, 0..count, pause);
    assert_eq!(scene.victim.port.drops().excess, 0);
}

/// Sends SYNs from these made-up hosts, with a pause after each.
fn flood_each(scene: &mut Scene, hosts: Range<usize>, pause: Duration) {
    scene.peer.deaf = true;
    for index in hosts {
        let host = Ipv4Addr::from(0x0A01_0000 + index as u32);
        scene.peer.pose_as((host, 1000));
        scene.peer.send_syn(scene.now.as_nanos());
        scene.run(pause);
    }
    scene.peer.deaf = false;
}

/// Asserts that an honest peer is served.
fn is_open_for_business(scene: &mut Scene) {
    scene.peer.pose_as((PEER, 50_000));
    scene.open();
    serves(scene);
}

/// Asserts that the peer's connection is served.
fn serves(scene: &mut Scene) {
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    scene.accept();
    scene.send(&empty_write());
    assert!(scene.answers().is_empty());
}

// spec: SEC-P-8, SEC-T-6
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
fn forged_cookies_open_nothing_and_get_no_answer() {
    let mut scene = Scene::new();
    flood(&mut scene, LISTEN_BACKLOG_MAX + 1);
    scene.peer.pose_as((PEER, 50_000));
    for guess in 0..1000 {
        let seq = scene.peer.seq_of(guess);
        scene.peer.send_flags(scene.now.as_nanos(), seq, Flags::ACK);
    }
    scene.run(MOMENT);
    assert_eq!(scene.victim.port.connection_count(), LISTEN_BACKLOG_MAX);
    assert_eq!(scene.victim.port.port_counters().cookies_redeemed, 0);
    assert!(!scene.peer.reset_received, "somebody's first segment may have been lost");
}

#[test]
fn many_hosts_in_turn_exhaust_nothing() {
    let mut scene = Scene::new();
    for _ in 0..2 * NEIGHBOURS_MAX / LISTEN_BACKLOG_MAX {
        flood(&mut scene, LISTEN_BACKLOG_MAX);
        scene.run(Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS) + MOMENT);
    }
    assert_eq!(scene.victim.port.connection_count(), 0);
    is_open_for_business(&mut scene);
}

/// The backlog of a listener has no share for each source address. When it is full, of one host's
/// SYNs or of many hosts', a SYN is answered with a cookie, which takes no entry (RFC 4987 §3.6).
#[test]
fn half_open_connections_of_one_host_block_no_other_host() {
    let mut scene = Scene::new();
    scene.peer.deaf = true;
    for host in of_the_hog(2 * LISTEN_BACKLOG_MAX) {
        scene.peer.pose_as(host);
        scene.peer.send_syn(scene.now.as_nanos());
        scene.run(Duration::from_micros(5));
    }
    scene.peer.deaf = false;
    assert_eq!(scene.victim.port.connection_count(), LISTEN_BACKLOG_MAX, "it has all of them");
    let (refused, others) = (LISTEN_BACKLOG_MAX as u64, 20);
    for n in 0..others {
        scene.open_as((Ipv4Addr::new(10, 0, 0, 67 + n as u8), 1000));
        assert!(scene.peer.is_established(), "host {n}");
        scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
        let _qp = scene.accept_another();
        scene.send(&empty_write());
        assert!(scene.answers().is_empty(), "host {n} is served");
    }
    let counters = *scene.victim.port.port_counters();
    assert_eq!(counters.cookies_sent, refused + others, "each of them");
    assert_eq!(counters.cookies_redeemed, others);
    assert_eq!(counters.backlog_evicted, 0, "nothing was taken from any");
    is_open_for_business(&mut scene);
}

#[test]
fn segments_of_no_connection_are_answered_with_a_reset_or_not_at_all() {
    let mut scene = Scene::new();
    scene.peer.pose_as((PEER, 60_000));
    let seq = scene.peer.seq_of(0);
    for flags in 0..=0x3F_u8 {
        let flags = Flags::from_bits_retain(flags & !2);
        scene.peer.send_flags(scene.now.as_nanos(), seq, flags);
        scene.run(Duration::from_millis(1));
        assert_eq!(scene.victim.port.connection_count(), 0, "{flags:?}");
    }
    assert!(scene.peer.reset_received);
    is_open_for_business(&mut scene);
}

// spec: SEC-P-8
#[test]
fn silent_connections_of_one_host_block_nobody() {
    let mut scene = Scene::new();
    stay_silent(&mut scene, of_the_hog(LISTEN_WAITING_MAX + 88));
    assert_eq!(scene.victim.port.connection_count(), LISTEN_WAITING_MAX);
    let counters = *scene.victim.port.port_counters();
    assert_eq!((counters.backlog_evicted, counters.cookies_sent), (88, 0), "none is half open");
    is_open_for_business(&mut scene);
    assert_eq!(scene.victim.port.port_counters().backlog_evicted, 89);
}

#[test]
fn silent_connections_of_many_hosts_block_nobody() {
    let mut scene = Scene::new();
    let hosts = (0..LISTEN_WAITING_MAX as u32 + 1).map(|n| (Ipv4Addr::from(0x0A02_0000 + n), 1000));
    stay_silent(&mut scene, hosts);
    is_open_for_business(&mut scene);
    assert_eq!(scene.victim.port.port_counters().backlog_evicted, 2);
}

#[test]
fn slow_peer_keeps_its_backlog_entry_beside_a_flooding_host() {
    let mut scene = Scene::new();
    scene.open_as((PEER, 50_000));
    let honest = (scene.peer.park(), scene.connection);
    stay_silent(&mut scene, of_the_hog(2 * LISTEN_WAITING_MAX));
    scene.peer.resume(honest.0);
    scene.connection = honest.1;
    scene.events.clear();
    serves(&mut scene);
}

#[test]
fn refused_peers_that_never_close_block_nobody() {
    let mut scene = Scene::new();
    for n in 0..LISTEN_WAITING_MAX as u32 + 88 {
        scene.open_as((Ipv4Addr::from(0x0A02_0000 + n), 1000));
        assert!(scene.peer.is_established(), "{n}");
        scene.peer.send(scene.now.as_nanos(), &startup(REQUEST_KEY, CRC, 1, b"no"));
        scene.run(Duration::from_millis(1));
        let id = scene.connection.expect("comes in");
        scene.victim.port.reject(id, &Offer::default()).unwrap();
        scene.victim.port.disconnect(id).unwrap();
        scene.run(Duration::from_millis(1));
        assert!(scene.peer.fin_received);
    }
    assert!(scene.victim.port.connection_count() <= LISTEN_WAITING_MAX);
    scene.events.clear();
    is_open_for_business(&mut scene);
}

#[test]
fn rejected_peer_in_streaming_mode_holds_no_backlog_entry() {
    let mut scene = Scene::new();
    let backlog = ListenParams { backlog: 1, ..ListenParams::default() };
    scene.victim.port.unlisten(LISTEN_PORT);
    scene.victim.port.listen(LISTEN_PORT, backlog).unwrap();
    for n in 0..5 {
        scene.open_as((PEER, 20_000 + n));
        scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
        scene.victim.port.reject(scene.connection.unwrap(), &Offer::default()).unwrap();
    }
    stay_silent(&mut scene, of_the_hog(2));
    assert_eq!(scene.victim.port.connection_count(), 7);
    assert_eq!(scene.victim.port.port_counters().backlog_evicted, 0);
}

#[test]
fn unanswered_requests_of_one_host_leave_room_for_another() {
    let mut scene = Scene::new();
    let asks = |scene: &mut Scene, host| {
        scene.open_as(host);
        scene.peer.send(scene.now.as_nanos(), &startup(REQUEST_KEY, CRC, 1, b""));
        scene.run(Duration::from_millis(1));
        scene.events.iter().any(|event| matches!(event, StreamEvent::Request(_)))
    };
    for host in of_the_hog(LISTEN_WAITING_MAX) {
        assert!(asks(&mut scene, host));
    }
    assert!(!asks(&mut scene, (HOG, 9000)), "it has more than its share");
    assert!(scene.peer.reset_received);
    assert_eq!(scene.victim.port.connection_count(), LISTEN_WAITING_MAX);
    scene.events.clear();
    is_open_for_business(&mut scene);
}

#[test]
fn peer_awaiting_its_answer_is_not_evicted_for_silent_ones() {
    let mut scene = Scene::new();
    scene.open_as((PEER, 50_000));
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    let asked = (scene.peer.park(), scene.connection, std::mem::take(&mut scene.events));
    let hosts = (0..2 * LISTEN_WAITING_MAX as u32).map(|n| Ipv4Addr::from(0x0A02_0000 + n));
    stay_silent(&mut scene, hosts.map(|host| (host, 1000)));
    scene.peer.resume(asked.0);
    (scene.connection, scene.events) = (asked.1, asked.2);
    scene.origin = scene.peer.sent;
    scene.accept();
    scene.send(&empty_write());
    assert!(scene.answers().is_empty());
}

#[test]
fn half_open_connections_of_a_closed_listener_use_no_new_backlog() {
    let mut scene = Scene::new();
    let params = || ListenParams { backlog: 1, ..ListenParams::default() };
    let anew = |scene: &mut Scene| {
        scene.victim.port.unlisten(LISTEN_PORT);
        scene.victim.port.listen(LISTEN_PORT, params()).unwrap();
    };
    anew(&mut scene);
    scene.peer.deaf = true;
    scene.open_as((HOG, 1));
    anew(&mut scene);
    // The one half-open entry of the new listener is taken just before that of the old one ends.
    scene.run(Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS) - Duration::from_secs(1));
    scene.open_as((HOG, 2));
    assert_eq!(scene.victim.port.port_counters().cookies_sent, 0);
    assert_eq!(scene.victim.port.connection_count(), 2);
    scene.run(Duration::from_secs(2));
    assert_eq!(scene.victim.port.connection_count(), 1);
    scene.open_as((HOG, 3));
    assert_eq!(scene.victim.port.port_counters().cookies_sent, 1, "it is still taken");
}

#[test]
fn silent_connections_of_a_closed_listener_use_no_new_backlog() {
    let mut scene = Scene::new();
    let anew = |scene: &mut Scene| {
        scene.victim.port.unlisten(LISTEN_PORT);
        let params = ListenParams { backlog: 1, ..ListenParams::default() };
        scene.victim.port.listen(LISTEN_PORT, params).unwrap();
    };
    anew(&mut scene);
    stay_silent(&mut scene, [(HOG, 1), (HOG, 2)]);
    anew(&mut scene);
    scene.run(Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS) - Duration::from_secs(1));
    stay_silent(&mut scene, [(HOG, 3), (HOG, 4)]);
    scene.run(Duration::from_secs(2));
    assert_eq!(scene.victim.port.port_counters().backlog_evicted, 0);
    stay_silent(&mut scene, [(HOG, 5)]);
    assert_eq!(scene.victim.port.port_counters().backlog_evicted, 1, "both places are taken");
}

#[test]
fn listening_anew_with_peers_in_setup_ends_in_order() {
    let mut scene = Scene::new();
    stay_silent(&mut scene, of_the_hog(3));
    flood(&mut scene, 3);
    for _ in 0..2 {
        scene.victim.port.unlisten(LISTEN_PORT);
        scene.victim.port.listen(LISTEN_PORT, ListenParams::default()).unwrap();
    }
    scene.run(Duration::from_nanos(3 * MPA_REQUEST_TIMEOUT_NS));
    is_open_for_business(&mut scene);
}

/// 300,000 SYNs a second: those beyond the limit are dropped and counted, connections are not
/// affected, and after the flood new ones are opened at once.
#[test]
fn a_flood_beyond_the_limit_is_dropped_and_connections_go_on() {
    const ROUNDS: usize = 8;
    const COUNT: usize = 8192;
    let mut scene = Scene::ready();
    let (begin, id) = (scene.now, scene.connection.unwrap());
    let mut honest = scene.peer.park();
    for round in 1..=ROUNDS {
        let hosts = (round - 1) * COUNT..round * COUNT;
        flood_each(&mut scene, hosts, Duration::from_nanos(3333));
        let hostile = scene.peer.park();
        scene.peer.resume(honest);
        scene.send(&empty_write());
        let counters = scene.victim.port.counters(id).unwrap();
        assert_eq!(counters.rdma.messages_by_opcode.iter().sum::<u64>(), 1 + round as u64);
        assert_eq!((counters.tcp.duplicates, counters.tcp.out_of_order), (0, 0));
        honest = scene.peer.park();
        scene.peer.resume(hostile);
    }
    let counters = *scene.victim.port.port_counters();
    let (sent, elapsed) = ((ROUNDS * COUNT) as u64, (scene.now - begin).as_nanos() as u64);
    let most = CONNECTIONLESS_BURST_MAX + CONNECTIONLESS_PER_SECOND_MAX * elapsed / 1_000_000_000;
    assert_eq!(counters.cookies_sent + LISTEN_BACKLOG_MAX as u64 + counters.drops.excess, sent);
    assert!(counters.drops.excess > 0);
    assert!((CONNECTIONLESS_BURST_MAX..=most).contains(&(sent - counters.drops.excess)));
    scene.run(MOMENT);
    scene.open_as((PEER, 50_000));
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    let _qp = scene.accept_another();
    scene.send(&empty_write());
    assert!(scene.answers().is_empty());
}

/// Segments for ordinary sockets are not limited, and do not use the allowance of RDMA listeners.
#[test]
fn segments_for_ordinary_sockets_block_no_peer_of_a_listener() {
    let mut scene = Scene::new();
    scene.victim.port.host_mut().tcp_listen(80, 60_000).unwrap();
    scene.peer.aim_at(80);
    scene.peer.deaf = true;
    for _ in 0..2 * CONNECTIONLESS_BURST_MAX {
        let (now_ns, seq) = (scene.now.as_nanos(), scene.peer.seq_of(0));
        scene.peer.send_flags(now_ns, seq, Flags::ACK);
        scene.run(Duration::from_nanos(100));
    }
    scene.run(Duration::from_nanos(2000));
    assert_eq!(scene.victim.port.drops().excess, 0);
    scene.peer.aim_at(LISTEN_PORT);
    scene.peer.deaf = false;
    is_open_for_business(&mut scene);
}
