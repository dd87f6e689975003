//! What queue pairs are made with, their states, and what is refused.

use crate::limits::{CQ_DEPTH_MAX, QP_DEPTH_MAX};
use crate::types::QpNum;
use crate::verbs::{Cq, ReceiverNotReady, Srq};

/// Where a queue pair is in its life (RFC 5040 §6, with the names of `ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Made, not connected: receives may be posted.
    Init = 0,
    /// Connected: work flows.
    Rts = 1,
    /// Closing in order: nothing new is sent. Receives may be posted: the peer may go on sending.
    Closing = 2,
    /// Closed or failed: all work completes as flushed.
    Error = 3,
}

/// Whose rules say when a queue pair takes work, and what becomes of it before and after a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpRules {
    /// Those of iWARP: [`post_send`](crate::verbs::Qp::post_send) needs a connection, an attempt to connect that fails
    /// ends the queue pair, and when the peer closes, receives are flushed.
    #[default]
    Iwarp,
    /// Those of a reliable connection of InfiniBand, which has no opening and no close on the wire:
    /// * Work is taken in every state. Before there is a connection it waits for one; after its end it
    ///   completes as flushed.
    /// * An attempt to connect that fails leaves the queue pair and its work as they were. Another may
    ///   be made; [`Qp::give_up`](crate::verbs::Qp::give_up) flushes instead.
    /// * Reads and Atomics of the peer wait behind messages of it that wait for receives.
    /// * When the peer closes its half in order, receives stay posted until this end closes too.
    InfiniBand,
}

/// What the completion of an RDMA Write or of a Send says of the peer. Whatever it says, the memory that
/// was sent from is the program's again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionMeans {
    /// Nothing: the layer below has promised to deliver the bytes (RFC 5040 §5.5 rules 9 and 14). With
    /// the engine's own TCP the peer's TCP has acknowledged them; a byte stream has taken them.
    #[default]
    Taken,
    /// That it is placed at the peer, and everything posted before it: a Write in memory, a Send in the
    /// buffer of a receive, as on a reliable connection of InfiniBand. A program may tell the peer of it
    /// in another way than by this connection. (A peer that keeps messages until there are receives, and
    /// does not have InfiniBand's rules, may have only kept the Send.)
    ///
    /// Behind Writes and Sends that raise completions goes an RDMA Read of no bytes, whose Response
    /// says that they were delivered (RFC 5040 §5.5 rules 12 and 20): one for all that are sent until it
    /// goes, one at a time, and none where a Read or an Atomic of the program says the same. It takes a
    /// place of ORD and of the peer's IRD. The connection asks for one place more than the program does,
    /// and gives one more; where the peer gives none more, the program's Reads share theirs.
    ///
    /// As [`Taken`](Self::Taken) are: requests that raise no completion; all requests, where the peer
    /// allows no Reads at all; and those for which it has closed its half of the connection, in order,
    /// before it could answer.
    Placed,
}

/// What a queue pair is made with: `QpConfig { send_depth: 8, ..QpConfig::new(&cq) }`.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Where completions of the send queue go.
    pub send_cq: Cq,
    /// Where completions of the receive queue go.
    pub recv_cq: Cq,
    /// Work requests the send queue holds, until they complete.
    pub send_depth: usize,
    /// Work requests the receive queue holds, until they complete.
    pub recv_depth: usize,
    /// When work is taken, and what becomes of it.
    pub rules: QpRules,
    /// What completions of Writes and Sends say.
    pub completion: CompletionMeans,
    /// A number of the program's choice, which no other queue pair of the RNIC has; the next one in
    /// order without.
    pub number: Option<QpNum>,
    /// What becomes of a message for which no receive is posted.
    pub receiver_not_ready: ReceiverNotReady,
    /// Where messages take their buffers from instead of a receive queue of this queue pair.
    pub srq: Option<Srq>,
}

impl QpConfig {
    /// Both queues complete to `cq`, and hold [`DEPTH`](Self::DEPTH) work requests each.
    #[must_use]
    pub fn new(cq: &Cq) -> Self {
        Self::with_cqs(cq.clone(), cq.clone())
    }

    /// As [`new`](Self::new), with a completion queue for each of the two.
    #[must_use]
    pub const fn with_cqs(send_cq: Cq, recv_cq: Cq) -> Self {
        Self {
            send_cq,
            recv_cq,
            send_depth: Self::DEPTH,
            recv_depth: Self::DEPTH,
            rules: QpRules::Iwarp,
            completion: CompletionMeans::Taken,
            number: None,
            receiver_not_ready: ReceiverNotReady::Terminate,
            srq: None,
        }
    }

    /// The depth of queues unless another is asked for.
    pub const DEPTH: usize = 64;
}

/// Why a queue pair or a completion queue cannot be made, or made so deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A depth of a queue pair of 0 or beyond [`QP_DEPTH_MAX`].
    #[error("a queue depth of {0} is outside 1..={QP_DEPTH_MAX}")]
    QpDepth(usize),
    /// A depth of a completion queue of 0 or beyond [`CQ_DEPTH_MAX`].
    #[error("a completion queue's depth of {0} is outside 1..={CQ_DEPTH_MAX}")]
    CqDepth(usize),
    /// So many completions wait in a completion queue that is to hold fewer.
    #[error("{0} completions wait in the queue, more than it is to hold")]
    CqWaiting(usize),
    /// A depth of a shared receive queue of 0 or beyond [`QP_DEPTH_MAX`].
    #[error("a shared receive queue's depth of {0} is outside 1..={QP_DEPTH_MAX}")]
    SrqDepth(usize),
    /// A shared receive queue of another protection domain.
    #[error("the shared receive queue is of another protection domain")]
    SrqNotAssociated,
}

/// Why a work request was not taken. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as much as it was made for: poll completions first.
    #[error("the queue is full: poll completions before posting more")]
    Full,
    /// The queue pair cannot take this work in its state.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// The message is 2³² bytes or longer (RFC 5041 §5.2).
    #[error("a message of {0} octets is longer than the protocol allows")]
    TooLong(u64),
    /// The scatter list does not fit the operation, or its memory may not be written.
    #[error("the scatter list does not fit the operation")]
    Scatter,
    /// Memory of another protection domain, or where data is to be placed, memory that was registered
    /// for another queue pair only (RFC 5042 §7.3).
    #[error("memory of another protection domain or queue pair")]
    NotAssociated,
    /// A Read or an Atomic on a connection whose ORD is 0: the peer, or this end's own offer, allows
    /// none (RFC 5040 §6.1).
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
