//! MPA: records with a CRC, and if wanted markers, on a TCP byte stream (RFC 5044, RFC 6581).
//!
//! MPA takes ULPDUs from DDP, frames each as one FPDU, and finds and verifies FPDUs in what TCP
//! receives. It never looks into a ULPDU, and knows neither memory nor sequence numbers: positions
//! are [`StreamOffset`](crate::types::StreamOffset)s.
//!
//! A connection begins with [`startup`]; what that settles holds until the end.

pub mod marker;
pub mod pieces;
pub mod rx;
pub mod startup;
pub mod tx;

pub use rx::{MpaError, MpaFault};
pub use startup::MpaStartupError;
