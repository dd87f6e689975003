//! Registered regions.

use std::sync::Mutex;

use libc::c_uint;
use urnic::{Mr, Sge};

use crate::event_queue::locked;

/// A region, and the address under which requests and peers know its first byte.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) mr: Mr,
    pub(crate) iova: u64,
    pub(crate) flags: c_uint,
    /// Set when the region is deregistered: the memory may be unmapped.
    is_gone: Mutex<bool>,
}

impl Registered {
    pub(crate) fn new(mr: Mr, iova: u64, flags: c_uint) -> Self {
        Self { mr, iova, flags, is_gone: Mutex::default() }
    }

    /// Stores nothing from now on, although others may still hold a handle.
    pub(crate) fn go(&self) {
        *locked(&self.is_gone) = true;
    }

    pub(crate) fn key(&self) -> u32 {
        self.mr.stag().0
    }

    /// `None` if it is not entirely inside.
    pub(crate) fn sge(&self, addr: u64, len: u32) -> Option<Sge> {
        let start = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (end <= self.mr.len()).then(|| self.mr.sge(start..end))
    }

    /// Stores the value that an Atomic fetched, unless the region was deregistered.
    pub(crate) fn store(&self, addr: u64, value: u64) {
        let Some(start) = addr.checked_sub(self.iova).and_then(|at| usize::try_from(at).ok())
        else {
            return;
        };
        let octets = value.to_ne_bytes();
        let is_gone = locked(&self.is_gone);
        if *is_gone {
            return;
        }
        if start.checked_add(octets.len()).is_some_and(|end| end <= self.mr.len()) {
            self.mr.copy_in(start, &octets);
        }
    }
}
