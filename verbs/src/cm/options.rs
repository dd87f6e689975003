//! Options, ports, devices: functions that need no connection.
#![expect(unsafe_code, reason = "C's pointers to ids and lists")]

use std::net::SocketAddr;
use std::ptr;

use libc::{c_int, c_void};

use super::address::from_c;
use super::id::{Id, Phase, id};
use super::show::verbs;
use crate::abi::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, ibv_context, rdma_cm_id,
};
use crate::errno::{Errno, minus_one, or_null};
use crate::event_queue::locked;
use crate::network;

/// The value must have the length of `T`.
///
/// # Safety
/// `value` points at `len` bytes.
unsafe fn value_of<T: Copy>(value: *const c_void, len: usize) -> Result<T, Errno> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: of the length of the type, by this function's contract; C need not have aligned it.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
/// `value` points at `len` bytes.
unsafe fn set_option(of: &Id, name: c_int, value: *const c_void, len: usize) -> Result<(), Errno> {
    match name {
        RDMA_OPTION_ID_TOS => {
            // SAFETY: of `len` bytes, by this function's contract.
            let class = unsafe { value_of::<u8>(value, len) }?;
            // The lowest two bits are TCP's own (RFC 3168 §5).
            if class & !3 != 0 && network::device().is_some() {
                // An interface with urnic's own TCP sends all packets with class 0.
                return Err(Errno::NOT_SUPPORTED);
            }
            locked(&of.options).traffic_class = Some(class);
        }
        RDMA_OPTION_ID_REUSEADDR => {
            // No effect: as with TCP servers, several ids may be bound to one address even without
            // the option, as long as none listens there.
            // SAFETY: of `len` bytes, by this function's contract.
            unsafe { value_of::<c_int>(value, len) }?;
            if matches!(&*locked(&of.phase), Phase::Listening(_)) {
                return Err(Errno::INVALID);
            }
        }
        RDMA_OPTION_ID_AFONLY => {
            // SAFETY: of `len` bytes, by this function's contract.
            let only = unsafe { value_of::<c_int>(value, len) }? != 0;
            if !matches!(&*locked(&of.phase), Phase::Idle | Phase::Bound(..)) {
                return Err(Errno::INVALID);
            }
            locked(&of.options).only_ipv6 = only;
        }
        RDMA_OPTION_ID_ACK_TIMEOUT => {
            // SAFETY: of `len` bytes, by this function's contract.
            locked(&of.options).ack_timeout = unsafe { value_of::<u8>(value, len) }?;
        }
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(())
}

/// Fails with Linux's errors. The options of InfiniBand's paths do not exist.
///
/// # Safety
/// `of` is live, `value` points at `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    of: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    if level != RDMA_OPTION_ID {
        return minus_one(Err(Errno(libc::ENOSYS)));
    }
    // SAFETY: live, by this function's contract.
    let of = unsafe { id(of) };
    // SAFETY: of `len` bytes, by this function's contract.
    minus_one(unsafe { set_option(of, name, value, len) })
}

fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: a place inside C's part of a live id.
    let address = unsafe { &raw const (*id).route.addr.src };
    // SAFETY: zeros, which are of no family, or an address.
    port(unsafe { from_c(address.cast()) })
}

/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: a place inside C's part of a live id.
    let address = unsafe { &raw const (*id).route.addr.dst };
    // SAFETY: zeros, which are of no family, or an address.
    port(unsafe { from_c(address.cast()) })
}

/// # Safety
/// `count` is NULL or points at memory for the number.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    or_null(verbs().map(|open| {
        if !count.is_null() {
            // SAFETY: not NULL, so memory for a number, by this function's contract.
            unsafe { count.write(1) };
        }
        Box::into_raw(Box::new([open, ptr::null_mut()])).cast()
    }))
}

/// The device in the list stays open.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_length_of_its_option() {
        let octets = [1_u8, 2, 3, 4, 5, 6, 7, 8];
        let value = octets[1..].as_ptr().cast();
        // SAFETY: as many bytes are there, or more.
        let number = |len| unsafe { value_of::<c_int>(value, len) };
        assert_eq!(number(4), Ok(c_int::from_ne_bytes([2, 3, 4, 5])), "wherever it lies");
        for len in [0, 1, 3, 5, 7] {
            assert_eq!(number(len), Err(Errno::INVALID), "{len}");
        }
        // SAFETY: NULL is not looked at.
        assert_eq!(unsafe { value_of::<u8>(ptr::null(), 1) }, Err(Errno::INVALID));
    }
}
