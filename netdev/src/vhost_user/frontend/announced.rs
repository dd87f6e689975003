//! Regions of published memory, announced to the backend by `ADD_MEM_REG` and `REM_MEM_REG`. The
//! files of these regions cannot be mapped writable. A backend that maps all memory writable
//! refuses them, and the frontend copies their bytes instead.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::pair::SharedPair;
use super::request::send;
use crate::peer::channel::{Channel, ChannelError};
use crate::published::announced::{self, Limits, Peer};
use crate::published::readable::Readable;
use crate::published::{Publisher, Region};
use crate::vhost_user::message::{MemoryRegion, Request};

/// Guest address of the first region, far above the memory of the queues.
const BASE: u64 = 1 << 40;
/// Alignment of regions, and smallest gap between two: a page.
const GAP: u64 = 4096;

/// Announced regions, and for each position the number of frames by reference that each virtqueue
/// pair had sent.
pub(super) type Announced = announced::Announced<u64, Vec<u64>>;

/// Creates an empty list for a backend that accepts `slots` regions.
pub(super) fn announced(publisher: &Publisher, slots: u64) -> Announced {
    Announced::new(publisher, BASE, Limits { regions: slots, bytes: usize::MAX })
}

/// Backend, and the virtqueue pairs that send frames to it.
pub(super) struct Backend<'a> {
    pub(super) channel: &'a Channel,
    pub(super) pairs: &'a [Arc<SharedPair>],
}

const fn region(guest: u64, len: usize) -> MemoryRegion {
    MemoryRegion { guest, len: len as u64, user: guest, offset: 0 }
}

impl Peer for Backend<'_> {
    type Name = u64;
    type Mark = Vec<u64>;

    const ANSWERS: bool = true;

    fn name_after(name: u64, len: usize) -> Option<u64> {
        name.checked_add(len as u64)?.checked_add(GAP)?.checked_next_multiple_of(GAP)
    }

    fn announce(&self, name: u64, published: &Region) -> Result<(), ChannelError> {
        let request = Request::AddMemoryRegion(region(name, published.len));
        send(self.channel, &request, true, &[published.file.as_fd()])
    }

    fn withdraw(&self, name: u64, len: usize) -> Result<(), ChannelError> {
        send(self.channel, &Request::RemoveMemoryRegion(region(name, len)), false, &[])
    }

    fn change(&mut self, mut change: impl FnMut(&mut Readable<u64>)) -> Vec<u64> {
        let mut sent = Vec::with_capacity(self.pairs.len());
        for pair in self.pairs {
            if let Some(sharing) = pair.lock().sharing() {
                change(&mut sharing.readable);
                sent.push(sharing.sent);
            }
        }
        sent
    }

    fn has_read(&self, mark: &Vec<u64>) -> bool {
        self.pairs
            .iter()
            .zip(mark)
            .all(|(pair, sent)| pair.lock().sharing().is_none_or(|sharing| !sharing.is_out(*sent)))
    }
}
