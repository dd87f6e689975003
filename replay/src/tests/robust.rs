//! Damaged and malicious captures.

use proptest::prelude::*;
use urnic_engine::wire::mpa::StartupKind;

use super::build::{fpdu, startup};
use super::*;

/// Builds a session with messages of many kinds, and markers to the responder.
fn session() -> Vec<u8> {
    let mut talk = Talk::open();
    talk.send(INITIATOR, &startup(StartupKind::Request, false, b"private"));
    talk.send(RESPONDER, &startup(StartupKind::Reply, false, b"data"));
    talk.fpdu(INITIATOR, &send(1, &[7; 300]))
        .fpdu(RESPONDER, &read_request(1, 7, 100, 600))
        .fpdu(INITIATOR, &read_response(7, 100, &[5; 600]));
    let octets = fpdu(&write(9, 1 << 40, &[3; 1000]));
    talk.send(RESPONDER, &octets[..300]).send(RESPONDER, &octets[300..]);
    talk.fpdu(RESPONDER, &terminate([0x02, 5, 0, 0])).close(INITIATOR).close(RESPONDER);
    talk.file
}

/// Replays any bytes, and checks that the results can be written.
fn survives(capture: &[u8]) {
    let report = super::super::replay("test", || Ok(capture));
    let json = serde_json::to_string(&report).unwrap();
    let report = crate::report::Report { files: vec![report] };
    assert!(crate::report::text::of(&report).starts_with("test: "));
    let mut pictured = [crate::replay_pictured("test", || Ok(capture))];
    for connection in &mut pictured[0].report.connections {
        connection.directions.iter_mut().for_each(|direction| direction.times = None);
    }
    assert_eq!(serde_json::to_string(&pictured[0].report).unwrap(), json);
    let page = crate::report::page::of(&pictured);
    assert!(page.ends_with("</html>\n") && !page.contains("NaN"));
    let pictures = crate::report::page::pictures(&pictured);
    assert!(pictures.iter().all(|(_, svg)| svg.ends_with("</svg>\n")));
    // Without an iWARP connection nothing is compared.
    let _is_compared = crate::report::compare::of(&pictured);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_captures_are_replayed_without_a_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut capture = session();
        for (index, value) in flips {
            let at = index.index(capture.len());
            capture[at] = value;
        }
        let keep = cut.index(2 * capture.len());
        capture.truncate(keep);
        survives(&capture);
    }

    #[test]
    fn damaged_payload_is_replayed_without_a_panic(
        garbage in proptest::collection::vec(any::<u8>(), 1..2000),
        markers in any::<bool>(),
        cuts in proptest::collection::vec(1_usize..400, 1..30),
        skip in 0_usize..3,
    ) {
        let mut talk = Talk::open();
        talk.send(INITIATOR, &startup(StartupKind::Request, markers, b""));
        talk.send(RESPONDER, &startup(StartupKind::Reply, markers, b""));
        let mut octets = fpdu(&send(1, b"x"));
        octets.extend(garbage);
        let mut rest = &octets[..];
        for (index, cut) in cuts.into_iter().enumerate() {
            let (piece, tail) = rest.split_at(cut.min(rest.len()));
            rest = tail;
            if index % 4 == skip {
                talk.skip(INITIATOR, u32::try_from(piece.len()).unwrap());
            } else {
                talk.send(INITIATOR, piece);
            }
        }
        survives(&talk.file);
    }

    #[test]
    fn arbitrary_segments_of_one_connection_are_survived(
        segments in proptest::collection::vec(
            (0_usize..2, any::<u32>(), 0_u8..64, 0_usize..100), 1..40,
        ),
    ) {
        let mut talk = Talk::started();
        for (side, seq, flags, len) in segments {
            talk.frame(side, seq, flags, &vec![0x41; len]);
        }
        survives(&talk.file);
    }
}

