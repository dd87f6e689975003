//! Frames of a live capture.

use urnic_netdev::capture::CaptureReader;

use super::build::{INITIATOR, RESPONDER, Talk, fpdu, send, write};
use super::replay;
use crate::limits::{LIVE_BYTES_MAX, LIVE_FRAMES_MAX};
use crate::live::{Live, LiveFile, LiveFrame, Wanted};

/// The frames of a conversation on Ethernet, a millisecond apart.
fn frames(talk: &Talk) -> Vec<LiveFrame> {
    let frames = CaptureReader::open(&talk.file[..]).unwrap().map(Result::unwrap);
    let frames = frames.map(|frame| LiveFrame {
        at_ns: frame.number * 1_000_000,
        is_outbound: false,
        original_len: frame.original_len + 14,
        bytes: [&[0; 12][..], &[8, 0], &frame.bytes].concat(),
    });
    frames.collect()
}

/// Returns the released frames, with comments.
fn given(live: &mut Live, frames: Vec<LiveFrame>) -> Vec<(LiveFrame, String)> {
    let mut given = Vec::new();
    let mut sink = |frame: &LiveFrame, comment: Option<&str>| {
        given.push((frame.clone(), comment.unwrap_or_default().to_owned()));
    };
    for frame in frames {
        live.handle(frame, &mut sink);
    }
    live.finish(&mut sink);
    given
}

fn iwarp() -> Talk {
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"hello")).fpdu(RESPONDER, &write(7, 0, &[1; 100]));
    talk
}

/// RFC 9293 §3.4: a FIN takes a sequence number, which is no lost byte.
#[test]
fn acknowledgment_of_a_fin_covers_no_uncaptured_octets() {
    let mut talk = iwarp();
    talk.close(INITIATOR);
    let seq = talk.seq[RESPONDER];
    for (beyond, incomplete) in [(1, 0), (2, 1)] {
        let mut talk = talk.clone();
        talk.ack[RESPONDER] = Some(talk.seq[INITIATOR].wrapping_add(beyond));
        talk.frame(RESPONDER, seq, 0x10, &[]);
        let mut live = Live::new(Wanted::Iwarp);
        given(&mut live, frames(&talk));
        assert_eq!(live.figures().directions_incomplete, incomplete, "{beyond} beyond");
    }
}

#[test]
fn frames_of_iwarp_are_given_out_with_comments() {
    let talk = iwarp();
    let mut live = Live::new(Wanted::Iwarp);
    let given = given(&mut live, frames(&talk));
    let (passed, comments): (Vec<_>, Vec<_>) = given.into_iter().unzip();
    assert_eq!(passed, frames(&talk));
    assert!(comments[2].contains("MPA Request"), "{comments:?}");
    let aligned = "iWARP from the initiator, aligned with FPDUs\nSend, message 1 of queue 0";
    assert!(comments[4].starts_with(aligned), "{comments:?}");
    assert!(
        comments[5].contains("RDMA Write to STag 0x00000007 at 0x0, 100 bytes"),
        "{comments:?}"
    );
    let figures = live.figures();
    assert_eq!((figures.connections, figures.connections_open), (1, 1));
    assert_eq!((figures.segments, figures.segments_aligned), (4, 2));
    let bytes: usize = passed[2..].iter().map(|frame| frame.original_len).sum();
    assert_eq!(figures.bytes, bytes as u64, "from the startup on");
}

#[test]
fn connections_other_than_iwarp_are_left_out_unless_wanted() {
    let mut other = Talk::open();
    other.send(INITIATOR, b"GET / HTTP/1.1\r\n\r\n").send(RESPONDER, b"HTTP/1.1 200 OK\r\n");
    let begun = frames(&iwarp()).split_off(2);
    for frames in [frames(&other), begun] {
        assert_eq!(given(&mut Live::new(Wanted::Iwarp), frames.clone()), []);
        assert_eq!(given(&mut Live::new(Wanted::Ports(vec![1, 2])), frames.clone()), []);
        for wanted in [Wanted::All, Wanted::Ports(vec![1, 7174])] {
            let given = given(&mut Live::new(wanted), frames.clone());
            assert_eq!(given.len(), frames.len());
            assert!(given.iter().all(|(_, comment)| comment.is_empty()), "{given:?}");
        }
    }
}

