//! The first pass over a capture: what has to be known before its frames can be replayed.
//!
//! That is where the streams of each connection begin, for captures that lack a SYN or have it late,
//! and which frames were damaged on their way, so that their receiver dropped them too.

use std::collections::HashMap;
use std::net::SocketAddr;

use urnic::tcp::{Flags, SeqNum};

use super::frames::Frames;
use super::packet::{Checksum, Segment};
use super::ranges::RangeSet;

/// What the first pass found out.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In the order of their first frames.
    pub(super) connections: Vec<ConnectionPlan>,
    /// Numbers of the frames to leave out, ascending.
    pub(super) left_out: Vec<u64>,
    /// Frames with a wrong checksum that are used, because nothing else brings their octets.
    pub(super) used_although_wrong: u64,
    /// Checksums mean nothing in this capture: most are wrong.
    pub(super) checksums_ignored: bool,
}

/// Where the two streams of a connection begin, by side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionPlan {
    pub(super) sides: [SidePlan; 2],
}

/// Where the stream that one side sends begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SidePlan {
    /// Number of the SYN.
    pub(super) isn: SeqNum,
    /// Whether the handshake is in the capture; otherwise `isn` is before the first octet that is.
    pub(super) handshake_seen: bool,
}

impl Plan {
    /// Reads all frames.
    pub(super) fn of(frames: &mut dyn Frames) -> Self {
        let mut scan = Scan::default();
        frames.for_each(&mut |number, segment| {
            if let Some(segment) = segment {
                scan.handle(number, &segment);
            }
        });
        if scan.wrong.saturating_mul(2) > scan.segments {
            // Addresses were rewritten, or the capturing device did something unheard of.
            scan = Scan { trusts_all: true, ..Scan::default() };
            frames.for_each(&mut |number, segment| {
                if let Some(segment) = segment {
                    scan.handle(number, &segment);
                }
            });
        }
        scan.finish()
    }
}

/// Knows which connection a segment belongs to.
#[derive(Debug, Default)]
pub(super) struct Connections {
    by_ends: HashMap<(SocketAddr, SocketAddr), usize>,
    all: Vec<Ends>,
}

#[derive(Debug)]
struct Ends {
    /// Who sent the first frame.
    first: SocketAddr,
    /// Number of the first SYN of each side.
    syn: [Option<SeqNum>; 2],
    /// A FIN or RST was seen.
    is_over: bool,
}

impl Connections {
    /// The connection of a segment, and the side that sent it. Only a trusted segment opens one.
    pub(super) fn find(
        &mut self,
        segment: &Segment<'_>,
        is_trusted: bool,
    ) -> Option<(usize, usize)> {
        let Segment { source, target, ref header, .. } = *segment;
        let ends = (source.min(target), source.max(target));
        let known = self.by_ends.get(&ends).copied();
        if !is_trusted {
            return known.map(|index| (index, self.side(index, source)));
        }
        let index = match known {
            Some(index) if !self.is_new(index, segment) => index,
            _ => {
                let index = self.all.len();
                self.all.push(Ends { first: source, syn: [None; 2], is_over: false });
                self.by_ends.insert(ends, index);
                index
            }
        };
        let side = self.side(index, source);
        let ends = &mut self.all[index];
        ends.is_over |= header.flags.intersects(Flags::FIN | Flags::RST);
        if header.flags.contains(Flags::SYN) {
            ends.syn[side].get_or_insert(header.seq);
        }
        Some((index, side))
    }

    fn side(&self, index: usize, source: SocketAddr) -> usize {
        usize::from(self.all[index].first != source)
    }

    /// Whether the segment opens another connection between the same ports.
    fn is_new(&self, index: usize, segment: &Segment<'_>) -> bool {
        let flags = segment.header.flags;
        if !flags.contains(Flags::SYN) || flags.contains(Flags::ACK) {
            return false;
        }
        let ends = &self.all[index];
        match ends.syn[self.side(index, segment.source)] {
            Some(seq) => seq != segment.header.seq,
            None => ends.is_over,
        }
    }
}

#[derive(Debug, Default)]
struct Scan {
    connections: Connections,
    sides: Vec<[SideScan; 2]>,
    left_out: Vec<u64>,
    segments: u64,
    wrong: u64,
    trusts_all: bool,
}

/// What was seen of the stream that one side sends.
#[derive(Debug, Default)]
struct SideScan {
    /// From its own SYN.
    first_octet: Option<SeqNum>,
    /// From the other side's SYN with acknowledgment.
    acknowledged: Option<SeqNum>,
    /// Where a startup frame begins.
    startup: Option<SeqNum>,
    /// Sequence number of the first segment with payload; positions below are relative to it.
    anchor: Option<SeqNum>,
    /// Highest position seen, plus one.
    high: i64,
    lowest: i64,
    /// Positions that segments with a good checksum brought, moved up by [`ZERO`].
    good: RangeSet,
    /// Segments with a wrong checksum: frame, start, end.
    wrong: Vec<(u64, u128, u128)>,
}

