//! Sent FPDUs, parsed from the bytes of one direction by independent code: length after length,
//! markers by their position.

use urnic_engine::wire::ddp::DdpHeader;
use urnic_engine::wire::mpa::StartupFrame;
use urnic_engine::wire::rdmap::{
    AtomicOpcode, AtomicRequest, AtomicResponse, Control, Opcode, ReadRequest,
};

use crate::tshark::dissect::Fields;
use crate::tshark::session::Stream;

/// Adds the fields of a direction. Returns its number of FPDUs.
pub(crate) fn read(stream: &Stream, fields: &mut Fields) -> usize {
    let (frame, len) = StartupFrame::parse(&stream.octets).unwrap().unwrap();
    fields.push("iwarp_mpa.rev", u64::from(frame.header.revision));
    fields.push("iwarp_mpa.pdlength", frame.private_data.len() as u64);
    let mut octets = stream.octets[len..].to_vec();
    if stream.markers {
        let mut at = 0;
        octets.retain(|_| {
            at += 1;
            (at - 1) % 512 >= 4
        });
    }
    let mut rest = &octets[..];
    let mut fpdus = 0;
    while !rest.is_empty() {
        let len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        fields.push("iwarp_mpa.ulpdulength", len as u64);
        segment(&rest[2..2 + len], fields);
        rest = &rest[(2 + len).next_multiple_of(4) + 4..];
        fpdus += 1;
    }
    fpdus
}

fn segment(segment: &[u8], fields: &mut Fields) {
    let header = DdpHeader::parse(segment).unwrap();
    fields.push("iwarp_ddp.last_flag", u64::from(header.last()));
    fields.push("iwarp_ddp.dv", u64::from(header.version().bits()));
    let control = Control::from_byte(header.rsvd_ulp());
    fields.push("iwarp_rdma.version", u64::from(control.version.bits()));
    fields.push("iwarp_rdma.opcode", u64::from(control.opcode.bits()));
    match header {
        DdpHeader::Tagged(tagged) => {
            fields.push("iwarp_ddp.tagged_flag", 1);
            fields.push("iwarp_ddp.stag", u64::from(tagged.stag.0));
            fields.push("iwarp_ddp.tagged_offset", tagged.to.0);
        }
        DdpHeader::Untagged(untagged) => {
            fields.push("iwarp_ddp.tagged_flag", 0);
            fields.push("iwarp_ddp.qn", u64::from(untagged.qn.0));
            fields.push("iwarp_ddp.msn", u64::from(untagged.msn.0));
            fields.push("iwarp_ddp.mo", u64::from(untagged.mo.0));
            if control.opcode.invalidates() {
                fields.push("iwarp_rdma.inval_stag", u64::from(untagged.invalidate_stag.0));
            }
        }
    }
    message(control.opcode, &segment[header.len()..], fields);
}

fn message(opcode: Opcode, octets: &[u8], fields: &mut Fields) {
    match opcode {
        Opcode::ReadRequest => {
            let request = ReadRequest::parse(octets).unwrap();
            fields.push("iwarp_rdma.sinkstag", u64::from(request.sink_stag.0));
            fields.push("iwarp_rdma.sinkto", request.sink_to.0);
            fields.push("iwarp_rdma.rdmardsz", u64::from(request.size));
            fields.push("iwarp_rdma.srcstag", u64::from(request.source_stag.0));
            fields.push("iwarp_rdma.srcto", request.source_to.0);
        }
        Opcode::Terminate => {
            // Layer DDP, tagged buffer error, base or bounds.
            assert_eq!(octets[..2], [0x11, 0x01]);
            fields.push("iwarp_rdma.term_layer", 1);
            fields.push("iwarp_rdma.term_errcode_ddp_tagged", 1);
        }
        Opcode::AtomicRequest => {
            let request = AtomicRequest::parse(octets).unwrap();
            fields.push("iwarp_rdma.atomic.opcode", u64::from(request.opcode.bits()));
            fields.push("iwarp_rdma.atomic.request_identifier", u64::from(request.request_id));
            fields.push("iwarp_rdma.atomic.remote_stag", u64::from(request.stag.0));
            fields.push("iwarp_rdma.atomic.remote_tagged_offset", request.to.0);
            let (data, mask) = if request.opcode == AtomicOpcode::FetchAdd {
                ("iwarp_rdma.atomic.add_data", "iwarp_rdma.atomic.add_mask")
            } else {
                ("iwarp_rdma.atomic.swap_data", "iwarp_rdma.atomic.swap_mask")
            };
            fields.push(data, request.data);
            fields.push(mask, request.mask);
            fields.push("iwarp_rdma.atomic.compare_data", request.compare);
            fields.push("iwarp_rdma.atomic.compare_mask", request.compare_mask);
        }
        Opcode::AtomicResponse => {
            let response = AtomicResponse::parse(octets).unwrap();
            fields.push("iwarp_rdma.atomic.original_remote_data_value", response.original);
        }
        _ => {}
    }
}