#[test]
fn many_connections_and_far_jumps_take_little_memory() {
    let mut talk = Talk::started();
    let mut seq = talk.seq[INITIATOR];
    for _ in 0..2000 {
        seq = seq.wrapping_add(0x7000_0001);
        talk.frame(INITIATOR, seq, 0x10, &[1; 3]);
    }
    for tag in 0..200 {
        talk.fpdu(RESPONDER, &write(tag, u64::from(tag) << 33, &[1]));
        talk.fpdu(RESPONDER, &write(tag, u64::MAX - u64::from(tag), &[1]));
    }
    let report = replay(&talk.file);
    let responder = &report.connections[0].directions[1];
    assert_eq!(responder.buffers.len(), 200);
    assert!(responder.buffers.iter().all(|one| one.bytes == 2 && one.sha256.is_none()));
}

#[test]
fn a_file_that_is_no_capture_is_an_error_and_a_short_one_a_warning() {
    for (bytes, message) in [
        (&b""[..], "empty"),
        (b"#!/bin/sh\necho", "neither pcap nor pcapng"),
        (&session()[..20], "cut off"),
    ] {
        let report = super::super::replay("test", || Ok(bytes));
        let error = report.error.unwrap();
        assert!(error.contains(message), "{error}");
        assert_eq!(report.frames, 0);
    }
    let whole = session();
    let report = replay(&whole[..whole.len() - 5]);
    assert_eq!((report.findings.len(), report.findings[0].severity), (1, Severity::Warning));
}

#[test]
fn a_packed_capture_is_replayed_like_the_file_and_a_cut_one_as_far_as_it_goes() {
    use std::io::Read as _;
    let mut talk = Talk::started();
    for msn in 1..=200 {
        talk.fpdu(INITIATOR, &send(msn, &msn.wrapping_mul(0x9e37_79b9).to_be_bytes()));
    }
    let mut packed = Vec::new();
    let level = flate2::Compression::best();
    flate2::read::GzEncoder::new(&talk.file[..], level).read_to_end(&mut packed).unwrap();
    assert_eq!(format!("{:?}", replay(&packed)), format!("{:?}", replay(&talk.file)));
    let cut = crate::replay("test", || Ok(&packed[..packed.len() / 2]));
    assert!(cut.frames > 20 && cut.frames < talk.frames, "{}", cut.frames);
    let finding = cut.findings.first().unwrap();
    assert!(finding.text.contains("the gzip stream of the file ends early"), "{finding:?}");
    assert_eq!((finding.severity, cut.error, cut.findings.len()), (Severity::Warning, None, 1));
    let nothing = crate::replay("test", || Ok(&packed[..9]));
    assert_eq!(nothing.frames, 0);
    assert!(nothing.error.unwrap().contains("gzip stream of the file ends before"));
    assert!(nothing.findings.is_empty(), "the error says it: {:?}", nothing.findings);
    // A file that is no capture is none, truncated or not.
    let mut other = Vec::new();
    flate2::read::GzEncoder::new(&b"#!/bin/sh\necho"[..], level).read_to_end(&mut other).unwrap();
    let error = crate::replay("test", || Ok(&other[..other.len() - 1])).error.unwrap();
    assert!(error.contains("neither pcap nor pcapng"), "{error}");
    // If it is truncated after a whole frame, nothing else shows that more is missing.
    let mut member = Vec::new();
    flate2::read::GzEncoder::new(&talk.file[..], level).read_to_end(&mut member).unwrap();
    let whole = crate::replay("test", || Ok(&member[..member.len() - 1]));
    assert_eq!((whole.frames, whole.findings.len()), (talk.frames, 1));
    assert!(whole.findings[0].text.contains("what follows frame"), "{:?}", whole.findings);
}

