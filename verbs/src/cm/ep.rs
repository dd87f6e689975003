//! `rdma_create_ep`: an id, its address and its queue pair in one call.
#![expect(unsafe_code, reason = "C's pointers to ids and attributes")]

use std::ptr;

use libc::c_int;

use super::connect::{rdma_resolve_addr, rdma_resolve_route};
use super::end::rdma_destroy_id;
use super::id::channel::Attached;
use super::id::{ListenerAttr, Phase, id, make};
use super::listen::rdma_bind_addr;
use super::queue_pair::{rdma_create_qp, rdma_destroy_qp};
use super::shared_queue::rdma_destroy_srq;
use crate::abi::{RAI_PASSIVE, RDMA_PS_TCP, ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::object::{CPtr, optional};

/// Makes the queue pair of a new id, if its listener has attributes for it.
pub(super) fn make_queue_pair(
    listener: *mut rdma_cm_id,
    child: *mut rdma_cm_id,
) -> Result<(), Errno> {
    // SAFETY: callers have used its Rust part already.
    let listener = unsafe { id(listener) };
    let told = locked(&listener.listener_attr);
    let Some(told) = told.as_ref() else { return Ok(()) };
    // SAFETY: the attributes stay as long as the id.
    let mut attr = unsafe { told.attr.0.read() };
    // SAFETY: a new id; the domain and what the attributes name are live as long as the endpoint.
    match unsafe { rdma_create_qp(child, told.pd.0, &raw mut attr) } {
        0 => Ok(()),
        _ => Err(Errno::NO_MEMORY),
    }
}

fn done(answer: c_int) -> Result<(), ()> {
    if answer == 0 { Ok(()) } else { Err(()) }
}

/// Makes an id for the addresses of `res`, a result of `rdma_getaddrinfo`. A passive id is bound,
/// and keeps `pd` and `attr` for its connections; any other is resolved, and gets its queue pair if
/// there is `attr`.
///
/// # Safety
/// `res` is of `rdma_getaddrinfo`, `pd` and `attr` are NULL or live, `place` points at memory for
/// the id.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    place: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: NULL or of `rdma_getaddrinfo`, by this function's contract.
    let Some(res) = (unsafe { optional(res) }) else { return minus_one(Err(Errno::INVALID)) };
    if u32::try_from(res.ai_port_space) != Ok(RDMA_PS_TCP) {
        return minus_one(Err(Errno::NOT_SUPPORTED));
    }
    // SAFETY: NULL.
    let attached = unsafe { Attached::new(ptr::null_mut()) };
    let made = attached.and_then(|own| make(own, ptr::null_mut(), RDMA_PS_TCP, Phase::Idle));
    let made = match made {
        Ok(made) => made.c.0,
        Err(errno) => return minus_one(Err(errno)),
    };
    // SAFETY: as this function's contract, with an id that was just made.
    if unsafe { set_up(made, res, pd, attr) }.is_err() {
        let errno = Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        // SAFETY: C does not know this id.
        unsafe { rdma_destroy_id(made) };
        return minus_one(Err(errno));
    }
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { place.write(made) };
    0
}

/// # Safety
/// `made` is live, the others as for [`rdma_create_ep`].
unsafe fn set_up(
    made: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), ()> {
    if res.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: live, and an address.
        done(unsafe { rdma_bind_addr(made, res.ai_src_addr) })?;
        if !attr.is_null() {
            // SAFETY: attributes, by this function's contract.
            let mut attr = Box::new(unsafe { attr.read() });
            attr.qp_type = res.ai_qp_type.cast_unsigned();
            let attr = Box::into_raw(attr);
            // SAFETY: live, by this function's contract.
            let listener = unsafe { id(made) };
            let told = ListenerAttr { pd: CPtr(pd), attr: CPtr(attr) };
            *locked(&listener.listener_attr) = Some(told);
        }
        return Ok(());
    }
    const TIMEOUT_MS: c_int = 2000;
    // SAFETY: live, and NULL or addresses.
    done(unsafe { rdma_resolve_addr(made, res.ai_src_addr, res.ai_dst_addr, TIMEOUT_MS) })?;
    // SAFETY: live.
    done(unsafe { rdma_resolve_route(made, TIMEOUT_MS) })?;
    if !attr.is_null() {
        // SAFETY: attributes of the application, by this function's contract.
        unsafe { (*attr).qp_type = res.ai_qp_type.cast_unsigned() };
        // SAFETY: live, and attributes that name live objects, by this function's contract.
        done(unsafe { rdma_create_qp(made, pd, attr) })?;
    }
    Ok(())
}

/// Destroys the id with its queue pair and its shared receive queue.
///
/// # Safety
/// `of` is live and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(of: *mut rdma_cm_id) {
    // SAFETY: C's part of a live id.
    if !unsafe { (*of).qp }.is_null() {
        // SAFETY: the id's own queue pair, not used again.
        unsafe { rdma_destroy_qp(of) };
    }
    // SAFETY: as above; the call does nothing if the id has no queue.
    unsafe { rdma_destroy_srq(of) };
    // SAFETY: live and not used again, by this function's contract.
    unsafe { rdma_destroy_id(of) };
}
