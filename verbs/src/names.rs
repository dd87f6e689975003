//! Texts of `ibv_node_type_str` and similar functions, and conversions of `enum ibv_rate`. The
//! texts are rdma-core's, because applications print them and scripts look for them.
#![expect(unsafe_code, reason = "functions exported to C")]

use std::ffi::CStr;

use libc::{c_char, c_int, c_uint};

use crate::abi::{
    IBV_RATE_2_5_GBPS, IBV_RATE_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_14_GBPS, IBV_RATE_20_GBPS,
    IBV_RATE_25_GBPS, IBV_RATE_28_GBPS, IBV_RATE_30_GBPS, IBV_RATE_40_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_56_GBPS, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_100_GBPS, IBV_RATE_112_GBPS,
    IBV_RATE_120_GBPS, IBV_RATE_168_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_400_GBPS,
    IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS, IBV_RATE_MAX,
};

/// Texts by `enum ibv_node_type`; the enumeration has no value 0.
const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPES: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const CM_EVENTS: [&CStr; 20] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    c"RDMA_CM_EVENT_USER",
    c"RDMA_CM_EVENT_INTERNAL",
];

/// Each rate in Mb/s, and its multiple of 2.5 Gb/s; 0 if rdma-core has none.
const RATES: [(c_uint, c_int, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, 2_500, 1),
    (IBV_RATE_5_GBPS, 5_000, 2),
    (IBV_RATE_10_GBPS, 10_000, 4),
    (IBV_RATE_14_GBPS, 14_062, 0),
    (IBV_RATE_20_GBPS, 20_000, 8),
    (IBV_RATE_25_GBPS, 25_781, 0),
    (IBV_RATE_28_GBPS, 28_125, 11),
    (IBV_RATE_30_GBPS, 30_000, 12),
    (IBV_RATE_40_GBPS, 40_000, 16),
    (IBV_RATE_50_GBPS, 53_125, 20),
    (IBV_RATE_56_GBPS, 56_250, 0),
    (IBV_RATE_60_GBPS, 60_000, 24),
    (IBV_RATE_80_GBPS, 80_000, 32),
    (IBV_RATE_100_GBPS, 103_125, 0),
    (IBV_RATE_112_GBPS, 112_500, 0),
    (IBV_RATE_120_GBPS, 120_000, 48),
    (IBV_RATE_168_GBPS, 168_750, 0),
    (IBV_RATE_200_GBPS, 206_250, 0),
    (IBV_RATE_300_GBPS, 309_375, 0),
    (IBV_RATE_400_GBPS, 425_000, 160),
    (IBV_RATE_600_GBPS, 637_500, 240),
    (IBV_RATE_800_GBPS, 850_000, 320),
    (IBV_RATE_1200_GBPS, 1_275_000, 480),
];

/// `unknown` if the table has none.
fn text(
    texts: &[&'static CStr],
    value: impl TryInto<usize>,
    unknown: &'static CStr,
) -> *const c_char {
    let place = value.try_into().ok();
    place.and_then(|place| texts.get(place)).unwrap_or(&unknown).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    text(&NODE_TYPES, node_type, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(port_state: c_uint) -> *const c_char {
    text(&PORT_STATES, port_state, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    text(&EVENT_TYPES, event, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    text(&WC_STATUSES, status, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    text(&CM_EVENTS, event, c"UNKNOWN EVENT")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES.iter().find(|row| row.0 == rate && row.2 != 0).map_or(-1, |row| row.2)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|row| row.2 == mult && row.2 != 0).map_or(IBV_RATE_MAX, |row| row.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.1)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|row| row.1 == mbps).map_or(IBV_RATE_MAX, |row| row.0)
}
