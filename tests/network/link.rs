//! The link goes down and comes back.

use std::net::IpAddr;

use urnic::port::PortEvent;
use urnic::stream::StreamEvent;
use urnic::time::Duration;

use crate::common::B;
use crate::scene::Scene;

#[test]
fn work_goes_on_at_once_when_the_link_returns() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    let start = scene.now();
    let (down, up) = (start + Duration::from_millis(3), start + Duration::from_secs(10));
    let wire = scene.wire.clone();
    let mut returned = None;
    let done = scene.write_while(1 << 20, Duration::from_secs(60), |scene| {
        let now = scene.now();
        wire.set_link_up(now < down || now >= up);
        if now >= up {
            returned.get_or_insert(now);
        }
    });
    assert!(done);
    let late = scene.now() - returned.unwrap();
    // A megabyte takes 8 ms; the timeout has grown to seconds by then.
    assert!(late < Duration::from_millis(200), "{late:?} after the link has returned");
    for said in &scene.said {
        assert_eq!(said[..], [PortEvent::LinkDown, PortEvent::LinkUp]);
    }
    assert_eq!(scene.link.a.port.path_mtu(scene.id()).unwrap(), 1500, "the size was not to blame");
}

#[test]
fn a_connection_waits_for_the_link_as_long_as_its_user_timeout() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    scene.wire.set_link_up(false);
    let start = scene.now();
    assert!(!scene.write_while(1000, Duration::from_secs(300), |_| {}), "it cannot succeed");
    assert!(scene.a.events.iter().any(|event| matches!(event, StreamEvent::Failed(_))));
    assert!(scene.now() - start >= Duration::from_secs(90), "the user timeout is 100 s");
    assert_eq!(scene.said[0], [PortEvent::LinkDown]);
}

#[test]
fn a_connect_goes_on_when_the_link_returns() {
    let mut scene = Scene::new();
    scene.wire.set_link_up(false);
    scene.begin(IpAddr::V4(B));
    scene.run_for(Duration::from_secs(8), |_| false);
    scene.wire.set_link_up(true);
    let returned = scene.now();
    assert!(scene.run_for(Duration::from_secs(10), |scene| {
        scene.a.events.iter().any(|event| matches!(event, StreamEvent::Established(_)))
    }));
    assert!(scene.now() - returned < Duration::from_millis(300), "{:?}", scene.now() - returned);
}
