//! Captures from several places: the same frame more than once, and different clocks.

use super::build::{checksum, fpdu};
use super::*;

/// Returns the records of a capture, each with its packet.
pub(super) fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut out) = (&file[24..], Vec::new());
    while let Some((record, after)) = rest.split_at_checked(16) {
        let len = u32::from_be_bytes(record[8..12].try_into().unwrap()) as usize;
        out.push(after[..len].to_vec());
        rest = &after[len..];
    }
    out
}

/// Builds a capture of these packets: place, time in seconds, bytes.
pub(super) fn capture(packets: impl IntoIterator<Item = (u8, u32, Vec<u8>)>) -> Vec<u8> {
    let packets = packets.into_iter();
    capture_us(packets.map(|(mac, seconds, packet)| (mac, u64::from(seconds) * 1_000_000, packet)))
}

/// Builds a capture with times in microseconds.
fn capture_us(packets: impl IntoIterator<Item = (u8, u64, Vec<u8>)>) -> Vec<u8> {
    let mut file = Talk::empty().file;
    file[23] = 1;
    for (mac, at_us, packet) in packets {
        let frame = [&[mac; 12][..], &[8, 0], &packet].concat();
        let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
        let [seconds, us] = [at_us / 1_000_000, at_us % 1_000_000]
            .map(|part| u32::try_from(part).unwrap().to_be_bytes());
        file.extend([&seconds[..], &us, &len, &len, &frame].concat());
    }
    file
}

/// Builds a little-endian pcapng file: an interface of each link type, and frames with their
/// interface, time in microseconds, and bytes.
pub(super) fn pcapng(links: &[u16], frames: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let len = u32::try_from(12 + padded).unwrap().to_le_bytes();
        let mut body = body.to_vec();
        body.resize(padded, 0);
        [&kind.to_le_bytes()[..], &len, &body, &len].concat()
    };
    let head = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let mut file = block(0x0a0d_0d0a, &head);
    for link in links {
        file.extend(block(1, &[&link.to_le_bytes()[..], &[0; 6]].concat()));
    }
    for (interface, at_us, octets) in frames {
        let len = u32::try_from(octets.len()).unwrap().to_le_bytes();
        let [high, low] = [at_us >> 32, at_us & 0xffff_ffff]
            .map(|half| u32::try_from(half).unwrap().to_le_bytes());
        let body = [&interface.to_le_bytes()[..], &high, &low, &len, &len, octets];
        file.extend(block(6, &body.concat()));
    }
    file
}

/// Two interfaces whose clocks are five seconds apart; the second sees only every third frame, so
/// that copies are no property of the capture.
#[test]
fn copies_on_an_interface_with_another_clock_are_found() {
    let packets = records(&session().file);
    let file = |clocks_apart_us: u64, interface: u32| {
        let mut frames = Vec::new();
        for (index, packet) in packets.iter().enumerate() {
            let at_us = 1_000_000_000 + 100 * index as u64;
            frames.push((0, at_us, packet.clone()));
            if index % 3 == 0 {
                let mut routed = packet.clone();
                routed[8] -= 1;
                frames.push((interface, at_us + clocks_apart_us, routed));
            }
        }
        replay(&pcapng(&[101, 101], &frames))
    };
    let copies = packets.len().div_ceil(3) as u64;
    for clocks_apart_us in [0, 5_000_000] {
        let report = file(clocks_apart_us, 1);
        assert_eq!(report.frames_copied, copies, "{clocks_apart_us}");
        assert_eq!(report.connections[0].directions[0].segments_retransmitted, 1);
    }
    // On one clock, such a late frame is a retransmission.
    assert_eq!(file(5_000_000, 0).frames_copied, 0);
}

fn session() -> Talk {
    let mut talk = Talk::started();
    for msn in 1..=20 {
        talk.fpdu(INITIATOR, &send(msn, &[7; 100])).fpdu(RESPONDER, &send(msn, &[8; 50]));
    }
    // A retransmission, not a copy.
    let seq = talk.seq[INITIATOR].wrapping_sub(128);
    talk.frame(INITIATOR, seq, 0x10, &fpdu(&send(20, &[7; 100])));
    talk
}

/// Builds the session with a retransmission that acknowledges no more than the first
/// transmission.
fn repeating() -> Vec<Vec<u8>> {
    let mut packets = records(&session().file);
    let last = packets.len() - 1;
    packets[last] = packets[last - 2].clone();
    packets
}

