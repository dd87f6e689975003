//! Finds FPDUs in a stream whose beginning the capture lacks.
//!
//! A marker comes every 512 bytes (RFC 5044 §4.3), so one of 512 phases is right: one whose markers
//! are plausible, and point at FPDUs that follow each other. Without markers only a CRC shows an
//! FPDU. Both ways need several consecutive FPDUs: one of 2³² CRCs is right by chance, three in a
//! row never are.

use std::collections::BTreeMap;

use urnic_engine::mpa::marker::{FpduLayout, MarkerGrid};
use urnic_engine::types::StreamOffset;
use urnic_engine::wire::crc32c::Crc32c;
use urnic_engine::wire::mpa::CRC_LEN;

use crate::limits::{Room, SAMPLE_LEN_MAX, SAMPLE_PIECES_MAX};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    /// Start of an FPDU, relative to the first byte.
    pub(crate) start: usize,
    /// Position of a marker at or before it; may be before the bytes.
    pub(crate) marker: Option<i64>,
    pub(crate) crc: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Sample {
    pieces: BTreeMap<i64, Vec<u8>>,
    len: usize,
}

impl Sample {
    pub(crate) fn note(&mut self, at: i64, octets: &[u8], room: &mut Room) {
        let is_known = self.pieces.get(&at).is_some_and(|known| known.len() >= octets.len());
        if is_known
            || self.len + octets.len() > SAMPLE_LEN_MAX
            || self.pieces.len() == SAMPLE_PIECES_MAX
            || !room.take(octets.len() + PIECE_COST)
        {
            return;
        }
        self.len += octets.len();
        if let Some(shorter) = self.pieces.insert(at, octets.to_vec()) {
            self.len -= shorter.len();
            room.give(shorter.len() + PIECE_COST);
        }
    }

    pub(crate) fn release(&mut self, room: &mut Room) {
        let Self { pieces, len } = std::mem::take(self);
        room.give(len + pieces.len() * PIECE_COST);
    }

    /// Returns the longest run without a gap: position, bytes, and starts of segments.
    fn run(&self) -> (i64, Vec<u8>, Vec<usize>) {
        let mut longest = (0, Vec::new(), Vec::new());
        let mut run = (0, Vec::new(), Vec::new());
        for (&at, octets) in &self.pieces {
            let index = usize::try_from(at - run.0).ok().filter(|index| *index <= run.1.len());
            let Some(index) = index.filter(|_| !run.1.is_empty()) else {
                if run.1.len() > longest.1.len() {
                    longest = run;
                }
                run = (at, octets.clone(), vec![0]);
                continue;
            };
            run.2.push(index);
            let known = run.1.len() - index;
            run.1.extend(octets.get(known..).unwrap_or_default());
        }
        if run.1.len() > longest.1.len() { run } else { longest }
    }

    /// Returns the framing, and the position to which `start` and `marker` are relative. `is_mpa`:
    /// the other direction is known to be framed.
    pub(crate) fn framing(&self, is_mpa: bool) -> Option<(i64, Framing)> {
        let (at, octets, begins) = self.run();
        let search = Search { octets: &octets, crc_left: 16 * octets.len() };
        Some((at, search.framing(&begins, if is_mpa { 1 } else { FPDUS_MIN })?))
    }
}

const PIECE_COST: usize = 96;

struct Search<'a> {
    octets: &'a [u8],
    /// Bytes for which CRCs may still be computed.
    crc_left: usize,
}

