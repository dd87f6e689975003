//! Loss detection: by RACK, by duplicate ACKs, by a timeout, or by a smaller path.

use super::{Marks, Scoreboard};
use crate::tcp::rack::Rack;
use crate::time::Instant;

/// RFC 6675 §2: "DupThresh".
const DUP_THRESH: u32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detected {
    pub(crate) lost: bool,
    /// Time at which the next segment counts as lost, unless it arrives.
    pub(crate) next_at: Option<Instant>,
}

impl Scoreboard {
    /// Returns true if enough is SACKed to begin a recovery without RACK (RFC 8985 §6.2).
    // spec: TCP-6675-1
    pub(crate) const fn has_dup_thresh(&self) -> bool {
        self.sacked_segments >= DUP_THRESH
    }

    /// Marks as lost the segments that RACK finds overdue (RFC 8985 §6.2 step 5), retransmissions
    /// included. Both are stored in the order they were sent. Each walk ends at the first segment
    /// that is not overdue: the work is proportional to what is newly known.
    pub(crate) fn detect_losses(&mut self, now: Instant, rack: &Rack, window_ns: u64) -> Detected {
        let mut found = self.detect_lost_copies(now, rack, window_ns);
        let mut next_at = None;
        let from = self.examined.max(self.una);
        let mut index = self.segments.partition_point(|segment| segment.start < from);
        while let Some(segment) = self.segments.get(index) {
            if !segment.marks.intersects(Marks::SACKED | Marks::LOST) {
                if !rack.is_overtaken(segment.sent_at, segment.end()) {
                    break;
                }
                let overdue_at = rack.overdue_at(segment.sent_at, window_ns);
                if overdue_at > now {
                    next_at = Some(overdue_at);
                    break;
                }
                self.mark_lost(index);
                found.lost = true;
            }
            index += 1;
        }
        self.examined = self.segments.get(index).map_or(self.nxt, |segment| segment.start);
        found.next_at = match (found.next_at, next_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        found
    }

    fn detect_lost_copies(&mut self, now: Instant, rack: &Rack, window_ns: u64) -> Detected {
        let mut found = Detected::default();
        while let Some(&(sent_at, start)) = self.copies.front() {
            let index = self.segments.partition_point(|segment| segment.end() <= start);
            let in_flight = Marks::LOST | Marks::RESENT;
            let holding = self.segments.get_mut(index);
            let holding =
                holding.filter(|held| held.marks.contains(in_flight) && held.sent_at == sent_at);
            if let Some(segment) = holding {
                if !rack.is_overtaken(sent_at, segment.end()) {
                    break;
                }
                let overdue_at = rack.overdue_at(sent_at, window_ns);
                if overdue_at > now {
                    found.next_at = Some(overdue_at);
                    break;
                }
                segment.marks.remove(Marks::RESENT);
                self.resent_bytes -= u64::from(segment.len);
                self.resend_from = self.resend_from.min(segment.start);
                found.lost = true;
            }
            self.copies.pop_front();
        }
        found
    }

    /// Without SACK: the first segment is lost (RFC 6582 §3.2).
    pub(crate) fn mark_first_lost(&mut self) {
        if !self.segments.is_empty() {
            self.mark_lost(0);
        }
    }

    /// After a timeout, everything not SACKed is lost (RFC 6675 §5.1). `forget_sacks`: the peer no
    /// longer has the bytes it SACKed (RFC 2018 §8).
    pub(crate) fn mark_all_lost(&mut self, forget_sacks: bool) {
        if forget_sacks {
            self.examined = self.una;
            self.sacked_bytes = 0;
            self.sacked_segments = 0;
        }
        self.duplicate_bytes = 0;
        self.resent_bytes = 0;
        self.lost_bytes = 0;
        self.copies.clear();
        for segment in &mut self.segments {
            if forget_sacks {
                segment.marks.remove(Marks::SACKED);
                segment.sacked_run = 0;
            }
            segment.marks.remove(Marks::RESENT);
            if !segment.marks.contains(Marks::SACKED) {
                segment.marks.insert(Marks::LOST);
                self.lost_bytes += u64::from(segment.len);
            }
        }
        self.resend_from = self.una;
    }

    /// The first segment is lost, and all that RACK finds overdue (RFC 8985 §6.3).
    pub(crate) fn mark_overdue_lost(&mut self, now: Instant, rack: &Rack, window_ns: u64) {
        let una = self.una;
        for segment in &mut self.segments {
            let overdue =
                segment.start == una || rack.overdue_at(segment.sent_at, window_ns) <= now;
            if segment.marks.contains(Marks::SACKED) || !overdue {
                continue;
            }
            let len = u64::from(segment.len);
            if segment.marks.contains(Marks::RESENT) {
                segment.marks.remove(Marks::RESENT);
                self.resent_bytes -= len;
            }
            if !segment.marks.contains(Marks::LOST) {
                segment.marks.insert(Marks::LOST);
                self.lost_bytes += len;
            }
        }
        self.resend_from = self.una;
    }

    /// Clears all loss marks: segments that are not SACKed are in flight, once.
    pub(crate) fn forget_losses(&mut self) {
        for segment in &mut self.segments {
            segment.marks.remove(Marks::LOST | Marks::RESENT);
        }
        self.lost_bytes = 0;
        self.resent_bytes = 0;
        self.copies.clear();
        self.examined = self.una;
        self.resend_from = self.nxt;
    }

    /// Segments above `emss` cannot pass a path that shrank to it, nor can their retransmissions.
    pub(crate) fn mark_oversized_lost(&mut self, emss: u32) {
        for index in 0..self.segments.len() {
            let segment = &mut self.segments[index];
            if segment.len <= emss {
                continue;
            }
            if segment.marks.contains(Marks::RESENT) {
                segment.marks.remove(Marks::RESENT);
                self.resent_bytes -= u64::from(segment.len);
                self.resend_from = self.resend_from.min(segment.start);
            }
            self.mark_lost(index);
        }
    }

    fn mark_lost(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        if !segment.marks.intersects(Marks::SACKED | Marks::LOST) {
            segment.marks.insert(Marks::LOST);
            self.lost_bytes += u64::from(segment.len);
            self.resend_from = self.resend_from.min(segment.start);
        }
    }
}
