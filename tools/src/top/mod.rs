//! Endpoints of other processes, by their published counters.

mod flow;
mod follow;
mod line;
mod process;
mod reports;

pub(crate) use follow::{Following, Pace};
pub(crate) use process::Wanted;
