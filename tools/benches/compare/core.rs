//! One core for each side: the scheduler sometimes puts two busy threads on one core for a whole
//! case.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps the calling thread on one core until it is dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: Option<CpuSet>,
}

/// Pins the calling thread to a core, if the machine has it.
pub(crate) fn pin(core: usize) -> Pinned {
    let before = sched_getaffinity(None).ok();
    let mut set = CpuSet::new();
    set.set(core);
    let pinned = sched_setaffinity(None, &set).is_ok();
    Pinned { before: before.filter(|_| pinned) }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The former set was allowed.
            let _restored = sched_setaffinity(None, before);
        }
    }
}
