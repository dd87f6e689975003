use super::extension_headers::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use super::plain::plain_ipv4;
use super::*;
use crate::limits::EXTENSION_HEADERS_MAX;
use crate::port::config::VlanId;

/// An Ethernet frame with a TCP segment of 20 bytes and no payload, checksums right.
fn frame() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x1c, 6, 0x1c, 7, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let ip_sum = !Fragment::from_slice(&frame[14..34]).ones_complement_sum();
    frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let sums = [checksum::data(&frame[26..34]), 6, 20, checksum::data(&frame[34..])];
    let tcp_sum = !checksum::combine(&sums);
    frame[50..52].copy_from_slice(&tcp_sum.to_be_bytes());
    frame
}

fn parse_checked(frame: &[u8]) -> Result<Parsed<'_>, FrameDrop> {
    parse(LinkFraming::Ethernet, frame, true)
}

#[test]
fn a_plain_frame_is_taken_the_short_way_and_means_the_same_the_long_way() {
    let mut frame = frame();
    frame.extend([0; 6]);
    let (short, end) = plain_ipv4(&frame, frame.len()).unwrap();
    let short = short.inbound();
    let Ok(Parsed::Tcp(long)) = parse_ipv4(LinkFraming::Ethernet.open(&frame).unwrap(), true)
    else {
        panic!("TCP");
    };
    assert_eq!(format!("{short:?}"), format!("{long:?}"), "link padding removed by both");
    assert_eq!((short.segment.len(), end), (20, 54));
}

#[test]
fn the_head_of_a_frame_says_where_its_segment_ends() {
    let mut frame = frame();
    frame[16..18].copy_from_slice(&1500_u16.to_be_bytes());
    frame[24..26].fill(0);
    let sum = !Fragment::from_slice(&frame[14..34]).ones_complement_sum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let parse = |frame_len| parse_plain_head(LinkFraming::Ethernet, &frame, frame_len);
    assert_eq!(parse(1514).unwrap().segment, &frame[34..]);
    for frame_len in [54, 1513, 1515] {
        assert!(parse(frame_len).is_none(), "cut short, or padded: {frame_len}");
    }
    assert!(parse_plain_head(LinkFraming::Ip, &frame, 1514).is_none());
}

#[test]
fn a_head_over_ipv6_means_what_the_frame_does() {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0, 0, 25, 6, 64]);
    for last in [1, 2] {
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend([7; 25]);
    let short = parse_plain_head(LinkFraming::Ethernet, &frame, frame.len()).unwrap();
    let opened = LinkFraming::Ethernet.open(&frame).unwrap();
    let Ok(Parsed::Tcp(long)) = parse_ipv6(opened, false) else { panic!("TCP") };
    assert_eq!(format!("{short:?}"), format!("{long:?}"));
    assert!(parse_plain_head(LinkFraming::Ethernet, &frame, frame.len() - 1).is_none());
    // Each is for the general path: a multicast, another version, an extension header, a mapped
    // address.
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let odd: [(usize, &[u8]); 5] =
        [(0, &[3]), (14, &[0x40]), (20, &[0]), (22, &mapped), (38, &mapped)];
    for (at, octets) in odd {
        let mut frame = frame.clone();
        frame[at..at + octets.len()].copy_from_slice(octets);
        let parsed = parse_plain_head(LinkFraming::Ethernet, &frame, frame.len());
        assert!(parsed.is_none(), "octets {octets:?} at {at}");
    }
}

#[test]
fn a_segment_in_a_frame_to_a_group_is_dropped() {
    for octet in [0x01, 0x33, 0xff] {
        let mut frame = frame();
        frame[0] = octet;
        assert_eq!(parse_checked(&frame).unwrap_err(), FrameDrop::Foreign, "{octet:x}");
    }
}

