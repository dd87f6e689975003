//! A user beside the one that runs the tests.

use std::thread;

use rustix::thread::{Uid, set_thread_res_uid};

use crate::skip;

/// A user that no test runs as.
pub const OTHER: u32 = 12_345;

/// Runs `body` on a thread of the user [`OTHER`]. Skips `test`, and returns `None`, where the thread cannot be that
/// user's: for ordinary users, and for root of a user namespace without that user.
///
/// # Panics
/// If `body` does, and when skips are failures.
pub fn as_other_user<R: Send + 'static>(
    test: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let other = move || {
        let uid = Uid::from_raw(OTHER);
        set_thread_res_uid(uid, uid, uid).ok()?;
        Some(body())
    };
    let result = thread::spawn(other).join().unwrap();
    if result.is_none() {
        skip(test, "it needs root, to have a process of another user");
    }
    result
}
