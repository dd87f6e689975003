//! The steering tag table: the only place that decides about access.

mod windows;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crossbeam::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use super::access::{Access, Refusal, RegisterError, Scope};
use super::grant::Grant;
use super::region::Region;
use super::stag::{StagHash, StagSource};
use super::window::{MwType, Role, Window, index_of};
use crate::limits::REGISTRATIONS_MAX;
use crate::types::{PdNum, QpNum, Stag, TaggedOffset};

/// The registered memory of one RNIC. Application threads register and revoke. An engine thread
/// takes a [`read`](Self::read) guard, checks and places received segments under it, and drops it;
/// a [`TableLease`] does so for a batch. A revocation waits for the guards of that moment: after
/// its return nothing from the network writes by the steering tag.
//
// RFC 5040 §8.1.1(6): after access has been revoked, the RNIC MUST ensure that no network packet
// modifies the buffer.
pub struct RegionTable {
    /// Readers count themselves in one of eight cache lines, and a change locks all: every queue's
    /// thread looks up for every burst of frames.
    inner: ShardedLock<Inner>,
    registrations_max: usize,
}

struct Inner {
    entries: HashMap<u32, Entry, StagHash>,
    /// Windows by the upper 24 bits of their steering tags.
    windows: HashMap<u32, Window, StagHash>,
    windows_bound: usize,
    stags: StagSource,
}

struct Entry {
    registration: Registration,
    role: Role,
}

/// The memory and the rights of a steering tag.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The memory, mapped while it is registered.
    pub region: Arc<Region>,
    /// Offset in the region of the first registered byte.
    pub offset: usize,
    /// Number of registered bytes. May be 0, which registers nothing but is legal.
    pub len: usize,
    /// Tagged offset of the first registered byte.
    pub base: TaggedOffset,
    /// Granted rights.
    pub access: Access,
    /// The protection domain whose streams may use the steering tag.
    pub pd: PdNum,
    /// The streams of the domain that may use it.
    pub scope: Scope,
}

