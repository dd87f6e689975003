//! The first pass over a capture: collects what the replay needs. These are the beginnings of
//! streams, if the capture has no SYN or a late one, and the frames that were damaged on the wire,
//! so that their receiver also dropped them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use foldhash::fast::RandomState;
use urnic_engine::tcp::{Flags, SeqNum};
use urnic_netdev::capture::CaptureError;

use super::frames::Frames;
use super::packet::{Checksum, Segment};
use super::ranges::RangeSet;
use super::resume::{Framing, Sample};
use crate::limits::{
    CONNECTIONS_MAX, CONNECTIONS_TOTAL_MAX, DAMAGED_MAX, Holding, NOTES_MAX, PICTURED_MAX, Room,
    SAMPLES_LEN_MAX,
};
use crate::trace::Extent;
use crate::trace::pauses::Pauses;

#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) connections: Vec<ConnectionPlan>,
    /// Numbers of the frames to leave out, ascending.
    pub(crate) left_out: Vec<u64>,
    /// Frames with a wrong checksum that are used, because nothing else brings their bytes.
    pub(crate) used_although_wrong: u64,
    /// Frames with bad checksums that exceeded the deferral limit and were accepted unverified.
    pub(crate) unjudged: u64,
    /// Connections with pictures, and the extent of the pictures.
    pub(crate) pictured: BTreeMap<usize, Extent>,
    /// Set if most checksums are wrong: then checksums are ignored.
    pub(crate) checksums_ignored: bool,
    /// Error that ended reading before the end of the capture.
    pub(crate) error: Option<CaptureError>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionPlan {
    pub(crate) sides: [SidePlan; 2],
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SidePlan {
    pub(crate) isn: SeqNum,
    /// True if the handshake is in the capture; otherwise `isn` is before the first captured byte.
    pub(crate) handshake_seen: bool,
    /// Start of full operation in a stream whose startup the capture lacks.
    pub(crate) resumed: Option<Resumed>,
}

/// Framing of a stream whose beginning the capture lacks; `isn` is before a marker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resumed {
    /// Position of the first whole FPDU.
    pub(crate) start: u64,
    pub(crate) markers: bool,
    pub(crate) crc: bool,
}

impl Plan {
    pub(crate) fn of(frames: &mut dyn Frames) -> Self {
        let mut scan = Scan::new(false);
        let summary = frames.for_each(&mut |number, segment| {
            if let Some(segment) = segment {
                scan.handle(number, &segment);
            }
        });
        frames.expect_copies(summary.copy_pattern);
        if scan.wrong.saturating_mul(2) > scan.segments {
            // Addresses were rewritten, or the capturing device did something unexpected.
            scan = Scan::new(true);
            frames.for_each(&mut |number, segment| {
                if let Some(segment) = segment {
                    scan.handle(number, &segment);
                }
            });
        }
        let error = summary.error.filter(|error| matches!(error, CaptureError::Io(_)));
        Self { error, ..scan.finish() }
    }
}

/// Maps segments to connections. Both passes call it with the same frames, for the same results.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    followed: HashMap<(SocketAddr, SocketAddr), Ends, RandomState>,
    seats: BTreeMap<Seat, (SocketAddr, SocketAddr)>,
    /// Connection of the last frame, and its seat, entered at a frame of another connection.
    current: Option<((SocketAddr, SocketAddr), Seat)>,
    opened: usize,
    pub(crate) let_go: u64,
    /// Segments that would have opened connections beyond the total limit.
    pub(crate) beyond: u64,
    /// Set for a live capture: the total number of connections is not limited.
    is_endless: bool,
}

/// Eviction order: has a connection carried data, and its last frame; the lowest goes first.
type Seat = (bool, u64);

#[derive(Debug)]
struct Ends {
    /// Number of the connection in the file, from 0.
    ordinal: usize,
    first: SocketAddr,
    syn: [Option<SeqNum>; 2],
    /// Set after a FIN or RST.
    is_over: bool,
    seat: Seat,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ordinal: usize,
    pub(crate) side: usize,
    pub(crate) ended: Option<Ended>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) ordinal: usize,
    /// True if it was evicted; otherwise a new connection has the same ports.
    pub(crate) was_let_go: bool,
}

impl Connections {
    pub(crate) fn endless() -> Self {
        Self { is_endless: true, ..Self::default() }
    }

