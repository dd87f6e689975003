//! States of a queue pair: attributes that each change requires, and refused values.

use super::super::modify::ibv_modify_qp;
use super::*;
use crate::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, ibv_qp_attr,
};
use crate::gid;

/// A queue pair that the application connects itself.
struct Own {
    end: End,
    qp: *mut ibv_qp,
    attr: ibv_qp_attr,
}

const STEPS: [(u32, &[u32]); 3] = [
    (IBV_QPS_INIT, &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS]),
    (
        IBV_QPS_RTR,
        &[
            IBV_QP_AV,
            IBV_QP_PATH_MTU,
            IBV_QP_DEST_QPN,
            IBV_QP_RQ_PSN,
            IBV_QP_MAX_DEST_RD_ATOMIC,
            IBV_QP_MIN_RNR_TIMER,
        ],
    ),
    (
        IBV_QPS_RTS,
        &[
            IBV_QP_SQ_PSN,
            IBV_QP_TIMEOUT,
            IBV_QP_RETRY_CNT,
            IBV_QP_RNR_RETRY,
            IBV_QP_MAX_QP_RD_ATOMIC,
        ],
    ),
];

impl Own {
    fn new() -> Self {
        let end = End::new(4);
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (end.cq, end.cq, IBV_QPT_RC);
        // SAFETY: live objects.
        let qp = unsafe { create(end.pd, &mut init, true, Connects::Program) }.unwrap();
        let mut attr = ibv_qp_attr::zeroed();
        attr.port_num = gid::PORT;
        attr.dest_qp_num = 0x00ff_ff01;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid.raw = gid::octets(gid::first_address());
        Self { end, qp, attr }
    }

    fn modify(&mut self, state: u32, mask: u32) -> c_int {
        self.attr.qp_state = state;
        let mask = (mask | IBV_QP_STATE).cast_signed();
        // SAFETY: a live queue pair, and attributes.
        unsafe { ibv_modify_qp(self.qp, &raw mut self.attr, mask) }
    }
}

#[test]
fn each_state_transition_requires_the_attributes_of_infiniband() {
    let mut own = Own::new();
    for (state, needed) in STEPS {
        let all = needed.iter().fold(0, |all, bit| all | bit);
        for bit in needed {
            assert_eq!(own.modify(state, all & !bit), libc::EINVAL, "{state} without {bit:#x}");
        }
        // No state can be skipped.
        for (later, bits) in STEPS.iter().filter(|(later, _)| *later > state) {
            let all = bits.iter().fold(all, |all, bit| all | bit);
            assert_eq!(own.modify(*later, all), libc::EINVAL, "{later} before {state}");
        }
        assert_eq!(own.modify(state, all), 0, "{state}");
    }
    assert_eq!((own.modify(IBV_QPS_ERR, 0), own.modify(IBV_QPS_RESET, 0)), (0, 0));
    assert_eq!(own.modify(IBV_QPS_RTS, 0), libc::EINVAL);
    assert!(own.end.poll().is_none());
}

#[test]
fn values_that_the_device_does_not_have_are_refused() {
    type Wrong = fn(&mut ibv_qp_attr);
    let steps = STEPS.map(|(state, bits)| (state, bits.iter().fold(0, |all, bit| all | bit)));
    let cases: [(usize, Wrong, Wrong); 5] = [
        (0, |attr| attr.port_num = 2, |attr| attr.port_num = 1),
        (0, |attr| attr.pkey_index = 1, |attr| attr.pkey_index = 0),
        (1, |attr| attr.dest_qp_num |= 1 << 24, |attr| attr.dest_qp_num = 0x00ff_ff01),
        (1, |attr| attr.max_dest_rd_atomic = 129, |attr| attr.max_dest_rd_atomic = 128),
        (2, |attr| attr.max_rd_atomic = 129, |attr| attr.max_rd_atomic = 128),
    ];
    let mut own = Own::new();
    for (step, (state, mask)) in steps.into_iter().enumerate() {
        for (_, wrong, right) in cases.iter().filter(|(of, ..)| *of == step) {
            wrong(&mut own.attr);
            assert_eq!(own.modify(state, mask), libc::EINVAL, "{state}");
            right(&mut own.attr);
        }
        assert_eq!(own.modify(state, mask), 0, "{state}");
    }
}
