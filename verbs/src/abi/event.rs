//! Completion channels and asynchronous events.

use libc::{c_int, c_uint};

use super::{ibv_context, ibv_cq, ibv_qp, ibv_srq, ibv_wq};

c_types! {
    EVENT_TYPES;

    struct ibv_comp_channel: 16 {
        0 context: *mut ibv_context,
        8 fd: c_int,
        12 refcnt: c_int,
    }

    union ibv_async_event_element as "__typeof__(((struct ibv_async_event *)0)->element)": 8 {
        0 cq: *mut ibv_cq,
        0 qp: *mut ibv_qp,
        0 srq: *mut ibv_srq,
        0 wq: *mut ibv_wq,
        0 port_num: c_int,
    }

    struct ibv_async_event: 16 {
        0 element: ibv_async_event_element,
        8 event_type: c_uint,
    }
}

c_constants! {
    EVENT_CONSTANTS;

    IBV_EVENT_CQ_ERR: u32 = 0;
    IBV_EVENT_QP_FATAL: u32 = 1;
    IBV_EVENT_QP_ACCESS_ERR: u32 = 3;
    IBV_EVENT_COMM_EST: u32 = 4;
    IBV_EVENT_SRQ_ERR: u32 = 14;
    IBV_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
    IBV_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
}
