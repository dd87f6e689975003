//! Random requests and answers, senders that have them, and writers of their FPDUs.

use std::ops::Range;
use std::sync::Arc;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::mem::Access;
use crate::mpa::startup::{Framing, Revision};
use crate::mpa::tx::RunSink;
use crate::stream::tx::kept::Kept;
use crate::stream::tx::message::Source;
use crate::stream::tx::tests::{completed, field};
use crate::stream::tx::{
    Digests, Fragments, FrameBuilder, ResponseKind, Room, Scratch, SendPath, TxState,
};
use crate::types::{Msn, Stag, StreamOffset, TaggedOffset, WrId};
use crate::verbs::{
    Cq, Mr, Pd, Qp, QpConfig, QpState, RemoteBuffer, Rnic, RnicConfig, SendOp, SendWr,
};
use crate::wire::crc32c::Crc32c;
use crate::wire::rdmap::{AtomicResponse, ReadRequest};

/// Bytes of registered memory.
const MEMORY_LEN: usize = 300_000;

/// A request of the application.
#[derive(Clone, Debug)]
struct Request {
    kind: u32,
    /// Gathered memory, or the sink of a Read.
    memory: Vec<Range<usize>>,
    remote: RemoteBuffer,
}

/// An answer to the peer: a Read of a part of the memory, or an Atomic.
#[derive(Clone, Debug)]
enum Answer {
    Read(Range<usize>, RemoteBuffer),
    Atomic(AtomicResponse),
}

/// Parameters of one comparison.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) markers: bool,
    crc: bool,
    revision: Revision,
    pub(super) emss: usize,
    origin: StreamOffset,
    requests: Vec<Request>,
    answers: Vec<Answer>,
}

impl Plan {
    pub(super) fn draw(rng: &mut ChaCha8Rng) -> Self {
        let emss = Self::draw_emss(rng);
        let remote = |rng: &mut ChaCha8Rng| RemoteBuffer {
            stag: Stag(rng.random()),
            to: TaggedOffset(rng.random()),
        };
        let requests = (0..rng.random_range(2..6))
            .map(|_| Request {
                kind: rng.random_range(0..10),
                memory: draw_memory(rng, emss),
                remote: remote(rng),
            })
            .collect();
        let answers = (0..rng.random_range(0..3))
            .map(|_| match rng.random_range(0..4) {
                0 => Answer::Atomic(AtomicResponse {
                    request_id: rng.random(),
                    original: rng.random(),
                }),
                _ => Answer::Read(draw_run(rng, emss), remote(rng)),
            })
            .collect();
        Self {
            markers: rng.random(),
            crc: rng.random_bool(0.7),
            revision: if rng.random_ratio(1, 6) { Revision::Rdmac } else { Revision::Two },
            emss,
            origin: StreamOffset(10_000 + 4 * rng.random_range(0..400)),
            requests,
            answers,
        }
    }

    /// Segment lengths: mostly of Ethernet, some too short for an FPDU, few of super-frames.
    pub(super) fn draw_emss(rng: &mut ChaCha8Rng) -> usize {
        match rng.random_range(0..12) {
            0 if rng.random() => rng.random_range(120..144),
            0 => rng.random_range(60..400),
            1 => rng.random_range(400..3000),
            2 => [8948, 8960][rng.random_range(0..2)],
            3 => rng.random_range(20_000..65_500),
            _ => [1448, 1460, 1428, 1440, 536][rng.random_range(0..5)],
        }
    }

    /// Payload bytes of a message.
    pub(super) fn message_len(&self, source: Source) -> u32 {
        u32::try_from(self.payload(source, 0, u32::MAX).len()).unwrap()
    }

