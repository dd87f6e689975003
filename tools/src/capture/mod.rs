//! A live capture of an interface: frames through the engine's receive code, into a file, and a
//! line each second.

mod file;
mod follow;
mod line;

pub(crate) use file::Sink;
pub(crate) use follow::{Following, Shown};
