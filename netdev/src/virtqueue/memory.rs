//! Memory table: the driver's addresses, and where they are in this process.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::SharedSlice;
use crate::frame::Digester;
use crate::peer::mapped::{Mapped, ProcessFull};
use crate::published::PUBLISHED_REGIONS_MAX;
use crate::sys::read_mapping::{ReadError, ReadMapping};
use crate::sys::shared_mapping::{SharedMapping, cannot_write};
use crate::virtqueue::{CHAIN_LEN_MAX, ChainFault, Direction};

#[derive(Debug, Default)]
pub(crate) struct MemoryTable {
    /// Regions, ordered by guest address.
    regions: Vec<Region>,
}

/// Region with both kinds of addresses. A clone shares the mapping.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Guest address of the first byte, used in descriptors.
    guest: u64,
    /// User address of the first byte, used to set up rings.
    user: u64,
    len: usize,
    at: usize,
    mapping: Mapping,
    mapped_bytes: u64,
    _mapped: Arc<Mapped>,
}

#[derive(Clone, Debug)]
enum Mapping {
    Shared(Arc<SharedMapping>),
    /// Memory that this process cannot write.
    ReadOnly(Arc<ReadMapping>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    region: usize,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Run {
    /// Panics if the part is not inside the run.
    #[inline]
    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start, "part outside its run");
        Self { at: self.at + start, len, ..self }
    }
}

