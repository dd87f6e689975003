//! Converts the engine's completions to C's.

use urnic::{Wc, WcOpcode, WcStatus};

use crate::abi::{
    IBV_WC_BAD_RESP_ERR, IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GENERAL_ERR,
    IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOCAL_INV,
    IBV_WC_MW_BIND_ERR, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_imm,
};

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
        // 32 bits, in network order for the application.
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

#[cfg(test)]
mod tests {
    use urnic::{QpNum, Stag, WrId};

    use super::*;

    /// Every status and opcode of the engine, with its number in verbs.h.
    #[test]
    fn statuses_and_opcodes_are_those_of_infiniband() {
        for (engines, of_c, number) in [
            (WcStatus::Success, IBV_WC_SUCCESS, 0),
            (WcStatus::LocLenErr, IBV_WC_LOC_LEN_ERR, 1),
            (WcStatus::LocQpOpErr, IBV_WC_LOC_QP_OP_ERR, 2),
            (WcStatus::LocProtErr, IBV_WC_LOC_PROT_ERR, 4),
            (WcStatus::WrFlushErr, IBV_WC_WR_FLUSH_ERR, 5),
            (WcStatus::MwBindErr, IBV_WC_MW_BIND_ERR, 6),
            (WcStatus::BadRespErr, IBV_WC_BAD_RESP_ERR, 7),
            (WcStatus::RemInvReqErr, IBV_WC_REM_INV_REQ_ERR, 9),
            (WcStatus::RemAccessErr, IBV_WC_REM_ACCESS_ERR, 10),
            (WcStatus::RemOpErr, IBV_WC_REM_OP_ERR, 11),
            (WcStatus::RetryExcErr, IBV_WC_RETRY_EXC_ERR, 12),
        ] {
            assert_eq!((status(engines), of_c), (number, number), "{engines:?}");
        }
        for (engines, of_c, number) in [
            (WcOpcode::Send, IBV_WC_SEND, 0),
            (WcOpcode::RdmaWrite, IBV_WC_RDMA_WRITE, 1),
            (WcOpcode::RdmaRead, IBV_WC_RDMA_READ, 2),
            (WcOpcode::CmpSwap, IBV_WC_COMP_SWAP, 3),
            (WcOpcode::FetchAdd, IBV_WC_FETCH_ADD, 4),
            (WcOpcode::BindMw, IBV_WC_BIND_MW, 5),
            (WcOpcode::LocalInvalidate, IBV_WC_LOCAL_INV, 6),
            (WcOpcode::Recv, IBV_WC_RECV, 128),
            (WcOpcode::RecvImmediate, IBV_WC_RECV, 128),
            (WcOpcode::RecvSendImmediate, IBV_WC_RECV, 128),
            (WcOpcode::RecvWriteImmediate, IBV_WC_RECV_RDMA_WITH_IMM, 129),
        ] {
            assert_eq!((opcode(engines), of_c), (number, number), "{engines:?}");
        }
    }

    #[test]
    fn completion_fields_survive_conversion() {
        let wc = Wc {
            wr_id: WrId(0x1122_3344_5566_7788),
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            qp: QpNum(0x0012_3456),
            byte_len: 77,
            solicited: false,
            invalidated: Some(Stag(0xaabb_ccdd)),
            value: 0,
        };
        let c = to_c(&wc);
        assert_eq!((c.wr_id, c.byte_len, c.qp_num), (wc.wr_id.0, 77, 0x0012_3456));
        assert_eq!(c.wc_flags, IBV_WC_WITH_INV);
        // SAFETY: the flag says which field it is.
        assert_eq!(unsafe { c.imm.invalidated_rkey }, 0xaabb_ccdd);
        let plain = to_c(&Wc { invalidated: None, ..wc });
        assert_eq!(plain.wc_flags, 0);
        for opcode in [WcOpcode::RecvSendImmediate, WcOpcode::RecvWriteImmediate] {
            let c = to_c(&Wc { opcode, invalidated: None, value: 0x0102_0304, ..wc });
            assert_eq!(c.wc_flags, IBV_WC_WITH_IMM);
            // SAFETY: as above.
            assert_eq!(unsafe { c.imm.imm_data }.to_ne_bytes(), [1, 2, 3, 4]);
        }
    }
}
