//! Address handles: they tell whether the device accepts a peer's address. No datagram is sent.
#![expect(unsafe_code, reason = "C's pointers to handles and attributes")]

use std::sync::Arc;

use libc::c_int;

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::errno::{Errno, or_null};
use crate::gid::PORT;
use crate::object::Object;
use crate::pd::{Pd, pd};
use crate::process::next_handle;

type AhObject = Object<ibv_ah, Arc<Pd>>;

/// # Safety
/// `of` is live, `attr` points at attributes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(of: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: attributes, by this function's contract.
    let attr = unsafe { attr.read() };
    // On Ethernet a peer is addressed by its GID.
    if attr.port_num != PORT || attr.is_global == 0 {
        return or_null(Err(Errno::INVALID));
    }
    // SAFETY: live, by this function's contract.
    let domain = unsafe { pd(of) };
    let mut c = ibv_ah::zeroed();
    // SAFETY: C's part of a live domain.
    c.context = unsafe { (*of).context };
    (c.pd, c.handle) = (of, next_handle());
    AhObject::make(c, |_| Arc::clone(domain))
}

/// # Safety
/// `ah` is live and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: live, and freed once, by this function's contract.
    drop(unsafe { AhObject::free(ah) });
    0
}

/// Refused, because there are no datagrams.
#[unsafe(no_mangle)]
extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

/// Refused like [`ibv_init_ah_from_wc`].
#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port: u8,
) -> *mut ibv_ah {
    or_null(Err(Errno::NOT_SUPPORTED))
}

/// Refused: only drivers that build Ethernet headers themselves need it.
#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    libc::EOPNOTSUPP
}
