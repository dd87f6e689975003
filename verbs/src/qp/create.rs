//! Makes and destroys queue pairs.
#![expect(unsafe_code, reason = "C's pointers to queue pairs and attributes")]

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, RwLock};

use libc::c_int;
use urnic::{QpConfig, QpNum, QpRules};

use super::batch::{self, SendSide};
use super::{Qp, QpObject, qp};
use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UC, ibv_context, ibv_pd,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::ack;
use crate::attributes::{ELEMENTS_MAX, INLINE_MAX, WR_MAX};
use crate::cq::cq;
use crate::errno::{Errno, or_null};
use crate::event_queue::Unacknowledged;
use crate::fault::{self, Call};
use crate::object::CPtr;
use crate::pd::pd;
use crate::peer::requests::Requests;
use crate::process::next_handle;
use crate::section::Section;
use crate::srq::srq;

/// Work requests that an application may build with `ibv_wr_*`.
const SEND_OPS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND_WITH_IMM;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connects {
    Id,
    /// The application, if it connects the queue pair at all, by its number.
    Program,
}

/// Refuses capabilities that exceed the device's limits, and replaces them by the actual ones.
const fn settle(cap: &mut ibv_qp_cap) -> Result<(), Errno> {
    if cap.max_send_wr > WR_MAX
        || cap.max_recv_wr > WR_MAX
        || cap.max_send_sge > ELEMENTS_MAX
        || cap.max_recv_sge > ELEMENTS_MAX
        || cap.max_inline_data > INLINE_MAX
    {
        return Err(Errno::INVALID);
    }
    (cap.max_send_sge, cap.max_recv_sge) = (ELEMENTS_MAX, ELEMENTS_MAX);
    cap.max_inline_data = INLINE_MAX;
    Ok(())
}

/// # Safety
/// `of` is live.
unsafe fn c_part(
    of: *mut ibv_pd,
    attr: &ibv_qp_init_attr,
    number: u32,
    extended: bool,
) -> ibv_qp_ex {
    let mut c = ibv_qp_ex::zeroed();
    if extended {
        batch::install(&mut c);
        c.comp_mask = SEND_OPS;
    }
    let base = &mut c.qp_base;
    // SAFETY: a live domain, by this function's contract.
    base.context = unsafe { (*of).context };
    (base.qp_context, base.pd) = (attr.qp_context, of);
    (base.send_cq, base.recv_cq) = (attr.send_cq, attr.recv_cq);
    base.srq = attr.srq;
    (base.handle, base.qp_num) = (next_handle(), number);
    (base.state, base.qp_type) = (IBV_QPS_RESET, attr.qp_type);
    c
}

