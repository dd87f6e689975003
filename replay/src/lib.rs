//! Replay: captured frames through the receive code, one passive endpoint for each direction.
//!
//! Each step is a room: `read`, `observe`, `judge`, `report`, `draw`. A capture is read twice. The
//! first pass (`read/scan.rs`) finds the beginnings of streams and the damaged frames; the second
//! pass, in this file, replays. The engine's own code runs TCP, MPA, DDP and RDMAP. The observer
//! invents registered memory, and goes on after an error, so that it can report what follows.
//!
//! Memory is bounded for any capture by the limits in `limits.rs`. A finding says which limit was
//! reached. Each connection has a share that others cannot use up.
#![forbid(unsafe_code)]

mod draw;
pub mod figures;
mod judge;
mod limits;
pub mod live;
mod observe;
pub mod printable;
mod read;
pub mod report;
mod trace;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::iter::{Copied, Peekable};

use judge::file_findings::{CHECKSUM, about_file, is_cut_short};
use judge::findings::Listing;
use limits::{
    CONNECTIONS_MAX, CONNECTIONS_TOTAL_MAX, MARKS_MAX, MARKS_MIN, REPORTED_MPA_MAX,
    REPORTED_OTHERS_MAX,
};
use observe::connection::{Finished, ReplayedConnection};
use observe::direction::Shared;
use read::frames::{Capture, Frames, Summary};
use read::packet::{self, Segment};
use read::scan::{Connections, Ended, Plan};
use read::unpack::Unpacked;
use report::comments::spool::Spool;
use report::comments::{self, Comments};
use report::times::Times;
use report::{ConnectionReport, Finding, Severity};
use trace::ConnectionTrace;

pub use read::input;
pub use report::{FileReport, Report, Written, compare, page, text};

/// Replays the capture that `open` opens; `open` is called more than once.
pub fn replay<R: Read>(name: &str, open: impl FnMut() -> std::io::Result<R>) -> FileReport {
    replay_with(Options::default(), name, open).report
}

/// Replays a capture, and collects the data for pictures.
pub fn replay_pictured<R: Read>(
    name: &str,
    open: impl FnMut() -> std::io::Result<R>,
) -> PicturedFile {
    replay_with(Options { is_pictured: true, ..Options::default() }, name, open)
}

/// Options of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Collects data for pictures. The frames are replayed once more, by a receiver that places in
    /// order only: it holds what a stack without markers, or over an ordered TCP, would hold.
    pub is_pictured: bool,
    /// Limit on the bytes of a decompressed file; by default 1 GiB, or 64 times the file's length.
    pub unpacked_max: Option<u64>,
}

/// Replays a capture, with options.
pub fn replay_with<R: Read>(
    options: Options,
    name: &str,
    open: impl FnMut() -> std::io::Result<R>,
) -> PicturedFile {
    run(name, open, options, None)
}

/// Replays a capture, with options and with comments on the frames of iWARP connections.
///
/// # Errors
/// If there is no room for temporary files.
pub fn replay_commented<R: Read>(
    options: Options,
    name: &str,
    open: impl FnMut() -> std::io::Result<R>,
) -> std::io::Result<(PicturedFile, FrameComments)> {
    let unpacked_max = options.unpacked_max;
    let mut noted = FrameComments { spool: Spool::new()?, late: 0, unpacked_max, error: None };
    let file = run(name, open, options, Some(&mut noted));
    Ok((file, noted))
}

/// Comments on the frames of a capture.
#[derive(Debug)]
pub struct FrameComments {
    spool: Spool,
    late: u64,
    unpacked_max: Option<u64>,
    error: Option<std::io::Error>,
}

impl FrameComments {
    /// Copies the capture as pcapng, and adds comments to frames. All else is copied unchanged, but
    /// for the length of a section.
    ///
    /// # Errors
    /// If the capture cannot be read, or the output cannot be written.
    pub fn write(self, source: impl Read, sink: &mut impl Write) -> std::io::Result<Written> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let source = Unpacked::new(source, self.unpacked_max)?;
        let written = comments::write::copy(source, sink, &mut self.spool.read()?)?;
        Ok(Written { late: self.late, ..written })
    }

    fn put(&mut self, comment: (u64, String)) {
        if self.error.is_none() {
            self.error = self.spool.put(comment).err();
        }
    }
}

/// A replayed capture, with data for pictures of its longest connections.
#[derive(Debug)]
pub struct PicturedFile {
    /// The report of the replay.
    pub report: FileReport,
    pictured: Vec<Pictured>,
}

impl PicturedFile {
    /// Returns the report alone.
    #[must_use]
    pub fn into_report(self) -> FileReport {
        self.report
    }
}