/// If the interface loses a frame that its receiver got, no byte waits for it for ever.
#[test]
fn acknowledged_but_uncaptured_octets_are_not_awaited() {
    let mut talk = iwarp();
    talk.fpdu(INITIATOR, &send(2, b"lost")).fpdu(INITIATOR, &send(3, b"passes"));
    talk.fpdu(RESPONDER, &write(7, 0, &[2; 50]));
    talk.fpdu(INITIATOR, &send(4, b"passes too")).close(INITIATOR);
    talk.close(RESPONDER);
    for (lost, incomplete) in [(None, 0), (Some(6), 1)] {
        let mut live = Live::new(Wanted::Iwarp);
        let mut passed = frames(&talk);
        lost.map(|lost| passed.remove(lost));
        let given = given(&mut live, passed.clone());
        assert_eq!(given.len(), passed.len());
        let figures = live.figures();
        assert_eq!((figures.directions_incomplete, figures.bytes_held), (incomplete, 0));
        // The frame that passed before its acknowledgment.
        assert_eq!(figures.segments_out_of_order, incomplete, "{figures:?}");
        let told = given.iter().any(|(_, comment)| comment.contains("that the capture lacks"));
        assert_eq!(told, lost.is_some());
    }
}

#[test]
fn frames_awaiting_comments_are_limited() {
    let waits = |len: usize, count: usize| {
        let mut live = Live::new(Wanted::All);
        let mut given = 0;
        let frame =
            LiveFrame { at_ns: 1, is_outbound: true, original_len: len, bytes: vec![0; len] };
        for _ in 0..count {
            live.handle(frame.clone(), &mut |_, _| given += 1);
        }
        given
    };
    assert_eq!((waits(1, LIVE_FRAMES_MAX), waits(1, LIVE_FRAMES_MAX + 3)), (0, 3));
    let count = LIVE_BYTES_MAX >> 20;
    assert_eq!((waits(1 << 20, count), waits(1 << 20, count + 2)), (0, 2));
}

#[test]
fn connections_opened_without_end_take_no_memory() {
    let mut live = Live::new(Wanted::Iwarp);
    let [syn, ..] = &frames(&Talk::open())[..] else { panic!("a SYN") };
    for port in 0..10_000_u16 {
        let mut frame = syn.clone();
        // The port, and a checksum that a device must fill in.
        frame.bytes[34..36].copy_from_slice(&port.to_be_bytes());
        frame.bytes[50..52].fill(0);
        live.handle(frame, &mut |_, _| {});
    }
    assert!(live.followed() <= crate::limits::CONNECTIONS_MAX, "{}", live.followed());
    assert_eq!(live.comments(), 0);
}

#[test]
fn the_file_is_read_again_and_keeps_its_length() {
    let passed = frames(&iwarp());
    let written = |len_max: u64| {
        let mut octets = Vec::new();
        let mut file = LiveFile::new(&mut octets, "eth0", "urnic", None).unwrap();
        let comment = "a comment of\ntwo lines";
        let is_written = |frame| file.frame(frame, Some(comment), len_max).unwrap();
        let count = passed.iter().map(is_written).take_while(|written| *written).count();
        file.finish(7, 3).unwrap();
        (octets, count)
    };
    let (octets, count) = written(u64::MAX);
    assert_eq!(count, passed.len());
    let read = CaptureReader::open(&octets[..]).unwrap().map(Result::unwrap);
    let read: Vec<_> = read.map(|frame| (frame.timestamp_ns, frame.bytes)).collect();
    let expected: Vec<_> = passed.iter().map(|one| (one.at_ns, one.bytes.clone())).collect();
    assert_eq!(read, expected);
    for len_max in [octets.len() as u64, octets.len() as u64 - 1, 600] {
        let (shorter, count) = written(len_max);
        assert!(shorter.len() as u64 <= len_max, "{len_max}");
        assert_eq!(count == passed.len(), len_max == octets.len() as u64);
    }
}

