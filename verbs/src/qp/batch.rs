//! `ibv_wr_*`: requests built call by call, and posted together.
#![expect(unsafe_code, reason = "C's pointers to queue pairs and data")]

use std::slice;

use libc::{c_int, c_void};
use urnic::{SendOp, Stag};

use super::post::Memory;
use super::{Qp, qp};
use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_data_buf, ibv_mw, ibv_mw_bind_info,
    ibv_qp_ex, ibv_sge,
};
use crate::attributes::ELEMENTS_MAX;
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::mw::bind_type_2;
use crate::work::{Request, compare_and_swap, elements, remote};

/// Requests that `ibv_wr_complete` posts.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    requests: Vec<(Request, Data)>,
    /// The first that could not be built: nothing of the batch is posted.
    error: Option<Errno>,
}

/// The memory of a request, copied from what the calls said.
#[derive(Debug)]
enum Data {
    Elements(Vec<ElementCopy>),
    /// Inline data, as it was at the call.
    Octets(Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
struct ElementCopy {
    addr: u64,
    length: u32,
    lkey: u32,
}

impl From<&ibv_sge> for ElementCopy {
    fn from(element: &ibv_sge) -> Self {
        Self { addr: element.addr, length: element.length, lkey: element.lkey }
    }
}

/// The operations of an extended queue pair.
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
    /// Begins a request with the identity and flags that C has put into its part.
    ///
    /// # Safety
    /// `c` is live.
    unsafe fn begin(c: *mut ibv_qp_ex, op: impl FnOnce(bool) -> SendOp) {
        // SAFETY: C's part of a live queue pair, which this thread has filled in.
        let id = unsafe { (*c).wr_id };
        // SAFETY: as above.
        let flags = unsafe { (*c).wr_flags };
        // SAFETY: live, by this function's contract.
        let qp = unsafe { qp(c.cast()) };
        let request = Request {
            id,
            op: op(flags & IBV_SEND_SOLICITED != 0),
            fence: flags & IBV_SEND_FENCE != 0,
            signaled: flags & IBV_SEND_SIGNALED != 0,
            inline: false,
        };
        locked(&qp.batch).requests.push((request, Data::Elements(Vec::new())));
    }

    fn give(&self, data: Data) {
        let mut batch = locked(&self.batch);
        match batch.requests.last_mut() {
            Some((_, memory)) => *memory = data,
            None => batch.error = Some(Errno::INVALID),
        }
    }

    fn post_batch(&self) -> Result<(), Errno> {
        let mut batch = locked(&self.batch);
        if let Some(errno) = batch.error.take() {
            batch.requests.clear();
            return Err(errno);
        }
        for (request, data) in batch.requests.drain(..) {
            match data {
                Data::Octets(mut octets) => {
                    let addr = octets.as_mut_ptr().cast();
                    let buffer = ibv_data_buf { addr, length: octets.len() };
                    self.send(&request, Memory::Inline(&[buffer]))?;
                }
                Data::Elements(copies) => {
                    let mut elements = [ibv_sge::zeroed(); ELEMENTS_MAX as usize];
                    let used = elements.get_mut(..copies.len()).ok_or(Errno::INVALID)?;
                    for (element, copy) in used.iter_mut().zip(&copies) {
                        let ElementCopy { addr, length, lkey } = *copy;
                        *element = ibv_sge { addr, length, lkey };
                    }
                    self.send(&request, Memory::Elements(used))?;
                }
            }
        }
        self.turn();
        Ok(())
    }
}

/// # Safety
/// `c` is live.
unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: live, by this function's contract.
    *locked(&unsafe { qp(c.cast()) }.batch) = Batch::default();
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
    // SAFETY: as `wr_start`.
    unsafe { wr_start(c) }
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
        Err(errno) => locked(&unsafe { qp(c.cast()) }.batch).error = Some(errno),
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
    qp.give(Data::Elements(vec![ElementCopy { addr, length, lkey }]));
}

/// # Safety
/// `c` is live, `list` points at `count` elements.
unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(c.cast()) };
    // SAFETY: as long as said, by this function's contract.
    match unsafe { elements(list, i32::try_from(count).unwrap_or(-1)) } {
        Ok(elements) => qp.give(Data::Elements(elements.iter().map(ElementCopy::from).collect())),
        Err(errno) => locked(&qp.batch).error = Some(errno),
    }
}

/// # Safety
/// `c` is live, `addr` points at `length` octets.
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
    let mut octets = Vec::new();
    for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
        // SAFETY: the program's memory at the time of the call, by this function's contract.
        let region = unsafe { urnic::Region::from_raw_parts(buffer.addr.cast(), buffer.length) };
        let start = octets.len();
        octets.resize(start + buffer.length, 0);
        if region.read(0, &mut octets[start..]).is_err() {
            locked(&qp.batch).error = Some(Errno::INVALID);
        }
    }
    qp.give(Data::Octets(octets));
}
