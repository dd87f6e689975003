//! Regions of this end's published memory that the peer knows. Frames can refer to their bytes.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use crate::Fragment;
use crate::peer::channel::{Channel, ChannelError};
use crate::published::lookup::Lookup;
use crate::published::{Publisher, Region};
use crate::shm::layout::INLINE;
use crate::shm::limits::{BYTES_MAX, REGIONS_MAX};
use crate::shm::message::Message;

/// Announced regions, by their addresses in this process.
#[derive(Debug)]
pub(super) struct Announced {
    publisher: Publisher,
    /// Generation of the publisher that `table` reflects.
    generation: u64,
    /// True if the socket, or the peer's limits, had no room for all messages.
    is_behind: bool,
    /// Published regions with their numbers; [`INLINE`] if the peer refused to map one.
    table: Lookup<u32>,
    /// Number of the next region. When the numbers run out, new regions are copied instead. 32 bits
    /// suffice: creating that many regions takes half a day.
    next: u32,
    /// Withdrawals not sent yet, with the region's length.
    unsaid: VecDeque<(Message, usize)>,
    /// Withdrawals sent, whose regions the peer may still have mapped: ring position, length.
    leaving: VecDeque<(u32, usize)>,
    /// Number of regions counted against the peer's limit: those of `table` except refused ones,
    /// those of `unsaid` and those of `leaving`.
    count: usize,
    /// Bytes of the counted regions.
    bytes: usize,
}

impl Announced {
    pub(super) fn new(publisher: &Publisher) -> Self {
        Self {
            publisher: publisher.clone(),
            generation: 0,
            // Nothing is announced yet.
            is_behind: true,
            table: Lookup::default(),
            next: INLINE + 1,
            unsaid: VecDeque::new(),
            leaving: VecDeque::new(),
            count: 0,
            bytes: 0,
        }
    }

    /// Returns the region of a fragment and the offset in it, if the peer can read it. If the table
    /// [is outdated](Self::is_outdated), call [`refresh`](Self::refresh) first: the region may have
    /// been withdrawn, and its addresses reused.
    #[inline]
    pub(super) fn find(&mut self, fragment: Fragment<'_>) -> Option<(u32, u64)> {
        self.table.find(fragment).filter(|(number, _)| *number != INLINE)
    }

    /// Returns true if the publisher has changed since the last [`refresh`](Self::refresh).
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.publisher.generation() != self.generation
    }

    /// Returns true if an announcement still waits for room.
    pub(super) const fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Sends Publish and Withdraw for the publisher's changes, until the socket or the peer's limit
    /// is full. Descriptors before `position` may refer to withdrawn regions. The peer has read the
    /// descriptors before `consumed`.
    ///
    /// # Errors
    /// If the socket has failed.
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

    /// Removes the regions that the publisher has withdrawn, and queues their withdrawals.
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

    /// Stops counting withdrawn regions that the peer has unmapped, or will unmap before it maps
    /// another: it has read the ring up to `consumed`, and handles messages in order.
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

    /// Announces a region. Returns false if there is no room for it.
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

    /// Records that the peer refused a region. Ignores a region that is withdrawn already.
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
