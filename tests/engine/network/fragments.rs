//! IP datagrams that arrive in fragments.

use std::net::{IpAddr, Ipv6Addr};

use urnic_engine::limits::CONNECTIONLESS_BURST_MAX;
use urnic_engine::port::{Port, PortConfig};
use urnic_engine::time::{Duration, Instant};
use urnic_netdev::{Device, RxChecksum, RxFrame, memory};

use crate::network::frames::{datagram_len, fragments_of};
use crate::network::scene::{B6, LINK, Scene};
use crate::network::wire::Verdict;
use urnic_testkit::pair::B;

/// Inserts a router that cuts datagrams longer than 576 bytes.
fn cut(scene: &mut Scene) {
    let mut id = 0;
    scene.behind_a(move |frame| {
        id += 1;
        if datagram_len(frame) > 576 {
            Verdict::Become(fragments_of(frame, 512, id))
        } else {
            Verdict::Pass
        }
    });
}

// spec: TCP-A.5.1-1
#[test]
fn segments_in_fragments_are_put_together_and_placed() {
    for address in [IpAddr::V4(B), IpAddr::V6(B6)] {
        let mut scene = Scene::new();
        cut(&mut scene);
        scene.connect(address);
        assert!(scene.write_within(1 << 20, Duration::from_secs(10)), "{address}");
        let counters = *scene.link.b.port.port_counters();
        assert!(counters.reassembled > 700, "{counters:?}");
        assert_eq!(counters.drops.fragments, 0);
        let tcp = scene.link.a.port.counters(scene.id()).unwrap().tcp;
        assert_eq!((tcp.rtos, tcp.retransmissions), (0, 0), "nothing was lost by it");
    }
}

/// A flood of other frames of no connection uses up its own allowance, not that of fragments.
#[test]
fn a_flood_of_other_frames_keeps_no_fragments_out() {
    let mut scene = Scene::new();
    cut(&mut scene);
    scene.connect(IpAddr::V4(B));
    let junk = to_link_local(&PortConfig::for_ipv4(B), 17, &[0; 8]);
    let mut frames = 2 * CONNECTIONLESS_BURST_MAX;
    let done = scene.write_while(100_000, Duration::from_secs(10), |scene| {
        let now = scene.now();
        for _ in 0..std::mem::replace(&mut frames, 100) {
            let frame = RxFrame::whole(&junk, RxChecksum::Unverified, None);
            scene.link.b.port.handle_frame(now, &frame);
        }
    });
    assert!(done);
    let counters = *scene.link.b.port.port_counters();
    assert!(counters.drops.excess >= CONNECTIONLESS_BURST_MAX, "{counters:?}");
    let tcp = scene.link.a.port.counters(scene.id()).unwrap().tcp;
    assert_eq!((tcp.rtos, tcp.retransmissions), (0, 0), "no fragment was dropped");
}

#[test]
fn the_host_stack_gets_whole_datagrams_too() {
    let mut scene = Scene::new();
    cut(&mut scene);
    let listening = scene.link.b.port.host_mut().udp_bind(53, 8000).unwrap();
    let socket = scene.link.a.port.host_mut().udp_bind(54, 8000).unwrap();
    let sent = [7; 1400];
    scene.link.a.port.host_mut().udp(socket).send_slice(&sent, (B, 53)).unwrap();
    let mut received = Vec::new();
    assert!(scene.run_for(Duration::from_secs(5), |scene| {
        if let Ok((octets, _)) = scene.link.b.port.host_mut().udp(listening).recv() {
            received = octets.to_vec();
        }
        !received.is_empty()
    }));
    assert_eq!(received, sent);
    assert_eq!(scene.link.b.port.port_counters().reassembled, 1);
}

/// Returns a chain of fragment headers, each of a whole datagram (RFC 6946), before nothing.
fn chain(levels: usize) -> Vec<u8> {
    let last = levels - 1;
    (0..levels)
        .flat_map(|level| [if level == last { 59 } else { 44 }, 0, 0, 0, 0, 0, 0, 1])
        .collect()
}

/// Returns a datagram to the port's link-local address, which every port has.
fn to_link_local(config: &PortConfig, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = config.mac.to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next_header, 64]);
    frame.extend("fe80::9".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(config.link_local().octets());
    frame.extend(payload);
    frame
}

#[test]
fn a_fragment_within_a_datagram_of_fragments_is_refused() {
    // One header is a datagram of its own, two are one in another, thousands would cost as many
    // lookups.
    for (levels, refused) in [(1, 0), (2, 1), (3, 1), (3000, 1)] {
        let rnic = urnic_testkit::pair::End::new(1).rnic;
        let config = PortConfig::for_ipv4(B);
        let (device, _far) = memory::pair(LINK);
        let mut port = Port::new(&rnic, config.clone(), device.capabilities());
        let chain = chain(levels);
        let mut give = |payload: &[u8]| {
            let frame = to_link_local(&config, 44, payload);
            let checksum = RxChecksum::Unverified;
            let frame = RxFrame::whole(&frame, checksum, None);
            port.handle_frame(Instant::ZERO, &frame);
        };
        if levels < 100 {
            give(&chain);
        } else {
            let pieces: Vec<&[u8]> = chain.chunks(1448).collect();
            for (index, piece) in pieces.iter().enumerate() {
                let word = (index * 1448) as u16 | u16::from(index + 1 < pieces.len());
                let mut payload = vec![44, 0];
                payload.extend(word.to_be_bytes());
                payload.extend([0, 0, 0, 7]);
                payload.extend(*piece);
                give(&payload);
            }
        }
        let counters = port.port_counters();
        assert_eq!((counters.reassembled, counters.drops.fragments), (1, refused), "{levels}");
    }
}

#[test]
fn a_fragment_that_is_the_whole_datagram_opens_a_connection() {
    let mut scene = Scene::new();
    scene.behind_a(move |frame| {
        if frame[12..14] != [0x86, 0xdd] || frame[20] != 6 {
            return Verdict::Pass;
        }
        Verdict::Become(fragments_of(frame, 65_528, 7))
    });
    scene.connect(IpAddr::V6(B6));
    assert!(scene.write_within(10_000, Duration::from_secs(10)));
    assert!(scene.link.b.port.port_counters().reassembled > 7);
}
