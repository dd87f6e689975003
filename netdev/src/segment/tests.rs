use proptest::prelude::*;

use super::*;

/// Fields of a test segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) medium: Medium,
    pub(crate) tagged: bool,
    pub(crate) is_v6: bool,
    /// Identification, over IPv4.
    pub(crate) id: u16,
    pub(crate) seq: u32,
    pub(crate) flags: u8,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    pub(crate) fn new(seq: u32, payload: &[u8]) -> Self {
        Self {
            medium: Medium::Ethernet,
            tagged: false,
            is_v6: false,
            id: 0x1234,
            seq,
            flags: 0x10,
            options: Vec::new(),
            payload: payload.to_vec(),
        }
    }

    /// Returns the frame, built field by field with its own arithmetic.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut tcp = vec![0x30, 0x39, 0x10, 0x92];
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(77_u32.to_be_bytes());
        let offset = (20 + self.options.len()) / 4;
        tcp.extend([u8::try_from(offset << 4).unwrap(), self.flags, 0x20, 0x00, 0, 0, 0, 0]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let len = u16::try_from(tcp.len()).unwrap();
        let addresses = if self.is_v6 { vec![0xfd; 32] } else { vec![10, 0, 0, 1, 10, 0, 0, 2] };
        let mut pseudo = addresses.clone();
        pseudo.extend([0, 6]);
        pseudo.extend(len.to_be_bytes());
        pseudo.extend(&tcp);
        let checksum = naive_checksum(&pseudo);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());

        let mut frame = Vec::new();
        if self.medium == Medium::Ethernet {
            frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            if self.tagged {
                frame.extend([0x81, 0x00, 0x00, 0x05]);
            }
            frame.extend(if self.is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        }
        if self.is_v6 {
            frame.extend([0x60, 0, 0, 1]);
            frame.extend(len.to_be_bytes());
            frame.extend([6, 64]);
            frame.extend(&addresses);
        } else {
            let mut ip = vec![0x45, 0];
            ip.extend((20 + len).to_be_bytes());
            ip.extend(self.id.to_be_bytes());
            ip.extend([0x40, 0, 64, 6, 0, 0]);
            ip.extend(&addresses);
            let checksum = naive_checksum(&ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend(ip);
        }
        frame.extend(tcp);
        frame
    }
}

fn naive_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Returns sequence number, flags and payload of a valid frame.
pub(crate) fn read(frame: &[u8], medium: Medium) -> (u32, u8, Vec<u8>) {
    let layout = parse(frame, medium).expect("a sound TCP segment");
    assert_eq!(layout.end, frame.len(), "no padding");
    let payload = frame[layout.payload_at..].to_vec();
    (number(frame, layout.tcp_at + TCP_SEQ), frame[layout.tcp_at + TCP_FLAGS], payload)
}

fn cut_at(segment: &Segment, at: &[usize]) -> Vec<Vec<u8>> {
    let frame = segment.frame();
    let layout = parse(&frame, segment.medium).unwrap();
    let mut start = 0;
    let ends = at.iter().copied().chain([segment.payload.len()]);
    let make = |end| {
        let mut out = Vec::new();
        piece(&frame, &layout, start..end, 0, &mut out);
        start = end;
        out
    };
    ends.map(make).collect()
}

#[test]
fn the_last_piece_keeps_push_and_fin() {
    let segment = Segment { flags: 0x10 | PSH | FIN | CWR, ..Segment::new(9, &[1, 2, 3, 4]) };
    let flags: Vec<u8> =
        cut_at(&segment, &[1, 3]).iter().map(|piece| read(piece, segment.medium).1).collect();
    assert_eq!(flags, [0x10 | CWR, 0x10, 0x10 | PSH | FIN]);
}

#[test]
fn sequence_numbers_wrap() {
    let pieces = cut_at(&Segment::new(u32::MAX, &[1, 2, 3]), &[2]);
    assert_eq!(read(&pieces[1], Medium::Ethernet), (1, 0x10, vec![3]));
}

