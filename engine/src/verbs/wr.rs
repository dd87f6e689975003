//! Work requests.

use arrayvec::ArrayVec;

use crate::limits::SGE_MAX;
use crate::mem::MwBind;
use crate::mem::handles::RegionHandle;
use crate::types::{PdNum, QpNum, Stag, TaggedOffset, WrId};
use crate::verbs::WcOpcode;

/// A run of registered memory, which it keeps alive. [`Mr::sge`](crate::verbs::Mr::sge) makes it.
#[derive(Clone, Debug)]
pub struct Sge {
    pub(crate) region: RegionHandle,
    pub(crate) offset: usize,
    pub(crate) len: u32,
    pub(crate) stag: Stag,
    /// The protection domain of its registration.
    pub(crate) pd: PdNum,
    /// The only queue pair of its registration, if it has one.
    pub(crate) only: Option<QpNum>,
    /// Position of the run inside the tagged buffer, for the sink of a Read.
    pub(crate) to: TaggedOffset,
    /// The engine may store into it (receive buffers and sinks of Reads).
    pub(crate) writable: bool,
}

impl Sge {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the run has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Arriving data may be placed here ([`Access::LOCAL_WRITE`](crate::mem::Access::LOCAL_WRITE)).
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }
}

/// A buffer that the peer advertised: target of an RDMA Write, source of a Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The peer's steering tag.
    pub stag: Stag,
    /// Tagged offset in the buffer.
    pub to: TaggedOffset,
}

impl RemoteBuffer {
    /// Length in a message.
    pub const LEN: usize = 12;

    /// Steering tag and tagged offset in network byte order.
    #[must_use]
    pub fn to_octets(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..4].copy_from_slice(&self.stag.0.to_be_bytes());
        octets[4..].copy_from_slice(&self.to.0.to_be_bytes());
        octets
    }

    /// Parses [`to_octets`](Self::to_octets); `None` if there are too few bytes. Grants no right.
    #[must_use]
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let (stag, rest) = octets.split_first_chunk()?;
        let to = rest.first_chunk()?;
        let (stag, to) = (u32::from_be_bytes(*stag), u64::from_be_bytes(*to));
        Some(Self { stag: Stag(stag), to: TaggedOffset(to) })
    }
}

/// Operation of a posted send request.
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
        /// Target.
        remote: RemoteBuffer,
    },
    /// Read from the peer's memory into the scatter elements, each the sink of a separate Read
    /// Request (RFC 5040 §5.2.2): a Response writes one tagged buffer. The elements complete
    /// together.
    RdmaRead {
        /// Source.
        remote: RemoteBuffer,
    },
    /// Send eight bytes that arrive in the peer's completion (RFC 7306 §6).
    Immediate {
        /// The bytes, as a big-endian number.
        value: u64,
        /// Ask for an event at the peer.
        solicited: bool,
    },
    /// Send with 32 bits that arrive in the peer's completion
    /// ([`WcOpcode::RecvSendImmediate`](crate::verbs::WcOpcode::RecvSendImmediate)). No RFC defines
    /// it: the connection must have agreed on it
    /// ([`StartupConfig::immediates`](crate::mpa::startup::StartupConfig::immediates)).
    SendImmediate {
        /// The 32 bits.
        immediate: u32,
        /// Ask for an event at the peer.
        solicited: bool,
    },
    /// Write into the peer's memory (RFC 5040 §5.1), then consume one of its receive buffers to
    /// report the Write and 32 bits
    /// ([`WcOpcode::RecvWriteImmediate`](crate::verbs::WcOpcode::RecvWriteImmediate)): an RDMA
    /// Write, directly followed by Immediate Data (RFC 7306 §6). The connection must have agreed on
    /// it, as for [`SendImmediate`](Self::SendImmediate).
    RdmaWriteImmediate {
        /// Target.
        remote: RemoteBuffer,
        /// The 32 bits.
        immediate: u32,
        /// Ask for an event at the peer.
        solicited: bool,
    },
    /// Add to a 64-bit number in the peer's memory and fetch its previous value (RFC 7306 §5.1.1).
    FetchAdd {
        /// Location of the number; the address must be 64-bit aligned.
        remote: RemoteBuffer,
        /// Number to add.
        add: u64,
        /// A 1 stops the carry out of that bit. 0 is a plain 64-bit add.
        mask: u64,
    },
    /// Compare a 64-bit number in the peer's memory and swap it if equal (RFC 7306 §5.1.2).
    CmpSwap {
        /// Location of the number; the address must be 64-bit aligned.
        remote: RemoteBuffer,
        /// Value to compare with.
        compare: u64,
        /// Bits to compare.
        compare_mask: u64,
        /// Value to store if equal.
        swap: u64,
        /// Bits to store.
        swap_mask: u64,
    },
    /// Invalidate a local STag: no remote access through it afterwards.
    LocalInvalidate {
        /// The STag: of a region without bound windows, or of a window of type 2 bound at this
        /// queue pair.
        stag: Stag,
    },
    /// Bind a memory window ([`Mw`](crate::verbs::Mw)). Nothing is sent.
    BindMw {
        /// Window, region, range and rights.
        bind: MwBind,
    },
}

