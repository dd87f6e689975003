//! The peer's published memory, mapped here read-only.

use std::os::fd::BorrowedFd;

use crate::SharedSlice;
use crate::peer::mapped::{Mapped, ProcessFull};
use crate::shm::layout::INLINE;
use crate::shm::limits::{REGIONS_MAX, RING_LEN};
use crate::sys::read_mapping::{ReadError, ReadMapping};

#[derive(Debug)]
pub(super) struct Regions {
    list: Vec<Region>,
    bytes: usize,
    bytes_max: usize,
    /// Highest number so far, of a mapped or refused region.
    latest: u32,
    leaving: usize,
}

#[derive(Debug)]
struct Region {
    number: u32,
    mapping: ReadMapping,
    _mapped: Mapped,
    /// Only descriptors before this position may refer to the withdrawn region.
    until: Option<u32>,
}

/// Reasons why a region is not mapped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("more regions than {REGIONS_MAX}")]
    TooMany,
    #[error("more bytes than the limit for a peer")]
    TooLong,
    #[error(transparent)]
    Process(#[from] ProcessFull),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Error: a number that is not above all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an invalid region number")]
pub(super) struct UsedNumber;

impl Regions {
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self { list: Vec::new(), bytes: 0, bytes_max, latest: INLINE, leaving: 0 }
    }

    /// Records the number of a new region: numbers must grow.
    pub(super) fn number(&mut self, number: u32) -> Result<(), UsedNumber> {
        if number <= self.latest {
            return Err(UsedNumber);
        }
        self.latest = number;
        Ok(())
    }

    /// Maps a region under the number recorded last.
    pub(super) fn map(&mut self, file: BorrowedFd<'_>, len: u64) -> Result<(), Refusal> {
        if self.list.len() == REGIONS_MAX {
            return Err(Refusal::TooMany);
        }
        let len = usize::try_from(len).map_err(|_| Refusal::TooLong)?;
        if len > self.bytes_max - self.bytes {
            return Err(Refusal::TooLong);
        }
        let mapped = Mapped::take(len as u64)?;
        let mapping = ReadMapping::of(file, len)?;
        self.bytes += len;
        self.list.push(Region { number: self.latest, mapping, _mapped: mapped, until: None });
        Ok(())
    }

    /// Unmaps a region when the ring has been read up to a position. It may not be mapped.
    pub(super) fn withdraw(&mut self, number: u32, position: u32) {
        if let Ok(at) = self.index(number) {
            let until = self.list[at].until.replace(position);
            self.leaving += usize::from(until.is_none());
        }
    }

    /// Unmaps withdrawn regions whose withdrawal is at or before `position`.
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
            // The peer cannot have written further ahead than the ring's length.
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

    /// The index is valid until a region is mapped or unmapped. Looks at `hint` first.
    #[inline]
    pub(super) fn find(&self, number: u32, hint: usize) -> Option<usize> {
        match self.list.get(hint) {
            Some(region) if region.number == number => Some(hint),
            _ => self.index(number).ok(),
        }
    }

    #[inline]
    pub(super) fn slice(&self, index: usize, offset: u64, len: usize) -> Option<SharedSlice<'_>> {
        self.list[index].mapping.slice(usize::try_from(offset).ok()?, len)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use crate::sys::published;

    fn file(len: usize) -> OwnedFd {
        published::memory(c"test", len).unwrap().0
    }

    #[test]
    fn octets_are_mapped_up_to_their_limit() {
        let mut regions = Regions::new(100_000);
        for (number, len, fits) in
            [(1, 60_000, true), (2, 40_001, false), (5, 40_000, true), (6, 1, false)]
        {
            regions.number(number).unwrap();
            assert_eq!(regions.map(file(len).as_fd(), len as u64).is_ok(), fits, "{number}");
        }
        regions.number(7).unwrap();
        assert!(matches!(regions.map(file(1).as_fd(), u64::MAX), Err(Refusal::TooLong)));
        assert_eq!(
            [1, 2, 5, 6].map(|number| regions.find(number, 0)),
            [Some(0), None, Some(1), None]
        );
        // A withdrawn region counts until it is unmapped.
        regions.withdraw(1, 10);
        regions.withdraw(1, 10);
        regions.withdraw(2, 10);
        regions.settle(9);
        regions.number(8).unwrap();
        assert!(regions.map(file(60_000).as_fd(), 60_000).is_err());
        regions.settle(10);
        assert_eq!([1, 5].map(|number| regions.find(number, 7)), [None, Some(0)]);
        regions.number(9).unwrap();
        regions.map(file(60_000).as_fd(), 60_000).unwrap();
    }

    #[test]
    fn region_numbers_must_increase() {
        let mut regions = Regions::new(1);
        assert_eq!(regions.number(INLINE), Err(UsedNumber));
        regions.number(3).unwrap();
        assert_eq!(regions.number(3), Err(UsedNumber));
        assert_eq!(regions.number(2), Err(UsedNumber));
        regions.number(u32::MAX).unwrap();
    }

    #[test]
    fn withdrawal_at_an_impossible_ring_index_is_immediate() {
        let mut regions = Regions::new(1 << 20);
        for (number, until) in [(1, 5), (2, 5 + RING_LEN + 1), (3, 4), (4, 6)] {
            regions.number(number).unwrap();
            regions.map(file(4096).as_fd(), 4096).unwrap();
            regions.withdraw(number, until);
        }
        regions.settle(5);
        assert_eq!([1, 2, 3, 4].map(|number| regions.find(number, 0)), [None, None, None, Some(0)]);
    }

    #[test]
    fn no_octet_outside_a_region_is_reached() {
        let mut regions = Regions::new(1 << 20);
        regions.number(1).unwrap();
        regions.map(file(5000).as_fd(), 5000).unwrap();
        for (offset, len) in [(0, 5000), (4999, 1), (5000, 0), (17, 0)] {
            assert!(regions.slice(0, offset, len).is_some(), "{offset} {len}");
        }
        for (offset, len) in [(0, 5001), (5000, 1), (5001, 0), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(regions.slice(0, offset, len).is_none(), "{offset} {len}");
        }
    }
}
