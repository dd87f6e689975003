//! Open devices: `ibv_context`, at the end of a `verbs_context`, with the operations that inline
//! functions of C call.
#![expect(
    unsafe_code,
    reason = "the context lies inside a larger structure that C finds by counting back"
)]

use std::mem::offset_of;
use std::sync::Arc;

use libc::c_int;

use crate::abi::{ibv_async_event, ibv_context, ibv_device, verbs_context};
use crate::async_event::AsyncEvents;
use crate::errno::{Errno, or_null};
use crate::fault::{self, Call};
use crate::object::{Object, optional};
use crate::process::{Process, process};
use crate::waited::WaitedAt;
use crate::{attributes, cq, mw, parent_domain, qp, srq};

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) process: Arc<Process>,
    pub(crate) events: Arc<AsyncEvents>,
}

/// Event queues of the open devices.
static EVENTS: WaitedAt<AsyncEvents> = WaitedAt::new();

type ContextObject = Object<verbs_context, Arc<Context>>;

/// Opens the device.
pub(crate) fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    fault::check(Call::OpenDevice)?;
    let process = process()?;
    let events = Arc::new(AsyncEvents::new()?);
    let context = Arc::new(Context { process, events: Arc::clone(&events) });
    let mut c = verbs_context::zeroed();
    c.sz = size_of::<verbs_context>();
    c.query_port = Some(attributes::query_port);
    c.query_device_ex = Some(attributes::query_device_ex);
    c.create_qp_ex = Some(qp::create::create_qp_ex);
    // C's inline function for shared receive queues of the basic type calls `ibv_create_srq`.
    c.get_srq_num = Some(srq::get_srq_num);
    c.create_cq_ex = Some(cq::extended::create_cq_ex);
    c.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    c.alloc_td = Some(parent_domain::alloc_td);
    c.dealloc_td = Some(parent_domain::dealloc_td);
    let open = &mut c.context;
    open.device = device;
    // This library sends no commands to the kernel, but applications duplicate the descriptor.
    open.cmd_fd = context.events.fd();
    open.async_fd = context.events.fd();
    open.num_comp_vectors = 1;
    // All ones mark a `verbs_context`, which has operations of its own.
    open.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    open.ops.poll_cq = Some(cq::poll_cq);
    open.ops.req_notify_cq = Some(cq::req_notify_cq);
    open.ops.post_send = Some(qp::post::post_send);
    open.ops.post_recv = Some(qp::post::post_recv);
    open.ops.post_srq_recv = Some(srq::post_srq_recv);
    open.ops.alloc_mw = Some(mw::alloc_mw);
    open.ops.bind_mw = Some(mw::bind_mw);
    open.ops.dealloc_mw = Some(mw::dealloc_mw);
    let object = ContextObject::make(c, |_| context);
    let open = object.wrapping_byte_add(offset_of!(verbs_context, context)).cast();
    EVENTS.insert(open, &events);
    Ok(open)
}

fn whole(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Returns the object behind C's pointer.
///
/// # Safety
/// `context` came from [`open`] and is open.
pub(crate) unsafe fn context<'a>(context: *mut ibv_context) -> &'a Arc<Context> {
    // SAFETY: made in `open`, by this function's contract.
    unsafe { ContextObject::of(whole(context)) }
}

/// `ibv_open_device`.
#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    or_null(open(device))
}

/// `ibv_close_device`. A thread that waits for the device's events continues to wait.
///
/// # Safety
/// `context` came from [`ibv_open_device`] and is not used again, except by threads that take its
/// events.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    EVENTS.remove(context);
    // SAFETY: made in `open`, and closed once, by this function's contract.
    drop(unsafe { ContextObject::free(whole(context)) });
    0
}

/// `ibv_get_async_event`: waits for the next event. EBADF for a closed device.
///
/// # Safety
/// `event` points at memory for the event.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    match EVENTS.find(context).and_then(|events| events.take()) {
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

/// `ibv_ack_async_event`.
///
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
