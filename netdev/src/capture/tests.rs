mod build;

use build::{Ng, Order, classic};
use proptest::prelude::*;

use super::*;

/// Returns the frames of a capture, and the error that ended it.
fn read(file: &[u8]) -> (Vec<CapturedFrame>, Option<CaptureError>) {
    let mut frames = Vec::new();
    match CaptureReader::open(file) {
        Err(error) => (frames, Some(error)),
        Ok(mut reader) => {
            for frame in &mut reader {
                match frame {
                    Ok(frame) => frames.push(frame),
                    Err(error) => {
                        assert!(reader.next().is_none(), "the error is the last item");
                        return (frames, Some(error));
                    }
                }
            }
            assert!(reader.next().is_none());
            (frames, None)
        }
    }
}

fn read_whole(file: &[u8]) -> Vec<CapturedFrame> {
    let (frames, error) = read(file);
    assert!(error.is_none(), "{error:?}");
    frames
}

#[test]
fn pcap_of_either_order_and_resolution_is_read() {
    for (magic, fraction_ns) in [(0xa1b2_c3d4_u32, 1000), (0xa1b2_3c4d, 1)] {
        for order in [Order::Big, Order::Little] {
            let file = classic(order, magic, 1, &[(1_700_000_000, 999, &[1; 60]), (2, 3, &[])]);
            let frames = read_whole(&file);
            assert_eq!(frames.len(), 2);
            assert_eq!(frames[0].timestamp_ns, 1_700_000_000_000_000_000 + 999 * fraction_ns);
            assert_eq!((frames[0].number, frames[0].link), (1, LinkType::Ethernet));
            assert_eq!((&frames[0].bytes[..], frames[0].original_len), (&[1; 60][..], 60));
            assert_eq!((frames[1].number, frames[1].bytes.len()), (2, 0));
        }
    }
}

#[test]
fn pcapng_of_either_order_is_read() {
    for order in [Order::Big, Order::Little] {
        let mut file = Ng::new(order);
        file.interface(1, 0, &[]);
        file.enhanced(0, 1_700_000_000_000_001, &[7; 61], 99);
        file.unknown(0x8000_0001, 400);
        file.old_packet(0, 5, &[8; 3]);
        file.simple(&[9; 5], 5);
        let frames = read_whole(&file.octets);
        let seen: Vec<_> = frames
            .iter()
            .map(|frame| (frame.number, frame.timestamp_ns, &frame.bytes[..], frame.original_len))
            .collect();
        let want: [(u64, u64, &[u8], usize); 3] = [
            (1, 1_700_000_000_000_001_000, &[7; 61], 99),
            (2, 5000, &[8; 3], 3),
            (3, 0, &[9; 5], 5),
        ];
        assert_eq!(seen, want);
    }
}

#[test]
fn interfaces_have_their_own_clocks_and_link_types() {
    let mut file = Ng::new(Order::Little);
    file.interface(1, 0, &[(9, &[9])]);
    file.interface(101, 0, &[(2, b"tun0"), (9, &[3]), (14, &5_i64.to_le_bytes())]);
    file.interface(276, 0, &[(9, &[0x80 | 10])]);
    file.interface(113, 0, &[(9, &[12]), (14, &(-1_i64).to_le_bytes())]);
    file.interface(0, 0, &[(9, &[127])]);
    file.enhanced(0, 42, &[0; 14], 14);
    file.enhanced(1, 42, &[0; 14], 14);
    file.enhanced(2, 1536, &[0; 14], 14);
    file.enhanced(3, 1_500_000_000_000, &[0; 14], 14);
    file.enhanced(4, u64::MAX, &[0; 14], 14);
    file.enhanced(3, 0, &[0; 14], 14);
    file.enhanced(1, u64::MAX, &[0; 14], 14);
    let seen: Vec<_> =
        read_whole(&file.octets).iter().map(|frame| (frame.link, frame.timestamp_ns)).collect();
    let want = [
        (LinkType::Ethernet, 42),
        (LinkType::RawIp, 5_042_000_000),
        (LinkType::LinuxCookedV2, 1_500_000_000),
        (LinkType::LinuxCooked, 500_000_000),
        (LinkType::Loopback, 0),
        (LinkType::LinuxCooked, 0),
        (LinkType::RawIp, u64::MAX),
    ];
    assert_eq!(seen, want);
}

