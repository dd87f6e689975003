//! The Terminate message: the reason for the end of a stream (RFC 5040 §4.8).
//!
//! ```text
//! Layer(4) EType(4) | Error Code (1) | M D R reserved(5) | reserved (1)
//! DDP Segment Length (2) | terminated DDP header (14 or 18) | terminated RDMAP header (28)
//! ```
//!
//! M, D and R say which parts of the second line are present.

mod code;

pub use code::{ErrorType, TerminateCode};

use arrayvec::ArrayVec;

use super::TooShort;
use super::ddp::DdpHeader;
use super::rdmap::ReadRequest;

/// A Terminate message, as it follows the DDP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The error.
    pub code: TerminateCode,
    /// DDP Segment Length: bytes of the segment in error, its header included (M).
    pub segment_len: Option<u16>,
    /// The DDP header of the segment in error, as it was received: 14 bytes, or 18 (D).
    pub ddp_header: Option<ArrayVec<u8, { DdpHeader::LEN_MAX }>>,
    /// The header of the Read Request in error (R).
    pub rdmap_header: Option<[u8; ReadRequest::LEN]>,
}

impl Terminate {
    /// Length of the longest Terminate message.
    pub const LEN_MAX: usize =
        CONTROL_LEN + SEGMENT_LEN_LEN + DdpHeader::LEN_MAX + ReadRequest::LEN;

    /// A message with only the error.
    #[must_use]
    pub const fn new(code: TerminateCode) -> Self {
        Self { code, segment_len: None, ddp_header: None, rdmap_header: None }
    }

    /// A message about the DDP segment that begins with `segment`, which may be cut anywhere, and
    /// is `segment_len` bytes long. The header is included if `segment` has all of it.
    // RFC 5040 §4.8: the length is that of the DDP segment as the lower layer passed it up.
    // spec: RDMAP-4.8-7
    #[must_use]
    pub fn about_segment(code: TerminateCode, segment: &[u8], segment_len: u16) -> Self {
        let header = segment
            .first()
            .and_then(|&control| segment.get(..DdpHeader::len_by_control(control)))
            .map(|header| header.iter().copied().collect());
        Self { code, segment_len: Some(segment_len), ddp_header: header, rdmap_header: None }
    }

    /// Adds the header of the Read Request in error to the message.
    // RFC 5040 §4.8: the RDMAP header is returned for a Read Request only.
    // spec: RDMAP-4.8-5
    #[must_use]
    pub fn with_read_request(mut self, header: [u8; ReadRequest::LEN]) -> Self {
        self.rdmap_header = Some(header);
        self
    }

    /// Parses a message from the bytes after its DDP header. Parts that are announced but missing
    /// are left out: some peers set R without sending the header. Bytes that no flag announces are
    /// ignored. Fails if there are too few bytes for the error code and the flags.
    pub fn parse(bytes: &[u8]) -> Result<(Self, TerminateLayout), TooShort> {
        let Some((control, mut rest)) = bytes.split_first_chunk::<CONTROL_LEN>() else {
            return Err(TooShort { need: CONTROL_LEN, have: bytes.len() });
        };
        let layout = TerminateLayout::of(*control, !rest.is_empty());
        let (code, present) = layout.read(*control);
        let mut terminate = Self::new(code);
        // RFC 5040 §4.8: M, D and R each imply that the length field is present; M, that it is
        // valid.
        // spec: RDMAP-4.8-3
        if present != Present::NOTHING
            && let Some((len, after)) = rest.split_first_chunk()
        {
            terminate.segment_len = present.segment_len.then_some(u16::from_be_bytes(*len));
            rest = after;
        }
        if present.ddp_header
            && let Some(&first) = rest.first()
            && let Some((header, after)) = rest.split_at_checked(DdpHeader::len_by_control(first))
        {
            terminate.ddp_header = Some(header.iter().copied().collect());
            rest = after;
        }
        if present.rdmap_header {
            terminate.rdmap_header = rest.first_chunk().copied();
        }
        Ok((terminate, layout))
    }

    /// The bytes of the message.
    // RFC 5040 §4.8: reserved bits are zero when sent; parts that are absent take no bytes.
    // spec: RDMAP-4.8-1, RDMAP-4.8-2
    #[must_use]
    pub fn to_bytes(&self) -> ArrayVec<u8, { Self::LEN_MAX }> {
        let flags = if self.segment_len.is_some() { SEGMENT_LEN } else { 0 }
            | if self.ddp_header.is_some() { DDP_HEADER } else { 0 }
            | if self.rdmap_header.is_some() { RDMAP_HEADER } else { 0 };
        let TerminateCode { layer, etype, code } = self.code;
        let mut out = ArrayVec::from_iter([layer << 4 | etype & 0xF, code, flags, 0]);
        if flags != 0 {
            out.extend(self.segment_len.unwrap_or(0).to_be_bytes());
        }
        out.extend(self.ddp_header.iter().flatten().copied());
        out.extend(self.rdmap_header.iter().flatten().copied());
        out
    }
}

/// Layout of the first three bytes of a received Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminateLayout {
    /// The layout of RFC 5040 §4.8.
    Rfc,
    /// Linux siw on little-endian machines: EType before Layer, and M, D, R of value 1, 2, 4.
    SwappedBitFields,
}

impl TerminateLayout {
    /// The RFC's layout is preferred, unless it gives an unassigned error, or more bytes follow
    /// although it has none of M, D, R set. The flags decide where Layer and EType are equal.
    fn of(control: [u8; CONTROL_LEN], something_follows: bool) -> Self {
        let (code, present) = Self::Rfc.read(control);
        let (swapped_code, swapped_present) = Self::SwappedBitFields.read(control);
        let unexplained =
            something_follows && present == Present::NOTHING && swapped_present != Present::NOTHING;
        if (!code.is_assigned() || unexplained) && swapped_code.is_assigned() {
            Self::SwappedBitFields
        } else {
            Self::Rfc
        }
    }

    const fn read(self, control: [u8; CONTROL_LEN]) -> (TerminateCode, Present) {
        let [layer_etype, code, flags, _reserved] = control;
        let (high, low) = (layer_etype >> 4, layer_etype & 0xF);
        // RFC 5040 §4.8: the 13 reserved bits are ignored when received.
        // spec: RDMAP-4.8-2
        match self {
            Self::Rfc => (
                TerminateCode { layer: high, etype: low, code },
                Present {
                    segment_len: flags & SEGMENT_LEN != 0,
                    ddp_header: flags & DDP_HEADER != 0,
                    rdmap_header: flags & RDMAP_HEADER != 0,
                },
            ),
            Self::SwappedBitFields => (
                TerminateCode { layer: low, etype: high, code },
                Present {
                    segment_len: flags & 1 != 0,
                    ddp_header: flags & 2 != 0,
                    rdmap_header: flags & 4 != 0,
                },
            ),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Present {
    segment_len: bool,
    ddp_header: bool,
    rdmap_header: bool,
}

impl Present {
    const NOTHING: Self = Self { segment_len: false, ddp_header: false, rdmap_header: false };
}

const CONTROL_LEN: usize = 4;
const SEGMENT_LEN_LEN: usize = 2;

const SEGMENT_LEN: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;

#[cfg(test)]
mod tests;
