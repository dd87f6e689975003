//! Ends of connections: the bytes that leave, and the notices that handles get.

use std::net::Shutdown;

use urnic_engine::limits::{HELD_SEGMENTS_MAX, MPA_FIRST_FPDU_TIMEOUT_NS};
use urnic_testkit::octets::{CRC, ENHANCED, REQUEST_KEY, fpdu, read_request, send, startup};

use super::*;

impl Scene {
    /// Connects to a peer and sends it a message. The peer may send from then on, because it has
    /// this end's first FPDU (RFC 5044 §7.1.2 (4)).
    fn open_heard(&mut self, peers: &TcpListener) -> (Qp, TcpStream, HandleEnd<Notice>) {
        let (qp, mut peer, told) = self.open_told(at(0), peers);
        let memory = self.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        qp.post_send(SendWr::send(WrId(0), [memory.sge(0..8)])).unwrap();
        self.settle(at(0));
        peer.read_exact(&mut [0; 2 + 18 + 8 + 4]).unwrap();
        (qp, peer, told)
    }
}

/// A Read Response of no bytes waits for a message of the application. At a shutdown no message
/// follows.
#[test]
fn answers_that_wait_leave_before_a_shutdown() {
    let config = EndpointConfig { polled: true, ..EndpointConfig::default() };
    let (mut scene, peers) = (Scene::with(&config), TcpListener::bind("127.0.0.1:0").unwrap());
    let (_qp, mut peer, _told) = scene.open_heard(&peers);
    let figures = |scene: &Scene| {
        let layered = &scene.connection().layered;
        (layered.bytes_sent(), layered.bytes_received())
    };
    let (sent, received) = figures(&scene);
    peer.write_all(&fpdu(&read_request(1, (7, 0), 0, (0, 0)), 0, false)).unwrap();
    scene.turn_until(at(0), "a Read of no bytes", |scene| figures(scene).1 > received);
    assert_eq!(figures(&scene).0, sent, "the answer waits");
    scene.engine.shutdown(at(0));
    // Length, header of 14 bytes, CRC.
    let mut answer = [0; 20];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], [0, 14, 0xc1, 0x42], "a Read Response");
}

/// The peer's FIN follows bytes that are not read before there are receives.
#[test]
fn fin_of_the_peer_is_reported_while_its_messages_wait_for_receives() {
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    scene.rules = QpRules::IwarpWait;
    let (_qp, mut peer, told) = scene.open_heard(&peers);
    let messages = 1..=u32::try_from(HELD_SEGMENTS_MAX).unwrap() + 1;
    let octets: Vec<u8> = messages.flat_map(|msn| fpdu(&send(msn, b""), 0, false)).collect();
    let writer = std::thread::spawn(move || {
        peer.write_all(&octets).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        peer
    });
    scene.turn_until(at(0), "its end is told", |_| {
        std::iter::from_fn(|| told.try_receive().ok()).any(|one| matches!(one, Notice::PeerEnding))
    });
    let _peer = writer.join().unwrap();
}

/// RFC 5044 §7.1.2 (6): the Reply rejects, and then the connection ends.
#[test]
fn rejected_peer_gets_a_reply_and_a_close() {
    let mut scene = Scene::new();
    let (local, requested) = scene.listen();
    let mut peer = TcpStream::connect(local).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
    let incoming = RefCell::new(None);
    scene.turn_until(at(0), "a Request", |_| {
        *incoming.borrow_mut() = requested.try_receive().ok();
        incoming.borrow().is_some()
    });
    let key = incoming.borrow().as_ref().unwrap().claim.key();
    let offer = OwnedOffer::new(&Offer { private_data: b"no", ..Offer::default() });
    scene.engine.handle_command(at(0), Command::Reject { key, offer });
    scene.settle(at(0));
    let mut told = Vec::new();
    peer.read_to_end(&mut told).unwrap();
    assert_eq!((&told[..16], &told[20..]), (&b"MPA ID Rep Frame"[..], &b"no"[..]));
    assert_eq!(told[16] & 0x20, 0x20, "rejected");
}

/// The engine stops waiting for peers that do not read. The connections of the others end in order.
#[test]
fn connections_that_owe_octets_are_reset_when_the_time_is_over() {
    const LEN: usize = 16 << 20;
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (qp, _peer) = scene.open(at(0), &peers);
    let memory = scene.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    qp.post_send(SendWr::send(WrId(1), [memory.sge(0..LEN)])).unwrap();
    scene.engine.close_all(at(0));
    scene.settle(at(0));
    assert_eq!(scene.engine.owed(), Owed::Octets, "more than the socket takes");
    scene.engine.abort_owing();
    scene.settle(at(0));
    assert_eq!(scene.engine.owed(), Owed::Nothing);
    assert!(scene.engine.connections.is_empty());
    assert_eq!(qp.state(), QpState::Error);
}

/// The time before the application's answer to the Request does not count.
#[test]
fn a_peer_has_all_its_time_from_the_accept_on() {
    const LATE_NS: u64 = 3_600_000_000_000;
    let mut scene = Scene::new();
    let startup_config = StartupConfig { peer_to_peer: true, ..StartupConfig::default() };
    let params = ListenParams { startup: startup_config, ..ListenParams::default() };
    let (local, requested) = scene.listen_with(params);
    let mut peer = TcpStream::connect(local).unwrap();
    // RFC 6581 §9: peer to peer, with a Read as ready-to-receive message, which does not come.
    let word = [0x80, 4, 0x40, 4];
    peer.write_all(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &word)).unwrap();
    let incoming = RefCell::new(None);
    scene.turn_until(at(0), "a Request", |_| {
        *incoming.borrow_mut() = requested.try_receive().ok();
        incoming.borrow().is_some()
    });
    let Incoming { claim, notices, .. } = incoming.into_inner().unwrap();
    let (key, qp) = (claim.key(), scene.qp());
    let offer = OwnedOffer::new(&Offer { ird: 4, ord: 4, ..Offer::default() });
    scene.engine.handle_command(at(LATE_NS), Command::Accept { key, qp, offer });
    scene.settle(at(LATE_NS));
    let has_failed = || {
        std::iter::from_fn(|| notices.try_receive().ok()).any(|notice| {
            let Notice::Event(event) = notice else { return false };
            matches!(*event, StreamEvent::StartupFailed(_) | StreamEvent::Failed(_))
        })
    };
    let over = LATE_NS + MPA_FIRST_FPDU_TIMEOUT_NS;
    scene.settle(at(over - 1));
    assert!(!has_failed(), "a nanosecond is left");
    scene.settle(at(over));
    assert!(has_failed());
}
