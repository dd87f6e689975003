use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::types::{Stag, TaggedOffset};

#[test]
fn the_sixteen_opcodes_read_back() {
    for bits in 0..16 {
        let opcode = Opcode::from_bits(bits);
        assert_eq!(opcode.bits(), bits);
        assert_eq!(matches!(opcode, Opcode::Reserved(_)), bits >= 0xE);
        assert_eq!(opcode.buffer().is_none(), bits >= 0xE);
    }
}

// spec: RDMAP-3.1-1
#[test]
fn opcodes_travel_by_the_queues_of_the_rfcs() {
    let queue = |bits| match Opcode::from_bits(bits).buffer().unwrap() {
        BufferModel::Tagged => None,
        BufferModel::Untagged(qn) => Some(qn.0),
    };
    let expected = [
        None,
        Some(1),
        None,
        Some(0),
        Some(0),
        Some(0),
        Some(0),
        Some(2),
        Some(0),
        Some(0),
        Some(1),
        Some(3),
        // The opcodes of the extension.
        Some(0),
        Some(0),
    ];
    assert_eq!(std::array::from_fn(|bits| queue(u8::try_from(bits).unwrap())), expected);
}

#[test]
fn invalidation_and_events_belong_to_their_opcodes() {
    let all: Vec<Opcode> = (0..16).map(Opcode::from_bits).collect();
    let bits = |pick: fn(&&Opcode) -> bool| -> Vec<u8> {
        all.iter().filter(pick).map(|opcode| opcode.bits()).collect()
    };
    assert_eq!(bits(|opcode| opcode.invalidates()), [4, 6]);
    assert_eq!(bits(|opcode| opcode.solicits_event()), [5, 6, 9, 0xD]);
}

// spec: RDMAP-4.1-3
#[test]
fn control_octet_ignores_reserved_bits() {
    let send = Control { version: ProtocolVersion::IETF, opcode: Opcode::Send };
    assert_eq!(send.to_byte(), 0x43);
    assert_eq!(Control::from_byte(0x43), send);
    assert_eq!(Control::from_byte(0x73), send);
    assert_eq!(Control::from_byte(0x03).version, ProtocolVersion::RDMAC);
    assert_eq!(Control::from_byte(0xC3).version.bits(), 3);
}

/// From a capture of the Linux driver's Read Request.
#[test]
fn a_read_request_of_linux_is_read() {
    let bytes = hex!("5423d000 000055d5c7a11550 00000fa0 a3ea2100 000055860b8f06b0");
    let request = ReadRequest {
        sink_stag: Stag(0x5423_D000),
        sink_to: TaggedOffset(0x55D5_C7A1_1550),
        size: 4000,
        source_stag: Stag(0xA3EA_2100),
        source_to: TaggedOffset(0x5586_0B8F_06B0),
    };
    assert_eq!(ReadRequest::parse(&bytes), Ok(request));
    assert_eq!(request.to_bytes(), bytes);
}

// spec: EXT-5.2.1-5
#[test]
fn a_fetch_add_has_these_octets() {
    let request = AtomicRequest {
        opcode: AtomicOpcode::FetchAdd,
        request_id: 0x0A0B_0C0D,
        stag: Stag(0x1122_3344),
        to: TaggedOffset(8),
        data: 1,
        mask: 0,
        compare: 0,
        compare_mask: u64::MAX,
    };
    let bytes = hex!(
        "00000000 0a0b0c0d 11223344 0000000000000008 0000000000000001"
        "0000000000000000 0000000000000000 ffffffffffffffff"
    );
    assert_eq!(request.to_bytes(), bytes);
    let mut reserved_set = bytes;
    reserved_set[..4].copy_from_slice(&hex!("fffffff0"));
    assert_eq!(AtomicRequest::parse(&reserved_set), Ok(request));
}

#[test]
fn atomic_opcodes_read_back() {
    for bits in 0..16 {
        assert_eq!(AtomicOpcode::from_bits(bits).bits(), bits);
    }
    assert_eq!(AtomicOpcode::from_bits(2), AtomicOpcode::CmpSwap);
    assert_eq!(AtomicOpcode::from_bits(1), AtomicOpcode::Reserved(1));
}

#[test]
fn an_atomic_response_has_these_octets() {
    let response = AtomicResponse { request_id: 5, original: 0x1122_3344_5566_7788 };
    assert_eq!(response.to_bytes(), hex!("00000005 1122334455667788"));
    assert_eq!(AtomicResponse::parse(&response.to_bytes()), Ok(response));
}

#[test]
fn fewer_or_more_octets_than_the_header_are_refused() {
    let octets = [0; 60];
    for have in 0..octets.len() {
        let bytes = &octets[..have];
        let wrong = |need| WrongLength { need, have };
        assert_eq!(ReadRequest::parse(bytes).err(), (have != 28).then(|| wrong(28)));
        assert_eq!(AtomicRequest::parse(bytes).err(), (have != 52).then(|| wrong(52)));
        assert_eq!(AtomicResponse::parse(bytes).err(), (have != 12).then(|| wrong(12)));
    }
}

proptest! {
    #[test]
    fn any_headers_read_back(
        read in any::<[u8; ReadRequest::LEN]>(),
        atomic in prop::collection::vec(any::<u8>(), AtomicRequest::LEN),
        response in any::<[u8; AtomicResponse::LEN]>(),
    ) {
        prop_assert_eq!(ReadRequest::parse(&read).unwrap().to_bytes(), read);
        prop_assert_eq!(AtomicResponse::parse(&response).unwrap().to_bytes(), response);
        let request = AtomicRequest::parse(&atomic).unwrap();
        prop_assert_eq!(&request.to_bytes()[4..], &atomic[4..]);
        prop_assert_eq!(AtomicRequest::parse(&request.to_bytes()), Ok(request));
    }
}
