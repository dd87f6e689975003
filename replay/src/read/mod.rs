//! Step 1: reads a capture twice; the first pass is `scan.rs`.

pub(crate) mod copies;
pub(crate) mod frames;
pub mod input;
pub(crate) mod packet;
pub(crate) mod ranges;
pub(crate) mod resume;
pub(crate) mod scan;
pub(crate) mod tunnel;
pub(crate) mod unpack;
