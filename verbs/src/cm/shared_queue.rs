//! Shared receive queues of ids.
#![expect(unsafe_code, reason = "C's pointers to ids and attributes")]

use std::ptr;

use libc::{c_int, c_void};

use super::show::default_pd;
use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, ibv_pd, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::errno::{Errno, minus_one};
use crate::srq::{create, ibv_destroy_srq};

/// # Safety
/// `of` is live, `pd` NULL or live.
unsafe fn create_for_id(
    of: *mut rdma_cm_id,
    wanted: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<(), Errno> {
    // SAFETY: C's part of a live id.
    let c = unsafe { of.read() };
    if c.verbs.is_null() || !c.srq.is_null() {
        return Err(Errno::INVALID);
    }
    let pd = [wanted, c.pd].into_iter().find(|pd| !pd.is_null());
    let pd = match pd {
        Some(pd) => pd,
        None => default_pd()?,
    };
    // SAFETY: a live domain, by this function's contract.
    let made = unsafe { create(pd, srq_context, attr) }?;
    // SAFETY: C's part of a live id, which no other thread changes now.
    let c = unsafe { &mut *of };
    (c.srq, c.pd) = (made, pd);
    Ok(())
}

/// # Safety
/// `of` is live, `pd` NULL or live, `attr` points at attributes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    of: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    // SAFETY: as this function's contract.
    minus_one(unsafe { create_for_id(of, pd, attr.srq_context, &mut attr.attr) })
}

/// Makes queues of the basic type only.
///
/// # Safety
/// `of` is live, `attr` points at attributes, which name what is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    of: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    let has = |flag| attr.comp_mask & flag != 0;
    if attr.comp_mask & !known != 0
        || (has(IBV_SRQ_INIT_ATTR_TYPE) && attr.srq_type != IBV_SRQT_BASIC)
    {
        return minus_one(Err(Errno::NOT_SUPPORTED));
    }
    let pd = if has(IBV_SRQ_INIT_ATTR_PD) { attr.pd } else { ptr::null_mut() };
    // SAFETY: as this function's contract.
    minus_one(unsafe { create_for_id(of, pd, attr.srq_context, &mut attr.attr) })
}

/// # Safety
/// `of` is live, and its queue is not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(of: *mut rdma_cm_id) {
    // SAFETY: C's part of a live id.
    let c = unsafe { &mut *of };
    let srq = std::mem::replace(&mut c.srq, ptr::null_mut());
    if !srq.is_null() {
        // SAFETY: the id's own queue, not used again, by this function's contract.
        unsafe { ibv_destroy_srq(srq) };
    }
}
