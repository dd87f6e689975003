//! Intervals of a running measurement: a line for each, or one line that is redrawn.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use urnic_engine::time::Instant;

use crate::report;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Interval<T> {
    from_seconds: f64,
    to_seconds: f64,
    #[serde(flatten)]
    measured: T,
}

#[derive(Debug)]
pub(crate) struct Intervals<T> {
    length: Duration,
    form: Form,
    started: Instant,
    from: Instant,
    due: Instant,
    past: Vec<Interval<T>>,
}

#[derive(Debug)]
enum Form {
    /// A line for each, on standard output.
    Lines,
    Json,
    Live(ProgressBar),
    Hidden,
}

impl<T: Serialize> Intervals<T> {
    /// Prints lines, or with `is_json` collects a list, one for each `length`; without a length,
    /// shows the current state on a terminal.
    pub(crate) fn new(length: Option<Duration>, is_json: bool) -> Self {
        let form = match length {
            Some(_) if is_json => Form::Json,
            Some(_) => Form::Lines,
            None if is_json => Form::Hidden,
            None => Form::Live(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())),
        };
        let length = length.unwrap_or(LIVE_LENGTH);
        let zero = Instant::ZERO;
        Self { length, form, started: zero, from: zero, due: zero, past: Vec::new() }
    }

    pub(crate) fn start(&mut self, now: Instant) {
        (self.started, self.from, self.due) = (now, now, now + self.length);
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// `measure` gets the length in seconds, and returns the result and its text.
    pub(crate) fn end(&mut self, now: Instant, measure: impl FnOnce(f64) -> (T, String)) {
        let seconds = (now - self.from).as_secs_f64();
        let (measured, text) = measure(seconds);
        let from_seconds = (self.from - self.started).as_secs_f64();
        let to_seconds = (now - self.started).as_secs_f64();
        self.from = now;
        while self.due <= now {
            self.due = self.due + self.length.max(now - self.due);
        }
        match &self.form {
            Form::Lines => {
                let line = format!("{from_seconds:>8.2} – {to_seconds:>8.2} s  {text}");
                let _unread = report::print(&line);
            }
            Form::Json => self.past.push(Interval { from_seconds, to_seconds, measured }),
            Form::Live(bar) => {
                bar.set_style(
                    indicatif::ProgressStyle::with_template("{msg}")
                        .unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()),
                );
                bar.set_message(format!("{to_seconds:>6.0} s  {text}"));
                bar.tick();
            }
            Form::Hidden => {}
        }
    }

    /// The last one is shorter, so that all of them add up.
    pub(crate) fn rest(&mut self, now: Instant, measure: impl FnOnce(f64) -> (T, String)) {
        if now > self.from && matches!(self.form, Form::Lines | Form::Json) {
            self.end(now, measure);
        }
    }

    pub(crate) fn finish(self) -> Vec<Interval<T>> {
        if let Form::Live(bar) = &self.form {
            bar.finish_and_clear();
        }
        self.past
    }
}

/// Interval of the display on a terminal.
const LIVE_LENGTH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Serialize)]
    struct Bytes(u64);

    /// Intervals follow each other without a gap, and the last one is shorter.
    #[test]
    fn intervals_add_up_to_the_whole() {
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        let mut intervals = Intervals::new(Some(Duration::from_millis(10)), true);
        intervals.start(at(5));
        let mut measured = Vec::new();
        for now in [9, 14, 15, 24, 47, 48, 55, 56] {
            if intervals.is_due(at(now)) {
                intervals.end(at(now), |seconds| {
                    measured.push(seconds);
                    (Bytes(now), String::new())
                });
            }
        }
        intervals.rest(at(56), |seconds| {
            measured.push(seconds);
            (Bytes(56), String::new())
        });
        // A late turn makes a long interval, and the next one is not due at once.
        assert_eq!(measured, [0.01, 0.032, 0.009]);
        intervals.rest(at(56), |_| unreachable!("nothing is left"));
        let past = intervals.finish();
        let ends: Vec<_> = past.iter().map(|one| (one.from_seconds, one.to_seconds)).collect();
        assert_eq!(ends, [(0.0, 0.01), (0.01, 0.042), (0.042, 0.051)]);
    }
}
