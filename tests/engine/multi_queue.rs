//! Two ports that are the queues of one interface, on a link to one port, under a virtual clock.
//! Frames alternate between the two ports, which no kernel would do.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Wake, Waker};

use urnic_engine::mpa::startup::{Offer, Revision, StartupConfig};
use urnic_engine::poll::Poller;
use urnic_engine::port::{ConnectParams, ConnectionId, ListenParams, Port, PortConfig, PortError};
use urnic_engine::port::{PortEvent, Recipient};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, RecvWr, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Device, RxFrame};
use urnic_testkit::pair::{A, B, End, TCP_PORT, all_access, content, fill, poller, v6};

/// One port, and two ports that are the queues of an interface behind one device.
struct TwoQueues {
    peer: Poller<MemoryDevice>,
    device: MemoryDevice,
    ports: [Port; 2],
    /// Index of the port for the next frame.
    turn: usize,
    now: Instant,
    peer_end: End,
    end: End,
    peer_connection: Option<ConnectionId>,
    /// The connection at each of the two ports.
    connections: [Option<ConnectionId>; 2],
    peer_events: Vec<StreamEvent>,
    events: Vec<StreamEvent>,
}

fn config() -> PortConfig {
    PortConfig { ipv6: Some((v6(B), 64)), ..PortConfig::for_ipv4(B) }
}

impl TwoQueues {
    fn new() -> Self {
        let (near, device) = memory::pair(LinkConfig::default());
        let (peer_end, end) = (End::new(1), End::new(2));
        let capabilities = device.capabilities();
        let mut ports = [(); 2].map(|()| Port::new(&end.rnic, config(), capabilities));
        let [first, second] = &mut ports;
        Port::join(&mut [first, second]).unwrap();
        Self {
            peer: poller(&peer_end.rnic, A, near),
            device,
            ports,
            turn: 0,
            now: Instant::ZERO,
            peer_end,
            end,
            peer_connection: None,
            connections: [None; 2],
            peer_events: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Lets all work once, or advances the clock; `false` if nothing will happen.
    fn step(&mut self) -> bool {
        let Self { peer, device, ports, turn, now, .. } = self;
        let mut moved = peer.poll(*now);
        moved += device.receive(now.as_nanos(), 64, &mut |frame: RxFrame<'_>| {
            ports[*turn % 2].handle_frame(*now, &frame);
            *turn += 1;
        });
        for from in 0..2 {
            while let Some(handover) = ports[from].poll_handover() {
                let to = match handover.to() {
                    Recipient::One(to) => to,
                    Recipient::Others => 1 - from,
                };
                assert_ne!(to, from, "no queue hands over to itself");
                ports[to].handle_handover(*now, &handover);
            }
        }
        for port in ports.iter_mut() {
            if port.poll_timeout().is_some_and(|at| at <= *now) {
                port.handle_timeout(*now);
            }
            let now_ns = now.as_nanos();
            moved += port.poll_transmit(*now, 64, &mut |frame| device.transmit(now_ns, frame));
        }
        device.flush(now.as_nanos());
        if moved > 0 {
            return true;
        }
        let arrival = device.next_arrival_ns().map(Instant::from_nanos);
        let timeouts = ports.iter_mut().map(Port::poll_timeout);
        let next = timeouts.chain([arrival, peer.next_wakeup()]).flatten().min();
        let Some(next) = next else { return false };
        *now = next.max(now.plus_nanos(1));
        true
    }

    fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let deadline = self.now + Duration::from_secs(60);
        loop {
            self.collect();
            if done(self) {
                return true;
            }
            if self.now > deadline || !self.step() {
                return false;
            }
        }
    }