#[test]
fn a_packed_capture_that_is_too_long_is_refused() {
    use std::io::Read as _;
    let file = Talk::started().file;
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(&file[..], flate2::Compression::fast())
        .read_to_end(&mut packed)
        .unwrap();
    let within = |max: usize| {
        let unpacked_max = Some(max as u64);
        let options = crate::Options { unpacked_max, ..crate::Options::default() };
        crate::replay_with(options, "test", || Ok(&packed[..])).into_report()
    };
    assert_eq!(within(file.len()).error, None);
    let error = within(file.len() - 1).error.unwrap();
    assert!(error.contains("it unpacks to more than"), "{error}");
}

#[test]
fn frames_of_link_types_that_are_not_read_are_counted_and_passed_over() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x")).fpdu(RESPONDER, &send(1, b"y"));
    let packets = places::records(&talk.file);
    let count = packets.len();
    let others = [(0, 1, vec![7; 64]), (2, 1, vec![8; 64])];
    let between = packets.into_iter().map(|packet| (1, 1, packet));
    let frames: Vec<_> =
        others.clone().into_iter().chain(between).chain([(0, 1, vec![7; 64])]).collect();
    let file = places::pcapng(&[220, 101, 105], &frames);
    let report = replay(&file);
    assert_eq!((report.frames, report.error.as_ref()), (count as u64 + 3, None));
    let fpdus: Vec<_> = report.connections[0].directions.iter().map(|one| one.fpdus).collect();
    assert_eq!(fpdus, [1, 1]);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((finding.severity, finding.frame), (Severity::Note, 1));
    assert_eq!(
        finding.text,
        format!(
            "not read for their link type: 3 of {} frames, 220 (Linux USB with padding), 105 (IEEE 802.11)",
            count + 3
        )
    );
    // They are copied with the others, and keep their numbers.
    let (_, comments) =
        crate::replay_commented(crate::Options::default(), "test", || Ok(&file[..])).unwrap();
    let mut out = Vec::new();
    let written = comments.write(&file[..], &mut out).unwrap();
    assert_eq!((written.frames, written.cut), (report.frames, None));
    assert_eq!(replay(&out).connections[0].directions[0].fpdus, 1);
    // A file with only such frames has no report.
    let report =
        crate::replay("test", || Ok(places::pcapng(&[220, 105], &others[..1]).leak() as &[u8]));
    let error = report.error.unwrap();
    assert!(error.contains("link type 220 (Linux USB with padding) is not supported"), "{error}");
}

#[test]
fn modified_pcap_is_replayed_and_written() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x"));
    let (head, mut rest) = talk.file.split_at(24);
    let mut modified = [&[0xa1, 0xb2, 0xcd, 0x34][..], &head[4..]].concat();
    while let Some((record, after)) = rest.split_at_checked(16) {
        let len = u32::from_be_bytes(record[8..12].try_into().unwrap()) as usize;
        modified.extend([record, &[0, 0, 0, 2, 8, 0, 0, 0], &after[..len]].concat());
        rest = &after[len..];
    }
    assert_eq!(format!("{:?}", replay(&modified)), format!("{:?}", replay(&talk.file)));
    let written = |file: &[u8]| {
        let (_, comments) =
            crate::replay_commented(crate::Options::default(), "test", || Ok(file)).unwrap();
        let mut out = Vec::new();
        comments.write(file, &mut out).unwrap();
        out
    };
    assert_eq!(written(&modified), written(&talk.file));
}

/// Wraps each frame by `wrap`, on a link of this type.
fn wrapped(file: &[u8], link: u8, wrap: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (head, mut rest) = file.split_at(24);
    let mut out = [&head[..23], &[link]].concat();
    while let Some((record, after)) = rest.split_at_checked(16) {
        let len = u32::from_be_bytes(record[8..12].try_into().unwrap());
        let (packet, next) = after.split_at(len as usize);
        let frame = wrap(packet);
        let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
        out.extend([&record[..8], &len, &len, &frame].concat());
        rest = next;
    }
    out
}

