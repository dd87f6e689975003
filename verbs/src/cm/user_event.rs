//! Events that the application queues at its own channel, in rdma-core since version 60.
#![expect(unsafe_code, reason = "C's ids, strings and lists")]

use std::ptr;

use libc::{c_char, c_int, c_uint};

use super::addrinfo::{Resolution, rdma_getaddrinfo};
use super::id::{Pending, id};
use crate::abi::{RDMA_CM_EVENT_TIMEWAIT_EXIT, rdma_addrinfo, rdma_cm_id};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::object::CPtr;

// The headers with which `abi` is compared may be older.
const RDMA_CM_EVENT_ADDRINFO_RESOLVED: c_uint = RDMA_CM_EVENT_TIMEWAIT_EXIT + 1;
const RDMA_CM_EVENT_ADDRINFO_ERROR: c_uint = RDMA_CM_EVENT_TIMEWAIT_EXIT + 2;
const RDMA_CM_EVENT_USER: c_uint = RDMA_CM_EVENT_TIMEWAIT_EXIT + 3;

/// # Safety
/// `of` is NULL or live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_write_cm_event(
    of: *mut rdma_cm_id,
    event: c_uint,
    status: c_int,
    argument: u64,
) -> c_int {
    if of.is_null() || event != RDMA_CM_EVENT_USER {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: a live id, by this function's contract.
    let id = unsafe { id(of) };
    let mut pending = Pending::new(id, event, status);
    pending.argument = Some(argument);
    id.tell(pending);
    0
}

/// Resolves like `rdma_getaddrinfo`, and queues an event. A look-up in the network takes its time
/// in this call. EBUSY until the answer is taken.
///
/// # Safety
/// `of` is NULL or live; the strings and `hints` are NULL or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addrinfo(
    of: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    if of.is_null() {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: a live id, by this function's contract.
    let id = unsafe { id(of) };
    {
        let mut state = locked(&id.resolved.0);
        if !matches!(*state, Resolution::None) {
            return minus_one(Err(Errno::BUSY));
        }
        *state = Resolution::Resolving;
    }
    let mut answer = ptr::null_mut();
    // SAFETY: as this function's contract, and memory for the answer.
    let status = unsafe { rdma_getaddrinfo(node, service, hints, &raw mut answer) };
    let (state, kind, status) = if status == 0 && !answer.is_null() {
        (Resolution::Answer(CPtr(answer)), RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0)
    } else {
        (
            Resolution::None,
            RDMA_CM_EVENT_ADDRINFO_ERROR,
            if status == 0 { -libc::ENOMEM } else { status },
        )
    };
    *locked(&id.resolved.0) = state;
    id.tell(Pending::new(id, kind, status));
    0
}

/// The application frees the answer. ENOENT if there is none.
///
/// # Safety
/// `of` is NULL or live, `place` is NULL or points at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_query_addrinfo(
    of: *mut rdma_cm_id,
    place: *mut *mut rdma_addrinfo,
) -> c_int {
    if of.is_null() || place.is_null() {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: a live id, by this function's contract.
    let mut state = locked(&unsafe { id(of) }.resolved.0);
    let Resolution::Answer(CPtr(answer)) = *state else {
        return minus_one(Err(Errno(libc::ENOENT)));
    };
    *state = Resolution::None;
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { place.write(answer) };
    0
}
