//! TCP below MPA: retransmissions, acknowledgments, lengths, and places where segments were cut.

use urnic_engine::wire::mpa::StartupKind;

use super::build::{fpdu, startup};
use super::*;
use crate::trace::Fit;

const NOTE: Severity = Severity::Note;
const WARNING: Severity = Severity::Warning;
const ACK: u8 = 0x10;

/// Builds a connection in full operation whose handshake took `us` from the capture point to each
/// end and back.
fn at_distance(us: u32) -> Talk {
    let mut talk = Talk::empty();
    talk.now_us = 5_000_000;
    let [first, second] = talk.seq;
    talk.frame(INITIATOR, first, 2, &[]);
    talk.seq[INITIATOR] += 1;
    talk.wait(us).frame(RESPONDER, second, 2 | ACK, &[]);
    talk.seq[RESPONDER] = second.wrapping_add(1);
    let seq = talk.wait(us).seq[INITIATOR];
    talk.frame(INITIATOR, seq, ACK, &[]);
    talk.in_full_operation()
}

/// Adds an FPDU that is acknowledged after `acked_us`, and retransmitted `again_us` after that.
fn sent_again(talk: &mut Talk, acked_us: u32, again_us: u32) {
    let (seq, octets) = (talk.seq[INITIATOR], fpdu(&send(1, b"x")));
    talk.send(INITIATOR, &octets);
    let ack = talk.wait(acked_us).seq[RESPONDER];
    talk.frame(RESPONDER, ack, ACK, &[]);
    talk.wait(again_us).frame(INITIATOR, seq, ACK, &octets);
}

#[test]
fn lost_acknowledgments_are_distinguished_from_early_timeouts() {
    let found = |again_us| {
        let mut talk = at_distance(10_000);
        sent_again(&mut talk, 5000, again_us);
        let found = connection(&talk.file);
        let [finding] = &found.findings[..] else { panic!("{:?}", found.findings) };
        assert_eq!((finding.severity, finding.rule, finding.frame), (NOTE, "RFC 9293 §3.8.1", 8));
        finding.text.clone()
    };
    let lost = found(200_000);
    assert!(lost.contains("although the capture has their acknowledgment"), "{lost}");
    assert!(
        lost.contains("the first in frame 7") && lost.contains("lost on its way to the initiator"),
        "{lost}"
    );
    assert_eq!(
        found(15_000),
        "initiator: retransmitted data that had been acknowledged: 1 segment"
    );
}

#[test]
fn a_lost_acknowledgment_is_undecidable_without_a_handshake() {
    let mut talk = at_distance(10_000);
    sent_again(&mut talk, 5000, 200_000);
    // Without the first three frames: two of 40 bytes with 16 before each.
    let file = [&talk.file[..24], &talk.file[24 + 3 * 56..]].concat();
    let found = connection(&file);
    assert!(found.findings.iter().any(|one| one.text.contains("it is not known if")), "{found:?}");
}

#[test]
fn octets_missing_in_the_capture_are_distinguished_from_lost_ones() {
    let gap = |is_acked: bool| {
        let mut talk = Talk::started();
        talk.fpdu(INITIATOR, &send(1, b"x")).skip(INITIATOR, 48).fpdu(INITIATOR, &send(3, b"y"));
        if is_acked {
            talk.close(RESPONDER);
        }
        connection(&talk.file).findings.remove(0).text
    };
    assert!(gap(false).contains("no acknowledgment of them"), "{}", gap(false));
    assert!(gap(true).contains("acknowledges them by frame 7: they came"), "{}", gap(true));
    // The end of the stream is missing, except for its acknowledgment.
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x")).skip(INITIATOR, 48).close(RESPONDER);
    let found = connection(&talk.file);
    assert_eq!(rules(&found), [(WARNING, "RFC 9293 §3.4")]);
    assert!(found.findings[0].text.contains("acknowledges 48 bytes behind the last"), "{found:?}");
    assert_eq!(found.findings[0].frame, 6);
    // A FIN that only its acknowledgment shows is no byte.
    let mut talk = Talk::started();
    talk.fpdu(INITIATOR, &send(1, b"x")).skip(INITIATOR, 1).close(RESPONDER);
    assert_eq!(rules(&connection(&talk.file)), []);
}

/// Both copies of a segment count, whenever its position becomes known.
#[test]
fn a_segment_that_comes_twice_before_it_is_judged_counts_twice() {
    let (first, second) = (fpdu(&send(1, &[1; 40])), fpdu(&send(2, &[2; 40])));
    let mut talk = Talk::started();
    let seq = talk.seq[INITIATOR];
    let after = seq.wrapping_add(u32::try_from(first.len()).unwrap());
    for _ in 0..3 {
        talk.frame(INITIATOR, after, ACK, &second);
        // Neither copy of this segment is aligned.
        talk.frame(INITIATOR, after, ACK, &second[..20]);
    }
    talk.frame(INITIATOR, seq, ACK, &first);
    let pictured = crate::replay_pictured("test", || Ok(&talk.file[..]));
    let direction = &pictured.report.connections[0].directions[0];
    let counts = (direction.segments, direction.segments_judged, direction.segments_aligned);
    assert_eq!(counts, (8, 7, 4));
    assert_eq!(direction.segments_retransmitted, 5);
    let side = &pictured.pictured[0].trace.sides[0];
    let fits = [Fit::Aligned, Fit::Unaligned].map(|fit| side.fits(fit).count());
    assert_eq!(fits, [4, 3], "in the picture, too");
}

