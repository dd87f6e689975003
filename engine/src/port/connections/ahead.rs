//! Prefetches the state of connections that are processed next.
//!
//! The state of many connections does not fit into the cache. A message touches some forty cache
//! lines of a connection at each end. If the code waits for these lines one after the other, the
//! waits take more time than the message itself.
//!
//! Connections that wake, send, or have a deadline are known from the port's lists. The connection
//! of a received frame is known only from its addresses: its slot and the fields of its stream are
//! then prefetched together, just before they are used.

use std::slice;

use super::Connections;
use crate::port::connections::connection::PortConnection;
use crate::time::Instant;

/// Number of connections whose state fits, or nearly fits, into the cache of a core. Up to this
/// number, prefetching takes more time than it saves.
const CACHED: usize = 128;

/// Parts of a connection's state. Each part holds the address of the next, so it must be in the
/// cache before the next can be prefetched.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Its slot.
    Slot,
    /// Fields that its stream uses in full operation.
    Stream,
    /// Entries of the queues of the stream and of TCP.
    Queues,
}

impl Connections {
    /// Returns true if there are so many connections that their state is not in the cache.
    #[inline(always)]
    fn are_many(&self) -> bool {
        self.slots.len() > CACHED
    }

    /// Prefetches a part of a connection that sends next.
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

    /// Prefetches the state of the connection that a frame is for. The code that follows reads
    /// nearly all of it, so the cache lines are fetched at the same time instead of one after the
    /// other.
    #[inline]
    pub(super) fn prefetch_found(&self, number: u32) {
        if self.are_many() {
            self.prefetch(number, Part::Slot);
            if let Some(connection) = self.get(number) {
                connection.carrier.stream.prefetch(true);
            }
        }
    }

    /// Prefetches the flags of these connections, which are woken next because their queue pairs
    /// have new work.
    pub(in crate::port) fn prefetch_rung(&self, numbers: &[u32]) {
        if self.are_many() {
            for number in numbers {
                self.slots.prefetch(*number, slice::from_ref(&PortConnection::WOKEN));
            }
        }
    }

    /// Prefetches the state of connections whose deadlines expire next.
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

    /// Prefetches the state of the first connections to send.
    pub(in crate::port) fn prefetch_first_ready(&self) {
        if self.are_many() {
            for (part, places) in STEPS {
                let first = self.ready.iter().take(places);
                first.for_each(|number| self.prefetch(*number, part));
            }
        }
    }

    /// Prefetches the state of the next connections to send, while the current one sends.
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

/// Prefetch distances: the number of connections handled between the prefetch of a part and its
/// use. A part is prefetched later than the part that holds its address, which has arrived from
/// memory by then.
const STEPS: [(Part, usize); 3] = [(Part::Slot, 5), (Part::Stream, 3), (Part::Queues, 1)];
