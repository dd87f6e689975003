//! Two streams with a pipe between them: bytes sent while memory changes, and numbers near their
//! wrap.

mod placed;
mod ready;
mod resent;

use super::carrier::ByteStream;
use super::*;
use crate::limits::{FLUSHED_BYTES_KEPT_MAX, FRAGMENTS_MAX};
use crate::mem::Access;
use crate::mpa::startup::{Offer, StartupConfig};
use crate::types::{Msn, TaggedOffset, WrId};
use crate::verbs::{
    Cq, Mr, Qp, QpConfig, QpState, RecvWr, Rnic, RnicConfig, SendOp, SendWr, WcStatus,
};
use crate::wire::crc32c::Crc32c;
use crate::wire::terminate::TerminateCode;

const LEN: usize = 1 << 20;

struct End {
    layered: ByteStream,
    rnic: Rnic,
    pd: crate::verbs::Pd,
    memory: Mr,
    cq: Cq,
    qp: Qp,
}

impl End {
    fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
        let config = QpConfig { send_depth: 16, recv_depth: 16, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config).unwrap();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let memory = pd.reg_mr(2 * LEN, access).unwrap();
        Self { layered: ByteStream::new(&rnic), rnic, pd, memory, cq, qp }
    }

    /// Takes up to `len_max` of the offered bytes; at least `len_min` are requested.
    fn write(&mut self, len_min: usize, len_max: usize) -> Vec<u8> {
        let mut octets = Vec::new();
        let (mut scratch, mut fragments) = (Scratch::default(), Fragments::new());
        self.layered.octets_to_send(&mut scratch, 1448, len_min, &mut fragments);
        for fragment in &fragments {
            let at = octets.len();
            octets.resize(at + fragment.len(), 0);
            fragment.copy_out(0, &mut octets[at..]);
        }
        drop(fragments);
        octets.truncate(len_max);
        self.layered.handle_sent(octets.len());
        octets
    }

    fn full(&mut self) -> &mut phase::Full {
        self.layered.stream_mut().phase.full_mut().unwrap()
    }

    fn statuses(&self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.cq.poll()).map(|wc| (wc.wr_id.0, wc.status)).collect()
    }
}

fn started() -> [End; 2] {
    started_with(StartupConfig::default())
}

fn started_with(config: StartupConfig) -> [End; 2] {
    let mut ends = [End::new(1), End::new(2)];
    let [a, b] = &mut ends;
    let offer = Offer { private_data: b"", ird: 4, ord: 4 };
    a.layered.initiate(Instant::ZERO, &a.qp, &config, &offer).unwrap();
    b.layered.respond(Instant::ZERO, &config).unwrap();
    pass(a, b);
    b.layered.accept(&b.qp, &offer).unwrap();
    pass(b, a);
    // RFC 5044 §7.1.2 (4): the initiator sends first.
    a.qp.post_send(SendWr::write(WrId(0), b.memory.remote(0), []).unsignaled()).unwrap();
    pass(a, b);
    ends
}

/// Passes everything that `from` has to send to `to`.
fn pass(from: &mut End, to: &mut End) {
    loop {
        let octets = from.write(100_000, usize::MAX);
        if octets.is_empty() {
            return;
        }
        to.layered.handle_bytes(Instant::ZERO, &octets);
    }
}

/// The payloads of FPDUs without markers, after `header_len` bytes. Their CRCs must be right.
fn payloads(mut stream: &[u8], header_len: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let [high, low, ..] = *stream {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let crc_at = (len + 2).next_multiple_of(4);
        let mut crc = Crc32c::new();
        crc.update(&stream[..crc_at]);
        let expected = crate::wire::crc32c::to_wire(crc.finish());
        assert_eq!(stream[crc_at..crc_at + 4], expected, "FPDU {}", found.len());
        found.push(stream[2 + header_len.min(len)..2 + len].to_vec());
        stream = &stream[crc_at + 4..];
    }
    found
}

