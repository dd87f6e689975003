//! One end of a run: its memory, its queues, and the requests of a plan.

use std::collections::VecDeque;

use urnic_engine::mem::Access;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{
    CompletionLevel, Cq, Mr, Pd, Qp, QpConfig, QpRules, RecvWr, RemoteBuffer, Rnic, RnicConfig,
    SendOp, SendWr, Sge, Wc,
};

use crate::property::plan::{Kind, Op, Plan};

/// Bytes of the regions that hold sources of data.
pub(crate) const SOURCE_LEN: usize = 256 << 10;
/// Number of 64-bit numbers that Atomics work on.
pub(crate) const NUMBERS: usize = 4;

/// A region of an end, in the order in which outcomes list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Source of data; never written.
    Source,
    /// Destination of the peer's Writes.
    Sink,
    /// Destination of this end's Reads.
    Landing,
    /// Destination of the peer's Sends.
    Inbox,
    /// Numbers that the peer's Atomics change.
    Numbers,
}

pub(crate) const PLACES: [Place; 5] =
    [Place::Source, Place::Sink, Place::Landing, Place::Inbox, Place::Numbers];

/// Returns the bytes of the patterned source.
pub(crate) fn source_octets(end: usize) -> Vec<u8> {
    (0..SOURCE_LEN).map(|i| (i * 31 + (i >> 8) * 7 + end * 101) as u8 | 1).collect()
}

/// Offsets of a request's data, which both the run and the model use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spot {
    /// In the source, of the end that sends (or of the peer, for a Read).
    pub(crate) from: usize,
    /// In the sink, landing or inbox.
    pub(crate) to: usize,
}

/// Assigns every request of one end its bytes; destinations never overlap.
pub(crate) fn spots(work: &[Op]) -> Vec<Spot> {
    let (mut written, mut read, mut sent) = (0, 0, 0);
    work.iter()
        .enumerate()
        .map(|(index, op)| {
            let from = (index * 12_345) % (SOURCE_LEN - op.len + 1);
            let next = match op.kind {
                Kind::Write => &mut written,
                Kind::Read | Kind::ReadBack => &mut read,
                _ => &mut sent,
            };
            let to = *next;
            // A few unused bytes in between, so that an overrun shows.
            *next += op.len + 5;
            Spot { from, to }
        })
        .collect()
}

/// Returns the bytes that a region needs for the work of one end.
pub(crate) fn room(work: &[Op]) -> usize {
    work.iter().map(|op| op.len + 5).sum::<usize>() + 8
}

pub(crate) struct End {
    pub(crate) rnic: Rnic,
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    regions: Vec<Mr>,
    /// Regions that the peer invalidates, one per message that does.
    disposable: Vec<Mr>,
    /// Regions that this end invalidates.
    own_disposable: Vec<Mr>,
    /// Receives that are not posted yet.
    receives: VecDeque<RecvWr>,
    _pd: Pd,
}

