//! Connections whose turn comes soon: their state is asked for before.
//!
//! The state of many connections is in no cache. A message touches some forty cache lines of one at each end;
//! read one after the other as the code comes to them, they cost more time than the message.

use super::Connections;
use crate::mem::region::prefetch::prefetch_part;
use crate::port::connections::connection::PortConnection;

/// Connections whose state fits into the cache of a core, or nearly so. With no more than these, asking costs
/// more than it brings.
const CACHED: usize = 128;

/// Parts of a connection's state, each of which tells where the next is.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Its slot.
    Slot,
    /// What its stream has for full operation.
    Stream,
    /// What the stream's queues have.
    Queues,
}

impl Connections {
    /// Whether there are so many that their state is not in the cache.
    #[inline(always)]
    fn are_many(&self) -> bool {
        self.slots.len() > CACHED
    }

    #[inline]
    fn prefetch(&self, number: u32, part: Part) {
        let Some(connection) = self.get(number) else { return };
        match part {
            Part::Slot => {
                PortConnection::HOT.iter().for_each(|part| prefetch_part(connection, part))
            }
            Part::Stream => connection.carrier.stream.prefetch(),
            Part::Queues => connection.carrier.stream.prefetch_queues(),
        }
    }

    /// A frame has come for this connection, and what follows reads nearly all of its state.
    #[inline]
    pub(super) fn prefetch_found(&self, number: u32) {
        if self.are_many() {
            self.prefetch(number, Part::Slot);
            self.prefetch(number, Part::Stream);
        }
    }

    /// Queue pairs of these connections have new work.
    pub(in crate::port) fn prefetch_rung(&self, numbers: &[u32]) {
        if self.are_many() {
            for part in [Part::Slot, Part::Stream] {
                numbers.iter().for_each(|number| self.prefetch(*number, part));
            }
        }
    }

    /// One has its turn to send; those behind it come soon, and while it sends their state comes from
    /// memory.
    #[inline(always)]
    pub(in crate::port) fn prefetch_ready(&self) {
        if self.are_many() {
            self.prefetch_next();
        }
    }

    #[inline(never)]
    fn prefetch_next(&self) {
        for (place, part) in [Part::Queues, Part::Stream, Part::Slot].into_iter().enumerate() {
            let Some(number) = self.ready.get(place) else { return };
            self.prefetch(*number, part);
        }
    }
}
