//! IP datagrams that arrive in pieces.

use std::net::IpAddr;

use urnic::time::Duration;

use crate::common::B;
use crate::frames::{datagram_len, fragments_of};
use crate::scene::{B6, Scene};
use crate::wire::Verdict;

/// A router cuts whatever is longer than 576 octets.
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
