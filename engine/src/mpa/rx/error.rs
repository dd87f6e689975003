//! What can be wrong in reception, in two words: a *fault* is in an FPDU; an *error* is what is
//! reported, and says what reception makes of it.

use std::ops::Range;

use crate::mpa::rx::octets::Slice;
use crate::types::StreamOffset;

/// What is wrong with an FPDU.
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

/// How a peer broke MPA: a fault where an FPDU must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct MpaError {
    /// What is wrong.
    pub fault: MpaFault,
    /// Whether the segment can be dropped, so that TCP brings it again, instead of ending the stream.
    ///
    /// RFC 5044 §8: for a wrong CRC or marker an optimized MPA/TCP "MAY" do so. It is possible and may
    /// help where nothing of the FPDU was accepted before, and another copy of it may differ. The
    /// receiver then stays usable; otherwise it has stopped.
    pub droppable: bool,
}

/// Why bytes were not taken: an error of MPA's own or of the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxError<E> {
    /// The peer broke MPA.
    Mpa(MpaError),
    /// The layer above refused an FPDU.
    Sink(E),
}

/// An error, and up to where bytes are accepted nevertheless; `None` when the stream has ended.
pub(super) struct Stop<E> {
    pub(super) error: RxError<E>,
    pub(super) accepted: Option<StreamOffset>,
}

impl<E> Stop<E> {
    /// The layer above refused an FPDU: the stream has ended.
    #[cold]
    pub(super) const fn of_sink(error: E) -> Self {
        Self { error: RxError::Sink(error), accepted: None }
    }

    /// A fault in an FPDU whose start is certain; `fpdu` is its extent as far as known.
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
    /// The error of an FPDU with this fault, given how far it is known to extend, and whether a good
    /// CRC vouches for its bytes.
    pub(super) fn error(
        self,
        fpdu: Range<StreamOffset>,
        slice: Slice<'_>,
        vouched: bool,
    ) -> MpaError {
        // RFC 5044 §8: the segment may be dropped; then nothing of the FPDU may be acknowledged.
        let starts_inside = fpdu.start >= slice.at && fpdu.start < slice.end();
        // RFC 5044 §4.4: the CRC covers the markers, so every copy of what it vouches for is the same.
        MpaError { fault: self, droppable: starts_inside && fpdu.end <= slice.end() && !vouched }
    }
}
