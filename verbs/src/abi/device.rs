//! Devices and their contexts: `ibv_device`, `ibv_context` with the operations that inline
//! functions call, the attributes of a device and of a port, GIDs.

use libc::{c_char, c_int, c_uint, c_void, pthread_mutex_t};

use super::{
    _compat_ibv_port_attr, ibv_cq, ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr,
    ibv_srq, ibv_wc,
};

c_types! {
    DEVICE_TYPES;

    /// Two obsolete slots; providers leave them empty.
    struct _ibv_device_ops: 16 {
        0 _dummy1: op!(fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context),
        8 _dummy2: op!(fn(context: *mut ibv_context)),
    }

    struct ibv_device: 664 {
        0 _ops: _ibv_device_ops,
        16 node_type: c_int,
        20 transport_type: c_int,
        24 name: [c_char; IBV_SYSFS_NAME_MAX],
        88 dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        152 dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        408 ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }

    /// Operations that inline functions call without a check for NULL. The slots named `_compat`
    /// are for applications from before 2008.
    struct ibv_context_ops: 256 {
        0 _compat_query_device: op!(fn(
            context: *mut ibv_context, device_attr: *mut ibv_device_attr
        ) -> c_int),
        8 _compat_query_port: op!(fn(
            context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr
        ) -> c_int),
        16 _compat_alloc_pd: op!(fn() -> *mut c_void),
        24 _compat_dealloc_pd: op!(fn() -> *mut c_void),
        32 _compat_reg_mr: op!(fn() -> *mut c_void),
        40 _compat_rereg_mr: op!(fn() -> *mut c_void),
        48 _compat_dereg_mr: op!(fn() -> *mut c_void),
        56 alloc_mw: op!(fn(pd: *mut ibv_pd, mw_type: c_uint) -> *mut ibv_mw),
        64 bind_mw: op!(fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int),
        72 dealloc_mw: op!(fn(mw: *mut ibv_mw) -> c_int),
        80 _compat_create_cq: op!(fn() -> *mut c_void),
        88 poll_cq: op!(fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int),
        96 req_notify_cq: op!(fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int),
        104 _compat_cq_event: op!(fn() -> *mut c_void),
        112 _compat_resize_cq: op!(fn() -> *mut c_void),
        120 _compat_destroy_cq: op!(fn() -> *mut c_void),
        128 _compat_create_srq: op!(fn() -> *mut c_void),
        136 _compat_modify_srq: op!(fn() -> *mut c_void),
        144 _compat_query_srq: op!(fn() -> *mut c_void),
        152 _compat_destroy_srq: op!(fn() -> *mut c_void),
        160 post_srq_recv: op!(fn(
            srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr
        ) -> c_int),
        168 _compat_create_qp: op!(fn() -> *mut c_void),
        176 _compat_query_qp: op!(fn() -> *mut c_void),
        184 _compat_modify_qp: op!(fn() -> *mut c_void),
        192 _compat_destroy_qp: op!(fn() -> *mut c_void),
        200 post_send: op!(fn(
            qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr
        ) -> c_int),
        208 post_recv: op!(fn(
            qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr
        ) -> c_int),
        216 _compat_create_ah: op!(fn() -> *mut c_void),
        224 _compat_destroy_ah: op!(fn() -> *mut c_void),
        232 _compat_attach_mcast: op!(fn() -> *mut c_void),
        240 _compat_detach_mcast: op!(fn() -> *mut c_void),
        248 _compat_async_event: op!(fn() -> *mut c_void),
    }

    /// An open device, as applications know it; it lies at the end of a [`super::verbs_context`].
    struct ibv_context: 328 {
        0 device: *mut ibv_device,
        8 ops: ibv_context_ops,
        264 cmd_fd: c_int,
        268 async_fd: c_int,
        272 num_comp_vectors: c_int,
        280 mutex: pthread_mutex_t,
        320 abi_compat: *mut c_void,
    }

    struct ibv_device_attr: 232 {
        0 fw_ver: [c_char; 64],
        64 node_guid: u64,
        72 sys_image_guid: u64,
        80 max_mr_size: u64,
        88 page_size_cap: u64,
        96 vendor_id: u32,
        100 vendor_part_id: u32,
        104 hw_ver: u32,
        108 max_qp: c_int,
        112 max_qp_wr: c_int,
        116 device_cap_flags: c_uint,
        120 max_sge: c_int,
        124 max_sge_rd: c_int,
        128 max_cq: c_int,
        132 max_cqe: c_int,
        136 max_mr: c_int,
        140 max_pd: c_int,
        144 max_qp_rd_atom: c_int,
        148 max_ee_rd_atom: c_int,
        152 max_res_rd_atom: c_int,
        156 max_qp_init_rd_atom: c_int,
        160 max_ee_init_rd_atom: c_int,
        164 atomic_cap: c_uint,
        168 max_ee: c_int,
        172 max_rdd: c_int,
        176 max_mw: c_int,
        180 max_raw_ipv6_qp: c_int,
        184 max_raw_ethy_qp: c_int,
        188 max_mcast_grp: c_int,
        192 max_mcast_qp_attach: c_int,
        196 max_total_mcast_qp_attach: c_int,
        200 max_ah: c_int,
        204 max_fmr: c_int,
        208 max_map_per_fmr: c_int,
        212 max_srq: c_int,
        216 max_srq_wr: c_int,
        220 max_srq_sge: c_int,
        224 max_pkeys: u16,
        226 local_ca_ack_delay: u8,
        227 phys_port_cnt: u8,
    }

    /// Answer of `ibv_query_port`, whose exported function fills it up to `port_cap_flags2`.
    struct ibv_port_attr: 52 {
        0 state: c_uint,
        4 max_mtu: c_uint,
        8 active_mtu: c_uint,
        12 gid_tbl_len: c_int,
        16 port_cap_flags: u32,
        20 max_msg_sz: u32,
        24 bad_pkey_cntr: u32,
        28 qkey_viol_cntr: u32,
        32 pkey_tbl_len: u16,
        34 lid: u16,
        36 sm_lid: u16,
        38 lmc: u8,
        39 max_vl_num: u8,
        40 sm_sl: u8,
        41 subnet_timeout: u8,
        42 init_type_reply: u8,
        43 active_width: u8,
        44 active_speed: u8,
        45 phys_state: u8,
        46 link_layer: u8,
        47 flags: u8,
        48 port_cap_flags2: u16,
    }

    /// The halves of a GID, in network order.
    struct ibv_gid_global as "__typeof__(((union ibv_gid *)0)->global)": 16 {
        0 subnet_prefix: u64,
        8 interface_id: u64,
    }

    /// A GID; for RoCE an IPv6 address or an IPv4-mapped one.
    union ibv_gid: 16 {
        0 raw: [u8; 16],
        0 global: ibv_gid_global,
    }

    struct ibv_gid_entry: 32 {
        0 gid: ibv_gid,
        16 gid_index: u32,
        20 port_num: u32,
        24 gid_type: u32,
        28 ndev_ifindex: u32,
    }
}

