use hex_literal::hex;
use proptest::prelude::*;

use super::*;

const UNTAGGED: [u8; 18] = hex!("4143 00000000 00000000 00000002 00000000");
const TAGGED: [u8; 14] = hex!("8142 5423d000 000055d5c7a11550");
const READ_REQUEST: [u8; 28] = hex!("5423d000 000055d5c7a11550 00000fa0 a3ea2100 000055860b8f06b0");

fn parse(bytes: &[u8]) -> (Terminate, TerminateLayout) {
    Terminate::parse(bytes).unwrap()
}

// spec: RDMAP-4.8-1, RDMAP-4.8-7
#[test]
fn a_message_too_long_has_these_octets() {
    let terminate = Terminate::about_segment(TerminateCode::DDP_UNTAGGED_TOO_LONG, &UNTAGGED, 1442);
    let bytes = terminate.to_bytes();
    assert_eq!(bytes[..6], hex!("12 05 C0 00 05A2"));
    assert_eq!(bytes[6..], UNTAGGED);
    assert_eq!(18 + bytes.len(), 42);
    assert_eq!(parse(&bytes), (terminate, TerminateLayout::Rfc));
}

// spec: RDMAP-4.8-5
#[test]
fn a_bad_write_returns_the_tagged_header_only() {
    let mut segment = TAGGED.to_vec();
    segment.extend([0xAA; 100]);
    let code = TerminateCode::DDP_TAGGED_BASE_BOUNDS;
    let terminate = Terminate::about_segment(code, &segment, 114);
    let bytes = terminate.to_bytes();
    assert_eq!(bytes[..6], hex!("11 01 C0 00 0072"));
    assert_eq!(bytes[6..], TAGGED);
    assert_eq!(18 + bytes.len(), 38);
}

// spec: RDMAP-4.8-5
#[test]
fn a_bad_read_returns_both_headers() {
    let code = TerminateCode::RDMAP_ACCESS_RIGHTS;
    let terminate = Terminate::about_segment(code, &UNTAGGED, 46).with_read_request(READ_REQUEST);
    let bytes = terminate.to_bytes();
    assert_eq!(bytes[..6], hex!("01 02 E0 00 002E"));
    assert_eq!(bytes[24..], READ_REQUEST);
    assert_eq!(18 + bytes.len(), 70);
    assert_eq!(bytes.len(), Terminate::LEN_MAX);
    assert_eq!(parse(&bytes), (terminate, TerminateLayout::Rfc));
}

#[test]
fn a_bare_code_takes_four_octets() {
    let terminate = Terminate::new(TerminateCode::MPA_CRC);
    assert_eq!(terminate.to_bytes()[..], hex!("20 02 00 00"));
    assert_eq!(parse(&terminate.to_bytes()).0, terminate);
}

#[test]
fn a_cut_segment_gives_its_length_only() {
    let code = TerminateCode::DDP_UNTAGGED_INVALID_QN;
    let terminate = Terminate::about_segment(code, &UNTAGGED[..17], 17);
    assert_eq!(terminate.to_bytes()[..], hex!("12 01 80 00 0011"));
    assert_eq!(Terminate::about_segment(code, &[], 0).ddp_header, None);
}

#[test]
fn trailing_zeros_without_flags_are_ignored() {
    let mut bytes = hex!("00 00 00 00").to_vec();
    bytes.extend([0; 48]);
    let expected = (Terminate::new(TerminateCode::LOCAL_CATASTROPHIC), TerminateLayout::Rfc);
    assert_eq!(parse(&bytes), expected);
}

// spec: RDMAP-4.8-2
#[test]
fn reserved_bits_are_ignored() {
    let mut bytes =
        Terminate::about_segment(TerminateCode::DDP_UNTAGGED_TOO_LONG, &UNTAGGED, 18).to_bytes();
    let plain = parse(&bytes);
    bytes[2] |= 0x1F;
    bytes[3] = 0xFF;
    assert_eq!(parse(&bytes), plain);
    assert_eq!(parse(&hex!("11 00 07 FF")).1, TerminateLayout::Rfc);
}

