//! Peers that cannot be reached, and networks that report it.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::time::Duration;

use crate::network::frames::{DESTINATION_AT, SOURCE_AT, icmp_about, is_tcp, seal};
use crate::network::scene::{B6, Scene};
use crate::network::wire::Verdict;
use urnic_testkit::pair::B;

fn failure(scene: &Scene) -> Option<StartupFailure> {
    scene.a.events.iter().find_map(|event| match event {
        StreamEvent::StartupFailed(why) => Some(*why),
        _ => None,
    })
}

// spec: TCP-9293-20
#[test]
fn connect_ends_at_an_icmp_error_with_the_reason() {
    // Protocol and port unreachable, prohibited, filtered, and the codes of IPv6.
    for (address, kind, code) in [
        (IpAddr::V4(B), 3, 2),
        (IpAddr::V4(B), 3, 3),
        (IpAddr::V4(B), 3, 9),
        (IpAddr::V4(B), 3, 10),
        (IpAddr::V4(B), 3, 13),
        (IpAddr::V6(B6), 1, 1),
        (IpAddr::V6(B6), 1, 4),
        (IpAddr::V6(B6), 1, 5),
        (IpAddr::V6(B6), 1, 6),
    ] {
        let mut scene = Scene::new();
        scene.behind_a(move |frame| {
            if is_tcp(frame) {
                Verdict::Answer(icmp_about(frame, kind, code, 0))
            } else {
                Verdict::Pass
            }
        });
        scene.begin(address);
        assert!(scene.run_for(Duration::from_secs(1), |scene| !scene.closed.is_empty()));
        let reason = match (kind, code) {
            // The port: as a RST of its host.
            (3, 3) | (1, 4) => StartupFailure::Refused,
            _ => StartupFailure::Unreachable,
        };
        assert_eq!(failure(&scene), Some(reason), "{kind}/{code}");
    }
}

#[test]
fn icmp_error_quoting_another_syn_ends_nothing() {
    let mut scene = Scene::new();
    let mut answered = false;
    scene.behind_a(move |frame| {
        if is_tcp(frame) && !std::mem::replace(&mut answered, true) {
            let mut quoted = frame.to_vec();
            quoted[38] ^= 1;
            return Verdict::PassAndAnswer(icmp_about(&quoted, 3, 3, 0));
        }
        Verdict::Pass
    });
    scene.connect(IpAddr::V4(B));
    assert_eq!(scene.link.a.port.drops().icmp, 1);
}

// spec: TCP-9293-20
#[test]
fn open_connection_ignores_icmp_unreachable() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    let mut answered = 0;
    scene.behind_a(move |frame| {
        if is_tcp(frame) && answered < 3 {
            answered += 1;
            return Verdict::Answer(icmp_about(frame, 3, 3, 0));
        }
        Verdict::Pass
    });
    assert!(scene.write_within(100_000, Duration::from_secs(5)));
}

#[test]
fn a_connection_whose_startup_timed_out_is_over_at_once() {
    let mut scene = Scene::new();
    scene.behind_a(|frame| if is_tcp(frame) { Verdict::Lose } else { Verdict::Pass });
    scene.begin(IpAddr::V4(B));
    // RFC 9293 MUST-23: not before three minutes.
    assert!(!scene.run_for(Duration::from_secs(179), |scene| failure(scene).is_some()));
    assert!(scene.run_for(Duration::from_secs(2), |scene| failure(scene).is_some()));
    assert_eq!(failure(&scene), Some(StartupFailure::Timeout));
    assert!(scene.run_for(Duration::from_millis(1), |scene| !scene.closed.is_empty()));
}

#[test]
fn connect_outlasts_transient_icmp_errors() {
    // RFC 9293 §3.9.2.2: network and host unreachable and source route failed (MUST-56), time
    // exceeded and parameter problem are no reason to give up; source quench has no effect at all
    // (MUST-55).
    for (address, kind, code) in [
        (IpAddr::V4(B), 3, 0),
        (IpAddr::V4(B), 3, 1),
        (IpAddr::V4(B), 3, 5),
        (IpAddr::V4(B), 4, 0),
        (IpAddr::V4(B), 11, 0),
        (IpAddr::V4(B), 12, 0),
        (IpAddr::V6(B6), 1, 0),
        (IpAddr::V6(B6), 1, 2),
        (IpAddr::V6(B6), 1, 3),
        (IpAddr::V6(B6), 3, 0),
        (IpAddr::V6(B6), 4, 1),
    ] {
        let mut scene = Scene::new();
        let mut answered = false;
        scene.behind_a(move |frame| {
            if is_tcp(frame) && !std::mem::replace(&mut answered, true) {
                return Verdict::Answer(icmp_about(frame, kind, code, 0));
            }
            Verdict::Pass
        });
        scene.connect(address);
        assert!(scene.write_within(10_000, Duration::from_secs(5)), "{kind}/{code}");
    }
}

// spec: TCP-9293-20
#[test]
fn a_syn_to_a_group_or_to_everybody_is_ignored() {
    // RFC 9293 §3.9.2.3 (MUST-57): "MUST silently discard an incoming SYN segment that is addressed
    // to a broadcast or multicast address"; RFC 1122 §3.2.1.3: nor from one.
    let everybody = [255; 4];
    let (of_subnet, group) = ([10, 0, 0, 255], [224, 0, 0, 1]);
    for (at, address) in [
        (DESTINATION_AT, everybody),
        (DESTINATION_AT, of_subnet),
        (DESTINATION_AT, group),
        (SOURCE_AT, everybody),
        (SOURCE_AT, group),
    ] {
        let mut scene = Scene::new();
        let heard = Rc::new(Cell::new(0));
        let count = Rc::clone(&heard);
        scene.behind_b(move |frame| {
            count.set(count.get() + usize::from(is_tcp(frame)));
            Verdict::Pass
        });
        scene.behind_a(move |frame| {
            if !is_tcp(frame) {
                return Verdict::Pass;
            }
            let mut changed = frame.to_vec();
            changed[at..at + 4].copy_from_slice(&address);
            seal(&mut changed);
            if at == DESTINATION_AT {
                changed[..6].fill(0xff);
            }
            Verdict::Become(vec![changed])
        });
        scene.begin(IpAddr::V4(B));
        scene.run_for(Duration::from_secs(20), |_| false);
        assert_eq!((failure(&scene), heard.get()), (None, 0), "{address:?} at {at}");
        assert!(scene.said[1].is_empty() && scene.b.events.is_empty(), "{address:?} at {at}");
        assert_eq!(scene.link.b.port.connection_count(), 0, "{address:?} at {at}");
    }
}

/// RFC 1122 §3.3.6: a message about a broadcast on the link does not concern a segment of one host.
#[test]
fn broadcast_icmp_error_ends_nothing() {
    for (address, kind, code) in [(IpAddr::V4(B), 3, 3), (IpAddr::V6(B6), 1, 4)] {
        let mut scene = Scene::new();
        scene.behind_a(move |frame| {
            if !is_tcp(frame) {
                return Verdict::Pass;
            }
            let mut message = icmp_about(frame, kind, code, 0);
            message[..6].fill(0xff);
            Verdict::PassAndAnswer(message)
        });
        scene.connect(address);
        assert_eq!(scene.link.a.port.port_counters().icmp_heeded, 0);
    }
}
