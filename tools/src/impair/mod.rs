//! `urnic impair`: two devices joined by a bad link.
//!
//! ```text
//! kernel or any stack ═ device A ═▶ impairment ═▶ device B ═ kernel or any stack
//!                               ◀═ impairment ◀═
//! ```

mod bridge;
mod options;
mod outage;
mod summary;

pub(crate) use bridge::{BURST, Bridge};
pub(crate) use options::Options;
pub(crate) use outage::Outage;
pub(crate) use summary::Summary;
