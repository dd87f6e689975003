//! Completion channels and asynchronous events.

use libc::{c_int, c_uint};

use super::{ibv_context, ibv_cq, ibv_qp, ibv_srq, ibv_wq};

c_types! {
    EVENT_TYPES;

    /// A completion channel.
    struct ibv_comp_channel: 16 {
        0 context: *mut ibv_context,
        8 fd: c_int,
        12 refcnt: c_int,
    }

    /// Object of an event, by the event's type.
    union ibv_async_event_element as "__typeof__(((struct ibv_async_event *)0)->element)": 8 {
        0 cq: *mut ibv_cq,
        0 qp: *mut ibv_qp,
        0 srq: *mut ibv_srq,
        0 wq: *mut ibv_wq,
        0 port_num: c_int,
    }

    /// An asynchronous event.
    struct ibv_async_event: 16 {
        0 element: ibv_async_event_element,
        8 event_type: c_uint,
    }
}

c_constants! {
    EVENT_CONSTANTS;

    // Types of events.
    IBV_EVENT_CQ_ERR: u32 = 0;
    IBV_EVENT_QP_FATAL: u32 = 1;
    IBV_EVENT_QP_REQ_ERR: u32 = 2;
    IBV_EVENT_QP_ACCESS_ERR: u32 = 3;
    IBV_EVENT_COMM_EST: u32 = 4;
    IBV_EVENT_SQ_DRAINED: u32 = 5;
    IBV_EVENT_PATH_MIG: u32 = 6;
    IBV_EVENT_PATH_MIG_ERR: u32 = 7;
    IBV_EVENT_DEVICE_FATAL: u32 = 8;
    IBV_EVENT_PORT_ACTIVE: u32 = 9;
    IBV_EVENT_PORT_ERR: u32 = 10;
    IBV_EVENT_LID_CHANGE: u32 = 11;
    IBV_EVENT_PKEY_CHANGE: u32 = 12;
    IBV_EVENT_SM_CHANGE: u32 = 13;
    IBV_EVENT_SRQ_ERR: u32 = 14;
    IBV_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
    IBV_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
    IBV_EVENT_CLIENT_REREGISTER: u32 = 17;
    IBV_EVENT_GID_CHANGE: u32 = 18;
    IBV_EVENT_WQ_FATAL: u32 = 19;
}
