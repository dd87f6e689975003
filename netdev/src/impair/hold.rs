//! Frames held by the impairment, and their release times:
//!
//! ```text
//! frame ─ bottleneck (queue, rate) ─ line (delay, jitter; in order) ─┬─▶ inner device
//!                                  └ late (reordered) ───────────────┘
//! ```

use std::collections::VecDeque;
use std::num::NonZeroU16;

use super::config::ImpairConfig;
use crate::TxChecksum;
use crate::memory::sending_ns;

/// Delayed frames are in a line that keeps their order. Reordered ones leave it: each is released
/// after a time, or when a number of later frames has been scheduled.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Ordered by release time, since no frame is scheduled before its predecessor in the line.
    line: VecDeque<InLine>,
    /// Release time of the last frame of the line, perhaps in the past.
    line_ns: u64,
    passing_ns: VecDeque<u64>,
    free_ns: u64,
    /// Reordered frames, oldest first. A search is fast, since each waits for few others only.
    late: Vec<(Due, HeldFrame)>,
    /// Earliest due time and earliest due count of `late`, independent of each other.
    late_first: Due,
    scheduled: u64,
}

#[derive(Debug)]
pub(super) struct HeldFrame {
    pub(super) bytes: Vec<u8>,
    /// Number of header bytes, which matters for a super-frame.
    pub(super) head_len: usize,
    pub(super) checksum: TxChecksum,
    pub(super) segment_size: Option<NonZeroU16>,
}

#[derive(Debug)]
struct InLine {
    release_ns: u64,
    /// Value of `Hold::scheduled` after this frame was scheduled.
    scheduled: u64,
    frame: HeldFrame,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Release {
    /// Now.
    Now,
    /// At this time, in nanoseconds, as one of the line.
    At(u64),
    /// Never: the bottleneck's queue is full.
    Never,
    /// Out of order.
    Late(Due),
}

/// End of a reordered frame's hold: by time or by scheduled frames, whichever is first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    ns: u64,
    scheduled: u64,
}

impl Hold {
    pub(super) fn len(&self) -> usize {
        self.line.len() + self.late.len()
    }

    /// Returns the time at which a frame has passed the bottleneck; `None` if the queue is full.
    fn pass(&mut self, now_ns: u64, len: usize, config: &ImpairConfig) -> Option<u64> {
        let Some(rate) = config.rate_bits_per_second else { return Some(now_ns) };
        while self.passing_ns.front().is_some_and(|passed_ns| *passed_ns <= now_ns) {
            self.passing_ns.pop_front();
        }
        if self.passing_ns.len() >= config.queue_frames_max {
            return None;
        }
        self.free_ns = self.free_ns.max(now_ns).saturating_add(sending_ns(len, rate));
        self.passing_ns.push_back(self.free_ns);
        Some(self.free_ns)
    }

    /// Schedules a frame of `len` bytes. Without `late`: at the end of the line, delayed by
    /// `jitter_ns`. With `late`: after this number of later frames (0: none) or the longest delay.
    pub(super) fn schedule(
        &mut self,
        now_ns: u64,
        len: usize,
        jitter_ns: u64,
        late: Option<u64>,
        config: &ImpairConfig,
    ) -> Release {
        let Some(passed_ns) = self.pass(now_ns, len, config) else { return Release::Never };
        let arrival_ns = passed_ns.saturating_add(config.delay_ns);
        self.scheduled += 1;
        if let Some(frames) = late {
            let ns = arrival_ns.saturating_add(config.reorder_delay_ns);
            let scheduled =
                if frames == 0 { u64::MAX } else { self.scheduled.saturating_add(frames) };
            return Release::Late(Due { ns, scheduled });
        }
        self.line_ns = arrival_ns.saturating_add(jitter_ns).max(self.line_ns);
        if self.line_ns <= now_ns { Release::Now } else { Release::At(self.line_ns) }
    }

    pub(super) fn put(&mut self, release: Release, frame: HeldFrame) {
        match release {
            Release::Now => self.push_line(0, frame),
            Release::At(ns) => self.push_line(ns, frame),
            Release::Late(due) => {
                self.late.push((due, frame));
                self.late_first = self.late_first.earlier(due);
            }
            Release::Never => {}
        }
    }

    fn push_line(&mut self, release_ns: u64, frame: HeldFrame) {
        self.line.push_back(InLine { release_ns, scheduled: self.scheduled, frame });
    }

    /// Returns how many of the scheduled frames wait for no earlier frame in the line.
    fn passed(&self) -> u64 {
        self.line.front().map_or(self.scheduled, |first| first.scheduled - 1)
    }

    /// Returns the time of the next release if no other frame arrives.
    pub(super) fn next_release_ns(&self) -> Option<u64> {
        let line_ns = self.line.front().map(|first| first.release_ns);
        let late_ns = (!self.late.is_empty()).then_some(self.late_first.ns);
        [line_ns, late_ns].into_iter().flatten().min()
    }

    /// Takes out a frame that is due, if there is one. Returns also how late it is.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<(HeldFrame, u64)> {
        let passed = self.passed();
        let front_ns = self.line.front().map_or(u64::MAX, |first| first.release_ns);
        // The earliest due frame is released first, however late the call.
        let late_by_ns = now_ns.min(front_ns);
        if self.late.is_empty() || !self.late_first.has_come(late_by_ns, passed) {
            let first = if front_ns <= now_ns { self.line.pop_front() } else { None };
            return first.map(|first| (first.frame, now_ns - first.release_ns));
        }
        let index = self.late.iter().position(|(due, _)| due.has_come(late_by_ns, passed))?;
        let (due, frame) = self.late.remove(index);
        self.late_first =
            self.late.iter().fold(Due::default(), |first, (due, _)| first.earlier(*due));
        // A frame that enough others have overtaken is due at once.
        Some((frame, now_ns.saturating_sub(due.ns)))
    }
}

impl Due {
    fn earlier(self, other: Self) -> Self {
        Self { ns: self.ns.min(other.ns), scheduled: self.scheduled.min(other.scheduled) }
    }

    fn has_come(self, now_ns: u64, passed: u64) -> bool {
        self.ns <= now_ns || self.scheduled <= passed
    }
}

impl Default for Due {
    /// Returns never.
    fn default() -> Self {
        Self { ns: u64::MAX, scheduled: u64::MAX }
    }
}