    /// Returns the connection of a segment, and its side. Only a trusted segment opens one.
    pub(crate) fn find(
        &mut self,
        number: u64,
        segment: &Segment<'_>,
        is_trusted: bool,
    ) -> Option<Place> {
        let Segment { source, target, ref header, payload, .. } = *segment;
        let key = (source.min(target), source.max(target));
        if !is_trusted {
            return self.followed.get(&key).map(|ends| Place {
                ordinal: ends.ordinal,
                side: usize::from(ends.first != source),
                ended: None,
            });
        }
        if self.current.is_none_or(|(current, _)| current != key) {
            self.settle();
        }
        let (ends, ended) = match self.followed.get_mut(&key) {
            Some(ends) if !ends.is_followed_by(segment) => (ends, None),
            _ => {
                self.settle();
                let ended = self.open(key, source, number)?;
                (self.followed.get_mut(&key)?, ended)
            }
        };
        let side = usize::from(ends.first != source);
        ends.is_over |= header.flags.intersects(Flags::FIN | Flags::RST);
        if header.flags.contains(Flags::SYN) {
            ends.syn[side].get_or_insert(header.seq);
        }
        let has_carried = self.current.map_or(ends.seat.0, |(_, seat)| seat.0);
        self.current = Some((key, (has_carried || !payload.is_empty(), number)));
        Some(Place { ordinal: ends.ordinal, side, ended })
    }

    fn settle(&mut self) {
        if let Some((key, seat)) = self.current.take()
            && let Some(ends) = self.followed.get_mut(&key)
        {
            self.seats.remove(&ends.seat);
            ends.seat = seat;
            self.seats.insert(seat, key);
        }
    }

    pub(crate) fn is_followed(&self, segment: &Segment<'_>) -> bool {
        let Segment { source, target, .. } = *segment;
        self.followed.contains_key(&(source.min(target), source.max(target)))
    }

    /// Follows another connection in place of the one between the same ports or, if the table is
    /// full, of the first in the eviction order. `None` if the file has had too many connections.
    fn open(
        &mut self,
        key: (SocketAddr, SocketAddr),
        first: SocketAddr,
        number: u64,
    ) -> Option<Option<Ended>> {
        if self.opened == CONNECTIONS_TOTAL_MAX && !self.is_endless {
            self.beyond += 1;
            return None;
        }
        let ordinal = self.opened;
        self.opened += 1;
        let seat = (false, number);
        let ends = Ends { ordinal, first, syn: [None; 2], is_over: false, seat };
        let mut ended = None;
        if let Some(old) = self.followed.insert(key, ends) {
            self.seats.remove(&old.seat);
            ended = Some(Ended { ordinal: old.ordinal, was_let_go: false });
        } else if self.followed.len() > CONNECTIONS_MAX
            && let Some((_, idle)) = self.seats.pop_first()
            && let Some(old) = self.followed.remove(&idle)
        {
            self.let_go += 1;
            ended = Some(Ended { ordinal: old.ordinal, was_let_go: true });
        }
        self.seats.insert(seat, key);
        Some(ended)
    }
}

impl Ends {
    fn is_followed_by(&self, segment: &Segment<'_>) -> bool {
        let flags = segment.header.flags;
        if !flags.contains(Flags::SYN) || flags.contains(Flags::ACK) {
            return false;
        }
        match self.syn[usize::from(self.first != segment.source)] {
            Some(seq) => seq != segment.header.seq,
            None => self.is_over,
        }
    }
}

#[derive(Debug)]
struct Scan {
    connections: Connections,
    sides: HashMap<usize, [SideScan; 2]>,
    plans: Vec<ConnectionPlan>,
    left_out: Vec<u64>,
    /// Room for ranges of good bytes, and for segments with a wrong checksum.
    notes: Room,
    damaged: Room,
    /// Room for samples of streams without a beginning.
    samples: Room,
    unjudged: u64,
    used: u64,
    segments: u64,
    wrong: u64,
    trusts_all: bool,
    /// The longest connections with an MPA startup, by their length and number.
    longest: BTreeMap<(u64, usize), Extent>,
}

#[derive(Debug)]
struct SideScan {
    /// From the SYN of this side.
    first_octet: Option<SeqNum>,
    /// From the acknowledgment in the other side's SYN.
    acknowledged: Option<SeqNum>,
    /// Beginning of a startup frame.
    startup: Option<SeqNum>,
    /// Sequence number of the first segment with payload; positions below are relative to it.
    anchor: Option<SeqNum>,
    times_ns: Option<(u64, u64)>,
    /// The longest pauses of the connection, stored at its first side.
    pauses: Pauses,
    /// Greatest common divisor of the times between segments, stored at its first side.
    step_ns: u64,
    high: i64,
    lowest: i64,
    /// Positions in segments with a good checksum, shifted up by [`ZERO`].
    good: RangeSet,
    held: Holding,
    sample: Sample,
    resumed: Option<(SeqNum, Resumed)>,
    /// Segments with a wrong checksum: frame, start, end.
    wrong: Vec<(u64, u128, u128)>,
}

