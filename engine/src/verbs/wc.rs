//! Work completions.

use crate::types::{QpNum, Stag, WrId};

/// Result of a work request, as `ibv_wc_status`. After a status other than
/// [`Success`](Self::Success) the queue pair is in error. In each of its queues, at most one
/// request gets the reason as its status; the others complete as [`WrFlushErr`](Self::WrFlushErr).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcStatus {
    /// Done.
    Success,
    /// A message was longer than the buffer posted for it.
    LocLenErr,
    /// Local memory could not be used for the request.
    LocProtErr,
    /// The request could not be processed for a local reason.
    LocQpOpErr,
    /// A memory window could not be bound as the request asked.
    MwBindErr,
    /// The peer violated the protocol.
    BadRespErr,
    /// The peer refused access to its memory.
    RemAccessErr,
    /// The peer found the request invalid.
    RemInvReqErr,
    /// The peer could not perform the operation.
    RemOpErr,
    /// The connection was lost before the request was done.
    RetryExcErr,
    /// The queue pair was already in error.
    WrFlushErr,
}

/// Kind of the completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A Send of any form.
    Send,
    /// An RDMA Write.
    RdmaWrite,
    /// An RDMA Read.
    RdmaRead,
    /// An atomic fetch-and-add.
    FetchAdd,
    /// An atomic compare-and-swap.
    CmpSwap,
    /// An invalidation of a local STag.
    LocalInvalidate,
    /// A binding of a memory window.
    BindMw,
    /// A received Send.
    Recv,
    /// Received Immediate Data (RFC 7306 §6).
    RecvImmediate,
    /// A received Send with 32 bits of immediate data.
    RecvSendImmediate,
    /// A receive consumed by an RDMA Write with 32 bits of immediate data: the Write is placed, and
    /// the memory of the receive is unchanged.
    RecvWriteImmediate,
}

/// A work completion. Unless `status` is [`WcStatus::Success`], only `wr_id`, `status`, `qp` and
/// `opcode` are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The request's identifier, chosen by the application.
    pub wr_id: WrId,
    /// Result.
    pub status: WcStatus,
    /// Kind of the request.
    pub opcode: WcOpcode,
    /// The queue pair to which it was posted.
    pub qp: QpNum,
    /// Bytes of payload: received for a receive, written by the peer for
    /// [`WcOpcode::RecvWriteImmediate`], read for an RDMA Read, sent otherwise.
    pub byte_len: u32,
    /// On a receive: the local STag that the peer invalidated with this Send (RFC 5040 §5.3).
    pub invalidated: Option<Stag>,
    /// On a receive: the sender asked for an event (RFC 5040 §5.3).
    pub solicited: bool,
    /// On [`WcOpcode::RecvImmediate`]: the eight bytes, as a big-endian number. On
    /// [`WcOpcode::RecvSendImmediate`] and [`WcOpcode::RecvWriteImmediate`]: the 32 bits. On an
    /// atomic: the previous value.
    pub value: u64,
}

impl Wc {
    pub(crate) const fn failed(id: WrId, status: WcStatus, opcode: WcOpcode, qp: QpNum) -> Self {
        Self {
            wr_id: id,
            status,
            opcode,
            qp,
            byte_len: 0,
            invalidated: None,
            solicited: false,
            value: 0,
        }
    }
}