#[test]
fn a_file_with_a_snap_length_has_the_first_bytes_of_each_frame() {
    let mut talk = iwarp();
    talk.fpdu(INITIATOR, &send(2, &[7; 400]));
    let passed = frames(&talk);
    let longest = passed.iter().map(|one| one.bytes.len()).max().unwrap();
    for snap_len in [60, 142, longest - 1, longest] {
        let mut octets = Vec::new();
        let limit = u32::try_from(snap_len).unwrap();
        let mut file = LiveFile::new(&mut octets, "eth0", "urnic", Some(limit)).unwrap();
        for frame in &passed {
            assert!(file.frame(frame, None, u64::MAX).unwrap());
        }
        file.finish(7, 0).unwrap();
        // The block of the interface follows that of the section.
        let section_len = u32::from_le_bytes(octets[4..8].try_into().unwrap());
        let at = usize::try_from(section_len).unwrap() + 12;
        assert_eq!(octets[at..at + 4], limit.to_le_bytes());
        let read = CaptureReader::open(&octets[..]).unwrap().map(Result::unwrap);
        let read: Vec<_> = read.map(|frame| (frame.original_len, frame.bytes)).collect();
        for ((original_len, bytes), frame) in read.iter().zip(&passed) {
            assert_eq!(*original_len, frame.original_len);
            assert_eq!(bytes[..], frame.bytes[..frame.bytes.len().min(snap_len)]);
        }
        assert_eq!(read.len(), passed.len());
        let cut = passed.iter().filter(|frame| frame.bytes.len() > snap_len).count();
        let findings = replay(&octets).findings;
        let text: String = findings.iter().map(|finding| format!("{}\n", finding.text)).collect();
        let told = format!("payload was cut: of {cut} of {} frames", passed.len());
        assert_eq!(text.contains(&told), cut > 0, "{snap_len}: {text}");
        assert!(cut == 0 || text.contains(&format!("({snap_len} bytes")), "{snap_len}: {text}");
    }
}

/// Frames wait until their comments are complete.
#[test]
fn frames_are_released_after_a_second_and_in_order() {
    let passed = frames(&iwarp());
    let last_ns = passed.last().unwrap().at_ns;
    let mut live = Live::new(Wanted::All);
    let mut given = Vec::new();
    let mut sink = |frame: &LiveFrame, _: Option<&str>| given.push(frame.at_ns);
    for frame in &passed {
        live.handle(frame.clone(), &mut sink);
    }
    live.release(passed[0].at_ns + 999_999_999, &mut sink);
    live.release(passed[1].at_ns + 1_000_000_000, &mut sink);
    live.release(last_ns + 999_999_999, &mut sink);
    live.release(last_ns + 1_000_000_000, &mut sink);
    let times: Vec<_> = passed.iter().map(|one| one.at_ns).collect();
    assert_eq!(given, times);
    let released = |until_ns: u64| {
        let mut live = Live::new(Wanted::All);
        let mut count = 0;
        for frame in &passed {
            live.handle(frame.clone(), &mut |_, _| count += 1);
        }
        live.release(until_ns, &mut |_, _| count += 1);
        count
    };
    assert_eq!(released(passed[0].at_ns + 999_999_999), 0);
    assert_eq!(released(passed[1].at_ns + 1_000_000_000), 2);
    assert_eq!(released(last_ns + 999_999_999), passed.len() - 1);
}