impl Scan {
    fn new(trusts_all: bool) -> Self {
        Self {
            connections: Connections::default(),
            sides: HashMap::new(),
            plans: Vec::new(),
            left_out: Vec::new(),
            notes: Room::new(NOTES_MAX),
            damaged: Room::new(DAMAGED_MAX),
            samples: Room::new(SAMPLES_LEN_MAX),
            unjudged: 0,
            used: 0,
            segments: 0,
            wrong: 0,
            trusts_all,
            longest: BTreeMap::new(),
        }
    }

    fn handle(&mut self, number: u64, segment: &Segment<'_>) {
        let is_wrong = segment.checksum == Checksum::Wrong;
        self.segments += 1;
        self.wrong += u64::from(is_wrong);
        let is_trusted = self.trusts_all || !is_wrong;
        // Each deferred segment takes room once, and keeps it when it is left out.
        if !is_trusted && !self.damaged.take(1) {
            self.unjudged += 1;
            return;
        }
        let Some(place) = self.connections.find(number, segment, is_trusted) else {
            if !is_trusted {
                self.left_out.push(number);
            }
            return;
        };
        let Place { ordinal, side, ended } = place;
        if let Some(Ended { ordinal, .. }) = ended {
            self.end(ordinal);
        }
        let flags = segment.header.flags;
        let syn = flags.contains(Flags::SYN);
        let sides = self.sides.entry(ordinal).or_insert_with(|| [SideScan::new(), SideScan::new()]);
        if is_trusted && syn {
            sides[side].first_octet.get_or_insert_with(|| segment.header.seq.plus(1));
            if flags.contains(Flags::ACK) {
                sides[1 - side].acknowledged.get_or_insert(segment.header.ack);
            }
        }
        let seq = segment.header.seq.plus(u32::from(syn));
        let has_data = !segment.payload.is_empty() && !flags.contains(Flags::RST);
        if has_data && is_trusted {
            let times = sides.iter().filter_map(|side| side.times_ns);
            if let Some(last) = times.map(|(_, last)| last).max()
                && segment.at_ns > 0
            {
                sides[0].pauses.note(last, segment.at_ns);
                sides[0].step_ns = divisor(sides[0].step_ns, segment.at_ns.abs_diff(last));
            }
        }
        let is_midway = sides.iter().all(|side| {
            side.first_octet.is_none() && side.acknowledged.is_none() && side.startup.is_none()
        });
        let side = &mut sides[side];
        if has_data && is_trusted && is_midway {
            let at = side.position(seq);
            side.sample.note(at, segment.payload, &mut self.samples);
        }
        match (has_data, is_trusted) {
            (true, true) => side.handle_data(seq, segment, &mut self.notes),
            (true, false) => side.wrong.push(side.locate_wrong(number, seq, segment.payload)),
            (false, true) => {}
            (false, false) => self.left_out.push(number),
        }
    }

    fn end(&mut self, ordinal: usize) {
        let Some(mut sides) = self.sides.remove(&ordinal) else { return };
        if self.plans.len() <= ordinal {
            self.plans.resize(ordinal + 1, ConnectionPlan::default());
        }
        for side in &mut sides {
            self.used += side.judge_wrong(&mut self.left_out);
            side.held.give_all(&mut self.notes);
        }
        resume(&mut sides);
        for side in &mut sides {
            side.sample.release(&mut self.samples);
        }
        self.note_extent(ordinal, &sides);
        self.plans[ordinal] = ConnectionPlan { sides: sides.each_ref().map(SideScan::plan) };
    }

    /// Records the extent of the connection's pictures, if it is among the longest.
    fn note_extent(&mut self, ordinal: usize, sides: &[SideScan; 2]) {
        if sides.iter().all(|side| side.startup.is_none() && side.resumed.is_none()) {
            return;
        }
        let times = sides.iter().filter_map(|side| side.times_ns);
        let extent = Extent {
            first_ns: times.clone().map(|(first, _)| first).min().unwrap_or(0),
            last_ns: times.map(|(_, last)| last).max().unwrap_or(0),
            len: sides.each_ref().map(SideScan::len),
            pauses: sides[0].pauses,
            step_ns: sides[0].step_ns,
        };
        // Of two equally long connections, the earlier one.
        let key = (extent.len[0].saturating_add(extent.len[1]), usize::MAX - ordinal);
        self.longest.insert(key, extent);
        if self.longest.len() > PICTURED_MAX {
            self.longest.pop_first();
        }
    }

    fn finish(mut self) -> Plan {
        let rest: Vec<usize> = self.sides.keys().copied().collect();
        for ordinal in rest {
            self.end(ordinal);
        }
        self.left_out.sort_unstable();
        let pictured = self.longest.into_iter();
        Plan {
            pictured: pictured.map(|((_, key), extent)| (usize::MAX - key, extent)).collect(),
            connections: self.plans,
            left_out: self.left_out,
            used_although_wrong: self.used,
            unjudged: self.unjudged,
            error: None,
            checksums_ignored: self.trusts_all,
        }
    }
}