const TAGGED: usize = 14;
const UNTAGGED: usize = 18;

#[test]
fn a_response_is_written_as_memory_was_when_it_was_framed() {
    for cut in [0, 1, 14, 16, 700, 1447, 1448, 3000] {
        let [mut a, mut b] = started();
        b.memory.copy_in(0, &[7; 3000]);
        let read = SendWr::read(WrId(1), b.memory.remote(0), a.memory.sge(0..3000));
        a.qp.post_send(read).unwrap();
        pass(&mut a, &mut b);
        let mut stream = b.write(1 << 16, cut);
        b.memory.copy_in(0, &[9; 3000]);
        stream.extend(b.write(1 << 16, usize::MAX));
        assert_eq!(payloads(&stream, TAGGED).concat(), [7; 3000], "cut at {cut}");
        let counters = b.layered.rdma_tx_counters();
        assert_eq!((counters.bytes_snapshot, counters.bytes_kept), (3000, 0));
        assert_eq!(b.rnic.shared.blocks().taken(), 0, "all of it was written");
    }
}

#[test]
fn response_reads_memory_when_it_is_framed() {
    let [mut a, mut b] = started();
    b.memory.copy_in(0, &[7; 3000]);
    a.qp.post_send(SendWr::read(WrId(1), b.memory.remote(0), a.memory.sge(0..3000))).unwrap();
    pass(&mut a, &mut b);
    let first = b.write(1, usize::MAX);
    b.memory.copy_in(0, &[9; 3000]);
    let first = payloads(&first, TAGGED).concat();
    assert!(!first.is_empty() && first.iter().all(|octet| *octet == 7));
    let rest = payloads(&b.write(1 << 16, usize::MAX), TAGGED).concat();
    assert_eq!(rest, vec![9; 3000 - first.len()]);
}

/// The Terminate that ends a stream of FPDUs: its bytes after the DDP header.
fn last_terminate(stream: &[u8]) -> Terminate {
    let last = payloads(stream, UNTAGGED).pop().unwrap();
    Terminate::parse(&last).unwrap().0
}

/// RFC 5040 §4.8: the Terminate of a Read that fails after some bytes says where.
#[test]
fn a_response_ends_where_access_is_taken_away() {
    for whole in [false, true] {
        let [mut a, mut b] = started();
        b.memory.copy_in(0, &[7; 10_000]);
        let sink = a.memory.sge(500..8692);
        let (sink_stag, source) = (sink.stag, b.memory.remote(2000));
        a.qp.post_send(SendWr::read(WrId(1), source, sink)).unwrap();
        pass(&mut a, &mut b);
        let first = if whole { b.write(1, usize::MAX) } else { Vec::new() };
        let sent = payloads(&first, TAGGED).concat().len();
        assert_eq!(sent > 0, whole);
        let (stag, posted) = (b.memory.stag(), b.memory.sge(0..10));
        assert!(b.memory.invalidate());
        b.memory.copy_in(0, &[9; 10_000]);
        let rest = b.write(1 << 16, usize::MAX);
        assert_eq!(payloads(&rest, 0).len(), 1, "nothing but the Terminate");
        let terminate = last_terminate(&rest);
        assert_eq!(terminate.code, TerminateCode::RDMAP_INVALID_STAG);
        let request = crate::wire::rdmap::ReadRequest {
            sink_stag,
            sink_to: TaggedOffset(500 + sent as u64),
            size: u32::try_from(8192 - sent).unwrap(),
            source_stag: stag,
            source_to: TaggedOffset(2000 + sent as u64),
        };
        let mut header = [0; UNTAGGED];
        header[..2].copy_from_slice(&[0x41, 0x41]);
        header[9] = 1;
        header[13] = 1;
        let expected = Terminate::about_segment(terminate.code, &header, 46)
            .with_read_request(request.to_bytes());
        assert_eq!(terminate, expected);
        assert_eq!(b.qp.state(), QpState::Error);
        drop(posted);
        a.layered.handle_bytes(Instant::ZERO, &first);
        a.layered.handle_bytes(Instant::ZERO, &rest);
        assert_eq!(a.statuses(), [(1, WcStatus::RemAccessErr)]);
    }
}

