//! Waits for the process at the other end of a device, which may be started at the same time.

use std::fmt::Display;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use urnic::monotonic_now;

use crate::report;

/// Repeats `attempt` while the other end is absent, for at most `patience`, or until `is_over`.
/// Prints to standard error that it waits.
pub(crate) fn awaited<T, E: Display>(
    patience: Duration,
    is_absent: impl Fn(&E) -> bool,
    is_over: impl Fn() -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let begun = monotonic_now();
    let mut is_said = false;
    loop {
        let error = match attempt() {
            Err(error) if is_absent(&error) => error,
            outcome => return outcome,
        };
        let waited: Duration = monotonic_now() - begun;
        if waited >= patience || is_over() {
            return Err(error);
        }
        if !is_said && waited >= SILENCE {
            report::complain(&format!("waiting for at most {patience:?}: {error}"));
            is_said = true;
        }
        pause(TURN.min(patience.saturating_sub(waited)));
    }
}

fn pause(time: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _slept_or_interrupted = poll(&mut [], Some(&timeout));
}

const TURN: Duration = Duration::from_millis(20);
/// Processes that are started together find each other soon.
const SILENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Attempts that fail with this error until the last of `count`.
    fn attempts(count: u32, error: &'static str) -> impl FnMut() -> Result<u32, &'static str> {
        let mut tried = 0;
        move || {
            tried += 1;
            if tried < count { Err(error) } else { Ok(tried) }
        }
    }

    #[test]
    fn the_other_end_is_waited_for() {
        let is_absent = |error: &&str| *error == "absent";
        let long = Duration::from_secs(60);
        assert_eq!(awaited(long, is_absent, || false, attempts(4, "absent")), Ok(4));
        assert_eq!(awaited(long, is_absent, || false, attempts(2, "other")), Err("other"));
        let short = Duration::from_millis(50);
        let begun = monotonic_now();
        assert_eq!(awaited(short, is_absent, || false, attempts(100_000, "absent")), Err("absent"));
        assert!(monotonic_now() - begun >= short);
        let looks = Cell::new(0);
        let is_over = || looks.replace(looks.get() + 1) == 2;
        assert_eq!(awaited(long, is_absent, is_over, attempts(100, "absent")), Err("absent"));
    }
}
