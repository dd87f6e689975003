//! Ordinary sockets on the engine's device and address.

use std::net::{IpAddr, SocketAddr};

use urnic_engine::port::host::{HostError, SocketHandle, tcp};
use urnic_engine::port::{ListenParams, PortError};
use urnic_engine::time::Duration;

use crate::network::scene::{B6, Scene};
use urnic_testkit::pair::B;

const LIMIT: Duration = Duration::from_secs(10);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

/// Opens a connection from `a` to port 80 of `b`.
fn open(scene: &mut Scene, address: IpAddr) -> (SocketHandle, SocketHandle) {
    let there = scene.link.b.port.host_mut().tcp_listen(80, 1 << 16).unwrap();
    let remote = SocketAddr::new(address, 80);
    let here = scene.link.a.port.host_mut().tcp_connect(remote, 1 << 16).unwrap();
    (here, there)
}

/// Moves bytes by ordinary TCP while other traffic may go on.
fn transfer(scene: &mut Scene, here: SocketHandle, there: SocketHandle, octets: &[u8]) {
    let (mut sent, mut received) = (0, Vec::new());
    let done = scene.run_for(LIMIT, |scene| {
        let socket = scene.link.a.port.host_mut().tcp(here);
        if socket.can_send() {
            sent += socket.send_slice(&octets[sent..]).unwrap();
        }
        let socket = scene.link.b.port.host_mut().tcp(there);
        while socket.can_recv() {
            socket.recv(|part| (part.len(), received.extend_from_slice(part))).unwrap();
        }
        received.len() == octets.len()
    });
    assert!(done, "{sent} sent, {} received", received.len());
    assert!(received == octets);
}

#[test]
fn ordinary_tcp_runs_beside_the_engine() {
    for address in [IpAddr::V4(B), IpAddr::V6(B6)] {
        let mut scene = Scene::new();
        scene.connect(address);
        let (here, there) = open(&mut scene, address);
        transfer(&mut scene, here, there, &pattern(300_000));
        assert!(scene.write_within(300_000, LIMIT));
        scene.link.a.port.host_mut().tcp(here).close();
        scene.link.b.port.host_mut().tcp(there).close();
        assert!(scene.run_for(Duration::from_secs(60), |scene| {
            let host = scene.link.a.port.host_mut();
            host.tcp(here).state() == tcp::State::Closed
        }));
        scene.link.a.port.host_mut().remove(here);
    }
}

#[test]
fn merged_frames_with_incomplete_checksums_are_understood() {
    let mut scene = Scene::new();
    let (here, there) = open(&mut scene, IpAddr::V4(B));
    scene.link.a.device.merges = true;
    scene.link.b.device.merges = true;
    transfer(&mut scene, here, there, &pattern(500_000));
    let listening = scene.link.b.port.host_mut().udp_bind(53, 4000).unwrap();
    let socket = scene.link.a.port.host_mut().udp_bind(53, 4000).unwrap();
    scene.link.a.port.host_mut().udp(socket).send_slice(b"who", (B, 53)).unwrap();
    assert!(scene.run_for(LIMIT, |scene| {
        scene.link.b.port.host_mut().udp(listening).recv().is_ok_and(|(name, _)| name == b"who")
    }));
}

#[test]
fn a_segment_for_no_socket_is_reset() {
    let mut scene = Scene::new();
    let here = scene.link.a.port.host_mut().tcp_connect((B, 81).into(), 1000).unwrap();
    let began = scene.now();
    assert!(scene.run_for(LIMIT, |scene| {
        scene.link.a.port.host_mut().tcp(here).state() == tcp::State::Closed
    }));
    assert!(scene.now() - began < Duration::from_millis(100));
}

#[test]
fn unsolicited_answers_are_sent_within_a_limit() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    let mut frame = Vec::new();
    frame.extend([2, 0, 10, 0, 0, 1, 2, 0, 10, 0, 0, 2, 0x08, 0x00]);
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    let sum = crate::network::frames::checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    frame.extend(ip);
    frame.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let (mut resets, now) = (0, scene.now());
    for _ in 0..100 {
        for _ in 0..100 {
            let checksum = urnic_netdev::RxChecksum::Valid;
            let frame = urnic_netdev::RxFrame::whole(&frame, checksum, None);
            scene.link.a.port.handle_frame(now, &frame);
        }
        scene.link.a.port.poll_transmit(now, usize::MAX, &mut |_| {
            resets += 1;
            Ok(())
        });
    }
    assert_eq!(resets, urnic_engine::limits::UNSOLICITED_PER_SECOND_MAX);
}

#[test]
fn impossible_sockets_are_refused_with_a_reason() {
    let mut scene = Scene::new();
    let host = scene.link.a.port.host_mut();
    assert_eq!(host.tcp_listen(0, 1000), Err(HostError::Invalid));
    assert_eq!(host.tcp_listen(80, 0), Err(HostError::Invalid));
    assert_eq!(host.tcp_connect((B, 0).into(), 1000), Err(HostError::Invalid));
    assert_eq!(host.udp_bind(0, 1000), Err(HostError::Invalid));
    host.udp_bind(53, 1000).unwrap();
    assert_eq!(host.udp_bind(53, 1000), Err(HostError::PortTaken(53)));
    host.tcp_listen(80, 1000).unwrap();
    let taken = scene.link.a.port.listen(80, ListenParams::default());
    assert_eq!(taken, Err(PortError::PortTaken(80)));
    let host = scene.link.a.port.host_mut();
    let mut made = 2;
    while host.tcp_listen(81, 1).is_ok() {
        made += 1;
    }
    assert_eq!(made, urnic_engine::limits::HOST_SOCKETS_MAX);
}
