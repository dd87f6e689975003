//! Checks that messages are legal (RFC 5040 §4.1, §7.2; RFC 7306 §4.1).

use crate::rdmap::RdmapError;
use crate::wire::ProtocolVersion;
use crate::wire::ddp::DdpHeader;
use crate::wire::rdmap::{BufferModel, Control, Opcode};

/// Checks a segment's opcode. Call before placement: a bad tagged segment must not reach memory.
/// # Errors
/// [`RdmapError::Version`], then [`RdmapError::UnexpectedOpcode`].
#[inline(always)]
pub fn opcode(header: &DdpHeader, version: ProtocolVersion) -> Result<Opcode, RdmapError> {
    let control = Control::from_byte(header.rsvd_ulp());
    // RFC 5040 §4.1: the RDMAP version is the one that was negotiated.
    // spec: RDMAP-4.1-2
    if control.version != version {
        return Err(RdmapError::Version);
    }
    let travels_by = match header {
        DdpHeader::Tagged(_) => BufferModel::Tagged,
        DdpHeader::Untagged(header) => BufferModel::Untagged(header.qn),
    };
    // spec: RDMAP-4.1-1, EXT-8.2-1
    if control.opcode.buffer() == Some(travels_by) {
        Ok(control.opcode)
    } else {
        Err(RdmapError::UnexpectedOpcode)
    }
}