fn resume(sides: &mut [SideScan; 2]) {
    if sides.iter().any(|side| side.startup.is_some() || side.plan().handshake_seen) {
        return;
    }
    // If one direction is known to be framed, fewer FPDUs of the other are enough.
    for side in [0, 1, 0] {
        if sides[side].resumed.is_none() {
            let is_mpa = sides[1 - side].resumed.is_some();
            sides[side].resumed = sides[side].resume(is_mpa);
        }
    }
}

impl SideScan {
    fn new() -> Self {
        Self {
            first_octet: None,
            acknowledged: None,
            startup: None,
            anchor: None,
            times_ns: None,
            pauses: Pauses::default(),
            step_ns: 0,
            high: 0,
            lowest: 0,
            good: RangeSet::default(),
            held: Holding::of_notes(),
            sample: Sample::default(),
            resumed: None,
            wrong: Vec::new(),
        }
    }

    fn resume(&self, is_mpa: bool) -> Option<(SeqNum, Resumed)> {
        let (at, Framing { start, marker, crc }) = self.sample.framing(is_mpa)?;
        let start = i64::try_from(start).ok()?;
        let zero = marker.unwrap_or(start);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "modulo 2^32")]
        let first = self.anchor?.plus((at + zero) as u32);
        let start = u64::try_from(start - zero).ok()?;
        Some((first.plus(u32::MAX), Resumed { start, markers: marker.is_some(), crc }))
    }

    fn position(&self, seq: SeqNum) -> i64 {
        let anchor = self.anchor.unwrap_or(seq);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "modulo 2^32")]
        let high = anchor.plus(self.high as u32);
        self.high + i64::from(seq.distance_from(high))
    }

    fn handle_data(&mut self, seq: SeqNum, segment: &Segment<'_>, notes: &mut Room) {
        let payload = segment.payload;
        // Zero means no timestamp.
        if segment.at_ns > 0 {
            let (first, last) = self.times_ns.unwrap_or((segment.at_ns, segment.at_ns));
            self.times_ns = Some((first.min(segment.at_ns), last.max(segment.at_ns)));
        }
        self.anchor.get_or_insert(seq);
        let start = self.position(seq);
        let end = start + i64::try_from(payload.len()).expect("a frame is short");
        self.high = self.high.max(end);
        self.lowest = self.lowest.min(start);
        // If there is no room, a wrong segment with the same bytes may be left out.
        self.good.insert_within(shifted(start)..shifted(end), &mut self.held, notes);
        let begins = |key: &[u8; 16]| payload.starts_with(key);
        if self.startup.is_none() && KEYS.into_iter().any(begins) {
            self.startup = Some(seq);
        }
    }

    fn locate_wrong(&self, number: u64, seq: SeqNum, payload: &[u8]) -> (u64, u128, u128) {
        let start = shifted(self.position(seq));
        (number, start, start + payload.len() as u128)
    }

    /// Decides which wrong segments are left out; returns the number of used ones.
    ///
    /// A segment damaged on the wire is retransmitted. If no other segment brings its bytes, and it
    /// fits exactly beside present bytes, it was damaged when the capture was written: it is used.
    fn judge_wrong(&mut self, left_out: &mut Vec<u64>) -> u64 {
        let mut used = 0;
        let mut wrong = std::mem::take(&mut self.wrong);
        wrong.sort_by_key(|&(number, start, _)| (start, number));
        // Downwards too: another wrong segment may close the gap before a segment.
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

    fn len(&self) -> u64 {
        let first = self.position(self.plan().isn.plus(1));
        u64::try_from(self.high - first).unwrap_or(0)
    }

    fn plan(&self) -> SidePlan {
        if let Some((isn, resumed)) = self.resumed {
            return SidePlan { isn, handshake_seen: false, resumed: Some(resumed) };
        }
        let handshake = self.first_octet.or(self.acknowledged);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "modulo 2^32")]
        let lowest = || self.anchor.map(|anchor| anchor.plus(self.lowest as u32));
        let first = handshake.or(self.startup).or_else(lowest).unwrap_or_default();
        let handshake_seen = handshake.is_some();
        SidePlan { isn: first.plus(u32::MAX), handshake_seen, resumed: None }
    }
}

fn shifted(position: i64) -> u128 {
    u128::try_from(i128::from(position) + ZERO).expect("positions are above -2^63")
}

const ZERO: i128 = 1 << 64;
/// Beginnings of startup frames (RFC 5044 §7.1.1).
pub(crate) const KEYS: [&[u8; 16]; 2] = [b"MPA ID Req Frame", b"MPA ID Rep Frame"];

/// Returns 0 for two zeros.
const fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
