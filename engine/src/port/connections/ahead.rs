//! Look-ahead: prefetches the state of connections that are processed next.
//!
//! The state of many connections does not fit into the cache. A message touches some forty cache
//! lines of a connection at each end. If the code waits for these lines one after the other, the
//! waits take more time than the message itself.
//!
//! For received frames, this requires a device that shows the frames it hands over next. The
//! beginning of such a frame is a *hint*. The port looks up the connections of all hinted frames at
//! once. While it handles one frame, it prefetches for the frames behind it. A connection found by
//! a hint is a guess, made from the hash of the addresses: the addresses are compared when the
//! frame arrives. Frames without a hint take the ordinary look-up.
//!
//! Connections that wake, send, or have a deadline are known from the port's lists, and need no
//! hints.

use std::slice;

use arrayvec::ArrayVec;

use super::Connections;
use crate::limits::FRAMES_AHEAD_MAX;
use crate::port::connections::connection::PortConnection;
use crate::port::interface::demux::Glimpse;
use crate::port::tuple::Tuple;
use crate::time::Instant;

/// Number of connections whose state fits, or nearly fits, into the cache of a core. Up to this
/// number, prefetching takes more time than it saves.
const CACHED: usize = 128;

/// The hints, and the connections that they led to.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The hinted frames, in order; `None` for an unusual frame, and for a frame of no connection.
    coming: ArrayVec<Option<Coming>, FRAMES_AHEAD_MAX>,
    /// Number of hinted frames that have arrived.
    come: usize,
}

/// A hinted frame.
#[derive(Clone, Copy, Debug)]
struct Coming {
    /// Hash of its addresses.
    hash: u32,
    /// Connection that the frame is probably for; 0 until it is looked up.
    number: u32,
    brings: Work,
}

impl Ahead {
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.coming.is_empty()
    }
}

/// Parts of a connection's state. Each part holds the address of the next, so it must be in the
/// cache before the next can be prefetched.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Its slot.
    Slot,
    /// Fields that its stream uses in full operation.
    Stream,
    /// Entries of the queues of the stream and of TCP. For received data, the counts instead.
    Queues,
}

/// The work that a connection does next.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Receive data from the peer.
    Data,
    /// Send, or receive an acknowledgment.
    Other,
}

impl Connections {
    /// Returns true if there are so many connections that their state is not in the cache.
    #[inline(always)]
    fn are_many(&self) -> bool {
        self.slots.len() > CACHED
    }

    #[inline]
    fn prefetch(&self, number: u32, part: Part, work: Work) {
        if let Part::Slot = part {
            // Computes only the address of the slot: reading the slot would wait for memory.
            let parts = match work {
                Work::Data => &PortConnection::HOT_FOR_DATA,
                Work::Other => &PortConnection::HOT,
            };
            return self.slots.prefetch(number, parts);
        }
        let Some(PortConnection { carrier, .. }) = self.get(number) else { return };
        match (part, work) {
            (Part::Slot, _) => {}
            (Part::Stream, _) => carrier.stream.prefetch(matches!(work, Work::Data)),
            (Part::Queues, Work::Data) => carrier.stream.prefetch_counts(),
            (Part::Queues, Work::Other) => {
                carrier.stream.prefetch_queues();
                carrier.tcp.prefetch_outstanding();
            }
        }
    }

    /// Returns true if the state of the connections exceeds the cache, so that hints pay off.
    #[inline(always)]
    pub(in crate::port) fn looks_ahead(&self) -> bool {
        self.are_many()
    }

    /// Discards all hints.
    #[inline(always)]
    pub(in crate::port) fn expect_nothing(&mut self) {
        self.ahead.coming.clear();
    }

    /// Adds a hint for the frame after those hinted so far; `None` for an unusual frame.
    pub(in crate::port) fn expect(&mut self, glimpse: Option<Glimpse>) {
        let coming = glimpse.map(|Glimpse { tuple, data }| {
            let hash = self.tuples.hash(&tuple);
            self.tuples.prefetch(hash);
            let brings = if data { Work::Data } else { Work::Other };
            Coming { hash, number: 0, brings }
        });
        // Hints beyond the capacity are dropped; those frames are handled without prefetch.
        let _is_told = self.ahead.coming.try_push(coming);
    }

    /// Looks up the connections of all hinted frames, and prefetches for the first of them. Called
    /// when no further hints follow.
    pub(in crate::port) fn look_up_expected(&mut self) {
        let Self { ahead, tuples, .. } = self;
        ahead.come = 0;
        for coming in &mut ahead.coming {
            *coming = coming
                .and_then(|coming| Some(Coming { number: tuples.guess(coming.hash)?, ..coming }));
        }
        for (part, places) in STEPS {
            (0..places).for_each(|place| self.prefetch_coming(place, part));
        }
    }

    /// Notes that the next frame arrived, and prefetches for the frames behind it.
    #[inline(always)]
    pub(in crate::port) fn frame_comes(&mut self) {
        if !self.ahead.is_empty() {
            self.come_nearer();
        }
    }

    #[inline(never)]
    fn come_nearer(&mut self) {
        let come = self.ahead.come;
        self.ahead.come = come + 1;
        for (part, places) in STEPS {
            self.prefetch_coming(come + places, part);
        }
    }

    #[inline]
    fn prefetch_coming(&self, place: usize, part: Part) {
        if let Some(Some(coming)) = self.ahead.coming.get(place) {
            self.prefetch(coming.number, part, coming.brings);
        }
    }

    /// Returns the slot of the connection with these addresses, if it has one and the frame that
    /// arrived last was hinted.
    #[inline(never)]
    pub(super) fn find_expected(&self, tuple: &Tuple) -> Option<u32> {
        let coming = self.ahead.coming.get(self.ahead.come.checked_sub(1)?)?.as_ref()?;
        let connection = self.get(coming.number)?;
        (connection.tuple() == *tuple).then_some(coming.number)
    }

    /// Prefetches a connection's state for a frame without a hint. The code that follows reads
    /// nearly all of it, so the cache lines are fetched at the same time instead of one after the
    /// other.
    #[inline]
    pub(super) fn prefetch_found(&self, number: u32) {
        if self.are_many() {
            self.prefetch(number, Part::Slot, Work::Other);
            self.prefetch(number, Part::Stream, Work::Data);
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
                first.for_each(|number| self.prefetch(*number, part, Work::Other));
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
            self.prefetch(*number, part, Work::Other);
        }
    }
}

/// Prefetch distances: the number of connections handled between the prefetch of a part and its
/// use. A part is prefetched later than the part that holds its address, which has arrived from
/// memory by then.
const STEPS: [(Part, usize); 3] = [(Part::Slot, 5), (Part::Stream, 3), (Part::Queues, 1)];
