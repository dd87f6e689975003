//! Work requests.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::limits::SGE_MAX;
use crate::mem::Region;
use crate::types::{Stag, TaggedOffset, WrId};
use crate::verbs::WcOpcode;

/// A run of registered local memory.
///
/// Made by [`Mr::sge`](crate::verbs::Mr::sge), which checks the range; it keeps the memory alive.
#[derive(Clone, Debug)]
pub struct Sge {
    pub(crate) region: Arc<Region>,
    pub(crate) offset: usize,
    pub(crate) len: u32,
    pub(crate) stag: Stag,
    /// Position of the run inside the tagged buffer, for the sink of a Read.
    pub(crate) to: TaggedOffset,
    /// Whether the engine may store into it (receive buffers and sinks of Reads).
    pub(crate) writable: bool,
}

impl Sge {
    /// Octets in the run.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the run has no octets.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A place in the peer's memory, as the peer advertised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The peer's steering tag.
    pub stag: Stag,
    /// Where in the tagged buffer.
    pub to: TaggedOffset,
}

/// What a posted send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// Send to the peer's next receive buffer (RFC 5040 §5.3).
    Send {
        /// The peer's STag to invalidate when the message is delivered.
        invalidate: Option<Stag>,
        /// Ask for an event at the peer.
        solicited: bool,
    },
    /// Write into the peer's memory (RFC 5040 §5.1).
    RdmaWrite {
        /// Where to.
        remote: RemoteBuffer,
    },
    /// Read from the peer's memory into the request's one scatter element (RFC 5040 §5.2).
    RdmaRead {
        /// Where from.
        remote: RemoteBuffer,
    },
    /// Send eight octets that arrive in the peer's completion (RFC 7306 §6).
    Immediate {
        /// The octets, as a big-endian number.
        value: u64,
        /// Ask for an event at the peer.
        solicited: bool,
    },
    /// Add to a 64-bit number in the peer's memory and fetch what it was (RFC 7306 §5.1.1).
    FetchAdd {
        /// Where the number is; the address must be 64-bit aligned.
        remote: RemoteBuffer,
        /// What to add.
        add: u64,
        /// A 1 keeps the carry out of that bit from spreading. 0 is a plain 64-bit add.
        mask: u64,
    },
    /// Compare a 64-bit number in the peer's memory and swap it if equal (RFC 7306 §5.1.2).
    CmpSwap {
        /// Where the number is; the address must be 64-bit aligned.
        remote: RemoteBuffer,
        /// What to compare with.
        compare: u64,
        /// Which bits to compare.
        compare_mask: u64,
        /// What to store when equal.
        swap: u64,
        /// Which bits to store.
        swap_mask: u64,
    },
    /// Invalidate a local STag: no remote access through it afterwards.
    LocalInvalidate {
        /// The local STag.
        stag: Stag,
    },
}

impl SendOp {
    /// What its completion calls it.
    pub(crate) const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::Immediate { .. } => WcOpcode::Send,
            Self::RdmaWrite { .. } => WcOpcode::RdmaWrite,
            Self::RdmaRead { .. } => WcOpcode::RdmaRead,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::CmpSwap { .. } => WcOpcode::CmpSwap,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        }
    }
}

/// A request for the send queue.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The application's name for it.
    pub id: WrId,
    /// What to do.
    pub op: SendOp,
    /// Local memory to send from, or (one element) to read into.
    pub sges: ArrayVec<Sge, SGE_MAX>,
    /// Wait for all earlier Reads and Atomics of this queue before starting.
    pub fence: bool,
    /// Whether success raises a completion. Failure always does.
    pub signaled: bool,
}

impl SendWr {
    /// A signalled, unfenced request.
    ///
    /// # Panics
    /// When there are more than [`SGE_MAX`] elements.
    #[must_use]
    pub fn new(id: WrId, op: SendOp, sges: impl IntoIterator<Item = Sge>) -> Self {
        Self { id, op, sges: sges.into_iter().collect(), fence: false, signaled: true }
    }

    /// A plain Send of the given memory.
    #[must_use]
    pub fn send(id: WrId, sges: impl IntoIterator<Item = Sge>) -> Self {
        Self::new(id, SendOp::Send { invalidate: None, solicited: false }, sges)
    }

    /// An RDMA Write of the given memory to `remote`.
    #[must_use]
    pub fn write(id: WrId, remote: RemoteBuffer, sges: impl IntoIterator<Item = Sge>) -> Self {
        Self::new(id, SendOp::RdmaWrite { remote }, sges)
    }

    /// An RDMA Read from `remote` into the given memory; reads as much as `sink` holds.
    #[must_use]
    pub fn read(id: WrId, remote: RemoteBuffer, sink: Sge) -> Self {
        Self::new(id, SendOp::RdmaRead { remote }, [sink])
    }

    /// The same request with a fence.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// The same request without a completion on success.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Octets of local memory in the request.
    pub(crate) fn len(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// A request for the receive queue: a buffer for one incoming Send.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// The application's name for it.
    pub id: WrId,
    /// Where the message goes.
    pub sges: ArrayVec<Sge, SGE_MAX>,
}

impl RecvWr {
    /// A receive buffer made of the given memory.
    ///
    /// # Panics
    /// When there are more than [`SGE_MAX`] elements.
    #[must_use]
    pub fn new(id: WrId, sges: impl IntoIterator<Item = Sge>) -> Self {
        Self { id, sges: sges.into_iter().collect() }
    }

    /// Octets the buffer holds.
    pub(crate) fn len(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len)).sum()
    }
}