impl Search<'_> {
    fn framing(mut self, begins: &[usize], fpdus_min: usize) -> Option<Framing> {
        // Markers first: a few short FPDUs between two of them would also look right.
        self.by_markers(fpdus_min).or_else(|| {
            let anywhere = 0..self.octets.len();
            let start =
                begins.iter().copied().chain(anywhere).find(|start| {
                    self.chain(*start, None, fpdus_min).is_some_and(|good| good.crc)
                })?;
            Some(Framing { start, marker: None, crc: true })
        })
    }

    fn by_markers(&mut self, fpdus_min: usize) -> Option<Framing> {
        (0..SPACING.min(self.octets.len())).find_map(|phase| {
            let count = self.octets.len().saturating_sub(phase + MARKER_LEN) / SPACING + 1;
            let markers = (0..count).map(|index| phase + index * SPACING);
            let pointer = |at: usize| {
                let [zero, empty, high, low] = *self.octets.get(at..)?.first_chunk()?;
                // RFC 5044 §4.2: FPDUPTR is a multiple of four, like FPDU lengths.
                let distance = usize::from(u16::from_be_bytes([high, low]));
                (zero == 0 && empty == 0 && distance.is_multiple_of(4)).then_some(distance)
            };
            if count < MARKERS_MIN || !markers.clone().all(|at| pointer(at).is_some()) {
                return None;
            }
            let starts = markers.filter_map(|at| match pointer(at)? {
                0 => Some(at),
                // No pointer points at a marker before a header, which belongs to the FPDU.
                distance => {
                    at.checked_sub(distance).map(|header| match header.checked_sub(MARKER_LEN) {
                        Some(before) if (before + SPACING - phase).is_multiple_of(SPACING) => {
                            before
                        }
                        _ => header,
                    })
                }
            });
            let starts: Vec<usize> = starts.take(STARTS_TRIED).collect();
            starts.into_iter().find_map(|start| {
                let good = self.chain(start, Some(phase), fpdus_min)?;
                // Without a CRC, all markers must point at FPDUs that follow each other.
                let before = if phase > start { SPACING } else { 0 };
                let marker = i64::try_from(phase).ok()? - i64::try_from(before).ok()?;
                Some(Framing { start, marker: Some(marker), crc: good.crc })
            })
        })
    }

    fn chain(&mut self, start: usize, phase: Option<usize>, fpdus_min: usize) -> Option<Good> {
        let grid = MarkerGrid::new(StreamOffset(phase.unwrap_or(0) as u64), phase.is_some());
        let (mut at, mut fpdus, mut crcs, mut markers) = (start, 0, 0, 0);
        while fpdus < FPDUS_TRIED
            && let Some(layout) = self.fpdu(grid, at)
        {
            let whole = self.octets.get(at..at + layout.wire_len());
            let Some(fpdu) = whole else { break };
            if fpdus == crcs {
                crcs += usize::from(self.crc_is_right(fpdu, layout));
            }
            markers += layout.marker_count();
            fpdus += 1;
            at += layout.wire_len();
            // Without markers only CRCs can confirm FPDUs.
            if phase.is_none() && crcs < fpdus {
                break;
            }
        }
        if crcs >= fpdus_min {
            return Some(Good { crc: true });
        }
        let follows = phase.is_some() && fpdus >= FPDUS_MIN && markers >= MARKERS_FOLLOWED;
        (follows && crcs == 0).then_some(Good { crc: false })
    }

    fn fpdu(&self, grid: MarkerGrid, at: usize) -> Option<FpduLayout> {
        let lead = grid.layout(StreamOffset(at as u64), 1).wire_of(0);
        let header = self.octets.get(at + lead..)?.first_chunk::<2>()?;
        let len = usize::from(u16::from_be_bytes(*header));
        if !(ULPDU_LEN_MIN..=ULPDU_LEN_MAX).contains(&len) {
            return None;
        }
        let layout = grid.layout(StreamOffset(at as u64), len);
        let octet = |index| self.octets.get(at + layout.wire_of(index)).copied();
        // Versions and reserved bits of DDP (RFC 5041 §4.1) and RDMAP (RFC 5040 §4.1).
        let is_plausible = octet(2)? & 0x3e == 0 && matches!(octet(3)? & 0xf0, 0 | 0x40);
        is_plausible.then_some(layout)
    }

    /// Checks a CRC. RFC 5044 §4.4: it covers all of the FPDU before it, including markers.
    fn crc_is_right(&mut self, fpdu: &[u8], layout: FpduLayout) -> bool {
        let Some(left) = self.crc_left.checked_sub(fpdu.len()) else { return false };
        self.crc_left = left;
        let (covered, field) = fpdu.split_at(layout.crc_at());
        let mut crc = Crc32c::new();
        crc.update(covered);
        field.first_chunk::<CRC_LEN>() == Some(&crc.finish().to_le_bytes())
    }
}

struct Good {
    /// Set if CRCs are right; otherwise there are none.
    crc: bool,
}