#[test]
fn rest_of_a_cut_write_or_send_continues_with_the_same_octets() {
    for operation in ["write", "send"] {
        let [mut a, mut b] = started();
        a.memory.copy_in(0, &[7; 1000]);
        let (wr, header_len) = match operation {
            "write" => {
                (SendWr::write(WrId(1), b.memory.remote(0), [a.memory.sge(0..1000)]), TAGGED)
            }
            _ => (SendWr::send(WrId(1), [a.memory.sge(0..1000)]), UNTAGGED),
        };
        b.qp.post_recv(RecvWr::new(WrId(2), [b.memory.sge(0..1000)])).unwrap();
        a.qp.post_send(wr).unwrap();
        let mut stream = a.write(1, 600);
        a.memory.copy_in(0, &[9; 1000]);
        for _ in 0..3 {
            stream.extend(a.write(1, 100));
        }
        assert!(a.cq.is_empty(), "{operation}: not all was written");
        stream.extend(a.write(1, usize::MAX));
        assert_eq!(payloads(&stream, header_len), [[7; 1000]], "{operation}");
        assert_eq!(a.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(a.layered.rdma_tx_counters().bytes_kept, 1000, "{operation}: copied once");
        assert_eq!(a.rnic.shared.blocks().taken(), 0);
        b.layered.handle_bytes(Instant::ZERO, &stream);
        assert_eq!(b.layered.rdma_counters().bytes_placed, 1000);
    }
}

/// Makes `end` fail because of a message of its peer.
fn offend(end: &mut End) {
    // A Send without a posted buffer.
    let mut ulpdu = vec![0x41, 0x43];
    ulpdu.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let mut fpdu = 18_u16.to_be_bytes().to_vec();
    fpdu.extend(ulpdu);
    let mut crc = Crc32c::new();
    crc.update(&fpdu);
    fpdu.extend(crate::wire::crc32c::to_wire(crc.finish()));
    end.layered.handle_bytes(Instant::ZERO, &fpdu);
    assert_eq!(end.qp.state(), QpState::Error);
}

#[test]
fn flushed_fpdus_keep_their_octets_and_precede_the_terminate() {
    let [mut a, b] = started();
    a.memory.copy_in(0, &[7; 20_000]);
    let write = SendWr::write(WrId(1), b.memory.remote(0), [a.memory.sge(0..20_000)]);
    a.qp.post_send(write).unwrap();
    // All of it is framed, a part of it is written.
    let mut stream = a.write(30_000, 5000);
    offend(&mut a);
    assert_eq!(a.statuses(), [(1, WcStatus::WrFlushErr)]);
    a.memory.copy_in(0, &[9; 20_000]);
    assert!(!a.layered.is_stuck());
    stream.extend(a.write(1 << 16, usize::MAX));
    let terminate = last_terminate(&stream);
    assert_eq!(terminate.code, TerminateCode::DDP_UNTAGGED_NO_BUFFER);
    let all = payloads(&stream, TAGGED);
    let (_, writes) = all.split_last().unwrap();
    assert!(writes.concat() == [7; 20_000]);
    assert_eq!(a.rnic.shared.blocks().taken(), 0);
}

#[test]
fn flushed_octets_beyond_the_limit_are_never_sent() {
    for fits in [true, false] {
        let [mut a, b] = started();
        // With framing, 1448 bytes of stream carry 1428.
        let limit = FLUSHED_BYTES_KEPT_MAX / 1448 * 1428;
        let len = if fits { limit } else { limit + 8 * 1428 };
        let half = len / 2;
        for part in [0..half, half..len] {
            let write = SendWr::write(WrId(1), b.memory.remote(0), [a.memory.sge(part)]);
            a.qp.post_send(write).unwrap();
        }
        // A call frames at most as much as a frame has fragments for.
        for _ in 0..8 {
            assert!(a.write(2 << 20, 0).is_empty());
        }
        offend(&mut a);
        let kept = usize::try_from(a.layered.rdma_tx_counters().bytes_kept).unwrap();
        assert!(kept <= FLUSHED_BYTES_KEPT_MAX + 1428 && kept > FLUSHED_BYTES_KEPT_MAX / 2);
        assert!(a.rnic.shared.blocks().taken() > 0);
        a.memory.copy_in(0, &vec![9; len]);
        let mut stream = Vec::new();
        loop {
            let octets = a.write(1, usize::MAX);
            if octets.is_empty() {
                break;
            }
            stream.extend(octets);
        }
        assert_eq!(a.layered.is_stuck(), !fits, "{kept} of {len}");
        assert!(!stream.windows(100).any(|octets| octets == [9; 100]), "{kept} of {len}");
        if fits {
            assert_eq!(last_terminate(&stream).code, TerminateCode::DDP_UNTAGGED_NO_BUFFER);
        }
    }
}

/// If more bytes are posted than may be kept, those in the middle are given up. The unsent bytes at
/// the end are sent, and the Terminate after them.
#[test]
fn newest_and_oldest_flushed_fpdus_are_kept() {
    let [mut a, b] = started();
    a.qp.post_send(SendWr::write(WrId(1), b.memory.remote(0), [a.memory.sge(0..LEN)])).unwrap();
    a.qp.post_send(SendWr::write(WrId(2), b.memory.remote(0), [a.memory.sge(0..LEN)])).unwrap();
    for _ in 0..16 {
        assert!(a.write(3 << 20, 0).is_empty());
    }
    let full = a.full();
    let (first, end) = (full.tx.framed_end().0 - 2 * LEN as u64, full.tx.framed_end().0);
    full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
    let is_gone = |from: u64, to: u64| full.tx.is_gone(&(StreamOffset(from)..StreamOffset(to)));
    let newest = crate::limits::FRAME_PAYLOAD_MAX as u64 - 1500;
    assert!(!is_gone(end - newest, end) && is_gone(end - newest - 3000, end - newest));
    let oldest = FLUSHED_BYTES_KEPT_MAX as u64 - newest - 3000;
    let start = first - (end - first - 2 * LEN as u64);
    assert!(!is_gone(start, start + oldest - 40_000));
    assert!(is_gone(start + oldest + 40_000, end - newest - 3000));
    let kept = usize::try_from(full.tx.counters().bytes_kept).unwrap();
    assert!((FLUSHED_BYTES_KEPT_MAX * 9 / 10..=FLUSHED_BYTES_KEPT_MAX).contains(&kept), "{kept}");
}

#[test]
fn lost_connection_keeps_no_data() {
    let [mut a, b] = started();
    let write = SendWr::write(WrId(1), b.memory.remote(0), [a.memory.sge(0..5000)]);
    a.qp.post_send(write).unwrap();
    a.write(1 << 16, 0);
    a.layered.handle_loss();
    assert_eq!(a.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(a.rnic.shared.blocks().taken(), 0);
    assert!(a.layered.is_stuck() && a.write(1, usize::MAX).is_empty());
    // A late acknowledgment of a part.
    let stream = a.layered.stream_mut();
    stream.acknowledged(StreamOffset(stream.framed_end().0 - 700));
    assert_eq!(a.rnic.shared.blocks().taken(), 0);
}

/// Equal segments are framed all at once, each with its own bytes, and only while the memory may be
/// read.
#[test]
fn responses_sent_in_runs_match_memory() {
    let [mut a, mut b] = started();
    let octets: Vec<u8> = (0..100_000_u32).map(|i| (i * 7 + (i >> 8)).to_le_bytes()[0]).collect();
    b.memory.copy_in(0, &octets);
    a.qp.post_send(SendWr::read(WrId(1), b.memory.remote(0), a.memory.sge(0..100_000))).unwrap();
    pass(&mut a, &mut b);
    let mut room = Room { segment_len: 1448, fragments: FRAGMENTS_MAX, cut: Cut::Always };
    let stream = b.layered.stream_mut();
    let before = stream.framed_end();
    stream.frame_segment(&mut room);
    stream.frame_alike(1448, 40, &mut room);
    assert_eq!(stream.framed_end().index_from(before), 41 * 1448);
    assert!(b.memory.invalidate());
    b.memory.copy_in(0, &[0; 100_000]);
    let stream = b.layered.stream_mut();
    stream.frame_alike(1448, 10, &mut room);
    assert_eq!(stream.framed_end().index_from(before), 41 * 1448, "the tag is no longer valid");
    let sent = b.write(1, 41 * 1448);
    assert!(payloads(&sent, TAGGED).concat() == octets[..41 * (1448 - 20)]);
    assert_eq!(b.layered.rdma_tx_counters().bytes_snapshot, 41 * 1428);
}

/// With markers, equal segments have payloads of two lengths. A segment whose last four bytes would
/// be a marker ends the run. Each begins at another distance from the markers.
#[test]
fn runs_with_markers_match_memory() {
    const READ_LEN: usize = 300_000;
    const SEGMENT_LEN: usize = 1448;
    let octets: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 + (i >> 8)).to_le_bytes()[0]).collect();
    for is_read in [true, false] {
        for before in (1..600).step_by(44) {
            let config = StartupConfig { markers: true, ..StartupConfig::default() };
            let [mut a, mut b] = started_with(config);
            b.memory.copy_in(0, &octets);
            let write = SendWr::write(WrId(1), a.memory.remote(0), [b.memory.sge(0..before)]);
            b.qp.post_send(write.unsignaled()).unwrap();
            pass(&mut b, &mut a);
            if is_read {
                let (from, to) = (b.memory.remote(0), a.memory.sge(0..READ_LEN));
                a.qp.post_send(SendWr::read(WrId(2), from, to)).unwrap();
            } else {
                let (from, to) = (b.memory.sge(0..READ_LEN), a.memory.remote(0));
                b.qp.post_send(SendWr::write(WrId(2), to, [from])).unwrap();
            }
            pass(&mut a, &mut b);
            let stream = b.layered.stream_mut();
            let start = stream.framed_end();
            let mut runs = 0;
            loop {
                let first = stream.framed_end();
                let (segment_len, cut) = (SEGMENT_LEN, Cut::Always);
                let mut room = Room { segment_len, fragments: FRAGMENTS_MAX, cut };
                stream.frame_segment(&mut room);
                stream.frame_alike(SEGMENT_LEN, 16, &mut room);
                let len = stream.framed_end().index_from(first);
                runs += usize::from(len == 17 * SEGMENT_LEN);
                if len == 0 || stream.framed_end().index_from(start) > READ_LEN {
                    break;
                }
            }
            assert!(runs >= 9, "{runs} of 12 runs");
            pass(&mut b, &mut a);
            let mut arrived = vec![0; READ_LEN];
            a.memory.copy_out(0, &mut arrived);
            assert!(arrived == octets, "{before} octets before");
            let end = if is_read { &mut a } else { &mut b };
            assert_eq!(end.statuses(), [(2, WcStatus::Success)]);
        }
    }
}

