//! Requests that must not be answered (RFC 5044 §7.1, RFC 6581 §6).

use urnic::limits::MPA_REQUEST_TIMEOUT_NS;
use urnic::mpa::startup::{Offer, StartupConfig};
use urnic::stream::{StartupFailure, StreamEvent};
use urnic::time::Duration;

use crate::octets::{CRC, ENHANCED, MARKERS, REJECT, REPLY_KEY, REQUEST_KEY, empty_write, startup};
use crate::scene::{MOMENT, Scene};

/// How long the victim waits for a Request.
const PATIENCE: Duration = Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS);

/// The octets are no Request: no Reply comes, and the connection is closed.
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

/// The Request is answered with a Reply, and RDMA works.
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

#[test]
fn a_reply_in_place_of_a_request_is_refused() {
    is_refused(&startup(REPLY_KEY, CRC, 1, b""));
}

#[test]
fn another_protocol_is_refused() {
    is_refused(b"GET / HTTP/1.1\r\nHost: victim\r\n\r\n");
    is_refused(&[0; 20]);
    is_refused(&[0xFF]);
}

#[test]
fn unknown_revisions_are_refused() {
    for revision in [0, 3, 4, 255] {
        is_refused(&startup(REQUEST_KEY, MARKERS | CRC, revision, b""));
    }
}

#[test]
fn private_data_beyond_512_octets_is_refused_without_being_read() {
    for len in [513_u16, 514, 0x8000, 65_535] {
        let mut request = startup(REQUEST_KEY, CRC, 1, b"");
        request[18..].copy_from_slice(&len.to_be_bytes());
        is_refused(&request);
    }
}

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

#[test]
fn an_enhanced_request_without_its_word_is_refused() {
    for len in 0..4 {
        is_refused(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &vec![0; len]));
    }
}

#[test]
fn flags_that_say_nothing_in_a_request_are_ignored() {
    // RFC 5044 §7.1.1: R is not examined, reserved bits are not checked.
    is_accepted(&startup(REQUEST_KEY, CRC | REJECT, 1, b""));
    is_accepted(&startup(REQUEST_KEY, CRC | 0x0F, 1, b""));
    is_accepted(&startup(REQUEST_KEY, CRC | 0x0F, 2, b""));
    // RFC 6581 §6: S is one of the reserved bits of revision 1.
    let scene = is_accepted(&startup(REQUEST_KEY, CRC | ENHANCED, 1, b"ab"));
    assert_eq!(scene.peer.received[16] & ENHANCED, 0);
}

#[test]
fn the_reply_has_the_revision_and_the_form_of_the_request() {
    let scene = is_accepted(&startup(REQUEST_KEY, CRC, 1, b""));
    assert_eq!((scene.peer.received[16], scene.peer.received[17]), (CRC, 1));
    let scene = is_accepted(&startup(REQUEST_KEY, CRC, 2, b""));
    assert_eq!((scene.peer.received[16], scene.peer.received[17]), (CRC, 2));
    let scene = is_accepted(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &[0, 1, 0, 1]));
    assert_eq!((scene.peer.received[16], scene.peer.received[17]), (CRC | ENHANCED, 2));
}

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
    // In a segment of their own.
    let mut scene = Scene::new();
    scene.open();
    scene.request(&request);
    scene.send_octets(b"x");
    is_over(&mut scene);
    // In the segment of the Request: it makes no difference.
    let mut scene = Scene::new();
    scene.open();
    let fpdu = scene.fpdu(&empty_write());
    scene.send_octets(&[&request[..], &fpdu].concat());
    is_over(&mut scene);
}

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
fn markers_and_crcs_are_told_by_each_end_for_what_it_receives() {
    for markers in [false, true] {
        let config = StartupConfig { markers, ..StartupConfig::default() };
        let mut scene = Scene::started(config);
        assert_eq!(scene.peer.received[16] & MARKERS != 0, markers);
        scene.send(&empty_write());
        assert!(scene.answers().is_empty());
    }
}
