//! Finding the extent of an FPDU, checking it, and following markers to one.

use crate::limits::{MARKER_LEN, MARKER_SPACING};
use crate::mpa::marker::{CRC_LEN, FpduLayout, LENGTH_LEN, MarkerGrid};
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::error::MpaFault;
use crate::mpa::rx::octets::{Octets, Slice, after};
use crate::mpa::rx::{FpduReceiver, RxConfig};
use crate::types::StreamOffset;
use crate::wire::crc32c::{Crc32c, to_wire};
use crate::wire::mpa::Marker;

/// Most faulty FPDUs that the markers of one segment may lead to. The receiver then ignores the
/// other markers of the segment. Limits the work that a peer can cause: checking the CRC of a bad
/// FPDU takes as long as for a good one.
const BAD_LEADS_MAX: usize = 2;

/// An FPDU with all bytes present.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<'s> {
    pub(super) start: StreamOffset,
    pub(super) end: StreamOffset,
    pub(super) layout: FpduLayout,
    /// All its wire bytes, if they lie in the segment.
    pub(super) whole: Option<&'s [u8]>,
}

/// Result of looking for an FPDU at its start.
pub(super) enum Search<'s> {
    Whole(Located<'s>),
    /// Bytes are missing; the end is known once the length field is present.
    Partial {
        end: Option<StreamOffset>,
    },
    BadLength,
}

/// Result of following markers.
pub(super) enum Lead<'s> {
    /// A valid FPDU.
    Found(Located<'s>),
    /// The start of an incomplete FPDU.
    Partial(StreamOffset),
    /// The start of an FPDU with a wrong CRC, all of it in the segment.
    Corrupt(StreamOffset),
    None,
}

/// Looks for the FPDU that starts at `start`.
// Inlined: its large result would otherwise pass through memory for every FPDU.
#[inline(always)]
pub(super) fn locate<'s>(
    config: &RxConfig,
    grid: MarkerGrid,
    start: StreamOffset,
    octets: &Octets<'s, '_>,
) -> Search<'s> {
    let Some(field) = octets.read::<LENGTH_LEN>(after(start, grid.leading_len(start))) else {
        return Search::Partial { end: None };
    };
    let ulpdu_len = usize::from(u16::from_be_bytes(field));
    // spec: MPA-4.3-13, SEC-R-19
    if ulpdu_len < config.ulpdu_len_min || ulpdu_len > config.ulpdu_len_max {
        return Search::BadLength;
    }
    let layout = grid.layout(start, ulpdu_len);
    let end = after(start, layout.wire_len());
    let whole = octets.slice.get(start, layout.wire_len());
    // RFC 5044 §6: the ULPDU_Length decides whether the whole FPDU is there.
    // spec: MPA-6-3
    if whole.is_none() && octets.end_of_run(start) < end {
        return Search::Partial { end: Some(end) };
    }
    Search::Whole(Located { start, end, layout, whole })
}

/// Checks a whole FPDU: first its CRC, then its markers.
#[inline]
pub(super) fn verify(
    fpdu: &Located<'_>,
    octets: &Octets<'_, '_>,
    crc: bool,
) -> Result<(), MpaFault> {
    // RFC 5044 §4.4: the receiver "MUST" compare the CRC "before" using the FPDU.
    // spec: MPA-4.1-4, MPA-4.4-13, MPA-6-1, SEC-T-8
    if crc && !has_good_crc(fpdu, octets) {
        return Err(MpaFault::Crc);
    }
    if let Some(wire) = fpdu.whole {
        return if has_right_markers(wire, fpdu.layout) { Ok(()) } else { Err(MpaFault::Marker) };
    }
    match wrong_markers(fpdu.start, fpdu.layout, *octets).next() {
        None => Ok(()),
        Some(_) => Err(MpaFault::Marker),
    }
}

/// Returns true if all markers of an FPDU with these wire bytes point at its header, as in
/// [`wrong_markers`].
#[inline]
pub(super) fn has_right_markers(wire: &[u8], layout: FpduLayout) -> bool {
    (0..layout.marker_count()).all(|index| {
        let marker = wire.get(layout.marker_at(index)..).and_then(<[u8]>::first_chunk);
        marker.is_some_and(|octets| Marker::from_bytes(*octets).fpduptr == layout.fpduptr(index))
    })
}

/// Positions of the markers that do not point at the header of the FPDU.
#[inline(always)]
pub(super) fn wrong_markers(
    start: StreamOffset,
    layout: FpduLayout,
    octets: Octets<'_, '_>,
) -> impl Iterator<Item = StreamOffset> {
    (0..layout.marker_count()).filter_map(move |index| {
        let marker = after(start, layout.marker_at(index));
        // RFC 5044 §4.3: all markers of an FPDU point at its header. §4.2 (erratum 1427): the
        // reserved bytes and the two low bits say nothing.
        // spec: MPA-4.3-7
        let pointer = octets.read(marker).map(|octets| Marker::from_bytes(octets).fpduptr);
        let is_right = pointer == Some(layout.fpduptr(index));
        (!is_right).then_some(marker)
    })
}