/// Reasons why a region was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    #[error("more memory regions than {}", MemoryTable::REGIONS_MAX)]
    TooMany,
    /// The addresses overflow, or overlap with another region.
    #[error("a memory region with invalid addresses")]
    Range,
    #[error("memory that cannot be mapped: {0}")]
    Map(#[from] std::io::Error),
    /// The process has reached its limit of mapped peer memory.
    #[error(transparent)]
    Process(#[from] ProcessFull),
    #[error("memory that cannot be mapped: {0}")]
    Read(#[from] ReadError),
}

impl Region {
    /// Maps `len` bytes at `offset` of a file; read-only if no process that gets the file can write
    /// it.
    pub(crate) fn map(
        [guest, user, len, offset]: [u64; 4],
        file: BorrowedFd<'_>,
    ) -> Result<Self, TableError> {
        let end = |start: u64| start.checked_add(len).ok_or(TableError::Range);
        let (_, _) = (end(guest)?, end(user)?);
        if len == 0 {
            return Err(TableError::Range);
        }
        let small = |value: u64| usize::try_from(value).map_err(|_| TableError::Range);
        let (len, offset, file_len) = (small(len)?, small(offset)?, small(end(offset)?)?);
        if cannot_write(file) {
            let mapped = Mapped::take(file_len as u64)?;
            let mapping = Mapping::ReadOnly(Arc::new(ReadMapping::of(file, file_len)?));
            return Ok(Self::on(mapping, mapped, [guest, user], len, offset, file_len));
        }
        // Huge pages are mapped whole: less than one page more on each side, which does not count.
        let mapped = Mapped::take(len as u64)?;
        let (mapping, at) = SharedMapping::part(file, offset, len)?;
        let mapped_len = mapping.mapped_len();
        let mapping = Mapping::Shared(Arc::new(mapping));
        Ok(Self::on(mapping, mapped, [guest, user], len, at, mapped_len))
    }

    fn on(
        mapping: Mapping,
        mapped: Mapped,
        [guest, user]: [u64; 2],
        len: usize,
        at: usize,
        mapped_len: usize,
    ) -> Self {
        let mapped_bytes = mapped_len as u64;
        Self { guest, user, len, at, mapping, mapped_bytes, _mapped: Arc::new(mapped) }
    }

    pub(crate) const fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// Cannot overflow, since `map` has checked the sum.
    const fn guest_end(&self) -> u64 {
        self.guest + self.len as u64
    }

    #[inline]
    const fn holds(&self, guest: u64) -> bool {
        guest.wrapping_sub(self.guest) < self.len as u64
    }

    const fn is_read_only(&self) -> bool {
        matches!(self.mapping, Mapping::ReadOnly(_))
    }
}

impl MemoryTable {
    /// Most regions: as many as a urnic frontend publishes, and one for its queues.
    pub(crate) const REGIONS_MAX: usize = PUBLISHED_REGIONS_MAX + 1;

    /// Maps `len` bytes at `offset` of a file, and adds the region.
    pub(crate) fn add(
        &mut self,
        numbers: [u64; 4],
        file: BorrowedFd<'_>,
    ) -> Result<(), TableError> {
        self.insert(Region::map(numbers, file)?)
    }

    /// Fails with [`TableError::TooMany`], or [`TableError::Range`] if regions overlap.
    pub(crate) fn insert(&mut self, region: Region) -> Result<(), TableError> {
        if self.regions.len() == Self::REGIONS_MAX {
            return Err(TableError::TooMany);
        }
        let at = self.regions.partition_point(|other| other.guest < region.guest);
        let is_over =
            |other: &Region| region.guest < other.guest_end() && other.guest < region.guest_end();
        let neighbours = &self.regions[at.saturating_sub(1)..self.regions.len().min(at + 1)];
        if neighbours.iter().any(is_over) {
            return Err(TableError::Range);
        }
        self.regions.insert(at, region);
        Ok(())
    }

    /// Returns the run of `len` bytes at a user address if it is within one writable region.
    pub(crate) fn user_run(&self, address: u64, len: usize) -> Option<Run> {
        self.regions.iter().enumerate().find_map(|(index, region)| {
            let into = usize::try_from(address.checked_sub(region.user)?).ok()?;
            let is_inside = into <= region.len && len <= region.len - into;
            (is_inside && !region.is_read_only()).then_some(Run {
                region: index,
                at: region.at + into,
                len,
            })
        })
    }

    /// Appends one run for each region that the bytes at a guest address extend over. On a
    /// [`ChainFault`], if bytes are not shared, or not usable in this direction, the new runs are
    /// meaningless.
    #[inline]
    pub(crate) fn guest_runs(
        &self,
        address: u64,
        len: usize,
        direction: Direction,
        runs: &mut Vec<Run>,
    ) -> Result<(), ChainFault> {
        // Headers and payload alternate: most bytes are in the region of the run before the last
        // one.
        if let [.., run, _] = runs[..]
            && direction == Direction::ToDevice
            && runs.len() < CHAIN_LEN_MAX
            && let Some(run) = self.run_beside(run, address, len)
        {
            runs.push(run);
            return Ok(());
        }
        self.all_guest_runs(address, len, direction, runs)
    }

    /// Returns the run of these bytes, if all are in the region of the run `other`.
    #[inline]
    fn run_beside(&self, other: Run, address: u64, len: usize) -> Option<Run> {
        let region = self.regions.get(other.region)?;
        let into = usize::try_from(address.checked_sub(region.guest)?).ok()?;
        let is_inside = into < region.len && len > 0 && len <= region.len - into;
        is_inside.then_some(Run { region: other.region, at: region.at + into, len })
    }

    #[inline(never)]
    fn all_guest_runs(
        &self,
        mut address: u64,
        len: usize,
        direction: Direction,
        runs: &mut Vec<Run>,
    ) -> Result<(), ChainFault> {
        let mut left = len;
        while left > 0 {
            let (run, next) = self.first_run(address, left).ok_or(ChainFault::Address)?;
            if runs.len() == CHAIN_LEN_MAX {
                return Err(ChainFault::TooLong);
            }
            if direction == Direction::ToDriver && self.regions[run.region].is_read_only() {
                return Err(ChainFault::Direction);
            }
            runs.push(run);
            left -= run.len;
            address = next;
        }
        Ok(())
    }

    /// Returns the run at a guest address, or its part in the first region, and the address behind
    /// it.
    #[inline]
    fn first_run(&self, address: u64, len: usize) -> Option<(Run, u64)> {
        let behind = self.regions.partition_point(|region| region.guest <= address);
        let index = behind.checked_sub(1).filter(|index| self.regions[*index].holds(address))?;
        let region = &self.regions[index];
        let into = usize::try_from(address - region.guest).ok()?;
        let run = Run { region: index, at: region.at + into, len: (region.len - into).min(len) };
        // Cannot overflow: the end of a region is an address.
        Some((run, address.checked_add(run.len as u64)?))
    }

    /// Panics if the run is of another table, or read-only.
    #[inline]
    pub(crate) fn mapping(&self, run: Run) -> &SharedMapping {
        match &self.regions[run.region].mapping {
            Mapping::Shared(mapping) => mapping,
            Mapping::ReadOnly(_) => panic!("memory that is only read"),
        }
    }

    /// Panics if the run is shorter than the bytes.
    #[inline]
    pub(crate) fn copy_in(&self, run: Run, octets: &[u8]) {
        let run = run.part(0, octets.len());
        self.mapping(run).copy_in(run.at, octets);
    }

    /// Panics if the run is shorter than the bytes.
    #[inline]
    pub(crate) fn copy_out(&self, run: Run, octets: &mut [u8]) {
        let run = run.part(0, octets.len());
        match &self.regions[run.region].mapping {
            Mapping::Shared(mapping) => mapping.copy_out(run.at, octets),
            Mapping::ReadOnly(mapping) => mapping.copy_out(run.at, octets),
        }
    }

    #[inline]
    pub(crate) fn slice(&self, run: Run) -> SharedSlice<'_> {
        match &self.regions[run.region].mapping {
            Mapping::Shared(mapping) => mapping.slice(run.at, run.len),
            Mapping::ReadOnly(mapping) => {
                mapping.slice(run.at, run.len).expect("a run is in its region")
            }
        }
    }

    /// Panics if the run is shorter than the bytes.
    #[inline]
    pub(crate) fn copy_from(&self, run: Run, fragment: SharedSlice<'_>) {
        let run = run.part(0, fragment.len());
        self.mapping(run).copy_from(run.at, fragment);
    }

    #[inline]
    pub(crate) fn prefetch_to_write(&self, run: Run) {
        self.mapping(run).prefetch_to_write(run.at, run.len);
    }

    /// Like [`copy_from`](Self::copy_from); also adds the bytes to a digest's register.
    #[inline]
    pub(crate) fn copy_and_digest(
        &self,
        run: Run,
        fragment: SharedSlice<'_>,
        digester: &Digester,
        register: u32,
    ) -> u32 {
        let run = run.part(0, fragment.len());
        self.mapping(run).copy_and_digest(run.at, fragment, digester, register)
    }
}
