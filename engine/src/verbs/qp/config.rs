//! Configuration of queue pairs, their states, and errors of creating and posting.

use crate::limits::{CQ_DEPTH_MAX, QP_DEPTH_MAX};
use crate::types::QpNum;
use crate::verbs::{Cq, Srq};

/// State of a queue pair (RFC 5040 §6, with the names of `ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Created, not connected: receives may be posted.
    Init = 0,
    /// Connected: work is processed.
    Rts = 1,
    /// Closing in order: nothing new is sent. The peer may continue to send, so receives may be
    /// posted.
    Closing = 2,
    /// Closed or failed: all work completes as flushed.
    Error = 3,
}

/// Rules for the acceptance of work, for its fate before and after a connection, and for messages
/// of the peer for which no receive is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpRules {
    /// Rules of iWARP: [`post_send`](crate::verbs::Qp::post_send) needs a connection, a failed
    /// attempt to connect ends the queue pair, and when the peer closes, receives are flushed. A
    /// message without a receive ends the stream, and the peer gets a Terminate (RFC 5041 §7.1):
    /// the receiver must post before the peer sends.
    #[default]
    Iwarp,
    /// Rules of iWARP, but a message without a receive waits in memory of the engine until one is
    /// posted, as with a retry count of 7 on InfiniBand (`rnr_retry`). Later Writes, Reads and
    /// Atomics continue. While [`HELD_BYTES_MAX`](crate::limits::HELD_BYTES_MAX) bytes wait, the
    /// TCP window is closed, which stops all data of the peer.
    IwarpWait,
    /// Rules of a reliable connection of InfiniBand, which has no opening and no close on the wire:
    /// * Work is accepted in every state. Before there is a connection it waits for one; after the
    ///   end it completes as flushed.
    /// * A failed attempt to connect leaves the queue pair and its work unchanged. Another attempt
    ///   may follow; [`Qp::give_up`](crate::verbs::Qp::give_up) flushes instead.
    /// * Messages wait for receives as under [`IwarpWait`](Self::IwarpWait), and Reads and Atomics
    ///   of the peer wait behind them.
    /// * When the peer closes its half in order, receives stay posted until this end closes too.
    InfiniBand,
}

impl QpRules {
    /// Returns true for both rules of iWARP, whether messages wait for receives or not.
    pub(crate) const fn is_iwarp(self) -> bool {
        matches!(self, Self::Iwarp | Self::IwarpWait)
    }
}

/// Meaning of the completion of an RDMA Write or a Send for the peer's side. At any level the
/// source memory belongs to the application again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionLevel {
    /// Nothing: the layer below has promised to deliver the bytes (RFC 5040 §5.5 rules 9 and 14):
    /// the peer's TCP has acknowledged them, or a byte stream has accepted them.
    #[default]
    Taken,
    /// The message and everything posted before it is placed at the peer, as on a reliable
    /// connection of InfiniBand: the application may inform the peer by other means. (A peer that
    /// holds messages until there are receives, and does not have InfiniBand's rules, may only have
    /// held a Send.)
    ///
    /// The engine sends an RDMA Read of no bytes after Writes and Sends that raise completions. Its
    /// Response says that they were delivered (RFC 5040 §5.5 rules 12 and 20). At most one is
    /// outstanding, and none is sent if a Read or an Atomic of the application says the same. It
    /// needs a unit of ORD and of the peer's IRD: the connection asks for one unit more than the
    /// application does, and grants one more. If the peer grants none more, confirmations share the
    /// units of the application's Reads.
    ///
    /// The meaning is that of [`Taken`](Self::Taken) for requests that raise no completion, for all
    /// requests if the peer allows no Reads, and for requests that the peer could not confirm
    /// before it closed its half.
    Placed,
}

