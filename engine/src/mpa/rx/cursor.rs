//! One look at the FPDU that starts at a known position: its extent, its CRC, its markers. All
//! paths of reception judge FPDUs by [`look`], in any memory ([`Wire`]); `tests/ways.rs` compares
//! the paths. The length and the CRC are read once. The markers and the header are read again, as
//! copies, after the CRC over the whole FPDU; each decision uses one copy. A sender that changes
//! bytes in between could have sent these anyway: the CRC is no authentication (RFC 5042 §2).
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::limits::MARKER_LEN;
use crate::mem::crc32c_append_shared;
use crate::mpa::marker::{CRC_LEN, FpduLayout, LENGTH_LEN, MarkerGrid};
use crate::mpa::rx::RxConfig;
use crate::mpa::rx::error::MpaFault;
use crate::mpa::rx::octets::{Wire, after};
use crate::types::StreamOffset;
use crate::wire::crc32c::{Crc32c, to_wire};
use crate::wire::mpa::Marker;

pub(super) enum Look<W> {
    /// A valid FPDU, and the bytes after it.
    Valid { layout: FpduLayout, fpdu: W, rest: W },
    /// All bytes are present, but the CRC or a marker is wrong.
    Faulty { layout: FpduLayout, fault: MpaFault },
    /// Bytes are missing; the end is known once the length field is present.
    Partial { end: Option<StreamOffset> },
    /// A length that no ULPDU can have.
    BadLength,
}

/// Looks at the FPDU that starts at `start`, the position of `wire`.
// Inlined: its large result would otherwise pass through memory for every FPDU.
#[inline(always)]
pub(super) fn look<'s, W: Wire<'s>>(
    config: &RxConfig,
    grid: MarkerGrid,
    start: StreamOffset,
    wire: W,
) -> Look<W> {
    let Some(field) = wire.read::<LENGTH_LEN>(grid.leading_len(start)) else {
        return Look::Partial { end: None };
    };
    let ulpdu_len = usize::from(u16::from_be_bytes(field));
    // spec: MPA-4.3-13, SEC-R-19
    if ulpdu_len < config.ulpdu_len_min || ulpdu_len > config.ulpdu_len_max {
        return Look::BadLength;
    }
    let layout = grid.layout(start, ulpdu_len);
    // spec: MPA-6-3
    // RFC 5044 §6: the ULPDU_Length decides whether the whole FPDU is there.
    let Some((fpdu, rest)) = wire.split(layout.wire_len()) else {
        return Look::Partial { end: Some(after(start, layout.wire_len())) };
    };
    // spec: MPA-4.1-4, MPA-4.4-13, MPA-6-1, SEC-T-8
    // RFC 5044 §4.4: the receiver "MUST" compare the CRC "before" using the FPDU.
    if config.crc && !has_good_crc(fpdu, layout) {
        return Look::Faulty { layout, fault: MpaFault::Crc };
    }
    if wrong_markers(fpdu, layout).next().is_some() {
        return Look::Faulty { layout, fault: MpaFault::Marker };
    }
    Look::Valid { layout, fpdu, rest }
}

/// The CRC covers all bytes of the FPDU before it, markers too (RFC 5044 §4.4).
// spec: MPA-4.4-9, MPA-4.4-10, MPA-4.4-11, MPA-4.4-12
#[inline(always)]
fn has_good_crc<'s, W: Wire<'s>>(fpdu: W, layout: FpduLayout) -> bool {
    let crc_at = layout.crc_at();
    let mut state = Crc32c::new().state();
    fpdu.for_each_run(0, crc_at, |run| state = crc32c_append_shared(state, run));
    // RFC 5044 §4.4, figures 5 and 6: least significant byte first.
    fpdu.read::<CRC_LEN>(crc_at) == Some(to_wire(Crc32c::from_state(state).finish()))
}

/// Offsets of the markers that do not point at the header of the FPDU.
#[inline(always)]
pub(super) fn wrong_markers<'s, W: Wire<'s>>(
    fpdu: W,
    layout: FpduLayout,
) -> impl Iterator<Item = usize> {
    (0..layout.marker_count()).filter_map(move |index| {
        let at = layout.marker_at(index);
        // spec: MPA-4.3-7
        // RFC 5044 §4.3: all markers of an FPDU point at its header. §4.2 (erratum 1427): the
        // reserved bytes and the two low bits say nothing.
        let pointer = fpdu.read::<MARKER_LEN>(at).map(|octets| Marker::from_bytes(octets).fpduptr);
        (pointer != Some(layout.fpduptr(index))).then_some(at)
    })
}
