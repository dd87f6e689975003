//! Findings about a capture file as a whole: unread parts, copied frames, timestamps, checksums.

use urnic_netdev::capture::{CaptureError, link_name};

use crate::limits::DAMAGED_MAX;
use crate::read::frames::{Clock, Summary, Unread};
use crate::read::scan::Plan;
use crate::report::{Finding, Severity};
use crate::{LIMITS, draw, figures};

pub(crate) const CHECKSUM: &str = "RFC 9293 §3.1";

/// Returns true if a capture merely ends early, after its header.
pub(crate) const fn is_cut_short(error: &CaptureError, summary: &Summary) -> bool {
    matches!(error, CaptureError::Truncated { .. }) && summary.has_begun
}

/// Frames of several interfaces may be in a wrong order by less than a millisecond.
fn about_clock(clock: &Clock, add: &mut impl FnMut(Severity, &'static str, u64, String)) {
    if clock.back_max_ns >= 1_000_000 {
        let text = format!(
            "timestamps run backwards at {}, by {} at most: a clock was set back, or the timestamps are \
             of several clocks; times across such a place mean nothing",
            figures::plural(clock.back, "frame"),
            draw::time(clock.back_max_ns)
        );
        add(Severity::Warning, "capture", clock.first_back, text);
    }
    if clock.pause_max_ns >= 3_600_000_000_000 {
        let text = format!(
            "nothing was captured for {}: the clock was set forward, or the capture was merged \
             from several",
            draw::time(clock.pause_max_ns)
        );
        add(Severity::Note, "capture", clock.after_pause, text);
    }
}

fn about_missing(
    summary: &Summary,
    error: Option<&CaptureError>,
    add: &mut impl FnMut(Severity, &'static str, u64, String),
) {
    let packing =
        summary.packing_cut.map(|name| format!("the {name} stream of the file ends early"));
    match (error, packing) {
        (Some(error @ CaptureError::Truncated { frame, .. }), packing)
            if is_cut_short(error, summary) =>
        {
            let why = packing.map_or_else(String::new, |packing| format!(": {packing}"));
            add(Severity::Warning, "capture", *frame, format!("{error}{why}"));
        }
        // If the file ends before the capture begins, the error says so.
        (_, Some(packing)) if summary.has_begun => {
            let text = format!("{packing}: what follows frame {} is missing", summary.frames);
            add(Severity::Warning, "capture", summary.frames, text);
        }
        _ => {}
    }
    let Unread { frames, first_frame, numbers } = &summary.unread;
    if *frames > 0 {
        let links: Vec<_> = numbers.iter().map(|number| link_name(*number)).collect();
        let text = format!(
            "not read for their link type: {frames} of {}, {}",
            figures::plural(summary.frames, "frame"),
            links.join(", ")
        );
        add(Severity::Note, "capture", *first_frame, text);
    }
}

pub(crate) fn about_file(
    plan: &Plan,
    summary: &Summary,
    error: Option<&CaptureError>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, rule, frame, text| {
        findings.push(Finding::of(severity, rule, frame, text));
    };
    about_missing(summary, error, &mut add);
    if summary.cut > 0 {
        let text = format!(
            "payload was cut: of {} of {} frames only the first bytes were captured ({} bytes at most, the \
             snap length): their segments are left out",
            summary.cut, summary.frames, summary.cut_len_max
        );
        add(Severity::Warning, "capture", summary.first_cut, text);
    }
    if summary.copies > 0 {
        let text = format!(
            "captured more than once, at several places on their way or on several interfaces: {}, each \
             used once, as first captured",
            figures::plural(summary.copies, "frame")
        );
        add(Severity::Note, "capture", summary.first_copy, text);
    }
    about_clock(&summary.clock, &mut add);
    if plan.checksums_ignored {
        let text = "most TCP checksums are wrong: all were ignored".to_owned();
        add(Severity::Note, CHECKSUM, 0, text);
    }
    if let Some(first) = plan.left_out.first() {
        let text = format!(
            "{} with a wrong checksum left out, as their receiver drops them",
            figures::plural(plan.left_out.len() as u64, "segment")
        );
        add(Severity::Note, CHECKSUM, *first, text);
    }
    if plan.used_although_wrong > 0 {
        let text = format!(
            "{} with a wrong checksum never came again: taken as captured",
            figures::plural(plan.used_although_wrong, "segment")
        );
        add(Severity::Note, CHECKSUM, 0, text);
    }
    if plan.unjudged > 0 {
        let text = format!(
            "{} more segments with a wrong checksum are used as captured: only {DAMAGED_MAX} are \
             examined",
            plan.unjudged
        );
        add(Severity::Warning, LIMITS, 0, text);
    }
    findings
}
