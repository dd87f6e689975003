//! An address by DHCP (RFC 2131), from a server made of a UDP socket at the other end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr};
use urnic::mpa::startup::Offer;
use urnic::port::host::SocketHandle;
use urnic::port::{ConnectParams, PortConfig, PortError, PortEvent};
use urnic::time::Duration;

use crate::common::{A, B, TCP_PORT};
use crate::scene::{B6, LINK, Scene, config};

const LEASE_S: u32 = 60;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// Answers what has come to the server's socket.
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
fn an_address_comes_connects_and_goes() {
    let mut scene = Scene::with(LINK, PortConfig::for_dhcp(MAC), config(B, B6));
    let server = scene.link.b.port.host_mut().udp_bind(67, 4000).unwrap();

    let remote = SocketAddr::from((B, TCP_PORT));
    let params = ConnectParams { offer: Offer::default(), ..ConnectParams::default() };
    let now = scene.now();
    let early = scene.link.a.port.connect(now, remote, &scene.a.qp, &params);
    assert_eq!(early, Err(PortError::AddressPending(IpAddr::V4(B))));

    let address = IpAddr::V4(A);
    let acquired = PortEvent::AddressAcquired { address, prefix_len: 24 };
    assert!(scene.run_for(Duration::from_secs(30), |scene| {
        serve(scene, server);
        scene.said[0].contains(&acquired)
    }));
    assert_eq!(scene.link.a.port.config().gateway_v4, Some(B));
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(100_000, Duration::from_secs(5)));

    // The lease is renewed, which nobody needs to hear of.
    scene.run_for(Duration::from_secs(4 * u64::from(LEASE_S)), |scene| {
        serve(scene, server);
        false
    });
    assert_eq!(scene.said[0], std::slice::from_ref(&acquired));
    assert!(scene.write_within(100_000, Duration::from_secs(5)));

    // The server is gone, and the lease ends.
    let lost = PortEvent::AddressLost { address };
    assert!(scene.run_for(Duration::from_secs(2 * u64::from(LEASE_S)), |scene| {
        scene.said[0].contains(&lost)
    }));
    assert!(scene.run_for(Duration::from_secs(1), |scene| !scene.closed.is_empty()));
    let now = scene.now();
    let qp = crate::common::End::new(9).qp;
    let late = scene.link.a.port.connect(now, remote, &qp, &params);
    assert_eq!(late, Err(PortError::AddressPending(IpAddr::V4(B))));
}
