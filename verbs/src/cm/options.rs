//! Options, ports, devices: what needs no connection.
#![expect(unsafe_code, reason = "C's pointers to ids and lists")]

use std::net::SocketAddr;
use std::ptr;

use libc::{c_int, c_void};

use super::address::from_c;
use super::show::verbs;
use crate::abi::{
    IBV_MTU_4096, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, RDMA_OPTION_ID, ibv_context, ibv_qp_attr, rdma_cm_id,
};
use crate::errno::{Errno, minus_one, or_null};
use crate::gid::PORT;

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

/// `rdma_init_qp_attr`: what `ibv_modify_qp` is to be told on the way to the state in `attr`.
///
/// # Safety
/// `id` is live, `attr` points at attributes, `mask` at a place for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: attributes of the program's, by this function's contract.
    let attr = unsafe { &mut *attr };
    let said = match attr.qp_state {
        IBV_QPS_INIT => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QPS_RTR => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        IBV_QPS_RTS => {
            IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => return minus_one(Err(Errno::INVALID)),
    };
    attr.port_num = PORT;
    attr.path_mtu = IBV_MTU_4096;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = PORT;
    // SAFETY: C's part of a live id.
    let gids = unsafe { (*id).route.addr.addr };
    // SAFETY: a union of one field, of octets.
    attr.ah_attr.grh.dgid = unsafe { gids.ibaddr }.dgid;
    // SAFETY: C's place for the answer, by this function's contract.
    unsafe { mask.write((said | IBV_QP_STATE).cast_signed()) };
    0
}

/// `rdma_establish`: for queue pairs that the program connects itself, which cannot be yet.
#[unsafe(no_mangle)]
extern "C" fn rdma_establish(_id: *mut rdma_cm_id) -> c_int {
    minus_one(Err(Errno::NOT_SUPPORTED))
}
