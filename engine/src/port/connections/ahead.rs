//! Connections whose turn comes soon: their state is asked for before.
//!
//! The state of many connections is in no cache. A message touches some forty cache lines of one at each end;
//! read one after the other as the code comes to them, they cost more time than the message.
//!
//! Where a device shows the frames that it hands over next, their connections are looked up together and
//! asked for one after the other, each while frames before its own are handled. What was looked up then is
//! a guess until the frame is there: where it is used the addresses are compared.

use std::slice;

use arrayvec::ArrayVec;

use super::Connections;
use crate::limits::FRAMES_AHEAD_MAX;
use crate::port::connections::connection::PortConnection;
use crate::port::interface::demux::Glimpse;
use crate::port::tuple::Tuple;
use crate::time::Instant;

/// Connections whose state fits into the cache of a core, or nearly so. With no more than these, asking costs
/// more than it brings.
const CACHED: usize = 128;

/// Whose the frames are that come next.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Nothing for one of no connection.
    coming: ArrayVec<Option<Coming>, FRAMES_AHEAD_MAX>,
    /// Those of which the frame has come.
    come: usize,
}

/// A frame that comes soon.
#[derive(Clone, Copy, Debug)]
struct Coming {
    /// Of its addresses.
    hash: u32,
    /// The connection that it is likely to be for.
    number: u32,
    brings: Work,
}

impl Ahead {
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.coming.is_empty()
    }
}

/// Parts of a connection's state, each of which tells where the next is.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Its slot.
    Slot,
    /// What its stream has for full operation.
    Stream,
    /// What the queues of the stream and of TCP have.
    Queues,
}

/// What a connection is going to do.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Take data from the peer.
    Data,
    /// Send, or take an acknowledgment.
    Other,
}

impl Connections {
    /// Whether there are so many that their state is not in the cache.
    #[inline(always)]
    fn are_many(&self) -> bool {
        self.slots.len() > CACHED
    }

    #[inline]
    fn prefetch(&self, number: u32, part: Part, work: Work) {
        if let Part::Slot = part {
            // What is there is not looked at: that would be waited for.
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

    /// Whether it is of use to be told of frames before they come.
    #[inline(always)]
    pub(in crate::port) fn looks_ahead(&self) -> bool {
        self.are_many()
    }

    /// Whatever was told of is not to be expected any more.
    #[inline(always)]
    pub(in crate::port) fn expect_nothing(&mut self) {
        self.ahead.coming.clear();
    }

    /// Such a frame comes after those that were told of; nothing is known of one that is not like most.
    pub(in crate::port) fn expect(&mut self, glimpse: Option<Glimpse>) {
        let coming = glimpse.map(|Glimpse { tuple, data }| {
            let hash = self.tuples.hash(&tuple);
            self.tuples.prefetch(hash);
            let brings = if data { Work::Data } else { Work::Other };
            Coming { hash, number: 0, brings }
        });
        // What there is no room for comes as a surprise.
        let _is_told = self.ahead.coming.try_push(coming);
    }

    /// All were told of that come now.
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

    /// The next frame has come, and those behind it are nearer.
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

    /// The slot of the connection of these addresses, if it has one and the frame that has come last was
    /// told of.
    #[inline(never)]
    pub(super) fn find_expected(&self, tuple: &Tuple) -> Option<u32> {
        let coming = self.ahead.coming.get(self.ahead.come.checked_sub(1)?)?.as_ref()?;
        let connection = self.get(coming.number)?;
        (connection.tuple() == *tuple).then_some(coming.number)
    }

    /// A frame has come for this connection, of which was not told before, and what follows reads nearly all
    /// of its state.
    #[inline]
    pub(super) fn prefetch_found(&self, number: u32) {
        if self.are_many() {
            self.prefetch(number, Part::Slot, Work::Other);
            self.prefetch(number, Part::Stream, Work::Data);
        }
    }

    /// Queue pairs of these connections have new work: they are woken.
    pub(in crate::port) fn prefetch_rung(&self, numbers: &[u32]) {
        if self.are_many() {
            for number in numbers {
                self.slots.prefetch(*number, slice::from_ref(&PortConnection::WOKEN));
            }
        }
    }

    /// A connection whose deadline has come is taken; those behind it come soon.
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

    /// Those that are ready have their turns now, one after the other.
    pub(in crate::port) fn prefetch_first_ready(&self) {
        if self.are_many() {
            for (part, places) in STEPS {
                let first = self.ready.iter().take(places);
                first.for_each(|number| self.prefetch(*number, part, Work::Other));
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
        for (part, place) in STEPS {
            let Some(number) = self.ready.get(place) else { continue };
            self.prefetch(*number, part, Work::Other);
        }
    }
}

/// What is asked for of connections whose turns or frames come next, and how many of those before: what tells
/// where a part is, is there when that part is asked for.
const STEPS: [(Part, usize); 3] = [(Part::Slot, 5), (Part::Stream, 3), (Part::Queues, 1)];
