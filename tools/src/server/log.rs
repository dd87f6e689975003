//! What a server tells of its peers, as it happens: lines with their time, or JSON.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use urnic_engine::time::Instant;

use crate::printable::printable;
use crate::report;

/// How a server tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// What went well on standard output, what did not on standard error.
    Text,
    /// All on standard output, an object on each line.
    Json,
    /// Not at all.
    #[cfg(test)]
    Silent,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The server can be reached.
    Listening { address: SocketAddr, device: String, stack: &'static str },
    /// A session has begun.
    Started { peer: SocketAddr, session: String },
    /// A session has ended as it should.
    Ended {
        peer: SocketAddr,
        session: String,
        seconds: f64,
        bytes_placed: u64,
        fpdus_received: u64,
        fpdus_sent: u64,
    },
    /// A session has failed.
    Failed { peer: SocketAddr, session: String, reason: String },
    /// A peer got no session.
    Rejected { peer: SocketAddr, reason: String },
    /// What is to be known of the device, or of files.
    Notice { text: String },
}

/// An event with its time.
#[derive(Serialize)]
struct Timed<'a> {
    time: String,
    #[serde(flatten)]
    event: &'a Event,
}

impl Log {
    /// Tells of an event. A reader that has gone is no reason to stop.
    pub(crate) fn tell(self, event: &Event) {
        let time = utc(now());
        match (self, event) {
            #[cfg(test)]
            (Self::Silent, _) => {}
            (Self::Json, _) => {
                let _unread = report::print_json_line(&Timed { time, event });
            }
            (Self::Text, Event::Listening { address, device, .. }) => {
                let _unread = report::print(&format!("listening at {address} on {device}"));
            }
            (Self::Text, Event::Started { .. }) => {}
            (Self::Text, Event::Ended { .. }) => {
                let _unread = report::print(&format!("{time} {}", event.text()));
            }
            (Self::Text, _) => report::complain(&format!("{time} {}", event.text())),
        }
    }

    /// Returns true if there is a line for such an event.
    pub(crate) const fn shows(self, event: &Event) -> bool {
        !matches!((self, event), (Self::Text, Event::Started { .. }))
    }

    /// Tells of what belongs to no peer.
    pub(crate) fn notice(self, text: impl Into<String>) {
        self.tell(&Event::Notice { text: text.into() });
    }
}

impl Event {
    fn text(&self) -> String {
        match self {
            Self::Listening { address, device, .. } => {
                format!("listening at {address} on {device}")
            }
            Self::Started { peer, session } => format!("{peer}: {session}"),
            Self::Ended { peer, session, seconds, bytes_placed, fpdus_received, fpdus_sent } => {
                format!(
                    "{peer}: {session} done in {seconds:.2} s: {bytes_placed} bytes placed, \
                     {fpdus_received} FPDUs received, {fpdus_sent} sent"
                )
            }
            Self::Failed { peer, reason, .. } => format!("{peer}: {}", printable(reason)),
            Self::Rejected { peer, reason } => format!("{peer}: rejected: {}", printable(reason)),
            Self::Notice { text } => text.clone(),
        }
    }
}

/// How many lines peers may bring about: a number at once, and one after each [`INTERVAL`](Self::INTERVAL).
#[derive(Debug)]
pub(crate) struct Budget {
    lines: u32,
    refilled_at: Instant,
    left_out: u64,
    told_at: Instant,
}

impl Budget {
    /// Time for a line in the long run.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
    /// Lines at once: what two clients with as many connections as they may have bring about.
    pub(crate) const LINES_MAX: u32 = 4096;
    /// How often the lines that were left out are told of.
    const TELL_INTERVAL: Duration = Duration::from_secs(1);

    pub(crate) const fn new(now: Instant) -> Self {
        Self { lines: Self::LINES_MAX, refilled_at: now, left_out: 0, told_at: now }
    }

    /// Takes a line; `false` if it has to be left out.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let due = (now - self.refilled_at).as_nanos() / Self::INTERVAL.as_nanos();
        if due > 0 {
            let due = u32::try_from(due).unwrap_or(u32::MAX);
            self.lines = self.lines.saturating_add(due).min(Self::LINES_MAX);
            self.refilled_at = self.refilled_at + Self::INTERVAL * due.min(Self::LINES_MAX);
            if self.lines == Self::LINES_MAX {
                self.refilled_at = now;
            }
        }
        let is_free = self.lines > 0;
        self.lines = self.lines.saturating_sub(1);
        self.left_out += u64::from(!is_free);
        is_free
    }

    /// Lines that were left out since this was told last, when it is time to tell.
    pub(crate) fn left_out(&mut self, now: Instant) -> Option<u64> {
        if self.left_out == 0 || now - self.told_at < Self::TELL_INTERVAL {
            return None;
        }
        self.told_at = now;
        self.rest()
    }

    /// Lines that were left out since this was told last, if there are any.
    pub(crate) fn rest(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.left_out)).filter(|count| *count > 0)
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of an event is of the wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// As RFC 3339 has it, in UTC, to the millisecond.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days are counted from the first of March of the year 0, so that a leap day comes last.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year + 400 * era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_bring_about_a_bounded_number_of_lines() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut budget = Budget::new(at(0));
        let mut taken = |ms, count: u32| (0..count).filter(|_| budget.take(at(ms))).count();
        assert_eq!(taken(0, Budget::LINES_MAX), Budget::LINES_MAX as usize);
        assert_eq!((taken(19, 9), taken(20, 9), taken(70, 9)), (0, 1, 2));
        assert_eq!(taken(81, 9), 1, "no part of a time is lost");
        let hour = 3_600_000;
        assert_eq!(taken(hour, 2 * Budget::LINES_MAX), Budget::LINES_MAX as usize);
        assert_eq!(taken(hour + 19, 1), 0);
        let left_out = u64::from(9 + 8 + 7 + 8 + Budget::LINES_MAX + 1);
        assert_eq!(budget.left_out(at(hour + 19)), Some(left_out));
        assert!(!budget.take(at(hour + 19)));
        assert_eq!(budget.left_out(at(hour + 1018)), None, "not so soon");
        assert_eq!(budget.left_out(at(hour + 1019)), Some(1));
        assert_eq!(budget.left_out(at(2 * hour)), None);
        let taken = (0..Budget::LINES_MAX + 3).filter(|_| budget.take(at(3 * hour))).count();
        assert_eq!(taken, Budget::LINES_MAX as usize);
        assert_eq!((budget.rest(), budget.rest()), (Some(3), None), "at the end, however soon");
    }

    #[test]
    fn a_session_that_begins_is_told_as_json_only() {
        let started = Event::Started { peer: ([192, 0, 2, 1], 1).into(), session: String::new() };
        let notice = Event::Notice { text: String::new() };
        assert!(Log::Json.shows(&started) && !Log::Text.shows(&started));
        assert!(Log::Text.shows(&notice));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert!(utc(UNIX_EPOCH + Duration::from_millis(7)).ends_with("00.007Z"));
    }
}
