//! Announces the regions of published memory to the backend, and withdraws them, while frames flow.
//!
//! The files of these regions cannot be mapped writable. A backend that maps all memory writable
//! refuses them, and the frontend copies their bytes instead.
//!
//! Three threads may be involved: one that publishes or withdraws memory, the thread of the first
//! device, which calls [`turn`](Announced::turn), and the thread of a virtqueue pair's device,
//! which sends frames.
//!
//! 1. An application publishes or withdraws memory, which changes the publisher's generation. From
//!    then on no virtqueue pair sends by reference, since the pair's generation ([`Readable`]) is
//!    another.
//! 2. `turn` removes withdrawn regions from each virtqueue pair, under the pair's lock, and gives
//!    the pair the publisher's generation: it sends by reference again.
//! 3. `turn` sends `REM_MEM_REG` for a withdrawn region when the backend has returned all frames by
//!    reference that were sent before step 2.
//! 4. `turn` sends `ADD_MEM_REG` for new regions, up to the number that the backend accepts.
//! 5. When the backend accepts a region, [`answer`](Announced::answer) adds it to the virtqueue
//!    pairs. When the backend refuses a region, its bytes are copied.
//!
//! Racy cases:
//!
//! - *Memory is withdrawn while a frame that refers to it is in the ring.* The backend reads it
//!   until step 3: its mapping keeps the memory.
//! - *Memory is withdrawn between steps 4 and 5.* `answer` does not find the region in the
//!   publisher. The next `turn` removes it from the backend.
//! - *Memory is withdrawn while `answer` runs.* `answer` may add the region after the withdrawal.
//!   But the withdrawal has made all virtqueue pairs outdated, so none uses the region before step
//!   2 removes it.
//! - *The socket is full.* `turn` continues at the next call with the first message not sent.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use tracing::debug;

use super::pair::{Pair, SharedPair};
use super::readable::Readable;
use super::request::send;
use crate::TRACE;
use crate::peer::channel::{Channel, ChannelError};
use crate::published::{Publisher, Region};
use crate::vhost_user::message::{MemoryRegion, Request};

/// Guest address of the first region, far above the memory of the queues.
const BASE: u64 = 1 << 40;
/// Alignment of regions, and smallest gap between two: a page.
const GAP: u64 = 4096;

/// Regions announced to the backend.
#[derive(Debug)]
pub(super) struct Announced {
    publisher: Publisher,
    /// Generation of the publisher when `turn` last looked at it.
    generation: u64,
    /// True if there may be regions that are not announced yet.
    is_behind: bool,
    /// Limit of the sum of `asked`, `taken` and `leaving`: the number of regions that the backend
    /// accepts, without the one of the queues.
    slots: u64,
    /// Guest address of the next region to announce.
    next: u64,
    /// Lowest ID that a region to announce can have: those with lower IDs were announced.
    next_id: u64,
    /// Announced regions that the backend has not answered yet, oldest first.
    asked: VecDeque<Announcement>,
    /// Regions that the backend accepted and that are not withdrawn.
    taken: Vec<Announcement>,
    /// Withdrawn regions that the backend still has mapped, oldest withdrawal first.
    leaving: VecDeque<Leaving>,
}

/// Announced region.
#[derive(Clone, Copy, Debug)]
struct Announcement {
    /// [`Region::id`].
    id: u64,
    region: MemoryRegion,
}

/// Withdrawn region that the backend still has mapped.
#[derive(Debug)]
struct Leaving {
    region: MemoryRegion,
    /// For each virtqueue pair the number of frames by reference sent before the withdrawal.
    sent: Vec<u64>,
}

/// Error: the backend sent an answer without a request.
#[derive(Debug)]
pub(super) struct Unasked;

impl Announced {
    /// Creates an empty list for a backend that accepts `slots` regions.
    pub(super) fn new(publisher: &Publisher, slots: u64) -> Self {
        Self {
            publisher: publisher.clone(),
            generation: publisher.generation(),
            is_behind: true,
            slots,
            next: BASE,
            next_id: 0,
            asked: VecDeque::new(),
            taken: Vec::new(),
            leaving: VecDeque::new(),
        }
    }

