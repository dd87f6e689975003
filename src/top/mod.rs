//! Endpoints that show their counters to `urnic top` and to other processes of the same user.
//!
//! A shown endpoint ([`Shown::start`]) has a Unix socket in [`folder`], which only its user can
//! access. Each connection to it gets one line of JSON and is closed. Reading neither runs the
//! endpoint nor delays it: a separate thread asks the workers, and drops processes that do not
//! read.

mod ask;
mod audience;
mod folder;
mod json;
pub mod limits;
mod serve;

pub use ask::{Answer, Process, running};
pub use folder::folder;
pub use serve::Shown;