/// Returns true if the CRC is right. It covers all bytes of the FPDU before it, markers too (RFC
/// 5044 §4.4).
// spec: MPA-4.4-9, MPA-4.4-10, MPA-4.4-11, MPA-4.4-12
#[inline]
fn has_good_crc(fpdu: &Located<'_>, octets: &Octets<'_, '_>) -> bool {
    let mut digest = Crc32c::new();
    let crc_at = fpdu.layout.crc_at();
    let received = if let Some((covered, crc)) = fpdu.whole.and_then(<[u8]>::split_last_chunk) {
        digest.update(covered);
        Some(*crc)
    } else {
        octets.for_each_run(fpdu.start, crc_at, |run| digest.update(run));
        octets.read::<CRC_LEN>(after(fpdu.start, crc_at))
    };
    // RFC 5044 §4.4, figures 5 and 6: least significant byte first.
    received == Some(to_wire(digest.finish()))
}

impl<'s> Located<'s> {
    /// The ULPDU, if it lies in the segment and no marker splits it.
    #[inline]
    pub(super) fn contiguous_ulpdu(&self) -> Option<&'s [u8]> {
        // Two markers at most can lie outside the ULPDU: a leading one, and one directly before or
        // after the ULPDU.
        if self.layout.marker_count() > 2 {
            return None;
        }
        let len = self.layout.ulpdu_len();
        let first = self.layout.wire_of(LENGTH_LEN);
        let last = self.layout.wire_of(len.saturating_add(LENGTH_LEN).saturating_sub(1));
        let end = first.saturating_add(len);
        if last < end { self.whole?.get(first..end) } else { None }
    }
}

impl<T: Copy> FpduReceiver<T> {
    /// Looks for an FPDU in or around a segment beyond a gap. Tries, in this order, the start
    /// recorded for the held run before the segment, the markers in and directly after the segment,
    /// and the start recorded for the held run after it.
    ///
    /// `run_start` is the start of the held run that ends at the segment; the start of the segment
    /// if there is none.
    pub(super) fn find_lead<'s>(
        &mut self,
        run_start: StreamOffset,
        slice: Slice<'s>,
        store: &PieceStore,
    ) -> Lead<'s> {
        let octets = Octets { slice, held: &self.held, store };
        let located = |at| self.held.piece_at(at).and_then(|piece| piece.located);
        let earlier = located(run_start);
        let markers = marker_leads(self.grid, run_start, &octets);
        let leads = earlier.into_iter().chain(markers).chain(located(slice.end()));

        let mut previous = None;
        let (mut bad, mut bad_crcs) = (0_usize, 0_usize);
        let mut lead = Lead::None;
        for start in leads.filter(|start| *start >= run_start) {
            if previous.replace(start) == Some(start) || bad == BAD_LEADS_MAX {
                continue;
            }
            match locate(&self.config, self.grid, start, &octets) {
                Search::Whole(fpdu) => match verify(&fpdu, &octets, self.config.crc) {
                    Ok(()) => lead = Lead::Found(fpdu),
                    Err(MpaFault::Crc) if fpdu.whole.is_some() => lead = Lead::Corrupt(start),
                    Err(fault) => {
                        bad = bad.saturating_add(1);
                        bad_crcs = bad_crcs.saturating_add(usize::from(fault == MpaFault::Crc));
                    }
                },
                Search::Partial { end } => {
                    let overlaps = end.is_some_and(|end| self.ahead.conflicts_with(start, end));
                    if !overlaps {
                        lead = Lead::Partial(start);
                    }
                }
                Search::BadLength => {}
            }
            if !matches!(lead, Lead::None) {
                break;
            }
        }
        self.count_leads(&lead, bad_crcs);
        // Removes a record that led nowhere, so that it is not followed again.
        if let Some(start) = earlier
            && !matches!(lead, Lead::Partial(led) if led == start)
        {
            self.held.clear_located(start);
        }
        lead
    }

    fn count_leads(&mut self, lead: &Lead<'_>, bad_crcs: usize) {
        let corrupt = u64::from(matches!(lead, Lead::Corrupt(_))).wrapping_add(bad_crcs as u64);
        self.counters.crc_bad = self.counters.crc_bad.wrapping_add(corrupt);
    }
}

/// Returns the FPDU starts that markers point at: the markers with any byte in the segment, and the
/// first marker after it if its bytes are held.
fn marker_leads<'a>(
    grid: MarkerGrid,
    run_start: StreamOffset,
    octets: &'a Octets<'_, '_>,
) -> impl Iterator<Item = StreamOffset> + 'a {
    /// Most bytes of a split marker that arrived in an earlier segment.
    const SPLIT_LEN_MAX: u64 = MARKER_LEN as u64 - 1;

    let first = StreamOffset(octets.slice.at.0.saturating_sub(SPLIT_LEN_MAX)).max(run_start);
    let beyond = StreamOffset(octets.slice.end().0.saturating_add(MARKER_SPACING));
    grid.markers_from(first).take_while(move |marker| *marker < beyond).filter_map(move |marker| {
        grid.fpdu_start(marker, Marker::from_bytes(octets.read(marker)?).fpduptr)
    })
}
