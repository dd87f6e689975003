//! Prefetches the state of connections that are processed next. A message touches some forty cache
//! lines of a connection at each end: waiting for them one after the other takes more time than the
//! message itself. Connections that wake, send, or have a deadline are known from the port's lists;
//! that of a received frame only from its addresses, just before it is used.

use std::slice;

use super::Connections;
use crate::port::connections::connection::PortConnection;
use crate::time::Instant;

/// Connections whose state nearly fits into the cache of a core: prefetching does not pay off.
const CACHED: usize = 128;

/// Each part holds the address of the next: it must be in the cache before.
#[derive(Clone, Copy, Debug)]
enum Part {
    Slot,
    Stream,
    Queues,
}

impl Connections {
    #[inline(always)]
    fn are_many(&self) -> bool {
        self.slots.len() > CACHED
    }

    #[inline]
    fn prefetch(&self, number: u32, part: Part) {
        if let Part::Slot = part {
            // Computes only the address of the slot: reading the slot would wait for memory.
            return self.slots.prefetch(number, &PortConnection::HOT);
        }
        let Some(PortConnection { carrier, .. }) = self.get(number) else { return };
        if let Part::Stream = part {
            return carrier.stream.prefetch(false);
        }
        carrier.stream.prefetch_queues();
        carrier.tcp.prefetch_outstanding();
    }

    /// The code that follows reads nearly all of the connection: fetches the cache lines together.
    #[inline]
    pub(super) fn prefetch_found(&self, number: u32) {
        if self.are_many() {
            self.prefetch(number, Part::Slot);
            if let Some(connection) = self.get(number) {
                connection.carrier.stream.prefetch(true);
            }
        }
    }

    /// The connections are woken next: their queue pairs have new work.
    pub(in crate::port) fn prefetch_rung(&self, numbers: &[u32]) {
        if self.are_many() {
            for number in numbers {
                self.slots.prefetch(*number, slice::from_ref(&PortConnection::WOKEN));
            }
        }
    }

    #[inline]
    pub(super) fn prefetch_due(&self, now: Instant) {
        if self.are_many() {
            if let Some(number) = self.timers.soon_due(now, 4) {
                self.slots.prefetch(number, &PortConnection::DUE);
            }
            if let Some(connection) = self.timers.soon_due(now, 2).and_then(|slot| self.get(slot)) {
                connection.carrier.stream.prefetch_deadline();
            }
        }
    }

    pub(in crate::port) fn prefetch_first_ready(&self) {
        if self.are_many() {
            for (part, places) in STEPS {
                let first = self.ready.iter().take(places);
                first.for_each(|number| self.prefetch(*number, part));
            }
        }
    }

    #[inline(always)]
    pub(in crate::port) fn prefetch_ready(&self) {
        if self.are_many() {
            self.prefetch_next();
        }
    }

    #[inline(never)]
    fn prefetch_next(&self) {
        for (part, place) in STEPS {
            let Some(number) = self.ready.get(place) else { continue };
            self.prefetch(*number, part);
        }
    }
}

/// Number of connections handled between the prefetch of a part and its use. A part is prefetched
/// later than the part that holds its address, which has arrived by then.
const STEPS: [(Part, usize); 3] = [(Part::Slot, 5), (Part::Stream, 3), (Part::Queues, 1)];
