//! Options, ports, devices: what needs no connection.
#![expect(unsafe_code, reason = "C's pointers to ids and lists")]

use std::net::SocketAddr;
use std::ptr;

use libc::{c_int, c_void};

use super::address::from_c;
use super::show::verbs;
use crate::abi::{RDMA_OPTION_ID, ibv_context, rdma_cm_id};
use crate::errno::{Errno, minus_one, or_null};

/// `rdma_set_option`: options of ids are hints that TCP here needs none of; those of InfiniBand's paths
/// do not exist.
#[unsafe(no_mangle)]
extern "C" fn rdma_set_option(
    _id: *mut rdma_cm_id,
    level: c_int,
    _name: c_int,
    _value: *mut c_void,
    _len: usize,
) -> c_int {
    minus_one(if level == RDMA_OPTION_ID { Ok(()) } else { Err(Errno(libc::ENOSYS)) })
}

/// What InfiniBand's connection manager says where the program says nothing: 4.096 us times two to the
/// power of it, 67 ms.
pub(super) const ACK_TIMEOUT: u8 = 14;

fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

/// `rdma_get_src_port`, in network order.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: a place inside C's part of a live id.
    let address = unsafe { &raw const (*id).route.addr.src };
    // SAFETY: zeros, which are of no family, or an address.
    port(unsafe { from_c(address.cast()) })
}

/// `rdma_get_dst_port`, in network order.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: a place inside C's part of a live id.
    let address = unsafe { &raw const (*id).route.addr.dst };
    // SAFETY: zeros, which are of no family, or an address.
    port(unsafe { from_c(address.cast()) })
}

/// `rdma_get_devices`: the one that ids show.
///
/// # Safety
/// `count` is NULL or points at a place for the number.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    or_null(verbs().map(|open| {
        if !count.is_null() {
            // SAFETY: not NULL, so a place for a number, by this function's contract.
            unsafe { count.write(1) };
        }
        Box::into_raw(Box::new([open, ptr::null_mut()])).cast()
    }))
}

/// `rdma_free_devices`.
///
/// # Safety
/// `list` came from [`rdma_get_devices`] and is freed once.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        // SAFETY: made by `Box::into_raw` of this type, by this function's contract.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
    }
}
