//! Memory windows.
#![expect(unsafe_code, reason = "C's pointers to windows, regions and bindings")]

use std::sync::Arc;

use libc::{c_int, c_uint};
use urnic::MwType;

use crate::abi::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_SEND_FENCE, IBV_SEND_SIGNALED, ibv_mw, ibv_mw_bind, ibv_pd,
    ibv_qp,
};
use crate::errno::{Errno, number, or_null};
use crate::object::Object;
use crate::pd::{Pd, pd};
use crate::process::next_handle;
use crate::qp::qp;
use crate::work::{Request, binding};

#[derive(Debug)]
struct Mw {
    /// Declared before its domain, so that it is dropped first.
    inner: urnic::Mw,
    _pd: Arc<Pd>,
}

type MwObject = Object<ibv_mw, Mw>;

/// # Safety
/// `of` is a live domain.
pub(crate) unsafe extern "C" fn alloc_mw(of: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    let mw_type = match kind {
        IBV_MW_TYPE_1 => MwType::One,
        IBV_MW_TYPE_2 => MwType::Two,
        _ => return or_null(Err(Errno::INVALID)),
    };
    // SAFETY: a live domain, by this function's contract.
    let domain = unsafe { pd(of) };
    let Ok(inner) = domain.inner.alloc_mw(mw_type) else {
        return or_null(Err(Errno::NO_MEMORY));
    };
    let mut c = ibv_mw::zeroed();
    // SAFETY: C's part of a live domain.
    c.context = unsafe { (*of).context };
    (c.pd, c.r#type) = (of, kind);
    (c.rkey, c.handle) = (inner.stag().0, next_handle());
    MwObject::make(c, |_| Mw { inner, _pd: Arc::clone(domain) })
}

/// Unbinds and frees the window. When it returns, no peer accesses memory through it.
///
/// # Safety
/// `mw` is live and not used again.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: made in `alloc_mw`, and freed once, by this function's contract.
    drop(unsafe { MwObject::free(mw) });
    0
}

/// Posts a binding of a window of type 1, which gets a new key.
///
/// # Safety
/// The queue pair, the window and the region are live, `bind` points at a binding.
pub(crate) unsafe extern "C" fn bind_mw(
    of: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let pair = unsafe { qp(of) };
    // SAFETY: a live window.
    let window = unsafe { MwObject::of(mw) };
    // SAFETY: a binding, by this function's contract.
    let bind = unsafe { bind.read() };
    if window.inner.mw_type() != MwType::One {
        return number(Err(Errno::INVALID));
    }
    let stag = window.inner.next_stag();
    // SAFETY: as this function's contract.
    let op = unsafe { binding(&bind.bind_info, stag) };
    let posted = op.and_then(|op| {
        let request = Request {
            id: bind.wr_id,
            op,
            fence: bind.send_flags & IBV_SEND_FENCE != 0,
            signaled: bind.send_flags & IBV_SEND_SIGNALED != 0,
            inline: false,
        };
        pair.send_local(&request)
    });
    if posted.is_ok() {
        // SAFETY: C's part of a live window, which C binds in one thread at a time.
        unsafe { (*mw).rkey = stag.0 };
    }
    number(posted)
}
