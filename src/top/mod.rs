//! Endpoints that show what they count, to `urnic top` and to other programs of the same user.
//!
//! An endpoint that is shown ([`Shown::start`]) has a Unix socket in [`folder`], which only its user may
//! enter. Each connection to it gets one line of JSON and is closed. Looking neither turns the endpoint
//! nor holds it up: a thread of its own asks the workers, and gives up on programs that do not read.
//!
//! [`running`] finds the sockets of this user's processes and removes those whose process has ended.

mod ask;
mod audience;
mod folder;
mod json;
pub mod limits;
mod serve;

pub use ask::{Answer, Process, running};
pub use folder::folder;
pub use serve::Shown;
