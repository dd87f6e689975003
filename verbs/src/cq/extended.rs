//! `ibv_cq_ex`: completions read one by one, field by field. Between `ibv_start_poll` and
//! `ibv_end_poll` other threads that take completions of the queue wait.
#![expect(unsafe_code, reason = "C's pointers to queues")]

use std::sync::Arc;

use libc::{c_int, c_uint};

use super::{completion, cq, create};
use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc,
};
use crate::context::context;
use crate::errno::{Errno, or_null};
use crate::pd::pd;

/// # Safety
/// `of` is an open device, `attr` points at attributes.
pub(crate) unsafe extern "C" fn create_cq_ex(
    of: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: attributes, by this function's contract.
    let attr = unsafe { attr.read() };
    let flags_known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || attr.wc_flags & !IBV_WC_STANDARD_FLAGS != 0
        || (has_flags && attr.flags & !flags_known != 0)
    {
        return or_null(Err(Errno::NOT_SUPPORTED));
    }
    if attr.comp_vector != 0 {
        return or_null(Err(Errno::INVALID));
    }
    // SAFETY: an open device, by this function's contract.
    let context = unsafe { context(of) };
    let domain = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
        None
    } else if attr.parent_domain.is_null() {
        return or_null(Err(Errno::INVALID));
    } else {
        // SAFETY: a live domain, by this function's contract.
        let domain = unsafe { pd(attr.parent_domain) };
        if !domain.is_parent() {
            return or_null(Err(Errno::INVALID));
        }
        Some(Arc::clone(domain))
    };
    let cqe = c_int::try_from(attr.cqe).unwrap_or(c_int::MAX);
    let told = (attr.cq_context, attr.channel);
    or_null(create(of, context, cqe, told, domain, operations())).cast()
}

pub(crate) fn operations() -> ibv_cq_ex {
    let mut c = ibv_cq_ex::zeroed();
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_nothing_u32);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_nothing_u32);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_nothing_u32);
    c.read_sl = Some(read_nothing_u8);
    c.read_dlid_path_bits = Some(read_nothing_u8);
    c
}

/// Takes the next completion, or returns ENOENT.
///
/// # Safety
/// `c` is live.
unsafe fn advance(c: *mut ibv_cq_ex, begins: bool) -> c_int {
    // SAFETY: a live queue, by this function's contract.
    let queue = unsafe { cq(c.cast()) };
    if begins {
        queue.turn();
        queue.polling.enter();
    }
    let next = queue.polling.inside(|current| {
        *current = queue.take(current);
        *current
    });
    let Some(wc) = next else {
        // The application ends a round by `ibv_end_poll` only if the round began with success.
        if begins {
            queue.polling.leave();
        }
        return libc::ENOENT;
    };
    let wc = completion::to_c(&wc);
    // SAFETY: C's part of a live queue, which C reads between these calls only.
    unsafe { (*c).wr_id = wc.wr_id };
    // SAFETY: as above.
    unsafe { (*c).status = wc.status };
    0
}

/// # Safety
/// `c` is live, `attr` points at attributes.
unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: attributes, by this function's contract.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: live, by this function's contract.
    unsafe { advance(c, true) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn next_poll(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: live, by this function's contract.
    unsafe { advance(c, false) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn end_poll(c: *mut ibv_cq_ex) {
    // SAFETY: a live queue, by this function's contract.
    unsafe { cq(c.cast()) }.polling.leave();
}

/// # Safety
/// `c` is live.
unsafe fn current(c: *mut ibv_cq_ex) -> ibv_wc {
    // SAFETY: a live queue, by this function's contract.
    let queue = unsafe { cq(c.cast()) };
    let current = queue.polling.inside(|current| *current);
    current.map_or_else(ibv_wc::zeroed, |wc| completion::to_c(&wc))
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn read_opcode(c: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: live, by this function's contract.
    unsafe { current(c) }.opcode
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn read_byte_len(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: live, by this function's contract.
    unsafe { current(c) }.byte_len
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn read_imm_data(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: live, by this function's contract.
    let wc = unsafe { current(c) };
    // SAFETY: both fields of the union are numbers of 32 bits.
    unsafe { wc.imm.imm_data }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn read_qp_num(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: live, by this function's contract.
    unsafe { current(c) }.qp_num
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn read_wc_flags(c: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: live, by this function's contract.
    unsafe { current(c) }.wc_flags
}

extern "C" fn read_nothing_u32(_c: *mut ibv_cq_ex) -> u32 {
    0
}

extern "C" fn read_nothing_u8(_c: *mut ibv_cq_ex) -> u8 {
    0
}
