//! Fast path for most FPDUs of a transfer: segments of RDMA Writes that are next in order. Requires
//! an FPDU that MPA delivers next; two bytes of its header identify a Write. It is placed and
//! delivered in one step, without a delivery token: its delivery has nothing to refuse (RFC 5040
//! §5.1: a Write is not delivered to the application). Any other segment takes `place` and
//! `deliver`.

use crate::mpa::rx::Ulpdu;
use crate::stream::error::StreamError;
use crate::stream::rx::Placer;
use crate::wire::ProtocolVersion;
use crate::wire::ddp::{DdpHeader, TaggedHeader};
use crate::wire::rdmap::{Control, Opcode};

/// `None` if the segment belongs to no RDMA Write of this version.
#[inline(always)]
pub(super) fn write_header(
    front: [u8; TaggedHeader::LEN],
    version: ProtocolVersion,
) -> Option<TaggedHeader> {
    let control = Control { version, opcode: Opcode::RdmaWrite }.to_byte();
    let header = TaggedHeader::from_bytes(front);
    let is_write = DdpHeader::len_by_control(front[0]) == TaggedHeader::LEN
        && header.version == version
        && header.rsvd_ulp == control;
    is_write.then_some(header)
}

impl Placer<'_, '_> {
    #[inline(always)]
    pub(super) fn pass_write(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        header: &TaggedHeader,
    ) -> Result<(), StreamError> {
        self.rx.count_ahead();
        let len = ulpdu.len() - TaggedHeader::LEN;
        self.place_tagged(ulpdu, header, Opcode::RdmaWrite, len)
            .inspect_err(|error| self.note_refused(*error, ulpdu))?;
        self.rx.begin_delivery(Opcode::RdmaWrite, header.last);
        self.deliver_write(
            u32::try_from(len).expect("a ULPDU is at most 64768 bytes"),
            header.last,
        );
        self.rx.note_first();
        Ok(())
    }
}