impl End {
    /// Makes end number `index`, with room for the work of both ends.
    pub(crate) fn new(plan: &Plan, index: usize) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: plan.seed.wrapping_add(index as u64).into() });
        let pd = rnic.alloc_pd();
        let (send_cq, recv_cq) = (rnic.create_cq(64).unwrap(), rnic.create_cq(64).unwrap());
        let config = QpConfig {
            send_depth: 32,
            recv_depth: 32,
            rules: match plan.late_receives {
                Some(_) => QpRules::IwarpWait,
                None => QpRules::Iwarp,
            },
            completion: match plan.placed {
                true => CompletionLevel::Placed,
                false => CompletionLevel::Taken,
            },
            ..QpConfig::with_cqs(send_cq.clone(), recv_cq.clone())
        };
        let qp = pd.create_qp(config).unwrap();
        let (own, peer) = (&plan.work[index], &plan.work[1 - index]);
        let rw = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let regions = vec![
            pd.reg_mr(SOURCE_LEN, Access::REMOTE_READ | Access::LOCAL_WRITE).unwrap(),
            pd.reg_mr(room(peer), rw).unwrap(),
            pd.reg_mr(room(own), Access::LOCAL_WRITE).unwrap(),
            pd.reg_mr(room(peer), Access::LOCAL_WRITE).unwrap(),
            pd.reg_mr(8 * NUMBERS, rw | Access::REMOTE_ATOMIC).unwrap(),
        ];
        regions[0].copy_in(0, &source_octets(index));
        let disposable = |kind, work: &[Op]| -> Vec<Mr> {
            let count = work.iter().filter(|op| op.kind == kind).count();
            let access = Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
            (0..count).map(|_| pd.reg_mr(16, access).unwrap()).collect()
        };
        Self {
            qp,
            send_cq,
            recv_cq,
            regions,
            disposable: disposable(Kind::SendInvalidate, peer),
            own_disposable: disposable(Kind::LocalInvalidate, own),
            receives: VecDeque::new(),
            _pd: pd,
            rnic,
        }
    }

    fn region(&self, place: Place) -> &Mr {
        &self.regions[place as usize]
    }

    pub(crate) fn memory(&self) -> Vec<Vec<u8>> {
        let read = |mr: &Mr| {
            let mut octets = vec![0; mr.len()];
            mr.copy_out(0, &mut octets);
            octets
        };
        PLACES.iter().map(|place| read(self.region(*place))).collect()
    }

    /// Returns true if the bytes of a peer's request are at their destination.
    pub(crate) fn has(&self, plan: &Plan, op: &Op, spot: Spot, expected: &[Vec<u8>]) -> bool {
        let place = match op.kind {
            Kind::Write => Place::Sink,
            // A Read overtakes messages that wait for receives.
            Kind::Send | Kind::SendInvalidate if plan.late_receives.is_none() => Place::Inbox,
            _ => return true,
        };
        let mut octets = vec![0; op.len];
        self.region(place).copy_out(spot.to, &mut octets);
        octets == expected[place as usize][spot.to..spot.to + op.len]
    }

    /// Prepares a buffer for every message of the peer.
    pub(crate) fn make_receives(&mut self, peer_work: &[Op]) {
        for (index, (op, spot)) in peer_work.iter().zip(spots(peer_work)).enumerate() {
            let len = match op.kind {
                Kind::Send | Kind::SendInvalidate => op.len,
                Kind::Immediate => 0,
                _ => continue,
            };
            // Sometimes with room to spare.
            let spare = if index % 3 == 0 { 5 } else { 0 };
            let sges = cut(self.region(Place::Inbox), spot.to, len + spare, op.pieces);
            self.receives.push_back(RecvWr::new(WrId(index as u64), sges));
        }
    }

    /// Posts the next buffer. Returns true if there was one.
    pub(crate) fn post_receive(&mut self) -> bool {
        let next = self.receives.pop_front();
        let is_there = next.is_some();
        next.into_iter().for_each(|wr| self.qp.post_recv(wr).unwrap());
        is_there
    }

    /// Posts all requests of this end.
    pub(crate) fn post_sends(&self, work: &[Op], peer: &Self) {
        let (mut disposed, mut own_disposed) = (0, 0);
        let mut written = None;
        for (index, (op, spot)) in work.iter().zip(spots(work)).enumerate() {
            let id = WrId(1000 + index as u64);
            let source = || cut(self.region(Place::Source), spot.from, op.len, op.pieces);
            let landing = |len| [self.region(Place::Landing).sge(spot.to..spot.to + len)];
            let number = peer.region(Place::Numbers).remote(8 * (index % NUMBERS) as u64);
            let wr = match op.kind {
                Kind::Send => {
                    let op = SendOp::Send { invalidate: None, solicited: op.solicited };
                    SendWr::new(id, op, source())
                }
                Kind::SendInvalidate => {
                    let invalidate = Some(peer.disposable[disposed].stag());
                    disposed += 1;
                    let op = SendOp::Send { invalidate, solicited: op.solicited };
                    SendWr::new(id, op, source())
                }
                Kind::Write => {
                    written = Some((spot.to, op.len));
                    let remote = peer.region(Place::Sink).remote(spot.to as u64);
                    SendWr::write(id, remote, source())
                }
                Kind::Read | Kind::ReadBack => {
                    let (remote, len) = read_source(op, spot, written, peer);
                    SendWr::new(id, SendOp::RdmaRead { remote }, landing(len))
                }
                Kind::Immediate => {
                    let (value, solicited) = (op.len as u64 * 0x0101_0101, op.solicited);
                    SendWr::new(id, SendOp::Immediate { value, solicited }, [])
                }
                Kind::FetchAdd => {
                    let op = SendOp::FetchAdd { remote: number, add: op.len as u64, mask: 0 };
                    SendWr::new(id, op, [])
                }
                Kind::CmpSwap => SendWr::new(id, cmp_swap(number, op.len), []),
                Kind::LocalInvalidate => {
                    let stag = self.own_disposable[own_disposed].stag();
                    own_disposed += 1;
                    SendWr::new(id, SendOp::LocalInvalidate { stag }, [])
                }
            };
            let wr = SendWr { fence: op.fence, signaled: op.signaled, ..wr };
            self.qp.post_send(wr).unwrap();
        }
    }

    /// Appends the completions since the last call, by queue.
    pub(crate) fn drain(&self, into: &mut [Vec<Wc>; 2]) {
        for (cq, list) in [&self.send_cq, &self.recv_cq].into_iter().zip(into) {
            list.extend(std::iter::from_fn(|| cq.poll()));
        }
    }
}

/// Returns the range that a Read reads: the peer's source, or the data written last.
pub(crate) fn read_extent(
    op: &Op,
    spot: Spot,
    written: Option<(usize, usize)>,
) -> (bool, Spot, usize) {
    match written {
        Some((at, len)) if op.kind == Kind::ReadBack => {
            (true, Spot { from: at, ..spot }, len.min(op.len))
        }
        _ => (false, spot, op.len),
    }
}

fn read_source(
    op: &Op,
    spot: Spot,
    written: Option<(usize, usize)>,
    peer: &End,
) -> (RemoteBuffer, usize) {
    let (from_sink, Spot { from, .. }, len) = read_extent(op, spot, written);
    let place = if from_sink { Place::Sink } else { Place::Source };
    (peer.region(place).remote(from as u64), len)
}

/// Compares the low byte with 0: sometimes they are equal.
fn cmp_swap(remote: RemoteBuffer, len: usize) -> SendOp {
    SendOp::CmpSwap {
        remote,
        compare: 0,
        compare_mask: 0xFF,
        swap: len as u64,
        swap_mask: u64::MAX >> (len % 60),
    }
}

/// Cuts a range of a region into `pieces` elements, some of them empty.
fn cut(mr: &Mr, at: usize, len: usize, pieces: usize) -> Vec<Sge> {
    let mut bounds: Vec<usize> = (0..pieces).map(|i| len * i * i / (pieces * pieces)).collect();
    bounds.push(len);
    bounds.windows(2).map(|pair| mr.sge(at + pair[0]..at + pair[1])).collect()
}
