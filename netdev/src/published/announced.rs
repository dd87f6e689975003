//! Announces the regions of published memory to a peer, and withdraws them, while frames flow.
//!
//! 1. An application publishes or withdraws memory, which changes the publisher's generation. From
//!    then on no sender refers to memory, since its [`Readable`] is not current.
//! 2. `turn`, in the thread of the session, removes withdrawn regions from each `Readable`, and
//!    gives it the publisher's generation: its sender refers to memory again.
//! 3. `turn` withdraws a region from the peer when the peer has read all frames that were sent
//!    before step 2.
//! 4. `turn` announces new regions, oldest first, up to the limits of the peer.
//! 5. When the peer accepts a region, it is added to each `Readable`. Some peers say only if they
//!    refuse: their regions are added at once. The bytes of a refused region are copied.
//!
//! Racy cases:
//!
//! - *Memory is withdrawn while a frame that refers to it is on its way.* The peer's mapping keeps
//!   the memory until step 3.
//! - *Memory is withdrawn between steps 4 and 5.* `answer` does not find the region in the
//!   publisher. The next `turn` withdraws it from the peer.
//! - *Memory is withdrawn while `answer` runs.* `answer` may add the region after the withdrawal.
//!   But every `Readable` is outdated by then, so no sender uses the region before step 2 removes
//!   it.
//! - *The socket is full.* `turn` continues at the next call with the first message not sent.
//!
//! No loom model: the publisher and each sender have a lock, and the only word read without one is
//! the generation. `model` runs random histories with crashes against both devices.

use std::collections::VecDeque;

use crate::peer::channel::ChannelError;
use crate::published::readable::Readable;
use crate::published::{Publisher, Region};

/// Peer of a session, and the senders of frames to it.
pub(crate) trait Peer {
    type Name: Copy + PartialEq;
    /// Position in the frames of all senders.
    type Mark: Clone;

    /// The peer answers each announcement, in order: frames must not refer to a region before that.
    const ANSWERS: bool;

    /// Returns the name after that of a region of `len` bytes. `None`: the regions from here on are
    /// copied.
    fn name_after(name: Self::Name, len: usize) -> Option<Self::Name>;

    fn announce(&self, name: Self::Name, region: &Region) -> Result<(), ChannelError>;

    fn withdraw(&self, name: Self::Name, len: usize) -> Result<(), ChannelError>;

    /// Applies a change to the [`Readable`] of each sender. Returns the position behind all frames
    /// sent before the change. Locks senders: do not call it inside `Publisher::look`. The receiver
    /// of a frame, to which a device hands it under its sender's lock, may publish or withdraw
    /// memory: a deadlock.
    fn change(&mut self, change: impl FnMut(&mut Readable<Self::Name>)) -> Self::Mark;

    fn has_read(&self, mark: &Self::Mark) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) regions: u64,
    pub(crate) bytes: usize,
}

