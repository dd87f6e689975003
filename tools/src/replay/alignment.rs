//! Which segments hold whole FPDUs.

use super::tally::Tally;

/// Counts the segments of one direction by alignment, once it is known where FPDUs are.
#[derive(Debug, Default)]
pub(super) struct Alignment {
    /// Start and end of segments beyond which the stream is not delivered yet.
    undecided: Vec<(u64, u64)>,
    decide_at: usize,
    /// Segments that begin where an FPDU begins and end where one ends.
    pub(super) aligned: u64,
    /// Other segments that reach into full operation.
    pub(super) unaligned: u64,
    /// Of those, segments that hold nothing but the CRC of an FPDU.
    pub(super) crc_alone: u64,
}

impl Alignment {
    /// Takes note of a segment; `true` when it is time to [`decide`](Self::decide).
    pub(super) fn note(&mut self, start: u64, end: u64) -> bool {
        self.undecided.push((start, end));
        self.undecided.len() >= self.decide_at.max(UNDECIDED_MIN)
    }

    /// Decides about the segments that end where the stream is delivered, in full operation from
    /// `origin` on.
    pub(super) fn decide(&mut self, origin: u64, tally: &Tally) {
        let delivered = tally.delivered_end().0;
        self.undecided.retain(|&(start, end)| {
            if end > delivered {
                return true;
            }
            if tally.is_start(start) && tally.is_boundary(end) {
                self.aligned += 1;
            } else if end > origin {
                self.unaligned += 1;
                let is_crc = end - start == CRC_LEN && tally.is_boundary(end);
                self.crc_alone += u64::from(is_crc);
            }
            false
        });
        // Looking at each segment again and again would take quadratic time.
        self.decide_at = self.undecided.len() * 2;
    }
}

/// Segments that are collected before it is decided about them.
const UNDECIDED_MIN: usize = 4096;
const CRC_LEN: u64 = urnic::wire::mpa::CRC_LEN as u64;