#[test]
fn pieces_merge_back_into_the_same_frame() {
    let segment = Segment { flags: 0x10 | PSH, ..Segment::new(u32::MAX - 1, &[5; 300]) };
    let pieces = cut_at(&segment, &[1, 2, 299]);
    let mut merged = pieces[0].clone();
    for piece in &pieces[1..] {
        assert!(merge(&mut merged, piece, segment.medium, 1500));
    }
    assert_eq!(merged, segment.frame());
}

#[test]
fn segments_that_do_not_belong_together_are_not_merged() {
    let first = Segment::new(100, &[1; 10]);
    let next = Segment::new(110, &[2; 10]);
    let merges = |first: &Segment, second: &Segment, mtu| {
        merge(&mut first.frame(), &second.frame(), Medium::Ethernet, mtu)
    };
    assert!(merges(&first, &next, 60));
    assert!(!merges(&first, &next, 59), "longer than the MTU");
    assert!(!merges(&next, &first, 1500), "the wrong way round");
    assert!(!merges(&first, &Segment { seq: 111, ..next.clone() }, 1500), "a gap");
    assert!(!merges(&first, &Segment { payload: vec![], ..next.clone() }, 1500), "no data");
    assert!(!merges(&first, &Segment { options: vec![1; 4], ..next.clone() }, 1500), "options");
    assert!(!merges(&first, &Segment { is_v6: true, ..next.clone() }, 1500), "another version");
    assert!(!merges(&first, &Segment { tagged: true, ..next.clone() }, 1500), "another VLAN");
    assert!(!merges(&first, &Segment { flags: 0x50, ..next.clone() }, 1500), "ECE");
    assert!(!merges(&Segment { flags: 0x11, ..first.clone() }, &next, 1500), "after FIN");
    // Of another time to live: the checksum is right.
    let mut other = next.frame();
    other[22] -= 1;
    other[24..26].fill(0);
    let checksum = naive_checksum(&other[14..34]);
    other[24..26].copy_from_slice(&checksum.to_be_bytes());
    assert!(parse(&other, Medium::Ethernet).is_some());
    assert!(!merge(&mut first.frame(), &other, Medium::Ethernet, 1500), "another time to live");
    assert!(merges(&first, &Segment { flags: 0x19, ..next }, 1500), "FIN and PSH at the end");
}

#[test]
fn damaged_and_special_segments_are_not_parsed() {
    let frame = Segment::new(1, &[1; 20]).frame();
    assert!(parse(&frame, Medium::Ethernet).is_some());
    for at in 14..frame.len() {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x40;
        assert!(parse(&damaged, Medium::Ethernet).is_none(), "bit of octet {at}");
    }
    for len in 0..frame.len() {
        assert!(parse(&frame[..len], Medium::Ethernet).is_none(), "{len} octets");
    }
    for flags in [SYN, RST, URG] {
        let frame = Segment { flags, ..Segment::new(1, &[1; 20]) }.frame();
        assert!(parse(&frame, Medium::Ethernet).is_none(), "flags {flags:#x}");
    }
}

