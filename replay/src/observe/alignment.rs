//! Alignment of segments with FPDUs.

use std::collections::BTreeMap;

use super::recut::Cut;
use super::tally::Tally;
use crate::limits::{Holding, Room};
use crate::trace::Fit;

#[derive(Debug, Default)]
pub(crate) struct Alignment {
    /// Undelivered segments with this end and start: number at each of two places, and first frame.
    undecided: BTreeMap<(u64, u64), ([u64; 2], u64)>,
    place: Option<u64>,
    /// Segments that begin where an FPDU begins and end where one ends.
    pub(crate) aligned: u64,
    /// Other segments that reach into full operation.
    pub(crate) unaligned: u64,
    /// Unaligned segments that contain only the CRC of an FPDU.
    pub(crate) crc_alone: u64,
    /// Counts by place: the place of the first segment, and all others.
    pub(crate) places: [Cut; 2],
}

impl Alignment {
    /// Records a segment; without room, it is never judged.
    pub(crate) fn note(
        &mut self,
        (start, end): (u64, u64),
        (frame, place): (u64, u64),
        held: &mut Holding,
        room: &mut Room,
    ) {
        let place = usize::from(*self.place.get_or_insert(place) != place);
        if let Some((counts, _)) = self.undecided.get_mut(&(end, start)) {
            counts[place] += 1;
        } else if held.take(room) {
            let mut counts = [0; 2];
            counts[place] = 1;
            self.undecided.insert((end, start), (counts, frame));
        }
    }

    /// Judges the segments before the delivery point, from `origin` on; `decided` gets their bytes,
    /// number, and first frame.
    pub(crate) fn decide(
        &mut self,
        origin: u64,
        tally: &Tally,
        held: &mut Holding,
        room: &mut Room,
        mut decided: impl FnMut(Fit, (u64, u64), u64, u64),
    ) {
        let delivered = tally.delivered_end().0;
        while let Some(first) = self.undecided.first_entry() {
            let (end, start) = *first.key();
            if end > delivered {
                break;
            }
            let (counts, frame) = first.remove();
            let count = counts.iter().sum();
            held.give(1, room);
            let fit = if start < tally.starts_known_from() {
                // A copy of a segment from long ago, whose FPDU borders were dropped.
                continue;
            } else if tally.is_start(start) && tally.is_boundary(end) {
                self.aligned += count;
                Fit::Aligned
            } else if end > origin {
                self.unaligned += count;
                let is_crc = end - start == CRC_LEN && tally.is_boundary(end);
                self.crc_alone += if is_crc { count } else { 0 };
                if is_crc { Fit::CrcAlone } else { Fit::Unaligned }
            } else {
                continue;
            };
            for (place, count) in self.places.iter_mut().zip(counts) {
                let slot =
                    if fit == Fit::Aligned { &mut place.aligned } else { &mut place.unaligned };
                *slot += count;
            }
            decided(fit, (start, end), count, frame);
        }
    }
}

const CRC_LEN: u64 = urnic_engine::wire::mpa::CRC_LEN as u64;
