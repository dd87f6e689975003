//! `ibv_rereg_mr`: gives a region other memory, another domain, or other rights.

use std::sync::Arc;

use libc::{c_int, c_uint, c_void};
use urnic::{Access, MrPart, TaggedOffset};
use urnic_engine::mem::RegisterError;

use super::{Held, MrObject, access, region};
use crate::abi::{
    IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr,
    ibv_pd,
};
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::pd::{Pd, pd};
use crate::region::Registered;

struct Change {
    translation: Option<(*mut c_void, usize)>,
    pd: Option<Arc<Pd>>,
    access: Option<c_uint>,
}

impl From<RegisterError> for Errno {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::WindowsBound => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl Held {
    /// Makes all changes or none. `place` is the present address of the memory.
    fn change(&mut self, change: Change, place: *mut c_void) -> Result<(), Errno> {
        let old = &self.registered;
        let flags = change.access.unwrap_or(old.flags);
        let access = access(flags)?;
        let (region, base) = match change.translation {
            Some((addr, len)) => {
                let is_zero_based = flags & IBV_ACCESS_ZERO_BASED != 0;
                let base = if is_zero_based { 0 } else { addr.addr() as u64 };
                (region(addr, len, access)?, base)
            }
            // Memory that was only read may be written now: make its pages present for it.
            None if access.contains(Access::LOCAL_WRITE) && !old.mr.is_empty() => {
                (region(place, old.mr.len(), access)?, old.iova)
            }
            None => (Arc::clone(old.mr.region()), old.iova),
        };
        let pd = change.pd.unwrap_or_else(|| Arc::clone(&self.pd));
        let part = MrPart { range: 0..region.len(), base: TaggedOffset(base), access, only: None };
        let mr = old.mr.reregister(&pd.inner, region, part)?;
        let registered = Arc::new(Registered::new(mr, base, flags));
        old.go();
        self.pd.remove(old.key());
        pd.add(Arc::clone(&registered));
        *self = Self { pd, registered };
        Ok(())
    }
}

/// Every refusal leaves the region unchanged and returns `IBV_REREG_MR_ERR_INPUT`; `errno` says
/// why. EBUSY while windows are bound to it.
///
/// # Safety
/// `mr` is live and not used during the call, `of` is live if the domain changes, and the new
/// memory stays mapped until the region is deregistered or registered anew.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    of: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    let flags = flags.cast_unsigned();
    let has = |flag| flags & flag != 0;
    let is_wrong = flags == 0
        || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (has(IBV_REREG_MR_CHANGE_TRANSLATION)
            && (addr.is_null() || len == 0 || isize::try_from(len).is_err()))
        || (has(IBV_REREG_MR_CHANGE_PD) && of.is_null())
        || (access != 0 && !has(IBV_REREG_MR_CHANGE_ACCESS));
    // SAFETY: C's part of a live region, which C does not use meanwhile.
    let mut c = unsafe { mr.read() };
    let changed = if is_wrong {
        Err(Errno::INVALID)
    } else {
        let change = Change {
            translation: has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, len)),
            // SAFETY: a live domain, by this function's contract.
            pd: has(IBV_REREG_MR_CHANGE_PD).then(|| Arc::clone(unsafe { pd(of) })),
            access: has(IBV_REREG_MR_CHANGE_ACCESS).then_some(access.cast_unsigned()),
        };
        // SAFETY: made in `register`, by this function's contract.
        locked(unsafe { MrObject::of(mr) }).change(change, c.addr)
    };
    if let Err(errno) = changed {
        errno.set();
        return IBV_REREG_MR_ERR_INPUT;
    }
    if has(IBV_REREG_MR_CHANGE_PD) {
        c.pd = of;
    }
    if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
        (c.addr, c.length) = (addr, len);
    }
    // SAFETY: as above.
    unsafe { mr.write(c) };
    0
}
