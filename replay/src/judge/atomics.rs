//! The atomic operations of one requester (RFC 7306 §5).

use std::collections::VecDeque;

use super::findings::{Findings, Kind};
use crate::figures::plural;
use crate::limits::{Holding, Room};

/// Atomic Requests and Responses, matched in either order of arrival.
#[derive(Debug)]
pub(crate) struct Atomics {
    /// Identifier and frame of each.
    requests: VecDeque<(u32, u64)>,
    responses: VecDeque<(u32, u64)>,
    /// Set while all were seen, and kept until they were matched.
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

    /// Stops matching, because bytes of either stream were missed, or there was no room.
    pub(crate) fn forget(&mut self, notes: &mut Room) {
        self.held.give_all(notes);
        *self = Self { is_complete: false, ..Self::new() };
    }

    /// Number of requests without an answer so far.
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

    /// Takes room for one more; stops matching if there is none.
    fn has_room(&mut self, notes: &mut Room) -> bool {
        if self.is_complete && !self.held.take(notes) {
            self.forget(notes);
        }
        self.is_complete
    }

    /// Matches Requests and Responses. RFC 7306 §5.2.2: Responses come in the order of the
    /// Requests, each with the identifier of its Request.
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

    /// Checks the rest at the end of the capture. `all_seen`: the requester's stream was delivered
    /// completely.
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
