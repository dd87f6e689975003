//! Frames of a live capture.

use urnic_netdev::capture::CaptureReader;

use super::build::{INITIATOR, RESPONDER, Talk, send, write};
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
