//! Compares all ways of cutting messages and all writers of FPDUs, on random messages.
//!
//! - Cutting: three senders with equal memory frame the same requests and answers. One uses
//!   `frame_any` alone, one tries `frame_like_last` before each FPDU, one adds runs by
//!   `frame_alike`. After each step all must have the same FPDUs, counters and room.
//! - Writing: `Fpdu::emit` gives the expected bytes of each FPDU. `gather` (`gather_plain`,
//!   `gather_marked`, `marked::write`), `gather_each` and `keep` (`FpduWriter` to a frame,
//!   a buffer and blocks) must give the same bytes, on each send path, with and without digests
//!   left to the device. `gather` and `gather_each` must also copy and reference equally much.
//! - Retransmission: any part of the stream is sent with the same bytes, after parts were kept,
//!   acknowledged or flushed.
//!
//! Tried on 2026-11-26 with 42 changes, each of one comparison, argument or statement: nine in
//! `frame_any` and `frame_like_last`, eight in `frame_alike` and the runs under it, ten in
//! `gather_plain`, `gather_marked` and `marked::write`, fifteen in the other writers and in what
//! keeps FPDUs. The test fails for 40 of them, and for some of each way. It does not notice a run
//! that ends one FPDU early, or that an FPDU without payload is kept before a flush.

mod model;

use std::collections::BTreeSet;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::limits::FRAGMENTS_MAX;
use crate::mem::SharedSlice;
use crate::stream::tx::gather::{Payload, keep};
use crate::stream::tx::message::Source;
use crate::stream::tx::tests::model::{ALL_WAYS, Plan, Sender, Way, Writer, octets_of};
use crate::wire::crc32c::Crc32c;

/// Random plans that are compared.
const PLANS: u64 = 120;
/// Bytes of stream that are written into one frame, unless a single FPDU has more.
const FRAME_LEN: usize = 40_000;
/// FPDUs that are written into one frame.
const FPDUS_PER_FRAME: usize = 20;

/// Counts how often the plans used each way: each must be used.
#[derive(Debug, Default)]
struct Used {
    like_last: usize,
    alike: usize,
    alike_marked: usize,
    written: usize,
    left_to_device: usize,
    kept_across_blocks: usize,
    cut: usize,
    flushed: usize,
}

// spec: TCP-A.1-6
#[test]
fn every_cut_and_write_pattern_gives_the_same_fpdus() {
    let mut used = Used::default();
    for seed in 0..PLANS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let plan = Plan::draw(&mut rng);
        let mut senders = [Sender::new(&plan), Sender::new(&plan), Sender::new(&plan)];
        cut(&mut rng, &plan, &mut senders, &mut used);
        let [mut one, mut two, mut runs] = senders;
        let expected = one.expected(&plan);
        check_descriptions(&plan, &one);
        write_whole(&mut rng, &plan, &one, &expected, &mut used);
        write_kept(&mut rng, &plan, &one, &expected, &mut used);
        resend_parts(&mut rng, &mut one, &expected, &mut used);
        acknowledge(&mut rng, &mut two, &expected);
        acknowledge(&mut rng, &mut runs, &expected);
        flush(&mut rng, &mut one, &expected, &mut used);
    }
    let enough = used.like_last > 100
        && used.alike > 300
        && used.alike_marked > 100
        && used.written > 5000
        && used.left_to_device > 1000
        && used.kept_across_blocks > 50
        && used.cut > 500
        && used.flushed > 50;
    assert!(enough, "{used:?}");
}

