//! The memory of one end of a connection, and its expected contents: one region of guards that
//! nothing may write, and registered parts between them. Except in `Numbers` and `Live`, every byte
//! is written at most once, so it has either its initial or its final value.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use urnic_engine::mem::{Access, Region};
use urnic_engine::types::TaggedOffset;
use urnic_engine::verbs::{Mr, MrPart, Pd};

use crate::plan::{Ending, FlowPlan, Kind, Mishap, Op};

const GUARD_LEN: usize = 64;
/// Guard between the destinations of two requests.
const GAP_LEN: usize = 5;
/// 64-bit numbers that atomics work on.
pub(crate) const NUMBERS: usize = 4;
const DISPOSABLE_LEN: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Source of data; never written.
    Source,
    /// Destination of the peer's Writes.
    Sink,
    /// Destination of this end's Reads.
    Landing,
    /// Destination of the peer's messages.
    Inbox,
    /// Numbers that the peer's Atomics change.
    Numbers,
    /// Regions that exist to be invalidated.
    Disposable,
    /// Memory that this end keeps writing while the peer reads it.
    Live,
}

const PARTS: [Part; 7] = [
    Part::Source,
    Part::Sink,
    Part::Landing,
    Part::Inbox,
    Part::Numbers,
    Part::Disposable,
    Part::Live,
];

/// Offsets of a request's data: in the source, and in the receiver's sink, landing or inbox.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spot {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Destinations never overlap.
pub(crate) fn spots(work: &[Op]) -> Vec<Spot> {
    let source_len = source_len(work);
    let (mut written, mut read, mut sent) = (0, 0, 0);
    let assign = |(index, op): (usize, &Op)| {
        let next = match op.kind {
            Kind::Write | Kind::WriteImmediate => &mut written,
            Kind::Read | Kind::ReadBack | Kind::ReadLive => &mut read,
            _ if op.kind.is_message() => &mut sent,
            _ => return Spot::default(),
        };
        let to = *next;
        *next += op.len + GAP_LEN;
        Spot { from: (index * 1237) % (source_len - op.len + 1), to }
    };
    work.iter().enumerate().map(assign).collect()
}

fn source_len(work: &[Op]) -> usize {
    work.iter().map(|op| op.len).max().unwrap_or(0) + 512
}

fn room(work: &[Op], wanted: impl Fn(Kind) -> bool) -> usize {
    let lens = work.iter().filter(|op| wanted(op.kind)).map(|op| op.len + GAP_LEN);
    lens.sum::<usize>() + GAP_LEN
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    parts: [Range<usize>; PARTS.len()],
    len: usize,
}

impl Layout {
    pub(crate) fn of(flow: &FlowPlan, side: usize) -> Self {
        let (own, peer) = (&flow.sides[side].work, &flow.sides[1 - side].work);
        let disposables = disposables(flow, side);
        let mut at = 0;
        let parts = PARTS.map(|part| {
            let len = match part {
                // Both ends read from here.
                Part::Source => source_len(own).max(source_len(peer)),
                Part::Sink => room(peer, Kind::is_write),
                Part::Landing => {
                    room(own, |kind| matches!(kind, Kind::Read | Kind::ReadBack | Kind::ReadLive))
                }
                Part::Inbox => room(peer, Kind::is_message) + GAP_LEN,
                Part::Numbers => 8 * NUMBERS,
                Part::Disposable => DISPOSABLE_LEN * disposables,
                Part::Live => live_len(peer),
            };
            let start = (at + GUARD_LEN).next_multiple_of(8);
            at = start + len;
            start..at
        });
        Self { parts, len: at + GUARD_LEN }
    }

    pub(crate) fn part(&self, part: Part) -> Range<usize> {
        self.parts[part as usize].clone()
    }

    pub(crate) fn describe(&self, at: usize) -> String {
        let found = PARTS.iter().zip(&self.parts).find(|(_, range)| range.contains(&at));
        match found {
            Some((part, range)) => format!("{part:?} + {}", at - range.start),
            None => "a guard".to_owned(),
        }
    }

    pub(crate) fn initial(&self, side: usize) -> Vec<u8> {
        let mut octets = vec![0; self.len];
        let mut word = 0x9e37_79b9_7f4a_7c15_u64 ^ (side as u64) << 17;
        for octets in octets.chunks_mut(8) {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let fresh = (word ^ (word >> 29)).to_le_bytes();
            octets.copy_from_slice(&fresh[..octets.len()]);
        }
        octets
    }
}

/// The peer's work reads these bytes while they are written.
pub(crate) fn live_len(peer: &[Op]) -> usize {
    let reads = peer.iter().filter(|op| op.kind == Kind::ReadLive);
    reads.map(|op| op.len).max().unwrap_or(0)
}

/// Counts regions that the peer's messages invalidate, then those of the end itself.
fn disposables(flow: &FlowPlan, side: usize) -> usize {
    let count =
        |side: usize, kind| flow.sides[side].work.iter().filter(|op: &&Op| op.kind == kind).count();
    count(1 - side, Kind::SendInvalidate) + count(side, Kind::LocalInvalidate)
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) layout: Layout,
    parts: Vec<Mr>,
    /// Regions for the peer's messages to invalidate, in order, then for this end itself.
    pub(crate) disposable: Vec<Mr>,
}

