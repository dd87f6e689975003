//! Completion queues.
#![expect(unsafe_code, reason = "C's pointers to queues")]

mod completion;
pub(crate) mod extended;
mod memory_wait;
mod posts;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use libc::{c_int, c_uint, c_void};
use urnic::{QpState, Wc, WcOpcode, monotonic_now};

use crate::abi::{IBV_EVENT_CQ_ERR, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::attributes::CQE_MAX;
use crate::channel::{CompChannel, channel, events};
use crate::context::{Context, context};
use crate::errno::{Errno, number, or_null};
use crate::event_queue::{Unacknowledged, locked};
use crate::fault::{self, Call};
use crate::object::{CPtr, Object};
use crate::pd::Pd;
use crate::process::next_handle;
use crate::section::Section;
use memory_wait::{MemoryWait, Stay};
use posts::Posts;

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: Arc<Context>,
    pub(crate) inner: urnic::Cq,
    channel: Option<Arc<CompChannel>>,
    /// Called at a requested completion event, if there is a channel.
    notify: Option<(Arc<Notify>, Waker)>,
    /// Called at the first completion that is lost.
    overflow: (Arc<Overflow>, Waker),
    pub(crate) unacknowledged: Unacknowledged,
    /// Counts asynchronous events.
    pub(crate) async_unacknowledged: Unacknowledged,
    /// Entered to take completions: Atomics' values are stored in completion order. The value is
    /// the completion that the extended interface reads.
    polling: Section<Option<Wc>>,
    _domain: Option<Arc<Pd>>,
    /// True from the request for an event until the event: the application is about to sleep.
    armed: Arc<AtomicBool>,
    /// Empty polls since the last completion was taken.
    empty_polls: AtomicUsize,
    posts: Posts,
    memory_wait: MemoryWait,
}

/// Every queue is made as an extended one; C's plain queue is its first part.
type CqObject = Object<ibv_cq_ex, Cq>;

/// Notifies a channel, until the queue is destroyed: a call after that finds no channel.
#[derive(Debug)]
struct Notify {
    to: Mutex<Option<(Arc<CompChannel>, CPtr<ibv_cq>)>>,
    armed: Arc<AtomicBool>,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.armed.store(false, Ordering::Relaxed);
        if let Some((channel, cq)) = &*locked(&self.to) {
            channel.events.push(*cq);
        }
    }
}

/// Reports a lost completion as an asynchronous event.
#[derive(Debug)]
struct Overflow {
    context: Arc<Context>,
    /// `None` once the queue is destroyed: a call after that reports nothing.
    cq: Mutex<Option<CPtr<ibv_cq>>>,
}

impl Wake for Overflow {
    fn wake(self: Arc<Self>) {
        if let Some(cq) = *locked(&self.cq) {
            self.context.events.of_cq(cq, IBV_EVENT_CQ_ERR);
        }
    }
}

/// # Safety
/// `cq` came from [`create`] and was not destroyed.
pub(crate) unsafe fn cq<'a>(cq: *mut ibv_cq) -> &'a Cq {
    // SAFETY: made in `create`, by this function's contract.
    unsafe { CqObject::of(cq.cast()) }
}

