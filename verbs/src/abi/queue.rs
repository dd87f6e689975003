//! Queue pairs and shared receive queues: objects, attributes, masks.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use super::{ibv_ah_attr, ibv_context, ibv_cq, ibv_pd, ibv_rwq_ind_table, ibv_xrcd};

c_types! {
    QUEUE_TYPES;

    struct ibv_srq: 128 {
        0 context: *mut ibv_context,
        8 srq_context: *mut c_void,
        16 pd: *mut ibv_pd,
        24 handle: u32,
        32 mutex: pthread_mutex_t,
        72 cond: pthread_cond_t,
        120 events_completed: u32,
    }

    struct ibv_srq_attr: 12 {
        0 max_wr: u32,
        4 max_sge: u32,
        8 srq_limit: u32,
    }

    struct ibv_srq_init_attr: 24 {
        0 srq_context: *mut c_void,
        8 attr: ibv_srq_attr,
    }

    struct ibv_tm_cap: 8 {
        0 max_num_tags: u32,
        4 max_ops: u32,
    }

    struct ibv_srq_init_attr_ex: 64 {
        0 srq_context: *mut c_void,
        8 attr: ibv_srq_attr,
        20 comp_mask: u32,
        24 srq_type: c_uint,
        32 pd: *mut ibv_pd,
        40 xrcd: *mut ibv_xrcd,
        48 cq: *mut ibv_cq,
        56 tm_cap: ibv_tm_cap,
    }

    struct ibv_qp: 160 {
        0 context: *mut ibv_context,
        8 qp_context: *mut c_void,
        16 pd: *mut ibv_pd,
        24 send_cq: *mut ibv_cq,
        32 recv_cq: *mut ibv_cq,
        40 srq: *mut ibv_srq,
        48 handle: u32,
        52 qp_num: u32,
        56 state: c_uint,
        60 qp_type: c_uint,
        64 mutex: pthread_mutex_t,
        104 cond: pthread_cond_t,
        152 events_completed: u32,
    }

    struct ibv_qp_cap: 20 {
        0 max_send_wr: u32,
        4 max_recv_wr: u32,
        8 max_send_sge: u32,
        12 max_recv_sge: u32,
        16 max_inline_data: u32,
    }

    struct ibv_qp_init_attr: 64 {
        0 qp_context: *mut c_void,
        8 send_cq: *mut ibv_cq,
        16 recv_cq: *mut ibv_cq,
        24 srq: *mut ibv_srq,
        32 cap: ibv_qp_cap,
        52 qp_type: c_uint,
        56 sq_sig_all: c_int,
    }

    struct ibv_rx_hash_conf: 24 {
        0 rx_hash_function: u8,
        1 rx_hash_key_len: u8,
        8 rx_hash_key: *mut u8,
        16 rx_hash_fields_mask: u64,
    }

    /// Attributes for a queue pair, beginning with those of `ibv_qp_init_attr`.
    struct ibv_qp_init_attr_ex: 136 {
        0 qp_context: *mut c_void,
        8 send_cq: *mut ibv_cq,
        16 recv_cq: *mut ibv_cq,
        24 srq: *mut ibv_srq,
        32 cap: ibv_qp_cap,
        52 qp_type: c_uint,
        56 sq_sig_all: c_int,
        60 comp_mask: u32,
        64 pd: *mut ibv_pd,
        72 xrcd: *mut ibv_xrcd,
        80 create_flags: u32,
        84 max_tso_header: u16,
        88 rwq_ind_tbl: *mut ibv_rwq_ind_table,
        96 rx_hash_conf: ibv_rx_hash_conf,
        120 source_qpn: u32,
        128 send_ops_flags: u64,
    }

    struct ibv_qp_attr: 144 {
        0 qp_state: c_uint,
        4 cur_qp_state: c_uint,
        8 path_mtu: c_uint,
        12 path_mig_state: c_uint,
        16 qkey: u32,
        20 rq_psn: u32,
        24 sq_psn: u32,
        28 dest_qp_num: u32,
        32 qp_access_flags: c_uint,
        36 cap: ibv_qp_cap,
        56 ah_attr: ibv_ah_attr,
        88 alt_ah_attr: ibv_ah_attr,
        120 pkey_index: u16,
        122 alt_pkey_index: u16,
        124 en_sqd_async_notify: u8,
        125 sq_draining: u8,
        126 max_rd_atomic: u8,
        127 max_dest_rd_atomic: u8,
        128 min_rnr_timer: u8,
        129 port_num: u8,
        130 timeout: u8,
        131 retry_cnt: u8,
        132 rnr_retry: u8,
        133 alt_port_num: u8,
        134 alt_timeout: u8,
        136 rate_limit: u32,
    }
}

c_constants! {
    QUEUE_CONSTANTS;

    IBV_SRQ_MAX_WR: u32 = 1;
    IBV_SRQ_LIMIT: u32 = 1 << 1;

    IBV_SRQT_BASIC: u32 = 0;

    IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
    IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;

    IBV_QPT_RC: u32 = 2;
    IBV_QPT_UC: u32 = 3;
    IBV_QPS_RESET: u32 = 0;
    IBV_QPS_INIT: u32 = 1;
    IBV_QPS_RTR: u32 = 2;
    IBV_QPS_RTS: u32 = 3;
    IBV_QPS_SQD: u32 = 4;
    IBV_QPS_ERR: u32 = 6;

    IBV_QP_INIT_ATTR_PD: u32 = 1;
    IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

    IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
    IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
    IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    IBV_QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
    IBV_QP_EX_WITH_BIND_MW: u64 = 1 << 8;
    IBV_QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;

    IBV_QP_STATE: u32 = 1;
    IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
    IBV_QP_PKEY_INDEX: u32 = 1 << 4;
    IBV_QP_PORT: u32 = 1 << 5;
    IBV_QP_AV: u32 = 1 << 7;
    IBV_QP_PATH_MTU: u32 = 1 << 8;
    IBV_QP_TIMEOUT: u32 = 1 << 9;
    IBV_QP_RETRY_CNT: u32 = 1 << 10;
    IBV_QP_RNR_RETRY: u32 = 1 << 11;
    IBV_QP_RQ_PSN: u32 = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    IBV_QP_MIN_RNR_TIMER: u32 = 1 << 15;
    IBV_QP_SQ_PSN: u32 = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    IBV_QP_DEST_QPN: u32 = 1 << 20;
}
