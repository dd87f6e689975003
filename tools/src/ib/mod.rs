//! Common parts of the InfiniBand commands.

mod capture;
mod gate;
mod port;

pub(crate) use capture::ErfCapture;
pub(crate) use gate::{GROUPS_MAX, Gate, GateSummary, Rules, stays_on_link};
pub(crate) use port::Port;
