//! The connection manager: `rdma_cm_id`, events, parameters, addresses, and the kernel's forms of
//! addresses and paths.

use libc::{
    c_char, c_int, c_uint, c_void, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t,
};

use super::{ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq};

c_types! {
    CM_TYPES;

    struct rdma_ib_addr: 40 {
        0 sgid: ibv_gid,
        16 dgid: ibv_gid,
        32 pkey: u16,
    }

    union rdma_addr_src as "": 128 {
        0 src_addr: sockaddr,
        0 src_sin: sockaddr_in,
        0 src_sin6: sockaddr_in6,
        0 src_storage: sockaddr_storage,
    }

    union rdma_addr_dst as "": 128 {
        0 dst_addr: sockaddr,
        0 dst_sin: sockaddr_in,
        0 dst_sin6: sockaddr_in6,
        0 dst_storage: sockaddr_storage,
    }

    union rdma_addr_addr as "__typeof__(((struct rdma_addr *)0)->addr)": 40 {
        0 ibaddr: rdma_ib_addr,
    }

    struct rdma_addr: 296 {
        0 src as "src_storage": rdma_addr_src,
        128 dst as "dst_storage": rdma_addr_dst,
        256 addr: rdma_addr_addr,
    }

    struct rdma_route: 312 {
        0 addr: rdma_addr,
        296 path_rec: *mut ibv_sa_path_rec,
        304 num_paths: c_int,
    }

    struct rdma_event_channel: 4 {
        0 fd: c_int,
    }

    /// A connection id, which is to rdma_cm what a socket is to TCP.
    struct rdma_cm_id: 416 {
        0 verbs: *mut ibv_context,
        8 channel: *mut rdma_event_channel,
        16 context: *mut c_void,
        24 qp: *mut ibv_qp,
        32 route: rdma_route,
        344 ps: c_uint,
        348 port_num: u8,
        352 event: *mut rdma_cm_event,
        360 send_cq_channel: *mut ibv_comp_channel,
        368 send_cq: *mut ibv_cq,
        376 recv_cq_channel: *mut ibv_comp_channel,
        384 recv_cq: *mut ibv_cq,
        392 srq: *mut ibv_srq,
        400 pd: *mut ibv_pd,
        408 qp_type: c_uint,
    }

    struct rdma_conn_param: 24 {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        9 responder_resources: u8,
        10 initiator_depth: u8,
        11 flow_control: u8,
        12 retry_count: u8,
        13 rnr_retry_count: u8,
        14 srq: u8,
        16 qp_num: u32,
    }

    struct rdma_ud_param: 56 {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        16 ah_attr: ibv_ah_attr,
        48 qp_num: u32,
        52 qkey: u32,
    }

    union rdma_cm_event_param as "__typeof__(((struct rdma_cm_event *)0)->param)": 56 {
        0 conn: rdma_conn_param,
        0 ud: rdma_ud_param,
    }

    struct rdma_cm_event: 80 {
        0 id: *mut rdma_cm_id,
        8 listen_id: *mut rdma_cm_id,
        16 event: c_uint,
        20 status: c_int,
        24 param: rdma_cm_event_param,
    }

    struct rdma_addrinfo: 96 {
        0 ai_flags: c_int,
        4 ai_family: c_int,
        8 ai_qp_type: c_int,
        12 ai_port_space: c_int,
        16 ai_src_len: socklen_t,
        20 ai_dst_len: socklen_t,
        24 ai_src_addr: *mut sockaddr,
        32 ai_dst_addr: *mut sockaddr,
        40 ai_src_canonname: *mut c_char,
        48 ai_dst_canonname: *mut c_char,
        56 ai_route_len: usize,
        64 ai_route: *mut c_void,
        72 ai_connect_len: usize,
        80 ai_connect: *mut c_void,
        88 ai_next: *mut rdma_addrinfo,
    }

    struct rdma_cm_join_mc_attr_ex: 16 {
        0 comp_mask: u32,
        4 join_flags: u32,
        8 addr: *mut sockaddr,
    }

    struct ibv_sa_path_rec: 64 {
        0 dgid: ibv_gid,
        16 sgid: ibv_gid,
        32 dlid: u16,
        34 slid: u16,
        36 raw_traffic: c_int,
        40 flow_label: u32,
        44 hop_limit: u8,
        45 traffic_class: u8,
        48 reversible: c_int,
        52 numb_path: u8,
        54 pkey: u16,
        56 sl: u8,
        57 mtu_selector: u8,
        58 mtu: u8,
        59 rate_selector: u8,
        60 rate: u8,
        61 packet_life_time_selector: u8,
        62 packet_life_time: u8,
        63 preference: u8,
    }

    /// A path in the kernel's form.
    struct ib_user_path_rec: 64 {
        0 dgid: [u8; 16],
        16 sgid: [u8; 16],
        32 dlid: u16,
        34 slid: u16,
        36 raw_traffic: u32,
        40 flow_label: u32,
        44 reversible: u32,
        48 mtu: u32,
        52 pkey: u16,
        54 hop_limit: u8,
        55 traffic_class: u8,
        56 numb_path: u8,
        57 sl: u8,
        58 mtu_selector: u8,
        59 rate_selector: u8,
        60 rate: u8,
        61 packet_life_time_selector: u8,
        62 packet_life_time: u8,
        63 preference: u8,
    }

    struct ib_uverbs_global_route: 24 {
        0 dgid: [u8; 16],
        16 flow_label: u32,
        20 sgid_index: u8,
        21 hop_limit: u8,
        22 traffic_class: u8,
        23 reserved: u8,
    }

    struct ib_uverbs_ah_attr: 32 {
        0 grh: ib_uverbs_global_route,
        24 dlid: u16,
        26 sl: u8,
        27 src_path_bits: u8,
        28 static_rate: u8,
        29 is_global: u8,
        30 port_num: u8,
        31 reserved: u8,
    }

    struct ib_uverbs_qp_attr: 144 {
        0 qp_attr_mask: u32,
        4 qp_state: u32,
        8 cur_qp_state: u32,
        12 path_mtu: u32,
        16 path_mig_state: u32,
        20 qkey: u32,
        24 rq_psn: u32,
        28 sq_psn: u32,
        32 dest_qp_num: u32,
        36 qp_access_flags: u32,
        40 ah_attr: ib_uverbs_ah_attr,
        72 alt_ah_attr: ib_uverbs_ah_attr,
        104 max_send_wr: u32,
        108 max_recv_wr: u32,
        112 max_send_sge: u32,
        116 max_recv_sge: u32,
        120 max_inline_data: u32,
        124 pkey_index: u16,
        126 alt_pkey_index: u16,
        128 en_sqd_async_notify: u8,
        129 sq_draining: u8,
        130 max_rd_atomic: u8,
        131 max_dest_rd_atomic: u8,
        132 min_rnr_timer: u8,
        133 port_num: u8,
        134 timeout: u8,
        135 retry_cnt: u8,
        136 rnr_retry: u8,
        137 alt_port_num: u8,
        138 alt_timeout: u8,
        139 reserved: [u8; 5],
    }
}