    /// The payload bytes of an FPDU.
    pub(super) fn payload(&self, source: Source, offset: u32, len: u32) -> Vec<u8> {
        let of = |ranges: &[Range<usize>]| -> Vec<u8> {
            let all = ranges.iter().cloned().flatten();
            all.skip(offset as usize).take(len as usize).map(octet).collect()
        };
        let index = |number: u64| usize::try_from(number).unwrap();
        match source {
            Source::Inline => Vec::new(),
            Source::Work(number) => of(&self.requests[index(number)].memory),
            Source::Response(number) => match &self.answers[index(number)] {
                Answer::Read(range, _) => of(std::slice::from_ref(range)),
                Answer::Atomic(_) => Vec::new(),
            },
        }
    }
}

/// The byte of memory at an offset.
fn octet(offset: usize) -> u8 {
    (offset * 7 + (offset >> 8) + (offset >> 13)).to_le_bytes()[0]
}

/// A run of memory: often whole FPDUs, or nearly.
fn draw_run(rng: &mut ChaCha8Rng, emss: usize) -> Range<usize> {
    let full = emss.saturating_sub(20).max(1);
    let len = match rng.random_range(0..8) {
        0 => rng.random_range(0..8),
        1 => rng.random_range(0..2000),
        // The rest of the last segment is too short for the next message.
        2 => (full * rng.random_range(1..6) + 2).saturating_sub(rng.random_range(0..140)),
        3 | 4 => full * rng.random_range(1..25),
        _ => rng.random_range(0..20_000),
    };
    let len = len.min(if emss > 10_000 { 180_000 } else { 24_000 });
    let start = rng.random_range(0..=MEMORY_LEN - len);
    start..start + len
}

/// Memory of a request: none, one run, or several that may be empty.
fn draw_memory(rng: &mut ChaCha8Rng, emss: usize) -> Vec<Range<usize>> {
    match rng.random_range(0..5) {
        0 => (0..rng.random_range(0..=6))
            .map(|_| {
                let len = rng.random_range(0..4) * rng.random_range(0..2000);
                let start = rng.random_range(0..=MEMORY_LEN - len);
                start..start + len
            })
            .collect(),
        _ => vec![draw_run(rng, emss)],
    }
}

/// A sender that has the requests and answers of a plan.
pub(super) struct Sender {
    pub(super) rnic: Rnic,
    pub(super) qp: Qp,
    pub(super) tx: TxState,
    cq: Cq,
    memory: Mr,
    _pd: Pd,
}

/// Description of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described {
    start: StreamOffset,
    pub(super) wire: usize,
    pub(super) source: Source,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) last: bool,
}

impl Sender {
    pub(super) fn new(plan: &Plan) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
        let config = QpConfig { send_depth: 16, recv_depth: 16, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = pd.reg_mr(MEMORY_LEN, access).unwrap();
        memory.copy_in(0, &(0..MEMORY_LEN).map(octet).collect::<Vec<u8>>());
        qp.shared.set_terms(16, true);
        qp.shared.set_state(QpState::Rts);
        let pool = Arc::clone(rnic.shared.blocks());
        let (revision, crc) = (plan.revision, plan.crc);
        let framing =
            Framing { revision, crc, markers_to_peer: plan.markers, markers_to_us: false };
        let mut tx = TxState::new(pool, 16, plan.origin, &framing);
        for (id, request) in (0..).zip(&plan.requests) {
            qp.post_send(wr(WrId(id), request, &memory)).unwrap();
        }
        for (msn, answer) in (1..).zip(&plan.answers) {
            tx.messages.respond(match answer {
                Answer::Read(range, sink) => {
                    let source = memory.remote(range.start as u64);
                    let request = ReadRequest {
                        sink_stag: sink.stag,
                        sink_to: sink.to,
                        size: u32::try_from(range.len()).unwrap(),
                        source_stag: source.stag,
                        source_to: source.to,
                    };
                    ResponseKind::Read { request, msn: Msn(msn) }
                }
                Answer::Atomic(answer) => ResponseKind::Atomic(*answer),
            });
        }
        Self { rnic, qp, tx, cq, memory, _pd: pd }
    }