    fn collect(&mut self) {
        while let Some(event) = self.peer.port.poll_event() {
            match event {
                PortEvent::Incoming { connection, .. } => self.peer_connection = Some(connection),
                PortEvent::Stream { event, .. } => self.peer_events.push(event),
                PortEvent::Closed { .. } => self.peer_connection = None,
                other => panic!("unexpected {other:?}"),
            }
        }
        for (port, connection) in self.ports.iter_mut().zip(&mut self.connections) {
            while let Some(event) = port.poll_event() {
                match event {
                    PortEvent::Incoming { connection: id, .. } => *connection = Some(id),
                    PortEvent::Stream { event, .. } => self.events.push(event),
                    PortEvent::Closed { .. } => *connection = None,
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    }

    /// Lets both ends write to each other, and checks every byte.
    fn exchange(&mut self) {
        let len = 300_001;
        let ends = [&self.peer_end, &self.end];
        let sources = ends.map(|end| end.pd.reg_mr(len, all_access()).unwrap());
        let sinks = ends.map(|end| end.pd.reg_mr(len, all_access()).unwrap());
        let octets = [fill(&sources[0], 1), fill(&sources[1], 2)];
        for (from, to) in [(0, 1), (1, 0)] {
            let wr = SendWr::write(WrId(1), sinks[to].remote(0), [sources[from].sge(0..len)]);
            ends[from].qp.post_send(wr).unwrap();
        }
        let mut completed = [0; 2];
        let done = self.run_until(|scene| {
            for (count, end) in completed.iter_mut().zip([&scene.peer_end, &scene.end]) {
                while let Some(wc) = end.cq.poll() {
                    assert_eq!(wc.status, WcStatus::Success);
                    *count += 1;
                }
            }
            completed == [1; 2]
        });
        assert!(done, "{completed:?} {:?} {:?}", self.peer_events, self.events);
        assert_eq!(content(&sinks[0]), octets[1]);
        assert_eq!(content(&sinks[1]), octets[0]);
        let handed_over = self.ports.each_ref().map(|port| port.port_counters().handed_over);
        assert!(handed_over.iter().sum::<u64>() > 50, "every second frame: {handed_over:?}");
        assert!(handed_over.contains(&0), "one port has the connection: {handed_over:?}");
    }

    fn are_established(&self) -> bool {
        let established = |event: &StreamEvent| matches!(event, StreamEvent::Established(_));
        self.peer_events.iter().any(established) && self.events.iter().any(established)
    }
}

fn offer() -> Offer<'static> {
    Offer { private_data: b"hello", ird: 8, ord: 8 }
}

/// Makes one of the queues open a connection; answers arrive at both.
fn queue_connects(index: usize, ipv6: bool) -> TwoQueues {
    let mut scene = TwoQueues::new();
    scene.peer.port.listen(TCP_PORT, ListenParams::default()).unwrap();
    let address = if ipv6 { IpAddr::V6(v6(A)) } else { IpAddr::V4(A) };
    let remote = SocketAddr::new(address, TCP_PORT);
    let params = ConnectParams { offer: offer(), ..ConnectParams::default() };
    // The first frame, an answer to the query for the peer's link address, goes to the other port.
    scene.turn = 1 - index;
    let qp = scene.end.qp.clone();
    let id = scene.ports[index].connect(Instant::ZERO, remote, &qp, &params).unwrap();
    scene.connections[index] = Some(id);
    let mut accepted = false;
    let connected = scene.run_until(|scene| {
        let request = |event: &StreamEvent| matches!(event, StreamEvent::Request(_));
        if !accepted && scene.peer_events.iter().any(request) {
            let id = scene.peer_connection.unwrap();
            scene.peer.port.accept(id, &scene.peer_end.qp, &offer()).unwrap();
            accepted = true;
        }
        scene.are_established()
    });
    assert!(connected, "{:?} {:?}", scene.peer_events, scene.events);
    scene
}

/// Makes the peer open a connection; its frames arrive at both ports from the first on.
fn peer_connects() -> TwoQueues {
    let mut scene = TwoQueues::new();
    for port in &mut scene.ports {
        port.listen(TCP_PORT, ListenParams::default()).unwrap();
    }
    let remote = SocketAddr::new(IpAddr::V4(B), TCP_PORT);
    let params = ConnectParams { offer: offer(), ..ConnectParams::default() };
    let qp = scene.peer_end.qp.clone();
    let id = scene.peer.port.connect(Instant::ZERO, remote, &qp, &params).unwrap();
    scene.peer_connection = Some(id);
    let mut accepted = false;
    let connected = scene.run_until(|scene| {
        let request = |event: &StreamEvent| matches!(event, StreamEvent::Request(_));
        if !accepted && scene.events.iter().any(request) {
            let index = scene.connections.iter().position(Option::is_some).unwrap();
            let id = scene.connections[index].unwrap();
            scene.ports[index].accept(id, &scene.end.qp, &offer()).unwrap();
            accepted = true;
        }
        scene.are_established()
    });
    assert!(connected, "{:?} {:?}", scene.peer_events, scene.events);
    scene
}

#[test]
fn a_connection_opened_by_either_port_works_wherever_frames_arrive() {
    for index in [0, 1] {
        for ipv6 in [false, true] {
            queue_connects(index, ipv6).exchange();
        }
    }
}

#[test]
fn a_connection_of_a_peer_has_one_owner_wherever_frames_arrive() {
    let mut scene = peer_connects();
    assert_eq!(scene.connections.iter().flatten().count(), 1, "one port has it");
    scene.exchange();
}

/// The table of connections drops ended connections. One of the ports then answers a segment of
/// such a connection with a reset.
#[test]
fn the_end_of_a_connection_is_known_to_all() {
    let mut scene = peer_connects();
    let index = scene.connections.iter().position(Option::is_some).unwrap();
    let id = scene.connections[index].unwrap();
    scene.ports[index].abort(id);
    let over =
        scene.run_until(|scene| scene.connections == [None; 2] && scene.peer_connection.is_none());
    assert!(over, "{:?} {:?}", scene.peer_events, scene.events);
    let before = scene.ports.each_ref().map(|port| port.port_counters().handed_over);
    // The same addresses again, at the other port first.
    scene.turn = 1 - index;
    let remote = SocketAddr::new(IpAddr::V4(B), 9);
    let qp = scene.peer_end.pd.create_qp(urnic_engine::verbs::QpConfig {
        send_depth: 8,
        recv_depth: 8,
        ..urnic_engine::verbs::QpConfig::new(&scene.peer_end.cq)
    });
    let params = ConnectParams { offer: offer(), ..ConnectParams::default() };
    let now = scene.now;
    scene.peer_connection =
        Some(scene.peer.port.connect(now, remote, &qp.unwrap(), &params).unwrap());
    assert!(scene.run_until(|scene| scene.peer_connection.is_none()), "refused");
    let after = scene.ports.each_ref().map(|port| port.port_counters().handed_over);
    assert_eq!(before, after, "no queue owns it");
}

/// RFC 9293 §3.4: no two connections of one interface have the same addresses and ports.
#[test]
fn queues_of_an_interface_open_connections_from_different_tcp_ports() {
    let mut scene = TwoQueues::new();
    scene.peer.port.listen(TCP_PORT, ListenParams::default()).unwrap();
    let remote = SocketAddr::new(IpAddr::V4(A), TCP_PORT);
    for index in [0, 1] {
        for _ in 0..20 {
            let port = &mut scene.ports[index];
            port.open(Instant::ZERO, remote, urnic_engine::port::LowerLayer::default()).unwrap();
        }
    }
    scene.run_until(|scene| scene.peer.port.connection_count() == 40);
    assert_eq!(scene.peer.port.connection_count(), 40, "all are different");
}

/// An Ethernet frame from the peer, `kind` an ethertype.
fn from_peer(to: [u8; 6], kind: [u8; 2], payload: &[&[u8]]) -> Vec<u8> {
    let head: [&[u8]; 3] = [&to, &PEER_MAC, &kind];
    head.into_iter().chain(payload.iter().copied()).flatten().copied().collect()
}

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A host that asks for the interface's link address has shown its own. The queue that gets its
/// ping need not ask for it, and one of the two queues answers the query.
#[test]
fn neighbour_learned_by_one_queue_is_known_to_the_other() {
    let mut scene = TwoQueues::new();
    let mac = scene.ports[0].config().mac;
    let (peer, own) = (A.octets(), B.octets());
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &PEER_MAC, &peer, &[0; 6], &own];
    let question = from_peer([0xff; 6], [8, 6], &arp);
    let mut ip = [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0], &peer[..], &own].concat();
    let sum = !smoltcp::wire::checksum::data(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // Echo request with identifier 0 and sequence number 0.
    let ping = from_peer(mac, [8, 0], &[&ip, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]]);
    // The ping is still unhandled when the neighbour is announced.
    for (port, frame) in [(0, &question), (1, &ping)] {
        let checksum = urnic_netdev::RxChecksum::Unverified;
        let frame = RxFrame::whole(frame, checksum, None);
        scene.ports[port].handle_frame(scene.now, &frame);
    }
    let news = scene.ports[0].poll_handover().unwrap();
    scene.ports[1].handle_handover(scene.now, &news);
    let mut said: [Vec<[u8; 2]>; 2] = Default::default();
    for (port, said) in scene.ports.iter_mut().zip(&mut said) {
        port.poll_transmit(scene.now, 64, &mut |frame| {
            said.push([frame.head[12], frame.head[13]]);
            Ok(())
        });
    }
    assert_eq!(said, [vec![[8, 6]], vec![[8, 0]]], "an answer, and a reply");
}