fn outer(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let header = [0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
    [&header[..], &[192, 0, 2, 1, 192, 0, 2, 2], payload].concat()
}

#[test]
fn connections_inside_tunnels_are_found() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"in a tunnel")).fpdu(RESPONDER, &write(5, 0, b"and back"));
    let plain = format!("{:?}", replay(&talk.file));
    let ethernet =
        |ethertype: [u8; 2], payload: &[u8]| [&[2; 12][..], &ethertype, payload].concat();
    let gre = |flags: u8, protocol: [u8; 2], options: &[u8], payload: &[u8]| {
        outer(47, &[&[flags, 0][..], &protocol, options, payload].concat())
    };
    let vxlan = |frame: &[u8]| {
        let len = u16::try_from(16 + frame.len()).unwrap().to_be_bytes();
        let head = [0xc0, 0, 0x12, 0xb5, len[0], len[1], 0, 0, 8, 0, 0, 0, 0, 0, 7, 0];
        outer(17, &[&head[..], frame].concat())
    };
    const IP: [u8; 2] = [8, 0];
    type Wrap<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, u8, Wrap<'_>); 7] = [
        ("IP in IP", 101, &|ip| outer(4, ip)),
        ("GRE", 101, &|ip| gre(0, IP, &[], ip)),
        ("GRE with checksum, key and number", 101, &|ip| gre(0xb0, IP, &[0; 12], ip)),
        ("GRE with Ethernet", 101, &|ip| gre(0, [0x65, 0x58], &[], &ethernet(IP, ip))),
        ("VXLAN", 101, &|ip| vxlan(&ethernet(IP, ip))),
        ("VXLAN in GRE", 101, &|ip| gre(0, IP, &[], &vxlan(&ethernet(IP, ip)))),
        ("two MPLS labels", 1, &|ip| {
            ethernet([0x88, 0x47], &[&[0, 1, 0, 9, 0, 2, 1, 9][..], ip].concat())
        }),
    ];
    for (name, link, wrap) in cases {
        assert_eq!(format!("{:?}", replay(&wrapped(&talk.file, link, wrap))), plain, "{name}");
    }
    // Truncated at any length, or not what it seems: nothing is found in it.
    for len in 0..70 {
        let cut = wrapped(&talk.file, 101, |ip| {
            let mut whole = vxlan(&ethernet(IP, ip));
            whole.truncate(len);
            whole
        });
        assert_eq!(replay(&cut).connections.len(), 0, "{len}");
    }
    let other_port = wrapped(&talk.file, 101, |ip| {
        let mut whole = vxlan(&ethernet(IP, ip));
        whole[23] += 1;
        whole
    });
    assert_eq!(replay(&other_port).connections.len(), 0);
}

#[test]
fn tcp_behind_extension_headers_of_ipv6_is_found() {
    let mut talk = Talk { checksums: false, ..Talk::empty() }.opened().in_full_operation();
    talk.fpdu(INITIATOR, &send(1, b"x")).fpdu(RESPONDER, &send(1, b"y"));
    for lens in [[0_u8, 0], [1, 0], [0, 2], [3, 3]] {
        let file = wrapped(&talk.file, 101, |ip| {
            let extension =
                |next: u8, len: u8| [&[next, len][..], &vec![0; 6 + 8 * usize::from(len)]].concat();
            let behind =
                [extension(43, lens[0]), extension(6, lens[1]), ip[20..].to_vec()].concat();
            let [high, low] = u16::try_from(behind.len()).unwrap().to_be_bytes();
            let head = [0x60, 0, 0, 0, high, low, 0, 64];
            let ends = [&[0xfd; 12][..], &ip[12..16], &[0xfd; 12], &ip[16..20]].concat();
            [&head[..], &ends, &behind].concat()
        });
        let found = connection(&file);
        let fpdus: Vec<_> = found.directions.iter().map(|one| one.fpdus).collect();
        assert_eq!(fpdus, [1, 1], "{lens:?}");
        assert!(found.initiator.starts_with("[fdfd:"), "{}", found.initiator);
    }
}
