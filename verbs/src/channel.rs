//! Completion channels: queues of events that name the completion queues with new completions.
#![expect(unsafe_code, reason = "C's pointers to channels")]

use std::sync::Arc;

use libc::c_int;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::errno::{Errno, number, or_null};
use crate::event_queue::EventQueue;
use crate::fault::{self, Call};
use crate::object::{CPtr, Object};
use crate::waited::WaitedAt;

#[derive(Debug)]
pub(crate) struct CompChannel {
    pub(crate) events: Arc<CqEvents>,
}

/// Each event is the completion queue that has completions.
pub(crate) type CqEvents = EventQueue<CPtr<ibv_cq>>;

static EVENTS: WaitedAt<CqEvents> = WaitedAt::new();

type ChannelObject = Object<ibv_comp_channel, Arc<CompChannel>>;

/// # Safety
/// `channel` came from [`ibv_create_comp_channel`] and was not destroyed.
pub(crate) unsafe fn channel<'a>(channel: *mut ibv_comp_channel) -> &'a Arc<CompChannel> {
    // SAFETY: made in `create`, by this function's contract.
    unsafe { ChannelObject::of(channel) }
}

/// EBADF if the channel is destroyed.
pub(crate) fn events(channel: *mut ibv_comp_channel) -> Result<Arc<CqEvents>, Errno> {
    EVENTS.find(channel)
}

pub(crate) fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    fault::check(Call::CreateCompChannel)?;
    let events = Arc::new(EventQueue::new()?);
    let channel = Arc::new(CompChannel { events: Arc::clone(&events) });
    let c = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
    let c = ChannelObject::make(c, |_| channel);
    EVENTS.insert(c, &events);
    Ok(c)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    or_null(create(context))
}

/// EBUSY while a completion queue uses the channel. A thread that waits for an event of the channel
/// continues to wait.
///
/// # Safety
/// `channel` is live. If the function returns 0, only threads that take events from it use it
/// again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a live channel, by this function's contract.
    let users = Arc::strong_count(unsafe { self::channel(channel) });
    if users > 1 {
        return number(Err(Errno::BUSY));
    }
    EVENTS.remove(channel);
    // SAFETY: live, and freed once: the answer is 0.
    drop(unsafe { ChannelObject::free(channel) });
    0
}
