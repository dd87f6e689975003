//! The engine's completions in C's words.

use urnic::{Wc, WcOpcode, WcStatus};

use crate::abi::{
    IBV_WC_BAD_RESP_ERR, IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GENERAL_ERR,
    IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOCAL_INV,
    IBV_WC_MW_BIND_ERR, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_imm,
};

/// The completion as C knows it.
pub(super) fn to_c(wc: &Wc) -> ibv_wc {
    let mut c = ibv_wc::zeroed();
    c.wr_id = wc.wr_id.0;
    c.status = status(wc.status);
    c.opcode = opcode(wc.opcode);
    c.byte_len = wc.byte_len;
    c.qp_num = wc.qp.0;
    if let Some(stag) = wc.invalidated {
        c.wc_flags = IBV_WC_WITH_INV;
        c.imm = ibv_wc_imm { invalidated_rkey: stag.0 };
    }
    if matches!(wc.opcode, WcOpcode::RecvSendImmediate | WcOpcode::RecvWriteImmediate) {
        c.wc_flags = IBV_WC_WITH_IMM;
        // 32 bits, which the program has in network order.
        let immediate = u32::try_from(wc.value).unwrap_or(0);
        c.imm = ibv_wc_imm { imm_data: immediate.to_be() };
    }
    c
}

const fn status(status: WcStatus) -> u32 {
    match status {
        WcStatus::Success => IBV_WC_SUCCESS,
        WcStatus::LocLenErr => IBV_WC_LOC_LEN_ERR,
        WcStatus::LocProtErr => IBV_WC_LOC_PROT_ERR,
        WcStatus::LocQpOpErr => IBV_WC_LOC_QP_OP_ERR,
        WcStatus::MwBindErr => IBV_WC_MW_BIND_ERR,
        WcStatus::BadRespErr => IBV_WC_BAD_RESP_ERR,
        WcStatus::RemAccessErr => IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemInvReqErr => IBV_WC_REM_INV_REQ_ERR,
        WcStatus::RemOpErr => IBV_WC_REM_OP_ERR,
        WcStatus::RetryExcErr => IBV_WC_RETRY_EXC_ERR,
        WcStatus::WrFlushErr => IBV_WC_WR_FLUSH_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

const fn opcode(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::RdmaWrite => IBV_WC_RDMA_WRITE,
        WcOpcode::RdmaRead => IBV_WC_RDMA_READ,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::CmpSwap => IBV_WC_COMP_SWAP,
        WcOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        WcOpcode::BindMw => IBV_WC_BIND_MW,
        WcOpcode::Recv | WcOpcode::RecvImmediate | WcOpcode::RecvSendImmediate => IBV_WC_RECV,
        WcOpcode::RecvWriteImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
        _ => IBV_WC_SEND,
    }
}
