//! Event channels.
#![expect(unsafe_code, reason = "C's pointers to channels")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Id, Pending};
use crate::abi::rdma_event_channel;
use crate::errno::{Errno, or_null};
use crate::event_queue::EventQueue;
use crate::object::{CPtr, Object};
use crate::turn;
use crate::waited::WaitedAt;

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) events: EventQueue<Pending>,
}

pub(crate) static CHANNELS: WaitedAt<Channel> = WaitedAt::new();

type ChannelObject = Object<rdma_event_channel, Arc<Channel>>;

impl Channel {
    /// Waits for one unless the descriptor is non-blocking.
    pub(crate) fn take(&self) -> Result<Pending, Errno> {
        let event = self.events.take(|event| event.counted().unacknowledged.taken())?;
        if let Some(listener) = &event.listener {
            // The backlog has room for another one.
            listener.untaken.fetch_sub(1, Ordering::AcqRel);
            turn::request(listener);
        }
        Ok(event)
    }

    /// The id is destroyed or migrated.
    pub(crate) fn take_events_of(&self, id: &Arc<Id>) -> Vec<Pending> {
        self.events.remove(|event| Arc::ptr_eq(event.counted(), id))
    }
}

fn create() -> Result<*mut rdma_event_channel, Errno> {
    let channel = Arc::new(Channel { events: EventQueue::new()? });
    let c = rdma_event_channel { fd: channel.events.fd() };
    let waited_at = Arc::clone(&channel);
    let c = ChannelObject::make(c, |_| channel);
    CHANNELS.insert(c, &waited_at);
    Ok(c)
}

/// # Safety
/// `c` came from [`create`], and only threads that wait at it use it again.
unsafe fn free(c: *mut rdma_event_channel) {
    CHANNELS.remove(c);
    // SAFETY: live, and freed once, by this function's contract.
    drop(unsafe { ChannelObject::free(c) });
}

/// # Safety
/// `channel` came from [`rdma_create_event_channel`] and was not destroyed.
pub(crate) unsafe fn channel<'a>(channel: *mut rdma_event_channel) -> &'a Arc<Channel> {
    // SAFETY: made in `create`, by this function's contract.
    unsafe { ChannelObject::of(channel) }
}

#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) channel: Arc<Channel>,
    pub(crate) c: CPtr<rdma_event_channel>,
    /// The calls of such an id wait for their events themselves.
    pub(crate) is_own: bool,
}

impl Attached {
    /// Makes a channel for the id alone if `c` is NULL.
    ///
    /// # Safety
    /// `c` is NULL or live.
    pub(crate) unsafe fn new(c: *mut rdma_event_channel) -> Result<Self, Errno> {
        let is_own = c.is_null();
        let c = if is_own { create()? } else { c };
        // SAFETY: just made, or live by this function's contract.
        let channel = Arc::clone(unsafe { channel(c) });
        Ok(Self { channel, c: CPtr(c), is_own })
    }

    /// Returns the channel for an id that is created by a request to this one.
    pub(crate) fn inherited(&self) -> Result<Self, Errno> {
        if self.is_own {
            // SAFETY: NULL.
            return unsafe { Self::new(std::ptr::null_mut()) };
        }
        Ok(Self { channel: Arc::clone(&self.channel), c: self.c, is_own: false })
    }

    /// Frees the channel if it is the id's own.
    pub(crate) fn leave(self) {
        if self.is_own {
            // SAFETY: made for the id, and freed once: when the id is destroyed or gets another
            // channel.
            unsafe { free(self.c.0) };
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    or_null(create())
}

/// A thread that waits for an event of the channel continues to wait.
///
/// # Safety
/// `channel` is live. Only threads that take events from it use it again, no id does.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: live, and freed once, by this function's contract.
    unsafe { free(channel) };
}
