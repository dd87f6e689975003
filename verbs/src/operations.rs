//! The table of operations that inline functions of C call, and asynchronous events.
#![expect(unsafe_code, reason = "events name C's objects")]

use libc::c_int;

use crate::abi::{ibv_async_event, ibv_context, ibv_device, verbs_context};
use crate::async_event::{AsyncEvent, AsyncEvents};
use crate::cq::{self, cq};
use crate::errno::{Errno, or_null};
use crate::event_queue::Unacknowledged;
use crate::object::optional;
use crate::qp::{self, qp};
use crate::srq::{self, srq};
use crate::{attributes, context, mw, parent_domain};

fn fill_in(c: &mut verbs_context) {
    c.query_port = Some(attributes::query_port);
    c.query_device_ex = Some(attributes::query_device_ex);
    c.create_qp_ex = Some(qp::create::create_qp_ex);
    // C's inline function for shared receive queues of the basic type calls `ibv_create_srq`.
    c.get_srq_num = Some(srq::get_srq_num);
    c.create_cq_ex = Some(cq::extended::create_cq_ex);
    c.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    c.alloc_td = Some(parent_domain::alloc_td);
    c.dealloc_td = Some(parent_domain::dealloc_td);
    let ops = &mut c.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(qp::post::post_send);
    ops.post_recv = Some(qp::post::post_recv);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
}

pub(crate) fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    context::open(device, fill_in)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    or_null(open(device))
}

/// The object is live: before it is destroyed it removes its events from the queue, and waits until
/// C has acknowledged the others.
fn unacknowledged<'a>(event: &AsyncEvent) -> &'a Unacknowledged {
    match event {
        // SAFETY: live, as above.
        AsyncEvent::Qp(of, _) => unsafe { &qp(of.0).unacknowledged },
        // SAFETY: live, as above.
        AsyncEvent::Cq(of, _) => unsafe { &cq(of.0).async_unacknowledged },
        // SAFETY: live, as above.
        AsyncEvent::Srq(of, _) => unsafe { &srq(of.0).unacknowledged },
    }
}

impl AsyncEvents {
    pub(crate) fn take(&self) -> Result<ibv_async_event, Errno> {
        self.take_counted(|event| unacknowledged(event).taken())
    }

    /// # Safety
    /// The event was taken, and is acknowledged once.
    pub(crate) unsafe fn acknowledge(event: &ibv_async_event) {
        unacknowledged(&AsyncEvent::of_c(event)).acknowledged(1);
    }
}

/// Waits for the next event. EBADF for a closed device.
///
/// # Safety
/// `event` points at memory for the event.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    match context::events(context).and_then(|events| events.take()) {
        Ok(next) => {
            // SAFETY: the caller's memory for the event, by this function's contract.
            unsafe { event.write(next) };
            0
        }
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// # Safety
/// The event was taken, and is acknowledged once.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: as this function's contract.
    if let Some(event) = unsafe { optional(event) } {
        // SAFETY: as above.
        unsafe { AsyncEvents::acknowledge(event) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C's inline functions call these without a look if they are there.
    #[test]
    fn an_open_device_has_every_operation() {
        let mut c = verbs_context::zeroed();
        fill_in(&mut c);
        let ops = &c.context.ops;
        let of_device = [
            c.query_port.is_some(),
            c.query_device_ex.is_some(),
            c.create_qp_ex.is_some(),
            c.get_srq_num.is_some(),
            c.create_cq_ex.is_some(),
            c.alloc_parent_domain.is_some(),
            c.alloc_td.is_some(),
            c.dealloc_td.is_some(),
        ];
        let of_queues = [
            ops.poll_cq.is_some(),
            ops.req_notify_cq.is_some(),
            ops.post_send.is_some(),
            ops.post_recv.is_some(),
            ops.post_srq_recv.is_some(),
            ops.alloc_mw.is_some(),
            ops.bind_mw.is_some(),
            ops.dealloc_mw.is_some(),
        ];
        assert_eq!((of_device, of_queues), ([true; 8], [true; 8]));
    }
}
