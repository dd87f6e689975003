//! The extended interface: `verbs_context`, which lies before an `ibv_context`, `ibv_qp_ex`,
//! `ibv_cq_ex`, and the extended attributes of a device.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, timespec};

use super::{
    ibv_ah, ibv_alloc_dm_attr, ibv_comp_channel, ibv_context, ibv_counter_attach_attr,
    ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_cq_init_attr_ex, ibv_data_buf,
    ibv_device_attr, ibv_dm, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr,
    ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_ops_wr, ibv_parent_domain_init_attr,
    ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td,
    ibv_td_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
    verbs_ex_private,
};

c_types! {
    EXTENDED_TYPES;

    /// An open device: operations that inline functions call if not NULL and within `sz`.
    struct verbs_context: 648 {
        0 query_port: op!(fn(
            context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr,
            port_attr_len: usize
        ) -> c_int),
        8 advise_mr: op!(fn(
            pd: *mut ibv_pd, advice: c_uint, flags: u32, sg_list: *mut ibv_sge,
            num_sges: u32
        ) -> c_int),
        16 alloc_null_mr: op!(fn(pd: *mut ibv_pd) -> *mut ibv_mr),
        24 read_counters: op!(fn(
            counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32,
            flags: u32
        ) -> c_int),
        32 attach_counters_point_flow: op!(fn(
            counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr,
            flow: *mut ibv_flow
        ) -> c_int),
        40 create_counters: op!(fn(
            context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr
        ) -> *mut ibv_counters),
        48 destroy_counters: op!(fn(counters: *mut ibv_counters) -> c_int),
        56 reg_dm_mr: op!(fn(
            pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint
        ) -> *mut ibv_mr),
        64 alloc_dm: op!(fn(
            context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr
        ) -> *mut ibv_dm),
        72 free_dm: op!(fn(dm: *mut ibv_dm) -> c_int),
        80 modify_flow_action_esp: op!(fn(
            action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr
        ) -> c_int),
        88 destroy_flow_action: op!(fn(action: *mut ibv_flow_action) -> c_int),
        96 create_flow_action_esp: op!(fn(
            context: *mut ibv_context, attr: *mut ibv_flow_action_esp_attr
        ) -> *mut ibv_flow_action),
        104 modify_qp_rate_limit: op!(fn(
            qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr
        ) -> c_int),
        112 alloc_parent_domain: op!(fn(
            context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr
        ) -> *mut ibv_pd),
        120 dealloc_td: op!(fn(td: *mut ibv_td) -> c_int),
        128 alloc_td: op!(fn(
            context: *mut ibv_context, init_attr: *mut ibv_td_init_attr
        ) -> *mut ibv_td),
        136 modify_cq: op!(fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int),
        144 post_srq_ops: op!(fn(
            srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr
        ) -> c_int),
        152 destroy_rwq_ind_table: op!(fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int),
        160 create_rwq_ind_table: op!(fn(
            context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr
        ) -> *mut ibv_rwq_ind_table),
        168 destroy_wq: op!(fn(wq: *mut ibv_wq) -> c_int),
        176 modify_wq: op!(fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int),
        184 create_wq: op!(fn(
            context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr
        ) -> *mut ibv_wq),
        192 query_rt_values: op!(fn(
            context: *mut ibv_context, values: *mut ibv_values_ex
        ) -> c_int),
        200 create_cq_ex: op!(fn(
            context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex
        ) -> *mut ibv_cq_ex),
        208 r#priv as "priv": *mut verbs_ex_private,
        216 query_device_ex: op!(fn(
            context: *mut ibv_context, input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex, attr_size: usize
        ) -> c_int),
        224 ibv_destroy_flow: op!(fn(flow: *mut ibv_flow) -> c_int),
        232 ABI_placeholder2: op!(fn()),
        240 ibv_create_flow: op!(fn(
            qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr
        ) -> *mut ibv_flow),
        248 ABI_placeholder1: op!(fn()),
        256 open_qp: op!(fn(
            context: *mut ibv_context, attr: *mut ibv_qp_open_attr
        ) -> *mut ibv_qp),
        264 create_qp_ex: op!(fn(
            context: *mut ibv_context, qp_init_attr_ex: *mut ibv_qp_init_attr_ex
        ) -> *mut ibv_qp),
        272 get_srq_num: op!(fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int),
        280 create_srq_ex: op!(fn(
            context: *mut ibv_context, srq_init_attr_ex: *mut ibv_srq_init_attr_ex
        ) -> *mut ibv_srq),
        288 open_xrcd: op!(fn(
            context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr
        ) -> *mut ibv_xrcd),
        296 close_xrcd: op!(fn(xrcd: *mut ibv_xrcd) -> c_int),
        304 _ABI_placeholder3: u64,
        312 sz: usize,
        320 context: ibv_context,
    }

    /// A queue pair whose requests are built call by call.
    struct ibv_qp_ex: 352 {
        0 qp_base: ibv_qp,
        160 comp_mask: u64,
        168 wr_id: u64,
        176 wr_flags: c_uint,
        184 wr_atomic_cmp_swp: op!(fn(
            qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64
        )),
        192 wr_atomic_fetch_add: op!(fn(
            qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64
        )),
        200 wr_bind_mw: op!(fn(
            qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32,
            bind_info: *const ibv_mw_bind_info
        )),
        208 wr_local_inv: op!(fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)),
        216 wr_rdma_read: op!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)),
        224 wr_rdma_write: op!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)),
        232 wr_rdma_write_imm: op!(fn(
            qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32
        )),
        240 wr_send: op!(fn(qp: *mut ibv_qp_ex)),
        248 wr_send_imm: op!(fn(qp: *mut ibv_qp_ex, imm_data: u32)),
        256 wr_send_inv: op!(fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)),
        264 wr_send_tso: op!(fn(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16)),
        272 wr_set_ud_addr: op!(fn(
            qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32
        )),
        280 wr_set_xrc_srqn: op!(fn(qp: *mut ibv_qp_ex, remote_srqn: u32)),
        288 wr_set_inline_data: op!(fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)),
        296 wr_set_inline_data_list: op!(fn(
            qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf
        )),
        304 wr_set_sge: op!(fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)),
        312 wr_set_sge_list: op!(fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge)),
        320 wr_start: op!(fn(qp: *mut ibv_qp_ex)),
        328 wr_complete: op!(fn(qp: *mut ibv_qp_ex) -> c_int),
        336 wr_abort: op!(fn(qp: *mut ibv_qp_ex)),
        344 wr_atomic_write: op!(fn(
            qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void
        )),
    }

    struct ibv_poll_cq_attr: 4 {
        0 comp_mask: u32,
    }

    /// Tag matching information of a completion.
    struct ibv_wc_tm_info: 16 {
        0 tag: u64,
        8 r#priv as "priv": u32,
    }

    /// A completion queue whose completions are read field by field.
    struct ibv_cq_ex: 288 {
        0 context: *mut ibv_context,
        8 channel: *mut ibv_comp_channel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: pthread_mutex_t,
        72 cond: pthread_cond_t,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
        128 comp_mask: u32,
        132 status: c_uint,
        136 wr_id: u64,
        144 start_poll: op!(fn(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int),
        152 next_poll: op!(fn(cq: *mut ibv_cq_ex) -> c_int),
        160 end_poll: op!(fn(cq: *mut ibv_cq_ex)),
        168 read_opcode: op!(fn(cq: *mut ibv_cq_ex) -> c_uint),
        176 read_vendor_err: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        184 read_byte_len: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        192 read_imm_data: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        200 read_qp_num: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        208 read_src_qp: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        216 read_wc_flags: op!(fn(cq: *mut ibv_cq_ex) -> c_uint),
        224 read_slid: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        232 read_sl: op!(fn(cq: *mut ibv_cq_ex) -> u8),
        240 read_dlid_path_bits: op!(fn(cq: *mut ibv_cq_ex) -> u8),
        248 read_completion_ts: op!(fn(cq: *mut ibv_cq_ex) -> u64),
        256 read_cvlan: op!(fn(cq: *mut ibv_cq_ex) -> u16),
        264 read_flow_tag: op!(fn(cq: *mut ibv_cq_ex) -> u32),
        272 read_tm_info: op!(fn(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)),
        280 read_completion_wallclock_ns: op!(fn(cq: *mut ibv_cq_ex) -> u64),
    }

    struct ibv_query_device_ex_input: 4 {
        0 comp_mask: u32,
    }

    struct ibv_odp_caps_per_transport
    as "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)": 12 {
        0 rc_odp_caps: u32,
        4 uc_odp_caps: u32,
        8 ud_odp_caps: u32,
    }

    struct ibv_odp_caps: 24 {
        0 general_caps: u64,
        8 per_transport_caps: ibv_odp_caps_per_transport,
    }

    struct ibv_tso_caps: 8 {
        0 max_tso: u32,
        4 supported_qpts: u32,
    }

    struct ibv_rss_caps: 32 {
        0 supported_qpts: u32,
        4 max_rwq_indirection_tables: u32,
        8 max_rwq_indirection_table_size: u32,
        16 rx_hash_fields_mask: u64,
        24 rx_hash_function: u8,
    }

    struct ibv_packet_pacing_caps: 12 {
        0 qp_rate_limit_min: u32,
        4 qp_rate_limit_max: u32,
        8 supported_qpts: u32,
    }

    struct ibv_tm_caps: 20 {
        0 max_rndv_hdr_size: u32,
        4 max_num_tags: u32,
        8 flags: u32,
        12 max_ops: u32,
        16 max_sge: u32,
    }

    struct ibv_cq_moderation_caps: 4 {
        0 max_cq_count: u16,
        2 max_cq_period: u16,
    }

    struct ibv_pci_atomic_caps: 6 {
        0 fetch_add: u16,
        2 swap: u16,
        4 compare_swap: u16,
    }

    struct ibv_device_attr_ex: 400 {
        0 orig_attr: ibv_device_attr,
        232 comp_mask: u32,
        240 odp_caps: ibv_odp_caps,
        264 completion_timestamp_mask: u64,
        272 hca_core_clock: u64,
        280 device_cap_flags_ex: u64,
        288 tso_caps: ibv_tso_caps,
        296 rss_caps: ibv_rss_caps,
        328 max_wq_type_rq: u32,
        332 packet_pacing_caps: ibv_packet_pacing_caps,
        344 raw_packet_caps: u32,
        348 tm_caps: ibv_tm_caps,
        368 cq_mod_caps: ibv_cq_moderation_caps,
        376 max_dm_size: u64,
        384 pci_atomic_caps: ibv_pci_atomic_caps,
        392 xrc_odp_caps: u32,
        396 phys_port_cnt_ex: u32,
    }

    struct ibv_values_ex: 24 {
        0 comp_mask: u32,
        8 raw_clock: timespec,
    }
}
