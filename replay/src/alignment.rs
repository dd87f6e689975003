//! Which segments hold whole FPDUs.

use std::collections::BTreeMap;

use super::limits::{Holding, Room};
use super::recut::Cut;
use super::tally::Tally;
use super::trace::Fit;

/// Counts the segments of one direction by alignment, once it is known where FPDUs are.
#[derive(Debug, Default)]
pub(super) struct Alignment {
    /// How many segments have this end and start, beyond which the stream is not delivered yet, at each of
    /// two places, and the frame of the first.
    undecided: BTreeMap<(u64, u64), ([u64; 2], u64)>,
    /// The place of the first segment.
    place: Option<u64>,
    /// Segments that begin where an FPDU begins and end where one ends.
    pub(super) aligned: u64,
    /// Other segments that reach into full operation.
    pub(super) unaligned: u64,
    /// Of those, segments that hold nothing but the CRC of an FPDU.
    pub(super) crc_alone: u64,
    /// The same by place: that of the first segment, and others.
    pub(super) places: [Cut; 2],
}

impl Alignment {
    /// Takes note of a segment captured at `place`. Without room it is never decided about.
    pub(super) fn note(
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

    /// Decides about the segments that end where the stream is delivered, in full operation from
    /// `origin` on; tells `decided` their bytes, how many there are, and the frame of the first.
    pub(super) fn decide(
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
                // A copy of what came long ago: where its FPDUs were is forgotten.
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