c_constants! {
    DEVICE_CONSTANTS;

    IBV_SYSFS_NAME_MAX: usize = 64;
    IBV_SYSFS_PATH_MAX: usize = 256;

    // Kinds of nodes and transports.
    IBV_NODE_CA: c_int = 1;
    IBV_NODE_RNIC: c_int = 4;
    IBV_TRANSPORT_IB: c_int = 0;
    IBV_TRANSPORT_IWARP: c_int = 1;

    // Capabilities in `ibv_device_attr`.
    IBV_DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
    IBV_DEVICE_MEM_WINDOW: u32 = 1 << 17;
    IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;

    // Scope of Atomics.
    IBV_ATOMIC_HCA: u32 = 1;

    // Answers of `ibv_is_fork_initialized`.
    IBV_FORK_UNNEEDED: u32 = 2;

    // MTUs and states of a port.
    IBV_MTU_1024: u32 = 3;
    IBV_MTU_4096: u32 = 5;
    IBV_PORT_ACTIVE: u32 = 4;

    // Link layers of a port.
    IBV_LINK_LAYER_ETHERNET: u8 = 2;

    // Capabilities of a port.
    IBV_PORT_CM_SUP: u32 = 1 << 16;
    IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;

    // Types of GIDs.
    IBV_GID_TYPE_ROCE_V2: u32 = 2;
}
