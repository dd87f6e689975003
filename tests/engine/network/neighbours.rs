//! Link addresses that are wrong, change, or are made up.

use std::net::{IpAddr, Ipv4Addr};

use urnic_engine::limits::NEIGHBOUR_LOCK_NS;
use urnic_engine::port::{ListenParams, Port, PortConfig};
use urnic_engine::time::{Duration, Instant};
use urnic_netdev::{Device, RxChecksum, RxFrame, memory};

use crate::network::frames::{is_tcp, seal};
use crate::network::scene::{LINK, Scene};
use crate::network::wire::Verdict;
use urnic_testkit::pair::{A, B, TCP_PORT};

/// Returns a broadcast ARP packet in which `address` claims `mac`.
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
    let now = scene.now();
    hear_at(now, scene, bytes);
}

fn hear_at(now: Instant, scene: &mut Scene, bytes: &[u8]) {
    let frame = RxFrame::whole(bytes, RxChecksum::Unverified, None);
    scene.link.a.port.handle_frame(now, &frame);
}

/// Time after a claim during which another one is ignored.
const LOCKED: Duration = Duration::from_nanos(NEIGHBOUR_LOCK_NS);

#[test]
fn a_claim_soon_after_another_changes_nothing() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    hear(&mut scene, &gratuitous(B, [2, 9, 9, 9, 9, 9]));
    let before = scene.now();
    assert!(scene.write_within(10_000, Duration::from_secs(3)));
    assert!(scene.now() - before < Duration::from_millis(9), "without a timeout");
}

/// A host on the link sends SYNs with a source beyond the router: its own link address is not taken
/// for the router's. A host on the link is answered at once, and queried.
#[test]
fn routed_syn_does_not_teach_the_link_address_of_the_router() {
    let router = Ipv4Addr::new(10, 0, 0, 254);
    for (source, asked_for) in [([192, 0, 2, 7], router), ([10, 0, 0, 7], [10, 0, 0, 7].into())] {
        let rnic = urnic_testkit::pair::End::new(1).rnic;
        let config = PortConfig { gateway_v4: Some(router), ..PortConfig::for_ipv4(B) };
        let (device, _far) = memory::pair(LINK);
        let mut port = Port::new(&rnic, config.clone(), device.capabilities());
        port.listen(TCP_PORT, ListenParams::default()).unwrap();
        let mut syn = config.mac.to_vec();
        syn.extend([2, 9, 9, 9, 9, 9, 8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        syn.extend(source);
        syn.extend(B.octets());
        syn.extend([0x9c, 0x40, (TCP_PORT >> 8) as u8, TCP_PORT as u8, 0, 0, 0, 1, 0, 0, 0, 0]);
        syn.extend([0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        seal(&mut syn);
        let frame = RxFrame::whole(&syn, RxChecksum::Unverified, None);
        port.handle_frame(Instant::ZERO, &frame);
        assert_eq!(port.connection_count(), 1);
        let (mut questions, mut answers) = (Vec::new(), Vec::new());
        port.poll_transmit(Instant::ZERO, 64, &mut |frame| {
            let mut octets = vec![0; frame.len()];
            frame.gather(&mut octets);
            match octets[12..14] {
                [8, 6] => questions.push(octets[38..42].to_vec()),
                [8, 0] => answers.push(octets[..6].to_vec()),
                _ => {}
            }
            Ok(())
        });
        assert_eq!(questions, [asked_for.octets()]);
        let expected: &[[u8; 6]] = if asked_for == router { &[] } else { &[[2, 9, 9, 9, 9, 9]] };
        assert_eq!(answers, expected);
    }
}

/// RFC 1122 §3.3.6.
#[test]
fn frames_for_other_hosts_and_segments_in_multicasts_are_dropped() {
    for (address, is_for_us) in
        [(None, true), (Some([2, 8, 8, 8, 8, 8]), false), (Some([0xff; 6]), false)]
    {
        let mut scene = Scene::new();
        // Delivers frames as a switch that floods, or an interface in promiscuous mode.
        scene.link.b.device.is_promiscuous = true;
        scene.behind_a(move |frame| {
            let mut changed = frame.to_vec();
            if let Some(address) = address
                && is_tcp(frame)
            {
                changed[..6].copy_from_slice(&address);
            }
            Verdict::Become(vec![changed])
        });
        scene.begin(IpAddr::V4(B));
        scene.run_for(Duration::from_millis(500), |_| false);
        assert_eq!(scene.link.b.port.connection_count(), usize::from(is_for_us));
        let foreign = scene.link.b.port.drops().foreign;
        assert_eq!(foreign == 0, is_for_us, "{foreign}");
    }
}

#[test]
fn a_wrong_link_address_heals_while_a_transfer_runs() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    hear_at(scene.now() + LOCKED, &mut scene, &gratuitous(B, [2, 9, 9, 9, 9, 9]));
    assert!(scene.write_within(1 << 20, Duration::from_secs(3)), "asked again after timeouts");
}

#[test]
fn a_peer_that_moves_is_followed() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    let elsewhere = [2, 9, 9, 9, 9, 9];
    scene.link.b.device.mac = elsewhere;
    hear_at(scene.now() + LOCKED, &mut scene, &gratuitous(B, elsewhere));
    let before = scene.now();
    assert!(scene.write_within(10_000, Duration::from_secs(3)));
    assert!(scene.now() - before < Duration::from_millis(9), "without a timeout");
}

/// Made-up hosts push the entry of a peer out of the table, and the peer comes back with another link address.
#[test]
fn moved_peer_is_found_after_its_entry_was_evicted() {
    for is_heard in [false, true] {
        let mut scene = Scene::new();
        scene.connect(IpAddr::V4(B));
        for host in 0..30_000_u32 {
            let address = Ipv4Addr::from(u32::from(A) & 0xff00_0000 | 0x0001_0000 | host);
            let mut asking = gratuitous(address, [2, 0, 1, 1, (host >> 8) as u8, host as u8]);
            asking.truncate(38);
            asking.extend(A.octets());
            hear(&mut scene, &asking);
        }
        let elsewhere = [2, 9, 9, 9, 9, 9];
        scene.link.b.device.mac = elsewhere;
        // Its answers say where it is now.
        scene.behind_b(move |frame| {
            let mut changed = frame.to_vec();
            if frame[12..14] == [8, 6] {
                changed[22..28].copy_from_slice(&elsewhere);
            }
            Verdict::Become(vec![changed])
        });
        if is_heard {
            // Nothing was asked: existing connections keep their routes.
            let mut asking = gratuitous(B, elsewhere);
            asking.truncate(38);
            asking.extend(A.octets());
            hear(&mut scene, &asking);
        }
        assert!(scene.write_within(100_000, Duration::from_secs(5)), "asked again after timeouts");
    }
}

#[test]
fn forged_neighbours_do_not_block_resolution_of_others() {
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
    let address = PortConfig::for_ipv4(B).link_local();
    assert_eq!(address, "fe80::aff:fe00:2".parse::<std::net::Ipv6Addr>().unwrap());
    scene.connect(IpAddr::V6(address));
    assert!(scene.write_within(100_000, Duration::from_secs(3)));
}
