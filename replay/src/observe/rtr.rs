//! The first FPDU of an initiator in the peer-to-peer model (RFC 6581 §9.2).

use urnic_engine::wire::mpa::RtrKinds;
use urnic_engine::wire::rdmap::Opcode;

pub(crate) fn names(kinds: RtrKinds) -> String {
    let names =
        [(RtrKinds::SEND, "Send"), (RtrKinds::WRITE, "RDMA Write"), (RtrKinds::READ, "RDMA Read")];
    let named = names.into_iter().filter(|(kind, _)| kinds.contains(*kind)).map(|(_, name)| name);
    format!("zero-length {}", named.collect::<Vec<_>>().join(" or "))
}

pub(crate) fn is_one(kinds: RtrKinds, opcode: Opcode, len: u64) -> bool {
    let kind = match opcode {
        Opcode::Send => RtrKinds::SEND,
        Opcode::RdmaWrite => RtrKinds::WRITE,
        Opcode::ReadRequest => RtrKinds::READ,
        _ => return false,
    };
    len == 0 && kinds.contains(kind)
}
