//! Connections with a queue pair that the application made and moves to each state itself, with the
//! attributes of `rdma_init_qp_attr`. The parameters of `rdma_connect` and `rdma_accept` name it by
//! its number. If the number names no queue pair of this process, the id connects with an unused
//! one: some applications use rdma_cm only to exchange private data.
#![expect(unsafe_code, reason = "C's pointers to ids and attributes")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::c_int;
use urnic::{Access, QpConfig, QpRules};

use super::id::{Depths, Id, Phase, id};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_MTU_4096, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    ibv_qp_attr, rdma_cm_id, rdma_conn_param,
};
use crate::device::{Personality, personality};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::gid::{self, PORT};
use crate::process::{Process, process};
use crate::qp::Qp;

fn octet(depth: u16) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}

impl Id {
    /// Returns the id's queue pair, the one that the application names, or an unused one.
    pub(super) fn carrier(
        self: &Arc<Self>,
        param: Option<&rdma_conn_param>,
    ) -> Result<urnic::Qp, Errno> {
        if let Some(qp) = &*locked(&self.qp) {
            return Ok(qp.inner().clone());
        }
        if let Some(qp) = self.of_socket.get().and_then(|of_socket| of_socket.qp.get()) {
            return Ok(qp.clone());
        }
        // As in rdma-core, parameters must name a queue pair if the id has none.
        let number = param.ok_or(Errno::INVALID)?.qp_num;
        let process = process()?;
        self.has_own_qp.store(true, Ordering::Release);
        let named = Qp::by_number(&process, number).filter(|pair| pair.may_be_carried());
        let Some(pair) = named else { return bare(&process) };
        let id = Arc::downgrade(self);
        pair.set_id(id);
        let carrier = pair.inner().clone();
        *locked(&self.qp) = Some(pair);
        Ok(carrier)
    }

    /// MPA does not carry the real number (RFC 5044 §7.1), so the library chooses one, in the range
    /// that marks a connection by rdma_cm.
    pub(super) fn number_of_peer(&self) -> u32 {
        if personality() == Personality::Iwarp {
            // As the kernel reports it for iWARP.
            return 0;
        }
        let number = || process().map_or(1, |process| process.numbers.next_of_ids());
        *self.number_of_peer.get_or_init(number)
    }

