//! Thread domains, and parent domains, which behave as their protection domains. A thread domain is
//! a promise of the application that lets a library omit locks; it changes nothing here, because
//! uncontended locks are cheap. Allocators are not called: no object uses memory that they could
//! provide.
#![expect(unsafe_code, reason = "C's pointers to domains")]

use std::sync::Arc;

use libc::c_int;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::errno::{Errno, number, or_null};
use crate::fault::{self, Call};
use crate::object::Object;
use crate::pd::{self, Td, pd};

type TdObject = Object<ibv_td, Arc<Td>>;

/// # Safety
/// `attr` points at attributes.
pub(crate) unsafe extern "C" fn alloc_td(
    of: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: attributes, by this function's contract.
    if unsafe { (*attr).comp_mask } != 0 {
        return or_null(Err(Errno::INVALID));
    }
    TdObject::make(ibv_td { context: of }, |_| Arc::new(Td))
}

/// EBUSY while a parent domain uses it.
///
/// # Safety
/// `td` is live, and not used again if the function returns 0.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: made in `alloc_td`, by this function's contract.
    if Arc::strong_count(unsafe { TdObject::of(td) }) > 1 {
        return number(Err(Errno::BUSY));
    }
    // SAFETY: live, and freed once: the answer is 0.
    drop(unsafe { TdObject::free(td) });
    0
}

/// `ibv_dealloc_pd` deallocates it.
///
/// # Safety
/// `attr` points at attributes, whose domains are NULL or live.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    of: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: attributes, by this function's contract.
    let attr = unsafe { attr.read() };
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    let has_allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
    if attr.pd.is_null()
        || attr.comp_mask & !known != 0
        || (has_allocators && attr.alloc.is_some() != attr.free.is_some())
    {
        return or_null(Err(Errno::INVALID));
    }
    // SAFETY: a live domain, by this function's contract.
    let base = unsafe { pd(attr.pd) };
    // SAFETY: NULL, or a live domain, by this function's contract.
    let td = (!attr.td.is_null()).then(|| Arc::clone(unsafe { TdObject::of(attr.td) }));
    or_null(fault::check(Call::AllocPd).map(|()| pd::extend(of, base, td)))
}
