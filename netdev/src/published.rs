//! Memory of this process that its peers on this host may read in place.
//!
//! A device that refers to bytes instead of copying them ([`shm`](crate::shm), and a
//! [`VirtioUser`](crate::vhost_user::VirtioUser) that shares) can do so where they lie in memory that was made here. Each piece is a file in memory of its own (`memfd_create(2)`), sealed
//! so that a process which gets its descriptor can read it and do nothing else with it: not write it,
//! make it shorter, or take a page away. A [`Publisher`] is what the devices of a program
//! look pieces up in; peers of those devices, and no other process, get descriptors of all of them.
//!
//! What a peer was given once cannot be taken back: it can read such memory as long as that exists, after
//! its session, too; and memory that a peer holds on to counts as this process's, though it was
//! withdrawn. Peers are processes that may open the device's socket: those of its user.

pub(crate) mod lookup;

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

/// Pieces of memory that a publisher has at most. Each is an open descriptor, of which a process has 1024
/// if nothing else was set.
pub const PUBLISHED_REGIONS_MAX: usize = 512;
/// Bytes that a publisher has at most: what a peer has to find addresses for.
pub const PUBLISHED_BYTES_MAX: usize = 1 << 36;

/// Memory of this process that peers of the devices opened with it may read. A clone is another handle of the same.
#[derive(Clone, Debug, Default)]
pub struct Publisher(Arc<Shared>);

/// What the handles of a publisher, its memory and devices have in common.
#[derive(Debug, Default)]
struct Shared {
    /// Changes with `regions`, and is read for each frame.
    generation: AtomicU64,
    /// Devices that were opened with the publisher.
    devices: AtomicUsize,
    regions: Mutex<Regions>,
}

#[derive(Debug, Default)]
struct Regions {
    /// In the order of their numbers.
    list: Vec<Region>,
    next: u64,
    /// What there is, and what is being made.
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

/// One piece of memory, as devices know it.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Of this piece alone, among all that the publisher ever had.
    pub(crate) id: u64,
    /// Address of its first byte in this process.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) file: Arc<OwnedFd>,
}

impl Publisher {
    /// A publisher without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes memory of `len` bytes, all zero, and publishes it: devices that were opened with this
    /// publisher let their peers read it from now on. All its pages are there when this returns: a reader
    /// never has to make one.
    ///
    /// A child of `fork(2)` does not have this memory.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] beyond [`PUBLISHED_REGIONS_MAX`] or [`PUBLISHED_BYTES_MAX`];
    /// [`io::ErrorKind::InvalidInput`] for no bytes; [`io::ErrorKind::Unsupported`] before Linux 5.1;
    /// what the system says when it has no memory or no descriptor left.
    pub fn allocate(&self, len: usize) -> io::Result<PublishedMemory> {
        // Room is taken first, and memory is made, which takes time, without the lock.
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

    /// As [`allocate`](Self::allocate), `count` blocks of `len` bytes each that only their owner writes.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate); [`io::ErrorKind::InvalidInput`], too, when they are more bytes
    /// together than can be counted.
    pub fn allocate_blocks(&self, count: usize, len: usize) -> io::Result<Vec<PublishedBlock>> {
        let whole = count.checked_mul(len).ok_or(io::ErrorKind::InvalidInput)?;
        let PublishedMemory { _published: published, mapping } = self.allocate(whole)?;
        let published = Arc::new(published);
        let block = |octets| PublishedBlock { _published: Arc::clone(&published), octets };
        Ok(Block::all_of(mapping, len).map(block).collect())
    }

    /// Whether there is a device whose peer could read what is published.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.0.devices.load(Relaxed) > 0
    }

    /// Counts a device for as long as what is returned exists.
    pub(crate) fn attach(&self) -> Attached {
        self.0.devices.fetch_add(1, Relaxed);
        Attached(self.clone())
    }

    /// A number that is another one whenever memory was published or withdrawn.
    ///
    /// Memory is withdrawn before its addresses can be those of other memory. A thread that was given
    /// other memory there sees the number changed.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Acquire)
    }

    /// Shows what there is, and its generation.
    pub(crate) fn look<R>(&self, look: impl FnOnce(u64, &[Region]) -> R) -> R {
        let regions = self.lock();
        // It changes under the lock.
        look(self.generation(), &regions.list)
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        // Nothing that can panic leaves them half changed.
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device of a publisher.
#[derive(Debug)]
pub(crate) struct Attached(Publisher);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.0.devices.fetch_sub(1, Relaxed);
    }
}

/// That memory is published. Dropped, it is withdrawn.
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

/// Memory that peers may read while it exists. Dropped, it is withdrawn from its publisher and unmapped; a
/// peer that has it mapped reads what was in it last, until the device has told it.
///
/// Other threads, remote writes and the peers that read it use it at any time: no slice may be made of it.
#[derive(Debug)]
pub struct PublishedMemory {
    // Goes before the mapping: see `Publisher::generation`.
    _published: Published,
    mapping: SharedMapping,
}

impl PublishedMemory {
    /// Address of the first byte, on a page. All of them may be read and written while `self` exists.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes of it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> usize {
        self.mapping.len()
    }
}

/// A run of published memory that its owner alone writes, and that peers may read.
///
/// It is for what is written once and then sent, and is a slice like any other: no process that has the
/// memory's descriptor can write it, so nothing changes behind the slice.
#[derive(Debug)]
pub struct PublishedBlock {
    // Goes before the block. The last of a mapping's blocks to go withdraws it before any is unmapped.
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
    fn what_is_allocated_is_there_and_what_is_dropped_is_not() {
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

    /// The flags that the kernel has of the mapping at an address.
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
    fn it_is_known_whether_there_are_devices() {
        let publisher = Publisher::new();
        assert!(!publisher.has_devices());
        let attached = publisher.attach();
        assert!(publisher.clone().has_devices());
        drop(attached);
        assert!(!publisher.has_devices());
    }

    #[test]
    fn no_more_is_published_than_peers_have_room_for() {
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