#[test]
fn ports_that_differ_are_not_queues_of_one_interface() {
    let end = End::new(1);
    let (_, device) = memory::pair(LinkConfig::default());
    let capabilities = device.capabilities();
    let make = |config: PortConfig| Port::new(&end.rnic, config, capabilities);
    let mut one = make(config());
    for other in [
        PortConfig::for_ipv4(A),
        PortConfig { ipv6: None, ..config() },
        PortConfig { mac: [2; 6], ..config() },
    ] {
        let joined = Port::join(&mut [&mut one, &mut make(other)]);
        assert_eq!(joined, Err(PortError::NotOneInterface));
    }
    let dhcp = || make(PortConfig::for_dhcp([2; 6]));
    assert_eq!(Port::join(&mut [&mut dhcp(), &mut dhcp()]), Err(PortError::NotOneInterface));
    let elsewhere = End::new(2);
    let mut other = Port::new(&elsewhere.rnic, config(), capabilities);
    let joined = Port::join(&mut [&mut one, &mut other]);
    assert_eq!(joined, Err(PortError::NotOneInterface));
    let mut two = make(config());
    Port::join(&mut [&mut one, &mut two]).unwrap();
    let again = Port::join(&mut [&mut one, &mut make(config())]);
    assert_eq!(again, Err(PortError::NotOneInterface), "one interface at a time");
}

