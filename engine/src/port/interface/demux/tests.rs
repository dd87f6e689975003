use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, checksum};

use super::extension_headers::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use super::*;
use crate::limits::EXTENSION_HEADERS_MAX;
use crate::port::config::VlanId;
use crate::port::tuple::Tuple;

/// An Ethernet frame with a TCP segment of 20 bytes and no payload, checksums right.
fn frame() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x1c, 6, 0x1c, 7, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let ip_sum = !SharedSlice::from_bytes(&frame[14..34]).ones_complement_sum();
    frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let sums = [checksum::data(&frame[26..34]), 6, 20, checksum::data(&frame[34..])];
    let tcp_sum = !checksum::combine(&sums);
    frame[50..52].copy_from_slice(&tcp_sum.to_be_bytes());
    frame
}

fn parse_whole(framing: LinkFraming, frame: &[u8], verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    parse(framing, frame, frame.len(), verify)
}

fn parse_checked(frame: &[u8]) -> Result<Parsed<'_>, FrameDrop> {
    parse_whole(LinkFraming::Ethernet, frame, true)
}

/// Meaning of a frame by smoltcp's parsers and by the walk over extension headers.
fn meaning(framing: LinkFraming, frame: &[u8], verify: bool) -> Result<String, FrameDrop> {
    let opened = framing.open(frame)?;
    let other = || Ok(format!("{opened:?}"));
    let datagram = opened.payload;
    let malformed = |_| FrameDrop::Malformed;
    let (source, destination, ecn, segment, end) = match opened.ethertype {
        ETHERTYPE_IPV4 => {
            let packet = Ipv4Packet::new_checked(datagram).map_err(malformed)?;
            if packet.version() != 4 {
                return Err(FrameDrop::Malformed);
            }
            if !packet.verify_checksum() {
                return Err(FrameDrop::IpChecksum);
            }
            let (start, end) = (usize::from(packet.header_len()), usize::from(packet.total_len()));
            let (source, destination) = (packet.src_addr().into(), packet.dst_addr().into());
            let protocol = u8::from(packet.next_header());
            let payload = &datagram[start..end];
            if packet.more_frags() || packet.frag_offset() != 0 {
                let id = u32::from(packet.ident());
                let part = Part {
                    key: DatagramKey { source, destination, id, protocol },
                    offset: usize::from(packet.frag_offset()),
                    more: packet.more_frags(),
                    header: &datagram[..start],
                    next_header: None,
                    payload,
                };
                return Ok(format!("{part:?}"));
            }
            if protocol != PROTOCOL_TCP {
                return other();
            }
            (source, destination, packet.ecn(), payload, end)
        }
        ETHERTYPE_IPV6 => {
            let packet = Ipv6Packet::new_checked(datagram).map_err(malformed)?;
            let (source, destination) = (packet.src_addr(), packet.dst_addr());
            let is_mapped = [source, destination].iter().any(|ip| ip.to_ipv4_mapped().is_some());
            if packet.version() != 6 || is_mapped {
                return Err(FrameDrop::Malformed);
            }
            let end = packet.total_len();
            match upper_layer(&datagram[..end], source, destination)? {
                Upper::Tcp(segment) => {
                    (source.into(), destination.into(), packet.traffic_class() & 3, segment, end)
                }
                Upper::Fragment(part) => return Ok(format!("{part:?}")),
                Upper::Other => return other(),
            }
        }
        _ => return other(),
    };
    if opened.is_multicast() {
        return Err(FrameDrop::Foreign);
    }
    let pseudo_header = checksum::pseudo_header(
        &source.into(),
        &destination.into(),
        IpProtocol::Tcp,
        u32::try_from(segment.len()).unwrap(),
    );
    if verify && checksum::combine(&[pseudo_header, checksum::data(segment)]) != u16::MAX {
        return Err(FrameDrop::TcpChecksum);
    }
    Ok(tcp(source, destination, tcp::Ecn::from_bits(ecn), segment, datagram.len() - end))
}

fn tcp(
    source: IpAddr,
    destination: IpAddr,
    ecn: tcp::Ecn,
    segment: &[u8],
    padding_len: usize,
) -> String {
    let source = Tuple::new(destination, 1, source, 2);
    format!("{source} {ecn:?} {segment:?} {padding_len}")
}

