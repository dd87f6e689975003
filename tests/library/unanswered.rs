//! Reads without an answer, over the kernel's TCP. A peer whose TCP answers may take its time. A
//! vanished peer is given up, even if everything that was sent to it was acknowledged.
#![expect(clippy::disallowed_methods, reason = "the kernel's TCP works in real time")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use urnic::{
    Access, CompletionLevel, Connection, ConnectionEvent, Cq, Endpoint, EndpointConfig,
    ListenParams, Mr, Offer, Qp, QpConfig, RecvWr, RemoteBuffer, Rnic, RnicConfig, SendWr, Stag,
    TaggedOffset, WcStatus, WrId,
};
use urnic_testkit::octets::{CRC, REQUEST_KEY, fpdu, read_request, send, startup};
use urnic_testkit::silence::drop_all_segments;

const PATIENCE: Duration = Duration::from_secs(30);
const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection from a peer that is a socket, which has sent its first message.
struct Scene {
    endpoint: Endpoint,
    cq: Cq,
    qp: Qp,
    memory: Mr,
    connection: Connection,
    peer: TcpStream,
}

impl Scene {
    fn new() -> Self {
        Self::with(true, CompletionLevel::Taken)
    }

    fn with(own_thread: bool, completion: CompletionLevel) -> Self {
        Self::of(EndpointConfig { own_thread, ..EndpointConfig::default() }, completion)
    }

    fn of(config: EndpointConfig, completion: CompletionLevel) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: urnic::random_seed().unwrap() });
        let config = EndpointConfig { user_timeout: USER_TIMEOUT, ..config };
        let endpoint = Endpoint::kernel(&rnic, &config).unwrap();
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16).unwrap());
        let qp = pd.create_qp(QpConfig { completion, ..QpConfig::new(&cq) }).unwrap();
        let memory = pd.reg_mr(100, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr::new(WrId(0), [memory.sge(0..100)])).unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let listener = endpoint.listen(local, ListenParams::default()).unwrap();
        let mut peer = TcpStream::connect(listener.local()).unwrap();
        peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("the Request comes");
        let offer = Offer { ird: 4, ord: 4, ..Offer::default() };
        let connection = request.accept(&qp, &offer).unwrap().wait(PATIENCE).unwrap();
        peer.read_exact(&mut [0; 20]).unwrap();
        peer.write_all(&fpdu(&send(1, b"hello"), 0, false)).unwrap();
        let scene = Self { endpoint, cq, qp, memory, connection, peer };
        assert_eq!(scene.completed(PATIENCE), Some(WcStatus::Success));
        scene
    }

    fn completed(&self, timeout: Duration) -> Option<WcStatus> {
        Some(self.endpoint.wait(&self.cq, timeout).unwrap()?.status)
    }

    /// Posts a Read, and lets the peer's TCP acknowledge the request.
    fn ask(&mut self) {
        let remote = RemoteBuffer { stag: Stag(7), to: TaggedOffset(0) };
        self.qp.post_send(SendWr::read(WrId(1), remote, self.memory.sge(0..100))).unwrap();
        // Length, header of 46 bytes, CRC.
        self.peer.read_exact(&mut [0; 52]).unwrap();
    }
}

#[test]
fn vanished_peer_is_detected() {
    let mut scene = Scene::new();
    scene.ask();
    if let Err(error) = drop_all_segments(&scene.peer) {
        return urnic_testkit::skip("vanished_peer_is_detected", &format!("{error}"));
    }
    let began = std::time::Instant::now();
    assert_eq!(scene.completed(PATIENCE), Some(WcStatus::RetryExcErr));
    let waited = began.elapsed();
    assert!(waited < 3 * USER_TIMEOUT, "{waited:?}");
    let event = scene.connection.next_event(PATIENCE).unwrap();
    assert!(matches!(event, Some(ConnectionEvent::Failed(_))), "{event:?}");
}

#[test]
fn a_peer_whose_tcp_answers_may_take_its_time() {
    let mut scene = Scene::new();
    scene.ask();
    assert_eq!(scene.completed(3 * USER_TIMEOUT), None);
    assert_eq!(scene.connection.next_event(Duration::ZERO).unwrap(), None);
}

/// A peer takes the message, and ends its process without reading the request behind it. It closed
/// in order before that, so its close counts, and so does the data that it sent before.
#[test]
fn a_send_is_placed_at_a_peer_that_resets_behind_its_close() {
    let mut scene = Scene::with(false, CompletionLevel::Placed);
    scene.qp.post_recv(RecvWr::new(WrId(2), [scene.memory.sge(0..100)])).unwrap();
    scene.qp.post_send(SendWr::send(WrId(1), [scene.memory.sge(0..100)])).unwrap();
    for _ in 0..10 {
        scene.endpoint.turn(Duration::ZERO).unwrap();
    }
    scene.peer.set_read_timeout(Some(PATIENCE)).unwrap();
    // Length, header of 18 bytes, payload, CRC; and one byte of the request behind it.
    scene.peer.read_exact(&mut [0; 2 + 18 + 100 + 4 + 1]).unwrap();
    scene.peer.write_all(&fpdu(&send(2, b"thanks"), 0, false)).unwrap();
    scene.peer.shutdown(Shutdown::Write).unwrap();
    // Unread bytes cause a RST.
    drop(scene.peer);
    std::thread::sleep(Duration::from_millis(20));
    for wanted in [WrId(2), WrId(1)] {
        let completed = scene.endpoint.wait(&scene.cq, PATIENCE).unwrap().unwrap();
        assert_eq!((completed.wr_id, completed.status), (wanted, WcStatus::Success));
    }
    let event = scene.connection.next_event(PATIENCE).unwrap();
    assert_eq!(event, Some(ConnectionEvent::PeerClosed));
}

/// The answer to a Read of no bytes may wait for a message of the application, but is also sent
/// without one.
#[test]
fn empty_read_response_needs_no_message_behind_it() {
    for polled in [false, true] {
        let config = EndpointConfig { polled, ..EndpointConfig::default() };
        let mut scene = Scene::of(config, CompletionLevel::Taken);
        scene.peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let waits = (1..=20).map(|msn| {
            let request = read_request(msn, (7, 0), 0, (0, 0));
            scene.peer.write_all(&fpdu(&request, 0, false)).unwrap();
            let began = std::time::Instant::now();
            // Length, header of 14 bytes, CRC.
            scene.peer.read_exact(&mut [0; 20]).unwrap();
            began.elapsed()
        });
        // A busy machine may delay some of them: the fastest one shows the method.
        let waited = waits.min().unwrap();
        assert!(waited < Duration::from_secs(1), "{polled}: {waited:?}");
    }
}