#[test]
fn a_new_section_forgets_the_interfaces() {
    let mut file = Ng::new(Order::Little);
    file.interface(1, 0, &[]);
    file.enhanced(0, 1, &[1; 14], 14);
    let mut second = Ng::new(Order::Big);
    second.interface(101, 0, &[]);
    second.enhanced(0, 2, &[2; 14], 14);
    second.enhanced(1, 3, &[3; 14], 14);
    file.octets.extend(second.octets);
    let (frames, error) = read(&file.octets);
    let links: Vec<_> = frames.iter().map(|frame| frame.link).collect();
    assert_eq!(links, [LinkType::Ethernet, LinkType::RawIp]);
    assert!(matches!(error, Some(CaptureError::Malformed { frame: 3, .. })), "{error:?}");
}

#[test]
fn a_simple_packet_ends_with_the_snap_length() {
    let mut file = Ng::new(Order::Little);
    file.interface(1, 6, &[]);
    file.simple(&[1, 2, 3, 4, 5, 6], 1000);
    let frames = read_whole(&file.octets);
    assert_eq!((&frames[0].bytes[..], frames[0].original_len), (&[1, 2, 3, 4, 5, 6][..], 1000));
}

/// pcap's last 16 bits of the link type say how long the checksum of a frame is.
#[test]
fn a_link_type_may_have_flags_above_it() {
    let file = classic(Order::Little, 0xa1b2_c3d4, 0x5400_0001, &[(1, 0, &[1; 60])]);
    assert_eq!(read_whole(&file)[0].link, LinkType::Ethernet);
}

#[test]
fn link_types_that_are_not_known_are_named() {
    let (_, error) = read(&classic(Order::Little, 0xa1b2_c3d4, 147, &[]));
    assert!(matches!(error, Some(CaptureError::UnsupportedLink { number: 147, .. })));

    let mut file = Ng::new(Order::Little);
    file.interface(220, 0, &[]);
    file.interface(1, 0, &[]);
    file.enhanced(1, 0, &[1; 14], 14);
    file.enhanced(0, 0, &[1; 14], 14);
    file.enhanced(1, 0, &[2; 14], 14);
    let seen: Vec<_> =
        read_whole(&file.octets).iter().map(|frame| (frame.number, frame.link)).collect();
    let (known, other) = (LinkType::Ethernet, LinkType::Other(220));
    assert_eq!(seen, [(1, known), (2, other), (3, known)], "the other interface's frames are read");
    let error = CaptureError::UnsupportedLink { number: 220, frame: 2 };
    assert_eq!(
        error.to_string(),
        "frame 2: link type 220 (Linux USB with padding) is not supported"
    );
}

#[test]
fn blocks_whose_length_lacks_their_padding_are_read() {
    for order in [Order::Big, Order::Little] {
        for missing in 0..4 {
            let mut file = Ng::new(order);
            file.interface(1, 0, &[]);
            let start = file.octets.len();
            file.enhanced(0, 1, &[5; 60][..60 - missing], 60);
            let len = match order {
                Order::Big => (92 - u32::try_from(missing).unwrap()).to_be_bytes(),
                Order::Little => (92 - u32::try_from(missing).unwrap()).to_le_bytes(),
            };
            file.octets[start + 4..start + 8].copy_from_slice(&len);
            // Either length may be without the padding.
            let mut one_only = file.octets.clone();
            file.octets[start + 88..].copy_from_slice(&len);
            one_only.extend(file.octets.split_off(start));
            let frames = read_whole(&one_only);
            assert_eq!(frames.len(), 2, "{order:?} {missing}");
            assert!(frames.iter().all(|frame| frame.bytes == [5; 60][..60 - missing]));
        }
    }
}

#[test]
fn modified_pcap_is_read() {
    for order in [Order::Big, Order::Little] {
        let mut file = classic(order, 0xa1b2_cd34, 1, &[]);
        for len in [14, 21] {
            let record = classic(order, 0, 1, &[(7, 8, &vec![9; len])]).split_off(24);
            file.extend([&record[..16], &[0, 0, 0, 3, 8, 0, 4, 0], &record[16..]].concat());
        }
        let frames = read_whole(&file);
        let seen: Vec<_> = frames.iter().map(|one| (one.timestamp_ns, one.bytes.len())).collect();
        assert_eq!(seen, [(7_000_008_000, 14), (7_000_008_000, 21)]);
    }
}

