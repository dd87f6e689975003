//! Regions of this end's published memory, announced by Publish and Withdraw.

use std::os::fd::AsFd;

use crate::peer::channel::{Channel, ChannelError};
use crate::published::announced::{self, Limits};
use crate::published::readable::Readable;
use crate::published::{Publisher, Region};
use crate::shm::layout::INLINE;
use crate::shm::limits::{BYTES_MAX, REGIONS_MAX};
use crate::shm::message::Message;

/// Announced regions by number, and positions in the ring.
pub(super) type Announced = announced::Announced<u32, u32>;

/// Creates an empty list.
pub(super) fn announced(publisher: &Publisher) -> Announced {
    let limits = Limits { regions: REGIONS_MAX as u64, bytes: BYTES_MAX };
    Announced::new(publisher, INLINE + 1, limits)
}

/// Other end of the link, and the ring of frames to it.
pub(super) struct Peer<'a> {
    pub(super) channel: &'a Channel,
    pub(super) readable: &'a mut Readable<u32>,
    /// Position of the next descriptor.
    pub(super) written: u32,
    /// Position up to which the peer has read, as last loaded.
    pub(super) consumed: u32,
}

impl announced::Peer for Peer<'_> {
    /// Number of a region. 32 bits suffice: creating that many regions takes half a day.
    type Name = u32;
    type Mark = u32;

    const ANSWERS: bool = false;

    fn name_after(number: u32, _len: usize) -> Option<u32> {
        number.checked_add(1)
    }

    fn announce(&self, number: u32, region: &Region) -> Result<(), ChannelError> {
        let message = Message::Publish { number, len: region.len as u64 };
        message.send(self.channel, &[region.file.as_fd()])
    }

    fn withdraw(&self, number: u32, _len: usize) -> Result<(), ChannelError> {
        Message::Withdraw { number, position: self.consumed }.send(self.channel, &[])
    }

    fn change(&mut self, mut change: impl FnMut(&mut Readable<u32>)) -> u32 {
        change(self.readable);
        self.written
    }

    fn has_read(&self, position: &u32) -> bool {
        position.wrapping_sub(self.consumed).cast_signed() <= 0
    }
}
