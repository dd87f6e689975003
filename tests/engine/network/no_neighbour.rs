//! A peer for whose link address no host on the link answers.

use std::net::SocketAddr;

use urnic_engine::mpa::startup::Offer;
use urnic_engine::poll::Lockstep;
use urnic_engine::port::{ConnectParams, LowerLayer, PortEvent};
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::time::{Duration, Instant};
use urnic_netdev::memory::{self, LinkConfig};
use urnic_testkit::pair::{A, End, poller};

/// Returns a link without the peer.
fn lonely() -> (Lockstep<memory::MemoryDevice, memory::MemoryDevice>, End) {
    let (a, b) = memory::pair(LinkConfig { latency_ns: 10_000, ..LinkConfig::default() });
    let (end, other) = (End::new(1), End::new(2));
    let elsewhere = "10.0.0.3".parse().unwrap();
    (Lockstep::new(poller(&end.rnic, A, a), poller(&other.rnic, elsewhere, b)), end)
}

fn absent() -> SocketAddr {
    "10.0.0.2:7174".parse().unwrap()
}

#[test]
fn mpa_startup_toward_a_peer_that_does_not_exist_times_out() {
    let (mut link, end) = lonely();
    let params = ConnectParams { offer: Offer::default(), ..ConnectParams::default() };
    link.a.port.connect(Instant::ZERO, absent(), &end.qp, &params).unwrap();
    let mut events = Vec::new();
    let ended = link.run_until(Instant::ZERO + Duration::from_secs(300), |link| {
        events.extend(std::iter::from_fn(|| link.a.port.poll_event()));
        events.iter().any(|event| matches!(event, PortEvent::Closed { .. }))
    });
    assert!(ended, "{events:?}");
    let failed = |event: &PortEvent| match event {
        PortEvent::Stream { event: StreamEvent::StartupFailed(why), .. } => {
            *why == StartupFailure::Timeout
        }
        _ => false,
    };
    assert!(events.iter().any(failed), "{events:?}");
}

#[test]
fn connect_to_a_missing_neighbour_ends_and_sends_nothing_more() {
    let (mut link, _end) = lonely();
    link.a.port.open(Instant::ZERO, absent(), LowerLayer::Optimized).unwrap();
    let mut closed = false;
    let deadline = Instant::ZERO + Duration::from_secs(600);
    link.run_until(deadline, |link| {
        let mut events = std::iter::from_fn(|| link.a.port.poll_event());
        closed |= events.any(|event| matches!(event, PortEvent::Closed { .. }));
        closed
    });
    assert!(closed, "the connection is given up");
    let mut steps = 0;
    while link.step() {
        steps += 1;
        assert!(steps < 100, "no neighbour is asked for that no connection needs");
    }
}
