//! `ibv_wr_*`: requests built call by call, and posted together.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort` one thread is in the send queue's
//! section; other threads wait, in `ibv_post_send` too. Each request reserves its entry in the
//! queue when it is built, so `ibv_wr_complete` posts all requests or, after an error, none.
#![expect(unsafe_code, reason = "C's pointers to queue pairs and data")]

use std::slice;

use libc::{c_int, c_void};
use urnic::{SendBatch, SendOp, SendWr, Stag, WrId};

use super::inline::InlineRing;
use super::post::{is_atomic, is_local};
use super::{Fetch, Qp, qp};
use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_data_buf, ibv_mw, ibv_mw_bind_info,
    ibv_qp_ex, ibv_sge,
};
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::fault::{self, Call};
use crate::work::{bind_type_2, compare_and_swap, elements, remote};

/// Posting state of a send queue, used by one thread at a time.
#[derive(Debug)]
pub(super) struct SendSide {
    pub(super) inline: InlineRing,
    batch: SendBatch,
    current: Option<Building>,
    fetches: Vec<Fetch>,
    /// First error of the batch: none of its requests is posted.
    error: Option<Errno>,
}

#[derive(Debug)]
struct Building {
    wr: SendWr,
    /// Destination of the fetched value, for an Atomic.
    fetch: Option<Fetch>,
    is_inline: bool,
}

impl SendSide {
    pub(super) fn new(inner: &urnic::Qp, send_depth: usize) -> Self {
        Self {
            inline: InlineRing::new(send_depth),
            batch: inner.batch(),
            current: None,
            fetches: Vec::new(),
            error: None,
        }
    }

    /// Discards the batch after a reset, which ends the old queue.
    pub(super) fn reset(&mut self, inner: &urnic::Qp) {
        self.clear();
        self.batch = inner.batch();
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.inline.untake();
        self.fetches.clear();
        (self.current, self.error) = (None, None);
    }

    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    fn finish(&mut self, qp: &Qp) {
        let Some(Building { wr, fetch, .. }) = self.current.take() else { return };
        if self.error.is_some() {
            return;
        }
        let takes = fault::check(Call::PostSend).and_then(|()| {
            // An Atomic needs a destination for the fetched value.
            let is_whole = qp.takes_sends() && fetch.is_some() == is_atomic(&wr.op);
            if is_whole { Ok(()) } else { Err(Errno::INVALID) }
        });
        match takes.and_then(|()| Ok(self.batch.push(wr)?)) {
            Ok(()) => self.fetches.extend(fetch),
            Err(errno) => self.fail(errno),
        }
    }
}

const fn may_be_inline(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send { .. }
            | SendOp::SendImmediate { .. }
            | SendOp::RdmaWrite { .. }
            | SendOp::RdmaWriteImmediate { .. }
    )
}