/// RFC 5044 §3: a ULPDU has at most 64768 bytes. Of two FPDUs with equal lengths on the stream, the
/// one with one marker less has four more bytes of payload.
#[test]
fn the_longest_fpdus_with_markers_are_not_longer_in_a_run() {
    const LEN: usize = 600_000;
    let octets: Vec<u8> = (0..600_000_u32).map(|i| (i * 7 + (i >> 8)).to_le_bytes()[0]).collect();
    for segment_len in (65_268..65_300).step_by(2) {
        for before in (4..512).step_by(100) {
            let config = StartupConfig { markers: true, ..StartupConfig::default() };
            let [mut a, mut b] = started_with(config);
            b.memory.copy_in(0, &octets);
            for (id, len) in [(1, before), (2, LEN)] {
                let memory = [b.memory.sge(0..len)];
                b.qp.post_send(SendWr::write(WrId(id), a.memory.remote(0), memory)).unwrap();
            }
            for segments in [0, 0, 1, 5, 0] {
                let stream = b.layered.stream_mut();
                let mut room = Room { segment_len, fragments: FRAGMENTS_MAX, cut: Cut::Always };
                stream.frame_segment(&mut room);
                stream.frame_alike(segment_len, segments, &mut room);
            }
            pass(&mut b, &mut a);
            pass(&mut a, &mut b);
            let mut arrived = vec![0; LEN];
            a.memory.copy_out(0, &mut arrived);
            assert!(arrived == octets, "{segment_len} {before}");
        }
    }
}

