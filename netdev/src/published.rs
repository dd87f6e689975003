//! Memory of this process that its peers on this host may read in place: devices that send bytes by
//! reference ([`shm`](crate::shm), and a [`VirtioUser`](crate::vhost_user::VirtioUser) that shares)
//! can do so for memory allocated here. Each region is a sealed memory file (`memfd_create(2)`): a
//! process that gets its descriptor can read it, but cannot write, shorten it or remove a page.
//! Peers of the devices of a [`Publisher`] get the descriptors of all its regions.
//!
//! Access cannot be revoked: a peer can read the memory as long as it keeps the descriptor or a
//! mapping, even after its session, and the kernel charges it to this process. Peers are processes
//! of this process's user, of root, and of the user that the device's settings name.
//!
//! Memory is withdrawn by any thread, while other threads send frames by reference:
//!
//! 1. The owner drops the memory. Its region leaves the list, and the generation changes.
//! 2. The memory is unmapped here. Other memory of this process may then get its addresses.
//! 3. A device compares the generation with its own for each frame. If they differ, it no longer
//!    looks up addresses in its old list, and tells its peer about the withdrawal.
//!
//! Racy case: *other memory gets the addresses before a device has the new list.* The thread that
//! sends this memory got it after step 2, so it sees the generation of step 1.

pub(crate) mod announced;
mod lookup;
#[cfg(test)]
pub(crate) mod model;
pub(crate) mod readable;
pub(crate) mod runs;

use std::ffi::CStr;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::block::Block;
use crate::sys::published;
use crate::sys::shared_mapping::SharedMapping;

/// Most regions of a publisher. Each region is an open descriptor; a process has 1024 by default.
pub const PUBLISHED_REGIONS_MAX: usize = 512;
/// Most bytes of a publisher: a peer needs address space for all of them.
pub const PUBLISHED_BYTES_MAX: usize = 1 << 36;

/// Memory of this process that peers of its devices may read. Clones share the same publisher.
#[derive(Clone, Debug, Default)]
pub struct Publisher(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Number of changes of `regions`. Devices load it for each frame.
    generation: AtomicU64,
    devices: AtomicUsize,
    regions: Mutex<Regions>,
}

#[derive(Debug, Default)]
struct Regions {
    list: Vec<Region>,
    next: u64,
    /// Number of regions, including those being allocated.
    count: usize,
    bytes: usize,
}

impl Regions {
    fn reserve(&mut self, len: usize) -> io::Result<()> {
        let bytes = self.bytes.checked_add(len).filter(|sum| *sum <= PUBLISHED_BYTES_MAX);
        let (Some(bytes), true) = (bytes, self.count < PUBLISHED_REGIONS_MAX) else {
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        self.bytes = bytes;
        self.count += 1;
        Ok(())
    }

    const fn give_back(&mut self, len: usize) {
        self.bytes -= len;
        self.count -= 1;
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Unique among all regions that the publisher ever had.
    pub(crate) id: u64,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) file: Arc<OwnedFd>,
}

impl Publisher {
    /// Creates a publisher without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates and publishes `len` bytes, all zero. All pages are allocated when this returns, so
    /// that a reader never has to. A child of `fork(2)` does not have this memory. Errors:
    /// [`io::ErrorKind::QuotaExceeded`] beyond [`PUBLISHED_REGIONS_MAX`] or
    /// [`PUBLISHED_BYTES_MAX`]; [`io::ErrorKind::InvalidInput`] if `len` is 0;
    /// [`io::ErrorKind::Unsupported`] before Linux 5.1; the system's error if it has no memory or
    /// descriptor left.
    pub fn allocate(&self, len: usize) -> io::Result<PublishedMemory> {
        // Reserve first, so that the slow allocation runs without the lock.
        self.lock().reserve(len)?;
        let made = published::memory(NAME, len);
        let mut regions = self.lock();
        let (file, mapping) = made.inspect_err(|_| regions.give_back(len))?;
        let id = regions.next;
        regions.next += 1;
        let start = mapping.as_ptr().addr();
        regions.list.push(Region { id, start, len, file: Arc::new(file) });
        self.0.generation.fetch_add(1, Release);
        drop(regions);
        let published = Published { publisher: self.clone(), id, len };
        Ok(PublishedMemory { _published: published, mapping })
    }

    /// Allocates `count` blocks of `len` bytes, with the errors of [`allocate`](Self::allocate);
    /// also [`io::ErrorKind::InvalidInput`] if the total length overflows. Only a block's owner
    /// writes it.
    pub fn allocate_blocks(&self, count: usize, len: usize) -> io::Result<Vec<PublishedBlock>> {
        let whole = count.checked_mul(len).ok_or(io::ErrorKind::InvalidInput)?;
        let PublishedMemory { _published: published, mapping } = self.allocate(whole)?;
        let published = Arc::new(published);
        let block = |octets| PublishedBlock { _published: Arc::clone(&published), octets };
        Ok(Block::all_of(mapping, len).map(block).collect())
    }

    /// Returns true if a device's peer could read the published memory.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.0.devices.load(Relaxed) > 0
    }

    pub(crate) fn attach(&self) -> Attached {
        self.0.devices.fetch_add(1, Relaxed);
        Attached(self.clone())
    }

