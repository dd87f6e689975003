//! Open devices: `ibv_context`, at the end of a `verbs_context`.
#![expect(
    unsafe_code,
    reason = "the context lies inside a larger structure that C finds by counting back"
)]

use std::mem::offset_of;
use std::sync::Arc;

use libc::c_int;

use crate::abi::{ibv_context, ibv_device, verbs_context};
use crate::async_event::AsyncEvents;
use crate::errno::Errno;
use crate::fault::{self, Call};
use crate::object::Object;
use crate::process::{Process, process};
use crate::waited::WaitedAt;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) process: Arc<Process>,
    pub(crate) events: Arc<AsyncEvents>,
}

static EVENTS: WaitedAt<AsyncEvents> = WaitedAt::new();

type ContextObject = Object<verbs_context, Arc<Context>>;

/// `fill_in` writes the operations that inline functions of C call.
pub(crate) fn open(
    device: *mut ibv_device,
    fill_in: fn(&mut verbs_context),
) -> Result<*mut ibv_context, Errno> {
    fault::check(Call::OpenDevice)?;
    let process = process()?;
    let events = Arc::new(AsyncEvents::new()?);
    let context = Arc::new(Context { process, events: Arc::clone(&events) });
    let mut c = verbs_context::zeroed();
    c.sz = size_of::<verbs_context>();
    let open = &mut c.context;
    open.device = device;
    // This library sends no commands to the kernel, but applications duplicate the descriptor.
    open.cmd_fd = context.events.fd();
    open.async_fd = context.events.fd();
    open.num_comp_vectors = 1;
    // All ones mark a `verbs_context`, which has operations of its own.
    open.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    fill_in(&mut c);
    let object = ContextObject::make(c, |_| context);
    let open = object.wrapping_byte_add(offset_of!(verbs_context, context)).cast();
    EVENTS.insert(open, &events);
    Ok(open)
}

fn whole(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// # Safety
/// `context` came from [`open`] and is open.
pub(crate) unsafe fn context<'a>(context: *mut ibv_context) -> &'a Arc<Context> {
    // SAFETY: made in `open`, by this function's contract.
    unsafe { ContextObject::of(whole(context)) }
}

/// EBADF if the device is closed.
pub(crate) fn events(context: *mut ibv_context) -> Result<Arc<AsyncEvents>, Errno> {
    EVENTS.find(context)
}

/// A thread that waits for the device's events continues to wait.
///
/// # Safety
/// `context` came from `ibv_open_device` and is not used again, except by threads that take its
/// events.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    EVENTS.remove(context);
    // SAFETY: made in `open`, and closed once, by this function's contract.
    drop(unsafe { ContextObject::free(whole(context)) });
    0
}