/// Configuration of a queue pair: `QpConfig { send_depth: 8, ..QpConfig::new(&cq) }`.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Completion queue of the send queue.
    pub send_cq: Cq,
    /// Completion queue of the receive queue.
    pub recv_cq: Cq,
    /// Capacity of the send queue in work requests; each counts until it completes.
    pub send_depth: usize,
    /// Capacity of the receive queue in work requests; each counts until it completes.
    pub recv_depth: usize,
    /// Rules for the acceptance of work, its fate, and messages without a receive.
    pub rules: QpRules,
    /// Meaning of the completions of Writes and Sends.
    pub completion: CompletionLevel,
    /// Number chosen by the application, unique in the RNIC (not checked). `None` takes the next
    /// one.
    pub number: Option<QpNum>,
    /// Shared receive queue, used instead of a receive queue of this queue pair. By the rules of
    /// iWARP it must be in the same protection domain.
    pub srq: Option<Srq>,
}

impl QpConfig {
    /// Both queues complete to `cq` and have a depth of [`DEPTH`](Self::DEPTH) work requests each.
    #[must_use]
    pub fn new(cq: &Cq) -> Self {
        Self::with_cqs(cq.clone(), cq.clone())
    }

    /// Like [`new`](Self::new), with a completion queue for each of the two queues.
    #[must_use]
    pub const fn with_cqs(send_cq: Cq, recv_cq: Cq) -> Self {
        Self {
            send_cq,
            recv_cq,
            send_depth: Self::DEPTH,
            recv_depth: Self::DEPTH,
            rules: QpRules::Iwarp,
            completion: CompletionLevel::Taken,
            number: None,
            srq: None,
        }
    }

    /// Default depth of the queues.
    pub const DEPTH: usize = 64;
}

/// Reason why a queue pair or a completion queue cannot be created, or not with that depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A depth of a queue pair is 0 or beyond [`QP_DEPTH_MAX`].
    #[error("a queue depth of {0} is outside 1..={QP_DEPTH_MAX}")]
    QpDepth(usize),
    /// A depth of a completion queue is 0 or beyond [`CQ_DEPTH_MAX`].
    #[error("a completion queue's depth of {0} is outside 1..={CQ_DEPTH_MAX}")]
    CqDepth(usize),
    /// More completions wait in the queue than the new depth allows.
    #[error("{0} completions wait in the queue, more than it is to hold")]
    CqWaiting(usize),
    /// A depth of a shared receive queue is 0 or beyond [`QP_DEPTH_MAX`].
    #[error("a shared receive queue's depth of {0} is outside 1..={QP_DEPTH_MAX}")]
    SrqDepth(usize),
    /// The shared receive queue is in another protection domain.
    #[error("the shared receive queue is of another protection domain")]
    SrqNotAssociated,
}

/// Reason why a work request was refused. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full: poll completions first.
    #[error("the queue is full: poll completions before posting more")]
    Full,
    /// The queue pair does not accept this work in its state.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// The message is 2³² bytes or longer (RFC 5041 §5.2).
    #[error("a message of {0} bytes is longer than the protocol allows")]
    TooLong(u64),
    /// The scatter list does not fit the operation, or its memory is not writable.
    #[error("the scatter list does not fit the operation")]
    Scatter,
    /// Memory of another protection domain or, for received data, memory that was registered for
    /// another queue pair only (RFC 5042 §7.3).
    #[error("memory of another protection domain or queue pair")]
    NotAssociated,
    /// A Read or an Atomic although the peer, or this end's own offer, allows none (RFC 5040 §6.1).
    #[error("the connection allows no outstanding Reads and Atomics (its ORD is 0)")]
    OrdZero,
    /// A Send or Write with immediate data on a connection that has not agreed on them
    /// ([`StartupConfig::immediates`](crate::mpa::startup::StartupConfig::immediates)).
    #[error("the connection has not agreed on Sends and Writes with immediate data")]
    NoImmediates,
    /// The queue pair takes its receives from a shared queue: post them there.
    #[error("the queue pair takes its receives from a shared queue")]
    SharedReceives,
}
