//! Creates ids, and moves them to other channels.
#![expect(unsafe_code, reason = "C's pointers to ids and channels")]

use std::ptr;

use libc::{c_int, c_void};

use super::event::rdma_ack_cm_event;
use super::id::channel::Attached;
use super::id::{Phase, id, make};
use crate::abi::{
    RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_cm_id, rdma_event_channel,
};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::fault::{self, Call};

/// Accepts `RDMA_PS_TCP` and `RDMA_PS_IB`, and refuses other port spaces.
///
/// # Safety
/// `of_channel` is NULL or live, `place` points at memory for the id.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    of_channel: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_id,
    user: *mut c_void,
    ps: u32,
) -> c_int {
    let made = match ps {
        RDMA_PS_TCP | RDMA_PS_IB => {
            // SAFETY: NULL or live, by this function's contract.
            let attached = unsafe { Attached::new(of_channel) };
            fault::check(Call::CreateId)
                .and(attached)
                .and_then(|attached| make(attached, user, ps, Phase::Idle))
        }
        // iWARP carries no datagrams.
        RDMA_PS_UDP | RDMA_PS_IPOIB => Err(Errno::NOT_SUPPORTED),
        _ => Err(Errno::INVALID),
    };
    minus_one(made.map(|made| {
        // SAFETY: the caller's memory for the answer, by this function's contract.
        unsafe { place.write(made.c.0) };
    }))
}

fn migrate(of: *mut rdma_cm_id, to: Attached) {
    // SAFETY: live, by the contract of C's function.
    let migrating = unsafe { id(of) };
    // SAFETY: C's part of a live id.
    let kept = unsafe { (*of).event };
    if !kept.is_null() {
        // SAFETY: as above.
        unsafe { (*of).event = ptr::null_mut() };
        // SAFETY: the event that a synchronous call left there.
        unsafe { rdma_ack_cm_event(kept) };
    }
    let mut channel = locked(&migrating.channel);
    if let Some(from) = &*channel {
        for event in from.channel.take_events_of(migrating) {
            to.channel.events.push(event);
        }
    }
    // SAFETY: C's part of a live id.
    unsafe { (*of).channel = to.c.0 };
    let from = channel.replace(to);
    drop(channel);
    migrating.unacknowledged.wait();
    if let Some(from) = from {
        from.leave();
    }
}

/// Moves the id, with its pending events, to another channel. With NULL, calls wait for their
/// events from now on.
///
/// # Safety
/// `of` is live, `of_channel` NULL or live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    of: *mut rdma_cm_id,
    of_channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: live, by this function's contract.
    if unsafe { id(of) }.is_synchronous() && of_channel.is_null() {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: NULL or live, by this function's contract.
    minus_one(unsafe { Attached::new(of_channel) }.map(|to| migrate(of, to)))
}
