//! Frames captured more than once: by two taps, on two interfaces, before and after a router.
//!
//! A retransmitted frame is captured again at the same place. The n-th occurrence at another place
//! is a copy of the n-th occurrence here. If a switch mirrors a port in both directions, almost
//! every segment comes twice at one place, the second time at once. If one clock stamps both, a
//! copy comes sooner than a sender retransmits: a later occurrence is a retransmission, unless
//! nearly all come that late. Clocks of two interfaces may differ by any time.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use urnic_engine::tcp;
use urnic_netdev::capture::{CapturedFrame, LinkType};

use super::packet::{Checksum, Segment};
use crate::limits::COPIES_REMEMBERED;

#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// First place of each frame, and its other places: most captures have only one.
    recent: HashMap<u64, Place, RandomState>,
    elsewhere: HashMap<u64, [Place; PLACES_MAX - 1], RandomState>,
    order: VecDeque<u64>,
    hashing: RandomState,
    pattern: CopyPattern,
    are_places_several: bool,
    /// Segments with payload; among these, second ones at their place, at once, and copies from
    /// another place, on the same clock, and late.
    segments: u64,
    even: u64,
    late: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyPattern {
    /// Nearly every segment comes twice at one place: every second occurrence is a copy, too.
    are_mirrored: bool,
    /// Nearly every segment also comes at another place, and late: the places are far apart.
    are_far_apart: bool,
    /// No frame came at a second place, nor twice as with a mirrored port: there are no copies.
    are_absent: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    interface: u32,
    times: u32,
    at_ns: u64,
    /// Set if the last occurrence was a copy of the previous one, at this place.
    is_doubled: bool,
}

impl Copies {
    pub(crate) fn new(pattern: CopyPattern) -> Self {
        Self { pattern, ..Self::default() }
    }

    /// One place for all without copies.
    pub(crate) fn place(&self, frame: &CapturedFrame) -> u64 {
        if self.pattern.are_absent { 0 } else { place_of(&self.hashing, frame) }
    }

    pub(crate) fn is_copy(
        &mut self,
        frame: &CapturedFrame,
        datagram: &[u8],
        segment: &Segment<'_>,
    ) -> bool {
        // A damaged frame is not a copy of a good frame.
        if self.pattern.are_absent || segment.checksum == Checksum::Wrong {
            return false;
        }
        let (key, here) = (key_of(&self.hashing, datagram, segment), segment.place);
        let first = self.recent.entry(key).or_insert_with(|| {
            self.order.push_back(key);
            Place::default()
        });
        let mut places = [*first, Place::default(), Place::default(), Place::default()];
        if self.are_places_several
            && let Some(others) = self.elsewhere.get(&key)
        {
            places[1..].copy_from_slice(others);
        }
        let index = places.iter().position(|place| place.times == 0 || place.hash == here);
        self.are_places_several |= index != Some(0);
        // All places for this frame are in use: a frame at a further place counts as a copy.
        let Some(index) = index else { return true };
        let now_ns = frame.timestamp_ns;
        let before = places[index];
        let is_at_once = now_ns.abs_diff(before.at_ns) < AT_ONCE_NS;
        let is_even = before.times > 0 && !before.is_doubled && is_at_once;
        let is_mirrored = self.pattern.are_mirrored && is_even;
        // At most one copy elsewhere belongs to an occurrence that is no copy itself.
        let times = before.times.saturating_add(u32::from(!is_mirrored));
        let interface = frame.interface;
        places[index] = Place { hash: here, interface, times, at_ns: now_ns, is_doubled: is_even };
        if index == 0 {
            *first = places[0];
        } else {
            self.elsewhere.entry(key).or_default()[index - 1] = places[index];
        }
        let there = places.iter().filter(|other| other.hash != here && times <= other.times);
        let (mut is_there, mut is_there_late) = (false, false);
        for other in there {
            let is_late =
                other.interface == interface && now_ns.abs_diff(other.at_ns) >= AT_ONCE_NS;
            is_there |= !is_late || self.pattern.are_far_apart;
            is_there_late |= is_late;
        }
        if !segment.payload.is_empty() {
            self.segments += 1;
            self.even += u64::from(is_even);
            self.late += u64::from(is_there_late && !is_there);
        }
        if self.order.len() > COPIES_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.recent.remove(&oldest);
            if self.are_places_several {
                self.elsewhere.remove(&oldest);
            }
        }
        is_mirrored || is_there
    }

    pub(crate) fn pattern(&self) -> CopyPattern {
        let are_most =
            |count: u64| self.segments >= MOST_MIN && count * 100 >= self.segments * MOST_PERCENT;
        let [are_mirrored, are_far_apart] = [self.even, self.late].map(are_most);
        let are_absent = !are_mirrored && !self.are_places_several;
        CopyPattern { are_mirrored, are_far_apart, are_absent }
    }
}

/// Hashes what switches and routers do not change: not the hop limit, nor checksums, since a tap at
/// the sender sees TCP's before it is filled in.
fn key_of(hashing: &RandomState, datagram: &[u8], segment: &Segment<'_>) -> u64 {
    let mut hasher = hashing.build_hasher();
    let Segment { source, target, ref header, payload, .. } = *segment;
    (source, target).hash(&mut hasher);
    if let [0x40..=0x4f, _, _, _, high, low, ..] = *datagram {
        (high, low).hash(&mut hasher);
    }
    let tcp::Header { seq, ack, flags, window, ref options, .. } = *header;
    (seq.0, ack.0, flags.bits(), window, payload.len()).hash(&mut hasher);
    options.timestamps.map(|times| (times.value, times.echo)).hash(&mut hasher);
    for (start, end) in &options.sack {
        (start.0, end.0).hash(&mut hasher);
    }
    payload[..payload.len().min(COMPARED_LEN)].hash(&mut hasher);
    payload[payload.len().saturating_sub(COMPARED_LEN)..].hash(&mut hasher);
    hasher.finish()
}

/// A place is an interface and the link addresses.
fn place_of(hashing: &RandomState, frame: &CapturedFrame) -> u64 {
    let mut hasher = hashing.build_hasher();
    frame.interface.hash(&mut hasher);
    let (len, hop_limit_at) = match frame.link {
        LinkType::Ethernet | LinkType::LinuxCooked => (14, None),
        LinkType::LinuxCookedV2 => (20, None),
        LinkType::RawIp | LinkType::Ipv4 | LinkType::Ipv6 => (0, Some([8, 7])),
        _ => (0, None),
    };
    frame.bytes.get(..len).hash(&mut hasher);
    if let (Some(at), Some(first)) = (hop_limit_at, frame.bytes.first()) {
        frame.bytes.get(at[usize::from(first >> 4 == 6)]).hash(&mut hasher);
    }
    hasher.finish()
}

/// Places that are distinguished for one frame.
const PLACES_MAX: usize = 4;
/// Bytes at the beginning and at the end of a payload that are compared.
const COMPARED_LEN: usize = 64;
/// Limit of the delay of a mirrored port, or to the next place on the path: shorter than the
/// retransmission timeouts of kernels.
const AT_ONCE_NS: u64 = 10_000_000;
/// Smallest number of segments, and percentage of them that must come twice, for a property.
const MOST_MIN: u64 = 8;
const MOST_PERCENT: u64 = 45;
