//! Comparison of two captures, or of one with two receivers: figures for text, JSON and page.

mod page;
mod text;

use serde::Serialize;

use crate::report::DirectionReport;
use crate::report::times::Times;
use crate::trace::{Class, ConnectionTrace, SideTrace};
use crate::{Pictured, PicturedFile};

pub use page::page;
pub use text::text;

/// Two connections, or one with two receivers.
#[derive(Debug, Serialize)]
pub struct Comparison<'a> {
    /// Compared connections.
    pub compared: [Compared; 2],
    #[serde(skip)]
    traces: [Traces<'a>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Traces<'a> {
    trace: &'a ConnectionTrace,
    in_order: Option<&'a ConnectionTrace>,
}

/// The longest connection of a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The capture.
    pub file: String,
    /// Order of placement: `as it comes`, or `in order`.
    pub placed: &'static str,
    /// The end that sent the MPA Request.
    pub initiator: String,
    /// The other end.
    pub responder: String,
    /// Segments of the initiator, then of the responder.
    pub directions: Vec<ComparedDirection>,
}

/// Data of one end, as sent.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedDirection {
    /// `initiator` or `responder`.
    pub from: &'static str,
    /// Bytes in data segments, including retransmissions.
    pub bytes_sent: u64,
    /// From the first frame of the connection to its last.
    pub span_ns: u64,
    /// `bytes_sent` in `span_ns`.
    pub bits_per_second: u64,
    /// Data segments.
    pub segments: u64,
    /// Segments in full operation with a known position among FPDUs.
    pub segments_judged: u64,
    /// Judged segments with whole FPDUs only.
    pub segments_aligned: u64,
    /// Data segments ahead of missing bytes.
    pub segments_out_of_order: u64,
    /// Retransmitted data segments.
    pub segments_retransmitted: u64,
    /// FPDUs that were placed.
    pub fpdus: u64,
    /// FPDUs placed ahead of a gap.
    pub fpdus_placed_ahead: u64,
    /// Most bytes that waited at a time.
    pub bytes_held_peak: u64,
    /// Durations.
    #[serde(flatten)]
    pub times: Times,
}

/// Compares the longest connections of two captures, or of one: as the engine placed it, and as a
/// receiver would in order only.
///
/// # Errors
/// A sentence, if there are neither one nor two files, or one of them has no iWARP connection.
pub fn of(files: &[PicturedFile]) -> Result<Comparison<'_>, String> {
    let chosen = files.iter().map(longest).collect::<Result<Vec<_>, _>>()?;
    let own = |one: &Chosen<'_>| Compared::of(one, &one.1.trace, AS_IT_COMES);
    match chosen.as_slice() {
        [one] => {
            let in_order =
                one.1.in_order.as_ref().ok_or("the capture changed while it was read")?;
            let other = Traces { trace: in_order, in_order: None };
            Ok(Comparison {
                compared: [own(one), Compared::of(one, in_order, "in order")],
                traces: [Traces { in_order: None, ..Traces::of(*one) }, other],
            })
        }
        [first, second] => Ok(Comparison {
            compared: [own(first), own(second)],
            traces: [Traces::of(*first), Traces::of(*second)],
        }),
        _ => Err(format!("one or two captures can be compared, not {}", files.len())),
    }
}

type Chosen<'a> = (&'a PicturedFile, &'a Pictured);

fn longest(file: &PicturedFile) -> Result<Chosen<'_>, String> {
    let octets = |one: &&Pictured| one.trace.sides.iter().map(|side| side.canvas.len).sum::<u64>();
    let found = file.pictured.iter().max_by_key(octets);
    let found = found.map(|one| (file, one));
    found.ok_or_else(|| format!("{}: no iWARP connection to compare", file.report.file))
}

impl<'a> Traces<'a> {
    fn of((_, one): Chosen<'a>) -> Self {
        Self { trace: &one.trace, in_order: one.in_order.as_ref() }
    }
}

impl Compared {
    fn of((file, one): &Chosen<'_>, trace: &ConnectionTrace, placed: &'static str) -> Self {
        let report = &file.report;
        let connection = report.connections.get(one.index);
        let end = |of: fn(&crate::report::ConnectionReport) -> &String| {
            connection.map_or_else(String::new, |connection| of(connection).clone())
        };
        let directions = connection.map_or(&[][..], |connection| &connection.directions);
        let sides = directions.iter().zip(&trace.sides).zip(&trace.answers);
        Self {
            file: report.file.clone(),
            placed,
            initiator: end(|one| &one.initiator),
            responder: end(|one| &one.responder),
            directions: sides
                .map(|((report, side), answers)| {
                    ComparedDirection::of(report, side, Times::of(side, answers))
                })
                .collect(),
        }
    }
}

impl Comparison<'_> {
    fn names(&self) -> [String; 2] {
        let [a, b] = &self.compared;
        if a.placed == b.placed {
            [a.file.clone(), b.file.clone()]
        } else {
            [a, b].map(|one| format!("placed {}", one.placed))
        }
    }
}

impl ComparedDirection {
    fn of(report: &DirectionReport, side: &SideTrace, times: Times) -> Self {
        let bytes_sent = report.bytes_sent;
        let span_ns = side.canvas.span_ns();
        let bits = u128::from(bytes_sent) * 8_000_000_000 / u128::from(span_ns.max(1));
        Self {
            from: report.from,
            bytes_sent,
            span_ns,
            bits_per_second: u64::try_from(bits).unwrap_or(u64::MAX),
            segments: report.segments,
            segments_judged: report.segments_judged,
            segments_aligned: report.segments_aligned,
            segments_out_of_order: report.segments_out_of_order,
            segments_retransmitted: report.segments_retransmitted,
            fpdus: side.placement.count(),
            fpdus_placed_ahead: side.of(Class::Ahead).count(),
            bytes_held_peak: side.held_peak,
            times,
        }
    }
}

const AS_IT_COMES: &str = "as it comes";