impl SendOp {
    /// Returns true if the request is done only when the peer has answered.
    pub(crate) const fn awaits_response(&self) -> bool {
        matches!(self, Self::RdmaRead { .. } | Self::FetchAdd { .. } | Self::CmpSwap { .. })
    }

    /// Returns true if the completion may need a confirmation: no Response confirms it.
    pub(crate) const fn is_confirmable(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::RdmaWrite { .. }
                | Self::Immediate { .. }
                | Self::SendImmediate { .. }
                | Self::RdmaWriteImmediate { .. }
        )
    }

    /// Returns true if only peers that have agreed on the operation understand it.
    pub(crate) const fn needs_agreement(&self) -> bool {
        matches!(self, Self::SendImmediate { .. } | Self::RdmaWriteImmediate { .. })
    }

    pub(crate) const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::SendImmediate { .. } | Self::Immediate { .. } => {
                WcOpcode::Send
            }
            Self::RdmaWrite { .. } | Self::RdmaWriteImmediate { .. } => WcOpcode::RdmaWrite,
            Self::RdmaRead { .. } => WcOpcode::RdmaRead,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::CmpSwap { .. } => WcOpcode::CmpSwap,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
            Self::BindMw { .. } => WcOpcode::BindMw,
        }
    }
}

/// A request for the send queue. Atomics use no local memory: the previous value is in
/// [`Wc::value`](crate::verbs::Wc::value).
#[derive(Clone, Debug)]
pub struct SendWr {
    /// Identifier chosen by the application.
    pub id: WrId,
    /// Operation, with its remote address and parameters.
    pub op: SendOp,
    /// Local memory to send from, or to read into.
    pub sges: ArrayVec<Sge, SGE_MAX>,
    /// Wait for all earlier Reads and Atomics of this queue before starting.
    pub fence: bool,
    /// Success raises a completion. Failure always does.
    pub signaled: bool,
    /// See [`inaccessible`](Self::inaccessible).
    pub inaccessible: bool,
}

impl SendWr {
    /// A signalled, unfenced request. Panics if there are more than [`SGE_MAX`] elements.
    #[must_use]
    pub fn new(id: WrId, op: SendOp, sges: impl IntoIterator<Item = Sge>) -> Self {
        let sges = sges.into_iter().collect();
        Self { id, op, sges, fence: false, signaled: true, inaccessible: false }
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

    /// Adds a fence to the request.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Suppresses the completion on success.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Marks the request as one that uses memory without permission: an invalid key, a range
    /// outside its region, a missing right. The queue pair accepts it; in its turn it fails with
    /// [`WcStatus::LocProtErr`](crate::verbs::WcStatus::LocProtErr) and ends the stream (RFC 5040
    /// §7.1 (1)). Its `sges` are ignored.
    #[must_use]
    pub fn inaccessible(mut self) -> Self {
        self.inaccessible = true;
        self
    }

    pub(crate) fn len(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// A request for the receive queue: a buffer for one incoming Send.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// Identifier chosen by the application.
    pub id: WrId,
    /// Memory for the message.
    pub sges: ArrayVec<Sge, SGE_MAX>,
    /// See [`inaccessible`](Self::inaccessible).
    pub inaccessible: bool,
}

impl RecvWr {
    /// A receive buffer from the given memory. Panics if there are more than [`SGE_MAX`] elements.
    #[must_use]
    pub fn new(id: WrId, sges: impl IntoIterator<Item = Sge>) -> Self {
        Self { id, sges: sges.into_iter().collect(), inaccessible: false }
    }

    /// Like [`SendWr::inaccessible`]. A message with payload for it is not placed and ends the
    /// stream at delivery; the request fails with
    /// [`WcStatus::LocProtErr`](crate::verbs::WcStatus::LocProtErr).
    #[must_use]
    pub fn inaccessible(mut self) -> Self {
        self.inaccessible = true;
        self
    }

    pub(crate) fn len(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_buffer_is_what_its_octets_say() {
        let buffer = RemoteBuffer { stag: Stag(0x0102_0304), to: TaggedOffset(5) };
        let octets = buffer.to_octets();
        assert_eq!(octets, [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(RemoteBuffer::from_octets(&octets), Some(buffer));
        assert_eq!(RemoteBuffer::from_octets(&octets[1..]), None);
    }
}
