//! The atomic operations of one requester (RFC 7306 §5).

use std::collections::VecDeque;

use super::findings::{Findings, Kind};
use crate::figures::plural;
use crate::limits::{Holding, Room};

/// Matches Requests and Responses in either order of arrival.
#[derive(Debug)]
pub(crate) struct Atomics {
    requests: VecDeque<(u32, u64)>,
    responses: VecDeque<(u32, u64)>,
    /// True while all were seen, and kept until they were matched.
    is_complete: bool,
    held: Holding,
}

impl Atomics {
    pub(crate) const fn new() -> Self {
        Self {
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            is_complete: true,
            held: Holding::of_notes(),
        }
    }

    /// Bytes of either stream were missed, or there was no room.
    pub(crate) fn forget(&mut self, notes: &mut Room) {
        self.held.give_all(notes);
        *self = Self { is_complete: false, ..Self::new() };
    }

    pub(crate) fn open(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn request(&mut self, asked: (u32, u64), notes: &mut Room, findings: &mut Findings) {
        if self.has_room(notes) {
            self.requests.push_back(asked);
            self.match_up(notes, findings);
        }
    }

    pub(crate) fn response(
        &mut self,
        answered: (u32, u64),
        notes: &mut Room,
        findings: &mut Findings,
    ) {
        if self.has_room(notes) {
            self.responses.push_back(answered);
            self.match_up(notes, findings);
        }
    }

    /// Stops matching if there is none.
    fn has_room(&mut self, notes: &mut Room) -> bool {
        if self.is_complete && !self.held.take(notes) {
            self.forget(notes);
        }
        self.is_complete
    }

    /// RFC 7306 §5.2.2: Responses come in the order of the Requests, each with its identifier.
    fn match_up(&mut self, notes: &mut Room, findings: &mut Findings) {
        while let (Some(&(asked, asked_in)), Some(&(answered, frame))) =
            (self.requests.front(), self.responses.front())
        {
            self.requests.pop_front();
            self.responses.pop_front();
            self.held.give(2, notes);
            if asked != answered {
                findings.add(Kind::AtomicMismatch, "", frame, || {
                    format!(
                        "Atomic Response with Original Request Identifier {answered:#x}; the Request of \
                         frame {asked_in} has {asked:#x}"
                    )
                });
            }
        }
    }

    /// `all_seen`: the requester's stream was delivered completely.
    pub(crate) fn finish(&mut self, all_seen: bool, notes: &mut Room, findings: &mut Findings) {
        self.held.give_all(notes);
        if let Some((_, frame)) = self.responses.front().filter(|_| all_seen) {
            let count = self.responses.len();
            findings.add(Kind::AtomicUnasked, "", *frame, || {
                let responses = plural(count as u64, "Atomic Response");
                format!("{responses} that no Atomic Request asked for")
            });
        }
        if let Some((_, frame)) = self.requests.front() {
            let count = self.requests.len();
            findings.add(Kind::AtomicUnanswered, "", *frame, || {
                let requests = plural(count as u64, "Atomic Request");
                format!("{requests} without a Response in the capture")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::findings::Listing;
    use crate::report::Severity;

    /// A Request or a Response, with its identifier and frame; or missed bytes.
    #[derive(Clone, Copy)]
    enum Step {
        Asks(u32, u64),
        Answers(u32, u64),
        Misses,
    }

    use Step::{Answers, Asks, Misses};

    /// Returns the open requests before the end, and the findings: severity, frame and text.
    fn judged(
        steps: &[Step],
        all_seen: bool,
        room: usize,
    ) -> (usize, Vec<(Severity, u64, String)>) {
        let mut notes = Room::new(room);
        let (mut atomics, mut findings) = (Atomics::new(), Findings::new(Listing::new()));
        for step in steps {
            match *step {
                Asks(id, frame) => atomics.request((id, frame), &mut notes, &mut findings),
                Answers(id, frame) => atomics.response((id, frame), &mut notes, &mut findings),
                Misses => atomics.forget(&mut notes),
            }
        }
        let open = atomics.open();
        atomics.finish(all_seen, &mut notes, &mut findings);
        assert!(notes.take(room), "all room is given back");
        let found = findings.into_found().list.into_iter();
        (open, found.map(|one| (one.severity, one.frame, one.text)).collect())
    }

    #[test]
    fn requests_and_responses_are_matched_in_order() {
        let mismatch = |frame, answered: &str, asked_in: u64, asked: &str| {
            let text = format!(
                "Atomic Response with Original Request Identifier {answered}; the Request of frame \
                 {asked_in} has {asked}"
            );
            (Severity::Error, frame, text)
        };
        let unasked = |frame, count: &str| {
            let text = format!("{count} that no Atomic Request asked for");
            (Severity::Error, frame, text)
        };
        let unanswered = |frame, count: &str| {
            let text = format!("{count} without a Response in the capture");
            (Severity::Note, frame, text)
        };
        let cases: [(&[Step], bool, usize, Vec<_>); 10] = [
            (&[], true, 0, vec![]),
            (&[Asks(5, 1), Answers(5, 2), Asks(6, 3), Answers(6, 4)], true, 0, vec![]),
            (&[Answers(5, 1), Asks(5, 2)], true, 0, vec![]),
            (&[Asks(5, 1), Answers(6, 2)], true, 0, vec![mismatch(2, "0x6", 1, "0x5")]),
            (&[Answers(6, 2), Asks(5, 3)], true, 0, vec![mismatch(2, "0x6", 3, "0x5")]),
            (
                &[Asks(1, 1), Asks(2, 2), Answers(1, 3)],
                true,
                1,
                vec![unanswered(2, "1 Atomic Request")],
            ),
            (&[Asks(1, 4), Asks(2, 5)], false, 2, vec![unanswered(4, "2 Atomic Requests")]),
            (&[Answers(1, 7), Answers(2, 8)], true, 0, vec![unasked(7, "2 Atomic Responses")]),
            (&[Answers(1, 7)], false, 0, vec![]),
            (&[Asks(1, 1), Misses, Asks(2, 2), Answers(3, 3)], true, 0, vec![]),
        ];
        for (index, (steps, all_seen, open, expected)) in cases.into_iter().enumerate() {
            assert_eq!(judged(steps, all_seen, 1 << 20), (open, expected), "case {index}");
        }
    }

    /// Matched pairs give their room back, which is checked at the end of each case.
    #[test]
    fn few_open_requests_need_little_room() {
        let pairs = (0..100).flat_map(|id| [Asks(id, 1), Answers(id, 2)]);
        let steps: Vec<_> = pairs.chain([Asks(100, 3), Answers(7, 4)]).collect();
        assert_eq!(judged(&steps, true, 0).1.len(), 1, "the last pair is still matched");
        let steps: Vec<_> = (0..100).map(|id| Asks(id, 1)).collect();
        assert_eq!(judged(&steps, true, 1000).0, 100);
    }

    #[test]
    fn without_room_nothing_is_matched_any_longer() {
        let steps: Vec<_> = (0..1000).map(|id| Asks(id, 1)).chain([Answers(7, 2)]).collect();
        assert_eq!(judged(&steps, true, 10), (0, Vec::new()));
    }
}
