//! An initiator repeats an empty Write to a responder that is silent after its Reply, as siw may
//! be.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, Progress, Responder, StartupConfig};
use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::stream::{Fragments, Scratch};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr};

const OFFER: Offer<'static> = Offer { private_data: b"", ird: 1, ord: 1 };
/// MPA length, DDP and RDMAP header, and CRC of a tagged FPDU without payload.
const EMPTY_WRITE_LEN: usize = 2 + 14 + 4;

struct Initiator {
    layered: ByteStream,
    qp: Qp,
    memory: Mr,
    _pd: Pd,
}

impl Initiator {
    fn new(silence_probe: bool) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(8).unwrap());
        let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config).unwrap();
        let memory = pd.reg_mr(16, Access::empty()).unwrap();
        let mut layered = ByteStream::new(&rnic);
        let config = StartupConfig { silence_probe, ..StartupConfig::default() };
        layered.initiate(Instant::ZERO, &qp, &config, &OFFER).unwrap();
        Self { layered, qp, memory, _pd: pd }
    }

    fn octets(&mut self) -> Vec<u8> {
        let (mut scratch, mut fragments) = (Scratch::default(), Fragments::new());
        self.layered.octets_to_send(&mut scratch, 1448, 4096, &mut fragments);
        let mut octets = Vec::new();
        for fragment in &fragments {
            let at = octets.len();
            octets.resize(at + fragment.len(), 0);
            fragment.copy_out(0, &mut octets[at..]);
        }
        drop(fragments);
        self.layered.handle_sent(octets.len());
        octets
    }

    /// Receives the Reply.
    fn establish(&mut self) {
        let request = self.octets();
        let mut responder = Responder::new(&StartupConfig::default()).unwrap();
        assert!(matches!(responder.handle_bytes(&request).unwrap(), Progress::Done { .. }));
        let (reply, _) = responder.accept(&OFFER).unwrap();
        self.layered.handle_bytes(Instant::ZERO, &reply);
    }

    fn send(&mut self) -> usize {
        self.qp.post_send(SendWr::send(WrId(1), [self.memory.sge(0..16)])).unwrap();
        self.octets().len()
    }

    /// Returns the bytes sent until the peer's patience is over, with the time of each.
    fn later(&mut self) -> Vec<(Duration, Vec<u8>)> {
        let mut sent = Vec::new();
        for millis in 1..30_000 {
            let time = Duration::from_millis(millis);
            self.layered.handle_timeout(Instant::ZERO + time);
            let octets = self.octets();
            if !octets.is_empty() {
                sent.push((time, octets));
            }
        }
        sent
    }
}

#[test]
fn a_silent_responder_gets_a_few_empty_writes() {
    let mut initiator = Initiator::new(true);
    initiator.establish();
    assert!(initiator.send() > 0);
    let sent = initiator.later();
    assert_eq!(sent[0].0, Duration::from_millis(50));
    assert!((2..10).contains(&sent.len()), "{sent:?}");
    for (_, octets) in sent {
        // RFC 5040 §4.1: Tagged, Last, DV 1; RDMAP version 1, opcode RDMA Write.
        assert_eq!((octets.len(), &octets[..4]), (EMPTY_WRITE_LEN, &[0, 14, 0xC1, 0x40][..]));
    }
}

#[test]
fn a_slow_reply_takes_nothing_from_the_silence_probes() {
    let mut initiator = Initiator::new(true);
    for millis in 1..500 {
        initiator.layered.handle_timeout(Instant::ZERO + Duration::from_millis(millis));
    }
    initiator.establish();
    assert!(initiator.send() > 0);
    initiator.layered.handle_timeout(Instant::ZERO + Duration::from_millis(550));
    assert_eq!(initiator.octets().len(), EMPTY_WRITE_LEN);
}

#[test]
fn no_peer_is_probed_without_reason() {
    let mut unasked = Initiator::new(false);
    unasked.establish();
    assert!(unasked.send() > 0);
    assert!(unasked.later().is_empty(), "only if told");

    let mut idle = Initiator::new(true);
    idle.establish();
    assert!(idle.later().is_empty(), "nothing was sent");
    assert_eq!(idle.layered.poll_timeout(), None, "an idle connection wakes nobody");

    let mut answered = Initiator::new(true);
    answered.establish();
    assert!(answered.send() > 0);
    // The peer's own empty Write.
    let mut peer = Initiator::new(true);
    peer.establish();
    assert!(peer.send() > 0);
    let write = peer.later().swap_remove(0).1;
    // Its CRC is right at any position; a Write without payload needs no buffer.
    answered.layered.handle_bytes(Instant::ZERO, &write);
    assert!(answered.later().is_empty(), "the peer is awake");
    assert_eq!(answered.layered.poll_timeout(), None, "an idle connection wakes nobody");

    let mut closing = Initiator::new(true);
    closing.establish();
    assert!(closing.send() > 0);
    closing.layered.close(Instant::ZERO);
    assert!(closing.later().is_empty(), "nothing follows the end of the stream");
}