impl RegionTable {
    /// Draws its steering tags from `seed`: unpredictable, unless all peers are trusted.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self::with_limit(seed, REGISTRATIONS_MAX)
    }

    #[must_use]
    pub(crate) fn with_limit(seed: [u8; 32], registrations_max: usize) -> Self {
        let inner = Inner {
            entries: HashMap::default(),
            windows: HashMap::default(),
            windows_bound: 0,
            stags: StagSource::new(seed),
        };
        Self {
            inner: ShardedLock::new(inner),
            registrations_max: registrations_max.min(REGISTRATIONS_MAX),
        }
    }

    /// Registers memory under a new steering tag. On a [`RegisterError`] nothing changes.
    // spec: DDP-8.3-1, SEC-R-4
    pub fn register(&self, registration: Registration) -> Result<Stag, RegisterError> {
        registration.verify()?;
        let mut inner = self.write();
        let Inner { entries, windows, windows_bound, stags } = &mut *inner;
        if entries.len() - *windows_bound >= self.registrations_max {
            return Err(RegisterError::TableFull);
        }
        let in_use = |tag| entries.contains_key(&tag) || windows.contains_key(&index_of(tag));
        let stag = stags.draw(in_use);
        entries.insert(stag.0, Entry { registration, role: Role::Region { windows: 0 } });
        Ok(stag)
    }

    /// On return the network writes no bytes that only the old registration covered. On an error
    /// nothing changes.
    pub(crate) fn reregister(
        &self,
        stag: Stag,
        registration: Registration,
    ) -> Result<(), RegisterError> {
        registration.verify()?;
        let mut inner = self.write();
        let before = match inner.entries.get_mut(&stag.0) {
            Some(Entry { registration: now, role: Role::Region { windows: 0 } }) => {
                std::mem::replace(now, registration)
            }
            Some(Entry { role: Role::Region { .. }, .. }) => {
                return Err(RegisterError::WindowsBound);
            }
            Some(Entry { role: Role::Window(_), .. }) | None => {
                return Err(RegisterError::NotRegistered);
            }
        };
        drop(inner);
        // Outside the lock, because this may unmap memory.
        drop(before);
        Ok(())
    }

    /// Removes the tag and all windows bound to it, and waits for segments being placed or read.
    /// Returns false if there is no such tag. Deadlocks on a thread that holds a [`TableGuard`] of
    /// this table.
    // spec: DDP-8.3-1, SEC-R-4
    pub(crate) fn deregister(&self, stag: Stag) -> bool {
        let mut inner = self.write();
        // An invalidated tag may belong to a window by now.
        let Some(Entry { role: Role::Region { windows }, .. }) = inner.entries.get(&stag.0) else {
            return false;
        };
        if *windows > 0 {
            inner.unbind_all(|_, bound_to| bound_to == stag);
        }
        let removed = inner.remove(stag);
        drop(inner);
        // Outside the lock, because this may unmap memory.
        drop(removed);
        true
    }

    /// Invalidates a steering tag for its owner at stream `qp` in domain `pd`. Waits as
    /// [`deregister`](Self::deregister) does.
    pub(crate) fn invalidate_local(&self, stag: Stag, pd: PdNum, qp: QpNum) -> Result<(), Refusal> {
        self.remove_if(stag, |Entry { registration, role }| {
            if registration.pd != pd {
                return Err(Refusal::NotAssociated);
            }
            match role {
                Role::Window(MwType::Two) if registration.scope != Scope::Stream(qp) => {
                    Err(Refusal::CannotInvalidate)
                }
                _ => Ok(()),
            }
        })
    }

    /// Like [`deregister`](Self::deregister), unless windows are bound.
    pub(crate) fn revoke(&self, stag: Stag) -> Result<(), Refusal> {
        self.remove_if(stag, |entry| match entry.role {
            Role::Region { .. } => Ok(()),
            Role::Window(_) => Err(Refusal::InvalidStag),
        })
    }

    /// Invalidates a steering tag for the peer of stream `qp`. On an error the tag stays valid.
    //
    // RFC 5040 §8.1.1(7): a peer MUST NOT be able to invalidate an STag that is shared by several
    // streams. RFC 5042 §6.4.5 makes the ULP responsible, which grants it by REMOTE_INVALIDATE.
    // spec: RDMAP-7.2-2
    pub(crate) fn invalidate_remote(
        &self,
        stag: Stag,
        pd: PdNum,
        qp: QpNum,
    ) -> Result<(), Refusal> {
        self.remove_if(stag, |Entry { registration, role: _ }| {
            registration.check_association(pd, qp)?;
            let may = match registration.scope {
                Scope::Stream(_) => true,
                // spec: SEC-R-7
                Scope::Pd => registration.access.contains(Access::REMOTE_INVALIDATE),
            };
            if may { Ok(()) } else { Err(Refusal::CannotInvalidate) }
        })
    }

    fn remove_if(
        &self,
        stag: Stag,
        check: impl FnOnce(&Entry) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut inner = self.write();
        let entry = inner.entries.get(&stag.0).ok_or(Refusal::InvalidStag)?;
        check(entry)?;
        match entry.role {
            Role::Region { windows: 0 } | Role::Window(MwType::Two) => {}
            Role::Region { .. } => return Err(Refusal::WindowsBound),
            Role::Window(MwType::One) => return Err(Refusal::WindowOfTypeOne),
        }
        let removed = inner.remove(stag);
        drop(inner);
        // Outside the lock, because this may unmap memory.
        drop(removed);
        Ok(())
    }

    /// Opens the table for a batch of checks and placements. Changes wait meanwhile: drop the guard
    /// soon, and take no second guard on the same thread.
    #[must_use]
    pub fn read(&self) -> TableGuard<'_> {
        // A poisoned lock is still usable: changes panic, if at all, before they change anything.
        TableGuard { inner: self.inner.read().unwrap_or_else(PoisonError::into_inner) }
    }

    // spec: SEC-R-6
    fn write(&self) -> ShardedLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of registered steering tags.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().inner.entries.len()
    }

    /// Returns true if nothing is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Steering tags are capabilities: they do not belong in a log.
        f.debug_struct("RegionTable")
            .field("registrations_max", &self.registrations_max)
            .finish_non_exhaustive()
    }
}

/// A table open for lookups; see [`RegionTable::read`].
pub struct TableGuard<'t> {
    inner: ShardedLockReadGuard<'t, Inner>,
}

/// A table that is opened at its first use, for a batch of received segments: opening and closing
/// costs two atomic operations that wait for all earlier stores. Close the lease before the table
/// is changed on the same thread.
#[derive(Debug)]
pub struct TableLease<'t> {
    table: &'t RegionTable,
    guard: Option<TableGuard<'t>>,
}

impl<'t> TableLease<'t> {
    /// A lease that has not opened the table yet.
    #[must_use]
    pub const fn new(table: &'t RegionTable) -> Self {
        Self { table, guard: None }
    }

