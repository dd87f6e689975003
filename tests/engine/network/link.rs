//! The link goes down and comes back.

use std::net::IpAddr;

use urnic_engine::port::PortEvent;
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;

use urnic_netdev::memory::LinkConfig;

use crate::network::scene::{A6, B6, LINK, Scene, config};
use crate::network::wire::Verdict;
use urnic_testkit::pair::{A, B};

#[test]
fn work_resumes_at_once_when_the_link_returns() {
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

/// However many timeouts an outage causes, and whenever during the next wait the link returns: the
/// timeouts of an outage are no sign of a smaller path MTU.
#[test]
fn no_outage_of_the_link_makes_segments_smaller() {
    for down_ms in [50, 250, 300, 500, 700, 900, 1100, 1500, 1900, 2500, 4000, 7000, 12_000] {
        let mut scene = Scene::new();
        scene.connect(IpAddr::V4(B));
        let start = scene.now();
        let (down, up) =
            (start + Duration::from_millis(3), start + Duration::from_millis(3 + down_ms));
        let wire = scene.wire.clone();
        let mut smallest = usize::MAX;
        let done = scene.write_while(1 << 20, Duration::from_secs(60), |scene| {
            let now = scene.now();
            wire.set_link_up(now < down || now >= up);
            smallest = smallest.min(scene.link.a.port.path_mtu(scene.id()).unwrap());
        });
        assert!(done);
        assert_eq!(smallest, 1500, "down for {down_ms} ms");
    }
}

/// The peer receives nothing after the link is back either. The first timeout still belongs to the
/// outage, and two more are the limit for any size.
#[test]
fn the_timeout_that_ran_when_the_link_returned_is_its_fault_too() {
    let mut scene = Scene::new();
    scene.connect(IpAddr::V4(B));
    let wire = scene.wire.clone();
    let start = scene.now();
    let (down, up) = (start + Duration::from_millis(3), start + Duration::from_secs(2));
    let lost = std::rc::Rc::new(std::cell::Cell::new(usize::MAX));
    let left = std::rc::Rc::clone(&lost);
    scene.behind_a(move |frame| {
        if !crate::network::frames::is_tcp(frame) || left.get() == usize::MAX {
            return Verdict::Pass;
        }
        left.set(left.get() + 1);
        Verdict::Lose
    });
    let mut sizes = Vec::new();
    scene.write_while(1 << 20, Duration::from_secs(30), |scene| {
        let now = scene.now();
        wire.set_link_up(now < down || now >= up);
        if now >= up && lost.get() == usize::MAX {
            lost.set(0);
        }
        let (id, port) = (scene.id(), &scene.link.a.port);
        if now >= up
            && let (Ok(counters), Ok(mtu)) = (port.counters(id), port.path_mtu(id))
            && sizes.last() != Some(&(counters.tcp.rtos, mtu))
        {
            sizes.push((counters.tcp.rtos, mtu));
        }
    });
    let first = sizes[0].0;
    let at = |timeouts: u64| sizes.iter().rev().find(|(rtos, _)| *rtos == first + timeouts);
    assert_eq!(at(0).map(|(_, mtu)| *mtu), Some(1500), "{sizes:?}");
    assert_eq!(at(1).map(|(_, mtu)| *mtu), Some(1500), "{sizes:?}");
    assert_eq!(at(2).map(|(_, mtu)| *mtu), Some(1500), "{sizes:?}");
    assert!(at(3).is_some_and(|(_, mtu)| *mtu < 1500), "{sizes:?}");
    assert!(sizes.last().is_some_and(|(_, mtu)| *mtu < 1500), "a black hole after all: {sizes:?}");
}

#[test]
fn super_frame_is_counted_as_its_segments_at_both_ends() {
    let link = LinkConfig {
        super_frame_len_max: std::num::NonZeroUsize::new(60_000),
        tx_checksum: true,
        ..LINK
    };
    let mut scene = Scene::with(link, config(A, A6), config(B, B6));
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(1 << 20, Duration::from_secs(10)));
    scene.run_for(Duration::from_secs(1), |_| false);
    let a = scene.link.a.port.counters(scene.id()).unwrap();
    let b = scene.link.b.port.counters(scene.b.connection.unwrap()).unwrap();
    assert_eq!((a.tcp.retransmissions, a.tcp.loss_probes), (0, 0));
    assert!(a.alignment.super_frames > 10 && a.tcp.segments_sent > 700, "{a:?}");
    // The SYN and the ACK of the SYN-ACK add to them.
    let sent = a.tcp.segments_sent + a.tcp.acks_sent + 1;
    assert!((sent..=sent + 1).contains(&b.tcp.segments_received), "{sent} {b:?}");
    // Frames of either end count everything that was sent, acknowledgments too.
    assert!(a.frames_sent > a.alignment.frames, "{a:?}");
    assert!(b.frames_sent > b.tcp.acks_sent && b.tcp.acks_sent > 10, "{b:?}");
    let beside = a.frames_sent - a.alignment.frames;
    assert!(beside <= a.tcp.acks_sent + 3, "{a:?}");
}
