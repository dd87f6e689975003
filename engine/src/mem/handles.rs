//! Handles of a region's memory, counted apart for each of a few threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::utils::CachePadded;

use super::region::Region;

/// A handle of a region's memory, as a work request has it.
pub(crate) type RegionHandle = Arc<CachePadded<Region>>;

/// Counts of the handles of one region. Of more threads, some share one.
const COUNTS: usize = 8;

/// The memory of one region, for work requests.
///
/// A request has a handle of its memory, so each post and each completion changes a count. The threads of
/// two queues that post from one region would take the cache line of that count from each other for every
/// message, so each thread has a count of its own.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// Made when it is needed: much memory is only for peers to reach.
    counted: OnceLock<Box<[OnceLock<RegionHandle>; COUNTS]>>,
}

impl Handles {
    /// A handle of `region`, which has to be the same each time.
    #[inline]
    pub(crate) fn handle(&self, region: &Arc<Region>) -> RegionHandle {
        let counted = &self.counted.get_or_init(Box::default)[own_count()];
        Arc::clone(counted.get_or_init(|| Arc::new(CachePadded::new(region.again()))))
    }
}

/// Which count is the calling thread's. Threads that come one after the other have different ones.
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

    /// How far apart the counts of two handles are, in bytes.
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
