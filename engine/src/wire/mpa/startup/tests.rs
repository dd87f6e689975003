use hex_literal::hex;
use proptest::prelude::*;

use super::*;

/// Request of a Linux siw initiator: revision 2, IRD and ORD 1.
const SIW_REQUEST: [u8; 24] = hex!("4d504120494420526571204672616d65 1002 0004 00010001");
const REPLY: [u8; 20] = hex!("4d504120494420526570204672616d65 c001 0000");

#[test]
fn a_request_of_linux_is_read() {
    let (frame, len) = StartupFrame::parse(&SIW_REQUEST).unwrap().unwrap();
    assert_eq!(len, 24);
    assert_eq!(
        frame.header,
        StartupHeader {
            kind: StartupKind::Request,
            markers: false,
            crc: false,
            reject: false,
            enhanced: true,
            immediates: false,
            revision: 2,
        }
    );
    let (word, rest) = frame.split_private_data();
    let expected = EnhancedHeader { peer_to_peer: false, rtr: RtrKinds::empty(), ird: 1, ord: 1 };
    assert_eq!(word, Some(expected));
    assert!(rest.is_empty());
}

#[test]
fn a_plain_reply_is_read() {
    let (frame, len) = StartupFrame::parse(&REPLY).unwrap().unwrap();
    assert_eq!(len, 20);
    assert_eq!(frame.header.kind, StartupKind::Reply);
    assert!(frame.header.markers && frame.header.crc && !frame.header.reject);
    assert_eq!(frame.split_private_data(), (None, &[][..]));
}

#[test]
fn octets_after_the_frame_are_not_part_of_it() {
    let mut bytes = SIW_REQUEST.to_vec();
    bytes.extend([1, 2, 3]);
    assert_eq!(StartupFrame::parse(&bytes).unwrap().unwrap().1, 24);
}

#[test]
fn every_prefix_needs_more() {
    for len in 0..SIW_REQUEST.len() {
        assert_eq!(StartupFrame::parse(&SIW_REQUEST[..len]), Ok(None), "{len} octets");
    }
}

#[test]
fn every_wrong_key_octet_is_found_at_once() {
    for at in 0..16 {
        let mut bytes = REPLY;
        bytes[at] ^= 0x20;
        assert_eq!(StartupFrame::parse(&bytes[..=at]), Err(StartupFrameError::Key), "octet {at}");
        assert_eq!(StartupFrame::parse(&bytes), Err(StartupFrameError::Key), "octet {at}");
    }
}

#[test]
fn kind_of_startup_frame_is_known_at_octet_nine() {
    let parse = |len| StartupFrame::parse_as(StartupKind::Reply, &SIW_REQUEST[..len]);
    assert_eq!(parse(9), Ok(None));
    assert_eq!(parse(10), Err(StartupFrameError::Kind(StartupKind::Request)));
}

#[test]
fn private_data_beyond_512_is_refused_without_waiting_for_it() {
    for (len, ok) in [(0, true), (1, true), (512, true), (513, false), (65535, false)] {
        let mut bytes = REPLY.to_vec();
        bytes[18..20].copy_from_slice(&u16::to_be_bytes(len));
        let result = StartupHeader::parse(StartupKind::Reply, &bytes);
        if ok {
            assert_eq!(result.unwrap().unwrap().1, len);
        } else {
            assert_eq!(result, Err(StartupFrameError::PrivateDataLen(len)));
        }
    }
}

#[test]
fn an_enhanced_frame_without_room_for_the_word_is_refused() {
    for len in 0..4 {
        let mut bytes = SIW_REQUEST;
        bytes[19] = len;
        let expected = StartupFrameError::EnhancedWord(u16::from(len));
        assert_eq!(StartupFrame::parse(&bytes), Err(expected));
    }
}

#[test]
fn s_means_nothing_in_revision_1() {
    let mut bytes = SIW_REQUEST;
    bytes[17] = 1;
    let (frame, _) = StartupFrame::parse(&bytes).unwrap().unwrap();
    assert!(!frame.header.enhanced);
    assert_eq!(frame.split_private_data(), (None, &bytes[20..]));
    bytes[19] = 0;
    assert!(StartupFrame::parse(&bytes).is_ok());
}

#[test]
fn reserved_flags_are_ignored() {
    let mut bytes = SIW_REQUEST;
    bytes[16] |= 0x0E;
    let plain = StartupFrame::parse(&SIW_REQUEST).unwrap();
    assert_eq!(StartupFrame::parse(&bytes).unwrap(), plain);
}

// spec: MPA2-9-1
#[test]
fn the_enhanced_word_of_the_rfc_has_these_octets() {
    let word = EnhancedHeader {
        peer_to_peer: true,
        rtr: RtrKinds::WRITE | RtrKinds::READ,
        ird: 1,
        ord: 2,
    };
    assert_eq!(word.to_bytes(), hex!("80 01 C0 02"));
    assert_eq!(EnhancedHeader::from_bytes(hex!("80 01 C0 02")), word);
    let word = EnhancedHeader { peer_to_peer: false, rtr: RtrKinds::SEND, ird: 0x3FFF, ord: 0 };
    assert_eq!(word.to_bytes(), hex!("7F FF 00 00"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn emitted_startup_frames_parse_back(
        reply in any::<bool>(),
        flags in any::<[bool; 5]>(),
        revision in any::<u8>(),
        private_data in prop::collection::vec(any::<u8>(), 4..=512),
    ) {
        let [markers, crc, reject, enhanced, immediates] = flags;
        let header = StartupHeader {
            kind: if reply { StartupKind::Reply } else { StartupKind::Request },
            markers,
            crc,
            reject,
            enhanced: enhanced && revision >= 2,
            immediates,
            revision,
        };
        let frame = StartupFrame { header, private_data: &private_data };
        let mut bytes = Vec::new();
        frame.emit(&mut bytes);
        prop_assert_eq!(StartupFrame::parse(&bytes), Ok(Some((frame, bytes.len()))));
    }

    #[test]
    fn every_word_reads_back(word in any::<[u8; 4]>()) {
        prop_assert_eq!(EnhancedHeader::from_bytes(word).to_bytes(), word);
    }

    #[test]
    fn parsing_arbitrary_octets_never_panics(
        key_len in 0..=16_usize,
        rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut bytes = SIW_REQUEST[..key_len].to_vec();
        bytes.extend(rest);
        if let Ok(Some((frame, len))) = StartupFrame::parse(&bytes) {
            prop_assert!(len <= bytes.len() && len <= StartupFrame::LEN_MAX);
            let (_, private_data) = frame.split_private_data();
            prop_assert!(private_data.len() <= PRIVATE_DATA_LEN_MAX);
        }
    }
}