/// Frames everything: at once as far as runs go, and FPDU by FPDU in two ways.
fn cut(rng: &mut ChaCha8Rng, plan: &Plan, senders: &mut [Sender; 3], used: &mut Used) {
    let (mut emss, mut idle) = (plan.emss, 0);
    loop {
        if rng.random_ratio(1, 8) {
            emss = Plan::draw_emss(rng);
        }
        // The shortest FPDU of a cut message has a pad: the next segment may fit it, too.
        if emss < 144 && rng.random() {
            emss = [124, 128, 135, 137, 139][rng.random_range(0..5)];
        }
        let begins = senders[0].tx.current.is_none();
        let cut = match rng.random_range(0..8) {
            0 => Cut::IfWorthwhile,
            1 => Cut::Never,
            2..5 if begins => Cut::Never,
            _ => Cut::Always,
        };
        let few = rng.random_ratio(1, 8);
        let fragments = if few { rng.random_range(1..60) } else { FRAGMENTS_MAX };
        let room = Room { segment_len: emss, fragments, cut };
        // The segment before carried PSH.
        let follows_push = begins && senders[0].tx.fpdus_framed() > 0;
        let start = senders[0].tx.framed_end;
        step(senders, room, used);
        let segment_len = senders[0].tx.framed_end.index_from(start);
        assert!(segment_len == 0 || !follows_push, "PSH before the end of what was posted");
        // Requests may wait for ever, for Responses to those before them.
        idle = if segment_len == 0 { idle + 1 } else { 0 };
        if idle > 20 || !senders[0].has_work() {
            break;
        }
        if segment_len == 0 || segment_len > emss {
            continue;
        }
        let segments = if rng.random() { rng.random_range(1..16) } else { 0 };
        let before = senders[2].tx.framed_end;
        let mut left = Room { segment_len, fragments, cut };
        let [one, two, runs] = senders;
        runs.tx.frame_alike(&runs.qp.shared, &runs.rnic.shared, segment_len, segments, &mut left);
        let added = runs.tx.framed_end.index_from(before);
        assert!(added.is_multiple_of(segment_len) && added / segment_len <= segments);
        let count = added / segment_len;
        assert!(left.fragments <= fragments && (count > 0) == (left.fragments < fragments));
        for _ in 0..count {
            let room = Room { segment_len, fragments: FRAGMENTS_MAX, cut: Cut::Always };
            for (sender, tries) in [(&mut *one, false), (&mut *two, true)] {
                sender.frame(&mut room.clone(), tries);
            }
        }
        used.alike += count;
        used.alike_marked += if plan.markers { count } else { 0 };
        agree(senders);
        // A run that ended early ended because the next FPDU is not alike, or as short as a run with
        // markers must not be.
        if segment_len >= 144
            && count < segments
            && fragments == FRAGMENTS_MAX
            && segment_len <= 9000
        {
            let last = senders[0].described().pop();
            step(senders, Room { segment_len, fragments: FRAGMENTS_MAX, cut: Cut::Always }, used);
            let next = senders[0].described().pop();
            let (Some(last), Some(next)) = (last, next) else { continue };
            let grown = senders[0].tx.framed_end.index_from(before) - added;
            let follows = last.source == next.source && next.offset == last.offset + last.len;
            let alike = grown == segment_len && follows && !next.last && last.wire == next.wire;
            assert!(!alike || last.wire != segment_len, "{last:?} {next:?} were not in one run");
        }
    }
}

/// Frames one segment in each way, with equal room.
fn step(senders: &mut [Sender; 3], room: Room, used: &mut Used) {
    let mut rooms = [room; 3];
    senders[0].frame(&mut rooms[0], false);
    let before = senders[1].tx.fpdus_framed;
    let fast = senders[1].frame(&mut rooms[1], true);
    senders[2].frame(&mut rooms[2], true);
    used.like_last += usize::from(fast);
    agree(senders);
    assert_eq!(rooms[1].fragments, rooms[2].fragments);
    if fast {
        assert_eq!(senders[1].tx.fpdus_framed, before + 1);
        // The fast path takes the most markers that an FPDU of this length can have.
        let more = rooms[0].fragments - rooms[1].fragments;
        assert!(more == 0 || (more <= 2 && senders[0].tx.grid.is_enabled()), "{more}");
    } else {
        assert_eq!(rooms[0].fragments, rooms[1].fragments);
    }
}

/// Compares all state of the senders.
fn agree(senders: &[Sender; 3]) {
    let [one, others @ ..] = senders;
    let expected = one.described();
    for other in others {
        assert!(other.described() == expected, "{:?} {expected:?}", other.described());
        assert_eq!(other.summary(), one.summary());
    }
}

