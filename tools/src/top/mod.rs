//! Endpoints of other processes, by what they show of themselves.

mod flow;
mod follow;
mod line;
mod process;
mod told;

pub(crate) use follow::{Following, Pace};
pub(crate) use process::Wanted;
