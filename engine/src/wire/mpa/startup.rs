//! The MPA Request and Reply frames, and the RFC 6581 word in front of their Private Data.

use crate::limits::PRIVATE_DATA_LEN_MAX;

/// Kind of a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

impl StartupKind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Request => Self::Reply,
            Self::Reply => Self::Request,
        }
    }
}

/// Reason why bytes can never become the expected startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupFrameError {
    /// No startup frame has this Key field.
    #[error("the peer does not speak MPA: wrong key")]
    Key,
    /// A Request arrived instead of a Reply, or the other way round (RFC 5044 §7.1.2 (8)).
    #[error("both ends play the same part: an MPA {0:?} frame came")]
    Kind(StartupKind),
    /// PD_Length, given here, is above 512 (RFC 5044 §7.1.1).
    #[error("private data of {0} bytes is above 512")]
    PrivateDataLen(u16),
    /// S is set, but PD_Length, given here, is too short for the enhanced word (RFC 6581 §6).
    #[error("enhanced frame with private data of {0} bytes")]
    EnhancedWord(u16),
}

/// The fixed part of a startup frame, without its length field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupHeader {
    /// Request or Reply.
    pub kind: StartupKind,
    /// M: the sender wants markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: the connection is rejected. Has a meaning only in a Reply.
    pub reject: bool,
    /// S: an [`EnhancedHeader`] leads the Private Data. Never set below revision 2.
    pub enhanced: bool,
    /// The sender supports this engine's extension, Sends and Writes with immediate data, by the
    /// last two of the bits that RFC 5044 §7.1.1 sets to zero and receivers do not check: one asks,
    /// one answers. (siw uses another of these bits for an extension of its own.)
    pub immediates: bool,
    /// Rev: revision of MPA, as on the wire.
    pub revision: u8,
}

impl StartupHeader {
    /// Length of the fixed part.
    pub const LEN: usize = 20;

    /// Parses the fixed part of a `kind` frame, and PD_Length after it. `Ok(None)`: more bytes are
    /// needed. Fails as soon as the bytes exclude a valid frame.
    pub fn parse(
        kind: StartupKind,
        bytes: &[u8],
    ) -> Result<Option<(Self, u16)>, StartupFrameError> {
        check_key(kind, bytes)?;
        let Some(&[.., flags, revision, hi, lo]) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Ok(None);
        };
        // RFC 5044 §7.1.1: reserved flag bits are not checked. S is one of them in revision 1.
        // spec: MPA-7.1.1-4, MPA2-6-4
        let header = Self {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0,
            // spec: MPA2-6-7
            enhanced: revision >= 2 && flags & ENHANCED != 0,
            immediates: match kind {
                StartupKind::Request => flags & ASKS_IMMEDIATES != 0,
                StartupKind::Reply => flags & (ASKS_IMMEDIATES | HAS_IMMEDIATES) == HAS_IMMEDIATES,
            },
            revision,
        };
        let private_data_len = u16::from_be_bytes([hi, lo]);
        // RFC 5044 §7.1.1: PD_Length above 512 makes the frame invalid; the connection is closed.
        // spec: MPA-7.1.1-6, SEC-R-19
        if usize::from(private_data_len) > PRIVATE_DATA_LEN_MAX {
            return Err(StartupFrameError::PrivateDataLen(private_data_len));
        }
        // RFC 6581 §6: with S set the Private Data begins with the enhanced word.
        // spec: MPA2-6-1
        if header.enhanced && usize::from(private_data_len) < EnhancedHeader::LEN {
            return Err(StartupFrameError::EnhancedWord(private_data_len));
        }
        Ok(Some((header, private_data_len)))
    }

    fn to_bytes(self, private_data_len: u16) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let [hi, lo] = private_data_len.to_be_bytes();
        let flags = if self.markers { MARKERS } else { 0 }
            | if self.crc { CRC } else { 0 }
            | if self.reject { REJECT } else { 0 }
            | if self.enhanced { ENHANCED } else { 0 }
            | match self.kind {
                _ if !self.immediates => 0,
                StartupKind::Request => ASKS_IMMEDIATES,
                StartupKind::Reply => HAS_IMMEDIATES,
            };
        let (key, rest) = bytes.split_at_mut(self.kind.key().len());
        key.copy_from_slice(self.kind.key());
        rest.copy_from_slice(&[flags, self.revision, hi, lo]);
        bytes
    }
}

/// A startup frame: the fixed part and its Private Data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupFrame<'a> {
    /// The fixed part.
    pub header: StartupHeader,
    /// All Private Data, the enhanced word included; 0 to 512 bytes.
    pub private_data: &'a [u8],
}

impl<'a> StartupFrame<'a> {
    pub(crate) const LEN_MAX: usize = StartupHeader::LEN + PRIVATE_DATA_LEN_MAX;

