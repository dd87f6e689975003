//! Cuts a message into segments.

use crate::types::{MsgOffset, Msn, QueueNumber, Stag, TaggedOffset};
use crate::wire::ProtocolVersion;
use crate::wire::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};

/// Destination of a message, constant over its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A tagged buffer.
    Tagged {
        /// The peer's STag.
        stag: Stag,
        /// Tagged offset of the message's first byte.
        to: TaggedOffset,
    },
    /// The next buffer of an untagged queue.
    Untagged {
        /// The queue.
        qn: QueueNumber,
        /// Number of the message on that queue.
        msn: Msn,
        /// The RDMAP Invalidate STag field, 0 when unused.
        invalidate_stag: Stag,
    },
}

impl Target {
    /// Length of a segment header for this target.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::Tagged { .. } => TaggedHeader::LEN,
            Self::Untagged { .. } => UntaggedHeader::LEN,
        }
    }

    /// RFC 5041 §5.2: the segment's TO (or MO) is the message's plus the offset of its payload.
    // spec: DDP-4.2-3, DDP-4.3-1, DDP-5.2-3, DDP-5.2-4
    #[must_use]
    pub(crate) fn segment_header(
        &self,
        control: u8,
        version: ProtocolVersion,
        offset: u32,
        last: bool,
    ) -> DdpHeader {
        match *self {
            Self::Tagged { stag, to } => DdpHeader::Tagged(TaggedHeader {
                last,
                version,
                rsvd_ulp: control,
                stag,
                to: TaggedOffset(to.0.wrapping_add(u64::from(offset))),
            }),
            Self::Untagged { qn, msn, invalidate_stag } => DdpHeader::Untagged(UntaggedHeader {
                last,
                version,
                rsvd_ulp: control,
                invalidate_stag,
                qn,
                msn,
                mo: MsgOffset(offset),
            }),
        }
    }
}

/// Payload bytes of the next segment. RFC 5041 §5.2: a segment, header included, is not larger than
/// the MULPDU; RFC 5044 §4.5 asks for segments as large as possible.
// spec: DDP-5.2-1, MPA-3-3
#[must_use]
pub fn payload_len(target: &Target, remaining: u32, mulpdu: usize) -> u32 {
    let room = mulpdu.saturating_sub(target.header_len());
    remaining.min(u32::try_from(room).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: DDP-4.2-3, DDP-4.3-1, DDP-5.2-1, DDP-5.2-3, DDP-5.2-4
    #[test]
    fn a_message_of_2048_octets_is_cut_as_in_rfc_5041() {
        // RFC 5041 §5.2's own examples, with MULPDU 1500.
        let untagged =
            Target::Untagged { qn: QueueNumber::SEND, msn: Msn::FIRST, invalidate_stag: Stag(0) };
        assert_eq!(payload_len(&untagged, 2048, 1500), 1482);
        assert_eq!(payload_len(&untagged, 2048 - 1482, 1500), 566);
        let header = untagged.segment_header(0x43, ProtocolVersion::IETF, 1482, true);
        let DdpHeader::Untagged(UntaggedHeader { qn, mo, .. }) = header else {
            panic!("an untagged target makes untagged segments");
        };
        assert_eq!((qn, mo), (QueueNumber::SEND, MsgOffset(1482)));
        let tagged = Target::Tagged { stag: Stag(7), to: TaggedOffset(16384) };
        assert_eq!(payload_len(&tagged, 2048, 1500), 1486);
        let header = tagged.segment_header(0x40, ProtocolVersion::IETF, 1486, true);
        let DdpHeader::Tagged(TaggedHeader { stag, to, .. }) = header else {
            panic!("a tagged target makes tagged segments");
        };
        assert_eq!((stag, to), (Stag(7), TaggedOffset(17870)));
    }

    // spec: DDP-5.2-6
    #[test]
    fn an_empty_message_is_one_empty_segment() {
        let tagged = Target::Tagged { stag: Stag(1), to: TaggedOffset(0) };
        assert_eq!(payload_len(&tagged, 0, 1500), 0);
    }
}
