//! Work requests and completions: `ibv_send_wr`, `ibv_recv_wr`, `ibv_wc`, completion queues.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use super::{ibv_ah, ibv_comp_channel, ibv_context, ibv_mw, ibv_mw_bind_info, ibv_pd};

c_types! {
    WORK_TYPES;

    struct ibv_sge: 16 {
        0 addr: u64,
        8 length: u32,
        12 lkey: u32,
    }

    struct ibv_data_buf: 16 {
        0 addr: *mut c_void,
        8 length: usize,
    }

    union ibv_send_wr_imm as "": 4 {
        0 imm_data: u32,
        0 invalidate_rkey: u32,
    }

    struct ibv_send_wr_rdma as "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)": 16 {
        0 remote_addr: u64,
        8 rkey: u32,
    }

    struct ibv_send_wr_atomic as "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)": 32 {
        0 remote_addr: u64,
        8 compare_add: u64,
        16 swap: u64,
        24 rkey: u32,
    }

    struct ibv_send_wr_ud as "__typeof__(((struct ibv_send_wr *)0)->wr.ud)": 16 {
        0 ah: *mut ibv_ah,
        8 remote_qpn: u32,
        12 remote_qkey: u32,
    }

    union ibv_send_wr_wr as "__typeof__(((struct ibv_send_wr *)0)->wr)": 32 {
        0 rdma: ibv_send_wr_rdma,
        0 atomic: ibv_send_wr_atomic,
        0 ud: ibv_send_wr_ud,
    }

    struct ibv_send_wr_xrc as "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)": 4 {
        0 remote_srqn: u32,
    }

    union ibv_send_wr_qp_type as "__typeof__(((struct ibv_send_wr *)0)->qp_type)": 4 {
        0 xrc: ibv_send_wr_xrc,
    }

    struct ibv_send_wr_bind_mw as "__typeof__(((struct ibv_send_wr *)0)->bind_mw)": 48 {
        0 mw: *mut ibv_mw,
        8 rkey: u32,
        16 bind_info: ibv_mw_bind_info,
    }

    struct ibv_send_wr_tso as "__typeof__(((struct ibv_send_wr *)0)->tso)": 16 {
        0 hdr: *mut c_void,
        8 hdr_sz: u16,
        10 mss: u16,
    }

    union ibv_send_wr_bind as "": 48 {
        0 bind_mw: ibv_send_wr_bind_mw,
        0 tso: ibv_send_wr_tso,
    }

    struct ibv_send_wr: 128 {
        0 wr_id: u64,
        8 next: *mut ibv_send_wr,
        16 sg_list: *mut ibv_sge,
        24 num_sge: c_int,
        28 opcode: c_uint,
        32 send_flags: c_uint,
        36 imm as "imm_data": ibv_send_wr_imm,
        40 wr: ibv_send_wr_wr,
        72 qp_type: ibv_send_wr_qp_type,
        80 bind as "bind_mw": ibv_send_wr_bind,
    }

    struct ibv_recv_wr: 32 {
        0 wr_id: u64,
        8 next: *mut ibv_recv_wr,
        16 sg_list: *mut ibv_sge,
        24 num_sge: c_int,
    }

    union ibv_wc_imm as "": 4 {
        0 imm_data: u32,
        0 invalidated_rkey: u32,
    }

    struct ibv_wc: 48 {
        0 wr_id: u64,
        8 status: c_uint,
        12 opcode: c_uint,
        16 vendor_err: u32,
        20 byte_len: u32,
        24 imm as "imm_data": ibv_wc_imm,
        28 qp_num: u32,
        32 src_qp: u32,
        36 wc_flags: c_uint,
        40 pkey_index: u16,
        42 slid: u16,
        44 sl: u8,
        45 dlid_path_bits: u8,
    }

    struct ibv_cq: 128 {
        0 context: *mut ibv_context,
        8 channel: *mut ibv_comp_channel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: pthread_mutex_t,
        72 cond: pthread_cond_t,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
    }

    struct ibv_cq_init_attr_ex: 56 {
        0 cqe: u32,
        8 cq_context: *mut c_void,
        16 channel: *mut ibv_comp_channel,
        24 comp_vector: u32,
        32 wc_flags: u64,
        40 comp_mask: u32,
        44 flags: u32,
        48 parent_domain: *mut ibv_pd,
    }

    /// Number of completions, and time, before an event.
    struct ibv_moderate_cq: 4 {
        0 cq_count: u16,
        2 cq_period: u16,
    }

    struct ibv_modify_cq_attr: 8 {
        0 attr_mask: u32,
        4 moderate: ibv_moderate_cq,
    }
}

c_constants! {
    WORK_CONSTANTS;

    IBV_WR_RDMA_WRITE: u32 = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
    IBV_WR_SEND: u32 = 2;
    IBV_WR_SEND_WITH_IMM: u32 = 3;
    IBV_WR_RDMA_READ: u32 = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
    IBV_WR_LOCAL_INV: u32 = 7;
    IBV_WR_BIND_MW: u32 = 8;
    IBV_WR_SEND_WITH_INV: u32 = 9;

    IBV_SEND_FENCE: u32 = 1;
    IBV_SEND_SIGNALED: u32 = 1 << 1;
    IBV_SEND_SOLICITED: u32 = 1 << 2;
    IBV_SEND_INLINE: u32 = 1 << 3;

    IBV_WC_SUCCESS: u32 = 0;
    IBV_WC_LOC_LEN_ERR: u32 = 1;
    IBV_WC_LOC_QP_OP_ERR: u32 = 2;
    IBV_WC_LOC_PROT_ERR: u32 = 4;
    IBV_WC_WR_FLUSH_ERR: u32 = 5;
    IBV_WC_MW_BIND_ERR: u32 = 6;
    IBV_WC_BAD_RESP_ERR: u32 = 7;
    IBV_WC_REM_INV_REQ_ERR: u32 = 9;
    IBV_WC_REM_ACCESS_ERR: u32 = 10;
    IBV_WC_REM_OP_ERR: u32 = 11;
    IBV_WC_RETRY_EXC_ERR: u32 = 12;
    IBV_WC_GENERAL_ERR: u32 = 21;

    IBV_WC_SEND: u32 = 0;
    IBV_WC_RDMA_WRITE: u32 = 1;
    IBV_WC_RDMA_READ: u32 = 2;
    IBV_WC_COMP_SWAP: u32 = 3;
    IBV_WC_FETCH_ADD: u32 = 4;
    IBV_WC_BIND_MW: u32 = 5;
    IBV_WC_LOCAL_INV: u32 = 6;
    IBV_WC_RECV: u32 = 128;
    IBV_WC_RECV_RDMA_WITH_IMM: u32 = 129;

    // Flags of completions.
    IBV_WC_WITH_IMM: u32 = 1 << 1;
    IBV_WC_WITH_INV: u32 = 1 << 3;

    // Fields of completions that an `ibv_cq_ex` must have.
    IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

    IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
    IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;
}
