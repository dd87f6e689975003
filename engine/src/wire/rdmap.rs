//! RDMAP headers (RFC 5040 §4, RFC 7306 §4 to §6). Every DDP segment carries the RDMAP control
//! byte, RV(2) reserved(2) opcode(4), in the first RsvdULP byte. Read Requests and the atomic
//! messages have their own header after the DDP header.

mod atomic;
mod read;

pub use atomic::{AtomicOpcode, AtomicRequest, AtomicResponse};
pub use read::ReadRequest;

use std::fmt;

use super::{ProtocolVersion, WrongLength};
use crate::types::{QueueNumber, Stag};

/// The RDMAP control byte (RFC 5040 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// RV.
    pub version: ProtocolVersion,
    /// Kind of message.
    pub opcode: Opcode,
}

impl Control {
    /// Parses the byte. Any byte is valid.
    // RFC 5040 §4.1: the two reserved bits are zero when sent and ignored when received.
    // spec: RDMAP-4.1-3
    #[must_use]
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        Self { version: ProtocolVersion::from_bits(byte >> 6), opcode: Opcode::from_bits(byte) }
    }

    /// The byte.
    #[must_use]
    #[inline]
    pub const fn to_byte(self) -> u8 {
        self.version.bits() << 6 | self.opcode.bits()
    }
}

/// The kind of an RDMAP message (RFC 5040 §4.1, RFC 7306 §4.1, registry RFC 6580 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// 0x0 RDMA Write.
    RdmaWrite,
    /// 0x1 RDMA Read Request.
    ReadRequest,
    /// 0x2 RDMA Read Response.
    ReadResponse,
    /// 0x3 Send.
    Send,
    /// 0x4 Send with Invalidate.
    SendInvalidate,
    /// 0x5 Send with Solicited Event.
    SendSolicited,
    /// 0x6 Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate,
    /// 0x7 Terminate.
    Terminate,
    /// 0x8 Immediate Data.
    Immediate,
    /// 0x9 Immediate Data with Solicited Event.
    ImmediateSolicited,
    /// 0xA Atomic Request.
    AtomicRequest,
    /// 0xB Atomic Response.
    AtomicResponse,
    /// 0xC Send with Immediate Data: assigned by no RFC, used between ends of this engine that have
    /// agreed on it. Its Invalidate STag field has 32 bits for the receiver's completion.
    SendImmediate,
    /// 0xD Send with Solicited Event and Immediate Data, as 0xC.
    SendImmediateSolicited,
    /// 0xE and 0xF: not assigned, or experimental.
    Reserved(ReservedOpcode),
}

/// An opcode without meaning, 0xE or 0xF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservedOpcode(u8);

impl Opcode {
    /// The opcode in the four low bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0xF {
            0x0 => Self::RdmaWrite,
            0x1 => Self::ReadRequest,
            0x2 => Self::ReadResponse,
            0x3 => Self::Send,
            0x4 => Self::SendInvalidate,
            0x5 => Self::SendSolicited,
            0x6 => Self::SendSolicitedInvalidate,
            0x7 => Self::Terminate,
            0x8 => Self::Immediate,
            0x9 => Self::ImmediateSolicited,
            0xA => Self::AtomicRequest,
            0xB => Self::AtomicResponse,
            0xC => Self::SendImmediate,
            0xD => Self::SendImmediateSolicited,
            reserved => Self::Reserved(ReservedOpcode(reserved)),
        }
    }

    /// The opcode as four low bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::RdmaWrite => 0x0,
            Self::ReadRequest => 0x1,
            Self::ReadResponse => 0x2,
            Self::Send => 0x3,
            Self::SendInvalidate => 0x4,
            Self::SendSolicited => 0x5,
            Self::SendSolicitedInvalidate => 0x6,
            Self::Terminate => 0x7,
            Self::Immediate => 0x8,
            Self::ImmediateSolicited => 0x9,
            Self::AtomicRequest => 0xA,
            Self::AtomicResponse => 0xB,
            Self::SendImmediate => 0xC,
            Self::SendImmediateSolicited => 0xD,
            Self::Reserved(ReservedOpcode(bits)) => bits,
        }
    }

    /// Buffer model by which DDP must carry this message; `None` for reserved opcodes.
    // RFC 5040 §4.1, RFC 7306 §4.1: opcode, T and QN belong together.
    // spec: RDMAP-3.1-1, EXT-4.1-1
    #[must_use]
    pub const fn buffer(self) -> Option<BufferModel> {
        Some(match self {
            Self::RdmaWrite | Self::ReadResponse => BufferModel::Tagged,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited
            | Self::SendImmediate
            | Self::SendImmediateSolicited => BufferModel::Untagged(QueueNumber::SEND),
            Self::ReadRequest | Self::AtomicRequest => {
                BufferModel::Untagged(QueueNumber::READ_REQUEST)
            }
            Self::Terminate => BufferModel::Untagged(QueueNumber::TERMINATE),
            Self::AtomicResponse => BufferModel::Untagged(QueueNumber::ATOMIC_RESPONSE),
            Self::Reserved(_) => return None,
        })
    }

    #[must_use]
    pub(crate) const fn is_request(self) -> bool {
        matches!(self, Self::ReadRequest | Self::AtomicRequest)
    }

    /// Returns true if the receiver must invalidate the STag in the Invalidate STag field (RFC 5040
    /// §5.3).
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Asks the receiver to raise an event (RFC 5040 §5.3, RFC 7306 §6.1).
    #[must_use]
    pub(crate) const fn solicits_event(self) -> bool {
        matches!(
            self,
            Self::SendSolicited
                | Self::SendSolicitedInvalidate
                | Self::ImmediateSolicited
                | Self::SendImmediateSolicited
        )
    }

    /// The RFCs' name of the message.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RdmaWrite => "RDMA Write",
            Self::ReadRequest => "RDMA Read Request",
            Self::ReadResponse => "RDMA Read Response",
            Self::Send => "Send",
            Self::SendInvalidate => "Send with Invalidate",
            Self::SendSolicited => "Send with Solicited Event",
            Self::SendSolicitedInvalidate => "Send with Solicited Event and Invalidate",
            Self::Terminate => "Terminate",
            Self::Immediate => "Immediate Data",
            Self::ImmediateSolicited => "Immediate Data with Solicited Event",
            Self::AtomicRequest => "Atomic Request",
            Self::AtomicResponse => "Atomic Response",
            Self::SendImmediate => "Send with Immediate Data",
            Self::SendImmediateSolicited => "Send with Solicited Event and Immediate Data",
            Self::Reserved(_) => "Reserved",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// DDP buffer model of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferModel {
    /// A tagged buffer (T = 1).
    Tagged,
    /// This queue of untagged buffers (T = 0).
    Untagged(QueueNumber),
}

/// Invalidate STag field of an Immediate Data message that reports the RDMA Write before it, by 32
/// bits and the length of the Write: agreed between ends of this engine. RFC 7306 §6.3 leaves it 0.
pub(crate) const ABOUT_A_WRITE: Stag = Stag(1);

/// Length of an Immediate Data message after the DDP header (RFC 7306 §6.3).
pub(crate) const IMMEDIATE_DATA_LEN: usize = 8;

fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], WrongLength> {
    bytes.try_into().map_err(|_| WrongLength { need: N, have: bytes.len() })
}

#[cfg(test)]
mod tests;