#[test]
fn files_that_are_no_captures_are_refused() {
    assert!(matches!(read(&[]).1, Some(CaptureError::Empty)));
    assert!(matches!(read(&[0xa1]).1, Some(CaptureError::Truncated { frame: 1, offset: 1 })));
    let (_, error) = read(b"\x7fELF and more");
    let error = error.unwrap();
    assert!(matches!(error, CaptureError::UnknownFormat { magic: 0x7f45_4c46, known: None }));
    assert_eq!(error.to_string(), "neither pcap nor pcapng: the file begins with 7f454c46");
    let error = read(b"snoop\0\0\0\0\0\0\x02").1.unwrap();
    assert!(error.to_string().contains("snoop; convert it first: editcap"), "{error}");
    let mut file = classic(Order::Big, 0xa1b2_c3d4, 1, &[]);
    file[5] = 3;
    let (_, error) = read(&file);
    assert!(matches!(error, Some(CaptureError::UnsupportedVersion { major: 3, minor: 4 })));
}

#[test]
fn a_cut_file_gives_its_whole_frames_and_says_where_it_ends() {
    let frame = [5; 33];
    let mut ng = Ng::new(Order::Little);
    ng.interface(1, 0, &[]);
    let mut ends = vec![ng.octets.len()];
    let mut pcap = vec![classic(Order::Big, 0xa1b2_c3d4, 1, &[])];
    for count in 1..=3 {
        ng.enhanced(0, 1, &frame, 33);
        ends.push(ng.octets.len());
        pcap.push(classic(Order::Big, 0xa1b2_c3d4, 1, &vec![(1, 2, &frame[..]); count]));
    }
    let pcap_ends: Vec<_> = pcap.iter().map(Vec::len).collect();
    for (file, ends) in [(&ng.octets, ends), (&pcap[3], pcap_ends)] {
        for len in 1..file.len() {
            let (frames, error) = read(&file[..len]);
            let whole = ends.iter().skip(1).filter(|&&end| end <= len).count();
            assert_eq!(frames.len(), whole, "{len} octets");
            let at_boundary = ends.contains(&len);
            match error {
                // A file may also end behind a block without a frame.
                None => assert!(at_boundary || len == 28, "{len} octets"),
                Some(CaptureError::Truncated { frame, offset }) => {
                    assert!(!at_boundary, "{len} octets");
                    assert_eq!((frame, offset), (whole as u64 + 1, len as u64));
                }
                Some(other) => panic!("{other} after {len} octets"),
            }
        }
    }
}

#[test]
fn absurd_lengths_are_refused_without_allocation() {
    let mut file = classic(Order::Little, 0xa1b2_c3d4, 1, &[(0, 0, &[1; 60])]);
    let at = file.len() - 60 - 8;
    file[at..at + 4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    let error = read(&file).1.unwrap();
    assert!(matches!(error, CaptureError::FrameTooLong { frame: 1, len: 0xffff_fff0 }));

    // A frame of the maximum length is accepted, but is not in the file.
    file[at..at + 4].copy_from_slice(&262_144_u32.to_le_bytes());
    assert!(matches!(read(&file).1, Some(CaptureError::Truncated { frame: 1, .. })));

    let mut ng = Ng::new(Order::Little);
    ng.interface(1, 0, &[]);
    let start = ng.octets.len();
    ng.enhanced(0, 0, &[1; 60], 60);
    let damage = |at: usize, value: u32| {
        let mut file = ng.octets.clone();
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        read(&file).1.unwrap()
    };
    assert!(matches!(damage(start + 20, 262_145), CaptureError::FrameTooLong { frame: 1, .. }));
    assert!(matches!(damage(start + 20, 65), CaptureError::Malformed { .. }));
    assert!(matches!(damage(start + 4, 0), CaptureError::Malformed { .. }));
    assert!(matches!(damage(start + 4, 93), CaptureError::Truncated { .. }));
    assert!(matches!(damage(start + 4, u32::MAX), CaptureError::Malformed { .. }));
    assert!(matches!(damage(start + 4, 16), CaptureError::Malformed { .. }));
    assert!(matches!(damage(start + 4, 0xffff_fffc), CaptureError::Truncated { .. }));
    assert!(matches!(damage(ng.octets.len() - 4, 96), CaptureError::Malformed { .. }));
    assert!(matches!(damage(start - 16, 0xffff_fffc), CaptureError::Malformed { .. }));
    assert!(matches!(damage(8, 0), CaptureError::Malformed { .. }));
}

#[test]
fn captures_of_another_writer_are_read() {
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use pcap_file::{DataLink, Endianness, TsResolution};
    for endianness in [Endianness::Big, Endianness::Little] {
        for ts_resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let header = PcapHeader {
                endianness,
                ts_resolution,
                datalink: DataLink::LINUX_SLL,
                ..PcapHeader::default()
            };
            let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
            let time = std::time::Duration::new(1_700_000_000, 123_000);
            writer.write_packet(&PcapPacket::new(time, 77, &[6; 44])).unwrap();
            let frames = read_whole(&writer.into_writer());
            let want = CapturedFrame {
                number: 1,
                timestamp_ns: 1_700_000_000_000_123_000,
                link: LinkType::LinuxCooked,
                interface: 0,
                original_len: 77,
                bytes: vec![6; 44],
            };
            assert_eq!(frames, [want]);
        }
    }
}