/// Counts of the connection, and its findings.
fn counts(report: &FileReport) -> String {
    assert_eq!(report.connections.len(), 1);
    let connection = &report.connections[0];
    let of = |one: &crate::report::DirectionReport| {
        (one.segments, one.segments_retransmitted, one.segments_out_of_order, one.fpdus)
    };
    format!(
        "{:?} {:?}",
        connection.directions.iter().map(of).collect::<Vec<_>>(),
        rules(connection)
    )
}

#[test]
fn a_frame_that_two_taps_captured_is_taken_once() {
    let packets = records(&session().file);
    let plain = counts(&replay(&capture(packets.iter().map(|one| (1, 9, one.clone())))));
    assert!(plain.starts_with("[(22, 1, 0, 20), (21, 0, 0, 20)]"), "{plain}");
    // Before and after a router: other link addresses, hop limit decremented.
    let routed = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        packet[8] -= 1;
        packet
    };
    let beside = packets.iter().flat_map(|one| [(1, 9, one.clone()), (2, 9, routed(one))]);
    // The other tap's frames come later, as from a buffer that is emptied periodically.
    let later = packets.chunks(7).flat_map(|chunk| {
        let there = chunk.iter().map(|one| (1, 9, one.clone()));
        there.chain(chunk.iter().map(|one| (2, 9, routed(one)))).collect::<Vec<_>>()
    });
    // A mirrored port of a switch, in both directions: the copies are identical.
    let mirrored = packets.iter().flat_map(|one| [(1, 9, one.clone()), (1, 9, one.clone())]);
    let cases =
        [("beside", capture(beside)), ("later", capture(later)), ("mirrored", capture(mirrored))];
    for (name, file) in cases {
        let report = replay(&file);
        assert_eq!(counts(&report), plain, "{name}");
        assert_eq!(report.frames_copied, packets.len() as u64, "{name}");
        assert_eq!(report.findings.len(), 1, "{name}: {:?}", report.findings);
        assert!(report.findings[0].text.contains("more than once"), "{name}");
    }
}

/// Each frame comes from a mirrored port twice, except the retransmitted one: the capture lost one
/// copy of it each time.
#[test]
fn retransmission_is_no_copy_of_a_mirrored_port() {
    let packets = repeating();
    let last = packets.len() - 1;
    let lost = last - 2;
    let at_us =
        |index: usize| 1_000_000 + 100 * index as u64 + if index == last { 20_000 } else { 0 };
    let mirrored = packets.iter().enumerate().flat_map(|(index, one)| {
        let copies = if [lost, last].contains(&index) { 1 } else { 2 };
        (0..copies).map(move |copy| (1, at_us(index) + copy, one.clone()))
    });
    let report = replay(&capture_us(mirrored));
    assert_eq!(report.frames_copied, packets.len() as u64 - 2);
    assert_eq!(report.connections[0].directions[0].segments_retransmitted, 1);
}

/// Each segment is sent twice, the second time after a timeout: no port is mirrored.
#[test]
fn a_link_that_loses_each_segment_once_is_no_mirrored_port() {
    let packets = repeating();
    let both = packets.iter().enumerate().flat_map(|(index, one)| {
        let at_us = 1_000_000 + 50_000 * index as u64;
        [(1, at_us, one.clone()), (1, at_us + 20_000, one.clone())]
    });
    let report = replay(&capture_us(both));
    assert_eq!(report.frames_copied, 0);
    assert_eq!(report.connections[0].directions[0].segments_retransmitted, 23);
}

/// The path changes: only the retransmission passes another router.
#[test]
fn retransmission_on_another_path_is_no_copy() {
    let packets = repeating();
    let last = packets.len() - 1;
    let at = |later_us: u64| {
        let packets = packets.iter().enumerate().map(|(index, one)| match index == last {
            true => (2, 1_000_000 + 100 * index as u64 + later_us, one.clone()),
            false => (1, 1_000_000 + 100 * index as u64, one.clone()),
        });
        let report = replay(&capture_us(packets));
        (report.frames_copied, report.connections[0].directions[0].segments_retransmitted)
    };
    assert_eq!(at(20_000), (0, 1));
    assert_eq!(at(0), (1, 0), "as soon as that it is the same frame, at the next router");
}