    /// Parses a frame of either kind at the start of `bytes`. Returns the frame and its length;
    /// `Ok(None)`: more bytes are needed. Fails as soon as the bytes exclude a valid frame.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, StartupFrameError> {
        match Self::parse_as(StartupKind::Request, bytes) {
            Err(StartupFrameError::Kind(kind)) => Self::parse_as(kind, bytes),
            result => result,
        }
    }

    /// Like [`parse`](Self::parse), for a frame of the given kind only.
    pub(crate) fn parse_as(
        kind: StartupKind,
        bytes: &'a [u8],
    ) -> Result<Option<(Self, usize)>, StartupFrameError> {
        let Some((header, private_data_len)) = StartupHeader::parse(kind, bytes)? else {
            return Ok(None);
        };
        let len = StartupHeader::LEN.saturating_add(usize::from(private_data_len));
        let private_data = bytes.get(StartupHeader::LEN..len);
        Ok(private_data.map(|private_data| (Self { header, private_data }, len)))
    }

    /// The enhanced word, if S is set, and the Private Data that belongs to the ULP.
    // RFC 6581 §6: the ULP's data follows the word; the ULP never sees the word.
    // spec: MPA2-6-6
    #[must_use]
    pub fn split_private_data(&self) -> (Option<EnhancedHeader>, &'a [u8]) {
        match self.private_data.split_first_chunk() {
            Some((word, rest)) if self.header.enhanced => {
                (Some(EnhancedHeader::from_bytes(*word)), rest)
            }
            _ => (None, self.private_data),
        }
    }

    /// Appends the frame to `out`. Panics if the Private Data is longer than 512 bytes: a bug of
    /// the caller.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let len = self.private_data.len();
        assert!(len <= PRIVATE_DATA_LEN_MAX, "private data was limited when it was configured");
        let len = u16::try_from(len).expect("512 fits 16 bits");
        out.extend_from_slice(&self.header.to_bytes(len));
        out.extend_from_slice(self.private_data);
    }
}

bitflags::bitflags! {
    /// Kinds of first message ("ready to receive") of a peer-to-peer connection (RFC 6581 §9.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RtrKinds: u8 {
        /// B: a Send without payload.
        const SEND = 1;
        /// C: an RDMA Write without payload.
        const WRITE = 1 << 1;
        /// D: an RDMA Read of no bytes.
        const READ = 1 << 2;
    }
}

/// The word in front of the Private Data of an enhanced frame (RFC 6581 §9): A B IRD(14) C D
/// ORD(14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnhancedHeader {
    /// A: peer-to-peer model, in which the initiator sends an RTR message first.
    pub peer_to_peer: bool,
    /// B, C, D: the RTR messages that the sender of the frame supports.
    pub rtr: RtrKinds,
    /// Inbound RDMA Reads accepted at a time: 14 bits, or [`NOT_NEGOTIATED`](Self::NOT_NEGOTIATED).
    pub ird: u16,
    /// Outbound RDMA Reads wanted at a time: 14 bits, or [`NOT_NEGOTIATED`](Self::NOT_NEGOTIATED).
    pub ord: u16,
}

impl EnhancedHeader {
    /// Length of the word.
    pub const LEN: usize = 4;

    /// Value of IRD or ORD that is not a number: the ULPs agree on it themselves.
    // RFC 6581 §9.1: all ones means that the value is not negotiated by MPA.
    pub const NOT_NEGOTIATED: u16 = 0x3FFF;

    /// Parses the word. Any bytes are valid.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes(bytes);
        let [ird_hi, ird_lo, ord_hi, ord_lo] = bytes;
        let mut rtr = RtrKinds::empty();
        rtr.set(RtrKinds::SEND, word & RTR_SEND != 0);
        rtr.set(RtrKinds::WRITE, word & RTR_WRITE != 0);
        rtr.set(RtrKinds::READ, word & RTR_READ != 0);
        Self {
            peer_to_peer: word & PEER_TO_PEER != 0,
            rtr,
            ird: u16::from_be_bytes([ird_hi, ird_lo]) & DEPTH_MASK,
            ord: u16::from_be_bytes([ord_hi, ord_lo]) & DEPTH_MASK,
        }
    }

    /// The bytes of the word. Only the low 14 bits of `ird` and `ord` are used.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let word = if self.peer_to_peer { PEER_TO_PEER } else { 0 }
            | if self.rtr.contains(RtrKinds::SEND) { RTR_SEND } else { 0 }
            | if self.rtr.contains(RtrKinds::WRITE) { RTR_WRITE } else { 0 }
            | if self.rtr.contains(RtrKinds::READ) { RTR_READ } else { 0 }
            | u32::from(self.ird & DEPTH_MASK) << 16
            | u32::from(self.ord & DEPTH_MASK);
        // spec: MPA2-9-1
        word.to_be_bytes()
    }
}

// spec: MPA-7.1.1-1, MPA-7.1.2-10
fn check_key(kind: StartupKind, bytes: &[u8]) -> Result<(), StartupFrameError> {
    let begins = |kind: StartupKind| kind.key().iter().zip(bytes).all(|(key, byte)| key == byte);
    if begins(kind) {
        Ok(())
    } else if begins(kind.other()) {
        Err(StartupFrameError::Kind(kind.other()))
    } else {
        Err(StartupFrameError::Key)
    }
}

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// Flag of a Request that asks for Sends and Writes with immediate data.
const ASKS_IMMEDIATES: u8 = 0x01;
/// Flag of a Reply that grants them, without the bit that asks: siw copies the flags of the Request
/// into its Reply, including bits that it does not know.
const HAS_IMMEDIATES: u8 = 0x02;

const PEER_TO_PEER: u32 = 1 << 31;
const RTR_SEND: u32 = 1 << 30;
const RTR_WRITE: u32 = 1 << 15;
const RTR_READ: u32 = 1 << 14;
const DEPTH_MASK: u16 = 0x3FFF;

#[cfg(test)]
mod tests;
