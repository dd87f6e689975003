//! Errors of reception. A *fault* is a defect of an FPDU; an *error* reports it.

use std::ops::Range;

use crate::mpa::rx::octets::Slice;
use crate::types::StreamOffset;

/// Fault of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaFault {
    /// The CRC does not match (RFC 5044 §8, code 2).
    #[error("FPDU with a wrong CRC")]
    Crc,
    /// A marker and the FPDU lengths contradict each other (RFC 5044 §8, code 3).
    #[error("marker and ULPDU length do not agree")]
    Marker,
    /// A length that no ULPDU can have. The RFC gives it no code; code 3 is customary.
    #[error("impossible ULPDU length")]
    UlpduLength,
}

/// Violation of MPA by the peer: a fault at a position where an FPDU must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct MpaError {
    /// The fault.
    pub fault: MpaFault,
    /// The segment can be dropped, so that TCP retransmits it (RFC 5044 §8: "MAY" for a wrong CRC
    /// or marker): nothing of the FPDU was accepted before, and another copy may differ. The
    /// receiver then stays usable; otherwise it has stopped.
    pub droppable: bool,
}

/// Reason why bytes were not taken: an error of MPA or of the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxError<E> {
    /// The peer broke MPA.
    Mpa(MpaError),
    /// The layer above refused an FPDU.
    Sink(E),
}

/// `accepted` is the position up to which the segment's bytes are accepted nevertheless; `None` if
/// the receiver must stop for good.
pub(super) struct Stop<E> {
    pub(super) error: RxError<E>,
    pub(super) accepted: Option<StreamOffset>,
}

impl<E> Stop<E> {
    #[cold]
    pub(super) const fn of_sink(error: E) -> Self {
        Self { error: RxError::Sink(error), accepted: None }
    }

    /// `fpdu` is the known extent of an FPDU whose start is certain.
    #[cold]
    pub(super) fn of_peer(
        fault: MpaFault,
        fpdu: Range<StreamOffset>,
        slice: Slice<'_>,
        vouched: bool,
    ) -> Self {
        let start = fpdu.start;
        let error = fault.error(fpdu, slice, vouched);
        Self { error: RxError::Mpa(error), accepted: error.droppable.then_some(start) }
    }
}

impl MpaFault {
    /// `fpdu` is its known extent; `vouched`: a good CRC vouches for its bytes.
    pub(super) fn error(
        self,
        fpdu: Range<StreamOffset>,
        slice: Slice<'_>,
        vouched: bool,
    ) -> MpaError {
        // RFC 5044 §8: the segment may be dropped; then nothing of the FPDU may be acknowledged.
        let starts_inside = fpdu.start >= slice.at && fpdu.start < slice.end();
        // RFC 5044 §4.4: the CRC covers the markers: all copies with a good CRC are the same.
        MpaError { fault: self, droppable: starts_inside && fpdu.end <= slice.end() && !vouched }
    }
}