// spec: TCP-9293-1, TCP-A.3-2
#[test]
fn every_corrupted_octet_is_noticed() {
    let good = frame();
    assert!(matches!(parse_checked(&good), Ok(Parsed::Tcp(_))));
    for at in 14..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(!matches!(parse_checked(&bad), Ok(Parsed::Tcp(_))), "octet {at}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let good = frame();
    for len in 0..good.len() {
        assert!(!matches!(parse_checked(&good[..len]), Ok(Parsed::Tcp(_))), "{len} octets");
    }
}

#[test]
fn a_tagged_frame_and_a_bare_datagram_are_found_too() {
    let good = frame();
    let mut tagged = good.clone();
    let framing = LinkFraming::Tagged(VlanId::new(5).unwrap());
    framing.seal(&mut tagged);
    assert!(matches!(parse(framing, &tagged, true), Ok(Parsed::Tcp(_))));
    assert_eq!(parse_checked(&tagged).unwrap_err(), FrameDrop::Vlan);
    assert_eq!(parse(framing, &good, true).unwrap_err(), FrameDrop::Vlan);
    assert!(matches!(parse(LinkFraming::Ip, &good[14..], true), Ok(Parsed::Tcp(_))));
}

#[test]
fn mapped_addresses_on_the_wire_do_not_pass_for_an_ipv4_connection() {
    let mut datagram = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
    for last in [1, 2] {
        datagram.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
    }
    datagram.extend([0; 20]);
    let parsed = parse(LinkFraming::Ip, &datagram, false);
    assert_eq!(parsed.unwrap_err(), FrameDrop::Malformed);
}

#[test]
fn a_fragment_is_told_from_a_segment() {
    let mut fragment = frame();
    fragment[20] = 0x20;
    fragment[24..26].fill(0);
    let sum = !Fragment::from_slice(&fragment[14..34]).ones_complement_sum();
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    let Ok(Parsed::Fragment(_, part)) = parse_checked(&fragment) else { panic!("a fragment") };
    assert_eq!((part.offset, part.more, part.payload.len()), (0, true, 20));
}

#[test]
fn a_header_that_is_shorter_than_a_header_is_none() {
    for words in 0..5_u8 {
        let mut short = frame();
        short[14] = 0x40 | words;
        short[20] = 0x20;
        let header_len = usize::from(words) * 4;
        // Completes the sum over so few bytes.
        if header_len >= 4 {
            short[14 + header_len - 2..14 + header_len].fill(0);
            let sum = !checksum::data(&short[14..14 + header_len]);
            short[14 + header_len - 2..14 + header_len].copy_from_slice(&sum.to_be_bytes());
        }
        let parsed = parse_checked(&short);
        assert!(!matches!(parsed, Ok(Parsed::Tcp(_) | Parsed::Fragment(..))), "{words} words");
    }
}

/// A datagram with these headers, each of 8 bytes, before 20 bytes of TCP.
fn extended(headers: &[u8]) -> Vec<u8> {
    let len = u8::try_from(8 * headers.len() + 20).unwrap();
    let mut chain = headers.to_vec();
    chain.push(PROTOCOL_TCP);
    let mut datagram = vec![0x60, 0, 0, 0, 0, len, chain[0], 64];
    datagram.extend([0xfd; 32]);
    for next in &chain[1..] {
        datagram.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
    }
    datagram.extend([9; 20]);
    datagram
}

#[test]
fn extension_headers_are_walked_and_not_for_ever() {
    let parsed = |headers: &[u8]| {
        parse(LinkFraming::Ip, &extended(headers), false)
            .map(|parsed| matches!(parsed, Parsed::Tcp(Inbound { segment: [9, ..], .. })))
    };
    assert_eq!(parsed(&[]), Ok(true));
    assert_eq!(parsed(&[HOP_BY_HOP, DESTINATION_OPTIONS, ROUTING]), Ok(true));
    assert_eq!(parsed(&[DESTINATION_OPTIONS, HOP_BY_HOP]), Err(FrameDrop::Malformed));
    assert_eq!(parsed(&[51]), Ok(false), "authentication is not ours to check");
    assert_eq!(parsed(&[DESTINATION_OPTIONS; EXTENSION_HEADERS_MAX]), Ok(true));
    let endless = [DESTINATION_OPTIONS; EXTENSION_HEADERS_MAX + 1];
    assert_eq!(parsed(&endless), Err(FrameDrop::Malformed));
    // A length that points beyond the datagram.
    let mut datagram = extended(&[DESTINATION_OPTIONS]);
    datagram[41] = 200;
    assert_eq!(parse(LinkFraming::Ip, &datagram, false).unwrap_err(), FrameDrop::Malformed);
}

#[test]
fn an_ipv6_fragment_says_what_to_put_back_together() {
    let mut datagram = extended(&[DESTINATION_OPTIONS, FRAGMENT]);
    datagram[50..56].copy_from_slice(&[0x00, 0x11, 1, 2, 3, 4]);
    let Ok(Parsed::Fragment(_, part)) = parse(LinkFraming::Ip, &datagram, false) else {
        panic!("a fragment")
    };
    assert_eq!((part.offset, part.more, part.payload), (16, true, &[9; 20][..]));
    assert_eq!((part.header.len(), part.next_header), (48, Some((40, PROTOCOL_TCP))));
    assert_eq!(part.key.id, 0x0102_0304);
}
