//! Regions of published memory announced to the backend, one by one, while the queues run.
//!
//! The backend gets files that it can map read-only only. A backend that maps all memory writable
//! refuses them; their bytes are copied instead.
//!
//! 1. Publishing or withdrawing memory, in any thread, changes the publisher's generation. A
//!    virtqueue pair refers to published memory only while its own generation is the publisher's
//!    ([`Readable`]).
//! 2. [`turn`](Announced::turn) removes withdrawn regions from all pairs and updates their
//!    generation. Then it removes the regions from the backend, each after the backend has returned
//!    all frames that refer to it.
//! 3. `turn` announces new regions, as far as the backend has room. The pairs use a region after
//!    the backend has accepted it ([`answer`](Announced::answer)).

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

/// Guest address of the first region: far behind the memory of the queues.
const BASE: u64 = 1 << 40;
/// Alignment of regions, and least gap between two: a page.
const GAP: u64 = 4096;

/// Regions announced to the backend.
#[derive(Debug)]
pub(super) struct Announced {
    publisher: Publisher,
    /// Generation of the publisher at the last poll.
    generation: u64,
    /// True if there may be regions that are not announced yet.
    is_behind: bool,
    /// Regions that the backend has room for.
    slots: u64,
    /// Guest address of the next region.
    next: u64,
    /// Regions with a lower ID were announced.
    next_id: u64,
    /// Announced regions without the backend's answer, oldest first.
    asked: VecDeque<Told>,
    /// Regions that the backend accepted.
    taken: Vec<Told>,
    /// Withdrawn regions that the backend still has mapped.
    leaving: VecDeque<Leaving>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    id: u64,
    region: MemoryRegion,
}

#[derive(Debug)]
struct Leaving {
    region: MemoryRegion,
    /// For each queue pair the number of referring frames sent before the withdrawal.
    sent: Vec<u64>,
}

/// Error: an answer without a request.
#[derive(Debug)]
pub(super) struct Unasked;

impl Announced {
    /// Creates an empty list. The backend has room for `slots` regions.
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

    /// Returns true if the publisher has changed since the last poll.
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.publisher.generation() != self.generation
    }

    /// Updates queue pairs and backend, as far as the socket has room.
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

    /// Makes all queue pairs stop using withdrawn regions.
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

    /// Removes from the backend all withdrawn regions that no outstanding frame refers to.
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

    /// Announces regions to the backend, as many as it has room for.
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
            self.asked.push_back(Told { id, region });
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
            // If the region is withdrawn meanwhile, the queue pairs are outdated. They do not use
            // it before the next `turn` has removed it.
            readable_of_all(pairs, |readable| readable.regions.insert(&region, told.region.guest));
            self.taken.push(told);
        } else {
            let sent = vec![0; pairs.len()];
            self.leaving.push_back(Leaving { region: told.region, sent });
        }
        Ok(())
    }
}

/// Calls `each` for the published memory of each queue pair. Returns the results.
///
/// Do not call this inside `Publisher::look`: a thread that holds the lock of a pair may publish or
/// withdraw memory when the application gets a frame.
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
