//! Memory that the peer has published, mapped here to be read.

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

use crate::Fragment;
use crate::shm::layout::INLINE;
use crate::shm::limits::{BYTES_MAX, REGIONS_MAX, RING_LEN};
use crate::sys::read_mapping::{ReadError, ReadMapping};

/// The peer's regions.
#[derive(Debug)]
pub(super) struct Regions {
    /// In the order of their numbers.
    list: Vec<Region>,
    bytes: usize,
    /// The number that was given last.
    latest: u32,
    /// Those among them that the peer has withdrawn.
    leaving: usize,
}

#[derive(Debug)]
struct Region {
    number: u32,
    mapping: ReadMapping,
    /// Descriptors before this position may name it, and none behind.
    until: Option<u32>,
}

/// Why a region is not mapped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("more regions than {REGIONS_MAX}")]
    TooMany,
    #[error("more octets than {BYTES_MAX}")]
    TooLong,
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A number that has been given before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the number of a region that cannot be")]
pub(super) struct UsedNumber;

impl Regions {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), bytes: 0, latest: INLINE, leaving: 0 }
    }

    /// Takes a number.
    ///
    /// # Errors
    /// [`UsedNumber`]: numbers grow.
    pub(super) fn number(&mut self, number: u32) -> Result<(), UsedNumber> {
        if number <= self.latest {
            return Err(UsedNumber);
        }
        self.latest = number;
        Ok(())
    }

    /// Maps a region that has the number taken last.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) fn map(&mut self, file: &OwnedFd, len: u64) -> Result<(), Refusal> {
        if self.list.len() == REGIONS_MAX {
            return Err(Refusal::TooMany);
        }
        let len = usize::try_from(len).map_err(|_| Refusal::TooLong)?;
        if len > BYTES_MAX - self.bytes {
            return Err(Refusal::TooLong);
        }
        let mapping = ReadMapping::of(file.as_fd(), len)?;
        self.bytes += len;
        self.list.push(Region { number: self.latest, mapping, until: None });
        Ok(())
    }

    /// Has a region unmapped when the ring is read up to a position. One that was refused is none.
    pub(super) fn withdraw(&mut self, number: u32, position: u32) {
        if let Ok(at) = self.index(number) {
            let until = self.list[at].until.replace(position);
            self.leaving += usize::from(until.is_none());
        }
    }

    /// Unmaps what was withdrawn, when the ring is read up to `position`.
    #[inline]
    pub(super) fn settle(&mut self, position: u32) {
        if self.leaving > 0 {
            self.unmap(position);
        }
    }

    #[cold]
    fn unmap(&mut self, position: u32) {
        let Self { list, bytes, leaving, .. } = self;
        list.retain(|region| {
            // Further ahead than the ring has room for is behind.
            let stays = region.until.is_none_or(|until| {
                let ahead = until.wrapping_sub(position);
                ahead > 0 && ahead <= RING_LEN
            });
            if !stays {
                *bytes -= region.mapping.len();
                *leaving -= 1;
            }
            stays
        });
    }

    fn index(&self, number: u32) -> Result<usize, usize> {
        self.list.binary_search_by_key(&number, |region| region.number)
    }

    /// Where the region with a number is, in [`fragment`](Self::fragment), until regions change. `hint` is
    /// where the one before was.
    #[inline]
    pub(super) fn find(&self, number: u32, hint: usize) -> Option<usize> {
        match self.list.get(hint) {
            Some(region) if region.number == number => Some(hint),
            _ => self.index(number).ok(),
        }
    }

    /// Octets of a region; `None` when it has none at such a place.
    #[inline]
    pub(super) fn fragment(&self, index: usize, offset: u64, len: usize) -> Option<Fragment<'_>> {
        self.list[index].mapping.fragment(usize::try_from(offset).ok()?, len)
    }
}
