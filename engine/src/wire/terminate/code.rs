//! The error triples a Terminate message can carry.

use std::fmt;

/// Layer, error type and error code (RFC 5040 §4.8, registry RFC 6580 §3), displayed as
/// `layer/type/code`, the code in two hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// Layer that found the error, 0 to 15: 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type, 0 to 15; its meaning depends on the layer.
    pub etype: u8,
    /// Error code; its meaning depends on layer and type.
    pub code: u8,
}

/// Kind of error that a Terminate reports: its layer and error type (RFC 5040 §4.8, RFC 6580 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorType {
    /// 0/0: RDMAP, local catastrophic error.
    LocalCatastrophic,
    /// 0/1: RDMAP, remote protection error.
    RemoteProtection,
    /// 0/2: RDMAP, remote operation error.
    RemoteOperation,
    /// 1/0: DDP, local catastrophic error.
    DdpLocalCatastrophic,
    /// 1/1: DDP, tagged buffer error.
    TaggedBuffer,
    /// 1/2: DDP, untagged buffer error.
    UntaggedBuffer,
    /// 2, with any type: the lower layer, MPA.
    Llp,
    /// A layer or type that no RFC assigns.
    Unassigned,
}

impl TerminateCode {
    /// 0/0/00: A failure of the sender that no message of the peer caused.
    pub const LOCAL_CATASTROPHIC: Self = Self::new(0, 0, 0x00);

    /// 0/1/00: The STag to read from, or to invalidate, is not valid.
    pub const RDMAP_INVALID_STAG: Self = Self::new(0, 1, 0x00);
    /// 0/1/01: The bytes to read lie outside the buffer.
    pub const RDMAP_BASE_BOUNDS: Self = Self::new(0, 1, 0x01);
    /// 0/1/02: The buffer does not grant the access.
    pub const RDMAP_ACCESS_RIGHTS: Self = Self::new(0, 1, 0x02);
    /// 0/1/03: The STag belongs to another stream or protection domain.
    pub const RDMAP_STAG_NOT_ASSOCIATED: Self = Self::new(0, 1, 0x03);
    /// 0/1/04: Offset and length together exceed 64 bits.
    pub const RDMAP_TO_WRAP: Self = Self::new(0, 1, 0x04);
    /// 0/1/09: This stream may not invalidate the STag in a Send with Invalidate.
    pub const RDMAP_CANNOT_INVALIDATE: Self = Self::new(0, 1, 0x09);
    /// 0/1/FF: A protection fault that fits no other code.
    pub const RDMAP_PROTECTION_UNSPECIFIED: Self = Self::new(0, 1, 0xFF);
    /// 0/2/05: RV is not the negotiated version.
    pub const RDMAP_INVALID_VERSION: Self = Self::new(0, 2, 0x05);
    /// 0/2/06: The opcode is reserved or illegal for its queue, or the Response matches no request.
    pub const RDMAP_UNEXPECTED_OPCODE: Self = Self::new(0, 2, 0x06);
    /// 0/2/07: A failure that is confined to the stream.
    pub const RDMAP_CATASTROPHIC_STREAM: Self = Self::new(0, 2, 0x07);
    /// 0/2/08: A failure of the whole RNIC.
    pub const RDMAP_CATASTROPHIC_GLOBAL: Self = Self::new(0, 2, 0x08);
    /// 0/2/09: This stream may not invalidate the STag: a failed operation.
    pub const RDMAP_OPERATION_CANNOT_INVALIDATE: Self = Self::new(0, 2, 0x09);
    /// 0/2/FF: A failed operation that fits no other code.
    pub const RDMAP_OPERATION_UNSPECIFIED: Self = Self::new(0, 2, 0xFF);

    /// 1/0/00: A failure of the receiver while placing.
    pub const DDP_LOCAL_CATASTROPHIC: Self = Self::new(1, 0, 0x00);
    /// 1/1/00: The STag is not valid, or does not grant remote write.
    pub const DDP_TAGGED_INVALID_STAG: Self = Self::new(1, 1, 0x00);
    /// 1/1/01: The payload reaches outside the buffer.
    pub const DDP_TAGGED_BASE_BOUNDS: Self = Self::new(1, 1, 0x01);
    /// 1/1/02: The STag belongs to another stream or protection domain.
    pub const DDP_TAGGED_STAG_NOT_ASSOCIATED: Self = Self::new(1, 1, 0x02);
    /// 1/1/03: Offset and length together exceed 64 bits.
    pub const DDP_TAGGED_TO_WRAP: Self = Self::new(1, 1, 0x03);
    /// 1/1/04: DV of a tagged segment is not the negotiated version.
    pub const DDP_TAGGED_INVALID_VERSION: Self = Self::new(1, 1, 0x04);
    /// 1/2/01: There is no such queue.
    pub const DDP_UNTAGGED_INVALID_QN: Self = Self::new(1, 2, 0x01);
    /// 1/2/02: The message is the next one, and no buffer is queued for it.
    pub const DDP_UNTAGGED_NO_BUFFER: Self = Self::new(1, 2, 0x02);
    /// 1/2/03: No queued buffer is for the message.
    pub const DDP_UNTAGGED_MSN_RANGE: Self = Self::new(1, 2, 0x03);
    /// 1/2/04: The message offset lies outside the buffer.
    pub const DDP_UNTAGGED_INVALID_MO: Self = Self::new(1, 2, 0x04);
    /// 1/2/05: The message does not fit in the buffer.
    pub const DDP_UNTAGGED_TOO_LONG: Self = Self::new(1, 2, 0x05);
    /// 1/2/06: DV of an untagged segment is not the negotiated version.
    pub const DDP_UNTAGGED_INVALID_VERSION: Self = Self::new(1, 2, 0x06);

