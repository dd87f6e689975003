//! Replay: captured frames through the receive code, one passive endpoint per direction.
//!
//! A capture is read twice. The first pass ([`scan`]) finds out where streams begin and which
//! frames were damaged; the second replays. What TCP, MPA, DDP and RDMAP do with the octets is the
//! engine's own code; what an endpoint has to have of its own (memory that was registered, a state
//! to end after an error) the observer makes up or does without, so that it can say what else is
//! there.
//!
//! Memory is bounded for any capture: see the limits in [`image`], [`direction`] and [`findings`].

mod alignment;
mod arrivals;
mod connection;
mod direction;
mod findings;
mod frames;
mod image;
mod observer;
mod order;
mod packet;
mod ranges;
mod report;
mod scan;
mod startup;
mod tally;
pub(crate) mod text;

use std::io::Read;

use urnic_netdev::capture::CaptureError;

use connection::Connection;
use direction::Shared;
use frames::{Capture, Frames, Summary};
pub(crate) use report::Report;
use report::{FileReport, Finding, Severity};
use scan::{Connections, Plan};

/// Replays the capture that `open` opens; it is opened more than once.
pub(crate) fn replay<R: Read>(name: &str, open: impl FnMut() -> std::io::Result<R>) -> FileReport {
    let mut capture = Capture(open);
    let plan = Plan::of(&mut capture);
    let mut report = FileReport { file: name.to_owned(), ..FileReport::default() };
    let mut shared = Shared::new();
    let mut known = Connections::default();
    let mut connections: Vec<Connection> = Vec::new();
    let mut left_out = plan.left_out.iter().copied().peekable();
    let mut skipped = 0;
    let summary = capture.for_each(&mut |number, segment| {
        let Some(segment) = segment else {
            skipped += 1;
            return;
        };
        if left_out.next_if_eq(&number).is_some() {
            skipped += 1;
            return;
        }
        let is_trusted = plan.checksums_ignored || segment.checksum != packet::Checksum::Wrong;
        let Some((index, side)) = known.find(&segment, is_trusted) else { return };
        if index == connections.len() {
            // A file that changes between the passes only makes for a poor report.
            let plan = plan.connections.get(index).copied().unwrap_or_default();
            let ends = [segment.source, segment.target];
            connections.push(Connection::new(ends, plan, number));
        }
        if let Some(connection) = connections.get_mut(index) {
            connection.handle(side, &segment, number, &mut shared);
        }
    });
    report.frames = summary.frames;
    report.frames_skipped = skipped;
    report.frames_corrupt = plan.left_out.len() as u64;
    report.connections =
        connections.into_iter().map(|connection| connection.finish(&mut shared)).collect();
    report.findings = about_file(&plan, &summary);
    report.error =
        summary.error.filter(|error| !is_cut_short(error, summary.frames)).map(|error| {
            // The chain of causes in one line.
            let error = anyhow::Error::from(error);
            if summary.frames == 0 {
                format!("{error:#}")
            } else {
                format!("not read to its end: {error:#}")
            }
        });
    report
}

/// Whether a capture merely ends early, behind some frames.
const fn is_cut_short(error: &CaptureError, frames: u64) -> bool {
    matches!(error, CaptureError::Truncated { .. }) && frames > 0
}

fn about_file(plan: &Plan, summary: &Summary) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, rule, frame, text| {
        findings.push(Finding { severity, rule, frame, text });
    };
    if let Some(error @ CaptureError::Truncated { frame, .. }) = &summary.error {
        add(Severity::Warning, "capture", *frame, error.to_string());
    }
    if summary.cut > 0 {
        let text = format!(
            "{} of {} frames were not captured whole (snap length): their segments are left out",
            summary.cut, summary.frames
        );
        add(Severity::Warning, "capture", summary.first_cut, text);
    }
    let checksum = "RFC 9293 §3.1";
    if plan.checksums_ignored {
        let text = "most TCP checksums are wrong: none was taken into account".to_owned();
        add(Severity::Note, checksum, 0, text);
    }
    if let Some(first) = plan.left_out.first() {
        let text = format!(
            "{} segments with a wrong checksum are left out, as their receiver drops them",
            plan.left_out.len()
        );
        add(Severity::Note, checksum, *first, text);
    }
    if plan.used_although_wrong > 0 {
        let text = format!(
            "{} segments have a wrong checksum and never come again: they are taken as they are",
            plan.used_although_wrong
        );
        add(Severity::Note, checksum, 0, text);
    }
    findings
}

#[cfg(test)]
mod tests;
