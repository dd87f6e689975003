//! Replies that an initiator must not accept (RFC 5044 §7.1.2, RFC 6581 §9, §10).

use urnic_engine::limits::MPA_REPLY_TIMEOUT_NS;
use urnic_engine::mpa::startup::{RtrKinds, StartupConfig};
use urnic_engine::stream::{StartupFailure, StreamError, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::verbs::{QpState, WcStatus};

use crate::hostile::scene::{About, MOMENT, Scene, check_terminate};
use urnic_testkit::octets::{
    CRC, ENHANCED, MARKERS, READ_REQUEST, REJECT, REPLY_KEY, REQUEST_KEY, SEND, WRITE, empty_write,
    fpdu, startup, tagged,
};

/// IRD 1, ORD 1, client-server.
const WORD: [u8; 4] = [0, 1, 0, 1];

fn plain() -> StartupConfig {
    StartupConfig { negotiate_depths: false, ..StartupConfig::default() }
}

fn enhanced() -> StartupConfig {
    StartupConfig::default()
}

fn peer_to_peer(rtr: RtrKinds) -> StartupConfig {
    StartupConfig { peer_to_peer: true, rtr, ..StartupConfig::default() }
}

fn failure(scene: &Scene) -> Option<StartupFailure> {
    scene.events.iter().find_map(|event| match event {
        StreamEvent::StartupFailed(failure) => Some(*failure),
        _ => None,
    })
}

/// Asserts that the initiator closes silently and reports the failure.
fn is_refused(config: StartupConfig, reply: &[u8]) {
    let mut scene = Scene::connecting(config);
    scene.reply(reply);
    assert!(failure(&scene).is_some(), "{:?}", scene.events);
    assert!(!scene.events.iter().any(|event| matches!(event, StreamEvent::Established(_))));
    assert!(scene.answers().is_empty(), "no FPDU follows a bad Reply");
    assert!(scene.peer.fin_received || scene.peer.reset_received);
    assert_eq!(scene.qp.state(), QpState::Error);
    scene.run(Duration::from_secs(200));
    assert!(scene.closed.is_some(), "the connection is gone");
}

/// Asserts that the initiator sends a Terminate with the reason and closes.
fn is_terminated(config: StartupConfig, reply: &[u8], code: (u8, u8, u8)) {
    let mut scene = Scene::connecting(config);
    scene.reply(reply);
    assert!(failure(&scene).is_some(), "{:?}", scene.events);
    let answers = scene.answers();
    assert_eq!(answers.len(), 1, "the Terminate is the first FPDU, and the last");
    check_terminate(&answers[0], &[], code, About::Nothing);
    assert!(scene.peer.fin_received);
    scene.ends_in_order();
}

// spec: DDP-6.1-1, MPA-7.1.2-8
#[test]
fn a_good_reply_starts_rdma() {
    for (config, reply) in [
        (plain(), startup(REPLY_KEY, CRC, 2, b"hello")),
        (plain(), startup(REPLY_KEY, CRC | 0x0F, 2, b"hello")),
        (enhanced(), startup(REPLY_KEY, CRC | ENHANCED, 2, &WORD)),
    ] {
        let mut scene = Scene::connecting(config);
        assert_eq!(scene.peer.received[..16], REQUEST_KEY);
        scene.reply(&reply);
        assert!(scene.events.iter().any(|event| matches!(event, StreamEvent::Established(_))));
        scene.post_send();
        scene.run(MOMENT);
        assert_eq!(scene.answers().len(), 1);
        assert_eq!(scene.answers()[0][..2], SEND);
    }
}

// spec: MPA-7.1.2-7
#[test]
fn a_rejection_leaves_tcp_open_and_flushes_the_queue_pair() {
    let mut scene = Scene::connecting(plain());
    scene.post_receive(100);
    scene.reply(&startup(REPLY_KEY, CRC | REJECT, 2, b"busy"));
    let rejected = scene.events.iter().any(|event| {
        matches!(event, StreamEvent::Rejected(rejection) if rejection.private_data == b"busy")
    });
    assert!(rejected, "{:?}", scene.events);
    assert_eq!(scene.qp.state(), QpState::Error, "a queue pair serves one connection");
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
    assert!(!scene.peer.fin_received && !scene.peer.reset_received);
    let connection = scene.connection.unwrap();
    scene.send_octets(b"try later");
    let mut octets = [0; 20];
    let len = scene.victim.port.receive_streaming(connection, &mut octets).unwrap();
    assert_eq!(&octets[..len], b"try later");
    scene.victim.port.disconnect(connection).unwrap();
    scene.run(MOMENT);
    scene.ends_in_order();
}

#[test]
fn octets_behind_a_rejection_belong_to_streaming_mode() {
    let mut scene = Scene::connecting(plain());
    let reply = startup(REPLY_KEY, CRC | REJECT, 2, b"busy");
    scene.reply(&[&reply[..], b"try later"].concat());
    // TCP retransmits bytes that were refused while the Reply was being read.
    if scene.peer.acknowledged < scene.peer.sent {
        let at = scene.peer.acknowledged;
        let rest = &b"try later"[9 - (scene.peer.sent - at) as usize..];
        scene.peer.send_at(scene.now.as_nanos(), at, rest);
        scene.run(MOMENT);
    }
    let mut octets = [0; 20];
    let connection = scene.connection.unwrap();
    let len = scene.victim.port.receive_streaming(connection, &mut octets).unwrap();
    assert_eq!(&octets[..len], b"try later");
}

// spec: MPA-7.1.1-1, MPA-7.1.2-6
#[test]
fn a_reply_with_any_octet_of_its_key_changed_is_refused() {
    for index in 0..16 {
        let mut reply = startup(REPLY_KEY, CRC, 2, b"");
        reply[index] ^= 0x04;
        is_refused(plain(), &reply);
    }
}

// spec: MPA-7.1.2-10
#[test]
fn mpa_request_instead_of_a_reply_is_refused() {
    // RFC 5044 §7.1.2 (8): two initiators recognize each other by the key.
    is_refused(plain(), &startup(REQUEST_KEY, CRC, 2, b""));
}

#[test]
fn a_reply_of_an_unknown_revision_is_refused() {
    for revision in [0, 3, 255] {
        is_refused(plain(), &startup(REPLY_KEY, MARKERS | CRC, revision, b""));
    }
}

#[test]
fn a_reply_with_too_much_private_data_is_refused() {
    for len in [513_u16, 65_535] {
        let mut reply = startup(REPLY_KEY, CRC, 2, b"");
        reply[18..].copy_from_slice(&len.to_be_bytes());
        is_refused(plain(), &reply);
    }
}

#[test]
fn a_reply_of_another_form_than_the_request_is_refused() {
    is_refused(enhanced(), &startup(REPLY_KEY, CRC, 2, b""));
    is_refused(enhanced(), &startup(REPLY_KEY, CRC, 1, b""));
    is_refused(plain(), &startup(REPLY_KEY, CRC | ENHANCED, 2, &WORD));
    is_refused(enhanced(), &startup(REPLY_KEY, CRC | ENHANCED, 2, &WORD[..3]));
}

// spec: MPA-7.1.2-14
#[test]
fn octets_behind_the_reply_and_before_the_first_fpdu_are_refused() {
    let reply = startup(REPLY_KEY, CRC, 2, b"");
    let early = fpdu(&empty_write(), 0, false);
    is_refused(plain(), &[&reply[..], &early].concat());
    // In a separate segment, with the same result.
    let mut scene = Scene::connecting(plain());
    scene.reply(&reply);
    scene.post_receive(100);
    scene.send_octets(&early);
    // The application saw RDMA start, so for it the connection is lost now.
    assert!(scene.events.contains(&StreamEvent::Failed(StreamError::ConnectionLost)));
    assert!(scene.answers().is_empty());
    assert!(scene.peer.fin_received);
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
}

// spec: MPA2-9.1-7, MPA2-9.1-11
#[test]
fn responder_asking_for_too_many_reads_gets_a_terminate() {
    // ORD 200 and ORD 16382.
    for word in [[0, 1, 0, 200], [0, 1, 0x3F, 0xFE]] {
        let reply = startup(REPLY_KEY, CRC | ENHANCED, 2, &word);
        is_terminated(enhanced(), &reply, (2, 0, 6));
    }
}

// spec: MPA2-9.2-7
#[test]
fn responder_without_a_common_rtr_message_gets_a_terminate() {
    // Peer to peer, but only a Send is possible; then no message at all; then not peer to peer.
    for word in [[0xC0, 1, 0, 1], [0x80, 1, 0, 1], [0, 1, 0xC0, 1]] {
        let reply = startup(REPLY_KEY, CRC | ENHANCED, 2, &word);
        is_terminated(peer_to_peer(RtrKinds::WRITE | RtrKinds::READ), &reply, (2, 0, 7));
    }
}

// spec: MPA2-5-2, MPA2-9.2-6, MPA2-9.2-9, MPA2-9.2-10, MPA2-9.2-12
#[test]
fn the_ready_message_goes_first_and_completes_nothing() {
    // B, C or D in the Reply: the message that both ends support.
    let cases = [
        (RtrKinds::all(), [0x80, 1, 0x80, 1], WRITE, 14),
        (RtrKinds::all(), [0x80, 1, 0x40, 1], READ_REQUEST, 46),
        (RtrKinds::all(), [0xC0, 1, 0, 1], SEND, 18),
    ];
    for (kinds, word, control, len) in cases {
        let mut scene = Scene::connecting(peer_to_peer(kinds));
        scene.peer.window = 0;
        scene.reply(&startup(REPLY_KEY, CRC | ENHANCED, 2, &word));
        scene.post_send();
        scene.run(MOMENT);
        assert!(scene.answers().is_empty());
        scene.peer.window = u16::MAX;
        let seq = scene.peer.seq_of(scene.peer.sent);
        scene.peer.send_flags(scene.now.as_nanos(), seq, urnic_engine::tcp::Flags::ACK);
        scene.run(MOMENT);
        let answers = scene.answers();
        assert_eq!((answers[0].len(), &answers[0][..2]), (len, &control[..]));
        let stag = u32::from_be_bytes(answers[0][2..6].try_into().unwrap());
        assert_eq!(stag != 0, len == 14, "shipping hardware refuses STag 0");
        assert_eq!(answers[1][..2], SEND);
        // A ready message that is a Send has taken a message number.
        assert_eq!(answers[1][13], 1 + u8::from(len == 18));
        if len == 46 {
            let sink = u32::from_be_bytes(answers[0][18..22].try_into().unwrap());
            scene.send(&tagged(urnic_testkit::octets::READ_RESPONSE, sink, 0, &[]));
        }
        scene.completed();
        assert!(scene.send_cq.is_empty(), "the ready message completes nothing");
    }
}

// spec: MPA-7.1.2-11
#[test]
fn a_peer_that_does_not_reply_is_given_up() {
    let mut scene = Scene::connecting(plain());
    scene.reply(&startup(REPLY_KEY, CRC, 2, &[1; 30])[..40]);
    scene.run(Duration::from_nanos(MPA_REPLY_TIMEOUT_NS));
    assert_eq!(failure(&scene), Some(StartupFailure::Timeout));
    assert!(scene.peer.fin_received);
    assert_eq!(scene.qp.state(), QpState::Error);
}

#[test]
fn peer_that_closes_before_its_reply_fails_the_startup() {
    let mut scene = Scene::connecting(plain());
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    assert_eq!(failure(&scene), Some(StartupFailure::ConnectionLost));
    scene.run(Duration::from_secs(200));
    assert!(scene.closed.is_some());
}

#[test]
fn a_refused_connection_is_reported_and_flushes_the_queue_pair() {
    let mut scene = Scene::with_startup(plain());
    scene.peer.refuses = true;
    scene.post_receive(100);
    let remote = std::net::SocketAddr::from((crate::hostile::scene::PEER, 40_000));
    let params = urnic_engine::port::ConnectParams { startup: plain(), ..Default::default() };
    scene.victim.port.connect(scene.now, remote, &scene.qp, &params).unwrap();
    scene.run(MOMENT);
    assert_eq!(failure(&scene), Some(StartupFailure::Refused));
    assert!(scene.closed.is_some());
    assert_eq!(scene.qp.state(), QpState::Error);
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
}
