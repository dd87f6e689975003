//! Calls at ids without a channel: each waits for its result, and leaves the event in the id.
#![expect(unsafe_code, reason = "C's pointers to ids and events")]

use std::ptr;

use libc::c_int;

use super::event::{rdma_ack_cm_event, to_c};
use super::id::id;
use crate::abi::{
    RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
    rdma_cm_event, rdma_cm_id,
};
use crate::errno::{Errno, minus_one};

/// Keeps the event in the id, in place of the previous one.
pub(super) fn next_event(of: *mut rdma_cm_id) -> Result<*mut rdma_cm_event, Errno> {
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

fn complete(of: *mut rdma_cm_id) -> Result<(), Errno> {
    let event = next_event(of)?;
    // SAFETY: an event that was just made.
    let event = unsafe { event.read() };
    match event.status {
        0 => Ok(()),
        _ if event.event == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.saturating_abs())),
    }
}

/// Any other event than that of an established connection is an error.
pub(super) fn finish_established(of: *mut rdma_cm_id, done: Result<(), Errno>) -> c_int {
    let answer = finish(of, done);
    // SAFETY: C's part of a live id.
    let kept = unsafe { (*of).event };
    if answer == 0 && !kept.is_null() {
        // SAFETY: the event that the call left there.
        let event = unsafe { (*kept).event };
        if !matches!(event, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_RESPONSE) {
            return minus_one(Err(Errno(libc::ECONNRESET)));
        }
    }
    answer
}

/// Waits for the result of a call if the id was made without a channel.
pub(super) fn finish(of: *mut rdma_cm_id, done: Result<(), Errno>) -> c_int {
    // SAFETY: callers have used its Rust part already.
    let waits = unsafe { id(of) }.is_synchronous();
    minus_one(done.and_then(|()| if waits { complete(of) } else { Ok(()) }))
}