    pub(super) fn has_work(&self) -> bool {
        self.tx.has_work(&self.qp.shared)
    }

    /// Frames a segment, by the fast path if `tries` and it applies. Returns true if it did.
    pub(super) fn frame(&mut self, room: &mut Room, tries: bool) -> bool {
        let fast = tries && self.tx.frame_like_last(room);
        if !fast {
            self.tx.frame_any(&self.qp.shared, &self.rnic.shared, room).unwrap();
        }
        fast
    }

    /// All FPDUs.
    pub(super) fn described(&self) -> Vec<Described> {
        let of_run = |run: &crate::stream::tx::fpdus::FpduRun| (run.last, run.end());
        let fpdus = self.tx.fpdus.iter().map(|fpdu| {
            let run = self.tx.fpdus.runs_from(fpdu.start()).next().map(of_run);
            Described {
                start: fpdu.start(),
                wire: fpdu.end().index_from(fpdu.start()),
                source: fpdu.source(),
                offset: fpdu.offset(),
                len: fpdu.len(),
                last: run == Some((true, fpdu.end())),
            }
        });
        fpdus.collect()
    }

    /// State besides the FPDUs, in a form that can be compared.
    pub(super) fn summary(&self) -> String {
        let tx = &self.tx;
        let (current, counters) = (&tx.current, tx.counters());
        let current = current.as_ref().map(|message| (message.source, message.framed_len));
        let (framed, count) = (tx.framed_end, tx.fpdus_framed);
        let (unframed, work) = (tx.messages.responses_unframed(), self.has_work());
        let (room, blocks) = (tx.kept.room(), self.rnic.shared.blocks().taken());
        format!("{current:?} {counters:?} {framed} {count} {unframed} {work} {room} {blocks}")
    }

    /// The bytes of all FPDUs, as MPA emits them.
    pub(super) fn expected(&self, plan: &Plan) -> Vec<u8> {
        let mut octets = Vec::new();
        for fpdu in self.tx.fpdus.iter() {
            let payload = plan.payload(fpdu.source(), fpdu.offset(), fpdu.len());
            let front = fpdu.front();
            let crc = plan.crc.then(Crc32c::new);
            fpdu.framed(&front, self.tx.grid).emit(&mut Emitted {
                payload: &payload,
                octets: &mut octets,
                crc,
            });
        }
        assert_eq!(octets.len(), self.tx.framed_end.index_from(plan.origin));
        octets
    }

    /// The memory belongs to the application again.
    pub(super) fn overwrite_memory(&self) {
        self.memory.copy_in(0, &vec![0xEE; MEMORY_LEN]);
        assert!(self.cq.is_empty(), "nothing was acknowledged");
    }
}

fn wr(id: WrId, request: &Request, memory: &Mr) -> SendWr {
    let sges = || request.memory.iter().map(|range| memory.sge(range.clone()));
    let Request { kind, remote, .. } = *request;
    let op = match kind {
        0 | 1 => SendOp::Send { invalidate: None, solicited: kind == 1 },
        2 => SendOp::Send { invalidate: Some(remote.stag), solicited: false },
        3 => SendOp::RdmaWriteImmediate { remote, immediate: 7, solicited: true },
        4 => SendOp::RdmaRead { remote },
        5 => return SendWr::new(id, SendOp::FetchAdd { remote, add: 1, mask: 0 }, []),
        _ => SendOp::RdmaWrite { remote },
    };
    SendWr::new(id, op, sges())
}

/// Collects the bytes that MPA emits.
struct Emitted<'p> {
    payload: &'p [u8],
    octets: &'p mut Vec<u8>,
    crc: Option<Crc32c>,
}

impl RunSink for Emitted<'_> {
    fn inline(&mut self, octets: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(octets);
        }
        self.octets.extend_from_slice(octets);
    }
    fn payload(&mut self, offset: usize, len: usize) {
        let payload = self.payload;
        self.inline(&payload[offset..offset + len]);
    }
    fn crc(&mut self) {
        self.octets.extend_from_slice(&field(self.crc));
    }
}