/// Meaning of a parsed frame, in the form of [`meaning`].
fn found(parsed: &Parsed<'_>) -> String {
    match parsed {
        Parsed::Tcp(inbound) => {
            let Inbound { ecn, segment, padding_len, .. } = inbound;
            format!("{} {ecn:?} {segment:?} {padding_len}", inbound.tuple(2, 1))
        }
        Parsed::Fragment(_, part) => format!("{part:?}"),
        Parsed::Other(opened) => format!("{opened:?}"),
    }
}

/// A frame with a segment of random length over either version of IP, and maybe with options or
/// extension headers.
fn random_frame(dice: &mut ChaCha8Rng) -> Vec<u8> {
    let len = 20 + dice.random_range(0..80_usize);
    let segment: Vec<u8> = std::iter::repeat_with(|| dice.random()).take(len).collect();
    let mut frame = vec![2; 12];
    if dice.random() {
        let words: u8 = if dice.random_bool(0.7) { 5 } else { dice.random_range(5..=15) };
        let options_len = 4 * usize::from(words) - 20;
        let total = u8::try_from(20 + options_len + len).unwrap();
        frame.extend([0x08, 0x00, 0x40 | words, dice.random_range(0..4), 0, total, 0, 9, 0x40, 0]);
        frame.extend([64, PROTOCOL_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, dice.random()]);
        frame.extend(vec![1; options_len]);
    } else {
        let kinds = [HOP_BY_HOP, DESTINATION_OPTIONS, ROUTING, FRAGMENT];
        let count = if dice.random_bool(0.6) { 0 } else { dice.random_range(1..4) };
        let headers: Vec<u8> =
            std::iter::repeat_with(|| kinds[dice.random_range(0..4)]).take(count).collect();
        let mut datagram = extended(&headers);
        datagram.truncate(datagram.len() - 20);
        datagram[1] = dice.random_range(0..16) << 4;
        datagram[5] = u8::try_from(8 * count + len).unwrap();
        frame.extend([0x86, 0xdd]);
        frame.extend(datagram);
    }
    frame.extend(segment);
    frame
}