    /// The table, for changes: close the lease first.
    #[must_use]
    pub const fn table(&self) -> &'t RegionTable {
        self.table
    }

    /// Opens the table, if it is not open.
    #[inline]
    pub fn open(&mut self) -> &TableGuard<'t> {
        self.guard.get_or_insert_with(|| self.table.read())
    }

    /// Lets changes proceed, until the next [`open`](Self::open).
    pub fn close(&mut self) {
        self.guard = None;
    }
}

impl TableGuard<'_> {
    /// Checks that stream `qp` of domain `pd` may access `len` bytes at `to` under `stag`, with all
    /// the rights in `need` ([`Access::empty`]: reading for the owner). Zero-length RDMA messages
    /// must not be checked at all (RFC 5041 §7.1, RFC 5040 §5.2.1): here a `len` of 0 is checked
    /// like any other. Errors, in this order: steering tag, association, rights, wrap, bounds.
    //
    // RFC 5041 §7.1: "the DDP layer MUST validate" that the STag is valid for the stream, that the
    // buffer permits placement, that TO and TO + length are in range and their sum does not wrap.
    // Wrap comes before bounds, which would hide it.
    // spec: DDP-7.1-2
    #[inline]
    pub fn check(
        &self,
        stag: Stag,
        to: TaggedOffset,
        len: usize,
        need: Access,
        pd: PdNum,
        qp: QpNum,
    ) -> Result<Grant<'_>, Refusal> {
        // spec: SEC-T-3
        let entry = self.inner.entries.get(&stag.0).ok_or(Refusal::InvalidStag)?;
        let registration = &entry.registration;
        registration.check_association(pd, qp)?;
        // spec: SEC-R-5
        if !registration.access.contains(need) {
            return Err(Refusal::AccessRights);
        }
        let at = registration.locate(to, len)?;
        Ok(Grant::new(&registration.region, registration.offset + at, len, need))
    }
}

impl fmt::Debug for TableGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableGuard").finish_non_exhaustive()
    }
}

impl Inner {
    fn remove(&mut self, stag: Stag) -> Option<Entry> {
        let entry = self.entries.remove(&stag.0)?;
        match entry.role {
            Role::Region { .. } => self.stags.retire(stag),
            Role::Window(_) => self.unbound(stag),
        }
        Some(entry)
    }
}

impl Registration {
    fn verify(&self) -> Result<(), RegisterError> {
        let Self { region, offset, len, base, access, .. } = self;
        if region.slice(*offset, *len).is_none() {
            return Err(RegisterError::OutsideRegion);
        }
        // RFC 5041 §7.1 refuses segments whose TO + length reaches 2⁶⁴ (see `check`).
        if end_of(*base, *len).is_none() {
            return Err(RegisterError::TaggedOffsetWrap);
        }
        // RFC 5042 §7.3: an STag's owner must itself have the requested rights.
        // spec: SEC-P-4
        if access.intersects(Access::WRITING) && !region.is_writable() {
            return Err(RegisterError::ReadOnlyMemory);
        }
        Ok(())
    }

    // RFC 5041 §8.2: an STag is associated with a protection domain or with a single stream.
    // spec: DDP-8.2-1, SEC-R-1, SEC-R-2, SEC-R-20
    fn check_association(&self, pd: PdNum, qp: QpNum) -> Result<(), Refusal> {
        let in_scope = match self.scope {
            Scope::Pd => true,
            Scope::Stream(only) => only == qp,
        };
        if self.pd == pd && in_scope { Ok(()) } else { Err(Refusal::NotAssociated) }
    }

    // spec: DDP-4.2-4, SEC-R-3, SEC-T-2
    fn locate(&self, to: TaggedOffset, len: usize) -> Result<usize, Refusal> {
        // A sum of exactly 2⁶⁴ wraps too, to 0.
        end_of(to, len).ok_or(Refusal::TaggedOffsetWrap)?;
        let at = to.0.checked_sub(self.base.0).ok_or(Refusal::BaseOrBounds)?;
        let at = usize::try_from(at).map_err(|_| Refusal::BaseOrBounds)?;
        if at > self.len || len > self.len - at {
            return Err(Refusal::BaseOrBounds);
        }
        Ok(at)
    }
}

fn end_of(to: TaggedOffset, len: usize) -> Option<u64> {
    to.0.checked_add(u64::try_from(len).ok()?)
}

#[cfg(test)]
mod tests;
