//! Log of a server: events of its peers as lines with the time, or as JSON.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use urnic_engine::time::Instant;
use urnic_replay::printable::printable;

use crate::report;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// Normal events on standard output, others on standard error.
    Text,
    /// All events on standard output, one object on each line.
    Json,
    /// No output.
    #[cfg(test)]
    Silent,
}

/// An event of the server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The server accepts connections.
    Listening { address: SocketAddr, device: String, stack: &'static str },
    /// A session has begun.
    Started {
        peer: SocketAddr,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        session: String,
    },
    /// A session has ended normally.
    Ended {
        peer: SocketAddr,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        session: String,
        seconds: f64,
        bytes_placed: u64,
        fpdus_received: u64,
        fpdus_sent: u64,
    },
    /// A session has failed.
    Failed {
        peer: SocketAddr,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        session: String,
        reason: String,
    },
    /// A peer's request for a session was rejected.
    Rejected { peer: SocketAddr, reason: String },
    /// Information about the device, or about files.
    Notice { text: String },
}

#[derive(Serialize)]
struct Timed<'a> {
    time: String,
    #[serde(flatten)]
    event: &'a Event,
}

impl Log {
    /// A closed output is no reason to stop.
    pub(crate) fn report(self, event: &Event) {
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

    pub(crate) const fn shows(self, event: &Event) -> bool {
        !matches!((self, event), (Self::Text, Event::Started { .. }))
    }

    pub(crate) fn notice(self, text: impl Into<String>) {
        self.report(&Event::Notice { text: text.into() });
    }
}

impl Event {
    fn text(&self) -> String {
        match self {
            Self::Listening { address, device, .. } => {
                format!("listening at {address} on {device}")
            }
            Self::Started { peer, key, session } => format!("{}: {session}", named(*peer, key)),
            Self::Ended {
                peer,
                key,
                session,
                seconds,
                bytes_placed,
                fpdus_received,
                fpdus_sent,
            } => {
                format!(
                    "{}: {session} done in {seconds:.2} s: {bytes_placed} bytes placed, \
                     {fpdus_received} FPDUs received, {fpdus_sent} sent",
                    named(*peer, key)
                )
            }
            Self::Failed { peer, key, reason, .. } => {
                format!("{}: {}", named(*peer, key), printable(reason))
            }
            Self::Rejected { peer, reason } => format!("{peer}: rejected: {}", printable(reason)),
            Self::Notice { text } => text.clone(),
        }
    }
}

/// The peer, and the name of its key, if it has one.
fn named(peer: SocketAddr, key: &Option<String>) -> String {
    key.as_ref().map_or_else(|| peer.to_string(), |key| format!("{peer} ({key})"))
}

/// Limit on lines that peers can cause: a burst, and one line after each
/// [`INTERVAL`](Self::INTERVAL).
#[derive(Debug)]
pub(crate) struct Budget {
    lines: u32,
    refilled_at: Instant,
    left_out: u64,
    reported_at: Instant,
}

impl Budget {
    /// Time for a line in the long run.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
    /// Lines in a burst: as many as two clients with all connections that they may have can cause.
    pub(crate) const LINES_MAX: u32 = 4096;
    const REPORT_INTERVAL: Duration = Duration::from_secs(1);

    pub(crate) const fn new(now: Instant) -> Self {
        Self { lines: Self::LINES_MAX, refilled_at: now, left_out: 0, reported_at: now }
    }

    /// `false` if the line must be left out.
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

    /// Lines left out since the last report, if a report is due.
    pub(crate) fn left_out(&mut self, now: Instant) -> Option<u64> {
        if self.left_out == 0 || now - self.reported_at < Self::REPORT_INTERVAL {
            return None;
        }
        self.reported_at = now;
        self.rest()
    }

    /// Lines left out since the last report, if any.
    pub(crate) fn rest(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.left_out)).filter(|count| *count > 0)
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of an event is of the wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// RFC 3339, in UTC, to the millisecond.
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
    use crate::figures_page;

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
    fn each_figure_of_a_server_has_a_definition() {
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        let session = || "get of 'a'".to_owned();
        let (bytes_placed, fpdus_received, fpdus_sent) = (1, 2, 3);
        let key = || Some("alice".to_owned());
        let ended = Event::Ended {
            peer,
            key: None,
            session: session(),
            seconds: 1.5,
            bytes_placed,
            fpdus_received,
            fpdus_sent,
        };
        let text = ended.text();
        assert_eq!(
            text,
            "192.0.2.1:1: get of 'a' done in 1.50 s: 1 bytes placed, 2 FPDUs received, 3 sent"
        );
        let (_, figures) = text.split_once(" done in ").unwrap();
        figures_page::compare("serve", figures_page::sentences(&figures.replace("s:", "s,")));
        let reason = || "it has no folder".to_owned();
        let events = [
            Event::Listening { address: peer, device: "tcp".into(), stack: "layered" },
            Event::Started { peer, key: key(), session: session() },
            ended,
            Event::Failed { peer, key: key(), session: session(), reason: reason() },
            Event::Rejected { peer, reason: reason() },
            Event::Notice { text: reason() },
        ];
        let timed = events.each_ref().map(|event| Timed { time: utc(UNIX_EPOCH), event });
        figures_page::compare_json("serve", &timed);
        let told = events.map(|event| event.text());
        assert_eq!(told[1], "192.0.2.1:1 (alice): get of 'a'");
        assert_eq!(
            told[3..],
            [
                "192.0.2.1:1 (alice): it has no folder",
                "192.0.2.1:1: rejected: it has no folder",
                "it has no folder",
            ]
        );
    }

    #[test]
    fn session_start_is_logged_as_json_only() {
        let started =
            Event::Started { peer: ([192, 0, 2, 1], 1).into(), key: None, session: String::new() };
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