/// A network of one machine, with a delay between its interfaces.
#[test]
fn delayed_copies_of_distant_taps_are_found() {
    let packets = repeating();
    let plain = counts(&replay(&capture(packets.iter().map(|one| (1, 9, one.clone())))));
    let mut both: Vec<_> = packets
        .iter()
        .enumerate()
        .flat_map(|(index, one)| {
            let at_us = 1_000_000 + 3000 * index as u64;
            [(1, at_us, one.clone()), (2, at_us + 50_000, one.clone())]
        })
        .collect();
    both.sort_by_key(|(_, at_us, _)| *at_us);
    let report = replay(&capture_us(both));
    assert_eq!(counts(&report), plain);
    assert_eq!(report.frames_copied, packets.len() as u64);
}

#[test]
fn a_network_that_doubles_some_frames_is_no_second_tap() {
    let packets = records(&session().file);
    let some = packets
        .iter()
        .enumerate()
        .flat_map(|(index, one)| vec![(1, 9, one.clone()); if index % 3 == 2 { 2 } else { 1 }]);
    let report = replay(&capture(some));
    assert_eq!((report.frames_copied, &report.findings[..]), (0, &[][..]));
    assert!(report.connections[0].directions[0].segments_retransmitted > 1);
}

#[test]
fn a_damaged_copy_of_a_frame_stays_a_damaged_frame() {
    let packets = records(&session().file);
    let both = packets.iter().enumerate().flat_map(|(index, one)| {
        let mut copy = one.clone();
        if index == 10 {
            *copy.last_mut().unwrap() ^= 1;
        }
        [(1, 9, one.clone()), (2, 9, copy)]
    });
    let report = replay(&capture(both));
    assert_eq!((report.frames_copied, report.frames_corrupt), (packets.len() as u64 - 1, 1));
}

/// Its ends equal those of the frame that it copies: only the checksum differs.
#[test]
fn a_copy_damaged_in_its_middle_is_no_copy() {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, &[7; 600])).fpdu(INITIATOR, &send(2, &[8; 600]));
    let packets = records(&talk.file);
    let last = packets.len() - 1;
    let both = packets.iter().enumerate().flat_map(|(index, one)| {
        let mut copy = one.clone();
        if index == last {
            copy[300] ^= 1;
        }
        [(1, 9, one.clone()), (2, 9, copy)]
    });
    let report = replay(&capture(both));
    assert_eq!((report.frames_copied, report.frames_corrupt), (last as u64, 1));
    assert_eq!(report.connections[0].directions[0].fpdus, 2);
}

#[test]
fn clock_jumps_are_reported() {
    let packets = records(&session().file);
    let at = |stamp: fn(usize) -> u32| {
        let stamped = packets.iter().enumerate().map(|(index, one)| (1, stamp(index), one.clone()));
        let report = replay(&capture(stamped));
        assert_eq!(report.connections[0].directions[0].fpdus, 20);
        let findings = report.findings.into_iter();
        findings.map(|one| (one.severity, one.frame, one.text)).collect::<Vec<_>>()
    };
    assert_eq!(at(|_| 1_000_000), []);
    let back = at(|index| if index < 10 { 1_000_000 } else { 999_990 });
    assert_eq!((back[0].0, back[0].1), (Severity::Warning, 11));
    assert!(
        back[0].2.starts_with("timestamps run backwards at 1 frame, ")
            && back[0].2.contains("by 10 s"),
        "{}",
        back[0].2
    );
    let on = at(|index| if index < 10 { 1_000_000 } else { 1_010_000 });
    assert_eq!((on.len(), on[0].0, on[0].1), (1, Severity::Note, 11));
}

/// Sets the checksum of a TCP segment over IPv4 without options.
fn with_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    packet[36..38].fill(0);
    let len = u16::try_from(packet.len() - 20).unwrap().to_be_bytes();
    let pseudo = [&packet[12..20], &[0, 6], &len].concat();
    let sum = checksum(&[&pseudo[..], &packet[20..]].concat());
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A second frame that differs in one field is another frame, except in fields that a router
/// changes.
#[test]
fn every_field_that_routers_keep_distinguishes_copies() {
    let packets = records(&session().file);
    let (all, changed) = (packets.len() as u64, 20);
    let copied = |at: usize| {
        let both = packets.iter().enumerate().flat_map(|(index, one)| {
            let mut copy = one.clone();
            if index == changed {
                copy[at] ^= 1;
                copy = with_checksum(copy);
            }
            [(1, 9, one.clone()), (2, 9, copy)]
        });
        replay(&capture(both)).frames_copied
    };
    let len = packets[changed].len();
    for (at, field) in [
        (5, "IP identification"),
        (15, "source address"),
        (19, "destination address"),
        (21, "source port"),
        (23, "destination port"),
        (27, "sequence number"),
        (31, "acknowledgment number"),
        (33, "FIN"),
        (35, "window"),
        (40, "first byte"),
        (90, "51st byte"),
        (len - 1, "last byte"),
    ] {
        assert_eq!(copied(at), all - 1, "{field}");
    }
    assert_eq!(copied(8), all, "hop limit");
}