    fn can_be_ready(&self) -> Readiness {
        match &*locked(&self.phase) {
            Phase::Requested(_) | Phase::Connected(_) => Readiness::Peer,
            Phase::Connecting(_) if self.accepted.load(Ordering::Acquire) => Readiness::Peer,
            Phase::Connecting(_) | Phase::Refused => Readiness::Asked,
            _ => Readiness::None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// No request was sent or received.
    None,
    /// The peer has not answered.
    Asked,
    /// The peer's parameters are known.
    Peer,
}

/// Nothing is sent on its stream. Its peer has no right to memory.
fn bare(process: &Process) -> Result<urnic::Qp, Errno> {
    let cq = process.rnic.create_cq(1).map_err(|_| Errno::NO_MEMORY)?;
    let config =
        QpConfig { send_depth: 1, recv_depth: 1, rules: QpRules::InfiniBand, ..QpConfig::new(&cq) };
    let made = process.rnic.alloc_pd().create_qp(config).map_err(|_| Errno::NO_MEMORY)?;
    made.set_remote_rights(Access::empty());
    Ok(made)
}

/// Fills in what InfiniBand's connection manager does (`ib_cm_init_qp_attr` of Linux).
fn infiniband(id: &Id, attr: &mut ibv_qp_attr) -> Result<u32, Errno> {
    let known = id.can_be_ready();
    let Depths { responder_resources, initiator_depth } = *locked(&id.depths);
    (attr.port_num, attr.pkey_index) = (PORT, 0);
    if attr.qp_state == IBV_QPS_INIT || known == Readiness::None {
        if known != Readiness::None {
            attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        }
        if known != Readiness::None && responder_resources > 0 {
            attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        }
        return Ok(IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    }
    if known != Readiness::Peer {
        return Err(Errno::INVALID);
    }
    if attr.qp_state == IBV_QPS_RTR {
        // SAFETY: C's part of a live id.
        let route = unsafe { (*id.c.0).route.addr };
        // SAFETY: a union of one field, of bytes.
        let gids = unsafe { route.addr.ibaddr };
        // SAFETY: 16 bytes by either name.
        let local = gid::address(unsafe { gids.sgid.raw });
        let index = gid::table().iter().position(|entry| entry.address == local);
        attr.path_mtu = IBV_MTU_4096;
        attr.dest_qp_num = id.number_of_peer();
        attr.rq_psn = id.number_of_peer();
        attr.max_dest_rd_atomic = octet(responder_resources);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = PORT;
        attr.ah_attr.grh.dgid = gids.dgid;
        attr.ah_attr.grh.sgid_index = index.and_then(|index| index.try_into().ok()).unwrap_or(0);
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        return Ok(IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER);
    }
    if attr.qp_state != IBV_QPS_RTS {
        return Err(Errno::INVALID);
    }
    attr.sq_psn = id.number_of_peer();
    attr.timeout = locked(&id.options).ack_timeout;
    (attr.retry_cnt, attr.rnr_retry) = (RETRIES, RETRIES);
    attr.max_rd_atomic = octet(initiator_depth);
    Ok(IBV_QP_SQ_PSN
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_MAX_QP_RD_ATOMIC)
}

/// Fills in what iWARP's connection manager does (`iw_cm_init_qp_attr`).
fn iwarp(id: &Id, attr: &mut ibv_qp_attr) -> Result<u32, Errno> {
    match attr.qp_state {
        IBV_QPS_INIT | IBV_QPS_RTR => {
            if id.can_be_ready() != Readiness::None {
                attr.qp_access_flags =
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
            }
            Ok(IBV_QP_ACCESS_FLAGS)
        }
        IBV_QPS_RTS => Ok(0),
        _ => Err(Errno::INVALID),
    }
}

impl Id {
    pub(super) fn record_attributes(&self, qp: &Qp) {
        for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
            let mut attr = ibv_qp_attr::zeroed();
            attr.qp_state = state;
            if let Ok(mask) = infiniband(self, &mut attr) {
                qp.record(&attr, mask, IBV_QPS_RTS);
            }
        }
    }
}

const HOP_LIMIT: u8 = 64;
const RETRIES: u8 = 7;

/// # Safety
/// `of` is live, `attr` points at attributes, `mask` at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    of: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let asked = unsafe { id(of) };
    // SAFETY: C's part of a live id.
    if unsafe { (*of).verbs }.is_null() {
        return minus_one(Err(Errno::INVALID));
    }
    let mut said = ibv_qp_attr::zeroed();
    // SAFETY: attributes of the application, whose state is set.
    said.qp_state = unsafe { (*attr).qp_state };
    let told = match personality() {
        Personality::Ib => infiniband(asked, &mut said),
        Personality::Iwarp => iwarp(asked, &mut said),
    };
    minus_one(told.map(|told| {
        // SAFETY: the caller's memory for the answer, by this function's contract.
        unsafe { attr.write(said) };
        // SAFETY: as above.
        unsafe { mask.write((told | IBV_QP_STATE).cast_signed()) };
    }))
}

/// Only checks that the call is expected. MPA's ready-to-receive message was sent when the peer's
/// Reply arrived (RFC 6581 §9.2), before the application's queue pair was ready: messages of the
/// peer wait until a receive is posted.
///
/// # Safety
/// `of` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(of: *mut rdma_cm_id) -> c_int {
    // SAFETY: live, by this function's contract.
    let establishing = unsafe { id(of) };
    let awaits = establishing.awaits_establish.swap(false, Ordering::AcqRel);
    // SAFETY: C's part of a live id.
    let has_qp = !unsafe { (*of).qp }.is_null();
    minus_one(if awaits && !has_qp { Ok(()) } else { Err(Errno::INVALID) })
}
