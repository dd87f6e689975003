use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::wire::rdmap::{Control, Opcode};

fn tagged(last: bool, opcode: Opcode) -> DdpHeader {
    DdpHeader::Tagged(TaggedHeader {
        last,
        version: ProtocolVersion::IETF,
        rsvd_ulp: Control { version: ProtocolVersion::IETF, opcode }.to_byte(),
        stag: Stag(0x1234_5678),
        to: TaggedOffset(0x0102_0304_0506_0708),
    })
}

fn untagged(last: bool, opcode: Opcode, qn: QueueNumber) -> DdpHeader {
    DdpHeader::Untagged(UntaggedHeader {
        last,
        version: ProtocolVersion::IETF,
        rsvd_ulp: Control { version: ProtocolVersion::IETF, opcode }.to_byte(),
        invalidate_stag: Stag(0),
        qn,
        msn: Msn::FIRST,
        mo: MsgOffset(0),
    })
}

fn emitted(header: &DdpHeader) -> Vec<u8> {
    let mut out = [0xEE; 20];
    let len = header.emit(&mut out);
    assert!(out[len..].iter().all(|&octet| octet == 0xEE), "nothing is written beyond the header");
    out[..len].to_vec()
}

#[test]
fn tagged_messages_have_these_octets() {
    for (opcode, control) in [(Opcode::RdmaWrite, 0x40), (Opcode::ReadResponse, 0x42)] {
        let rest = hex!("12345678 0102030405060708");
        let expected: Vec<u8> = [0xC1, control].into_iter().chain(rest).collect();
        assert_eq!(emitted(&tagged(true, opcode)), expected);
        assert_eq!(emitted(&tagged(false, opcode))[..2], [0x81, control]);
    }
}

#[test]
fn untagged_messages_have_these_octets() {
    for (opcode, control, qn) in [
        (Opcode::ReadRequest, 0x41, QueueNumber::READ_REQUEST),
        (Opcode::Send, 0x43, QueueNumber::SEND),
        (Opcode::SendInvalidate, 0x44, QueueNumber::SEND),
        (Opcode::SendSolicited, 0x45, QueueNumber::SEND),
        (Opcode::SendSolicitedInvalidate, 0x46, QueueNumber::SEND),
        (Opcode::Terminate, 0x47, QueueNumber::TERMINATE),
        (Opcode::Immediate, 0x48, QueueNumber::SEND),
        (Opcode::ImmediateSolicited, 0x49, QueueNumber::SEND),
        (Opcode::AtomicRequest, 0x4A, QueueNumber::READ_REQUEST),
        (Opcode::AtomicResponse, 0x4B, QueueNumber::ATOMIC_RESPONSE),
    ] {
        let mut expected = vec![0x41, control, 0, 0, 0, 0];
        expected.extend(qn.0.to_be_bytes());
        expected.extend(hex!("00000001 00000000"));
        assert_eq!(emitted(&untagged(true, opcode, qn)), expected, "{opcode}");
        assert_eq!(emitted(&untagged(false, opcode, qn))[..2], [0x01, control]);
    }
}

// spec: DDP-4.2-1
#[test]
fn stag_to_invalidate_is_in_octets_2_to_5() {
    let header = UntaggedHeader {
        last: true,
        version: ProtocolVersion::IETF,
        rsvd_ulp: 0x44,
        invalidate_stag: Stag(0xA1B2_C3D4),
        qn: QueueNumber::SEND,
        msn: Msn(7),
        mo: MsgOffset(0x0102_0304),
    };
    assert_eq!(header.to_bytes(), hex!("4144 A1B2C3D4 00000000 00000007 01020304"));
}

// spec: DDP-4.1-5
#[test]
fn reserved_bits_are_ignored() {
    let mut bytes = emitted(&tagged(true, Opcode::RdmaWrite));
    bytes[0] |= 0x3C;
    assert_eq!(DdpHeader::parse(&bytes), Ok(tagged(true, Opcode::RdmaWrite)));
}

#[test]
fn a_wrong_version_is_shown_not_refused() {
    for version in 0..4 {
        let mut bytes = emitted(&untagged(true, Opcode::Send, QueueNumber::SEND));
        bytes[0] = bytes[0] & !3 | version;
        let header = DdpHeader::parse(&bytes).unwrap();
        assert_eq!(header.version(), ProtocolVersion::from_bits(version));
    }
    assert_eq!(ProtocolVersion::from_bits(0), ProtocolVersion::RDMAC);
}

#[test]
fn a_cut_header_is_too_short() {
    assert_eq!(DdpHeader::parse(&[]), Err(TooShort { need: 14, have: 0 }));
    for header in [tagged(true, Opcode::RdmaWrite), untagged(true, Opcode::Send, QueueNumber::SEND)]
    {
        let bytes = emitted(&header);
        assert_eq!(bytes.len(), header.len());
        for have in 1..bytes.len() {
            let expected = Err(TooShort { need: header.len(), have });
            assert_eq!(DdpHeader::parse(&bytes[..have]), expected);
        }
    }
}

fn any_header() -> impl Strategy<Value = DdpHeader> {
    let version = (0..4_u8).prop_map(ProtocolVersion::from_bits);
    let common = (any::<bool>(), version, any::<u8>());
    prop_oneof![
        (common.clone(), any::<u32>(), any::<u64>()).prop_map(
            |((last, version, rsvd_ulp), stag, to)| {
                let (stag, to) = (Stag(stag), TaggedOffset(to));
                DdpHeader::Tagged(TaggedHeader { last, version, rsvd_ulp, stag, to })
            }
        ),
        (common, any::<[u32; 4]>()).prop_map(
            |((last, version, rsvd_ulp), [invalidate_stag, qn, msn, mo])| {
                DdpHeader::Untagged(UntaggedHeader {
                    last,
                    version,
                    rsvd_ulp,
                    invalidate_stag: Stag(invalidate_stag),
                    qn: QueueNumber(qn),
                    msn: Msn(msn),
                    mo: MsgOffset(mo),
                })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn emitted_headers_parse_back(header in any_header()) {
        let bytes = emitted(&header);
        prop_assert_eq!(bytes.len(), header.len());
        prop_assert_eq!(bytes.len(), DdpHeader::len_by_control(bytes[0]));
        prop_assert_eq!(DdpHeader::parse(&bytes), Ok(header));
    }

    #[test]
    fn parsing_arbitrary_octets_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(header) = DdpHeader::parse(&bytes) {
            let mut again = emitted(&header);
            again[0] |= bytes[0] & 0x3C;
            prop_assert_eq!(&again[..], &bytes[..header.len()]);
        }
    }
}
