//! An outgoing message: the common part of its segments, and the location of their bytes.

use arrayvec::ArrayVec;

use crate::ddp::tx::Target;
use crate::mpa::startup::RtrKind;
use crate::types::{Msn, QueueNumber, Stag, TaggedOffset};
use crate::verbs::{RemoteBuffer, SendOp};
use crate::wire::ProtocolVersion;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::FPDU_HEADER_LEN;
use crate::wire::rdmap::{Control, Opcode};

/// Steering tag of the ready-to-receive message. Shipping hardware refuses 0 even at length 0.
// spec: MPA2-9.2-12
pub(super) const RTR_STAG: Stag = Stag(1);

/// Bytes after the DDP header that are not gathered from registered memory.
pub(crate) type Inline = ArrayVec<u8, 52>;

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) target: Target,
    pub(crate) opcode: Opcode,
    /// Bytes that follow the DDP header of the only segment; empty when payload is gathered.
    pub(crate) inline: Inline,
    pub(crate) source: Source,
    pub(crate) len: u32,
    pub(crate) framed_len: u32,
}

impl Message {
    pub(super) fn gathered(target: Target, opcode: Opcode, source: Source, len: u32) -> Self {
        Self { target, opcode, inline: Inline::new(), source, len, framed_len: 0 }
    }

    /// A message of one segment with these bytes after its DDP header.
    pub(super) fn inline(target: Target, opcode: Opcode, source: Source, octets: &[u8]) -> Self {
        let inline = octets.iter().copied().collect();
        Self { target, opcode, inline, source, len: 0, framed_len: 0 }
    }

    pub(crate) const fn ulpdu_len(&self, payload_len: u32) -> usize {
        self.target.header_len() + self.inline.len() + payload_len as usize
    }

    // spec: DDP-4.2-1
    pub(crate) fn head(&self, version: ProtocolVersion) -> Head {
        let control = Control { version, opcode: self.opcode }.to_byte();
        Head { target: self.target, control, version, inline: self.inline.clone() }
    }
}

/// DDP header and RDMAP header (a Terminate that returns a Read Request: 18 + 4 + 2 + 18 + 28, or
/// an Atomic Request: 18 + 52).
pub(crate) const ULPDU_FRONT_LEN_MAX: usize = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// No payload besides the inline bytes.
    Inline,
    Work(u64),
    /// In the kept bytes: the data for an inbound RDMA Read. The answer to an Atomic is inline.
    Response(u64),
}

/// The common part of the segments of one message.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) target: Target,
    pub(crate) control: u8,
    pub(crate) version: ProtocolVersion,
    /// Bytes after the DDP header of the only segment; empty when payload is gathered.
    pub(crate) inline: Inline,
}

pub(crate) struct Front {
    octets: [u8; ULPDU_FRONT_LEN_MAX],
    len: usize,
}

impl Front {
    #[inline]
    pub(crate) fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

impl Head {
    #[inline]
    pub(crate) fn front(&self, offset: u32, last: bool) -> Front {
        let mut octets = [0; ULPDU_FRONT_LEN_MAX];
        let header = self.target.segment_header(self.control, self.version, offset, last);
        let header_len = header.emit(&mut octets);
        if self.inline.is_empty() {
            return Front { octets, len: header_len };
        }
        let len = header_len + self.inline.len();
        octets[header_len..len].copy_from_slice(&self.inline);
        Front { octets, len }
    }
}

/// Length and DDP header of a tagged FPDU as two words, each written and read as a whole, so that
/// the processor can forward the store to the load.
pub(super) struct TaggedHead {
    pub(super) halves: [[u8; Self::LEN / 2]; 2],
}

impl TaggedHead {
    pub(super) const LEN: usize = FPDU_HEADER_LEN + TaggedHeader::LEN;

    #[inline]
    pub(super) fn new(length: u16, header: &TaggedHeader) -> Self {
        let [a, b] = length.to_be_bytes();
        let [c, d, e, f, g, h, to @ ..] = header.to_bytes();
        Self { halves: [[a, b, c, d, e, f, g, h], to] }
    }
}

// spec: RDMAP-4.1-4, EXT-4.1-1
pub(super) const fn untagged(qn: QueueNumber, msn: Msn) -> Target {
    Target::Untagged { qn, msn, invalidate_stag: Stag(0) }
}

/// The message that opens a peer-to-peer connection (RFC 6581 §9.2).
// spec: MPA2-9.2-9
pub(super) const fn rtr_op(kind: RtrKind) -> SendOp {
    let remote = RemoteBuffer { stag: RTR_STAG, to: TaggedOffset(0) };
    match kind {
        RtrKind::SendZero => SendOp::Send { invalidate: None, solicited: false },
        RtrKind::WriteZero => SendOp::RdmaWrite { remote },
        RtrKind::ReadZero => SendOp::RdmaRead { remote },
    }
}
