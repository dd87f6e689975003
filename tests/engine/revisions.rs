//! Ends that speak different revisions of MPA, end to end: the agreed settings hold for every FPDU
//! (RFC 5044 Appendix C), and an initiator finds out its peer's abilities (RFC 6581 §10).
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::cast_possible_truncation, reason = "test patterns are made of low octets")]

use std::net::{IpAddr, SocketAddr};

use urnic_engine::mpa::startup::{Fallback, Negotiated, Offer, Revision, RtrKinds, StartupConfig};
use urnic_engine::poll::Lockstep;
use urnic_engine::port::{ConnectParams, ListenParams, LowerLayer, PortEvent};
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, QpState, RecvWr, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::pair::{A, B, End, Pair, TCP_PORT, all_access, config, content, fill};

/// Reaction of the responder's application to a Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Accept,
    /// Rejects a Request for markers without a reason, as drivers do that cannot insert any.
    RejectMarkers,
    /// Rejects with a reason.
    Reject,
}

struct Duo {
    link: Lockstep<MemoryDevice, MemoryDevice>,
    a: End,
    b: End,
    requests: Vec<(Revision, bool)>,
    answer: Answer,
    closed_at_a: usize,
    /// Receive buffers of each end; posted before anything is sent, and still posted after a
    /// fallback.
    inboxes: [Mr; 2],
}

const LEN: usize = 20_000;
const OFFER: Offer<'_> = Offer { private_data: b"", ird: 8, ord: 8 };

impl Duo {
    /// Lets the two ends try to connect until a result.
    fn new(active: StartupConfig, passive: StartupConfig, layered: bool, answer: Answer) -> Self {
        let (device_a, device_b) = memory::pair(LinkConfig::default());
        let ends = [End::new(1), End::new(2)];
        let Pair { link, a, b } = Pair::new(ends, [config(A), config(B)], [device_a, device_b]);
        let inboxes = [&a, &b].map(|end| {
            let inbox = end.pd.reg_mr(LEN, all_access()).unwrap();
            end.qp.post_recv(RecvWr::new(WrId(1), [inbox.sge(0..LEN)])).unwrap();
            inbox
        });
        let mut duo = Self { link, a, b, requests: Vec::new(), answer, closed_at_a: 0, inboxes };
        let lower_layer = if layered { LowerLayer::Layered } else { LowerLayer::Optimized };
        let listen = ListenParams { startup: passive, lower_layer, ..ListenParams::default() };
        duo.link.b.port.listen(TCP_PORT, listen).unwrap();
        let params = ConnectParams { startup: active, offer: OFFER, lower_layer };
        let remote = SocketAddr::new(IpAddr::V4(B), TCP_PORT);
        let id = duo.link.a.port.connect(Instant::ZERO, remote, &duo.a.qp, &params).unwrap();
        duo.a.connection = Some(id);
        duo.run(Duration::from_secs(10));
        duo
    }

