//! Requests that must not be answered (RFC 5044 §7.1, RFC 6581 §6).

use urnic_engine::limits::MPA_REQUEST_TIMEOUT_NS;
use urnic_engine::mpa::startup::{Offer, RtrKinds, StartupConfig};
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::verbs::{QpState, WcStatus};
use urnic_netdev::memory::LinkConfig;

use crate::hostile::scene::{About, MOMENT, Scene};
use urnic_testkit::octets::{
    CRC, ENHANCED, MARKERS, READ_RESPONSE, REJECT, REPLY_KEY, REQUEST_KEY, empty_write, fpdu,
    read_request, send, startup, tagged,
};

/// Time that the victim waits for a Request.
const PATIENCE: Duration = Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS);

/// Asserts that invalid bytes in place of a Request get no Reply, and close the connection.
fn is_refused(octets: &[u8]) -> StartupFailure {
    let mut scene = Scene::new();
    scene.open();
    scene.send_octets(octets);
    is_over(&mut scene)
}

fn is_over(scene: &mut Scene) -> StartupFailure {
    assert!(scene.peer.received.is_empty(), "nothing is answered");
    assert!(scene.peer.fin_received || scene.peer.reset_received, "{:?}", scene.events);
    let failures: Vec<StartupFailure> = scene
        .events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::StartupFailed(failure) => Some(*failure),
            _ => None,
        })
        .collect();
    assert_eq!(failures.len(), 1, "{:?}", scene.events);
    // Even if the peer never closes its half.
    scene.run(Duration::from_secs(200));
    assert!(scene.closed.is_some(), "the connection is gone");
    failures[0]
}

/// Asserts that the Request is answered with a Reply, and that RDMA works.
fn is_accepted(request: &[u8]) -> Scene {
    let mut scene = Scene::new();
    scene.open();
    scene.request(request);
    scene.accept();
    assert_eq!(scene.peer.received[..16], REPLY_KEY);
    scene.send(&empty_write());
    assert!(scene.answers().is_empty(), "{:?}", scene.events);
    scene
}

// spec: MPA-7.1.1-1, MPA-7.1.2-3, MPA-8-3
#[test]
fn a_request_with_any_octet_of_its_key_changed_is_refused() {
    for index in 0..16 {
        for bit in [0x01, 0x20, 0x80] {
            let mut request = startup(REQUEST_KEY, CRC, 1, b"private");
            request[index] ^= bit;
            is_refused(&request);
        }
    }
}

// spec: MPA-7.1.2-10
#[test]
fn mpa_reply_instead_of_a_request_is_refused() {
    is_refused(&startup(REPLY_KEY, CRC, 1, b""));
}

#[test]
fn another_protocol_is_refused() {
    is_refused(b"GET / HTTP/1.1\r\nHost: victim\r\n\r\n");
    is_refused(&[0; 20]);
    is_refused(&[0xFF]);
}

// spec: MPA-7.1.1-5
#[test]
fn unknown_revisions_are_refused() {
    for revision in [0, 3, 4, 255] {
        is_refused(&startup(REQUEST_KEY, MARKERS | CRC, revision, b""));
    }
}

// spec: SEC-R-19
#[test]
fn private_data_beyond_512_octets_is_refused_without_being_read() {
    for len in [513_u16, 514, 0x8000, 65_535] {
        let mut request = startup(REQUEST_KEY, CRC, 1, b"");
        request[18..].copy_from_slice(&len.to_be_bytes());
        is_refused(&request);
    }
}

// spec: MPA-7.1.2-13
#[test]
fn private_data_of_any_legal_length_is_passed_on() {
    for len in [0_usize, 1, 255, 256, 511, 512] {
        let private_data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let scene = is_accepted(&startup(REQUEST_KEY, CRC, 1, &private_data));
        let passed = scene.events.iter().any(|event| {
            matches!(event, StreamEvent::Request(request) if request.private_data == private_data)
        });
        assert!(passed, "{len} octets");
    }
}

// spec: MPA2-6-1
#[test]
fn an_enhanced_request_without_its_word_is_refused() {
    for len in 0..4 {
        is_refused(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &vec![0; len]));
    }
}

// spec: MPA-7.1.1-3, MPA-7.1.1-4, MPA2-6-4, MPA2-6-7
#[test]
fn reserved_flags_of_a_request_are_ignored() {
    // RFC 5044 §7.1.1: R is not examined, reserved bits are not checked.
    is_accepted(&startup(REQUEST_KEY, CRC | REJECT, 1, b""));
    is_accepted(&startup(REQUEST_KEY, CRC | 0x0F, 1, b""));
    is_accepted(&startup(REQUEST_KEY, CRC | 0x0F, 2, b""));
    // RFC 6581 §6: S is one of the reserved bits of revision 1.
    let scene = is_accepted(&startup(REQUEST_KEY, CRC | ENHANCED, 1, b"ab"));
    assert_eq!(scene.peer.received[16] & ENHANCED, 0);
}

