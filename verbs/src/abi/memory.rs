//! Protection domains and their objects: regions, windows, address handles, other domains.

use libc::{c_uint, c_void};

use super::{ibv_context, ibv_gid};

c_types! {
    MEMORY_TYPES;

    struct ibv_pd: 16 {
        0 context: *mut ibv_context,
        8 handle: u32,
    }

    struct ibv_td_init_attr: 4 {
        0 comp_mask: u32,
    }

    struct ibv_td: 8 {
        0 context: *mut ibv_context,
    }

    /// Attributes for a parent domain: a protection domain with a thread domain or with allocators.
    struct ibv_parent_domain_init_attr: 48 {
        0 pd: *mut ibv_pd,
        8 td: *mut ibv_td,
        16 comp_mask: u32,
        24 alloc: op!(fn(
            pd: *mut ibv_pd, pd_context: *mut c_void, size: usize, alignment: usize,
            resource_type: u64
        ) -> *mut c_void),
        32 free: op!(fn(
            pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64
        )),
        40 pd_context: *mut c_void,
    }

    /// An XRC domain; none is ever made.
    struct ibv_xrcd: 8 {
        0 context: *mut ibv_context,
    }

    struct ibv_mr: 48 {
        0 context: *mut ibv_context,
        8 pd: *mut ibv_pd,
        16 addr: *mut c_void,
        24 length: usize,
        32 handle: u32,
        36 lkey: u32,
        40 rkey: u32,
    }

    struct ibv_mw: 32 {
        0 context: *mut ibv_context,
        8 pd: *mut ibv_pd,
        16 rkey: u32,
        20 handle: u32,
        24 r#type as "type": c_uint,
    }

    /// Memory that a window opens.
    struct ibv_mw_bind_info: 32 {
        0 mr: *mut ibv_mr,
        8 addr: u64,
        16 length: u64,
        24 mw_access_flags: c_uint,
    }

    struct ibv_mw_bind: 48 {
        0 wr_id: u64,
        8 send_flags: c_uint,
        16 bind_info: ibv_mw_bind_info,
    }

    struct ibv_global_route: 24 {
        0 dgid: ibv_gid,
        16 flow_label: u32,
        20 sgid_index: u8,
        21 hop_limit: u8,
        22 traffic_class: u8,
    }

    struct ibv_ah_attr: 32 {
        0 grh: ibv_global_route,
        24 dlid: u16,
        26 sl: u8,
        27 src_path_bits: u8,
        28 static_rate: u8,
        29 is_global: u8,
        30 port_num: u8,
    }

    struct ibv_ah: 24 {
        0 context: *mut ibv_context,
        8 pd: *mut ibv_pd,
        16 handle: u32,
    }

    /// A global route header as a receiver of datagrams finds it.
    struct ibv_grh: 40 {
        0 version_tclass_flow: u32,
        4 paylen: u16,
        6 next_hdr: u8,
        7 hop_limit: u8,
        8 sgid: ibv_gid,
        24 dgid: ibv_gid,
    }

    /// Enhanced connection establishment: options of a vendor.
    struct ibv_ece: 12 {
        0 vendor_id: u32,
        4 options: u32,
        8 comp_mask: u32,
    }
}

c_constants! {
    MEMORY_CONSTANTS;

    // Rights of regions, windows and queue pairs.
    IBV_ACCESS_LOCAL_WRITE: u32 = 1;
    IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
    IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
    IBV_ACCESS_MW_BIND: u32 = 1 << 4;
    IBV_ACCESS_ZERO_BASED: u32 = 1 << 5;
    IBV_ACCESS_ON_DEMAND: u32 = 1 << 6;
    IBV_ACCESS_HUGETLB: u32 = 1 << 7;
    IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

    IBV_REREG_MR_CHANGE_TRANSLATION: u32 = 1;
    IBV_REREG_MR_CHANGE_PD: u32 = 1 << 1;
    IBV_REREG_MR_CHANGE_ACCESS: u32 = 1 << 2;
    IBV_REREG_MR_FLAGS_SUPPORTED: u32 = 7;
    IBV_REREG_MR_ERR_INPUT: i32 = -1;

    IBV_MW_TYPE_1: u32 = 1;
    IBV_MW_TYPE_2: u32 = 2;

    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

    // Rates of an address.
    IBV_RATE_MAX: u32 = 0;
    IBV_RATE_2_5_GBPS: u32 = 2;
    IBV_RATE_5_GBPS: u32 = 5;
    IBV_RATE_10_GBPS: u32 = 3;
    IBV_RATE_20_GBPS: u32 = 6;
    IBV_RATE_30_GBPS: u32 = 4;
    IBV_RATE_40_GBPS: u32 = 7;
    IBV_RATE_60_GBPS: u32 = 8;
    IBV_RATE_80_GBPS: u32 = 9;
    IBV_RATE_120_GBPS: u32 = 10;
    IBV_RATE_14_GBPS: u32 = 11;
    IBV_RATE_56_GBPS: u32 = 12;
    IBV_RATE_112_GBPS: u32 = 13;
    IBV_RATE_168_GBPS: u32 = 14;
    IBV_RATE_25_GBPS: u32 = 15;
    IBV_RATE_100_GBPS: u32 = 16;
    IBV_RATE_200_GBPS: u32 = 17;
    IBV_RATE_300_GBPS: u32 = 18;
    IBV_RATE_28_GBPS: u32 = 19;
    IBV_RATE_50_GBPS: u32 = 20;
    IBV_RATE_400_GBPS: u32 = 21;
    IBV_RATE_600_GBPS: u32 = 22;
    IBV_RATE_800_GBPS: u32 = 23;
    IBV_RATE_1200_GBPS: u32 = 24;
}