/// The FPDUs hold each message once, in order, and have the lengths that MPA gives them.
// spec: DDP-4.1-2, DDP-4.1-3, DDP-5.3-2
fn check_descriptions(plan: &Plan, one: &Sender) {
    let mut done = 0;
    for (described, fpdu) in one.described().iter().zip(one.tx.fpdus.iter()) {
        let front = fpdu.front();
        assert_eq!(fpdu.framed(&front, one.tx.grid).wire_len(), described.wire);
        assert_eq!(described.offset, done);
        done += described.len;
        if described.last {
            // The Immediate Data of a Write is a message of no gathered bytes.
            assert!(done == 0 || done == plan.message_len(described.source), "{described:?}");
            done = 0;
        }
    }
}

/// Writes whole FPDUs into frames in all ways.
fn write_whole(rng: &mut ChaCha8Rng, plan: &Plan, one: &Sender, expected: &[u8], used: &mut Used) {
    let boundaries = one.tx.boundaries();
    let start = boundaries[0];
    // Copying begins below the length of some FPDU's payload.
    let lens: Vec<u32> = one.tx.fpdus.iter().map(|fpdu| fpdu.len()).collect();
    let some = if lens.is_empty() { 0 } else { lens[rng.random_range(0..lens.len())] };
    let mut writers = Writer::all(some as usize + usize::from(rng.random::<bool>()));
    let mut first = 0;
    while first + 1 < boundaries.len() {
        let mut last = first + 1;
        let most = first + rng.random_range(1..=FPDUS_PER_FRAME);
        while last < most
            && last + 1 < boundaries.len()
            && boundaries[last + 1].index_from(boundaries[first]) <= FRAME_LEN
        {
            last += 1;
        }
        let range = boundaries[first]..boundaries[last];
        let octets = &expected[range.start.index_from(start)..range.end.index_from(start)];
        for writer in &mut writers {
            let [fast, each, scattered] =
                ALL_WAYS.map(|way| writer.write(&one.tx, range.clone(), way));
            assert!(fast.octets == octets, "gather {plan:?}");
            assert!(each.octets == octets, "gather_each {plan:?}");
            assert!(scattered.octets == octets, "gather_each, scattered {plan:?}");
            assert_eq!((fast.staged, fast.fragments), (each.staged, each.fragments));
            assert_eq!(fast.staged, scattered.staged);
            if !plan.markers {
                assert_eq!((fast.digests, fast.digests), (each.digests, scattered.digests));
            }
            used.left_to_device += fast.digests;
            used.written += 3;
        }
        first = last;
    }
}

/// Keeps all FPDUs, in one piece or across the ends of blocks, and sends them from there.
fn write_kept(rng: &mut ChaCha8Rng, plan: &Plan, one: &Sender, expected: &[u8], used: &mut Used) {
    let mut kept = Kept::new(Arc::clone(one.rnic.shared.blocks()));
    kept.begin(StreamOffset::ZERO);
    kept.append(&vec![0; rng.random_range(0..8192)]);
    let mut writer = Writer::new(SendPath::Gather, 0, false);
    let start = one.tx.boundaries()[0];
    for fpdu in one.tx.fpdus.iter() {
        let memory = plan.payload(fpdu.source(), fpdu.offset(), fpdu.len());
        let is_work = matches!(fpdu.source(), Source::Work(_));
        let contiguous = (!is_work || rng.random_bool(0.5))
            .then(|| SharedSlice::from_bytes(&memory))
            .filter(|memory| !memory.is_empty());
        let payload = Payload { messages: &one.tx.messages, fpdu, contiguous };
        keep(&mut kept, payload, one.tx.grid, one.tx.crc);
        let range = fpdu.start()..fpdu.end();
        let octets = &expected[range.start.index_from(start)..range.end.index_from(start)];
        let (sent, fragments) = writer.send_kept(&kept, range);
        assert!(sent == octets, "keep {plan:?}");
        used.kept_across_blocks += usize::from(fragments > 1);
    }
}

