//! MPA: records with a CRC, and optionally markers, on a TCP byte stream (RFC 5044, RFC 6581).
//!
//! MPA takes ULPDUs from DDP and frames each as one FPDU. In what TCP receives, it finds and
//! verifies FPDUs. MPA never looks into a ULPDU. It knows neither memory nor sequence numbers:
//! positions are [`StreamOffset`](crate::types::StreamOffset)s.
//!
//! A connection begins with [`startup`]. The terms negotiated there hold until the end.

pub mod marker;
pub mod pieces;
pub mod rx;
pub mod startup;
pub mod tx;

pub use rx::{MpaError, MpaFault};
pub use startup::MpaStartupError;