/// A reader that returns one byte at a time and is interrupted in between.
#[derive(Debug)]
struct Dripping<'a>(&'a [u8], bool);

impl Read for Dripping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let len = self.0.len().min(1);
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

#[test]
fn a_copy_by_blocks_has_the_same_frames() {
    for order in [Order::Big, Order::Little] {
        let frames: [(usize, usize, &[u8]); 2] = [(1, 999_999, &[8; 30]), (3, 4, &[9; 31])];
        for magic in [0xa1b2_c3d4, 0xa1b2_3c4d] {
            let file = classic(order, magic, 1, &frames);
            let copy = copied(&file);
            assert_eq!(read_whole(&copy), read_whole(&file));
            assert_eq!(copied(&copy), copy, "blocks are not changed");
        }
        let mut ng = Ng::new(order);
        ng.interface(1, 0, &[(2, b"eth0"), (9, &[9])]);
        ng.enhanced(0, 77, &[8; 31], 60);
        ng.unknown(5, 24);
        ng.old_packet(0, 78, &[8; 30]);
        assert_eq!(copied(&ng.octets), ng.octets);
        for len in 0..ng.octets.len() {
            read_all(&ng.octets[..len]);
        }
    }
}

#[test]
fn short_and_interrupted_reads_do_not_matter() {
    let file = classic(Order::Little, 0xa1b2_c3d4, 1, &[(0, 0, &[1; 60]), (0, 0, &[2; 60])]);
    let frames: Result<Vec<_>, _> = CaptureReader::open(Dripping(&file, false)).unwrap().collect();
    assert_eq!(frames.unwrap(), read_whole(&file));
}

#[test]
fn an_error_of_the_file_is_passed_on() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }
    let error = CaptureReader::open(Broken).err().unwrap();
    assert!(matches!(error, CaptureError::Io(_)));
}

/// Returns an IPv4 datagram of 24 bytes and an IPv6 one of 44, each followed by padding.
fn packets() -> [(Vec<u8>, usize); 2] {
    let mut v4 = vec![0; 50];
    v4[0] = 0x45;
    v4[3] = 24;
    let mut v6 = vec![0; 60];
    v6[0] = 0x60;
    v6[5] = 4;
    [(v4, 24), (v6, 44)]
}

#[test]
fn the_ip_datagram_is_found_behind_every_link_header() {
    for (k, (packet, len)) in packets().into_iter().enumerate() {
        let ethertype: [u8; 2] = [[0x08, 0x00], [0x86, 0xdd]][k];
        let tags = [&[0x81, 0, 0, 7][..], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9], &[]];
        let family: [u8; 4] = [[0, 0, 0, 2], [0, 0, 0, 30]][k];
        let mut family_swapped = family;
        family_swapped.reverse();
        let mut cases = vec![
            (LinkType::RawIp, vec![]),
            ([LinkType::Ipv4, LinkType::Ipv6][k], vec![]),
            (LinkType::Loopback, family.to_vec()),
            (LinkType::Loopback, family_swapped.to_vec()),
            (LinkType::LinuxCooked, [&[0; 14][..], &ethertype].concat()),
            (LinkType::LinuxCookedV2, [&ethertype[..], &[0; 18]].concat()),
            (LinkType::LinuxCooked, [&[0; 14][..], &[0x81, 0, 0, 7], &ethertype].concat()),
        ];
        for tag in tags {
            cases.push((LinkType::Ethernet, [&[0; 12][..], tag, &ethertype].concat()));
        }
        for (link, header) in cases {
            let frame = [&header[..], &packet].concat();
            assert_eq!(link.ip_packet(&frame), Ok(Some(&packet[..len])), "{link:?} {header:?}");
            // A truncated frame gives a truncated datagram, without an error.
            let cut = &frame[..header.len() + 10];
            assert_eq!(link.ip_packet(cut), Ok(Some(&packet[..10])), "{link:?} {header:?}");
            for len in 0..=header.len() {
                let result = link.ip_packet(&frame[..len]);
                assert_eq!(result, Err(LinkError { len }), "{link:?} {header:?}");
            }
        }
    }
}