// spec: MPA-7.1.2-5, MPA2-10-1, MPA2-10-2
#[test]
fn the_reply_has_the_revision_and_the_form_of_the_request() {
    let scene = is_accepted(&startup(REQUEST_KEY, CRC, 1, b""));
    assert_eq!((scene.peer.received[16], scene.peer.received[17]), (CRC, 1));
    let scene = is_accepted(&startup(REQUEST_KEY, CRC, 2, b""));
    assert_eq!((scene.peer.received[16], scene.peer.received[17]), (CRC, 2));
    let scene = is_accepted(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &[0, 1, 0, 1]));
    assert_eq!((scene.peer.received[16], scene.peer.received[17]), (CRC | ENHANCED, 2));
}

// spec: MPA-7.1.2-2
#[test]
fn a_request_may_come_octet_by_octet() {
    let mut scene = Scene::new();
    scene.open();
    let request = startup(REQUEST_KEY, CRC, 1, &[9; 100]);
    for octet in &request {
        assert!(scene.events.is_empty() && scene.peer.received.is_empty());
        scene.send_octets(&[*octet]);
    }
    scene.origin = scene.peer.sent;
    scene.accept();
    scene.send(&empty_write());
    assert!(scene.answers().is_empty());
}

#[test]
fn octets_after_the_request_and_before_its_answer_are_refused() {
    let request = startup(REQUEST_KEY, CRC, 1, b"");
    // In a separate segment.
    let mut scene = Scene::new();
    scene.open();
    scene.request(&request);
    scene.send_octets(b"x");
    is_over(&mut scene);
    // In the segment of the Request, with the same result.
    let mut scene = Scene::new();
    scene.open();
    let fpdu = scene.fpdu(&empty_write());
    scene.send_octets(&[&request[..], &fpdu].concat());
    is_over(&mut scene);
}

// spec: SEC-T-6
#[test]
fn a_peer_that_connects_and_says_nothing_is_dropped() {
    let mut scene = Scene::new();
    scene.open();
    scene.run(PATIENCE - Duration::from_secs(1));
    assert!(!scene.peer.fin_received && scene.events.is_empty());
    scene.run(Duration::from_secs(2));
    assert_eq!(is_over(&mut scene), StartupFailure::Timeout);
}

#[test]
fn port_awaits_a_request_for_the_configured_time() {
    for seconds in [2, 90] {
        let link = LinkConfig::default();
        let mut scene = Scene::with_port(StartupConfig::default(), link, |port| {
            port.life.request = Duration::from_secs(seconds);
        });
        scene.open();
        scene.run(Duration::from_secs(seconds - 1));
        assert!(!scene.peer.fin_received && scene.events.is_empty(), "{seconds} s");
        scene.run(Duration::from_secs(2));
        assert_eq!(is_over(&mut scene), StartupFailure::Timeout, "{seconds} s");
    }
}

// spec: MPA-7.1.2-11, SEC-T-6
#[test]
fn a_request_that_never_ends_is_dropped() {
    let mut scene = Scene::new();
    scene.open();
    let request = startup(REQUEST_KEY, CRC, 1, &[9; 100]);
    for octet in request {
        scene.send_octets(&[octet]);
        scene.run(PATIENCE / 60);
    }
    assert_eq!(is_over(&mut scene), StartupFailure::Timeout);
}

#[test]
fn a_peer_that_closes_before_its_request_is_whole_is_dropped() {
    for len in [0, 1, 19, 25] {
        let mut scene = Scene::new();
        scene.open();
        if len > 0 {
            scene.send_octets(&startup(REQUEST_KEY, CRC, 1, &[9; 100])[..len]);
        }
        scene.peer.send_fin(scene.now.as_nanos());
        scene.run(MOMENT);
        assert_eq!(is_over(&mut scene), StartupFailure::ConnectionLost);
    }
}

// spec: MPA-7.1.2-4
#[test]
fn a_rejected_peer_keeps_its_tcp_connection() {
    let mut scene = Scene::new();
    scene.open();
    scene.request(&startup(REQUEST_KEY, CRC, 1, b"please"));
    let connection = scene.connection.unwrap();
    let offer = Offer { private_data: b"no", ..Offer::default() };
    scene.victim.port.reject(connection, &offer).unwrap();
    scene.run(MOMENT);
    assert_eq!(scene.peer.received, startup(REPLY_KEY, CRC | REJECT, 1, b"no"));
    // RFC 5044 §7.1.2 (6): MPA is left, TCP stays open for streaming.
    scene.send_octets(b"why not?");
    let mut octets = [0; 20];
    let len = scene.victim.port.receive_streaming(connection, &mut octets).unwrap();
    assert_eq!(&octets[..len], b"why not?");
    scene.victim.port.send_streaming(connection, b"because").unwrap();
    scene.run(MOMENT);
    assert!(scene.peer.received.ends_with(b"because"));
    scene.victim.port.disconnect(connection).unwrap();
    scene.run(MOMENT);
    assert!(scene.peer.fin_received);
    scene.ends_in_order();
}

