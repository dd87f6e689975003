//! The lower layers (LLP): this crate's TCP, which knows FPDUs, and any ordered byte stream.

mod bytes;
mod own_tcp;
mod payload;

pub use bytes::ByteStream;
pub use own_tcp::AlignmentCounters;
pub(crate) use own_tcp::{OwnTcp, SegmentSink, TxLimits};
pub(crate) use payload::{InPlace, Payload};