    fn run(&mut self, time: Duration) {
        let until = self.link.now() + time;
        while self.link.now() < until {
            self.collect();
            if !self.link.step() {
                break;
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(event) = self.link.a.port.poll_event() {
            match event {
                PortEvent::Stream { connection, event } => {
                    assert_eq!(Some(connection), self.a.connection, "the name stays the same");
                    self.a.events.push(event);
                }
                PortEvent::Closed { .. } => self.closed_at_a += 1,
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = self.link.b.port.poll_event() {
            let PortEvent::Stream { connection, event } = event else { continue };
            if event == StreamEvent::PeerClosed {
                self.link.b.port.disconnect(connection).unwrap();
            }
            if let StreamEvent::Request(request) = &event {
                self.requests.push((request.revision, request.markers));
                let port = &mut self.link.b.port;
                match self.answer {
                    Answer::RejectMarkers if request.markers => {
                        port.reject(connection, &Offer::default()).unwrap();
                    }
                    Answer::Reject => {
                        let why = Offer { private_data: b"full", ..Offer::default() };
                        port.reject(connection, &why).unwrap();
                    }
                    _ => port.accept(connection, &self.b.qp, &OFFER).unwrap(),
                }
            }
            self.b.events.push(event);
        }
    }

    fn terms(&self) -> &Negotiated {
        let terms = self.a.events.iter().find_map(|event| match event {
            StreamEvent::Established(terms) => Some(terms),
            _ => None,
        });
        terms.unwrap_or_else(|| panic!("not connected: {:?} {:?}", self.a.events, self.b.events))
    }

    fn failure(&self) -> StartupFailure {
        let failure = self.a.events.iter().find_map(|event| match event {
            StreamEvent::StartupFailed(failure) => Some(*failure),
            _ => None,
        });
        failure.unwrap_or_else(|| panic!("no failure: {:?}", self.a.events))
    }

    /// Moves data by every operation, in both directions.
    fn moves_data(&mut self) {
        let [a, b] = [&self.a, &self.b].map(|end| end.pd.reg_mr(LEN, all_access()).unwrap());
        let [from_a, from_b] = [fill(&a, 1), fill(&b, 2)];
        let sink = self.a.pd.reg_mr(LEN, all_access()).unwrap();
        self.a.qp.post_send(SendWr::read(WrId(3), b.remote(0), sink.sge(0..LEN))).unwrap();
        self.a.qp.post_send(SendWr::send(WrId(4), [a.sge(0..LEN)])).unwrap();
        self.run(Duration::from_secs(5));
        assert_eq!(content(&sink), from_b);
        assert_eq!(content(&self.inboxes[1]), from_a);
        self.a.qp.post_send(SendWr::write(WrId(5), b.remote(0), [a.sge(0..LEN)])).unwrap();
        self.run(Duration::from_secs(5));
        assert_eq!(content(&b), from_a);
        self.b.qp.post_send(SendWr::send(WrId(6), [b.sge(0..LEN)])).unwrap();
        self.run(Duration::from_secs(5));
        assert_eq!(content(&self.inboxes[0]), from_a);
        for (end, completions) in [(&self.a, 4), (&self.b, 2)] {
            for _ in 0..completions {
                assert_eq!(end.cq.poll().unwrap().status, WcStatus::Success);
            }
            assert!(end.cq.is_empty());
        }
    }
}

fn plain(markers: bool) -> StartupConfig {
    StartupConfig { revision: Revision::One, markers, ..StartupConfig::default() }
}

fn permissive(markers: bool) -> StartupConfig {
    StartupConfig { permissive: true, ..plain(markers) }
}

fn rdmac() -> StartupConfig {
    StartupConfig { revision: Revision::Rdmac, ..plain(true) }
}

#[test]
fn data_moves_in_every_cell_of_appendix_c_that_connects() {
    let all = [rdmac(), plain(false), plain(true), permissive(false), permissive(true)];
    let mut connected = 0;
    for active in all {
        for passive in all {
            let rdmac_ends = [active, passive].map(|end| end.revision == Revision::Rdmac);
            let strict_ends =
                [active, passive].map(|end| end.revision != Revision::Rdmac && !end.permissive);
            let mut duo = Duo::new(active, passive, false, Answer::Accept);
            // One side has only version 0, and the other refuses it.
            if rdmac_ends.contains(&true) && strict_ends.contains(&true) {
                duo.failure();
                assert_eq!(duo.a.qp.state(), QpState::Error);
                continue;
            }
            let framing = duo.terms().framing;
            let version_0 = rdmac_ends.contains(&true);
            assert_eq!(framing.revision == Revision::Rdmac, version_0);
            assert_eq!(framing.markers_to_us, active.markers || version_0);
            assert_eq!(framing.markers_to_peer, passive.markers || version_0);
            duo.moves_data();
            connected += 1;
        }
    }
    assert_eq!(connected, 21);
}

// spec: MPA2-10-4
#[test]
fn peer_of_revision_1_gets_a_second_request_in_revision_1() {
    for layered in [false, true] {
        let mut duo = Duo::new(StartupConfig::default(), plain(false), layered, Answer::Accept);
        assert_eq!(duo.terms().framing.revision, Revision::One);
        assert_eq!(duo.requests, [(Revision::One, false)], "the first Request was malformed to it");
        assert_eq!(
            duo.a.events.len(),
            1,
            "the application knows nothing of it: {:?}",
            duo.a.events
        );
        duo.moves_data();
        let connection = duo.a.connection.unwrap();
        duo.link.a.port.disconnect(connection).unwrap();
        duo.run(Duration::from_secs(300));
        assert_eq!(duo.closed_at_a, 1);
        assert_eq!(duo.link.a.port.connection_count(), 0);
    }
}

#[test]
fn peer_that_refuses_markers_gets_a_second_request_without_them() {
    for layered in [false, true] {
        let active = StartupConfig { markers: true, ..StartupConfig::default() };
        let passive = StartupConfig::default();
        let mut duo = Duo::new(active, passive, layered, Answer::RejectMarkers);
        assert_eq!(duo.requests, [(Revision::Two, true), (Revision::Two, false)]);
        assert!(!duo.terms().framing.markers_to_us);
        assert_eq!(duo.a.events.len(), 1, "{:?}", duo.a.events);
        duo.moves_data();
    }
}

#[test]
fn explicit_rejection_is_not_retried() {
    let active = StartupConfig { markers: true, ..StartupConfig::default() };
    let duo = Duo::new(active, StartupConfig::default(), false, Answer::Reject);
    assert_eq!(duo.requests.len(), 1);
    assert!(matches!(duo.a.events[..], [StreamEvent::Rejected(_)]), "{:?}", duo.a.events);
}

#[test]
fn without_leave_to_fall_back_the_first_failure_counts() {
    let active = StartupConfig { fallback: Fallback::empty(), ..StartupConfig::default() };
    let duo = Duo::new(active, plain(false), false, Answer::Accept);
    assert_eq!(duo.failure(), StartupFailure::ConnectionLost);
    assert!(duo.requests.is_empty());
    assert_eq!(duo.a.qp.state(), QpState::Error);
}

#[test]
fn a_peer_that_can_do_nothing_fails_after_all_attempts() {
    // It speaks revision 0 only.
    let active = StartupConfig { markers: true, ..StartupConfig::default() };
    let mut duo = Duo::new(active, rdmac(), false, Answer::Accept);
    duo.run(Duration::from_secs(300));
    assert!(matches!(duo.failure(), StartupFailure::Protocol(_)), "{:?}", duo.a.events);
    assert_eq!(duo.requests, [(Revision::Rdmac, true)], "revision 1 was the second attempt");
    assert_eq!(duo.closed_at_a, 1);
}

#[test]
fn every_kind_of_rtr_opens_a_peer_to_peer_connection() {
    let kinds = [RtrKinds::SEND, RtrKinds::WRITE, RtrKinds::READ];
    let every = (1..8_u8).map(RtrKinds::from_bits_truncate);
    for offered in every.clone() {
        for supported in every.clone() {
            for (markers, layered) in [(false, false), (true, false), (false, true)] {
                let config = StartupConfig {
                    peer_to_peer: true,
                    markers,
                    rtr: offered,
                    ..StartupConfig::default()
                };
                let passive = StartupConfig { peer_to_peer: false, rtr: supported, ..config };
                let mut duo = Duo::new(config, passive, layered, Answer::Accept);
                if (offered & supported).is_empty() {
                    // RFC 6581 §9.2: Terminate with code 7, and the end.
                    duo.failure();
                    let told = duo.b.events.iter().any(|event| {
                        matches!(event, StreamEvent::Terminated(terminate)
                            if terminate.code.to_string() == "2/0/07")
                    });
                    assert!(told, "{offered:?} {supported:?} {:?}", duo.b.events);
                    continue;
                }
                assert!(duo.terms().enhanced);
                assert!(kinds.iter().any(|kind| (offered & supported).contains(*kind)));
                // RFC 6581 §4.4.2: it raises no completion and takes no work request.
                assert!(duo.a.cq.is_empty() && duo.b.cq.is_empty());
                duo.moves_data();
            }
        }
    }
}