#[test]
fn a_datagram_of_unset_length_is_all_there_is() {
    let [(mut v4, _), (mut v6, _)] = packets();
    v4[3] = 0;
    v6[5] = 0;
    assert_eq!(LinkType::RawIp.ip_packet(&v4), Ok(Some(&v4[..])));
    assert_eq!(LinkType::RawIp.ip_packet(&v6), Ok(Some(&v6[..])));
}

#[test]
fn frames_without_ip_are_recognised_on_every_link_type() {
    let arp = [&[0; 12][..], &[0x08, 0x06], &[0; 46]].concat();
    assert_eq!(LinkType::Ethernet.ip_packet(&arp), Ok(None));
    assert_eq!(LinkType::LinuxCooked.ip_packet(&[0; 30]), Ok(None));
    assert_eq!(LinkType::LinuxCookedV2.ip_packet(&[0; 30]), Ok(None));
    assert_eq!(LinkType::Loopback.ip_packet(&[0, 0, 0, 7, 0x45]), Ok(None));
    assert_eq!(LinkType::RawIp.ip_packet(&[0x70; 30]), Ok(None));
    assert_eq!(LinkType::Ipv4.ip_packet(&[0x60; 30]), Ok(None));
    assert_eq!(LinkType::Ipv6.ip_packet(&[0x45; 30]), Ok(None));
}

#[test]
fn link_type_numbers_are_the_registered_ones() {
    for number in
        [0, 1, 9, 12, 14, 50, 51, 101, 104, 108, 113, 192, 197, 219, 228, 229, 240, 242, 247, 276]
    {
        assert!(LinkType::from_number(number).is_some(), "{number}");
    }
    assert_eq!(LinkType::from_number(105), None);
    assert_eq!(LinkType::from_number(u32::MAX), None);
}

/// Copies the blocks of a capture, as far as they are whole.
fn copied(file: &[u8]) -> Vec<u8> {
    let mut copy = Vec::new();
    let Ok(mut reader) = BlockReader::open(file) else { return copy };
    let no_file = || Err(std::io::ErrorKind::Unsupported.into());
    while let Ok(Some(block)) = reader.next_block(no_file) {
        block.write(&mut copy).unwrap();
    }
    copy
}

/// Reads a file by frames and by blocks: a copy has the same frames.
fn read_all(file: &[u8]) {
    let (frames, error) = read(file);
    let is_open = !frames.is_empty() || error.is_none();
    assert!(!is_open || read(&copied(file)).0 == frames, "{file:?}");
    for frame in frames {
        assert!(frame.bytes.len() <= file.len());
        if let Ok(Some(packet)) = frame.ip_packet() {
            assert!(packet.len() <= frame.bytes.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_octets_are_read_without_panic(
        kind in 0_usize..6,
        tail in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let beginnings: [&[u8]; 6] = [
            &[],
            &[0xa1, 0xb2, 0xc3, 0xd4, 0, 2],
            &[0x4d, 0x3c, 0xb2, 0xa1, 2, 0],
            &[0x0a, 0x0d, 0x0d, 0x0a],
            &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1],
            &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0],
        ];
        read_all(&[beginnings[kind], &tail].concat());
    }

    #[test]
    fn damaged_captures_are_read_without_panic(
        is_ng in any::<bool>(),
        order in prop::sample::select(vec![Order::Big, Order::Little]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut file = if is_ng {
            let mut ng = Ng::new(order);
            ng.interface(1, 0, &[(2, b"eth0"), (9, &[9]), (14, &[0; 8])]);
            ng.enhanced(0, 77, &[8; 30], 30);
            ng.simple(&[9; 17], 17);
            ng.unknown(5, 24);
            ng.old_packet(0, 78, &[8; 31]);
            ng.octets
        } else {
            classic(order, 0xa1b2_c3d4, 1, &[(1, 2, &[8; 30]), (3, 4, &[9; 31])])
        };
        for (index, octet) in damage {
            let at = index.index(file.len());
            file[at] = octet;
        }
        read_all(&file);
    }
}