impl PicturedFile {
    /// Number of connections with pictures.
    #[must_use]
    pub const fn pictured(&self) -> usize {
        self.pictured.len()
    }
}

impl From<FileReport> for PicturedFile {
    /// Wraps the report of a file without pictures.
    fn from(report: FileReport) -> Self {
        Self { report, pictured: Vec::new() }
    }
}

#[derive(Debug)]
struct Pictured {
    index: usize,
    trace: ConnectionTrace,
    in_order: Option<ConnectionTrace>,
}

fn run<R: Read>(
    name: &str,
    open: impl FnMut() -> std::io::Result<R>,
    Options { is_pictured, unpacked_max }: Options,
    commented: Option<&mut FrameComments>,
) -> PicturedFile {
    let mut capture = Capture::new(open, unpacked_max);
    let mut plan = Plan::of(&mut capture);
    let first_error = plan.error.take();
    let mut in_order = HashMap::new();
    if is_pictured {
        let mut replay = Replay::new(&plan, Way::InOrder);
        let _known_again = replay.read(&mut capture);
        in_order = replay.finish(name).1;
    }
    let way = if is_pictured { Way::Pictured } else { Way::Plain };
    let mut replay = Replay::new(&plan, way);
    replay.commented = commented.map(|noted| (Comments::default(), noted));
    let mut summary = replay.read(&mut capture);
    // A read error of the first pass may look like the end of the file in the second.
    let error = first_error.or_else(|| summary.error.take());
    let ordinals = replay.ordinals();
    let (mut report, traces) = replay.finish(name);
    report.frames = summary.frames;
    report.first_ns = summary.clock.first_ns;
    report.span_ns = summary.clock.span_ns();
    report.frames_copied = summary.copies;
    report.frames_corrupt = plan.left_out.len() as u64;
    report.findings.splice(0..0, about_file(&plan, &summary, error.as_ref()));
    report.error = error.filter(|error| !is_cut_short(error, &summary)).map(|error| {
        // The chain of causes in one line.
        let error = anyhow::Error::from(error);
        if summary.frames == 0 {
            format!("{error:#}")
        } else {
            format!("not read to its end: {error:#}")
        }
    });
    let mut pictured: Vec<Pictured> = traces
        .into_iter()
        .filter_map(|(ordinal, trace)| {
            let index = ordinals.binary_search(&ordinal).ok()?;
            Some(Pictured { index, trace, in_order: in_order.remove(&ordinal) })
        })
        .collect();
    pictured.sort_unstable_by_key(|one| one.index);
    for Pictured { index, trace, .. } in &pictured {
        let Some(connection) = report.connections.get_mut(*index) else { continue };
        let sides = trace.sides.iter().zip(&trace.answers);
        for (direction, (side, answers)) in connection.directions.iter_mut().zip(sides) {
            direction.times = Some(Times::of(side, answers));
        }
    }
    PicturedFile { report, pictured }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Pictured,
    InOrder,
}

struct Replay<'p> {
    way: Way,
    plan: &'p Plan,
    commented: Option<(Comments, &'p mut FrameComments)>,
    shared: Shared,
    known: Connections,
    connections: HashMap<usize, ReplayedConnection>,
    left_out: Peekable<Copied<std::slice::Iter<'p, u64>>>,
    listing: Listing,
    reports: Vec<(usize, ConnectionReport)>,
    reported: [usize; 2],
    /// Keyed by the number of the connection.
    traces: HashMap<usize, ConnectionTrace>,
    unlisted: u64,
    findings_unlisted: u64,
    errors: u64,
    skipped: u64,
}

impl<'p> Replay<'p> {
    fn new(plan: &'p Plan, way: Way) -> Self {
        Self {
            way,
            plan,
            commented: None,
            traces: HashMap::new(),
            shared: Shared::new(),
            known: Connections::default(),
            connections: HashMap::new(),
            left_out: plan.left_out.iter().copied().peekable(),
            listing: Listing::new(),
            reports: Vec::new(),
            reported: [0; 2],
            unlisted: 0,
            findings_unlisted: 0,
            errors: 0,
            skipped: 0,
        }
    }