/// Writes the capabilities to `attr`.
///
/// # Safety
/// `of` and the queues in `attr` are live.
pub(crate) unsafe fn create(
    of: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    extended: bool,
    connects: Connects,
) -> Result<*mut ibv_qp, Errno> {
    fault::check(Call::CreateQp)?;
    if !matches!(attr.qp_type, IBV_QPT_RC | IBV_QPT_UC) {
        return Err(Errno::NOT_SUPPORTED);
    }
    if of.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(Errno::INVALID);
    }
    settle(&mut attr.cap)?;
    // SAFETY: a live domain, by this function's contract.
    let pd = unsafe { pd(of) };
    // SAFETY: a live queue, by this function's contract.
    let send_cq = unsafe { cq(attr.send_cq) };
    // SAFETY: as above.
    let recv_cq = unsafe { cq(attr.recv_cq) };
    // SAFETY: NULL, or a live queue, by this function's contract.
    let srq = (!attr.srq.is_null()).then(|| unsafe { srq(attr.srq) });
    if srq.is_some() {
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    }
    let cap = attr.cap;
    let depth = |wanted: u32| usize::try_from(wanted.max(1)).map_err(|_| Errno::INVALID);
    let process = &pd.context.process;
    let number = match connects {
        Connects::Id => {
            process.numbers.take_for_id(|number| process.with_qp(number, |_| ()).is_none())?
        }
        Connects::Program => process.numbers.take(|| Requests::listen(process))?,
    };
    let config = QpConfig {
        send_depth: depth(cap.max_send_wr)?,
        recv_depth: depth(cap.max_recv_wr)?,
        // As on InfiniBand with the usual retry count of 7: retries never end.
        rules: QpRules::InfiniBand,
        completion: ack::completion(),
        number: Some(QpNum(number)),
        srq: srq.map(|srq| srq.inner.clone()),
        ..QpConfig::with_cqs(send_cq.inner.clone(), recv_cq.inner.clone())
    };
    let made = pd.inner.create_qp(config.clone());
    let inner = made.map_err(|_| {
        process.numbers.give_back(number);
        Errno::INVALID
    })?;
    let send_side = Section::new(SendSide::new(&inner, config.send_depth));
    // SAFETY: a live domain, by this function's contract.
    let c = unsafe { c_part(of, attr, number, extended) };
    let (cqs, of_srq) = ([CPtr(attr.send_cq), CPtr(attr.recv_cq)], CPtr(attr.srq));
    let all_signaled = attr.sq_sig_all != 0;
    let object = QpObject::make(c, |c| {
        let qp = Arc::new(Qp {
            context: Arc::clone(&pd.context),
            pd: Arc::clone(pd),
            inner: RwLock::new(inner),
            config,
            number,
            c: CPtr(c.0.cast()),
            cqs,
            srq: of_srq,
            last_wqe_told: AtomicBool::new(false),
            cap,
            connects,
            all_signaled,
            told: Mutex::new(ibv_qp_attr::zeroed()),
            told_state: AtomicU32::new(IBV_QPS_RESET),
            send_side,
            fetches: Mutex::default(),
            has_quiet_atomics: AtomicBool::new(false),
            unacknowledged: Unacknowledged::default(),
            id: Mutex::default(),
            link: Mutex::default(),
        });
        pd.context.process.add_qp(qp.clone());
        qp
    });
    Ok(object.cast())
}

/// Makes a queue pair that the application connects itself.
///
/// # Safety
/// `of` and what `attr` names are live.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(of: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    // SAFETY: as this function's contract.
    or_null(unsafe { create(of, attr, false, Connects::Program) })
}

/// # Safety
/// What `attr` names is live.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: attributes of the application, by this function's contract.
    let attr = unsafe { &mut *attr };
    // SAFETY: as this function's contract.
    or_null(unsafe { create_extended(attr, Connects::Program) })
}

/// # Safety
/// What `attr` names is live.
pub(crate) unsafe fn create_extended(
    attr: &mut ibv_qp_init_attr_ex,
    connects: Connects,
) -> Result<*mut ibv_qp, Errno> {
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if attr.comp_mask & !known != 0 || (extended && attr.send_ops_flags & !SEND_OPS != 0) {
        return Err(Errno::NOT_SUPPORTED);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::INVALID);
    }
    let mut plain = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    // SAFETY: as this function's contract.
    let made = unsafe { create(attr.pd, &mut plain, extended, connects) };
    attr.cap = plain.cap;
    made
}

/// NULL unless the queue pair was made as an extended one.
///
/// # Safety
/// `of` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(of: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended = of.cast::<ibv_qp_ex>();
    // SAFETY: every live queue pair has an extended part.
    let is_extended = unsafe { (*extended).wr_start }.is_some();
    if is_extended { extended } else { std::ptr::null_mut() }
}

/// When it returns, neither the queue pair's requests nor its peer use memory, and no request
/// completes. Data sent before is delivered; the connection closes in the background.
///
/// # Safety
/// `of` is live and not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(of: *mut ibv_qp) -> c_int {
    // SAFETY: live, by this function's contract.
    let pair = unsafe { qp(of) };
    if let Some(id) = pair.id() {
        id.qp_goes(pair);
    }
    pair.leave_link();
    pair.take_back(&pair.inner());
    pair.context.process.remove_qp(pair.number());
    pair.context.events.forget_qp(CPtr(of));
    pair.unacknowledged.wait();
    // SAFETY: live, and freed once, by this function's contract.
    drop(unsafe { QpObject::free(of.cast()) });
    0
}