impl Scan {
    fn handle(&mut self, number: u64, segment: &Segment<'_>) {
        let is_wrong = segment.checksum == Checksum::Wrong;
        self.segments += 1;
        self.wrong += u64::from(is_wrong);
        let is_trusted = self.trusts_all || !is_wrong;
        let Some((index, side)) = self.connections.find(segment, is_trusted) else {
            self.left_out.push(number);
            return;
        };
        if index >= self.sides.len() {
            self.sides.resize_with(index + 1, Default::default);
        }
        let flags = segment.header.flags;
        let syn = flags.contains(Flags::SYN);
        if is_trusted && syn {
            let sides = &mut self.sides[index];
            sides[side].first_octet.get_or_insert_with(|| segment.header.seq.plus(1));
            if flags.contains(Flags::ACK) {
                sides[1 - side].acknowledged.get_or_insert(segment.header.ack);
            }
        }
        let seq = segment.header.seq.plus(u32::from(syn));
        let has_data = !segment.payload.is_empty() && !flags.contains(Flags::RST);
        let side = &mut self.sides[index][side];
        match (has_data, is_trusted) {
            (true, true) => side.handle_data(seq, segment.payload),
            (true, false) => side.wrong.push(side.locate_wrong(number, seq, segment.payload)),
            (false, true) => {}
            (false, false) => self.left_out.push(number),
        }
    }

    fn finish(mut self) -> Plan {
        let mut used = 0;
        for side in self.sides.iter_mut().flatten() {
            used += side.judge_wrong(&mut self.left_out);
        }
        self.left_out.sort_unstable();
        let of = |side: &SideScan| side.plan();
        Plan {
            connections: self
                .sides
                .iter()
                .map(|sides| ConnectionPlan { sides: sides.each_ref().map(of) })
                .collect(),
            left_out: self.left_out,
            used_although_wrong: used,
            checksums_ignored: self.trusts_all,
        }
    }
}

impl SideScan {
    fn position(&self, seq: SeqNum) -> i64 {
        let anchor = self.anchor.unwrap_or(seq);
        // Sequence numbers are positions modulo 2³².
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "modulo 2^32")]
        let high = anchor.plus(self.high as u32);
        self.high + i64::from(seq.distance_from(high))
    }

    fn handle_data(&mut self, seq: SeqNum, payload: &[u8]) {
        self.anchor.get_or_insert(seq);
        let start = self.position(seq);
        let end = start + i64::try_from(payload.len()).expect("a frame is short");
        self.high = self.high.max(end);
        self.lowest = self.lowest.min(start);
        self.good.insert(shifted(start)..shifted(end));
        let begins = |key: &[u8; 16]| payload.starts_with(key);
        if self.startup.is_none() && KEYS.into_iter().any(begins) {
            self.startup = Some(seq);
        }
    }

    fn locate_wrong(&self, number: u64, seq: SeqNum, payload: &[u8]) -> (u64, u128, u128) {
        let start = shifted(self.position(seq));
        (number, start, start + payload.len() as u128)
    }

    /// Decides which wrong segments are left out; returns how many are used.
    ///
    /// A segment damaged on its way comes again. One whose octets nothing else brings, and that fits
    /// exactly beside what is there, was damaged by whoever wrote the capture: it is used.
    fn judge_wrong(&mut self, left_out: &mut Vec<u64>) -> u64 {
        let mut used = 0;
        let mut wrong = std::mem::take(&mut self.wrong);
        wrong.sort_by_key(|&(number, start, _)| (start, number));
        // Downwards too: the gap before a segment may be closed by another wrong one.
        for _ in 0..2 {
            wrong.retain(|&(_, start, end)| {
                let fits = self.good.touches(start) || self.good.touches(end);
                let takes = fits && !self.good.overlaps(&(start..end));
                if takes {
                    self.good.insert(start..end);
                    used += 1;
                }
                !takes
            });
            wrong.reverse();
        }
        left_out.extend(wrong.iter().map(|&(number, _, _)| number));
        used
    }

    fn plan(&self) -> SidePlan {
        let handshake = self.first_octet.or(self.acknowledged);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "modulo 2^32")]
        let lowest = || self.anchor.map(|anchor| anchor.plus(self.lowest as u32));
        let first = handshake.or(self.startup).or_else(lowest).unwrap_or_default();
        SidePlan { isn: first.plus(u32::MAX), handshake_seen: handshake.is_some() }
    }
}

/// A position as an unsigned number.
fn shifted(position: i64) -> u128 {
    u128::try_from(i128::from(position) + ZERO).expect("positions are above -2^63")
}

const ZERO: i128 = 1 << 64;
/// How startup frames begin (RFC 5044 §7.1.1).
pub(super) const KEYS: [&[u8; 16]; 2] = [b"MPA ID Req Frame", b"MPA ID Rep Frame"];
