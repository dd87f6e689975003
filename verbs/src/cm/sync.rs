//! `rdma_get_request`: takes a request at an id without a channel.
#![expect(unsafe_code, reason = "C's pointers to ids and events")]

use std::ptr;

use libc::c_int;

use super::end::rdma_destroy_id;
use super::ep;
use super::id::id;
use super::wait::next_event;
use crate::abi::{RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_id};
use crate::errno::{Errno, minus_one};

/// # Safety
/// `listener` is live, `place` points at memory for the id.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    place: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: live, by this function's contract.
    if !unsafe { id(listener) }.is_synchronous() {
        return minus_one(Err(Errno::INVALID));
    }
    minus_one(request(listener).map(|child| {
        // SAFETY: the caller's memory for the answer, by this function's contract.
        unsafe { place.write(child) };
    }))
}

fn request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    let event = next_event(listener)?;
    // SAFETY: an event that was just made.
    let c = unsafe { event.read() };
    if c.event != RDMA_CM_EVENT_CONNECT_REQUEST {
        return Err(Errno::INVALID);
    }
    // SAFETY: C's part of a live id; the event belongs to the new id from here on.
    unsafe { (*listener).event = ptr::null_mut() };
    // SAFETY: C's part of the new id.
    unsafe { (*c.id).event = event };
    if let Err(errno) = ep::make_queue_pair(listener, c.id) {
        // SAFETY: C does not know this id.
        unsafe { rdma_destroy_id(c.id) };
        return Err(errno);
    }
    Ok(c.id)
}