/// RFC 5041 §4.3: message number 0 follows 0xFFFFFFFF, on each queue.
// spec: DDP-4.3-2
#[test]
fn message_numbers_wrap_on_every_queue() {
    let [mut a, mut b] = started();
    let near = Msn(u32::MAX - 1);
    for end in [&mut a, &mut b] {
        let full = end.full();
        full.tx.messages.start_at(near);
        full.rx.start_at(near);
    }
    for round in 0..4_u8 {
        let octets = [round + 1; 100];
        for [from, to] in [[&mut a, &mut b]] {
            from.memory.copy_in(0, &octets);
            to.memory.copy_in(1000, &[0; 8]);
            to.qp.post_recv(RecvWr::new(WrId(9), [to.memory.sge(2000..2100)])).unwrap();
            let remote = to.memory.remote(1000);
            for wr in [
                SendWr::send(WrId(1), [from.memory.sge(0..100)]),
                SendWr::read(WrId(2), to.memory.remote(2000), from.memory.sge(3000..3100)),
                SendWr::new(WrId(3), SendOp::FetchAdd { remote, add: 1, mask: 0 }, []),
            ] {
                from.qp.post_send(wr).unwrap();
            }
            pass(from, to);
            pass(to, from);
            let ok = WcStatus::Success;
            assert_eq!(from.statuses(), [(1, ok), (2, ok), (3, ok)], "round {round}");
            assert_eq!(to.statuses(), [(9, ok)], "round {round}");
            let mut read = [0; 100];
            from.memory.copy_out(3000, &mut read);
            assert_eq!(read, octets, "round {round}");
        }
    }
}