    /// Changes whenever memory is published or withdrawn; see the head of this module.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Acquire)
    }

    /// Calls `look` under the publisher's lock.
    pub(crate) fn look<R>(&self, look: impl FnOnce(u64, &[Region]) -> R) -> R {
        let regions = self.lock();
        // The generation changes only under the lock.
        look(self.generation(), &regions.list)
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        // Nothing panics between two related changes.
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of a device.
#[derive(Debug)]
pub(crate) struct Attached(Publisher);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.0.devices.fetch_sub(1, Relaxed);
    }
}

/// Registration of a region. Dropping it withdraws the region.
#[derive(Debug)]
struct Published {
    publisher: Publisher,
    id: u64,
    len: usize,
}

impl Drop for Published {
    fn drop(&mut self) {
        let mut regions = self.publisher.lock();
        if let Ok(at) = regions.list.binary_search_by_key(&self.id, |region| region.id) {
            regions.list.remove(at);
            regions.give_back(self.len);
        }
        self.publisher.0.generation.fetch_add(1, Release);
    }
}

/// Memory that peers may read while it exists. Dropping it withdraws and unmaps it; a peer that
/// still has it mapped reads its last contents. Other threads, remote Writes and peers access it at
/// any time: do not create a slice of it.
#[derive(Debug)]
pub struct PublishedMemory {
    // Dropped before the mapping: see `Publisher::generation`.
    _published: Published,
    mapping: SharedMapping,
}

impl PublishedMemory {
    /// Returns the page-aligned address. All bytes may be read and written while `self` exists.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> usize {
        self.mapping.len()
    }
}

/// Published memory that only its owner writes: bytes that are written once and then sent. No
/// process with the memory's descriptor can write it, so it behaves like any slice.
#[derive(Debug)]
pub struct PublishedBlock {
    // Dropped before the block: the memory is withdrawn before any block is unmapped.
    _published: Arc<Published>,
    octets: Block,
}

impl Deref for PublishedBlock {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.octets
    }
}

impl DerefMut for PublishedBlock {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.octets
    }
}

const NAME: &CStr = c"urnic published";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_memory_is_published_until_it_is_dropped() {
        let publisher = Publisher::new();
        let before = publisher.generation();
        let a = publisher.allocate(10_000).unwrap();
        let b = publisher.clone().allocate(1).unwrap();
        assert_eq!((a.len(), b.len()), (10_000, 1));
        let after = publisher.generation();
        assert_ne!(before, after);
        publisher.look(|generation, regions| {
            assert_eq!(generation, after);
            let found: Vec<_> = regions.iter().map(|region| (region.start, region.len)).collect();
            assert_eq!(found, [(a.as_ptr().addr(), 10_000), (b.as_ptr().addr(), 1)]);
        });
        drop(a);
        assert_ne!(publisher.generation(), after);
        publisher.look(|_, regions| assert_eq!(regions.len(), 1));
    }

    /// Returns the kernel's flags of the mapping at an address.
    fn flags_of_mapping(start: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
        lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned()
    }

    #[test]
    fn a_child_has_no_published_memory() {
        let memory = Publisher::new().allocate(5000).unwrap();
        let flags = flags_of_mapping(memory.as_ptr().addr());
        assert!(flags.split(' ').any(|flag| flag == "dc"), "copied by fork: {flags}");
    }

    #[test]
    fn blocks_are_slices_of_memory_that_is_published() {
        let publisher = Publisher::new();
        let mut blocks = publisher.allocate_blocks(3, 1000).unwrap();
        for (block, octet) in blocks.iter_mut().zip(1..) {
            assert!(block.iter().all(|octet| *octet == 0));
            block.fill(octet);
        }
        for (block, octet) in blocks.iter().zip(1..) {
            assert!(block.len() == 1000 && block.iter().all(|it| *it == octet));
        }
        publisher.look(|_, regions| {
            let [region] = regions else { panic!("one for all") };
            let inside = region.start..region.start + region.len;
            assert!(blocks.iter().all(|block| inside.contains(&block.as_ptr().addr())));
        });
        blocks.drain(..2);
        publisher.look(|_, regions| assert_eq!(regions.len(), 1, "one is left"));
        drop(blocks);
        publisher.look(|_, regions| assert!(regions.is_empty()));
        let invalid = publisher.allocate_blocks(2, usize::MAX).unwrap_err();
        assert_eq!(invalid.kind(), io::ErrorKind::InvalidInput);
        assert!(publisher.allocate_blocks(0, 10).is_err());
    }

    #[test]
    fn publisher_counts_attached_devices() {
        let publisher = Publisher::new();
        assert!(!publisher.has_devices());
        let attached = publisher.attach();
        assert!(publisher.clone().has_devices());
        drop(attached);
        assert!(!publisher.has_devices());
    }

    #[test]
    fn published_regions_and_bytes_are_limited() {
        let publisher = Publisher::new();
        let refused = |len| publisher.allocate(len).unwrap_err().kind();
        assert_eq!(refused(0), io::ErrorKind::InvalidInput);
        assert_eq!(refused(PUBLISHED_BYTES_MAX + 1), io::ErrorKind::QuotaExceeded);
        assert_eq!(refused(usize::MAX), io::ErrorKind::QuotaExceeded);
        let mut all: Vec<_> =
            (0..PUBLISHED_REGIONS_MAX).map(|_| publisher.allocate(1).unwrap()).collect();
        assert_eq!(refused(1), io::ErrorKind::QuotaExceeded);
        all.pop();
        publisher.allocate(1).unwrap();
    }
}