#[test]
fn a_segment_that_begins_in_the_startup_is_judged_by_its_fpdus() {
    let mut talk = Talk::open();
    talk.send(INITIATOR, &startup(StartupKind::Request, false, b""));
    let reply = startup(StartupKind::Reply, false, b"");
    talk.send(RESPONDER, &[&reply[..], &fpdu(&send(1, b"x"))].concat());
    talk.fpdu(RESPONDER, &send(2, b"y"));
    let direction = &connection(&talk.file).directions[1];
    let counts = (direction.segments, direction.segments_judged, direction.segments_aligned);
    assert_eq!(counts, (2, 2, 1));
}

/// Karn's rule: the acknowledgment of a retransmitted segment gives no round trip.
#[test]
fn retransmitted_segments_give_no_round_trip_sample() {
    let round_trips = |is_repeated: bool| {
        let mut talk = at_distance(10_000);
        let (seq, octets) = (talk.seq[INITIATOR], fpdu(&send(1, b"x")));
        talk.wait(1000).send(INITIATOR, &octets);
        if is_repeated {
            talk.wait(1000).frame(INITIATOR, seq, ACK, &octets);
        }
        let ack = talk.wait(1000).seq[RESPONDER];
        talk.frame(RESPONDER, ack, ACK, &[]);
        let pictured = crate::replay_pictured("test", || Ok(&talk.file[..]));
        pictured.pictured[0].trace.sides[0].rtt.count()
    };
    assert_eq!(round_trips(false), round_trips(true) + 1);
}

/// Findings when segments of these lengths come after the startup, and the MSS is `mss`.
fn found(mss: u16, ulpdus: &[Vec<u8>], lens: &[usize]) -> Vec<(Severity, &'static str, String)> {
    let mut talk = Talk { mss: Some(mss), ..Talk::empty() }.opened().in_full_operation();
    let octets: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| fpdu(ulpdu)).collect();
    let mut rest = &octets[..];
    for len in lens {
        let (segment, after) = rest.split_at(*len);
        talk.send(INITIATOR, segment);
        rest = after;
    }
    talk.send(INITIATOR, rest);
    let findings = connection(&talk.file).findings.into_iter();
    findings.map(|one| (one.severity, one.rule, one.text)).collect()
}

#[test]
fn ulpdu_lengths_that_prevent_alignment_are_reported() {
    // An FPDU has 6 bytes more than its ULPDU.
    let long = [write(1, 0, &[7; 300])];
    let told = found(200, &long, &[200]);
    assert!(
        told.iter().any(|one| one.1 == "RFC 5044 §4.5"
            && one
                .2
                .contains("1 FPDUs of up to 320 bytes are longer than a segment, which holds 200")
            && one.2.contains("at most 194")),
        "{told:?}"
    );
    assert!(
        told.iter().any(|one| one.2.contains("FPDUs are longer than its segments")),
        "{told:?}"
    );
    assert_eq!(found(320, &long, &[]), []);
    let told = found(100, &[write(1, 0, &[7; 150])], &[100]);
    assert!(told.iter().any(|one| one.2.contains("hold 100 bytes (MSS 100): too few")), "{told:?}");
    // Full segments of an odd length.
    let many: Vec<Vec<u8>> = (1..=6).map(|msn| send(msn, &[7; 100])).collect();
    let told = found(203, &many, &[203, 203]);
    assert!(
        told.iter().any(|one| one.2.contains("2 segments are full with 203 bytes (MSS 203")),
        "{told:?}"
    );
    assert_eq!(found(203, &many, &[124, 124, 124, 124, 124]), []);
}

#[test]
fn evidence_locates_where_segments_were_cut() {
    let octets = fpdu(&send(1, &[1; 40]));
    let told = |checksums| {
        let mut talk = Talk { checksums, ..Talk::started() };
        talk.send(INITIATOR, &octets[..20]).send(INITIATOR, &octets[20..]);
        let findings = connection(&talk.file).findings;
        findings.into_iter().find(|one| one.rule == "RFC 5044 §5").unwrap().text
    };
    assert!(told(true).contains("one place cannot show"), "{}", told(true));
    assert!(told(false).contains("in the sending host"), "{}", told(false));
}

/// One tap before a device that cuts segments, and one after it.
#[test]
fn device_between_two_taps_that_cuts_segments_is_reported() {
    let (mut before, mut behind) = (Talk::started(), Talk::started());
    for msn in 1..=20 {
        let octets = fpdu(&send(msn, &[1; 60]));
        before.send(INITIATOR, &octets);
        behind.send(INITIATOR, &octets[..30]).send(INITIATOR, &octets[30..]);
    }
    let [before, behind] = [before, behind].map(|talk| places::records(&talk.file));
    let (mut packets, mut cut) = (Vec::new(), behind[4..].chunks(2));
    for (index, packet) in before.iter().enumerate() {
        packets.push((1, 9, packet.clone()));
        let copies = if index < 4 { &behind[index..=index] } else { cut.next().unwrap() };
        packets.extend(copies.iter().map(|copy| (2, 9, copy.clone())));
    }
    let found = connection(&places::capture(packets));
    let told = found.findings.iter().find(|one| one.rule == "RFC 5044 §5").unwrap();
    assert!(told.text.contains("a device between the two recut them"), "{told:?}");
}