fn create(
    of: *mut ibv_context,
    context: &Arc<Context>,
    cqe: c_int,
    told: (*mut c_void, *mut ibv_comp_channel),
    domain: Option<Arc<Pd>>,
    mut c: ibv_cq_ex,
) -> Result<*mut ibv_cq, Errno> {
    fault::check(Call::CreateCq)?;
    if !(1..=CQE_MAX).contains(&cqe) {
        return Err(Errno::INVALID);
    }
    let (cq_context, of_channel) = told;
    // SAFETY: NULL, or a live channel, by the contract of C's function.
    let channel = (!of_channel.is_null()).then(|| Arc::clone(unsafe { channel(of_channel) }));
    let depth = usize::try_from(cqe).map_err(|_| Errno::INVALID)?;
    let inner = context.process.rnic.create_cq(depth).map_err(|_| Errno::INVALID)?;
    (c.context, c.channel, c.cq_context) = (of, of_channel, cq_context);
    (c.handle, c.cqe) = (next_handle(), cqe);
    let object = CqObject::make(c, |c| {
        let cq = CPtr(c.0.cast::<ibv_cq>());
        let armed = Arc::new(AtomicBool::new(false));
        let notify = |channel: &Arc<CompChannel>| {
            let to = Mutex::new(Some((Arc::clone(channel), cq)));
            let notify = Arc::new(Notify { to, armed: Arc::clone(&armed) });
            (Arc::clone(&notify), Waker::from(notify))
        };
        let overflow =
            Arc::new(Overflow { context: Arc::clone(context), cq: Mutex::new(Some(cq)) });
        let overflow = (Arc::clone(&overflow), Waker::from(overflow));
        inner.req_notify_overflow(&overflow.1);
        Cq {
            context: Arc::clone(context),
            inner,
            notify: channel.as_ref().map(notify),
            overflow,
            channel,
            armed,
            unacknowledged: Unacknowledged::default(),
            async_unacknowledged: Unacknowledged::default(),
            polling: Section::default(),
            _domain: domain,
            empty_polls: AtomicUsize::new(0),
            posts: Posts::default(),
            memory_wait: MemoryWait::new(),
        }
    });
    Ok(object.cast())
}

/// There is only completion vector 0.
///
/// # Safety
/// `of` is an open device, `channel` NULL or live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    of: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    if comp_vector != 0 {
        return or_null(Err(Errno::INVALID));
    }
    // SAFETY: an open device, by this function's contract.
    let context = unsafe { context(of) };
    or_null(create(of, context, cqe, (cq_context, channel), None, ibv_cq_ex::zeroed()))
}

/// EBUSY while queue pairs use it. Waits until C has acknowledged the events that it took.
///
/// # Safety
/// `cq` is live, and not used again if the function returns 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live queue, by this function's contract.
    let queue = unsafe { self::cq(cq) };
    if queue.context.process.uses(cq) {
        return number(Err(Errno::BUSY));
    }
    if let (Some(channel), Some((notify, waker))) = (&queue.channel, &queue.notify) {
        queue.inner.cancel_notify(waker);
        // A call of the waker in another thread finds no channel from now on.
        drop(locked(&notify.to).take());
        channel.events.remove(|event| event.0 == cq);
    }
    queue.inner.cancel_notify(&queue.overflow.1);
    *locked(&queue.overflow.0.cq) = None;
    queue.context.events.forget_cq(CPtr(cq));
    queue.unacknowledged.wait();
    queue.async_unacknowledged.wait();
    // SAFETY: live, and freed once: the answer is 0.
    drop(unsafe { CqObject::free(cq.cast()) });
    0
}

/// EINVAL for a depth out of range, or below the number of waiting completions.
///
/// # Safety
/// `cq` is live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a live queue, by this function's contract.
    let queue = unsafe { self::cq(cq) };
    let wanted = (1..=CQE_MAX).contains(&cqe).then(|| usize::try_from(cqe).ok()).flatten();
    if wanted.is_none_or(|depth| queue.inner.resize(depth).is_err()) {
        return number(Err(Errno::INVALID));
    }
    // SAFETY: C's part of a live queue; C resizes a queue in one thread at a time.
    unsafe { (*cq).cqe = cqe };
    0
}

impl Cq {
    /// Runs the endpoint if this queue is empty, so that an application that polls in a loop
    /// depends on no other thread.
    fn turn(&self) {
        self.posts.looked();
        if self.inner.is_empty() {
            // An application that sleeps next, or polls its memory, polls the queue once or twice.
            let empty = self.empty_polls.fetch_add(1, Ordering::Relaxed);
            let stays = empty > 2 && !self.armed.load(Ordering::Relaxed);
            let _down_completes_nothing = self.context.process.network.endpoint.poll_turn(stays);
        }
        if !self.inner.is_empty()
            && let Some(number) = self.memory_wait.takes_one()
            && let Some(inner) = self.context.process.with_qp(number, |qp| qp.inner())
        {
            // The application may destroy the queue pair meanwhile.
            self.stay(&inner);
        }
    }

