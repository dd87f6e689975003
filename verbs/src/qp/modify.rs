//! `ibv_modify_qp` and `ibv_query_qp`.
#![expect(unsafe_code, reason = "C's pointers to queue pairs and attributes")]

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use libc::{c_int, c_uint};
use urnic::{Access, WcStatus};
use urnic_engine::limits::READS_OUTSTANDING_MAX;

use super::create::Connects;
use super::{CarryingId, Qp, qp};
use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR,
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr,
};
use crate::device::{Personality, personality};
use crate::errno::{Errno, number};
use crate::event_queue::locked;
use crate::fault::{self, Call};
use crate::gid::PORT;
use crate::numbers::is_of_id;
use crate::peer::address;
use crate::peer::hello::Name;
use crate::peer::link::{Link, Terms, depth};

/// InfiniBand's table for reliable connections.
const fn required(from: u32, to: u32) -> Option<u32> {
    match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) => {
            Some(IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
        }
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some(
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        ),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some(
            IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC,
        ),
        (_, IBV_QPS_ERR | IBV_QPS_RESET) => Some(0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some(0),
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS | IBV_QPS_SQD) => Some(0),
        _ => None,
    }
}

fn remote_rights(flags: u32) -> Access {
    [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .map(|(_, right)| right)
    .collect()
}

/// The device has one port and one partition key.
fn check_values(attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let wrong = [
        (IBV_QP_PORT, attr.port_num != PORT),
        (IBV_QP_PKEY_INDEX, attr.pkey_index != 0),
        (IBV_QP_DEST_QPN, attr.dest_qp_num >> 24 != 0),
        (IBV_QP_MAX_QP_RD_ATOMIC, u16::from(attr.max_rd_atomic) > READS_OUTSTANDING_MAX),
        (IBV_QP_MAX_DEST_RD_ATOMIC, u16::from(attr.max_dest_rd_atomic) > READS_OUTSTANDING_MAX),
    ];
    if wrong.iter().any(|(bit, is_wrong)| mask & bit != 0 && *is_wrong) {
        return Err(Errno::INVALID);
    }
    Ok(())
}

/// Returns true if rdma_cm connects the application's own queue pair, or will do so.
const fn is_carried(has_id: bool, attr: &ibv_qp_attr, mask: u32) -> bool {
    has_id || mask & IBV_QP_AV == 0 || is_of_id(attr.dest_qp_num)
}

impl Qp {
    fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        fault::check(Call::ModifyQp)?;
        let from = self.state();
        let to = if mask & IBV_QP_STATE == 0 { from } else { attr.qp_state };
        // rdma_cm connects the queue pairs of its ids itself. For these, changes to INIT, RTR and
        // RTS are only recorded.
        let by_cm = self.id();
        let is_own = self.connects == Connects::Program;
        if is_own || matches!(to, IBV_QPS_ERR | IBV_QPS_RESET) {
            let required = required(from, to).ok_or(Errno::INVALID)?;
            // iWARP's connection manager sets fewer attributes: the application names no path.
            let by_iwarp = personality() == Personality::Iwarp && mask & IBV_QP_AV == 0;
            if mask & required != required && !by_iwarp {
                return Err(Errno::INVALID);
            }
        }
        check_values(attr, mask)?;
        match to {
            IBV_QPS_RESET => self.reset()?,
            IBV_QPS_ERR => {
                self.record(attr, mask, to);
                self.fail(by_cm.as_deref());
                return Ok(());
            }
            IBV_QPS_RTR if is_own && !is_carried(by_cm.is_some(), attr, mask) => {
                return self.link_up(attr, mask);
            }
            _ => {}
        }
        self.record(attr, mask, to);
        if to == IBV_QPS_RTS
            && from == IBV_QPS_RTR
            && let Some(link) = self.link()
        {
            link.sends(attr.sq_psn, attr.timeout, attr.retry_cnt);
        }
        Ok(())
    }

    /// Connects in the background: the other end may reach RTR later, even in this thread.
    fn link_up(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let local = address::local(&attr.ah_attr)?;
        let remote = address::remote(&attr.ah_attr, local.address)?;
        let terms = Terms {
            own: Name { address: local.address, number: self.number },
            peer: Name { address: remote, number: attr.dest_qp_num },
            interface_index: local.interface_index,
            ird: depth(attr.max_dest_rd_atomic),
            peer_psn: attr.rq_psn,
        };
        let link = Link::start(&self.context, self.c, self.inner().clone(), terms)?;
        self.record(attr, mask, IBV_QPS_RTR);
        *locked(&self.link) = Some(Arc::clone(&link));
        link.ready();
        Ok(())
    }

    fn fail(&self, id: Option<&dyn CarryingId>) {
        if let Some(link) = self.link() {
            link.abort();
        }
        if let Some(id) = id {
            self.flush();
            id.close();
        }
        self.inner().give_up(WcStatus::WrFlushErr);
        self.tell_last_wqe();
    }

    /// Flushes posted work; the connection closes in order.
    pub(crate) fn flush(&self) {
        // An endpoint that is down uses no memory.
        let _down = self.context.process.network.endpoint.release(&self.inner());
    }

    /// Drops the connection, and posted requests without completions.
    fn reset(&self) -> Result<(), Errno> {
        let fresh = self.pd.inner.create_qp(self.config.clone()).map_err(|_| Errno::NO_MEMORY)?;
        if let Some(link) = locked(&self.link).take() {
            link.abort();
        }
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *inner, fresh);
        self.send_side.alone(|side, _| side.reset(&inner));
        drop(inner);
        self.take_back(&before);
        locked(&self.fetches).clear();
        self.last_wqe_told.store(false, Ordering::Relaxed);
        *locked(&self.told) = ibv_qp_attr::zeroed();
        Ok(())
    }

    /// The connection closes in order, in the background.
    pub(super) fn leave_link(&self) {
        if let Some(link) = locked(&self.link).take() {
            link.end();
        }
    }

    /// Ends all work without completions: the application owns the memory again.
    pub(super) fn take_back(&self, inner: &urnic::Qp) {
        inner.discard_completions();
        if self.context.process.is_own() {
            // An endpoint that is down uses no memory.
            let _down = self.context.process.network.endpoint.release(inner);
        }
        inner.give_up(WcStatus::WrFlushErr);
        // The next queue pair may get the same number.
        self.pd.inner.unbind_at(inner);
    }

    pub(crate) fn record(&self, attr: &ibv_qp_attr, mask: u32, state: u32) {
        let mut told = locked(&self.told);
        self.told_state.store(state, Ordering::Release);
        if mask & IBV_QP_ACCESS_FLAGS != 0 && self.connects == Connects::Program {
            self.inner().set_remote_rights(remote_rights(attr.qp_access_flags));
        }
        macro_rules! record {
            ($($flag:ident: $($field:ident),+;)*) => {
                $(if mask & $flag != 0 { $(told.$field = attr.$field;)+ })*
            };
        }
        record! {
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_SQ_PSN: sq_psn;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_DEST_QPN: dest_qp_num;
        }
    }
}

