//! Memory windows of a table: allocation, binding to parts of regions, unbinding.

use std::sync::Arc;

use super::{Entry, Inner, RegionTable, Registration, end_of};
use crate::limits::WINDOWS_MAX;
use crate::mem::window::{BindError, MwBind, MwType, OF_PEERS, Role, Window, index_of};
use crate::mem::{Access, RegisterError, Scope};
use crate::types::{PdNum, QpNum, Stag};

impl RegionTable {
    /// Allocates a window that is not bound. Returns one of its steering tags, not valid yet, and a
    /// random odd number for choosing others. Fails if there are [`WINDOWS_MAX`].
    pub(crate) fn alloc_window(
        &self,
        pd: PdNum,
        mw_type: MwType,
    ) -> Result<(Stag, u8), RegisterError> {
        let mut inner = self.write();
        let Inner { entries, windows, stags, .. } = &mut *inner;
        if windows.len() >= WINDOWS_MAX {
            return Err(RegisterError::TableFull);
        }
        let stag = stags.draw(|tag| {
            let index = index_of(tag);
            windows.contains_key(&index)
                || (0..=0xff).any(|key| entries.contains_key(&(index << 8 | key)))
        });
        windows.insert(index_of(stag.0), Window { pd, mw_type, bound: None });
        let [step, ..] = stags.draw(|_| false).0.to_le_bytes();
        Ok((stag, step | 1))
    }

    /// `stag` is any of the window's 256. Waits as [`deregister`](Self::deregister) does.
    pub(crate) fn dealloc_window(&self, stag: Stag) {
        let mut inner = self.write();
        let removed = inner.unbind(index_of(stag.0));
        inner.windows.remove(&index_of(stag.0));
        inner.stags.retire(stag);
        drop(inner);
        drop(removed);
    }

    /// Binds a window for stream `qp` of domain `pd`. Waits as [`deregister`](Self::deregister)
    /// does: after the return, the old binding gives no access. After an error it stays.
    pub(crate) fn bind(&self, bind: &MwBind, pd: PdNum, qp: QpNum) -> Result<(), BindError> {
        let mut inner = self.write();
        let shown = inner.shown(bind, pd, qp)?;
        let removed = inner.unbind(index_of(bind.stag.0));
        if let Some(registration) = shown {
            inner.show(bind, registration);
        }
        drop(inner);
        drop(removed);
        Ok(())
    }

    /// Unbinds the windows of type 2 that are bound at a stream that has ended: another one may get
    /// its number. Waits as [`deregister`](Self::deregister) does.
    pub(crate) fn unbind_at(&self, pd: PdNum, qp: QpNum) {
        let mut inner = self.write();
        if inner.windows_bound > 0 {
            inner.unbind_all(|Entry { registration, role }, _| {
                let at = registration.pd == pd && registration.scope == Scope::Stream(qp);
                at && matches!(role, Role::Window(MwType::Two))
            });
        }
    }
}

impl Inner {
    /// The tag of a removed binding stays with the window: it is not retired.
    pub(super) fn unbound(&mut self, stag: Stag) {
        self.windows_bound -= 1;
        let window = self.windows.get_mut(&index_of(stag.0));
        let bound = window.and_then(|window| window.bound.take());
        let (_, region) = bound.expect("an entry of a window is where the window is bound");
        if let Some(Entry { role: Role::Region { windows }, .. }) = self.entries.get_mut(&region.0)
        {
            *windows -= 1;
        }
    }

    fn unbind(&mut self, index: u32) -> Option<Entry> {
        let (stag, _) = self.windows.get(&index)?.bound?;
        self.remove(stag)
    }

    /// `which` selects by entry and region. The memory stays mapped by other handles.
    pub(super) fn unbind_all(&mut self, which: impl Fn(&Entry, Stag) -> bool) {
        let Self { windows, entries, .. } = self;
        let bound = windows.values().filter_map(|window| window.bound);
        let picked: Vec<Stag> = bound
            .filter(|(stag, region)| {
                entries.get(&stag.0).is_some_and(|entry| which(entry, *region))
            })
            .map(|(stag, _)| stag)
            .collect();
        for stag in picked {
            self.remove(stag);
        }
    }

    /// The registration for a binding, after all checks; `None` for a binding to no bytes.
    //
    // The checks of the RDMAC verbs, §7.10.4.2, and of InfiniBand, §10.6.6.2 (C10-70 to C10-75):
    // one domain, a region that permits windows, no right to write that the region's owner lacks,
    // bounds.
    fn shown(
        &self,
        bind: &MwBind,
        pd: PdNum,
        qp: QpNum,
    ) -> Result<Option<Registration>, BindError> {
        let window = self.windows.get(&index_of(bind.stag.0)).ok_or(BindError::NoWindow)?;
        if window.pd != pd {
            return Err(BindError::NotAssociated);
        }
        match (window.mw_type, bind.len) {
            (MwType::One, 0) => return Ok(None),
            (MwType::One, _) => {}
            (MwType::Two, _) if window.bound.is_some() => return Err(BindError::StillBound),
            (MwType::Two, 0) => return Err(BindError::Empty),
            (MwType::Two, _) => {}
        }
        let Some(Entry { registration, role: Role::Region { .. } }) = self.entries.get(&bind.mr.0)
        else {
            return Err(BindError::NoRegion);
        };
        registration.check_association(pd, qp).map_err(|_| BindError::NotAssociated)?;
        let access = bind.access & OF_PEERS;
        // RFC 5040 §8.1.1 (5): the window has at most the rights of the owner.
        let writes = access.intersects(Access::WRITING);
        if !registration.access.contains(Access::MW_BIND)
            || (writes && !registration.access.contains(Access::LOCAL_WRITE))
        {
            return Err(BindError::AccessRights);
        }
        let len = usize::try_from(bind.len).map_err(|_| BindError::BaseOrBounds)?;
        let at = registration.locate(bind.from, len).map_err(|_| BindError::BaseOrBounds)?;
        end_of(bind.base, len).ok_or(BindError::BaseOrBounds)?;
        Ok(Some(Registration {
            region: Arc::clone(&registration.region),
            offset: registration.offset + at,
            len,
            base: bind.base,
            access,
            pd,
            scope: match window.mw_type {
                MwType::One => registration.scope,
                MwType::Two => Scope::Stream(qp),
            },
        }))
    }

    fn show(&mut self, bind: &MwBind, registration: Registration) {
        let window = self.windows.get_mut(&index_of(bind.stag.0)).expect("checked: it is there");
        window.bound = Some((bind.stag, bind.mr));
        let entry = Entry { registration, role: Role::Window(window.mw_type) };
        self.entries.insert(bind.stag.0, entry);
        self.windows_bound += 1;
        if let Some(Entry { role: Role::Region { windows }, .. }) = self.entries.get_mut(&bind.mr.0)
        {
            *windows += 1;
        }
    }
}

#[cfg(test)]
mod tests;
