//! Compares the header with the numbers of `linux/virtio_net.h`.

use super::*;

/// Returns Ethernet, IPv4 and TCP headers, optionally with CWR.
fn ipv4_head(cwr: bool) -> Vec<u8> {
    let mut head = vec![0; 54];
    head[12..14].copy_from_slice(&[0x08, 0x00]);
    head[14] = 0x45;
    head[23] = 6;
    head[47] = if cwr { 0x90 } else { 0x10 };
    head
}

fn ipv6_head(next_header: u8) -> Vec<u8> {
    let mut head = vec![0; 74];
    head[12..14].copy_from_slice(&[0x86, 0xdd]);
    head[14] = 0x60;
    head[20] = next_header;
    head
}

fn frame<'a>(head: &'a [u8], payload: &'a [SharedSlice<'a>], segment_size: u16) -> TxFrame<'a> {
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    TxFrame { head, payload, checksum, segment_size: NonZeroU16::new(segment_size), digests: None }
}

/// Returns the fields of the header.
fn fields(header: [u8; HEADER_LEN]) -> (u8, u8, [u16; 4]) {
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    (header[0], header[1], [word(2), word(4), word(6), word(8)])
}

#[test]
fn a_super_frame_says_how_it_is_cut() {
    let payload = [SharedSlice::from_bytes(&[0; 3000])];
    let head = ipv4_head(false);
    let header = encode(&frame(&head, &payload, 1448)).unwrap();
    assert_eq!(fields(header), (1, 1, [54, 1448, 34, 16]));
    let head = ipv4_head(true);
    let header = encode(&frame(&head, &payload, 1448)).unwrap();
    assert_eq!(fields(header), (1, 0x81, [54, 1448, 34, 16]), "with CWR");
    let head = ipv6_head(6);
    let header = encode(&frame(&head, &payload, 1440)).unwrap();
    assert_eq!(fields(header), (1, 4, [74, 1440, 34, 16]));
}

#[test]
fn one_segment_is_an_ordinary_frame() {
    let payload = [SharedSlice::from_bytes(&[0; 1448])];
    let head = ipv4_head(false);
    let header = encode(&frame(&head, &payload, 1448)).unwrap();
    assert_eq!(fields(header), (1, 0, [0, 0, 34, 16]));
    let complete = TxFrame { checksum: TxChecksum::Complete, ..frame(&head, &payload, 0) };
    assert_eq!(encode(&complete), Ok([0; HEADER_LEN]));
}

#[test]
fn super_frames_that_cannot_be_segmented_are_refused() {
    let payload = [SharedSlice::from_bytes(&[0; 3000])];
    let mut udp = ipv4_head(false);
    udp[23] = 17;
    let mut arp = ipv4_head(false);
    arp[13] = 0x06;
    for head in [udp, arp, ipv6_head(17), ipv6_head(0), ipv4_head(false)[..40].to_vec(), vec![]] {
        assert_eq!(encode(&frame(&head, &payload, 1448)), Err(TransmitError::Refused), "{head:?}");
    }
}

#[test]
fn a_checksum_outside_the_frame_is_refused() {
    let head = ipv4_head(false);
    for (start, offset) in [(34, 19), (u16::MAX, u16::MAX), (53, 0)] {
        let checksum = TxChecksum::Partial { start, offset };
        let frame =
            TxFrame { head: &head, payload: &[], checksum, segment_size: None, digests: None };
        assert_eq!(encode(&frame), Err(TransmitError::Refused), "{start} {offset}");
    }
}

#[test]
fn a_received_super_frame_is_valid_and_knows_its_segments() {
    for (mut bytes, gso_type, start) in
        [(ipv4_head(false), 1, 34), (ipv4_head(true), 0x81, 34), (ipv6_head(6), 4, 54)]
    {
        bytes.extend([0; 3000]);
        let mut header = [1, gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        header[4..6].copy_from_slice(&1448_u16.to_ne_bytes());
        header[6..8].copy_from_slice(&u16::to_ne_bytes(start));
        header[8..10].copy_from_slice(&16_u16.to_ne_bytes());
        let before = bytes.clone();
        let frame = decode(header, &mut bytes);
        assert_eq!(frame.checksum, RxChecksum::Valid);
        assert_eq!(frame.segment_size, NonZeroU16::new(1448));
        assert_eq!(frame.head, before);
    }
}

#[test]
fn flags_say_who_verified_the_checksum() {
    let mut bytes = ipv4_head(false);
    let none = decode([0; HEADER_LEN], &mut bytes);
    assert_eq!((none.checksum, none.segment_size), (RxChecksum::Unverified, None));
    let mut header = [0; HEADER_LEN];
    header[0] = DATA_VALID;
    assert_eq!(decode(header, &mut bytes).checksum, RxChecksum::Valid);
}

#[test]
fn a_partial_checksum_of_another_header_is_completed_and_proves_nothing() {
    let mut bytes = ipv4_head(false);
    bytes.extend([1, 2, 0, 0, 5, 6]);
    let mut header = [0; HEADER_LEN];
    header[0] = NEEDS_CSUM;
    header[6..8].copy_from_slice(&54_u16.to_ne_bytes());
    header[8..10].copy_from_slice(&2_u16.to_ne_bytes());
    let frame = decode(header, &mut bytes);
    assert_eq!(frame.checksum, RxChecksum::Unverified);
    let sum = checksum::Sum::default().octets(&frame.head[54..]).checksum();
    assert_eq!(sum, 0, "the inner checksum is complete");
}

#[test]
fn no_header_and_no_frame_does_harm() {
    let words = [0, 1, 13, 14, 34, 50, 54, 0x7fff, 0xffff];
    for len in [0, 1, 13, 14, 33, 54] {
        for flags in 0..4 {
            for gso_type in [0, 1, 3, 4, 5, 0x81, 0xff] {
                for start in words {
                    for offset in words {
                        let mut bytes = ipv4_head(false)[..len].to_vec();
                        let mut header = [flags, gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
                        header[6..8].copy_from_slice(&u16::to_ne_bytes(start));
                        header[8..10].copy_from_slice(&u16::to_ne_bytes(offset));
                        assert_eq!(decode(header, &mut bytes).head.len(), len);
                    }
                }
            }
        }
    }
}

/// A fragment has no TCP header: its checksum is computed from the fields as they are.
#[test]
fn a_later_fragment_has_no_transport_header() {
    let head = ipv4_head(false);
    let frame = frame(&head, &[], 0);
    let header = encode(&frame).unwrap();
    assert!(verdict(header, &head).is_some());
    for (at, value, is_whole) in
        [(20, 0x40, true), (20, 0x20, true), (20, 1, false), (21, 1, false)]
    {
        let mut head = head.clone();
        head[at] = value;
        assert_eq!(verdict(header, &head).is_some(), is_whole, "{at}: {value:#x}");
    }
}