    /// Returns true if the publisher has changed since the last [`turn`](Self::turn).
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.publisher.generation() != self.generation
    }

    /// Applies the publisher's changes to the virtqueue pairs and sends them to the backend, until
    /// the socket is full.
    ///
    /// # Errors
    /// If the socket has failed.
    pub(super) fn turn(
        &mut self,
        channel: &Channel,
        pairs: &[Arc<SharedPair>],
    ) -> Result<(), ChannelError> {
        if self.is_outdated() {
            self.is_behind = true;
            self.take_out(pairs);
        }
        match self.let_go(channel, pairs).and_then(|()| self.tell(channel)) {
            Err(error) if error.is_full() => Ok(()),
            outcome => outcome,
        }
    }

    /// Removes withdrawn regions from all virtqueue pairs, and gives the pairs the publisher's
    /// generation.
    fn take_out(&mut self, pairs: &[Arc<SharedPair>]) {
        let Self { publisher, generation, taken, leaving, .. } = self;
        let (now, ids) = publisher
            .look(|now, regions| (now, regions.iter().map(|region| region.id).collect::<Vec<_>>()));
        *generation = now;
        let is_there = |id| ids.binary_search(&id).is_ok();
        let sent = readable_of_all(pairs, |readable| {
            readable.regions.retain(|entry| is_there(entry.id));
            readable.set_current(now);
            readable.sent()
        });
        taken.retain(|told| {
            let stays = is_there(told.id);
            if !stays {
                leaving.push_back(Leaving { region: told.region, sent: sent.clone() });
            }
            stays
        });
    }

    /// Removes withdrawn regions from the backend, oldest withdrawal first, up to the first one
    /// that a frame at the backend may refer to.
    fn let_go(&mut self, channel: &Channel, pairs: &[Arc<SharedPair>]) -> Result<(), ChannelError> {
        while let Some(leaving) = self.leaving.front() {
            let mut sent = leaving.sent.iter();
            let is_out = readable_of_all(pairs, |readable| {
                sent.next().is_some_and(|sent| readable.is_out(*sent))
            });
            if is_out.contains(&true) {
                return Ok(());
            }
            send(channel, &Request::RemoveMemoryRegion(leaving.region), false, &[])?;
            self.leaving.pop_front();
        }
        Ok(())
    }

    /// Announces regions to the backend, up to the number that it accepts.
    fn tell(&mut self, channel: &Channel) -> Result<(), ChannelError> {
        while self.is_behind {
            let count = self.asked.len() + self.taken.len() + self.leaving.len();
            if count as u64 >= self.slots {
                return Ok(());
            }
            let region = self.publisher.look(|_, regions| {
                let at = regions.partition_point(|region| region.id < self.next_id);
                regions.get(at).cloned()
            });
            let end = region.as_ref().and_then(|region| self.next.checked_add(region.len as u64));
            let next = end.and_then(|end| end.checked_add(GAP)?.checked_next_multiple_of(GAP));
            let (Some(Region { id, len, file, .. }), Some(next)) = (region, next) else {
                self.is_behind = false;
                return Ok(());
            };
            let (guest, user) = (self.next, self.next);
            let region = MemoryRegion { guest, len: len as u64, user, offset: 0 };
            send(channel, &Request::AddMemoryRegion(region), true, &[file.as_fd()])?;
            (self.next, self.next_id) = (next, id + 1);
            self.asked.push_back(Announcement { id, region });
        }
        Ok(())
    }

    /// Handles the backend's answer for the oldest unanswered region.
    ///
    /// # Errors
    /// [`Unasked`].
    pub(super) fn answer(&mut self, word: u64, pairs: &[Arc<SharedPair>]) -> Result<(), Unasked> {
        let told = self.asked.pop_front().ok_or(Unasked)?;
        if word != 0 {
            debug!(target: TRACE, word, "a backend refused published memory: it is copied");
            return Ok(());
        }
        let region = self.publisher.look(|_, regions| {
            let at = regions.binary_search_by_key(&told.id, |region| region.id).ok()?;
            Some(regions[at].clone())
        });
        if let Some(region) = region {
            // If the region is withdrawn from here on, the virtqueue pairs are outdated. They do
            // not use it before the next `turn` has removed it.
            readable_of_all(pairs, |readable| readable.regions.insert(&region, told.region.guest));
            self.taken.push(told);
        } else {
            let sent = vec![0; pairs.len()];
            self.leaving.push_back(Leaving { region: told.region, sent });
        }
        Ok(())
    }
}

/// Calls `each` for the published memory of each virtqueue pair, under the pair's lock. Returns the
/// results.
///
/// Do not call this inside `Publisher::look`, which holds the publisher's lock. A device hands
/// frames over while it holds the lock of its pair, and the receiver of a frame may publish or
/// withdraw memory: the two threads would deadlock.
fn readable_of_all<R>(
    pairs: &[Arc<SharedPair>],
    mut each: impl FnMut(&mut Readable) -> R,
) -> Vec<R> {
    let mut said = Vec::with_capacity(pairs.len());
    for shared in pairs {
        let Pair { queues, .. } = &mut *shared.lock();
        said.extend(queues.as_mut().and_then(|queues| queues.readable.as_mut()).map(&mut each));
    }
    said
}
