//! Listeners at addresses, and the number of connections that a port has and keeps in TIME-WAIT.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use urnic_engine::port::{ListenParams, LowerLayer, PortError};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;

use crate::network::scene::{A6, B6, LINK, Scene, config};
use urnic_testkit::pair::{A, B};

const PORT: u16 = 7000;

/// Returns parameters for connections that stay in streaming mode.
fn params() -> ListenParams {
    ListenParams { delayed: true, ..ListenParams::default() }
}

/// Returns true if a connection to `address` reaches a listener at `b`.
fn is_heard(scene: &mut Scene, address: IpAddr) -> bool {
    scene.b.connection = None;
    let now = scene.now();
    let remote = SocketAddr::new(address, PORT);
    scene.a.connection = Some(scene.link.a.port.open(now, remote, LowerLayer::Optimized).unwrap());
    scene.run_for(Duration::from_millis(100), |scene| scene.b.connection.is_some())
}

#[test]
fn listener_gets_connections_to_its_address_only() {
    let (v4, v6) = (IpAddr::V4(B), IpAddr::V6(B6));
    let link_local = config(B, B6).link_local().to_string();
    for (at, hears) in [
        ("10.0.0.2", [true, false]),
        ("0.0.0.0", [true, false]),
        ("fd00::2", [false, true]),
        ("::", [true, true]),
        ("::ffff:10.0.0.2", [true, false]),
        (link_local.as_str(), [false, false]),
    ] {
        let mut scene = Scene::new();
        let local = SocketAddr::new(at.parse().unwrap(), PORT);
        let chosen = scene.link.b.port.listen_at(local, params()).unwrap();
        assert_eq!(chosen, SocketAddr::new(local.ip().to_canonical(), PORT));
        let heard = [v4, v6].map(|address| is_heard(&mut scene, address));
        assert_eq!(heard, hears, "{at}");
        scene.link.b.port.unlisten_at(local);
        let heard = [v4, v6].map(|address| is_heard(&mut scene, address));
        assert_eq!(heard, [false, false], "{at} is listened at no more");
    }
}

#[test]
fn an_address_of_another_host_is_refused() {
    let mut scene = Scene::new();
    for other in [IpAddr::V4(A), IpAddr::V6(A6), IpAddr::V4(Ipv4Addr::LOCALHOST)] {
        let local = SocketAddr::new(other, PORT);
        let refused = scene.link.b.port.listen_at(local, params());
        assert_eq!(refused, Err(PortError::NoSuchAddress(other)));
    }
}

#[test]
fn listeners_share_a_tcp_port_if_they_share_no_address() {
    let mut scene = Scene::new();
    let port = &mut scene.link.b.port;
    let mut listen = |at: &str| {
        let local = SocketAddr::new(at.parse().unwrap(), PORT);
        port.listen_at(local, params()).map(|_| ())
    };
    assert_eq!(listen("10.0.0.2"), Ok(()));
    for taken in ["10.0.0.2", "0.0.0.0", "::"] {
        assert_eq!(listen(taken), Err(PortError::PortTaken(PORT)), "{taken}");
    }
    assert_eq!(listen("fd00::2"), Ok(()));
    assert_eq!(listen(&config(B, B6).link_local().to_string()), Ok(()));
    // Each receives its own; a closed listener does not affect the others.
    assert!(is_heard(&mut scene, IpAddr::V4(B)));
    assert!(is_heard(&mut scene, IpAddr::V6(B6)));
    scene.link.b.port.unlisten_at(SocketAddr::new(IpAddr::V4(B), PORT));
    assert!(!is_heard(&mut scene, IpAddr::V4(B)));
    assert!(is_heard(&mut scene, IpAddr::V6(B6)));
}

#[test]
fn ephemeral_listen_port_is_free_at_all_addresses() {
    let mut scene = Scene::new();
    let port = &mut scene.link.b.port;
    let local = SocketAddr::new(IpAddr::V4(B), 0);
    let first = port.listen_at(local, params()).unwrap();
    let second = port.listen_at(SocketAddr::new(IpAddr::V6(B6), 0), params());
    assert!(first.port() >= 49152);
    assert_ne!(second.unwrap().port(), first.port());
}

#[test]
fn connections_in_time_wait_take_no_slot_and_the_oldest_make_room() {
    let mut of_a = config(A, A6);
    (of_a.connections_max, of_a.time_wait_max) = (1, 3);
    let mut scene = Scene::with(LINK, of_a, config(B, B6));
    scene.link.b.port.listen(PORT, params()).unwrap();
    for _ in 0..10 {
        assert!(is_heard(&mut scene, IpAddr::V4(B)), "{:?}", scene.a.events);
        scene.a.events.clear();
        scene.b.events.clear();
        // `a` closes first, so it has the TIME-WAIT.
        let (id, peer) = (scene.id(), scene.b.connection.unwrap());
        let limit = Duration::from_secs(1);
        // A connection that is not established yet would end at once.
        scene.link.a.port.send_streaming(id, b"x").unwrap();
        assert!(
            scene.run_for(limit, |scene| { scene.b.events.contains(&StreamEvent::StreamingBytes) })
        );
        scene.link.a.port.disconnect(id).unwrap();
        assert!(scene.run_for(limit, |scene| scene.b.events.contains(&StreamEvent::PeerClosed)));
        scene.link.b.port.disconnect(peer).unwrap();
        assert!(scene.run_for(limit, |scene| scene.a.events.contains(&StreamEvent::PeerClosed)));
    }
    let port = &scene.link.a.port;
    assert_eq!((port.connection_count(), port.time_wait_count()), (3, 3));
    assert_eq!(port.port_counters().time_wait_recycled, 7);
}

#[test]
fn open_connections_give_up_no_slot() {
    let mut of_a = config(A, A6);
    of_a.connections_max = 2;
    let mut scene = Scene::with(LINK, of_a, config(B, B6));
    scene.link.b.port.listen(PORT, params()).unwrap();
    assert!(is_heard(&mut scene, IpAddr::V4(B)));
    assert!(is_heard(&mut scene, IpAddr::V6(B6)));
    let now = scene.now();
    let remote = SocketAddr::new(IpAddr::V4(B), PORT);
    let refused = scene.link.a.port.open(now, remote, LowerLayer::Optimized);
    assert_eq!(refused, Err(PortError::Exhausted));
}
