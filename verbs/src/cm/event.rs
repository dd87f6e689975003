//! Events of ids: an event is pending until C takes it, and is freed when C acknowledges it.
#![expect(unsafe_code, reason = "C's pointers to events")]

use std::ptr;
use std::sync::Arc;

use libc::c_int;

use super::id::channel::CHANNELS;
use super::id::{Id, Pending};
use crate::abi::{rdma_cm_event, rdma_cm_event_param, rdma_conn_param, rdma_event_channel};
use crate::errno::Errno;
use crate::exit;
use crate::object::Object;

/// C may read so many bytes behind `private_data`: some applications read structures without a look
/// at the length.
const PRIVATE_DATA_PLACE: usize = 256;

#[derive(Debug)]
pub(super) struct Taken {
    pub(super) counted: Arc<Id>,
    _private_data: Box<[u8; PRIVATE_DATA_PLACE]>,
}

type EventObject = Object<rdma_cm_event, Taken>;

pub(super) fn to_c(pending: Pending) -> *mut rdma_cm_event {
    let counted = Arc::clone(pending.counted());
    pending.id.show_queue_pair(pending.kind);
    let mut octets = Box::new([0; PRIVATE_DATA_PLACE]);
    let len = pending.private_data.len().min(usize::from(u8::MAX));
    octets[..len].copy_from_slice(&pending.private_data[..len]);
    let depth = |depth: u16| u8::try_from(depth).unwrap_or(u8::MAX);
    let private_data = match pending.argument {
        // The argument is the first field of a structure in the same union.
        Some(argument) => ptr::without_provenance(usize::try_from(argument).unwrap_or(0)),
        None if len == 0 => ptr::null(),
        None => octets.as_ptr().cast(),
    };
    let conn = rdma_conn_param {
        private_data,
        private_data_len: u8::try_from(len).unwrap_or(u8::MAX),
        responder_resources: depth(pending.depths[0]),
        initiator_depth: depth(pending.depths[1]),
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: pending.number_of_peer,
    };
    let mut c = rdma_cm_event::zeroed();
    c.id = pending.id.c.0;
    c.listen_id = pending.listener.map_or(ptr::null_mut(), |listener| listener.c.0);
    (c.event, c.status) = (pending.kind, pending.status);
    c.param = rdma_cm_event_param { conn };
    EventObject::make(c, |_| Taken { counted, _private_data: octets })
}

/// Maximum of the field: TCP retries until its user timeout.
const RETRIES: u8 = 7;

/// Waits for the next event, unless the descriptor is non-blocking. EBADF for a destroyed channel.
///
/// # Safety
/// `event` points at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    of: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if of.is_null() || event.is_null() {
        Errno::INVALID.set();
        return -1;
    }
    match CHANNELS.find(of).and_then(|channel| channel.take()) {
        Ok(pending) => {
            // SAFETY: the caller's memory for the answer, by this function's contract.
            unsafe { event.write(to_c(pending)) };
            0
        }
        Err(errno) => {
            // A caller with a non-blocking channel polls and does not wait.
            if errno.0 != libc::EAGAIN {
                exit::wait_if_under_way();
            }
            errno.set();
            -1
        }
    }
}

/// # Safety
/// `event` was taken and is acknowledged once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        Errno::INVALID.set();
        return -1;
    }
    // SAFETY: made in `to_c`, and freed once, by this function's contract.
    let taken = unsafe { EventObject::free(event) };
    taken.counted.unacknowledged.acknowledged(1);
    0
}
