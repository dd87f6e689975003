//! Frames on their way through the impairment, and when they go on.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use super::config::ImpairConfig;
use crate::TxChecksum;

/// The held frames of one device.
///
/// Delayed frames stand in a line that keeps its order. Reordered frames leave the line: each goes
/// on after a time, or when a number of later frames has been scheduled.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// By release time, because no frame is scheduled before its predecessor in the line.
    line: VecDeque<(u64, HeldFrame)>,
    /// When the last frame of the line goes on, or went.
    line_ns: u64,
    /// In order of age. Few, because each waits for few others, so it is searched.
    late: Vec<(Due, HeldFrame)>,
    /// What is due first of `late`, each of the two on its own.
    late_first: Due,
    /// Frames scheduled so far.
    scheduled: u64,
}

/// What is held of a frame.
#[derive(Debug)]
pub(super) struct HeldFrame {
    pub(super) bytes: Vec<u8>,
    /// How many of the octets are headers, which matters to a super-frame.
    pub(super) head_len: usize,
    pub(super) checksum: TxChecksum,
    pub(super) segment_size: Option<NonZeroU16>,
}

/// When a frame goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Release {
    /// At once.
    Now,
    /// At this time, in nanoseconds, as one of the line.
    At(u64),
    /// Out of order.
    Late(Due),
}

/// Until when a reordered frame is held: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    ns: u64,
    scheduled: u64,
}

impl Hold {
    /// How many frames are held.
    pub(super) fn len(&self) -> usize {
        self.line.len() + self.late.len()
    }

    /// Gives a frame its place: behind the line and `jitter_ns` after it may go, or, when `late`
    /// holds a number of frames, after those (0: after the longest time).
    pub(super) fn schedule(
        &mut self,
        now_ns: u64,
        jitter_ns: u64,
        late: Option<u64>,
        config: &ImpairConfig,
    ) -> Release {
        self.scheduled += 1;
        if let Some(frames) = late {
            let ns = now_ns.saturating_add(config.reorder_delay_ns);
            let scheduled =
                if frames == 0 { u64::MAX } else { self.scheduled.saturating_add(frames) };
            return Release::Late(Due { ns, scheduled });
        }
        self.line_ns = now_ns.saturating_add(jitter_ns).max(self.line_ns);
        if self.line_ns <= now_ns { Release::Now } else { Release::At(self.line_ns) }
    }

    /// Holds a frame until the time that `schedule` gave it.
    pub(super) fn put(&mut self, release: Release, frame: HeldFrame) {
        match release {
            Release::Now => self.line.push_back((0, frame)),
            Release::At(ns) => self.line.push_back((ns, frame)),
            Release::Late(due) => {
                self.late.push((due, frame));
                self.late_first = self.late_first.earlier(due);
            }
        }
    }

    /// When the next frame goes on if no other comes.
    pub(super) fn next_release_ns(&self) -> Option<u64> {
        let line_ns = self.line.front().map(|(ns, _)| *ns);
        let late_ns = (!self.late.is_empty()).then_some(self.late_first.ns);
        [line_ns, late_ns].into_iter().flatten().min()
    }

    /// Takes out a frame that goes on now, if there is one.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<HeldFrame> {
        if self.line.front().is_some_and(|(ns, _)| *ns <= now_ns) {
            return self.line.pop_front().map(|(_, frame)| frame);
        }
        let scheduled = self.scheduled;
        if !self.late_first.has_come(now_ns, scheduled) {
            return None;
        }
        let index = self.late.iter().position(|(due, _)| due.has_come(now_ns, scheduled))?;
        let (_, frame) = self.late.remove(index);
        self.late_first =
            self.late.iter().fold(Due::default(), |first, (due, _)| first.earlier(*due));
        Some(frame)
    }
}

impl Due {
    fn earlier(self, other: Self) -> Self {
        Self { ns: self.ns.min(other.ns), scheduled: self.scheduled.min(other.scheduled) }
    }

    fn has_come(self, now_ns: u64, scheduled: u64) -> bool {
        self.ns <= now_ns || self.scheduled <= scheduled
    }
}

impl Default for Due {
    /// Never.
    fn default() -> Self {
        Self { ns: u64::MAX, scheduled: u64::MAX }
    }
}
