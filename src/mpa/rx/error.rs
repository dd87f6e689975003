//! What can go wrong in reception.

use std::ops::Range;

use crate::mpa::rx::locate::Fault;
use crate::mpa::rx::octets::Slice;
use crate::types::StreamOffset;

/// How a peer broke MPA.
///
/// RFC 5044 §8: on the first two an optimized MPA/TCP "MAY" drop the segment and rely on TCP's
/// retransmission. `droppable` says that this is possible: nothing of the bad FPDU was accepted
/// before. The receiver then stays usable; otherwise it has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpaError {
    /// The CRC does not match (RFC 5044 §8, code 2).
    #[error("FPDU with a wrong CRC")]
    Crc {
        /// Whether dropping the segment is possible.
        droppable: bool,
    },
    /// A marker and the FPDU lengths contradict each other (RFC 5044 §8, code 3).
    #[error("marker and ULPDU length do not agree")]
    Marker {
        /// Whether dropping the segment is possible.
        droppable: bool,
    },
    /// A length that no ULPDU can have. The RFC gives it no code; code 3 is customary.
    #[error("impossible ULPDU length")]
    UlpduLength {
        /// Whether dropping the segment is possible.
        droppable: bool,
    },
}

impl MpaError {
    /// Whether the segment can be dropped and asked for again instead of ending the stream.
    #[must_use]
    pub const fn is_droppable(self) -> bool {
        match self {
            Self::Crc { droppable }
            | Self::Marker { droppable }
            | Self::UlpduLength { droppable } => droppable,
        }
    }
}

/// Why reception failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxError<E> {
    /// The peer broke MPA.
    Mpa(MpaError),
    /// The layer above refused an FPDU.
    Sink(E),
}

/// An error, and up to where octets are accepted nevertheless; `None` when the stream is dead.
pub(super) struct Failure<E> {
    pub(super) error: RxError<E>,
    pub(super) accepted: Option<StreamOffset>,
}

impl<E> Failure<E> {
    /// The layer above refused an FPDU: the stream is dead.
    #[cold]
    pub(super) const fn of_sink(error: E) -> Self {
        Self { error: RxError::Sink(error), accepted: None }
    }

    /// A fault in an FPDU whose start is certain; `fpdu` is its extent as far as known.
    #[cold]
    pub(super) fn of_peer(fault: Fault, fpdu: Range<StreamOffset>, slice: Slice<'_>) -> Self {
        let start = fpdu.start;
        let error = fault.error(fpdu, slice);
        Self { error: RxError::Mpa(error), accepted: error.is_droppable().then_some(start) }
    }
}

impl Fault {
    /// The error of an FPDU with this fault, given how far it is known to extend.
    pub(super) fn error(self, fpdu: Range<StreamOffset>, slice: Slice<'_>) -> MpaError {
        // RFC 5044 §8: the segment may be dropped; then nothing of the FPDU may be acknowledged.
        let starts_inside = fpdu.start >= slice.at && fpdu.start < slice.end();
        let droppable = starts_inside && fpdu.end <= slice.end();
        match self {
            Self::Crc => MpaError::Crc { droppable },
            Self::Marker => MpaError::Marker { droppable },
            Self::UlpduLength => MpaError::UlpduLength { droppable },
        }
    }
}
