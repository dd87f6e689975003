//! Limits for processes that read a shown endpoint.

use std::time::Duration;

/// Processes to which an answer is written at a time. Others wait.
pub const READERS_MAX: usize = 8;
/// Time that a process may take to read an answer.
pub const READ_TIME_MAX: Duration = Duration::from_secs(2);
/// Connections listed one by one in an answer. The sums include all connections.
pub const CONNECTIONS_TOLD_MAX: usize = 1024;
/// Limit of an answer's length in bytes.
pub const ANSWER_LEN_MAX: usize = 2 << 20;
/// Time that an endpoint may take to answer.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Time to wait for the workers; then their previous counters are reported.
pub(super) const WORKER_TIME_MAX: Duration = Duration::from_millis(250);
/// Time for which an answer is reused, so that many readers ask the workers only as often as one.
pub(super) const ANSWER_AGE_MAX: Duration = Duration::from_millis(10);
/// Sockets examined in the folder.
pub const PROCESSES_MAX: usize = 1024;
/// Bytes of a connection in an answer: names of 30 bytes and numbers of 20 digits.
const CONNECTION_LEN_MAX: usize = 128 + crate::FIGURES * (30 + 20 + 4);

const _: () = assert!(CONNECTIONS_TOLD_MAX * CONNECTION_LEN_MAX + 4096 < ANSWER_LEN_MAX);
const _: () = assert!(WORKER_TIME_MAX.as_millis() < ANSWER_TIME_MAX.as_millis());
