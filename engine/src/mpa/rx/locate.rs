//! Following markers to the FPDUs of a segment beyond a gap.

use crate::limits::{MARKER_LEN, MARKER_SPACING};
use crate::mpa::marker::{FpduLayout, MarkerGrid};
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::FpduReceiver;
use crate::mpa::rx::cursor::{Look, look};
use crate::mpa::rx::error::MpaFault;
use crate::mpa::rx::octets::{At, Octets, Slice, after};
use crate::types::StreamOffset;
use crate::wire::mpa::Marker;

/// Most faulty FPDUs that the markers of one segment may lead to: limits the work that a peer can
/// cause, since checking a bad FPDU takes as long as a good one.
const BAD_LEADS_MAX: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) start: StreamOffset,
    pub(super) end: StreamOffset,
    pub(super) layout: FpduLayout,
    pub(super) in_segment: bool,
}

impl Located {
    pub(super) const fn new(start: StreamOffset, layout: FpduLayout, slice: Slice<'_>) -> Self {
        let end = after(start, layout.wire_len());
        let in_segment = slice.at.0 <= start.0 && end.0 <= slice.end().0;
        Self { start, end, layout, in_segment }
    }
}

pub(super) enum Lead {
    Found(Located),
    /// The start of an incomplete FPDU.
    Partial(StreamOffset),
    /// The start of an FPDU with a wrong CRC, all of it in the segment.
    Corrupt(StreamOffset),
    None,
}

impl<T: Copy> FpduReceiver<T> {
    /// Looks for an FPDU in or around a segment beyond a gap: the start recorded for the held run
    /// before the segment (from `run_start` on), the markers in and directly after the segment, and
    /// the start recorded for the held run after it, in this order.
    pub(super) fn find_lead(
        &mut self,
        run_start: StreamOffset,
        slice: Slice<'_>,
        store: &PieceStore,
    ) -> Lead {
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
            match look(&self.config, self.grid, start, At { octets, start }) {
                Look::Valid { layout, .. } => {
                    lead = Lead::Found(Located::new(start, layout, slice));
                }
                Look::Faulty { fault: MpaFault::Crc, layout }
                    if Located::new(start, layout, slice).in_segment =>
                {
                    lead = Lead::Corrupt(start);
                }
                Look::Faulty { fault, .. } => {
                    bad = bad.saturating_add(1);
                    bad_crcs = bad_crcs.saturating_add(usize::from(fault == MpaFault::Crc));
                }
                Look::Partial { end } => {
                    let overlaps = end.is_some_and(|end| self.ahead.conflicts_with(start, end));
                    if !overlaps {
                        lead = Lead::Partial(start);
                    }
                }
                Look::BadLength => {}
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

    fn count_leads(&mut self, lead: &Lead, bad_crcs: usize) {
        let corrupt = u64::from(matches!(lead, Lead::Corrupt(_))).wrapping_add(bad_crcs as u64);
        self.counters.crc_bad = self.counters.crc_bad.wrapping_add(corrupt);
    }
}

/// From markers with any byte in the segment, and from the next one if its bytes are held.
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
