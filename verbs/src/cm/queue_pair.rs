//! Queue pairs of ids, with the completion queues that rdma_cm makes if the application names none.
#![expect(unsafe_code, reason = "C's pointers to ids and attributes")]

use std::ptr;
use std::sync::Arc;

use libc::{c_int, c_void};

use super::id::id;
use super::show::verbs;
use crate::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QPS_INIT, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp_attr,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id,
};
use crate::channel::{create as create_channel, ibv_destroy_comp_channel};
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::qp::create::{Connects, create_extended, ibv_destroy_qp};
use crate::qp::qp;

fn make_cq(of: *mut rdma_cm_id, depth: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let open = verbs()?;
    let channel = create_channel(open)?;
    let cqe = c_int::try_from(depth.max(1)).map_err(|_| Errno::INVALID)?;
    // SAFETY: an open device and a live channel.
    let cq = unsafe { ibv_create_cq(open, cqe, of.cast::<c_void>(), channel, 0) };
    if cq.is_null() {
        // SAFETY: a channel that nothing uses.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(Errno::NO_MEMORY);
    }
    Ok((channel, cq))
}

/// # Safety
/// `of` is live.
unsafe fn complete_queues(
    of: *mut rdma_cm_id,
    send: &mut *mut ibv_cq,
    recv: &mut *mut ibv_cq,
    depths: [u32; 2],
) -> Result<(), Errno> {
    if send.is_null() {
        let (channel, cq) = make_cq(of, depths[0])?;
        // SAFETY: C's part of a live id.
        unsafe { (*of).send_cq_channel = channel };
        // SAFETY: as above.
        unsafe { (*of).send_cq = cq };
        *send = cq;
    }
    if recv.is_null() {
        let (channel, cq) = make_cq(of, depths[1])?;
        // SAFETY: C's part of a live id.
        unsafe { (*of).recv_cq_channel = channel };
        // SAFETY: as above.
        unsafe { (*of).recv_cq = cq };
        *recv = cq;
    }
    Ok(())
}

/// # Safety
/// `of` and what `attr` names are live.
unsafe fn make(of: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: live, by this function's contract.
    let owner = unsafe { id(of) };
    if locked(&owner.qp).is_some() {
        return Err(Errno::INVALID);
    }
    owner.show_device()?;
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        // SAFETY: C's part of a live id.
        attr.pd = unsafe { (*of).pd };
    }
    // SAFETY: C's part of a live id.
    unsafe { (*of).pd = attr.pd };
    if attr.srq.is_null() {
        // SAFETY: C's part of a live id.
        attr.srq = unsafe { (*of).srq };
    }
    let depths = [attr.cap.max_send_wr, attr.cap.max_recv_wr];
    // SAFETY: live, by this function's contract.
    let completed = unsafe { complete_queues(of, &mut attr.send_cq, &mut attr.recv_cq, depths) };
    // SAFETY: what was filled in is live, and the rest by this function's contract.
    let made = completed.and_then(|()| unsafe { create_extended(attr, Connects::Id) });
    let made = made.inspect_err(|_| {
        // SAFETY: live; nothing uses the queues that were made.
        unsafe { destroy_queues(of) };
    })?;
    // SAFETY: just made.
    let pair = unsafe { qp(made) };
    let mut told = ibv_qp_attr::zeroed();
    told.qp_state = IBV_QPS_INIT;
    pair.record(&told, 0, IBV_QPS_INIT);
    let id = Arc::downgrade(owner);
    pair.set_id(id);
    *locked(&owner.qp) = Some(Arc::clone(pair));
    // SAFETY: C's part of a live queue pair.
    unsafe { (*made).state = IBV_QPS_INIT };
    // SAFETY: C's part of a live id.
    unsafe { (*of).qp = made };
    Ok(())
}

fn extended(pd: *mut ibv_pd, attr: &ibv_qp_init_attr) -> ibv_qp_init_attr_ex {
    let mut all = ibv_qp_init_attr_ex::zeroed();
    (all.qp_context, all.srq) = (attr.qp_context, attr.srq);
    (all.send_cq, all.recv_cq) = (attr.send_cq, attr.recv_cq);
    (all.cap, all.qp_type, all.sq_sig_all) = (attr.cap, attr.qp_type, attr.sq_sig_all);
    (all.comp_mask, all.pd) = (IBV_QP_INIT_ATTR_PD, pd);
    all
}

/// Writes the capabilities and completion queues to `attr`.
///
/// # Safety
/// `of`, `pd` if not NULL, and what `attr` names are live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    of: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    let mut all = extended(pd, attr);
    // SAFETY: as this function's contract.
    let made = unsafe { make(of, &mut all) };
    if made.is_ok() {
        (attr.cap, attr.send_cq, attr.recv_cq) = (all.cap, all.send_cq, all.recv_cq);
    }
    minus_one(made)
}

/// # Safety
/// `of` and what `attr` names are live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    of: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    // SAFETY: as this function's contract.
    minus_one(unsafe { make(of, attr) })
}

/// Destroys the completion queues and channels that were made for it, too.
///
/// # Safety
/// `of` is live, and its queue pair is not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(of: *mut rdma_cm_id) {
    // SAFETY: C's part of a live id.
    let c = unsafe { of.read() };
    if !c.qp.is_null() {
        // SAFETY: the id's own queue pair, not used again, by this function's contract.
        unsafe { ibv_destroy_qp(c.qp) };
    }
    // SAFETY: live; the queue pair was the last that used them.
    unsafe { destroy_queues(of) };
    // SAFETY: C's part of a live id.
    unsafe { (*of).qp = ptr::null_mut() };
}

/// # Safety
/// `of` is live, and no queue pair uses them.
unsafe fn destroy_queues(of: *mut rdma_cm_id) {
    // SAFETY: C's part of a live id; one call at a time changes it.
    let c = unsafe { &mut *of };
    for cq in [&mut c.send_cq, &mut c.recv_cq] {
        let cq = std::mem::replace(cq, ptr::null_mut());
        if !cq.is_null() {
            // SAFETY: made for the id, and not used again.
            unsafe { ibv_destroy_cq(cq) };
        }
    }
    for channel in [&mut c.send_cq_channel, &mut c.recv_cq_channel] {
        let channel = std::mem::replace(channel, ptr::null_mut());
        if !channel.is_null() {
            // SAFETY: made for the queue, which is destroyed.
            unsafe { ibv_destroy_comp_channel(channel) };
        }
    }
}