    /// 2/0/01: TCP closed or lost; hardly ever sent.
    pub const MPA_CONNECTION_LOST: Self = Self::new(2, 0, 0x01);
    /// 2/0/02: The CRC of an FPDU is wrong.
    pub const MPA_CRC: Self = Self::new(2, 0, 0x02);
    /// 2/0/03: A marker contradicts the lengths of the FPDUs.
    pub const MPA_MARKER: Self = Self::new(2, 0, 0x03);
    /// 2/0/04: An invalid MPA Request or Reply; hardly ever sent.
    pub const MPA_STARTUP_FRAME: Self = Self::new(2, 0, 0x04);
    /// 2/0/05: A local failure during the setup of an enhanced connection (RFC 6581 §9.3). Never
    /// sent: every failure between Reply and first FPDU has a code of its own.
    pub const MPA_LOCAL_CATASTROPHIC: Self = Self::new(2, 0, 0x05);
    /// 2/0/06: The initiator cannot serve as many Reads as the responder wants (RFC 6581 §9.1).
    pub const MPA_INSUFFICIENT_IRD: Self = Self::new(2, 0, 0x06);
    /// 2/0/07: The two ends support no RTR message in common (RFC 6581 §9.2).
    pub const MPA_NO_MATCHING_RTR: Self = Self::new(2, 0, 0x07);

    const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// Kind of the error.
    #[must_use]
    pub const fn error_type(self) -> ErrorType {
        match (self.layer, self.etype) {
            (0, 0) => ErrorType::LocalCatastrophic,
            (0, 1) => ErrorType::RemoteProtection,
            (0, 2) => ErrorType::RemoteOperation,
            (1, 0) => ErrorType::DdpLocalCatastrophic,
            (1, 1) => ErrorType::TaggedBuffer,
            (1, 2) => ErrorType::UntaggedBuffer,
            (2, _) => ErrorType::Llp,
            _ => ErrorType::Unassigned,
        }
    }

    /// The meaning, in the words of the RFCs.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self.assigned_text() {
            Some(text) => text,
            None => "unassigned error",
        }
    }

    /// Returns true if the RFCs assign a meaning to this triple.
    #[must_use]
    pub const fn is_assigned(self) -> bool {
        self.assigned_text().is_some()
    }

    // RFC 5040 §4.8: the code of a local catastrophic error is arbitrary.
    // spec: RDMAP-4.8-1
    const fn assigned_text(self) -> Option<&'static str> {
        Some(match (self.layer, self.etype, self.code) {
            (0, 0, _) => "local catastrophic error",
            (0, 1, 0x00) => "remote protection error: invalid STag",
            (0, 1, 0x01) => "remote protection error: base or bounds violation",
            (0, 1, 0x02) => "remote protection error: access rights violation",
            (0, 1, 0x03) => "remote protection error: STag not associated with RDMAP stream",
            (0, 1, 0x04) => "remote protection error: TO wrap",
            (0, 1, 0x09) => "remote protection error: STag cannot be invalidated",
            (0, 1, 0xFF) => "remote protection error: unspecified",
            (0, 2, 0x05) => "remote operation error: invalid RDMAP version",
            (0, 2, 0x06) => "remote operation error: unexpected opcode",
            (0, 2, 0x07) => "remote operation error: catastrophic error, localized to RDMAP stream",
            (0, 2, 0x08) => "remote operation error: catastrophic error, global",
            (0, 2, 0x09) => "remote operation error: STag cannot be invalidated",
            (0, 2, 0xFF) => "remote operation error: unspecified",
            (1, 0, 0x00) => "DDP local catastrophic error",
            (1, 1, 0x00) => "DDP tagged buffer error: invalid STag",
            (1, 1, 0x01) => "DDP tagged buffer error: base or bounds violation",
            (1, 1, 0x02) => "DDP tagged buffer error: STag not associated with DDP stream",
            (1, 1, 0x03) => "DDP tagged buffer error: TO wrap",
            (1, 1, 0x04) => "DDP tagged buffer error: invalid DDP version",
            (1, 2, 0x01) => "DDP untagged buffer error: invalid QN",
            (1, 2, 0x02) => "DDP untagged buffer error: invalid MSN, no buffer available",
            (1, 2, 0x03) => "DDP untagged buffer error: invalid MSN, MSN range is not valid",
            (1, 2, 0x04) => "DDP untagged buffer error: invalid MO",
            (1, 2, 0x05) => "DDP untagged buffer error: DDP message too long for available buffer",
            (1, 2, 0x06) => "DDP untagged buffer error: invalid DDP version",
            (2, 0, 0x01) => "MPA error: TCP connection closed, terminated, or lost",
            (2, 0, 0x02) => {
                "MPA error: received MPA CRC does not match the calculated value for the FPDU"
            }
            (2, 0, 0x03) => "MPA error: MPA marker and ULPDU Length fields mismatch",
            (2, 0, 0x04) => "MPA error: invalid MPA Request Frame or MPA Response Frame",
            (2, 0, 0x05) => "MPA error: local catastrophic error",
            (2, 0, 0x06) => "MPA error: insufficient IRD resources",
            (2, 0, 0x07) => "MPA error: no matching RTR option",
            _ => return None,
        })
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:02X}", self.layer, self.etype, self.code)
    }
}