/// Regions announced to a peer, with their [names](Peer::Name) and [positions](Peer::Mark).
#[derive(Debug)]
pub(crate) struct Announced<N, M> {
    publisher: Publisher,
    generation: u64,
    is_behind: bool,
    limits: Limits,
    /// Name of the next region to announce.
    next: N,
    /// Lowest ID that a region to announce can have: those with lower IDs were announced.
    next_id: u64,
    /// Announced regions that the peer has not answered yet, oldest first.
    unanswered: VecDeque<Announcement<N>>,
    /// Regions that frames may refer to.
    taken: Vec<Announcement<N>>,
    /// Withdrawn regions that the peer still has mapped, oldest first, with the position behind all
    /// frames that refer to the region.
    leaving: VecDeque<(Announcement<N>, Option<M>)>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Announcement<N> {
    id: u64,
    name: N,
    len: usize,
}

#[derive(Debug)]
pub(crate) struct UnexpectedAnswer;

impl<N: Copy + PartialEq, M: Clone> Announced<N, M> {
    pub(crate) fn new(publisher: &Publisher, first: N, limits: Limits) -> Self {
        Self {
            publisher: publisher.clone(),
            // None that a publisher has: the first `turn` gives all senders the current one.
            generation: u64::MAX,
            is_behind: true,
            limits,
            next: first,
            next_id: 0,
            unanswered: VecDeque::new(),
            taken: Vec::new(),
            leaving: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Returns true if the publisher has changed since the last [`turn`](Self::turn).
    #[inline]
    pub(crate) fn is_outdated(&self) -> bool {
        self.publisher.generation() != self.generation
    }

    /// Applies the publisher's changes to the senders and sends them to the peer, until the socket
    /// is full.
    pub(crate) fn turn(
        &mut self,
        peer: &mut impl Peer<Name = N, Mark = M>,
    ) -> Result<(), ChannelError> {
        if self.is_outdated() {
            self.is_behind = true;
            self.take_out(peer);
        }
        match self.withdraw(peer).and_then(|()| self.announce(peer)) {
            Err(error) if error.is_full() => Ok(()),
            outcome => outcome,
        }
    }

    /// Removes withdrawn regions from all senders, and gives them the publisher's generation.
    fn take_out(&mut self, peer: &mut impl Peer<Name = N, Mark = M>) {
        let Self { publisher, generation, taken, leaving, .. } = self;
        let (now, ids) = publisher
            .look(|now, regions| (now, regions.iter().map(|region| region.id).collect::<Vec<_>>()));
        *generation = now;
        let is_there = |id| ids.binary_search(&id).is_ok();
        let mark = peer.change(|readable| readable.update(now, is_there));
        taken.retain(|region| {
            let stays = is_there(region.id);
            if !stays {
                leaving.push_back((*region, Some(mark.clone())));
            }
            stays
        });
    }

    /// Withdraws regions, oldest first, up to the first one that a frame on its way may refer to.
    fn withdraw(&mut self, peer: &impl Peer<Name = N, Mark = M>) -> Result<(), ChannelError> {
        while let Some((region, mark)) = self.leaving.front() {
            if mark.as_ref().is_some_and(|mark| !peer.has_read(mark)) {
                return Ok(());
            }
            peer.withdraw(region.name, region.len)?;
            self.bytes -= region.len;
            self.leaving.pop_front();
        }
        Ok(())
    }

    fn announce<P: Peer<Name = N, Mark = M>>(&mut self, peer: &mut P) -> Result<(), ChannelError> {
        while self.is_behind {
            let region = self.publisher.look(|_, regions| {
                let at = regions.partition_point(|region| region.id < self.next_id);
                regions.get(at).cloned()
            });
            let next = region.as_ref().and_then(|region| P::name_after(self.next, region.len));
            let (Some(region), Some(next)) = (region, next) else {
                self.is_behind = false;
                return Ok(());
            };
            let count = self.unanswered.len() + self.taken.len() + self.leaving.len();
            let Limits { regions, bytes } = self.limits;
            if count as u64 >= regions || region.len > bytes - self.bytes {
                return Ok(());
            }
            peer.announce(self.next, &region)?;
            let announcement = Announcement { id: region.id, name: self.next, len: region.len };
            (self.next, self.next_id) = (next, region.id + 1);
            self.bytes += region.len;
            if P::ANSWERS {
                self.unanswered.push_back(announcement);
            } else {
                self.accept(announcement, peer);
            }
        }
        Ok(())
    }

    /// Handles the peer's answer for the oldest unanswered region.
    pub(crate) fn answer(
        &mut self,
        accepts: bool,
        peer: &mut impl Peer<Name = N, Mark = M>,
    ) -> Result<(), UnexpectedAnswer> {
        let region = self.unanswered.pop_front().ok_or(UnexpectedAnswer)?;
        if accepts {
            self.accept(region, peer);
        } else {
            self.bytes -= region.len;
        }
        Ok(())
    }

    /// Lets frames refer to a region, if it still exists.
    fn accept(&mut self, announcement: Announcement<N>, peer: &mut impl Peer<Name = N, Mark = M>) {
        let region = self.publisher.look(|_, regions| {
            let at = regions.binary_search_by_key(&announcement.id, |region| region.id).ok()?;
            Some(regions[at].clone())
        });
        if let Some(region) = region {
            // If the region is withdrawn from here on, no sender uses it before the next `turn` has
            // removed it.
            peer.change(|readable| readable.insert(&region, announcement.name));
            self.taken.push(announcement);
        } else {
            self.leaving.push_back((announcement, None));
        }
    }

    /// Handles the refusal of a region by a peer that answers only so; it may be withdrawn already.
    pub(crate) fn refuse(&mut self, name: N, peer: &mut impl Peer<Name = N, Mark = M>) {
        if let Some(at) = self.taken.iter().position(|region| region.name == name) {
            let region = self.taken.remove(at);
            self.bytes -= region.len;
            peer.change(|readable| readable.remove(region.id));
        }
    }
}
