//! Messages that wait on a byte stream, which is not read while too many wait.

use urnic_engine::limits::HELD_BYTES_MAX;
use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::stream::{Fragments, Scratch};
use urnic_engine::time::Instant;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Pd, Qp, QpConfig, QpRules, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_testkit::pair::{all_access, content, fill};

use super::{drain, post, send};

const LEN: usize = 100_000;
/// Bytes that the other end reads at once.
const READ_LEN: usize = 30_000;

struct End {
    stream: ByteStream,
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

impl End {
    fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(1024).unwrap());
        let rules = QpRules::IwarpWait;
        let depths = QpConfig { send_depth: 512, recv_depth: 512, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(QpConfig { rules, ..depths }).unwrap();
        Self { stream: ByteStream::new(&rnic), pd, cq, qp }
    }

    fn write(&mut self) -> Vec<u8> {
        let mut octets = Vec::new();
        let (mut scratch, mut fragments) = (Scratch::default(), Fragments::new());
        self.stream.octets_to_send(&mut scratch, 1448, READ_LEN, &mut fragments);
        for fragment in &fragments {
            let at = octets.len();
            octets.resize(at + fragment.len(), 0);
            fragment.copy_out(0, &mut octets[at..]);
        }
        drop(fragments);
        octets.truncate(READ_LEN);
        self.stream.handle_sent(octets.len());
        octets
    }
}

/// Moves bytes until there are none, or the other end wants none. Returns their number.
fn pass(from: &mut End, to: &mut End) -> usize {
    let mut moved = 0;
    while to.stream.wants_octets() {
        let octets = from.write();
        if octets.is_empty() {
            break;
        }
        moved += octets.len();
        to.stream.handle_bytes(Instant::ZERO, &octets);
    }
    moved
}

fn started() -> [End; 2] {
    let [mut a, mut b] = [End::new(1), End::new(2)];
    let offer = Offer { private_data: b"", ird: 4, ord: 4 };
    let config = StartupConfig::default();
    a.stream.initiate(Instant::ZERO, &a.qp, &config, &offer).unwrap();
    b.stream.respond(Instant::ZERO, &config).unwrap();
    pass(&mut a, &mut b);
    b.stream.accept(&b.qp, &offer).unwrap();
    pass(&mut b, &mut a);
    [a, b]
}

#[test]
fn a_byte_stream_is_not_read_while_too_much_waits() {
    let [mut a, mut b] = started();
    let source = a.pd.reg_mr(LEN, all_access()).unwrap();
    let expected = fill(&source, 4);
    let inbox = b.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let count = 3 * HELD_BYTES_MAX / LEN;
    for id in 0..count {
        send(&a.qp, id as u64, &source, LEN);
    }
    let first = pass(&mut a, &mut b);
    assert!(first < HELD_BYTES_MAX + HELD_BYTES_MAX / 10, "{first}");
    assert!(!b.stream.wants_octets());
    for id in 0..count {
        post(&b.qp, id as u64, &inbox, 0, LEN);
        b.stream.deliver_held();
        while b.cq.is_empty() {
            assert!(pass(&mut a, &mut b) > 0, "message {id}");
        }
        assert_eq!(drain(&b.cq), [(id as u64, WcStatus::Success, LEN)]);
        assert!(content(&inbox) == expected);
        assert!(b.stream.rdma_counters().bytes_without_receive <= (count * LEN) as u64);
    }
    assert!(b.stream.wants_octets() && pass(&mut a, &mut b) == 0);
    drop(drain(&a.cq));
}

/// The byte stream has ended: earlier messages keep waiting, and none follows.
#[test]
fn messages_wait_beyond_the_end_of_the_byte_stream() {
    let [mut a, mut b] = started();
    let source = a.pd.reg_mr(LEN, all_access()).unwrap();
    let expected = fill(&source, 4);
    let inbox = b.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    send(&a.qp, 0, &source, LEN);
    a.qp.post_send(SendWr::send(WrId(1), [])).unwrap();
    pass(&mut a, &mut b);
    b.stream.handle_end();
    for id in 0..4 {
        post(&b.qp, id, &inbox, 0, LEN);
    }
    b.stream.deliver_held();
    let (ok, flushed) = (WcStatus::Success, WcStatus::WrFlushErr);
    assert_eq!(drain(&b.cq), [(0, ok, LEN), (1, ok, 0), (2, flushed, 0), (3, flushed, 0)]);
    assert!(content(&inbox) == expected);
    drop(drain(&a.cq));
}
