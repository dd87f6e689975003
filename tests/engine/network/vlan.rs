//! Ports in VLANs (IEEE 802.1Q).

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use urnic_engine::port::{PortConfig, VlanId};
use urnic_engine::time::Duration;

use crate::network::scene::{A6, B6, LINK, Scene, config};
use crate::network::wire::Verdict;
use urnic_testkit::pair::{A, B};

fn in_vlans(of_a: Option<u16>, of_b: Option<u16>) -> Scene {
    let vlan = |id: Option<u16>| id.map(|id| VlanId::new(id).unwrap());
    let of_a = PortConfig { vlan: vlan(of_a), ..config(A, A6) };
    let of_b = PortConfig { vlan: vlan(of_b), ..config(B, B6) };
    Scene::with(LINK, of_a, of_b)
}

#[test]
fn everything_a_port_in_a_vlan_sends_is_tagged_and_understood() {
    for address in [IpAddr::V4(B), IpAddr::V6(B6)] {
        let mut scene = in_vlans(Some(5), Some(5));
        let frames = Rc::new(Cell::new(0));
        let count = Rc::clone(&frames);
        scene.behind_a(move |frame| {
            assert_eq!(frame[12..16], [0x81, 0x00, 0, 5]);
            count.set(count.get() + 1);
            Verdict::Pass
        });
        scene.connect(address);
        assert!(scene.write_within(300_000, Duration::from_secs(5)));
        // The host stack's frames too.
        let handle = scene.link.b.port.host_mut().tcp_listen(80, 1000).unwrap();
        let there = scene.link.a.port.host_mut().tcp_connect((B, 80).into(), 1000).unwrap();
        assert!(scene.run_for(Duration::from_secs(5), |scene| {
            scene.link.a.port.host_mut().tcp(there).may_send()
                && scene.link.b.port.host_mut().tcp(handle).may_send()
        }));
        assert!(frames.get() > 200);
    }
}

#[test]
fn ports_of_different_vlans_are_isolated() {
    for (of_a, of_b) in [(Some(5), Some(6)), (None, Some(5)), (Some(5), None)] {
        let mut scene = in_vlans(of_a, of_b);
        scene.begin(IpAddr::V4(B));
        scene.run_for(Duration::from_secs(3), |_| false);
        assert!(scene.b.connection.is_none());
        assert!(scene.link.b.port.drops().vlan > 0);
        assert_eq!(scene.link.b.port.drops().malformed, 0);
    }
}

#[test]
fn a_priority_tag_does_not_matter() {
    let mut scene = in_vlans(None, None);
    scene.behind_a(|frame| {
        let mut tagged = frame.to_vec();
        tagged.splice(12..12, [0x81, 0x00, 0xa0, 0x00]);
        Verdict::Become(vec![tagged])
    });
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(300_000, Duration::from_secs(5)));
}