c_constants! {
    CM_CONSTANTS;

    RDMA_CM_EVENT_ADDR_RESOLVED: u32 = 0;
    RDMA_CM_EVENT_ADDR_ERROR: u32 = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED: u32 = 2;
    RDMA_CM_EVENT_ROUTE_ERROR: u32 = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST: u32 = 4;
    RDMA_CM_EVENT_CONNECT_RESPONSE: u32 = 5;
    RDMA_CM_EVENT_CONNECT_ERROR: u32 = 6;
    RDMA_CM_EVENT_UNREACHABLE: u32 = 7;
    RDMA_CM_EVENT_REJECTED: u32 = 8;
    RDMA_CM_EVENT_ESTABLISHED: u32 = 9;
    RDMA_CM_EVENT_DISCONNECTED: u32 = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL: u32 = 11;
    RDMA_CM_EVENT_MULTICAST_JOIN: u32 = 12;
    RDMA_CM_EVENT_MULTICAST_ERROR: u32 = 13;
    RDMA_CM_EVENT_ADDR_CHANGE: u32 = 14;
    RDMA_CM_EVENT_TIMEWAIT_EXIT: u32 = 15;

    RDMA_PS_IPOIB: u32 = 2;
    RDMA_PS_TCP: u32 = 262;
    RDMA_PS_UDP: u32 = 273;
    RDMA_PS_IB: u32 = 319;

    // Special values for the device's maximum.
    RDMA_MAX_RESP_RES: u8 = 255;
    RDMA_MAX_INIT_DEPTH: u8 = 255;

    RAI_PASSIVE: c_int = 1;
    RAI_NUMERICHOST: c_int = 1 << 1;
    RAI_NOROUTE: c_int = 1 << 2;
    RAI_FAMILY: c_int = 1 << 3;

    RDMA_OPTION_ID: c_int = 0;
    RDMA_OPTION_ID_TOS: c_int = 0;
    RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    RDMA_OPTION_ID_AFONLY: c_int = 2;
    RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

    SOL_RDMA: c_int = 0x0001_0000;
    RDMA_SQSIZE: c_int = 0;
    RDMA_RQSIZE: c_int = 1;
    RDMA_INLINE: c_int = 2;
    RDMA_IOMAPSIZE: c_int = 3;
}
