//! The lower layers (LLP) that carry a stream: the TCP of this crate, which knows FPDUs, and any
//! ordered byte stream, which does not.

mod bytes;
mod own_tcp;
mod payload;

pub use bytes::ByteStream;
pub use own_tcp::AlignmentCounters;
pub(crate) use own_tcp::{OwnTcp, SegmentSink, TxLimits};
pub(crate) use payload::{InPlace, Payload};