const SPACING: usize = 512;
const MARKER_LEN: usize = 4;
/// Markers for which there must be room before a phase is tried.
const MARKERS_MIN: usize = 2;
/// Markers that must agree with FPDUs without CRCs.
const MARKERS_FOLLOWED: usize = 4;
/// Pointers of one phase that are followed.
const STARTS_TRIED: usize = 8;
/// Consecutive FPDUs with a right CRC that are accepted, and most FPDUs that are examined.
const FPDUS_MIN: usize = 3;
const FPDUS_TRIED: usize = 64;
/// Length of the shorter DDP header; RFC 5044 §3.
const ULPDU_LEN_MIN: usize = 14;
const ULPDU_LEN_MAX: usize = urnic_engine::limits::ULPDU_LEN_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds FPDUs of RDMA Writes, with markers at `phase` and every 512 bytes after it.
    fn stream(count: u8, crc: bool, phase: Option<usize>, before: usize) -> Vec<u8> {
        let mut out = vec![0xa5; before];
        for number in 0..count {
            let len = 14 + 37 * usize::from(number % 11) + 100;
            let mut fpdu = u16::try_from(len).unwrap().to_be_bytes().to_vec();
            fpdu.extend([0xc1, 0x40]);
            fpdu.resize((2 + len).next_multiple_of(4), number);
            let begin = out.len();
            let mut header = begin;
            let mut marker = |out: &mut Vec<u8>, is_first| {
                if phase.is_some_and(|phase| {
                    out.len() >= phase && (out.len() - phase).is_multiple_of(SPACING)
                }) {
                    let pointer = u16::try_from(out.len() - header).unwrap().to_be_bytes();
                    out.extend([0, 0, pointer[0], pointer[1]]);
                    header += if is_first { 4 } else { 0 };
                }
            };
            for (index, octet) in fpdu.into_iter().enumerate() {
                marker(&mut out, index == 0);
                out.push(octet);
            }
            marker(&mut out, false);
            let mut sum = Crc32c::new();
            sum.update(&out[begin..]);
            out.extend(if crc { sum.finish().to_le_bytes() } else { [0; 4] });
        }
        out
    }

    fn framing(octets: &[u8]) -> Option<Framing> {
        let mut sample = Sample::default();
        let mut room = Room::new(1 << 20);
        for (index, part) in octets.chunks(300).enumerate() {
            sample.note(1000 + 300 * i64::try_from(index).unwrap(), part, &mut room);
        }
        sample.framing(false).map(|(at, framing)| {
            assert_eq!(at, 1000);
            framing
        })
    }

    #[test]
    fn the_phase_of_markers_is_found_with_and_without_crcs() {
        for crc in [true, false] {
            for (before, phase) in [(40, 40), (44, 300), (48, 552 - 512 + 8), (440, 440)] {
                let found = framing(&stream(60, crc, Some(phase), before)).unwrap();
                assert_eq!(found.crc, crc);
                let marker = found.marker.unwrap();
                assert_eq!((marker - i64::try_from(phase).unwrap()).rem_euclid(512), 0, "{before}");
                assert!((0..512).contains(&(i64::try_from(found.start).unwrap() - marker)));
                assert!(found.start >= before);
            }
        }
    }

    #[test]
    fn without_markers_fpdus_are_found_by_their_crcs() {
        let found = framing(&stream(20, true, None, 77)).unwrap();
        assert_eq!(found, Framing { start: 77, marker: None, crc: true });
        assert_eq!(framing(&stream(20, false, None, 77)), None);
        assert_eq!(framing(&stream(2, true, None, 77)), None, "two may be chance");
        for fill in [0, 0x41, 0xff] {
            assert_eq!(framing(&vec![fill; 20_000]), None);
        }
    }

    #[test]
    fn sample_size_is_limited_by_its_room() {
        let mut room = Room::new(SAMPLE_LEN_MAX * 2);
        let mut sample = Sample::default();
        for at in 0..2000 {
            sample.note(at * 100, &[0; 100], &mut room);
        }
        assert_eq!(sample.pieces.len(), SAMPLE_PIECES_MAX);
        sample.release(&mut room);
        for at in 0..20 {
            sample.note(at * 10_000, &[0; 10_000], &mut room);
        }
        assert!(sample.len <= SAMPLE_LEN_MAX && sample.len > SAMPLE_LEN_MAX - 10_000);
        let (at, octets, begins) = sample.run();
        assert_eq!((at, octets.len(), begins.len()), (0, sample.len, sample.pieces.len()));
        sample.release(&mut room);
        assert!(room.take(SAMPLE_LEN_MAX * 2) && !room.take(1));
        let mut room = Room::new(10 * (1 + PIECE_COST));
        for at in 0..100 {
            sample.note(at, &[0], &mut room);
        }
        assert_eq!(sample.pieces.len(), 10, "each piece has its cost");
        sample.release(&mut room);
        assert!(room.take(10 * (1 + PIECE_COST)) && !room.take(1));
    }

    /// Returns the framing of bytes in pieces: position and length of each.
    fn pieced(octets: &[u8], pieces: &[(usize, usize)], is_mpa: bool) -> Option<(i64, Framing)> {
        let (mut sample, mut room) = (Sample::default(), Room::new(1 << 20));
        for &(at, len) in pieces {
            sample.note(i64::try_from(at).unwrap(), &octets[at..at + len], &mut room);
        }
        sample.framing(is_mpa)
    }

    #[test]
    fn the_longest_run_is_searched_and_overlaps_count_once() {
        let octets = stream(20, true, None, 0);
        let whole = Some(Framing { start: 0, marker: None, crc: true });
        let found = |pieces: &[(usize, usize)]| pieced(&octets, pieces, false);
        let zero = |found: Option<(i64, Framing)>| found.filter(|(at, _)| *at == 0);
        for pieces in [
            &[(0, 2000)][..],
            &[(0, 1000), (1000, 1000)],
            &[(1000, 1000), (0, 1000)],
            &[(0, 1000), (600, 1400)],
            &[(0, 100), (60, 1940)],
            &[(0, 2000), (300, 20)],
            &[(0, 100), (0, 2000)],
            &[(0, 2000), (0, 100)],
            &[(0, 2000), (2001, 1999)],
        ] {
            assert_eq!(zero(found(pieces)).map(|(_, framing)| framing), whole, "{pieces:?}");
        }
        // The later run is longer; it has an FPDU that begins in it.
        let (at, later) = found(&[(0, 500), (501, 2500)]).unwrap();
        assert_eq!(at, 501);
        let mut start = 0;
        while start < 501 {
            let len = usize::from(u16::from_be_bytes([octets[start], octets[start + 1]]));
            start += (2 + len).next_multiple_of(4) + CRC_LEN;
        }
        assert_eq!(later.start, start - 501);
    }

    /// The other direction is known to be framed: then one FPDU is enough.
    #[test]
    fn few_fpdus_are_enough_beside_a_framed_direction() {
        for (count, alone, beside) in [(1, false, true), (2, false, true), (3, true, true)] {
            let octets = stream(count, true, None, 8);
            let found = |is_mpa| pieced(&octets, &[(0, octets.len())], is_mpa).is_some();
            assert_eq!((found(false), found(true)), (alone, beside), "{count}");
            let mut wrong = octets.clone();
            *wrong.last_mut().unwrap() ^= 1;
            let found = |is_mpa| pieced(&wrong, &[(0, wrong.len())], is_mpa).is_some();
            assert!(!found(false) && found(true) == (count > 1), "{count}");
        }
    }

    /// RFC 5041 §4.1 and RFC 5040 §4.1: versions and reserved bits; RFC 5044 §4.1: lengths.
    #[test]
    fn headers_that_cannot_be_are_no_fpdus() {
        let with = |len: u16, ddp: u8, rdmap: u8| {
            let mut out = Vec::new();
            for _ in 0..4 {
                let mut fpdu = [&len.to_be_bytes()[..], &[ddp, rdmap]].concat();
                fpdu.resize((2 + usize::from(len)).next_multiple_of(4), 7);
                let mut crc = Crc32c::new();
                crc.update(&fpdu);
                out.extend(fpdu);
                out.extend(crc.finish().to_le_bytes());
            }
            pieced(&out, &[(0, out.len())], false).is_some()
        };
        for (len, ddp, rdmap, is_found) in [
            (14, 0xc1, 0x40, true),
            (13, 0xc1, 0x40, false),
            (14, 0x40, 0x00, true),
            (14, 0xc1, 0x4f, true),
            (14, 0xc1, 0x80, false),
            (14, 0xc1, 0x50, false),
            (14, 0xc3, 0x40, false),
            (14, 0xe1, 0x40, false),
        ] {
            assert_eq!(with(len, ddp, rdmap), is_found, "{len} {ddp:#x} {rdmap:#x}");
        }
    }

    #[test]
    fn one_marker_or_a_wrong_pointer_is_no_phase() {
        let phase_of = |octets: &[u8]| {
            let found = pieced(octets, &[(0, octets.len())], false)?;
            found.1.marker.map(|marker| marker.rem_euclid(512))
        };
        let good = stream(30, true, Some(40), 40);
        assert_eq!(phase_of(&good), Some(40));
        // Without CRCs all markers count, with CRCs too: a phase with a bad one is not tried.
        for (at, bits) in [(0, 1), (1, 1), (3, 1), (3, 2)] {
            let mut bad = good.clone();
            bad[40 + 512 + at] ^= bits;
            assert_eq!(phase_of(&bad), None, "byte {at} of the second marker");
        }
        assert_eq!(phase_of(&good[..40 + 512 + 3]), None, "less than two markers");
    }
}