    /// Stays until the peer's Write has arrived, if the application probably polls its memory for
    /// it (see `memory_wait`). The queue holds a completion, which the caller takes next.
    #[cold]
    fn stay(&self, qp: &urnic::Qp) {
        if let Some(at_post) = self.memory_wait.stays() {
            let endpoint = &self.context.process.network.endpoint;
            let mut stay = Stay::new(monotonic_now(), qp.write_segments_delivered());
            let has_come = loop {
                if qp.writes_delivered() != at_post {
                    break true;
                }
                let has_failed = qp.state() == QpState::Error || endpoint.poll_turn(true).is_err();
                if has_failed || stay.is_over(monotonic_now(), qp.write_segments_delivered()) {
                    break false;
                }
            };
            self.memory_wait.stayed(has_come);
        }
        self.memory_wait.goes_on(qp.writes_delivered());
    }

    /// Records a post. Returns true if the application probably waits for its completion.
    pub(crate) fn is_watched(&self, by: &urnic::Qp) -> bool {
        self.memory_wait.posted(by.number().0, by.writes_delivered());
        self.posts.posted()
    }

    /// Takes the oldest completion that the application gets, and stores the value that an Atomic
    /// has fetched. `_polling` proves that the caller is alone in the section.
    fn take(&self, _polling: &mut Option<Wc>) -> Option<Wc> {
        loop {
            let wc = self.inner.poll()?;
            self.empty_polls.store(0, Ordering::Relaxed);
            let is_atomic = matches!(wc.opcode, WcOpcode::FetchAdd | WcOpcode::CmpSwap);
            if !is_atomic {
                return Some(wc);
            }
            let stored = self.context.process.with_qp(wc.qp.0, |qp| qp.store_fetched(&wc));
            if stored.unwrap_or(true) {
                return Some(wc);
            }
        }
    }

    /// Adds room for completions that only this library uses.
    pub(crate) fn add_room(&self, completions: usize) {
        // A queue of the largest depth keeps its depth.
        let _as_it_is = self.inner.resize(self.inner.depth() + completions);
    }
}

/// # Safety
/// `cq` is live, `wcs` points at memory for `entries` completions.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    entries: c_int,
    wcs: *mut ibv_wc,
) -> c_int {
    // SAFETY: a live queue, by this function's contract.
    let queue = unsafe { self::cq(cq) };
    queue.turn();
    queue.polling.alone(|polling, _| {
        let mut taken = 0;
        while taken < entries
            && let Some(wc) = queue.take(polling)
        {
            let index = usize::try_from(taken).unwrap_or(0);
            // SAFETY: `taken` is below `entries`.
            let place = unsafe { wcs.add(index) };
            let wc = completion::to_c(&wc);
            // SAFETY: in the caller's memory for the answer, by this function's contract.
            unsafe { place.write(wc) };
            taken += 1;
        }
        taken
    })
}

/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live queue, by this function's contract.
    let queue = unsafe { self::cq(cq) };
    let Some((_, waker)) = &queue.notify else { return 0 };
    queue.armed.store(true, Ordering::Relaxed);
    if solicited_only == 0 {
        queue.inner.req_notify(waker);
    } else {
        queue.inner.req_notify_solicited(waker);
    }
    queue.context.process.network.endpoint.hand_over();
    0
}

/// Waits for the next event, unless the descriptor is non-blocking. EBADF for a destroyed channel.
///
/// # Safety
/// The other pointers point at memory for the answer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    place: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: live: a queue takes its events out of the channel when it is destroyed.
    let taken = |of: &CPtr<ibv_cq>| unsafe { cq(of.0) }.unacknowledged.taken();
    match events(channel).and_then(|events| events.take(taken)) {
        Ok(CPtr(found)) => {
            // SAFETY: live: the queue waits for this event to be acknowledged before it is
            // destroyed.
            let context = unsafe { (*found).cq_context };
            // SAFETY: the caller's memory for the answer, by this function's contract.
            unsafe { place.write(found) };
            // SAFETY: as above.
            unsafe { cq_context.write(context) };
            0
        }
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// Destroying the queue waits until all events are acknowledged.
///
/// # Safety
/// `cq` is live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: a live queue, by this function's contract.
    unsafe { self::cq(cq) }.unacknowledged.acknowledged(count);
}
