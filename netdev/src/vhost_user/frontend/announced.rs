//! Published memory that the backend is told of, region by region, while the queues run.
//!
//! It is given files that it can map to be read and in no other way. A backend that maps all memory to be written
//! refuses them, and then what is in them is copied.

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

/// What descriptors call the first byte of the first region: far behind the memory of the queues.
const BASE: u64 = 1 << 40;
/// Regions are so far apart, at least, and begin at multiples of it: a page.
const GAP: u64 = 4096;

/// What the backend was told.
#[derive(Debug)]
pub(super) struct Announced {
    publisher: Publisher,
    /// The publisher's when it was looked at last.
    generation: u64,
    /// There may be regions that the backend was not told of.
    is_behind: bool,
    /// Regions that the backend has room for.
    slots: u64,
    /// What the next region is called.
    next: u64,
    /// Regions before this one were told.
    next_id: u64,
    /// Those that the backend has not answered for.
    asked: VecDeque<Told>,
    /// Those that it has.
    taken: Vec<Told>,
    /// Those that were withdrawn, and that it has.
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
    /// For each pair of queues how many frames had been sent that may refer to it.
    sent: Vec<u64>,
}

/// An answer that was not asked for.
#[derive(Debug)]
pub(super) struct Unasked;

impl Announced {
    /// Nothing is told as yet. The backend takes `slots` regions.
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

    /// Whether the publisher has changed since it was looked at.
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.publisher.generation() != self.generation
    }

    /// Brings pairs and backend up to date, as far as the socket has room.
    ///
    /// # Errors
    /// When the socket is of no use any more.
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

    /// Has the pairs refer no more to what is no more.
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

    /// Takes from the backend what was withdrawn and what no frame refers to that it has.
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

    /// Tells the backend of regions, as many as it has room for.
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

    /// The backend has answered for the region that was told first.
    ///
    /// # Errors
    /// [`Unasked`].
    pub(super) fn answer(&mut self, word: u64, pairs: &[Arc<SharedPair>]) -> Result<(), Unasked> {
        let told = self.asked.pop_front().ok_or(Unasked)?;
        if word != 0 {
            debug!(target: TRACE, word, "a backend does not take published memory: it is copied");
            return Ok(());
        }
        let region = self.publisher.look(|_, regions| {
            let at = regions.binary_search_by_key(&told.id, |region| region.id).ok()?;
            Some(regions[at].clone())
        });
        if let Some(region) = region {
            // If it is withdrawn now, the pairs are not current, and it is taken out before they are.
            readable_of_all(pairs, |readable| readable.regions.insert(&region, told.region.guest));
            self.taken.push(told);
        } else {
            let sent = vec![0; pairs.len()];
            self.leaving.push_back(Leaving { region: told.region, sent });
        }
        Ok(())
    }
}

/// What `each` says of the published memory of each pair.
///
/// Not to be called while the publisher is looked at: a thread that has the lock of a pair may publish memory, or
/// withdraw it, when a frame is handed to its program.
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
