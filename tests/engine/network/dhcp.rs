//! An address by DHCP (RFC 2131), from a server on a UDP socket at the other end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr};
use urnic_engine::limits::{ADDRESS_PATIENCE_NS, DHCP_RETRY_MS};
use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::host::SocketHandle;
use urnic_engine::port::{
    ConnectParams, ListenParams, LowerLayer, PortConfig, PortError, PortEvent,
};
use urnic_engine::time::Duration;

use crate::network::scene::{B6, LINK, Scene, config};
use urnic_testkit::pair::{A, B, TCP_PORT};

const LEASE_S: u32 = 60;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// Answers a message that the server's socket has received.
fn serve(scene: &mut Scene, server: SocketHandle) {
    let socket = scene.link.b.port.host_mut().udp(server);
    let Ok((octets, _)) = socket.recv() else { return };
    let octets = octets.to_vec();
    let packet = DhcpPacket::new_checked(&octets[..]).unwrap();
    let request = DhcpRepr::parse(&packet).unwrap();
    let message_type = match request.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        other => panic!("unexpected {other:?}"),
    };
    let reply = DhcpRepr {
        message_type,
        your_ip: A,
        server_ip: B,
        router: Some(B),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        client_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: true,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(B),
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        lease_duration: Some(LEASE_S),
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
        ..request
    };
    let mut octets = vec![0; reply.buffer_len()];
    reply.emit(&mut DhcpPacket::new_unchecked(&mut octets[..])).unwrap();
    socket.send_slice(&octets, (Ipv4Addr::BROADCAST, 68)).unwrap();
}

#[test]
fn leased_address_is_used_for_connections_until_it_expires() {
    let mut scene = Scene::with(LINK, PortConfig::for_dhcp(MAC), config(B, B6));
    let server = scene.link.b.port.host_mut().udp_bind(67, 4000).unwrap();

    let remote = SocketAddr::from((B, TCP_PORT));
    let params = ConnectParams { offer: Offer::default(), ..ConnectParams::default() };
    let now = scene.now();
    let early = scene.link.a.port.connect(now, remote, &scene.a.qp, &params);
    assert_eq!(early, Err(PortError::AddressPending(IpAddr::V4(B))));

    // Before there is an address, a port can listen at the unspecified one, and at no specific one.
    let address = IpAddr::V4(A);
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7000));
    let by_name = SocketAddr::new(address, 7001);
    let port = &mut scene.link.a.port;
    assert_eq!(port.listen_at(any, ListenParams::default()), Ok(any));
    let refused = port.listen_at(by_name, ListenParams::default());
    assert_eq!(refused, Err(PortError::NoSuchAddress(address)));
    let acquired = PortEvent::AddressAcquired { address, prefix_len: 24 };
    assert!(scene.run_for(Duration::from_secs(30), |scene| {
        serve(scene, server);
        scene.said[0].contains(&acquired)
    }));
    assert_eq!(scene.link.a.port.config().gateway_v4, Some(B));
    let now = scene.now();
    let to_a = SocketAddr::new(address, any.port());
    scene.link.b.port.open(now, to_a, LowerLayer::Optimized).unwrap();
    let incoming = |event: &PortEvent| matches!(event, PortEvent::Incoming { listener, .. } if *listener == any);
    assert!(scene.run_for(Duration::from_secs(5), |scene| scene.said[0].iter().any(incoming)));
    scene.said[0].retain(|event| !incoming(event));
    let port = &mut scene.link.a.port;
    assert_eq!(port.listen_at(by_name, ListenParams::default()), Ok(by_name));
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(100_000, Duration::from_secs(5)));

    // The lease is renewed, without an event.
    scene.run_for(Duration::from_secs(4 * u64::from(LEASE_S)), |scene| {
        serve(scene, server);
        false
    });
    assert_eq!(scene.said[0], std::slice::from_ref(&acquired));
    assert!(scene.write_within(100_000, Duration::from_secs(5)));

    // The server has stopped, and the lease ends.
    let lost = PortEvent::AddressLost { address };
    assert!(scene.run_for(Duration::from_secs(2 * u64::from(LEASE_S)), |scene| {
        scene.said[0].contains(&lost)
    }));
    assert!(scene.run_for(Duration::from_secs(1), |scene| !scene.closed.is_empty()));
    let now = scene.now();
    let qp = urnic_testkit::pair::End::new(9).qp;
    let late = scene.link.a.port.connect(now, remote, &qp, &params);
    assert_eq!(late, Err(PortError::AddressPending(IpAddr::V4(B))));

    // No server gives another address, which is reported once; when one does, all works again.
    let overdue = |scene: &Scene| {
        scene.said[0].iter().filter(|said| **said == PortEvent::AddressOverdue).count()
    };
    assert_eq!(overdue(&scene), 0);
    scene.run_for(Duration::from_secs(60), |_| false);
    assert_eq!(overdue(&scene), 1);
    assert!(scene.run_for(Duration::from_secs(60), |scene| {
        serve(scene, server);
        scene.link.a.port.config().ipv4.is_some()
    }));
    scene.run_for(Duration::from_secs(20), |scene| {
        serve(scene, server);
        false
    });
    assert_eq!(overdue(&scene), 1);
}

#[test]
fn an_address_that_does_not_come_is_missed_after_a_while() {
    let mut scene = Scene::with(LINK, PortConfig::for_dhcp(MAC), config(B, B6));
    let start = scene.now();
    assert!(scene.run_for(Duration::from_secs(60), |scene| !scene.said[0].is_empty()));
    assert_eq!(scene.said, [vec![PortEvent::AddressOverdue], vec![]]);
    let patience = Duration::from_nanos(ADDRESS_PATIENCE_NS);
    assert!((patience..patience * 2).contains(&(scene.now() - start)));
}

/// RFC 2131 §4.1: a lost request is repeated after 4 s.
#[test]
fn a_lost_request_costs_seconds() {
    let mut scene = Scene::with(LINK, PortConfig::for_dhcp(MAC), config(B, B6));
    let start = scene.now();
    // There is no server yet: the first request is lost.
    scene.run_for(Duration::from_millis(100), |_| false);
    let server = scene.link.b.port.host_mut().udp_bind(67, 4000).unwrap();
    assert!(scene.run_for(Duration::from_secs(30), |scene| {
        serve(scene, server);
        !scene.said[0].is_empty()
    }));
    assert!(matches!(scene.said[0][0], PortEvent::AddressAcquired { .. }), "{:?}", scene.said[0]);
    let first_retry = Duration::from_nanos(DHCP_RETRY_MS * 1_000_000);
    assert!(scene.now() - start < first_retry + Duration::from_millis(500));
}