/// Function that writes FPDUs which are not kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// The one that the sender uses.
    Gather,
    /// FPDU by FPDU, with the payload looked up once.
    Each,
    /// FPDU by FPDU, with the payload looked up run by run.
    Scattered,
}

pub(super) const ALL_WAYS: [Way; 3] = [Way::Gather, Way::Each, Way::Scattered];

/// Frames that follow one send path, to one kind of device.
#[derive(Debug)]
pub(super) struct Writer {
    scratch: Scratch,
}

/// A frame.
pub(super) struct Written {
    pub(super) octets: Vec<u8>,
    pub(super) staged: usize,
    pub(super) fragments: usize,
    pub(super) digests: usize,
}

impl Writer {
    pub(super) fn new(path: SendPath, gather_len_min: usize, leaves_digests: bool) -> Self {
        let mut scratch = Scratch::new(path, gather_len_min);
        scratch.leave_digests(leaves_digests);
        Self { scratch }
    }

    /// A writer for each send path and kind of device. One device gathers runs of at least
    /// `some` bytes.
    pub(super) fn all(some: usize) -> Vec<Self> {
        let paths = [
            (SendPath::Auto, 0),
            (SendPath::Auto, some),
            (SendPath::Gather, 0),
            (SendPath::Stage, 0),
        ];
        let both =
            paths.map(|(path, min)| [false, true].map(|leaves| Self::new(path, min, leaves)));
        both.into_iter().flatten().collect()
    }

    pub(super) fn draw(rng: &mut ChaCha8Rng) -> Self {
        let mut all = Self::all(rng.random_range(1..1600));
        all.swap_remove(rng.random_range(0..all.len()))
    }

    /// Writes `range` into a frame, which must have room for it.
    pub(super) fn write(&mut self, tx: &TxState, range: Range<StreamOffset>, way: Way) -> Written {
        let (mut fragments, mut digests) = (Fragments::new(), Digests::new());
        let mut frame = FrameBuilder::with_digests(&mut self.scratch, &mut fragments, &mut digests);
        match way {
            Way::Gather => tx.gather(range.clone(), &mut frame),
            Way::Each | Way::Scattered => {
                tx.kept.gather(range.clone(), &mut frame, |gap, frame| {
                    for run in tx.fpdus.runs_from(gap.start).take_while(|run| run.start < gap.end) {
                        let numbers = run.numbers_in(&gap);
                        let first = run.offset_of(numbers.start);
                        let len = run.offset_of(numbers.end) - first;
                        let payload = tx.messages.contiguous(run.source, first, len);
                        let payload = payload.filter(|_| matches!(way, Way::Each));
                        tx.gather_each(run, numbers, payload, frame);
                    }
                })
            }
        }
        let finished = frame.finish();
        assert_eq!(finished.len, range.end.index_from(range.start), "{:?}", fragments.len());
        let octets = completed(&fragments, &digests);
        let (fragments, digests) = (fragments.len(), digests.len());
        Written { octets, staged: finished.staged, fragments, digests }
    }

    /// Returns the bytes of a range that is kept whole, and the number of fragments.
    pub(super) fn send_kept(
        &mut self,
        kept: &Kept,
        range: Range<StreamOffset>,
    ) -> (Vec<u8>, usize) {
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(&mut self.scratch, &mut fragments);
        kept.gather(range, &mut frame, |gap, _| panic!("{gap:?} is not kept"));
        frame.finish();
        (octets_of(&fragments), fragments.len())
    }
}

/// The bytes of a frame.
pub(super) fn octets_of(fragments: &Fragments<'_>) -> Vec<u8> {
    let mut octets = Vec::new();
    for fragment in fragments {
        let at = octets.len();
        octets.resize(at + fragment.len(), 0);
        fragment.copy_out(0, &mut octets[at..]);
    }
    octets
}
