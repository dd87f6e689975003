//! Shared receive queues.
#![expect(unsafe_code, reason = "C's pointers to queues and attributes")]

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use libc::c_int;

use crate::abi::{
    IBV_EVENT_SRQ_LIMIT_REACHED, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_pd, ibv_recv_wr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr,
};
use crate::attributes::{ELEMENTS_MAX, WR_MAX};
use crate::context::Context;
use crate::errno::{Errno, number, or_null};
use crate::event_queue::{Unacknowledged, locked};
use crate::fault::{self, Call};
use crate::object::{CPtr, Object, optional};
use crate::pd::{Pd, pd};
use crate::process::next_handle;
use crate::work::elements;

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) pd: Arc<Pd>,
    pub(crate) inner: urnic::Srq,
    notify: Arc<Notify>,
    max_wr: u32,
    /// Asynchronous events that C took and has not acknowledged.
    pub(crate) unacknowledged: Unacknowledged,
}

type SrqObject = Object<ibv_srq, Arc<Srq>>;

/// Reports the limit event to C.
#[derive(Debug)]
struct Notify {
    context: Arc<Context>,
    srq: CPtr<ibv_srq>,
    /// False once C has destroyed the queue.
    is_live: Mutex<bool>,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        let is_live = locked(&self.is_live);
        if *is_live {
            self.context.events.of_srq(self.srq, IBV_EVENT_SRQ_LIMIT_REACHED);
        }
    }
}

/// # Safety
/// `srq` was made by this library and not destroyed.
pub(crate) unsafe fn srq<'a>(srq: *mut ibv_srq) -> &'a Arc<Srq> {
    // SAFETY: made in `create`, by this function's contract.
    unsafe { SrqObject::of(srq) }
}

/// Writes the queue's capabilities to `attr`.
///
/// # Safety
/// `of` is NULL or live.
pub(crate) unsafe fn create(
    of: *mut ibv_pd,
    srq_context: *mut libc::c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, Errno> {
    fault::check(Call::CreateSrq)?;
    if of.is_null() || attr.max_wr > WR_MAX || attr.max_sge > ELEMENTS_MAX {
        return Err(Errno::INVALID);
    }
    // SAFETY: a live domain, by this function's contract.
    let pd = unsafe { pd(of) };
    attr.max_wr = attr.max_wr.max(1);
    attr.max_sge = ELEMENTS_MAX;
    let depth = usize::try_from(attr.max_wr).map_err(|_| Errno::INVALID)?;
    let inner = pd.inner.create_srq(depth).map_err(|_| Errno::INVALID)?;
    let mut c = ibv_srq::zeroed();
    // SAFETY: a live domain, as above.
    c.context = unsafe { (*of).context };
    (c.srq_context, c.pd, c.handle) = (srq_context, of, next_handle());
    let max_wr = attr.max_wr;
    Ok(SrqObject::make(c, |srq| {
        let context = Arc::clone(&pd.context);
        let notify = Arc::new(Notify { context, srq, is_live: Mutex::new(true) });
        let unacknowledged = Unacknowledged::default();
        Arc::new(Srq { pd: Arc::clone(pd), inner, notify, max_wr, unacknowledged })
    }))
}

/// Ignores the limit in `attr`, as all devices do.
///
/// # Safety
/// `of` is live, `attr` points at attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    of: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    // SAFETY: as this function's contract.
    or_null(unsafe { create(of, attr.srq_context, &mut attr.attr) })
}

impl Srq {
    fn modify(&self, attr: &ibv_srq_attr, mask: u32) -> Result<(), Errno> {
        if mask & IBV_SRQ_MAX_WR != 0 {
            // The device does not claim IBV_DEVICE_SRQ_RESIZE.
            return Err(Errno::NOT_SUPPORTED);
        }
        if mask & !IBV_SRQ_LIMIT != 0 || attr.srq_limit > self.max_wr {
            return Err(Errno::INVALID);
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            let limit = usize::try_from(attr.srq_limit).map_err(|_| Errno::INVALID)?;
            self.inner.arm_limit(limit, &Waker::from(Arc::clone(&self.notify)));
        }
        Ok(())
    }

    fn attributes(&self) -> ibv_srq_attr {
        let srq_limit = u32::try_from(self.inner.limit()).unwrap_or(u32::MAX);
        ibv_srq_attr { max_wr: self.max_wr, max_sge: ELEMENTS_MAX, srq_limit }
    }
}

/// Sets the limit. The size cannot be changed.
///
/// # Safety
/// `of` is live, `attr` points at attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    of: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: attributes, by this function's contract.
    let attr = unsafe { attr.read() };
    // SAFETY: live, by this function's contract.
    number(unsafe { srq(of) }.modify(&attr, mask.cast_unsigned()))
}

/// # Safety
/// `of` is live, `attr` points at memory for the answer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(of: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: live, by this function's contract.
    let answer = unsafe { srq(of) }.attributes();
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { attr.write(answer) };
    0
}

/// EBUSY while queue pairs use it. Waits until C has acknowledged the events that it took.
///
/// # Safety
/// `of` is live, and not used again if the function returns 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(of: *mut ibv_srq) -> c_int {
    // SAFETY: live, by this function's contract.
    let queue = unsafe { srq(of) };
    let context = &queue.notify.context;
    if context.process.uses_srq(of) {
        return number(Err(Errno::BUSY));
    }
    // From here on no event names the queue.
    *locked(&queue.notify.is_live) = false;
    context.events.forget_srq(CPtr(of));
    queue.unacknowledged.wait();
    // SAFETY: live, and freed once: the answer is 0.
    drop(unsafe { SrqObject::free(of) });
    0
}

/// Posts buffers up to the first that is refused.
///
/// # Safety
/// `of` is live, `wr` is a list of buffers, `bad` points at memory for the first refused one.
pub(crate) unsafe extern "C" fn post_srq_recv(
    of: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let queue = unsafe { srq(of) };
    // SAFETY: NULL or a buffer, by this function's contract.
    while let Some(next) = unsafe { optional(wr) } {
        // SAFETY: its list is there until this call returns.
        let elements = unsafe { elements(next.sg_list, next.num_sge) };
        let buffer = elements.and_then(|elements| queue.pd.receive(next.wr_id, elements));
        if let Err(errno) = buffer.and_then(|buffer| Ok(queue.inner.post_recv(buffer)?)) {
            // SAFETY: the caller's memory for the answer, by this function's contract.
            unsafe { bad.write(wr) };
            return number(Err(errno));
        }
        wr = next.next;
    }
    0
}

/// Returns an arbitrary number that no peer needs.
///
/// # Safety
/// `of` is live, `place` points at memory for the answer.
pub(crate) unsafe extern "C" fn get_srq_num(of: *mut ibv_srq, place: *mut u32) -> c_int {
    // SAFETY: C's part of a live queue.
    let number = unsafe { (*of).handle };
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { place.write(number) };
    0
}