pub(super) fn install(c: &mut ibv_qp_ex) {
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

impl Qp {
    /// # Safety
    /// `c` is live.
    unsafe fn begin(c: *mut ibv_qp_ex, op: impl FnOnce(bool) -> SendOp) {
        // SAFETY: C's part of a live queue pair, which this thread has filled in.
        let id = unsafe { (*c).wr_id };
        // SAFETY: as above.
        let flags = unsafe { (*c).wr_flags };
        // SAFETY: live, by this function's contract.
        let qp = unsafe { qp(c.cast()) };
        let mut wr = SendWr::new(WrId(id), op(flags & IBV_SEND_SOLICITED != 0), []);
        wr.fence = flags & IBV_SEND_FENCE != 0;
        wr.signaled = qp.all_signaled || flags & IBV_SEND_SIGNALED != 0;
        qp.send_side.inside(|side| {
            side.finish(qp);
            side.current = Some(Building { wr, fetch: None, is_inline: false });
        });
    }

    fn refuse(&self, errno: Errno) {
        self.send_side.inside(|side| side.fail(errno));
    }

    fn set_elements(&self, elements: Result<&[ibv_sge], Errno>) {
        self.set(|_, building| {
            let (elements, Building { wr, fetch, .. }) = (elements?, building);
            if is_atomic(&wr.op) {
                if fetch.is_some() {
                    return Err(Errno::INVALID);
                }
                *fetch = Some(self.fetch(wr, elements)?);
                return Ok(());
            }
            wr.sges.clear();
            let is_sink = matches!(wr.op, SendOp::RdmaRead { .. });
            wr.inaccessible = !self.pd.resolve(elements, is_sink, &mut wr.sges)?;
            Ok(())
        });
    }

    fn set_inline(&self, buffers: &[ibv_data_buf]) {
        self.set(|inline, building| {
            let Building { wr, is_inline, .. } = building;
            if *is_inline || !may_be_inline(&wr.op) {
                return Err(Errno::INVALID);
            }
            // Earlier requests of the batch have reserved their entries, so their slots differ.
            let sge = inline.copy(&self.pd.inner, buffers)?;
            inline.taken();
            *is_inline = true;
            wr.sges.clear();
            wr.sges.push(sge);
            Ok(())
        });
    }

    /// Changes the request being built, unless the batch has an error.
    fn set(&self, set: impl FnOnce(&mut InlineRing, &mut Building) -> Result<(), Errno>) {
        self.send_side.inside(|side| {
            if side.error.is_some() {
                return;
            }
            let done = match &mut side.current {
                Some(building) if !is_local(&building.wr.op) => set(&mut side.inline, building),
                _ => Err(Errno::INVALID),
            };
            if let Err(errno) = done {
                side.fail(errno);
            }
        });
    }

    fn post_batch(&self) -> Result<(), Errno> {
        let posted = self.send_side.inside(|side| {
            side.finish(self);
            if let Some(errno) = side.error {
                side.clear();
                return Err(errno);
            }
            if !side.fetches.is_empty() {
                // Before these Atomics can complete.
                let mut fetches = locked(&self.fetches);
                fetches.extend(side.fetches.drain(..));
            }
            side.batch.post();
            side.inline.keep();
            Ok(())
        });
        self.send_side.leave();
        if posted.is_ok() {
            self.turn();
        }
        posted
    }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(c.cast()) };
    qp.send_side.enter();
    qp.send_side.inside(SendSide::clear);
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: live, by this function's contract.
    crate::errno::number(unsafe { qp(c.cast()) }.post_batch())
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(c.cast()) };
    qp.send_side.inside(SendSide::clear);
    qp.send_side.leave();
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_rdma_write(c: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |_| SendOp::RdmaWrite { remote: remote(rkey, addr) }) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_rdma_write_imm(c: *mut ibv_qp_ex, rkey: u32, addr: u64, imm_data: u32) {
    let (remote, immediate) = (remote(rkey, addr), u32::from_be(imm_data));
    let op = |solicited| SendOp::RdmaWriteImmediate { remote, immediate, solicited };
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, op) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_rdma_read(c: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |_| SendOp::RdmaRead { remote: remote(rkey, addr) }) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_send(c: *mut ibv_qp_ex) {
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |solicited| SendOp::Send { invalidate: None, solicited }) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_send_imm(c: *mut ibv_qp_ex, imm_data: u32) {
    let immediate = u32::from_be(imm_data);
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |solicited| SendOp::SendImmediate { immediate, solicited }) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    let invalidate = Some(Stag(rkey));
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |solicited| SendOp::Send { invalidate, solicited }) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |_| SendOp::LocalInvalidate { stag: Stag(rkey) }) }
}

/// # Safety
/// `c`, the window and the region are live, `info` points at a binding.
unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: a binding, by this function's contract.
    let info = unsafe { info.read() };
    // SAFETY: as this function's contract.
    match unsafe { bind_type_2(mw, rkey, &info) } {
        // SAFETY: live, by this function's contract.
        Ok(op) => unsafe { Qp::begin(c, |_| op) },
        // SAFETY: as above.
        Err(errno) => unsafe { qp(c.cast()) }.refuse(errno),
    }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_atomic_cmp_swp(
    c: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |_| compare_and_swap(remote(rkey, addr), compare, swap)) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_atomic_fetch_add(c: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let op = SendOp::FetchAdd { remote: remote(rkey, addr), add, mask: 0 };
    // SAFETY: live, by this function's contract.
    unsafe { Qp::begin(c, |_| op) }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(c.cast()) };
    qp.set_elements(Ok(&[ibv_sge { addr, length, lkey }]));
}

/// # Safety
/// `c` is live, `list` points at `count` elements.
unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(c.cast()) };
    // SAFETY: as long as said, by this function's contract.
    qp.set_elements(unsafe { elements(list, i32::try_from(count).unwrap_or(-1)) });
}

/// # Safety
/// `c` is live, `addr` points at `length` bytes.
unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: as this function's contract.
    unsafe { wr_set_inline_data_list(c, 1, &raw const buffer) }
}

/// # Safety
/// `c` is live, `list` points at `count` buffers.
unsafe extern "C" fn wr_set_inline_data_list(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(c.cast()) };
    let buffers = if count == 0 {
        &[]
    } else {
        // SAFETY: as long as said, by this function's contract.
        unsafe { slice::from_raw_parts(list, count) }
    };
    qp.set_inline(buffers);
}
