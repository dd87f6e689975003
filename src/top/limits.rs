//! Bounds of what a program may have of an endpoint that is shown.

use std::time::Duration;

/// Programs that an answer is being written to at a time. More wait until one of them has read it, or
/// has not for [`READ_TIME_MAX`].
pub const READERS_MAX: usize = 8;
/// How long a program may take to read an answer.
pub const READ_TIME_MAX: Duration = Duration::from_secs(2);
/// Connections of which an answer tells each one; the sums are those of all.
pub const CONNECTIONS_TOLD_MAX: usize = 1024;
/// Bytes of an answer that are read.
pub const ANSWER_LEN_MAX: usize = 2 << 20;
/// How long an endpoint may take to answer.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// How long the workers of an endpoint are waited for; after that, what they said before is told.
pub(super) const WORKER_TIME_MAX: Duration = Duration::from_millis(250);
/// For how long an answer is given again: many programs ask the workers no more often than one.
pub(super) const ANSWER_AGE_MAX: Duration = Duration::from_millis(10);
/// Sockets in the folder that are looked at.
pub const PROCESSES_MAX: usize = 1024;
/// Bytes that a connection takes in an answer: names of 30 bytes and numbers of 20 digits.
const CONNECTION_LEN_MAX: usize = 128 + crate::FIGURES * (30 + 20 + 4);

const _: () = assert!(CONNECTIONS_TOLD_MAX * CONNECTION_LEN_MAX + 4096 < ANSWER_LEN_MAX);
const _: () = assert!(WORKER_TIME_MAX.as_millis() < ANSWER_TIME_MAX.as_millis());