/// Figures while a connection is open, and when it is over: by two FINs, by a RST, and by another
/// connection between its ports.
#[test]
fn figures_say_which_connections_are_open_and_keep_those_that_are_over() {
    let mut open = iwarp();
    // Beyond a gap, then a retransmission.
    let lost = fpdu(&send(2, b"late"));
    let seq = open.seq[INITIATOR];
    open.skip(INITIATOR, u32::try_from(lost.len()).unwrap());
    open.ack[RESPONDER] = Some(seq);
    open.fpdu(INITIATOR, &send(3, &[3; 40]));
    let of = |talk: &Talk| {
        let mut live = Live::new(Wanted::Iwarp);
        given(&mut live, frames(talk));
        live.figures()
    };
    let held = of(&open);
    assert_eq!((held.connections, held.connections_open), (1, 1));
    assert_eq!((held.segments, held.segments_out_of_order, held.segments_aligned), (5, 1, 2));
    assert!(held.bytes_held > 40, "{held:?}");
    let mut whole = open.clone();
    whole.frame(INITIATOR, seq, 0x10, &lost);
    whole.frame(INITIATOR, seq, 0x10, &lost);
    let filled = of(&whole);
    assert_eq!((filled.segments, filled.segments_retransmitted), (7, 1));
    assert_eq!((filled.segments_aligned, filled.segments_unaligned), (5, 0));
    assert_eq!((filled.bytes_held, filled.directions_incomplete), (0, 0));
    let mut half = whole.clone();
    half.close(INITIATOR);
    assert_eq!(of(&half).connections_open, 1);
    let mut closed = half.clone();
    closed.close(RESPONDER);
    assert_eq!(of(&closed).connections_open, 0);
    let mut reset = open.clone();
    let seq = reset.seq[RESPONDER];
    reset.frame(RESPONDER, seq, 4, &[]);
    let over = of(&reset);
    assert_eq!((over.connections, over.connections_open, over.bytes_held), (1, 0, 0));
    // The ports are used again, after an error.
    let mut wrong = iwarp();
    let mut bad = fpdu(&send(2, b"two"));
    bad[25] ^= 0x40;
    wrong.send(INITIATOR, &bad).close(INITIATOR).close(RESPONDER);
    assert_eq!(of(&wrong).errors, 0, "errors of an open connection are not counted yet");
    let mut second = Talk::empty();
    second.seq = [5_000_000, 77];
    let mut second = second.opened().in_full_operation();
    second.fpdu(INITIATOR, &send(1, b"y"));
    wrong.file.extend(&second.file[24..]);
    let both = of(&wrong);
    assert_eq!((both.connections, both.connections_open, both.errors), (2, 1, 1));
    assert_eq!((both.segments, both.segments_aligned), (8, 4));
    // The ports are used again although the connection is open and bytes are held.
    let mut again = open.clone();
    again.file.extend(&second.file[24..]);
    let both = of(&again);
    assert_eq!((both.connections, both.connections_open, both.bytes_held), (2, 1, 0));
}

#[test]
fn comments_tell_of_damage_retransmissions_and_gaps() {
    let mut talk = iwarp();
    let again = fpdu(&send(1, b"hello"));
    let seq = talk.seq[INITIATOR].wrapping_sub(u32::try_from(again.len()).unwrap());
    talk.frame(INITIATOR, seq, 0x10, &again);
    let octets = fpdu(&send(2, &[1; 40]));
    talk.send(INITIATOR, &octets[..20]).send(INITIATOR, &octets[20..]);
    talk.fpdu(INITIATOR, &send(3, b"damaged"));
    let mut passed = frames(&talk);
    *passed.last_mut().unwrap().bytes.last_mut().unwrap() ^= 1;
    let mut live = Live::new(Wanted::Iwarp);
    let comments: Vec<_> = given(&mut live, passed).into_iter().map(|(_, text)| text).collect();
    let told = [
        (6, "iWARP from the initiator, aligned with FPDUs, retransmission"),
        (7, "iWARP from the initiator, not aligned with FPDUs"),
        (8, "Send, message 2 of queue 0"),
        (9, "wrong checksum: its receiver drops it"),
    ];
    assert_eq!(comments.len(), 10);
    for (frame, text) in told {
        assert!(comments[frame].contains(text), "{frame}: {comments:?}");
    }
    assert_eq!(live.figures().segments, 7, "not the damaged one");
}

