//! Handles of a region's memory, with a separate count for each of a few threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::utils::CachePadded;

use super::region::Region;

pub(crate) type RegionHandle = Arc<CachePadded<Region>>;

/// Number of counts for the handles of one region. With more threads, some threads share a count.
const COUNTS: usize = 8;

/// Each post and each completion changes a count of its memory's handles. Threads that post from
/// one region would transfer the cache line of a common count for every message.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// Created on demand: much memory is only for access by peers.
    counted: OnceLock<Box<[OnceLock<RegionHandle>; COUNTS]>>,
}

impl Handles {
    #[inline]
    pub(crate) fn handle(&self, region: &Arc<Region>) -> RegionHandle {
        let counted = &self.counted.get_or_init(Box::default)[own_count()];
        Arc::clone(counted.get_or_init(|| Arc::new(CachePadded::new(region.again()))))
    }
}

/// Index of the calling thread's count. Threads created one after the other have different ones.
fn own_count() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % COUNTS;
    }
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of the counts of two handles, in bytes.
    fn distance(one: &RegionHandle, other: &RegionHandle) -> usize {
        Arc::as_ptr(one).addr().abs_diff(Arc::as_ptr(other).addr())
    }

    #[test]
    fn threads_count_in_lines_of_their_own_and_not_in_the_regions() {
        let region = Region::anonymous(64).unwrap();
        let handles = Handles::default();
        let own = handles.handle(&region);
        let others: Vec<_> = (1..COUNTS)
            .map(|_| std::thread::scope(|scope| scope.spawn(|| handles.handle(&region)).join()))
            .collect::<Result<_, _>>()
            .unwrap();
        let held = Arc::strong_count(&region);
        assert!(Arc::ptr_eq(&own, &handles.handle(&region)), "a thread has one count");
        assert_eq!(Arc::strong_count(&region), held, "a handle leaves the region's count alone");
        // Threads of other tests draw numbers, too: two of these may have met in a count.
        let apart: Vec<_> = others.iter().filter(|other| !Arc::ptr_eq(&own, other)).collect();
        assert!(!apart.is_empty() && apart.iter().all(|other| distance(&own, other) >= 128));
        own.write(3, b"the same").unwrap();
        let mut octets = [0; 8];
        region.read(3, &mut octets).unwrap();
        assert_eq!(&octets, b"the same");
    }

    #[test]
    fn memory_stays_while_there_is_a_handle() {
        let (region, handles) = (Region::anonymous(64).unwrap(), Handles::default());
        let handle = handles.handle(&region);
        drop((region, handles));
        handle.write(0, &[7]).unwrap();
        let mut octet = [0];
        handle.read(0, &mut octet).unwrap();
        assert_eq!(octet, [7]);
        handle.flush().unwrap();
    }
}
