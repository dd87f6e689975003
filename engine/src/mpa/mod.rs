//! MPA: records with a CRC, and optionally markers, on a TCP byte stream (RFC 5044, RFC 6581). Each
//! ULPDU of DDP is one FPDU. MPA never looks into a ULPDU, and knows neither memory nor sequence
//! numbers: positions are [`StreamOffset`](crate::types::StreamOffset)s. A connection begins with
//! [`startup`]; the terms negotiated there hold until the end.

pub mod marker;
pub mod pieces;
pub mod rx;
pub mod startup;
pub mod tx;

pub use rx::{MpaError, MpaFault};
pub use startup::MpaStartupError;
