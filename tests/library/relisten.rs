//! A listener that is closed and opened again at the same address: requests to the first one do not
//! reach the second one.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use urnic::{
    Endpoint, EndpointConfig, Error, Fallback, ListenParams, Listener, LowerLayer, Offer,
    PortConfig, PortError, QpConfig, Revision, Rnic, RnicConfig, StartupConfig, monotonic_now,
};
use urnic_engine::poll::Poller;
use urnic_engine::port::{Port, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_netdev::Device;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::octets::{CRC, REQUEST_KEY, startup};

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for a Request on a quiet machine, where none must come.
const A_MOMENT: Duration = Duration::from_millis(200);

fn listen(endpoint: &Endpoint, at: SocketAddr) -> Listener {
    // The previous listener closes when the worker processes the request for that.
    loop {
        match endpoint.listen(at, ListenParams::default()) {
            Ok(listener) => return listener,
            Err(error) => assert_eq!(error, Error::Port(PortError::PortTaken(at.port()))),
        }
    }
}

fn rnic(seed: u64) -> Rnic {
    Rnic::new(RnicConfig { seed: seed.into() })
}

#[test]
fn a_request_to_a_listener_that_was_replaced_is_reset_over_the_kernel() {
    let server = Endpoint::kernel(&rnic(1), &EndpointConfig::default()).unwrap();
    let first = listen(&server, "127.0.0.1:0".parse().unwrap());
    let at = first.local();
    let mut peer = TcpStream::connect(at).unwrap();
    // The worker has it, and waits for its Request.
    let (mut watch, end) = (server.watch(), monotonic_now() + PATIENCE);
    while watch.look(PATIENCE).figures.open.is_empty() {
        assert!(monotonic_now() < end, "the worker takes it");
        std::thread::yield_now();
    }
    assert!(first.next_request(Duration::ZERO).unwrap().is_none());
    drop(first);
    let second = listen(&server, at);
    peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(second.next_request(A_MOMENT).unwrap().is_none(), "it was sent to another listener");
    // Later connections are its own.
    let mut peer = TcpStream::connect(at).unwrap();
    peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
    assert!(second.next_request(PATIENCE).unwrap().is_some());
}

/// Polls a port until `done` returns true for an event.
fn turn_until(
    peer: &mut Poller<MemoryDevice>,
    time: Duration,
    mut done: impl FnMut(PortEvent) -> bool,
) -> bool {
    let end = monotonic_now() + time;
    while monotonic_now() < end {
        peer.poll(monotonic_now());
        while let Some(event) = peer.port.poll_event() {
            if done(event) {
                return true;
            }
        }
        std::thread::yield_now();
    }
    false
}

/// Polls a port until `look` finds a state that the port's own events do not report.
fn turn_until_found<T>(
    peer: &mut Poller<MemoryDevice>,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let end = monotonic_now() + PATIENCE;
    loop {
        turn_until(peer, Duration::from_millis(1), |event| {
            let PortEvent::Stream { event, .. } = event else { return false };
            assert!(!matches!(event, StreamEvent::StartupFailed(_)), "{what}");
            false
        });
        if let Some(found) = look() {
            return found;
        }
        assert!(monotonic_now() < end, "{what}");
    }
}

#[test]
fn a_request_to_a_listener_that_was_replaced_is_reset_on_a_device() {
    let [near, far] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let (own, device) = memory::pair(LinkConfig::default());
    let config = EndpointConfig::default();
    let server = Endpoint::on_device(&rnic(1), device, PortConfig::for_ipv4(far), &config).unwrap();
    let peer_rnic = rnic(2);
    let port = Port::new(&peer_rnic, PortConfig::for_ipv4(near), own.capabilities());
    let mut peer = Poller::new(port, own);
    let qp = |cq| peer_rnic.alloc_pd().create_qp(QpConfig::new(&cq)).unwrap();
    let at = SocketAddr::from((far, 7174));
    let first = listen(&server, at);
    let id = peer.port.open(monotonic_now(), at, LowerLayer::Optimized).unwrap();
    let mut watch = server.watch();
    turn_until_found(&mut peer, "the first listener has a connection", || {
        let open = watch.look(PATIENCE).figures.open;
        // The SYN, and the end of the handshake.
        open.iter().any(|one| one.figures.segments_received >= 2).then_some(())
    });
    drop(first);
    let second = listen(&server, at);
    let qp_of_first = qp(peer_rnic.create_cq(4).unwrap());
    // It does not try again after the reset, as others do with fewer features in the Request.
    let (revision, fallback) = (Revision::One, Fallback::empty());
    let startup = StartupConfig { revision, fallback, ..StartupConfig::default() };
    let offer = Offer::default();
    peer.port.start_initiator(monotonic_now(), id, &qp_of_first, &startup, &offer).unwrap();
    let is_end = |event| matches!(event, PortEvent::Closed { connection, .. } if connection == id);
    assert!(turn_until(&mut peer, PATIENCE, is_end), "the connection is reset");
    assert!(second.next_request(A_MOMENT).unwrap().is_none(), "it was sent to another listener");
    let qp_of_second = qp(peer_rnic.create_cq(4).unwrap());
    let id = peer.port.open(monotonic_now(), at, LowerLayer::Optimized).unwrap();
    peer.port.start_initiator(monotonic_now(), id, &qp_of_second, &startup, &offer).unwrap();
    let _own = turn_until_found(&mut peer, "those that come now are its own", || {
        second.next_request(Duration::ZERO).unwrap()
    });
}