#[test]
fn padding_is_not_payload() {
    let mut frame = Segment::new(1, &[1, 2]).frame();
    frame.resize(60, 0);
    let layout = parse(&frame, Medium::Ethernet).unwrap();
    assert_eq!(layout.payload_len(), 2);
    let mut out = Vec::new();
    piece(&frame, &layout, 1..2, 0, &mut out);
    assert_eq!(read(&out, Medium::Ethernet), (2, 0x10, vec![2]));
    assert!(merge(&mut frame, &Segment::new(3, &[3]).frame(), Medium::Ethernet, 1500));
    assert_eq!(read(&frame, Medium::Ethernet), (1, 0x10, vec![1, 2, 3]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_cut_keeps_the_stream_and_the_checksums(
        payload in prop::collection::vec(any::<u8>(), 2..400),
        seq in any::<u32>(),
        is_v6 in any::<bool>(),
        tagged in any::<bool>(),
        is_ip in any::<bool>(),
        options in 0_usize..=10,
        cuts in prop::collection::btree_set(1_usize..400, 1..6),
    ) {
        let medium = if is_ip { Medium::Ip } else { Medium::Ethernet };
        let options = vec![1; options * 4];
        let segment =
            Segment { medium, tagged, is_v6, options, ..Segment::new(seq, &payload) };
        let cuts: Vec<usize> = cuts.into_iter().filter(|&at| at < payload.len()).collect();
        let mut stream = Vec::new();
        for piece in cut_at(&segment, &cuts) {
            let (piece_seq, _, octets) = read(&piece, medium);
            prop_assert_eq!(piece_seq, seq.wrapping_add(u32::try_from(stream.len()).unwrap()));
            stream.extend(octets);
        }
        prop_assert_eq!(stream, payload);
    }

    #[test]
    fn any_octets_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = parse(&bytes, Medium::Ethernet);
        let _ = parse(&bytes, Medium::Ip);
        let _ = merge(&mut bytes.clone(), &bytes, Medium::Ip, 1500);
    }
}

/// Writes the checksum of the IPv4 header of an untagged Ethernet frame.
fn sum_ipv4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let checksum = naive_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// RFC 791: the first of several fragments has offset 0 and more to come. RFC 9293 §3.1: a header
/// has at least five words.
#[test]
fn fragments_and_short_headers_are_no_segments() {
    let good = Segment::new(5, &[1; 40]).frame();
    let cases = [(20, 0x40, true), (20, 0x20, false), (21, 1, false), (15, 0x10, true)];
    for (at, value, is_one) in cases {
        let mut frame = good.clone();
        frame[at] = value;
        sum_ipv4(&mut frame);
        assert_eq!(locate(&frame, Medium::Ethernet).is_some(), is_one, "{at}: {value:#x}");
        frame[24] ^= 1;
        assert!(locate(&frame, Medium::Ethernet).is_none(), "a wrong checksum");
    }
    for (words, is_one) in [(4, false), (5, true), (6, true), (15, true)] {
        let mut frame = good.clone();
        frame[46] = words << 4;
        assert_eq!(locate(&frame, Medium::Ethernet).is_some(), is_one, "{words} words");
    }
}

#[test]
fn packets_of_another_class_or_flow_are_not_merged() {
    for at in [14, 15, 16, 17] {
        let of = |seq| Segment { is_v6: true, ..Segment::new(seq, &[7; 10]) }.frame();
        let (mut first, mut second) = (of(5), of(15));
        second[at] ^= 1;
        assert!(!merge(&mut first, &second, Medium::Ethernet, 1500), "octet {at}");
        second[at] ^= 1;
        assert!(merge(&mut first, &second, Medium::Ethernet, 1500));
    }
}

/// The length field of IPv4 has 16 bits, whatever the MTU.
#[test]
fn merged_segments_are_no_longer_than_a_datagram() {
    let longest = usize::from(u16::MAX) - 40;
    for (len, is_merged) in [(longest - 30_000, true), (longest - 29_999, false)] {
        let mut first = Segment::new(0, &vec![1; 30_000]).frame();
        let second = Segment::new(30_000, &vec![2; len]).frame();
        assert_eq!(merge(&mut first, &second, Medium::Ethernet, 1 << 20), is_merged, "{len}");
    }
}

/// Both checksums of IPv4 count, and IPv6 has only that of TCP.
#[test]
fn a_checksum_of_ones_is_not_computed() {
    for is_v6 in [false, true] {
        let frame = Segment { is_v6, ..Segment::new(0, &[1; 9]) }.frame();
        let layout = parse(&frame, Medium::Ethernet).unwrap();
        assert!(has_computed_checksums(&frame, &layout));
        for (at, is_checksum) in
            [(layout.tcp_at + TCP_CHECKSUM, true), (layout.ip_at + IPV4_CHECKSUM, !is_v6)]
        {
            let mut frame = frame.clone();
            frame[at..at + 2].fill(0xff);
            assert_eq!(has_computed_checksums(&frame, &layout), !is_checksum, "{at}");
        }
    }
}