/// If the interface gives only a part of a frame, the frame is no segment.
#[test]
fn frames_that_are_cut_are_passed_on_and_not_followed() {
    let mut passed = frames(&iwarp());
    for frame in &mut passed {
        frame.original_len += 1;
    }
    let mut live = Live::new(Wanted::All);
    assert_eq!(given(&mut live, passed.clone()).len(), passed.len());
    assert_eq!((live.figures().connections, live.followed()), (0, 0));
    assert_eq!(given(&mut Live::new(Wanted::Iwarp), passed.clone()), []);
    assert_eq!(given(&mut Live::new(Wanted::Ports(vec![7174])), passed), []);
}

/// Returns the bodies of the blocks of this type in a little-endian pcapng file.
fn blocks(octets: &[u8], kind: u32) -> Vec<&[u8]> {
    let (mut rest, mut found) = (octets, Vec::new());
    while let Some(head) = rest.get(..8) {
        let len = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        if head[..4] == kind.to_le_bytes() {
            found.push(&rest[8..len - 4]);
        }
        rest = &rest[len..];
    }
    found
}

/// Returns the value of an option in a list that begins at `at`.
fn option(body: &[u8], at: usize, code: u16) -> Option<&[u8]> {
    let mut rest = &body[at..];
    loop {
        let (head, after) = rest.split_at_checked(4)?;
        let [own, len] = [0, 2].map(|at| u16::from_le_bytes([head[at], head[at + 1]]));
        if own == code {
            return Some(&after[..usize::from(len)]);
        }
        rest = after.get(usize::from(len).next_multiple_of(4)..)?;
    }
}

#[test]
fn the_file_has_directions_comments_names_and_lost_frames() {
    let mut octets = Vec::new();
    let mut file = LiveFile::new(&mut octets, "eth0", "urnic 1", None).unwrap();
    let mut passed = frames(&iwarp());
    passed.truncate(3);
    for (index, frame) in passed.iter_mut().enumerate() {
        frame.is_outbound = index == 1;
        frame.original_len = frame.bytes.len() + index;
        let comment = (index > 0).then_some("a comment of\ntwo lines");
        assert!(file.frame(frame, comment, u64::MAX).unwrap());
    }
    file.finish(0x1_0000_0002, 3).unwrap();
    let heads = blocks(&octets, 0x0a0d_0d0a);
    assert_eq!(option(heads[0], 16, 4), Some(&b"urnic 1"[..]));
    let interfaces = blocks(&octets, 1);
    assert_eq!(interfaces.len(), 1);
    assert_eq!(interfaces[0][..8], [1, 0, 0, 0, 0, 0, 0, 0], "Ethernet, no snap length");
    assert_eq!(option(interfaces[0], 8, 2), Some(&b"eth0"[..]));
    assert_eq!(option(interfaces[0], 8, 9), Some(&[9][..]), "nanoseconds");
    let packets = blocks(&octets, 6);
    assert_eq!(packets.len(), 3);
    for (index, (packet, frame)) in packets.iter().zip(&passed).enumerate() {
        let word = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from(word(4)) << 32 | u64::from(word(8)), frame.at_ns);
        let len = frame.bytes.len();
        assert_eq!([word(12), word(16)].map(|len| len as usize), [len, len + index]);
        let options = 20 + len.next_multiple_of(4);
        let comment = (index > 0).then_some(&b"a comment of\ntwo lines"[..]);
        assert_eq!(option(packet, options, 1), comment);
        // Inbound is 1, outbound 2.
        let direction = if index == 1 { 2_u32 } else { 1 };
        assert_eq!(option(packet, options, 2), Some(&direction.to_le_bytes()[..]));
    }
    let statistics = blocks(&octets, 5);
    assert_eq!(statistics[0][..12], [0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(option(statistics[0], 12, 5), Some(&3_u64.to_le_bytes()[..]));
}
