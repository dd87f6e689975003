//! Disconnecting, and destroying ids.
#![expect(unsafe_code, reason = "C's pointers to ids")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{c_int, c_uint};
use urnic::WcStatus;

use super::event::rdma_ack_cm_event;
use super::id::{Id, IdObject, Pending, Phase, id};
use super::wait::finish;
use crate::abi::rdma_cm_id;
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;

/// Moves the id's queue pair to the error state, as rdma_disconnect(3), which flushes posted work;
/// siw likewise flushes what it has not sent (`siw_qp_modify`). What was sent is delivered.
fn disconnect(id: &Arc<Id>) -> Result<(), Errno> {
    let is_connected = matches!(*locked(&id.phase), Phase::Connected(_));
    // The application moves its own queue pair there itself.
    if is_connected && !id.has_own_qp.load(Ordering::Acquire) {
        let qp = locked(&id.qp).clone();
        if let Some(qp) = qp {
            qp.flush();
        }
    }
    let mut phase = locked(&id.phase);
    match &*phase {
        Phase::Connected(connection) => connection.disconnect(),
        // Accepted, but not established: give the connection up.
        Phase::Connecting(_) if id.accepted.load(Ordering::Acquire) => {
            *phase = Phase::Ended;
            id.tell_disconnected();
            if let Some(qp) = &*locked(&id.qp) {
                qp.inner().give_up(WcStatus::WrFlushErr);
            }
        }
        // The connection is over already, and C got the event.
        Phase::Ended if *locked(&id.disconnected) => {}
        _ => return Err(Errno::INVALID),
    }
    Ok(())
}

/// Causes an event at both ends.
///
/// # Safety
/// `of` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(of: *mut rdma_cm_id) -> c_int {
    // SAFETY: live, by this function's contract.
    let ending = unsafe { id(of) };
    let was_told = *locked(&ending.disconnected);
    let done = disconnect(ending);
    // The event of a synchronous id was taken before.
    if was_told { minus_one(done) } else { finish(of, done) }
}

/// Does nothing: this library sees the events of queue pairs itself. As in Linux, fails for an id
/// without a connection or request.
///
/// # Safety
/// `of` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(of: *mut rdma_cm_id, _event: c_uint) -> c_int {
    // SAFETY: live, by this function's contract.
    let phase = locked(&unsafe { id(of) }.phase);
    let is_none = matches!(*phase, Phase::Idle | Phase::Bound(..) | Phase::Resolved(_));
    minus_one(if is_none { Err(Errno::INVALID) } else { Ok(()) })
}

/// Waits until C has acknowledged the events that it took. A connection closes in order.
///
/// # Safety
/// `of` is live and not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(of: *mut rdma_cm_id) -> c_int {
    // SAFETY: live, by this function's contract.
    let going = Arc::clone(unsafe { id(of) });
    // From now on no turn creates an event.
    let ended = std::mem::replace(&mut *locked(&going.phase), Phase::Ended);
    // SAFETY: C's part of a live id.
    let kept = unsafe { (*of).event };
    if !kept.is_null() {
        // SAFETY: the event that a synchronous call has left there.
        unsafe { rdma_ack_cm_event(kept) };
    }
    for event in going.leave_channel() {
        forget(event);
    }
    if let Phase::Listening(listener) = ended {
        // Its address is free when this returns, because applications listen there again.
        listener.close();
    }
    drop(locked(&going.announced).take());
    going.unacknowledged.wait();
    // SAFETY: live, and freed once, by this function's contract.
    drop(unsafe { IdObject::free(of) });
    0
}

/// Drops an event that C never gets, with the new id of a peer's request.
fn forget(event: Pending) {
    if event.listener.is_some() {
        discard(&event.id);
    }
}

pub(super) fn discard(id: &Arc<Id>) {
    *locked(&id.phase) = Phase::Ended;
    for event in id.leave_channel() {
        forget(event);
    }
    // SAFETY: C does not know it, so nothing uses C's part.
    drop(unsafe { IdObject::free(id.c.0) });
}
