//! Peers that cannot be reached, and networks that say so.

use std::net::IpAddr;

use urnic::stream::{StartupFailure, StreamEvent};
use urnic::time::Duration;

use crate::common::B;
use crate::frames::{icmp_about, is_tcp};
use crate::scene::{B6, Scene};
use crate::wire::Verdict;

fn failure(scene: &Scene) -> Option<StartupFailure> {
    scene.a.events.iter().find_map(|event| match event {
        StreamEvent::StartupFailed(why) => Some(*why),
        _ => None,
    })
}

#[test]
fn a_connect_ends_when_the_network_says_that_nobody_is_there() {
    // Host and port unreachable, and what they are called in IPv6.
    for (address, kind, code) in [
        (IpAddr::V4(B), 3, 1),
        (IpAddr::V4(B), 3, 3),
        (IpAddr::V6(B6), 1, 3),
        (IpAddr::V6(B6), 1, 4),
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
        assert_eq!(failure(&scene), Some(StartupFailure::ConnectionLost));
    }
}

#[test]
fn a_message_that_quotes_another_syn_ends_nothing() {
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

#[test]
fn an_open_connection_is_not_ended_by_a_message() {
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
    assert!(scene.run_for(Duration::from_secs(100), |scene| failure(scene).is_some()));
    assert_eq!(failure(&scene), Some(StartupFailure::Timeout));
    assert!(scene.run_for(Duration::from_millis(1), |scene| !scene.closed.is_empty()));
}