#[test]
fn each_end_chooses_markers_and_crcs_for_its_receive_direction() {
    for markers in [false, true] {
        let config = StartupConfig { markers, ..StartupConfig::default() };
        let mut scene = Scene::started(config);
        assert_eq!(scene.peer.received[16] & MARKERS != 0, markers);
        scene.send(&empty_write());
        assert!(scene.answers().is_empty());
    }
}

/// Returns a peer-to-peer scene whose responder accepts these kinds of ready-to-receive message.
fn peer_to_peer(markers: bool, rtr: RtrKinds) -> Scene {
    let config = StartupConfig { markers, rtr, ..StartupConfig::default() };
    let mut scene = Scene::with_startup(config);
    scene.open();
    // A, B, C and D, IRD 4 and ORD 4.
    scene.request(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &[0xC0, 4, 0xC0, 4]));
    scene.accept();
    scene
}

/// RFC 6581 §9.2: the initiator chooses one of several kinds, and the first FPDU shows which.
// spec: MPA2-9.2-9
#[test]
fn the_ready_message_may_be_of_any_kind_that_was_agreed_on() {
    let all = RtrKinds::all();
    // The ready message, its answer, and the number of the Send behind it.
    let cases = [
        (RtrKinds::SEND, send(1, b""), None, 2),
        (all, send(1, b""), None, 2),
        (all, empty_write(), None, 1),
        (all, read_request(1, (9, 7), 0, (1, 0)), Some(tagged(READ_RESPONSE, 9, 7, &[])), 1),
        (RtrKinds::WRITE, empty_write(), None, 1),
    ];
    for (index, (kinds, ready, answer, msn)) in cases.into_iter().enumerate() {
        for posted_before in [true, false] {
            let mut scene = peer_to_peer(false, kinds);
            if posted_before {
                scene.post_receive(100);
            }
            scene.send(&ready);
            assert_eq!(scene.qp.state(), QpState::Rts, "case {index}: {:?}", scene.events);
            assert_eq!(scene.answers(), answer.clone().into_iter().collect::<Vec<_>>());
            assert!(scene.recv_cq.is_empty(), "case {index}: it completes nothing");
            if !posted_before {
                scene.post_receive(100);
            }
            scene.send(&send(msn, b"hello"));
            let wc = scene.received();
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 5), "case {index}");
            // Only the first message is a ready message.
            scene.dies_of(&send(msn + 1, b""), (1, 2, 2), About::Segment);
        }
    }
}

/// A Send that overtakes the ready message is not taken for it.
#[test]
fn segments_that_overtake_the_rtr_message_wait_for_it() {
    for (ready, msn) in [(empty_write(), 1), (send(1, b""), 2)] {
        let mut scene = peer_to_peer(true, RtrKinds::all());
        scene.post_receive(1000);
        let first = fpdu(&ready, 0, true);
        let second = fpdu(&send(msn, &[7; 900]), first.len() as u64, true);
        let (now, origin) = (scene.now.as_nanos(), scene.peer.sent);
        scene.peer.send_at(now, origin + first.len() as u64, &second);
        scene.run(MOMENT);
        assert!(scene.recv_cq.is_empty() && scene.qp.state() == QpState::Rts);
        scene.peer.send_at(now, origin, &first);
        scene.peer.sent += (first.len() + second.len()) as u64;
        scene.run(MOMENT);
        let wc = scene.received();
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 900));
        // From then on, overtaking messages are placed at once.
        scene.post_receive(1000);
        scene.post_receive(1000);
        let third = fpdu(&send(msn + 1, &[8; 900]), scene.peer.sent - scene.origin, true);
        let at = scene.peer.sent + third.len() as u64;
        let fourth = fpdu(&send(msn + 2, &[9; 900]), at - scene.origin, true);
        scene.peer.send_at(scene.now.as_nanos(), at, &fourth);
        scene.run(MOMENT);
        let placed = |scene: &Scene| {
            let id = scene.connection.unwrap();
            scene.victim.port.counters(id).unwrap().rdma.bytes_placed
        };
        assert_eq!(placed(&scene), 1800);
    }
}

// spec: MPA-7.1-2
#[test]
fn an_answer_that_cannot_be_given_leaves_the_queue_pair_free() {
    let mut scene = Scene::new();
    scene.open();
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    let too_much = [0; 600];
    let offer = Offer { private_data: &too_much, ..Offer::default() };
    let connection = scene.connection.unwrap();
    assert!(scene.victim.port.accept(connection, &scene.qp, &offer).is_err());
    scene.accept();
    assert_eq!(scene.qp.state(), QpState::Rts);
}

#[test]
fn a_queue_pair_is_for_one_connection() {
    let mut scene = peer_to_peer(false, RtrKinds::all());
    let remote = std::net::SocketAddr::from((crate::hostile::scene::PEER, 40_001));
    let params = urnic_engine::port::ConnectParams::default();
    let again = scene.victim.port.connect(scene.now, remote, &scene.qp, &params);
    assert!(again.is_err());
    scene.send(&empty_write());
    assert_eq!(scene.qp.state(), QpState::Rts);
}