/// The options of a segment distinguish copies too: a repeated acknowledgment has new ones.
#[test]
fn timestamps_and_sack_distinguish_copies() {
    let packets = records(&session().file);
    // NOP, NOP, then the option.
    let with = |packet: &[u8], option: &[u8]| {
        let words = u8::try_from(option.len() / 4).unwrap();
        let mut out = [&packet[..40], option, &packet[40..]].concat();
        out[32] += words << 4;
        let len = u16::try_from(out.len()).unwrap();
        out[2..4].copy_from_slice(&len.to_be_bytes());
        with_checksum(out)
    };
    let times = |value: u8, echo: u8| [1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, echo];
    let sack = |start: u8, end: u8| [1, 1, 5, 10, 0, 0, 9, start, 0, 0, 9, end];
    let copied = |one: &[u8], other: &[u8]| {
        let both = packets.iter().enumerate().flat_map(|(index, packet)| match index {
            20 => [(1, 9, with(packet, one)), (2, 9, with(packet, other))],
            _ => [(1, 9, packet.clone()), (2, 9, packet.clone())],
        });
        packets.len() as u64 - replay(&capture(both)).frames_copied
    };
    assert_eq!(copied(&times(1, 2), &times(1, 2)), 0);
    assert_eq!(copied(&times(1, 2), &times(3, 2)), 1);
    assert_eq!(copied(&times(1, 2), &times(1, 3)), 1);
    assert_eq!(copied(&sack(1, 9), &sack(1, 9)), 0);
    assert_eq!(copied(&sack(1, 9), &sack(2, 9)), 1);
    assert_eq!(copied(&sack(1, 9), &sack(1, 8)), 1);
}

/// Four places of a frame are distinguished; a frame of a further place is a copy.
#[test]
fn frames_of_many_places_are_taken_once() {
    let packets = records(&session().file);
    for places in 2..=7 {
        let all = packets
            .iter()
            .flat_map(|one| (1..=places).map(|place| (place, 9, one.clone())).collect::<Vec<_>>());
        let report = replay(&capture(all));
        assert_eq!(report.frames_copied, packets.len() as u64 * u64::from(places - 1), "{places}");
        assert_eq!(report.connections[0].directions[0].segments_retransmitted, 1, "{places}");
    }
}

/// With few segments, or fewer pairs than in a mirror, second frames are retransmissions. On one
/// clock a copy comes within 10 ms.
#[test]
fn a_mirrored_port_is_recognised_by_enough_segments_at_once() {
    let packets = repeating();
    let twice = |apart_us: u64, count: usize| {
        let both = packets[..count].iter().enumerate().flat_map(|(index, one)| {
            let at_us = 1_000_000 + 100_000 * index as u64;
            [(1, at_us, one.clone()), (1, at_us + apart_us, one.clone())]
        });
        let report = replay(&capture_us(both));
        (report.frames_copied, report.connections[0].directions[0].segments_retransmitted)
    };
    // Two SYNs, the startup, then FPDUs.
    assert_eq!(twice(9_999, 6).0, 6);
    assert_eq!(twice(9_999, 5).0, 0);
    assert_eq!(twice(10_000, 20).0, 0);
    let elsewhere = |apart_us: u64| {
        let both = packets.iter().enumerate().flat_map(|(index, one)| {
            let at_us = 1_000_000 + 100_000 * index as u64;
            let copies = if index == 20 { 2 } else { 1 };
            (0..copies).map(move |copy| (1 + copy, at_us + apart_us * u64::from(copy), one.clone()))
        });
        replay(&capture_us(both)).frames_copied
    };
    assert_eq!((elsewhere(9_999), elsewhere(10_000)), (1, 0));
}