impl Memory {
    pub(crate) fn new(pd: &Pd, flow: &FlowPlan, side: usize) -> io::Result<Self> {
        let layout = Layout::of(flow, side);
        let region = Region::anonymous(layout.len)?;
        region.write(0, &layout.initial(side)).map_err(io::Error::other)?;
        let register = |range: Range<usize>, access| {
            let part = MrPart { range, base: TaggedOffset(0), access, only: None };
            pd.reg_part(Arc::clone(&region), part)
        };
        let parts = PARTS.map(|part| {
            let access = match part {
                Part::Source => Access::REMOTE_READ,
                Part::Sink => Access::REMOTE_READ | Access::REMOTE_WRITE,
                Part::Landing | Part::Inbox => Access::LOCAL_WRITE,
                Part::Numbers => Access::FOR_ATOMIC,
                Part::Disposable | Part::Live => Access::REMOTE_READ,
            };
            register(layout.part(part), access)
        });
        let parts = parts.into_iter().collect::<io::Result<Vec<_>>>()?;
        let first = layout.part(Part::Disposable).start;
        let disposable = (0..disposables(flow, side)).map(|index| {
            let start = first + index * DISPOSABLE_LEN;
            let access = Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
            register(start..start + DISPOSABLE_LEN, access)
        });
        let disposable = disposable.collect::<io::Result<Vec<_>>>()?;
        Ok(Self { region, layout, parts, disposable })
    }

    pub(crate) fn part(&self, part: Part) -> &Mr {
        &self.parts[part as usize]
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        let mut octets = vec![0; self.layout.len];
        self.region.read(0, &mut octets).expect("the whole region");
        octets
    }

    pub(crate) fn holds(&self, expected: &[u8], part: Part, range: Range<usize>) -> bool {
        let start = self.layout.part(part).start;
        let range = start + range.start..start + range.end;
        let mut octets = vec![0; range.len()];
        self.region.read(range.start, &mut octets).expect("a range of a part");
        octets == expected[range]
    }
}

/// Range in the sink, where data was written last, or in the source.
pub(crate) fn read_extent(
    op: &Op,
    spot: Spot,
    written: Option<(usize, usize)>,
) -> (Part, usize, usize) {
    match written {
        Some((at, len)) if op.kind == Kind::ReadBack => (Part::Sink, at, len.min(op.len)),
        _ => (Part::Source, spot.from, op.len),
    }
}

/// Shorter than the message if the plan has that mishap.
pub(crate) fn receive_len(flow: &FlowPlan, sender: usize, index: usize) -> usize {
    let op = &flow.sides[sender].work[index];
    let too_long = Ending::Mishap { side: sender, at: index, what: Mishap::TooLong };
    match op.kind {
        Kind::Immediate | Kind::WriteImmediate => 0,
        _ if flow.ending == too_long => op.len / 2,
        // Some buffers are longer than their messages.
        _ if index.is_multiple_of(3) => op.len + GAP_LEN,
        _ => op.len,
    }
}

/// Expected memory, and expected values of Atomics by request.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) memory: [Vec<u8>; 2],
    pub(crate) values: [Vec<u64>; 2],
}

impl Model {
    /// Computes the result without any protocol.
    pub(crate) fn of(flow: &FlowPlan) -> Self {
        let layouts = [0, 1].map(|side| Layout::of(flow, side));
        let initial = [0, 1].map(|side| layouts[side].initial(side));
        let mut model = Self { memory: initial.clone(), values: [Vec::new(), Vec::new()] };
        for side in [0, 1] {
            let work = &flow.sides[side].work;
            let mut written = None;
            for (index, (op, spot)) in work.iter().zip(spots(work)).enumerate() {
                model.values[side].push(0);
                if let Ending::Mishap { side: bad, at, what } = flow.ending
                    && (bad, at) == (side, index)
                    && !matches!(what, Mishap::TooLong | Mishap::Invalidate)
                {
                    continue;
                }
                let payload = layouts[side].part(Part::Source).start + spot.from;
                let mut put = |end: usize, part, octets: &[u8]| {
                    let at = layouts[end].part(part).start + spot.to;
                    model.memory[end][at..at + octets.len()].copy_from_slice(octets);
                };
                match op.kind {
                    Kind::Send | Kind::SendInvalidate => {
                        let len = op.len.min(receive_len(flow, side, index));
                        put(1 - side, Part::Inbox, &initial[side][payload..payload + len]);
                    }
                    Kind::Write | Kind::WriteImmediate => {
                        put(1 - side, Part::Sink, &initial[side][payload..payload + op.len]);
                        written = Some((spot.to, op.len));
                    }
                    Kind::Read | Kind::ReadBack => {
                        let (part, from, len) = read_extent(op, spot, written);
                        let from = layouts[1 - side].part(part).start + from;
                        let octets = model.memory[1 - side][from..from + len].to_vec();
                        let at = layouts[side].part(Part::Landing).start + spot.to;
                        model.memory[side][at..at + len].copy_from_slice(&octets);
                    }
                    Kind::FetchAdd | Kind::CmpSwap => {
                        let at = layouts[1 - side].part(Part::Numbers).start + number_at(index);
                        let number = &mut model.memory[1 - side][at..at + 8];
                        let before = u64::from_ne_bytes(number.try_into().expect("eight bytes"));
                        number.copy_from_slice(&apply(op, before).to_ne_bytes());
                        model.values[side][index] = before;
                    }
                    // The reader of this memory checks it.
                    Kind::ReadLive | Kind::Immediate | Kind::LocalInvalidate => {}
                }
            }
        }
        model
    }
}

/// Offset in the part.
pub(crate) const fn number_at(index: usize) -> usize {
    8 * (index % NUMBERS)
}

/// RFC 7306 §5.1.
fn apply(op: &Op, before: u64) -> u64 {
    let operand = op.len as u64;
    if op.kind == Kind::FetchAdd {
        return before.wrapping_add(operand);
    }
    let mask = swap_mask(op);
    if before & 0x3 == 0 { before & !mask | operand & mask } else { before }
}

pub(crate) const fn swap_mask(op: &Op) -> u64 {
    u64::MAX >> (op.len % 60)
}