#[test]
fn responses_wait_for_their_share_of_memory_and_then_go_on() {
    let [mut a, mut b] = started();
    let pool = Arc::clone(b.rnic.shared.blocks());
    b.memory.copy_in(0, &[7; LEN / 4]);
    a.qp.post_send(SendWr::read(WrId(1), b.memory.remote(0), a.memory.sge(0..LEN / 4))).unwrap();
    pass(&mut a, &mut b);
    let others: Vec<_> = (0..crate::limits::KEPT_BLOCKS_MAX).map(|_| pool.take()).collect();
    let mut room = Room { segment_len: 1448, fragments: FRAGMENTS_MAX, cut: Cut::Always };
    let framed = |b: &mut End| b.layered.stream_mut().framed_end();
    let before = framed(&mut b);
    for round in 0..200 {
        b.layered.stream_mut().frame_segment(&mut room);
        if round > 0 {
            b.layered.stream_mut().frame_alike(1448, 1000, &mut room);
        }
        room.fragments = FRAGMENTS_MAX;
    }
    let len = framed(&mut b).index_from(before);
    // One FPDU takes a block, and no other block may be taken.
    assert_eq!(pool.taken(), others.len() + 1);
    assert_eq!(len, crate::limits::KEPT_BLOCK_LEN / 1448 * 1448);
    for block in others {
        pool.give_back(block);
    }
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pool.taken(), 0);
}
