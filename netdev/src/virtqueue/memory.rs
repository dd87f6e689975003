//! The memory table: addresses of the driver, and where they lie in this process.

use std::os::fd::BorrowedFd;

use crate::Fragment;
use crate::frame::Digester;
use crate::sys::shared_mapping::SharedMapping;
use crate::virtqueue::{CHAIN_LEN_MAX, ChainFault};

/// Memory that the driver has shared.
#[derive(Debug, Default)]
pub(crate) struct MemoryTable {
    regions: Vec<Region>,
}

/// One region, by both kinds of addresses.
#[derive(Debug)]
struct Region {
    /// What descriptors call its first octet.
    guest: u64,
    /// What the set-up of rings calls its first octet.
    user: u64,
    len: usize,
    /// Where its first octet is in the mapping.
    at: usize,
    mapping: SharedMapping,
}

/// Octets in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    region: usize,
    /// Octets into the mapping.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Run {
    /// The part of the run from `start` on, of `len` octets.
    ///
    /// # Panics
    /// When it is not inside the run.
    #[inline]
    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start, "part outside its run");
        Self { at: self.at + start, len, ..self }
    }
}

/// Why a region was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    /// More regions than [`MemoryTable::REGIONS_MAX`].
    #[error("more memory regions than {}", MemoryTable::REGIONS_MAX)]
    TooMany,
    /// Its numbers do not add up, or it lies over another.
    #[error("a memory region whose addresses cannot be")]
    Range,
    /// It cannot be mapped.
    #[error("memory that cannot be mapped: {0}")]
    Map(#[from] std::io::Error),
}

impl MemoryTable {
    /// Most regions.
    pub(crate) const REGIONS_MAX: usize = 32;

    /// Adds `len` octets at `offset` of a file.
    ///
    /// # Errors
    /// [`TableError`].
    pub(crate) fn add(
        &mut self,
        [guest, user, len, offset]: [u64; 4],
        file: BorrowedFd<'_>,
    ) -> Result<(), TableError> {
        if self.regions.len() == Self::REGIONS_MAX {
            return Err(TableError::TooMany);
        }
        let end = |start: u64| start.checked_add(len).ok_or(TableError::Range);
        let (guest_end, _) = (end(guest)?, end(user)?);
        let overlaps = |region: &Region| {
            // Both sums were checked when the region was added.
            guest < region.guest + region.len as u64 && region.guest < guest_end
        };
        if len == 0 || self.regions.iter().any(overlaps) {
            return Err(TableError::Range);
        }
        let small = |value: u64| usize::try_from(value).map_err(|_| TableError::Range);
        let mapping = SharedMapping::of(file, small(end(offset)?)?)?;
        let (len, at) = (small(len)?, small(offset)?);
        self.regions.push(Region { guest, user, len, at, mapping });
        Ok(())
    }

    /// Where `len` octets at an address of the ring set-up lie; `None` unless in one region.
    pub(crate) fn user_run(&self, address: u64, len: usize) -> Option<Run> {
        self.regions.iter().enumerate().find_map(|(index, region)| {
            let into = usize::try_from(address.checked_sub(region.user)?).ok()?;
            let is_inside = into <= region.len && len <= region.len - into;
            is_inside.then_some(Run { region: index, at: region.at + into, len })
        })
    }

    /// Where `len` octets at an address of a descriptor lie, appended to `runs`: one for each region
    /// that they are in. Returns `false`, with runs that mean nothing, unless all of them are shared.
    #[inline]
    pub(crate) fn guest_runs(
        &self,
        mut address: u64,
        len: usize,
        runs: &mut Vec<Run>,
    ) -> Result<(), ChainFault> {
        let mut left = len;
        while left > 0 {
            let (run, next) = self.first_run(address, left).ok_or(ChainFault::Address)?;
            if runs.len() == CHAIN_LEN_MAX {
                return Err(ChainFault::TooLong);
            }
            runs.push(run);
            left -= run.len;
            address = next;
        }
        Ok(())
    }

    /// The octets at an address that lie in its region, `len` at most, and the address behind them.
    #[inline]
    fn first_run(&self, address: u64, len: usize) -> Option<(Run, u64)> {
        self.regions.iter().enumerate().find_map(|(index, region)| {
            let into = usize::try_from(address.checked_sub(region.guest)?).ok()?;
            let here = region.len.checked_sub(into).filter(|here| *here > 0)?.min(len);
            let run = Run { region: index, at: region.at + into, len: here };
            // Inside a region, whose end is an address.
            Some((run, address.checked_add(here as u64)?))
        })
    }

    /// The mapping that a run is in.
    ///
    /// # Panics
    /// When the run is of another table.
    #[inline]
    pub(crate) fn mapping(&self, run: Run) -> &SharedMapping {
        &self.regions[run.region].mapping
    }

    /// Copies octets to the front of a run.
    ///
    /// # Panics
    /// When they do not fit.
    #[inline]
    pub(crate) fn copy_in(&self, run: Run, octets: &[u8]) {
        let run = run.part(0, octets.len());
        self.mapping(run).copy_in(run.at, octets);
    }

    /// Copies the octets of a run.
    ///
    /// # Panics
    /// When there are not as many as `octets` has.
    #[inline]
    pub(crate) fn copy_out(&self, run: Run, octets: &mut [u8]) {
        let run = run.part(0, octets.len());
        self.mapping(run).copy_out(run.at, octets);
    }

    /// The octets of a run, where they are.
    #[inline]
    pub(crate) fn fragment(&self, run: Run) -> Fragment<'_> {
        self.mapping(run).fragment(run.at, run.len)
    }

    /// Copies the octets of a fragment to the front of a run.
    ///
    /// # Panics
    /// When they do not fit.
    #[inline]
    pub(crate) fn copy_from(&self, run: Run, fragment: Fragment<'_>) {
        let run = run.part(0, fragment.len());
        self.mapping(run).copy_from(run.at, fragment);
    }

    /// The octets of a run are written soon.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, run: Run) {
        self.mapping(run).prefetch_to_write(run.at, run.len);
    }

    /// As [`copy_from`](Self::copy_from), and adds them to a digest's register.
    ///
    /// # Panics
    /// When they do not fit.
    #[inline]
    pub(crate) fn copy_and_digest(
        &self,
        run: Run,
        fragment: Fragment<'_>,
        digester: &Digester,
        register: u32,
    ) -> u32 {
        let run = run.part(0, fragment.len());
        self.mapping(run).copy_and_digest(run.at, fragment, digester, register)
    }
}