    fn handle(&mut self, number: u64, segment: &Segment<'_>) {
        if self.left_out.next_if_eq(&number).is_some() {
            self.skipped += 1;
            self.comment_left_out(number, segment);
            return;
        }
        let is_trusted = self.plan.checksums_ignored || segment.checksum != packet::Checksum::Wrong;
        let Some(place) = self.known.find(number, segment, is_trusted) else { return };
        if let Some(Ended { ordinal, was_let_go }) = place.ended {
            self.end(ordinal, was_let_go);
        }
        let connection = self.connections.entry(place.ordinal).or_insert_with(|| {
            // If a file changes between the passes, only the report suffers.
            let plan = self.plan.connections.get(place.ordinal).copied().unwrap_or_default();
            let ends = [segment.source, segment.target];
            let mut connection = ReplayedConnection::new(ends, plan, number, self.listing.clone());
            if self.way != Way::Plain
                && let Some(extent) = self.plan.pictured.get(&place.ordinal)
            {
                let marks_max = MARKS_MAX * 4 / self.plan.pictured.len();
                connection.trace(extent, marks_max.clamp(MARKS_MIN, MARKS_MAX));
            }
            if self.way == Way::InOrder {
                connection.place_in_order();
            }
            if let Some((comments, _)) = &self.commented {
                connection.comment(comments);
            }
            connection
        });
        connection.handle(place.side, segment, number, &mut self.shared);
        if let Some((comments, noted)) = &mut self.commented {
            while let Some(comment) = comments.overflow() {
                noted.put(comment);
            }
        }
    }

    fn comment_left_out(&mut self, number: u64, segment: &Segment<'_>) {
        let Some((comments, _)) = &self.commented else { return };
        let place = self.known.find(number, segment, false);
        let connection = place.and_then(|place| self.connections.get(&place.ordinal));
        if connection.is_some_and(ReplayedConnection::is_mpa) {
            let text = "wrong checksum: left out, as its receiver drops it";
            comments.finding(number, Severity::Note, CHECKSUM, text);
        }
    }

    fn end(&mut self, ordinal: usize, was_let_go: bool) {
        let Some(mut connection) = self.connections.remove(&ordinal) else { return };
        if was_let_go {
            connection.let_go();
        }
        let Finished { report, errors, unlisted, trace } = connection.finish(&mut self.shared);
        self.errors += errors;
        if let Some(trace) = trace {
            self.traces.insert(ordinal, trace);
        }
        let is_mpa = usize::from(report.is_iwarp());
        if self.reported[is_mpa] < [REPORTED_OTHERS_MAX, REPORTED_MPA_MAX][is_mpa] {
            self.reported[is_mpa] += 1;
            self.findings_unlisted += unlisted;
            self.reports.push((ordinal, report));
        } else {
            self.unlisted += 1;
            self.listing.give(&report.findings);
        }
    }

    fn read(&mut self, frames: &mut dyn Frames) -> Summary {
        let summary = frames.for_each(&mut |number, segment| match segment {
            Some(segment) => self.handle(number, &segment),
            None => self.skipped += 1,
        });
        let mut rest: Vec<usize> = self.connections.keys().copied().collect();
        rest.sort_unstable();
        for ordinal in rest {
            self.end(ordinal, false);
        }
        self.reports.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        if let Some((comments, noted)) = &mut self.commented {
            while let Some(comment) = comments.first() {
                noted.put(comment);
            }
            noted.late = comments.late();
        }
        summary
    }

    fn ordinals(&self) -> Vec<usize> {
        self.reports.iter().map(|(ordinal, _)| *ordinal).collect()
    }

    /// Includes reached limits; returns the data for pictures by connection number.
    fn finish(self, name: &str) -> (FileReport, HashMap<usize, ConnectionTrace>) {
        let findings = self.about_limits();
        let report = FileReport {
            file: name.to_owned(),
            frames_skipped: self.skipped,
            connections: self.reports.into_iter().map(|(_, report)| report).collect(),
            connections_unlisted: self.unlisted,
            errors: self.errors,
            findings,
            ..FileReport::default()
        };
        (report, self.traces)
    }

    fn about_limits(&self) -> Vec<Finding> {
        let Connections { let_go, beyond, .. } = self.known;
        let told = [
            (
                let_go,
                format!(
                    "{let_go} connections were evicted for others, the longest idle ones first: \
                 {CONNECTIONS_MAX} are followed at a time"
                ),
            ),
            (
                beyond,
                format!(
                    "{beyond} segments of further connections are left out: {CONNECTIONS_TOTAL_MAX} \
                 are followed in one file"
                ),
            ),
            (self.unlisted, format!("{} more connections are not listed", self.unlisted)),
            (
                self.findings_unlisted,
                format!("{} more findings are not listed", self.findings_unlisted),
            ),
        ];
        let told = told.into_iter().filter(|(count, _)| *count > 0);
        told.map(|(_, text)| Finding::of(Severity::Warning, LIMITS, 0, text)).collect()
    }
}

const LIMITS: &str = "limits of replay";

#[cfg(test)]
mod tests;