/// Completes the header checksum of IPv4, and the TCP checksum if smoltcp finds a segment.
fn repair(frame: &mut [u8]) {
    if frame.len() >= 34 && frame[12..14] == [0x08, 0x00] {
        frame[24..26].fill(0);
        let end = (14 + usize::from(frame[14] & 15) * 4).min(frame.len());
        let sum = !checksum::data(&frame[14..end]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    // Two bytes of the segment take any sum to the right one.
    let Ok(Parsed::Tcp(inbound)) = parse(LinkFraming::Ethernet, frame, frame.len(), false) else {
        return;
    };
    let Some(at) = inbound.segment.len().checked_sub(2).map(|at| at & !1) else { return };
    let (source, destination) = (inbound.source, inbound.destination);
    let [source, destination] = [source, destination].map(|bits| Ipv6Addr::from_bits(bits).into());
    let start = inbound.segment.as_ptr() as usize - frame.as_ptr() as usize;
    let segment_len = inbound.segment.len();
    let segment = &mut frame[start..][..segment_len];
    segment[at..at + 2].fill(0);
    let len = u32::try_from(segment.len()).unwrap();
    let pseudo_header = checksum::pseudo_header(&source, &destination, IpProtocol::Tcp, len);
    let sum = !checksum::combine(&[pseudo_header, checksum::data(segment)]);
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Random frames, most of them corrupted, mean what smoltcp finds in them; their heads mean the
/// same if all headers are in them.
#[test]
fn random_frames_mean_what_another_parser_finds_whole_and_by_their_heads() {
    let mut dice = ChaCha8Rng::seed_from_u64(1);
    let framings =
        [LinkFraming::Ethernet, LinkFraming::Tagged(VlanId::new(5).unwrap()), LinkFraming::Ip];
    let (mut segments, mut heads, mut plains) = ([0; 2], 0, 0);
    for _ in 0..200_000 {
        let mut frame = random_frame(&mut dice);
        let corrupted = dice.random_bool(0.7);
        if corrupted {
            match dice.random_range(0..4) {
                0 => frame.truncate(dice.random_range(14..=frame.len())),
                1 => frame.resize(frame.len() + dice.random_range(1..20), 0),
                _ => {
                    let at = dice.random_range(0..frame.len().min(70));
                    frame[at] ^= 1 << dice.random_range(0..8);
                }
            }
        }
        if dice.random_bool(0.8) {
            repair(&mut frame);
        }
        let framing = framings[dice.random_range(0..3)];
        framing.seal(&mut frame);
        if framing == LinkFraming::Ip {
            frame.drain(..14);
        } else if dice.random_bool(0.1) {
            frame.splice(12..12, [0x81, 0x00, 0xe0, [0, 5, 6][dice.random_range(0..3)]]);
        }
        let verify = dice.random();
        let whole = parse(framing, &frame, frame.len(), verify);
        let expected = meaning(framing, &frame, verify);
        assert_eq!(whole.as_ref().map(found).map_err(|reason| *reason), expected, "{frame:02x?}");
        let plain = parse_plain(framing, &frame, verify);
        let Ok(Parsed::Tcp(inbound)) = whole else {
            assert!(plain.is_none(), "{frame:02x?}");
            continue;
        };
        segments[usize::from(corrupted)] += 1;
        let is_plain = framing == LinkFraming::Ethernet && frame[12..15] == [0x08, 0x00, 0x45];
        assert_eq!(plain.is_some(), is_plain, "{frame:02x?}");
        if let Some(plain) = plain {
            plains += 1;
            assert_eq!(found(&Parsed::Tcp(plain)), found(&Parsed::Tcp(inbound)), "{frame:02x?}");
        }
        let headers_len = frame.len() - inbound.padding_len - inbound.segment.len();
        for _ in 0..3 {
            let head = &frame[..dice.random_range(0..=frame.len())];
            let parsed = parse(framing, head, frame.len(), false);
            let Ok(Parsed::Tcp(of_head)) = parsed else {
                assert!(head.len() < headers_len, "{} of {frame:02x?}", head.len());
                continue;
            };
            heads += 1;
            let here = inbound.segment.len().min(head.len() - headers_len);
            let expected = Inbound { segment: &inbound.segment[..here], ..inbound };
            assert_eq!(found(&Parsed::Tcp(of_head)), found(&Parsed::Tcp(expected)));
        }
    }
    let enough = segments.into_iter().chain([heads, plains]).all(|count| count > 5000);
    assert!(enough, "{segments:?} {heads} {plains}");
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
    assert!(matches!(parse_whole(framing, &tagged, true), Ok(Parsed::Tcp(_))));
    assert_eq!(parse_checked(&tagged).unwrap_err(), FrameDrop::Vlan);
    assert_eq!(parse_whole(framing, &good, true).unwrap_err(), FrameDrop::Vlan);
    assert!(matches!(parse_whole(LinkFraming::Ip, &good[14..], true), Ok(Parsed::Tcp(_))));
}

#[test]
fn mapped_addresses_on_the_wire_do_not_pass_for_an_ipv4_connection() {
    let mut datagram = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
    for last in [1, 2] {
        datagram.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
    }
    datagram.extend([0; 20]);
    let parsed = parse_whole(LinkFraming::Ip, &datagram, false);
    assert_eq!(parsed.unwrap_err(), FrameDrop::Malformed);
}

#[test]
fn fragment_is_not_parsed_as_a_segment() {
    let mut fragment = frame();
    fragment[20] = 0x20;
    fragment[24..26].fill(0);
    let sum = !SharedSlice::from_bytes(&fragment[14..34]).ones_complement_sum();
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    let Ok(Parsed::Fragment(_, part)) = parse_checked(&fragment) else { panic!("a fragment") };
    assert_eq!((part.offset, part.more, part.payload.len()), (0, true, 20));
}

#[test]
fn ip_header_below_the_minimum_length_is_refused() {
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
fn ipv6_extension_headers_are_skipped_up_to_a_limit() {
    let parsed = |headers: &[u8]| {
        parse_whole(LinkFraming::Ip, &extended(headers), false)
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
    assert_eq!(parse_whole(LinkFraming::Ip, &datagram, false).unwrap_err(), FrameDrop::Malformed);
}

#[test]
fn ipv6_fragment_keeps_the_data_for_its_reassembly() {
    let mut datagram = extended(&[DESTINATION_OPTIONS, FRAGMENT]);
    datagram[50..56].copy_from_slice(&[0x00, 0x11, 1, 2, 3, 4]);
    let Ok(Parsed::Fragment(_, part)) = parse_whole(LinkFraming::Ip, &datagram, false) else {
        panic!("a fragment")
    };
    assert_eq!((part.offset, part.more, part.payload), (16, true, &[9; 20][..]));
    assert_eq!((part.header.len(), part.next_header), (48, Some((40, PROTOCOL_TCP))));
    assert_eq!(part.key.id, 0x0102_0304);
}
