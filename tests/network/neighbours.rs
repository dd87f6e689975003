//! Link addresses that are wrong, change, or are made up.

use std::net::{IpAddr, Ipv4Addr};

use urnic::time::Duration;
use urnic_netdev::{RxChecksum, RxFrame};

use crate::common::{A, B};
use crate::scene::Scene;

/// An ARP packet to everybody in which `address` claims `mac`.
fn gratuitous(address: Ipv4Addr, mac: [u8; 6]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    for _ in 0..2 {
        frame.extend(mac);
        frame.extend(address.octets());
    }
    frame
}

fn hear(scene: &mut Scene, bytes: &[u8]) {
    let frame = RxFrame { bytes, checksum: RxChecksum::Unverified, segment_size: None };
    let now = scene.now();
    scene.link.a.port.handle_frame(now, &frame);
}

#[test]
fn a_wrong_link_address_heals_while_a_transfer_runs() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    hear(&mut scene, &gratuitous(B, [2, 9, 9, 9, 9, 9]));
    assert!(scene.write_within(1 << 20, Duration::from_secs(3)), "asked again after timeouts");
}

#[test]
fn a_peer_that_moves_is_followed() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    let elsewhere = [2, 9, 9, 9, 9, 9];
    scene.link.b.device.mac = elsewhere;
    hear(&mut scene, &gratuitous(B, elsewhere));
    let before = scene.now();
    assert!(scene.write_within(10_000, Duration::from_secs(3)));
    assert!(scene.now() - before < Duration::from_millis(9), "without a timeout");
}

#[test]
fn made_up_neighbours_do_not_keep_others_from_being_found() {
    let mut scene = Scene::new();
    for host in 0..5000_u32 {
        let address = Ipv4Addr::from(u32::from(A) & 0xff00_0000 | 0x0001_0000 | host);
        hear(&mut scene, &gratuitous(address, [2, 0, 1, 1, (host >> 8) as u8, host as u8]));
    }
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(10_000, Duration::from_secs(3)));
}

#[test]
fn link_local_addresses_are_reached() {
    let mut scene = Scene::new();
    let address = urnic::port::PortConfig::for_ipv4(B).link_local();
    assert_eq!(address, "fe80::aff:fe00:2".parse::<std::net::Ipv6Addr>().unwrap());
    scene.connect(IpAddr::V6(address));
    assert!(scene.write_within(100_000, Duration::from_secs(3)));
}