/// Sends parts that begin and end anywhere. All FPDUs that were cut are kept from then on.
fn resend_parts(rng: &mut ChaCha8Rng, one: &mut Sender, expected: &[u8], used: &mut Used) {
    if expected.is_empty() {
        return;
    }
    let boundaries = one.tx.boundaries();
    let start = boundaries[0];
    let lens: Vec<(StreamOffset, StreamOffset, u32, bool)> = one
        .tx
        .fpdus
        .iter()
        .map(|fpdu| {
            let is_work = matches!(fpdu.source(), Source::Work(_));
            (fpdu.start(), fpdu.end(), fpdu.len(), is_work)
        })
        .collect();
    let (mut writer, mut kept) = (Writer::draw(rng), BTreeSet::new());
    for _ in 0..10 {
        let from = rng.random_range(0..expected.len());
        let to = rng.random_range(from + 1..=expected.len().min(from + 5000));
        let range = start + from as u64..start + to as u64;
        one.tx.keep_cut(&range);
        for (index, (first, end, _, is_work)) in lens.iter().enumerate() {
            let cuts = |at: StreamOffset| *first < at && at < *end;
            if *is_work && (cuts(range.start) || cuts(range.end)) {
                kept.insert(index);
            }
        }
        let written = writer.write(&one.tx, range, Way::Gather);
        assert!(written.octets == expected[from..to], "{from}..{to}");
        used.cut += 1;
    }
    let bytes: u64 = kept.iter().map(|index| u64::from(lens[*index].2)).sum();
    assert_eq!(one.tx.counters.bytes_kept, bytes);
}

/// Acknowledges at any positions, then everything: all requests complete and nothing stays kept.
fn acknowledge(rng: &mut ChaCha8Rng, two: &mut Sender, expected: &[u8]) {
    let start = two.tx.boundaries()[0];
    let (mut una, mut writer) = (0, Writer::draw(rng));
    while una < expected.len() {
        let most = expected.len() - una;
        una += if rng.random_ratio(1, 4) { most } else { rng.random_range(1..=most.min(9000)) };
        assert!(two.tx.acknowledged(&two.qp.shared, start + una as u64));
        let to = expected.len().min(una + 3000);
        if una < to {
            let range = start + una as u64..start + to as u64;
            two.tx.keep_cut(&range);
            let written = writer.write(&two.tx, range, Way::Gather);
            assert!(written.octets == expected[una..to], "{una}..{to}");
        }
    }
    assert!(two.tx.fpdus.is_empty() && two.tx.kept.is_empty());
    assert_eq!(two.rnic.shared.blocks().taken(), 0);
}

/// Flushes the requests: what is not given up is sent as before.
fn flush(rng: &mut ChaCha8Rng, one: &mut Sender, expected: &[u8], used: &mut Used) {
    let start = one.tx.boundaries()[0];
    one.tx.keep_requests(rng.random_range(0..200_000));
    one.overwrite_memory();
    let mut writer = Writer::draw(rng);
    let boundaries = one.tx.boundaries();
    for pair in boundaries.windows(2) {
        let range = pair[0]..pair[1];
        if one.tx.is_gone(&range) {
            continue;
        }
        let octets = &expected[range.start.index_from(start)..range.end.index_from(start)];
        let written = writer.write(&one.tx, range, Way::Gather);
        assert!(written.octets == octets, "flushed");
        used.flushed += 1;
    }
}

/// CRC of an FPDU's bytes, as the field on the wire.
fn field(crc: Option<Crc32c>) -> [u8; 4] {
    crate::wire::crc32c::to_wire(crc.map_or(0, Crc32c::finish))
}

/// A frame's bytes with the digests that were left to the device.
fn completed(fragments: &Fragments<'_>, digests: &Digests) -> Vec<u8> {
    let mut octets = octets_of(fragments);
    for digest in digests {
        let (from, at) = (digest.from as usize, digest.at as usize);
        let mut crc = Crc32c::from_state(digest.register);
        crc.update(&octets[from..at]);
        octets[at..at + 4].copy_from_slice(&field(Some(crc)));
    }
    octets
}
