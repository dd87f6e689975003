//! Ids without a channel: each call waits for its result, and leaves the event in the id.
#![expect(unsafe_code, reason = "C's pointers to ids and events")]

use std::ptr;

use libc::c_int;

use super::end::rdma_destroy_id;
use super::ep;
use super::event::{rdma_ack_cm_event, to_c};
use super::id::id;
use crate::abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, rdma_cm_event, rdma_cm_id,
};
use crate::errno::{Errno, minus_one};

/// Waits for the next event of the id and keeps it there, in place of the previous one.
fn next_event(of: *mut rdma_cm_id) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: callers have used its Rust part already.
    let waiting = unsafe { id(of) };
    // SAFETY: C's part of a live id.
    let before = unsafe { (*of).event };
    if !before.is_null() {
        // SAFETY: as above.
        unsafe { (*of).event = ptr::null_mut() };
        // SAFETY: the event that was kept.
        unsafe { rdma_ack_cm_event(before) };
    }
    let event = to_c(waiting.channel()?.take()?);
    // SAFETY: C's part of a live id.
    unsafe { (*of).event = event };
    Ok(event)
}

/// Waits for the result of the last call.
pub(super) fn complete(of: *mut rdma_cm_id) -> Result<(), Errno> {
    let event = next_event(of)?;
    // SAFETY: an event that was just made.
    let event = unsafe { event.read() };
    match event.status {
        0 => Ok(()),
        _ if event.event == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.saturating_abs())),
    }
}

/// `rdma_get_request`: waits for the next peer's request, at an id that was made without a channel.
///
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