// spec: RDMAP-4.8-3
#[test]
fn flags_without_their_parts_are_survived() {
    // R is set, and nothing follows the DDP header.
    let mut bytes = hex!("01 09 E0 00 002A").to_vec();
    bytes.extend(UNTAGGED);
    let (terminate, _) = parse(&bytes);
    assert_eq!(terminate.ddp_header.as_deref(), Some(&UNTAGGED[..]));
    assert_eq!(terminate.rdmap_header, None);
    for len in 4..bytes.len() {
        let (terminate, _) = parse(&bytes[..len]);
        assert_eq!(terminate.code, TerminateCode::RDMAP_CANNOT_INVALIDATE);
        assert_eq!(terminate.segment_len.is_some(), len >= 6);
        assert_eq!((terminate.ddp_header, terminate.rdmap_header), (None, None));
    }
    for len in 0..4 {
        assert_eq!(Terminate::parse(&bytes[..len]), Err(TooShort { need: 4, have: len }));
    }
}

#[test]
fn swapped_bit_fields_are_recognised() {
    let mut bytes = hex!("21 05 03 00 05A2").to_vec();
    bytes.extend(UNTAGGED);
    let expected = Terminate::about_segment(TerminateCode::DDP_UNTAGGED_TOO_LONG, &UNTAGGED, 1442);
    assert_eq!(parse(&bytes), (expected, TerminateLayout::SwappedBitFields));
}

/// From a capture: siw refuses a Read Response that exceeds its buffer.
#[test]
fn ambiguous_linux_terminate_is_recognised_by_its_flags() {
    let mut bytes = hex!("11 01 03 00 0594").to_vec();
    bytes.extend(TAGGED);
    let (terminate, layout) = parse(&bytes);
    assert_eq!(layout, TerminateLayout::SwappedBitFields);
    assert_eq!(terminate.code, TerminateCode::DDP_TAGGED_BASE_BOUNDS);
    assert_eq!(terminate.segment_len, Some(1428));
    assert_eq!(terminate.ddp_header.as_deref(), Some(&TAGGED[..]));
}

#[test]
fn terminate_senseless_in_both_layouts_is_read_as_in_the_rfc() {
    let (terminate, layout) = parse(&hex!("77 01 00 00"));
    assert_eq!(layout, TerminateLayout::Rfc);
    assert_eq!(terminate.code, TerminateCode { layer: 7, etype: 7, code: 1 });
    assert!(!terminate.code.is_assigned());
    assert_eq!(terminate.code.text(), "unassigned error");
}

// spec: RDMAP-4.8-1
#[test]
fn the_assigned_triples_are_those_of_the_registry() {
    let codes = |layer, etype| -> Vec<u8> {
        let assigned = |code: &u8| TerminateCode { layer, etype, code: *code }.is_assigned();
        (0..=255).filter(assigned).collect()
    };
    for layer in 0..16 {
        for etype in 0..16 {
            let expected = match (layer, etype) {
                (0, 0) => (0..=255).collect(),
                (0, 1) => vec![0, 1, 2, 3, 4, 9, 0xFF],
                (0, 2) => vec![5, 6, 7, 8, 9, 0xFF],
                (1, 0) => vec![0],
                (1, 1) => vec![0, 1, 2, 3, 4],
                (1, 2) => vec![1, 2, 3, 4, 5, 6],
                (2, 0) => vec![1, 2, 3, 4, 5, 6, 7],
                _ => vec![],
            };
            assert_eq!(codes(layer, etype), expected, "{layer}/{etype}");
        }
    }
}

#[test]
fn a_code_is_displayed_as_a_triple() {
    assert_eq!(TerminateCode::RDMAP_PROTECTION_UNSPECIFIED.to_string(), "0/1/FF");
    assert_eq!(TerminateCode::MPA_NO_MATCHING_RTR.text(), "MPA error: no matching RTR option");
}

proptest! {
    #[test]
    fn emitted_terminates_parse_back(
        (layer, etype, code) in prop_oneof![
            Just((0_u8, 1_u8, 0_u8)), Just((0, 2, 6)), Just((1, 1, 4)), Just((1, 2, 2)), Just((2, 0, 3))
        ],
        segment_len in any::<u16>(),
        mut segment in any::<[u8; 18]>(),
        tagged in any::<bool>(),
        read_request in any::<Option<[u8; 28]>>(),
    ) {
        segment[0] = segment[0] & 0x7F | if tagged { 0x80 } else { 0 };
        let code = TerminateCode { layer, etype, code };
        let mut terminate = Terminate::about_segment(code, &segment, segment_len);
        terminate.rdmap_header = read_request;
        let bytes = terminate.to_bytes();
        prop_assert_eq!(Terminate::parse(&bytes), Ok((terminate, TerminateLayout::Rfc)));
    }

    #[test]
    fn parsing_arbitrary_octets_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((terminate, _)) = Terminate::parse(&bytes) {
            prop_assert!(terminate.to_bytes().len() <= bytes.len());
            prop_assert!(!terminate.code.text().is_empty());
        }
    }
}
