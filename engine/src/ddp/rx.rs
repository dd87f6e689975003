//! Checks of a received segment's header.

use crate::ddp::DdpError;
use crate::wire::ProtocolVersion;
use crate::wire::ddp::DdpHeader;

/// Reads the header at the front of a ULPDU and checks its version.
/// # Errors
/// [`DdpError::Short`], or the version error of the segment's kind.
#[inline(always)]
pub fn header(ulpdu_front: &[u8], version: ProtocolVersion) -> Result<DdpHeader, DdpError> {
    let header = DdpHeader::parse(ulpdu_front).map_err(|_| DdpError::Short)?;
    // RFC 5041 §4.1: the DDP version is the same on every segment of a stream; §7.2 gives tagged
    // and untagged segments different codes.
    // spec: DDP-4.1-6
    if header.version() == version {
        return Ok(header);
    }
    Err(match header {
        DdpHeader::Tagged(_) => DdpError::TaggedVersion,
        DdpHeader::Untagged(_) => DdpError::UntaggedVersion,
    })
}