/// # Safety
/// `of` is live, `attr` points at attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    of: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let pair = unsafe { qp(of) };
    // SAFETY: attributes, by this function's contract.
    let attr = unsafe { attr.read() };
    let modified = pair.modify(&attr, mask.cast_unsigned());
    if modified.is_ok() {
        // SAFETY: C's part of a live queue pair; C changes a queue pair in one thread at a time.
        unsafe { (*of).state = pair.state() };
    }
    number(modified)
}

/// Returns all attributes, whatever the mask.
///
/// # Safety
/// `of` is live; `attr` and `init` point at memory for the answer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    of: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let pair = unsafe { qp(of) };
    let mut answer = *locked(&pair.told);
    answer.qp_state = pair.state();
    answer.cur_qp_state = answer.qp_state;
    answer.cap = pair.cap;
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { attr.write(answer) };
    // SAFETY: C's part of a live queue pair.
    let c = unsafe { of.read() };
    let made = ibv_qp_init_attr {
        qp_context: c.qp_context,
        send_cq: c.send_cq,
        recv_cq: c.recv_cq,
        srq: c.srq,
        cap: pair.cap,
        qp_type: c.qp_type,
        sq_sig_all: c_int::from(pair.all_signaled),
    };
    // SAFETY: as above.
    unsafe { init.write(made) };
    0
}

/// Writes may be placed in any order (RFC 5041 §5.3).
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_the_rights_that_were_named_and_no_others() {
        let rights = [
            (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
            (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
            (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        ];
        for named in 0..8_usize {
            let is_named = |index: usize| named >> index & 1 != 0;
            let of = rights.iter().enumerate().filter(|(index, _)| is_named(*index));
            let (mut flags, mut expected) = (crate::abi::IBV_ACCESS_LOCAL_WRITE, Access::empty());
            for (_, (flag, right)) in of {
                flags |= flag;
                expected |= *right;
            }
            assert_eq!(remote_rights(flags), expected, "{flags:#x}");
        }
    }
}
