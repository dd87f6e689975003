//! Answers to the peer's Reads and Atomics (RFC 5040 §5.2, RFC 7306 §5.3).

use std::collections::VecDeque;

use crate::ddp::tx::Target;
use crate::stream::tx::message::{Message, Source, untagged};
use crate::types::{Msn, QueueNumber};
use crate::wire::rdmap::{AtomicResponse, Opcode, ReadRequest};

#[derive(Debug)]
struct Response {
    kind: ResponseKind,
    unacknowledged: u32,
    framed: bool,
}

#[derive(Debug)]
pub(crate) enum ResponseKind {
    /// The Request, and its message number. The memory is looked up and copied at framing.
    Read { request: ReadRequest, msn: Msn },
    /// An Atomic Response.
    Atomic(AtomicResponse),
}

impl ResponseKind {
    const fn is_empty(&self) -> bool {
        matches!(self, Self::Read { request: ReadRequest { size: 0, .. }, .. })
    }
}

/// Responses by number; the stream's first has number 0.
#[derive(Debug)]
pub(crate) struct Responses {
    entries: VecDeque<Response>,
    base: u64,
    next: u64,
    unframed: usize,
    atomic_msn: Msn,
}

impl Responses {
    pub(super) const fn new() -> Self {
        Self { entries: VecDeque::new(), base: 0, next: 0, unframed: 0, atomic_msn: Msn::FIRST }
    }

    #[cfg(test)]
    pub(super) const fn start_at(&mut self, msn: Msn) {
        self.atomic_msn = msn;
    }

    pub(super) fn push(&mut self, kind: ResponseKind) {
        self.entries.push_back(Response { kind, unacknowledged: 0, framed: false });
        self.unframed += 1;
    }

    /// Drops the newest answers, back to the first that was begun or has payload.
    pub(super) fn forget_empty(&mut self) {
        while self.has_next() && self.entries.back().is_some_and(|last| last.kind.is_empty()) {
            self.entries.pop_back();
            self.unframed -= 1;
        }
    }

    pub(super) const fn unframed(&self) -> usize {
        self.unframed
    }

    pub(super) fn has_next(&self) -> bool {
        self.index(self.next) < self.entries.len()
    }

    #[inline]
    pub(super) fn next_is_empty(&self) -> bool {
        self.entries.get(self.index(self.next)).is_some_and(|next| next.kind.is_empty())
    }

    /// Returns true if answers wait to become messages and none of them has payload.
    pub(super) fn are_empty_ones(&self) -> bool {
        let mut waiting = self.entries.iter().skip(self.index(self.next)).peekable();
        waiting.peek().is_some() && waiting.all(|response| response.kind.is_empty())
    }

    // spec: RDMAP-5.2.2-4, RDMAP-5.5-20
    pub(super) fn next(&mut self) -> Option<Message> {
        let number = self.next;
        let response = self.entries.get(self.index(number))?;
        self.next += 1;
        Some(match &response.kind {
            ResponseKind::Read { request, .. } => {
                // RFC 5040 §4.4: the sink's STag and TO are copied uninterpreted.
                // spec: RDMAP-4.4-1, RDMAP-5.2.2-1
                let target = Target::Tagged { stag: request.sink_stag, to: request.sink_to };
                let source = Source::Response(number);
                Message::gathered(target, Opcode::ReadResponse, source, request.size)
            }
            ResponseKind::Atomic(answer) => {
                // spec: EXT-5.2.2-1, EXT-5.2.2-4
                let target = untagged(QueueNumber::ATOMIC_RESPONSE, self.atomic_msn);
                self.atomic_msn = self.atomic_msn.next();
                let source = Source::Response(number);
                Message::inline(target, Opcode::AtomicResponse, source, &answer.to_bytes())
            }
        })
    }

    /// Records that `count` FPDUs of a Response were framed; `last` if they end it.
    pub(super) fn framed(&mut self, number: u64, count: u32, last: bool) {
        let index = self.index(number);
        let response = &mut self.entries[index];
        response.unacknowledged += count;
        if last {
            response.framed = true;
            self.unframed -= 1;
        }
    }

    pub(super) fn acknowledged(&mut self, number: u64, count: u32) {
        let index = self.index(number);
        self.entries[index].unacknowledged -= count;
        while self.entries.front().is_some_and(|r| r.framed && r.unacknowledged == 0) {
            self.entries.pop_front();
            self.base += 1;
        }
    }

    /// The Read Request that a Response answers, with its message number.
    pub(super) fn read_request(&self, number: u64) -> Option<(&ReadRequest, Msn)> {
        match &self.entries[self.index(number)].kind {
            ResponseKind::Read { request, msn } => Some((request, *msn)),
            ResponseKind::Atomic(_) => None,
        }
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.base).expect("a queue fits the address space")
    }
}
