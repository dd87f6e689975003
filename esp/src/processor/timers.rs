//! Timers: lifetimes, packets that waited too long, NAT-keepalives.

use super::{Esp, Event};
use crate::association::{Opener, Sealer};
use crate::counters::DropReason;
use crate::policy::Direction;

impl Esp {
    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called, if there
    /// is one.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.deadline_ns.is_none_or(|deadline_ns| now_ns < deadline_ns) {
            return;
        }
        for _ in 0..self.waiting.expire(now_ns) {
            self.counters.drop(DropReason::NoAssociation);
        }
        let mut events = Vec::new();
        let mut event = |direction, spi, purpose, hard| {
            events.push(Event::Expire { direction, spi, purpose, hard });
        };
        self.inbound.retain(|spi, opener| {
            let (is_old, purpose) = (opener.is_old(now_ns), opener.purpose());
            if is_old || opener.take_soft(now_ns) {
                event(Direction::In, *spi, purpose, is_old);
            }
            !is_old
        });
        self.outbound.retain(|purpose, sealers| {
            let count = sealers.len();
            sealers.retain_mut(|sealer| {
                let is_old = sealer.is_old(now_ns);
                if is_old || sealer.take_soft(now_ns) {
                    event(Direction::Out, sealer.spi(), *purpose, is_old);
                }
                !is_old
            });
            self.outbound_count -= count - sealers.len();
            let wants = sealers.last().is_some_and(|sealer| sealer.wants_keepalive(now_ns));
            if wants && !self.keepalives.contains(purpose) {
                self.keepalives.push_back(*purpose);
            }
            !sealers.is_empty()
        });
        events.into_iter().for_each(|event| self.raise(event));
        self.deadline_ns = self.next_deadline(now_ns);
    }

    /// Returns the next time at which something expires. A keepalive that is due and was not yet
    /// taken is no such time.
    fn next_deadline(&self, now_ns: u64) -> Option<u64> {
        let inbound = self.inbound.values().filter_map(Opener::deadline);
        let newest = self.outbound.values().flatten().filter_map(Sealer::deadline);
        let all = inbound.chain(newest).chain(self.waiting.deadline());
        all.filter(|deadline_ns| *deadline_ns > now_ns).min()
    }
}
