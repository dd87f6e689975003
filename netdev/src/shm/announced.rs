//! What the peer was told of this end's published memory: which bytes can be referred to.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use crate::Fragment;
use crate::peer::channel::{Channel, ChannelError};
use crate::published::lookup::Lookup;
use crate::published::{Publisher, Region};
use crate::shm::layout::INLINE;
use crate::shm::limits::{BYTES_MAX, REGIONS_MAX};
use crate::shm::message::Message;

/// The regions that the peer knows, by their addresses here.
#[derive(Debug)]
pub(super) struct Announced {
    publisher: Publisher,
    /// The publisher's when `table` was made.
    generation: u64,
    /// The socket, or the peer, had no room for all there is to say.
    is_behind: bool,
    /// By their numbers: [`INLINE`] when the peer has not mapped it.
    table: Lookup<u32>,
    /// The next region's number. After the last one, what is published is copied: it is not worth more
    /// than 32 bits, for making as many regions takes half a day.
    next: u32,
    /// Regions that the peer is not yet told are no more, with the position of the ring.
    unsaid: VecDeque<(Message, usize)>,
    /// Regions that the peer was told are no more, and may still have mapped: position, bytes.
    leaving: VecDeque<(u32, usize)>,
    /// What the peer has room for: regions and bytes of `table` but what it refused, of `unsaid`, and
    /// of `leaving`.
    count: usize,
    bytes: usize,
}

impl Announced {
    pub(super) fn new(publisher: &Publisher) -> Self {
        Self {
            publisher: publisher.clone(),
            generation: 0,
            // All of it is to be told.
            is_behind: true,
            table: Lookup::default(),
            next: INLINE + 1,
            unsaid: VecDeque::new(),
            leaving: VecDeque::new(),
            count: 0,
            bytes: 0,
        }
    }

    /// The region of a fragment that the peer can read, and where in it the fragment begins.
    /// [`refresh`](Self::refresh) comes before, or it may be one that is no more.
    #[inline]
    pub(super) fn find(&mut self, fragment: Fragment<'_>) -> Option<(u32, u64)> {
        self.table.find(fragment).filter(|(number, _)| *number != INLINE)
    }

    /// Whether [`refresh`](Self::refresh) has something to do because the publisher has changed.
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.publisher.generation() != self.generation
    }

    /// Whether there is something to say that there was no room for.
    pub(super) const fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Brings the peer up to date, as far as the socket has room. Descriptors before `position` may
    /// name what is no more; those before `consumed` were read.
    ///
    /// # Errors
    /// When the socket is of no use any more.
    #[cold]
    pub(super) fn refresh(
        &mut self,
        channel: &Channel,
        position: u32,
        consumed: u32,
    ) -> Result<(), ChannelError> {
        let publisher = self.publisher.clone();
        let fresh = publisher.look(|generation, regions| {
            self.generation = generation;
            self.take_out(position, regions);
            let mut known: Vec<_> = self.table.entries().iter().map(|entry| entry.id).collect();
            known.sort_unstable();
            let is_new = |region: &&Region| known.binary_search(&region.id).is_err();
            regions.iter().filter(is_new).cloned().collect::<Vec<_>>()
        });
        self.is_behind = true;
        while let Some((message, len)) = self.unsaid.front() {
            match message.send(channel, &[]) {
                Err(error) if error.is_full() => return Ok(()),
                outcome => outcome?,
            }
            self.leaving.push_back((position, *len));
            self.unsaid.pop_front();
        }
        self.settle(consumed);
        for region in fresh {
            if !self.announce(channel, &region)? {
                return Ok(());
            }
        }
        self.is_behind = false;
        Ok(())
    }

    /// Takes regions out that the publisher has no more.
    fn take_out(&mut self, position: u32, regions: &[Region]) {
        let Self { table, unsaid, .. } = self;
        table.retain(|entry| {
            let is_there = regions.binary_search_by_key(&entry.id, |region| region.id).is_ok();
            let number = entry.name;
            if !is_there && number != INLINE {
                unsaid.push_back((Message::Withdraw { number, position }, entry.len));
            }
            is_there
        });
    }

    /// Counts no more what the peer has no use for: it has read the ring up to `consumed`, and reads what
    /// was said before it maps what is said next.
    pub(super) fn settle(&mut self, consumed: u32) {
        while let Some((position, len)) = self.leaving.front() {
            if position.wrapping_sub(consumed).cast_signed() > 0 {
                return;
            }
            self.count -= 1;
            self.bytes -= len;
            self.leaving.pop_front();
        }
    }

    /// Tells the peer of a region; whether there was room for that.
    fn announce(&mut self, channel: &Channel, region: &Region) -> Result<bool, ChannelError> {
        let (number, len) = (self.next, region.len);
        let has_room = self.count < REGIONS_MAX && len <= BYTES_MAX - self.bytes;
        if !has_room || number == u32::MAX {
            return Ok(false);
        }
        let message = Message::Publish { number, len: len as u64 };
        match message.send(channel, &[region.file.as_fd()]) {
            Err(error) if error.is_full() => return Ok(false),
            outcome => outcome?,
        }
        self.next += 1;
        self.count += 1;
        self.bytes += len;
        self.table.insert(region, number);
        Ok(true)
    }

    /// The peer has not mapped a region. One that is no more is on its way out already.
    pub(super) fn refuse(&mut self, number: u32) {
        if number == INLINE {
            return;
        }
        if let Some(entry) = self.table.entries_mut().iter_mut().find(|entry| entry.name == number)
        {
            entry.name = INLINE;
            self.count -= 1;
            self.bytes -= entry.len;
        }
    }
}
