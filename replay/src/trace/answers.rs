//! Requests and answers over time: Reads, and Sends that ended in a Terminate.

use std::collections::VecDeque;

use urnic_engine::types::Msn;

use super::delays::Delays;
use super::marks::{Canvas, Mark, Marks};

#[derive(Debug)]
pub(crate) struct Exchanges {
    /// From the first byte of the request to the last byte of the answer.
    pub(crate) latency: Delays,
    pub(crate) marks: Marks,
}

impl Exchanges {
    fn new(canvas: Canvas, marks_max: usize) -> Self {
        let marks = Marks::new(canvas.with_len(1), marks_max);
        Self { latency: Delays::default(), marks }
    }

    fn add(&mut self, (frame, asked_ns): (u64, u64), answered_ns: u64) {
        self.latency.add(answered_ns.saturating_sub(asked_ns));
        let at_ns = (asked_ns, answered_ns.max(asked_ns));
        self.marks.add(Mark { at_ns, octets: (0, 0), frame, count: 1 });
    }
}

#[derive(Debug)]
pub(crate) struct Answers {
    /// From a Read Request to the last byte of its Response.
    pub(crate) reads: Exchanges,
    /// From a Send to the Terminate about it.
    pub(crate) sends: Exchanges,
    open: VecDeque<(Msn, (u64, u64))>,
}

impl Answers {
    pub(crate) fn new(canvas: Canvas, marks_max: usize) -> Self {
        Self {
            reads: Exchanges::new(canvas, marks_max),
            sends: Exchanges::new(canvas, marks_max),
            open: VecDeque::new(),
        }
    }

    pub(crate) fn read(&mut self, asked: (u64, u64), answered_ns: u64) {
        self.reads.add(asked, answered_ns);
    }

    pub(crate) fn send(&mut self, msn: Msn, arrived: (u64, u64)) {
        if self.open.back().is_some_and(|(last, _)| *last == msn) {
            return;
        }
        if self.open.len() == SENDS_MAX {
            self.open.pop_front();
        }
        self.open.push_back((msn, arrived));
    }

    pub(crate) fn terminated(&mut self, msn: Msn, now_ns: u64) {
        let sent = self.open.iter().rev().find(|(known, _)| *known == msn);
        if let Some((_, arrived)) = sent.copied() {
            self.sends.add(arrived, now_ns);
        }
    }
}

/// Sends that a Terminate may still name: more than a full receive queue.
const SENDS_MAX: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Extent;

    #[test]
    fn the_latest_sends_are_remembered() {
        let canvas = Canvas::new(&Extent { last_ns: 1 << 20, ..Extent::default() }, 1);
        let mut answers = Answers::new(canvas, 16);
        for msn in 0..=u32::try_from(SENDS_MAX).unwrap() {
            // Each in two segments: the first counts.
            answers.send(Msn(msn), (1, u64::from(msn)));
            answers.send(Msn(msn), (2, u64::from(msn) + 9));
        }
        assert_eq!(answers.open.len(), SENDS_MAX);
        answers.terminated(Msn(0), 100);
        assert_eq!(answers.sends.latency.count(), 0, "forgotten");
        answers.terminated(Msn(1), 101);
        assert_eq!((answers.sends.latency.count(), answers.sends.latency.max_ns()), (1, 100));
    }
}
