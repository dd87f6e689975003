//! Frames that were captured more than once: by two taps, on two interfaces, before and after a router.
//!
//! A frame that the sender sent again comes once more at the same place. A copy comes at another one:
//! the n-th time there is a copy of the n-th time here. Where a switch mirrors a port in both
//! directions, copies come at one place: then almost every segment comes twice.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use urnic_engine::tcp;
use urnic_netdev::capture::{CapturedFrame, LinkType};

use super::limits::COPIES_REMEMBERED;
use super::packet::{Checksum, Segment};

/// The frames of late, by what they hold.
#[derive(Debug, Default)]
pub(super) struct Copies {
    recent: HashMap<u64, [Place; PLACES_MAX]>,
    order: VecDeque<u64>,
    /// Every second time at one place is a copy, too.
    are_mirrored: bool,
    /// Segments with payload, and those of them that came an even time at their place.
    segments: u64,
    even: u64,
}

/// How often a frame came at one place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    times: u32,
}

impl Copies {
    pub(super) fn new(are_mirrored: bool) -> Self {
        Self { are_mirrored, ..Self::default() }
    }

    /// Whether this frame was there before, captured at another place.
    pub(super) fn is_copy(
        &mut self,
        frame: &CapturedFrame,
        datagram: &[u8],
        segment: &Segment<'_>,
    ) -> bool {
        // A damaged copy of a good frame is none.
        if segment.checksum == Checksum::Wrong {
            return false;
        }
        let (key, here) = (key_of(datagram, segment), place_of(frame));
        let places = self.recent.entry(key).or_insert_with(|| {
            self.order.push_back(key);
            [Place::default(); PLACES_MAX]
        });
        let place = places.iter().position(|place| place.times == 0 || place.hash == here);
        // A frame of more places than are kept apart is told from none.
        let Some(place) = place else { return true };
        let Place { hash, times } = &mut places[place];
        *hash = here;
        *times = times.saturating_add(1);
        let count = |times: u32| if self.are_mirrored { times.div_ceil(2) } else { times };
        let (mine, is_even) = (*times, times.is_multiple_of(2));
        let others = places.iter().filter(|other| other.hash != here).map(|other| other.times);
        let is_copy =
            count(mine) <= others.map(count).max().unwrap_or(0) || self.are_mirrored && is_even;
        if !segment.payload.is_empty() {
            self.segments += 1;
            self.even += u64::from(is_even);
        }
        if self.order.len() > COPIES_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.recent.remove(&oldest);
        }
        is_copy
    }

    /// Whether nearly every segment came twice at one place.
    pub(super) const fn look_mirrored(&self) -> bool {
        self.segments >= MIRRORED_MIN && self.even * 100 >= self.segments * MIRRORED_PERCENT
    }
}

/// What does not change on the way through switches and routers: not the hop limit and what depends
/// on it, nor the checksum, which a tap at the sender sees before it is filled in.
fn key_of(datagram: &[u8], segment: &Segment<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
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

/// Where a frame was captured: its interface, and the ends of the link that it was on.
fn place_of(frame: &CapturedFrame) -> u64 {
    let mut hasher = DefaultHasher::new();
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

/// Places that one frame is told apart by.
const PLACES_MAX: usize = 4;
/// Octets at the beginning and at the end of a payload that are compared.
const COMPARED_LEN: usize = 64;
/// Segments that have to be there, and how many of a hundred have to have come twice.
const MIRRORED_MIN: u64 = 8;
const MIRRORED_PERCENT: u64 = 45;