/// RFC 6581 §10 (MPA2-10-4): a peer of revision 1 ends the connection or answers in its own way,
/// and the port opens another one from another TCP port. Whichever queue its frames arrive at, it
/// belongs to the same port.
#[test]
fn a_fallback_to_an_older_revision_works_at_either_queue() {
    for index in [0, 1] {
        let startup = StartupConfig { revision: Revision::One, ..StartupConfig::default() };
        let mut scene = TwoQueues::new();
        let listen = ListenParams { startup, ..ListenParams::default() };
        scene.peer.port.listen(TCP_PORT, listen).unwrap();
        let remote = SocketAddr::new(IpAddr::V4(A), TCP_PORT);
        let params = ConnectParams { offer: offer(), ..ConnectParams::default() };
        scene.turn = 1 - index;
        let qp = scene.end.qp.clone();
        let id = scene.ports[index].connect(Instant::ZERO, remote, &qp, &params).unwrap();
        scene.connections[index] = Some(id);
        let mut accepted = false;
        let connected = scene.run_until(|scene| {
            let request = |event: &StreamEvent| matches!(event, StreamEvent::Request(_));
            if !accepted
                && scene.peer_events.iter().any(request)
                && let Some(id) = scene.peer_connection
            {
                scene.peer.port.accept(id, &scene.peer_end.qp, &offer()).unwrap();
                accepted = true;
            }
            scene.are_established()
        });
        assert!(connected, "{:?} {:?}", scene.peer_events, scene.events);
        scene.exchange();
    }
}

/// Drops a registration when it is called, as an application may.
struct Revoke(Mutex<Option<Mr>>);

impl Wake for Revoke {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// Frames that are handed over are placed before wakers are called, like frames from the device.
#[test]
fn a_waker_may_revoke_memory_wherever_frames_arrive() {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let mut station = peer_connects();
        let inbox = station.end.pd.reg_mr(8, all_access()).unwrap();
        let source = station.peer_end.pd.reg_mr(8, all_access()).unwrap();
        // The port that gets the frame with the Send alternates.
        for round in 0..16 {
            let mr = station.end.pd.reg_mr(8, all_access()).unwrap();
            let revoke = Arc::new(Revoke(Mutex::new(Some(mr))));
            station.end.cq.req_notify(&Waker::from(Arc::clone(&revoke)));
            station.turn = round;
            station.end.qp.post_recv(RecvWr::new(WrId(2), [inbox.sge(0..8)])).unwrap();
            // The table is locked for the Write, in the same segment.
            let write = SendWr::write(WrId(3), inbox.remote(0), [source.sge(0..8)]);
            station.peer_end.qp.post_send(write).unwrap();
            station.peer_end.qp.post_send(SendWr::send(WrId(4), [source.sge(0..8)])).unwrap();
            assert!(station.run_until(|station| station.end.cq.poll().is_some()));
            assert!(revoke.0.lock().unwrap().is_none(), "it was called");
        }
        let handed_over = station.ports.each_ref().map(|port| port.port_counters().handed_over);
        assert!(handed_over.iter().sum::<u64>() >= 8, "every second Send: {handed_over:?}");
        done.send(()).unwrap();
    });
    let ended = is_done.recv_timeout(Duration::from_secs(20));
    assert!(ended.is_ok(), "a port waits for itself, or panicked");
}
