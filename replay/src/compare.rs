//! Two captures side by side, or one under two receivers.

use std::fmt::{self, Write};

use crate::figures::{count, share};
use crate::picture::{octets, rate, time};
use crate::report::DirectionReport;
use crate::text::{table, write_table};
use crate::trace::delays::Delays;
use crate::trace::{Class, ConnectionTrace, Fit, SideTrace};
use crate::{Pictured, PicturedFile};

/// The longest connections of two captures, a column each. Of a single one: as the engine placed it,
/// and as a receiver would have that places in order only.
///
/// # Errors
/// When there are neither one nor two files, or one of them has no iWARP connection: a sentence.
pub fn of(files: &[PicturedFile]) -> Result<String, String> {
    let chosen = files.iter().map(longest).collect::<Result<Vec<_>, _>>()?;
    let mut out = String::new();
    let written = match *chosen.as_slice() {
        [one] => {
            let in_order =
                one.1.in_order.as_ref().ok_or("the capture changed while it was read")?;
            let receivers = [("placed as it comes", &one.1.trace), ("placed in order", in_order)];
            let directions = directions_of(one);
            write_sides(&mut out, receivers.map(|(name, trace)| (name, directions, trace)))
        }
        [first, second] => write_sides(&mut out, [column(first), column(second)]),
        _ => return Err(format!("one or two captures can be compared, not {}", files.len())),
    };
    written.expect("writing to a string does not fail");
    Ok(out)
}

/// The connection with the most octets.
fn longest(file: &PicturedFile) -> Result<Chosen<'_>, String> {
    let octets = |one: &&Pictured| one.trace.sides.iter().map(|side| side.canvas.len).sum::<u64>();
    let found = file.pictured.iter().max_by_key(octets);
    let found = found.map(|one| (file, one));
    found.ok_or_else(|| format!("{}: no iWARP connection to compare", file.report.file))
}

/// A connection of a file.
type Chosen<'a> = (&'a PicturedFile, &'a Pictured);
/// A name, what was counted of both directions, and what was noted.
type Compared<'a> = (&'a str, &'a [DirectionReport], &'a ConnectionTrace);

fn column<'a>(one: Chosen<'a>) -> Compared<'a> {
    (&one.0.report.file, directions_of(one), &one.1.trace)
}

fn directions_of((file, one): Chosen<'_>) -> &[DirectionReport] {
    file.report.connections.get(one.index).map_or(&[], |connection| &connection.directions)
}

fn write_sides(out: &mut String, compared: [Compared<'_>; 2]) -> fmt::Result {
    for (index, from) in ["initiator", "responder"].into_iter().enumerate() {
        let columns = compared.map(|(name, directions, trace)| Column {
            name,
            report: directions.get(index),
            side: &trace.sides[index],
            reads: &trace.reads[index],
        });
        writeln!(out, "from the {from}")?;
        let [a, b] = &columns;
        let mut lines = table(&["", a.name, b.name]);
        for (name, show) in ROWS {
            lines.add_row([name.to_owned(), show(a), show(b)]);
        }
        write_table(out, &lines)?;
    }
    Ok(())
}

/// One side of one capture.
struct Column<'a> {
    name: &'a str,
    report: Option<&'a DirectionReport>,
    side: &'a SideTrace,
    reads: &'a Delays,
}

impl Column<'_> {
    fn bytes(&self) -> u64 {
        self.side.bins.bins.iter().map(|bin| bin.octets + bin.octets_again).sum()
    }

    fn counted(&self, value: fn(&DirectionReport) -> u64) -> String {
        self.report.map_or_else(String::new, |report| count(value(report)))
    }

    fn part(
        &self,
        part: fn(&DirectionReport) -> u64,
        whole: fn(&DirectionReport) -> u64,
    ) -> String {
        self.report.map_or_else(String::new, |report| share(part(report), whole(report)))
    }
}

/// Half, nearly all, and the longest.
fn spread(delays: &Delays) -> String {
    if delays.count() == 0 {
        return "–".to_owned();
    }
    let [half, most] = [500, 990].map(|part| time(delays.quantile(part)));
    format!("{half} / {most} / {}", time(delays.max_ns()))
}

/// A row: its name and its cells.
type Row = (&'static str, fn(&Column<'_>) -> String);

const ROWS: [Row; 14] = [
    ("octets sent", |one| octets(one.bytes())),
    ("within", |one| time(one.side.canvas.span_ns())),
    ("rate", |one| {
        let bits = u128::from(one.bytes()) * 8_000_000_000 / u128::from(one.side.canvas.span_ns());
        rate(u64::try_from(bits).unwrap_or(u64::MAX))
    }),
    ("data segments", |one| one.counted(|report| report.segments)),
    ("  aligned with FPDUs", |one| {
        let fits =
            [Fit::Aligned, Fit::Unaligned, Fit::CrcAlone].map(|fit| one.side.fits(fit).count());
        share(fits[0], fits.iter().sum())
    }),
    ("  out of order", |one| {
        one.part(|report| report.segments_out_of_order, |report| report.segments)
    }),
    ("  sent again", |one| {
        one.part(|report| report.segments_retransmitted, |report| report.segments)
    }),
    ("FPDUs", |one| count(one.side.placement.count())),
    ("  placed ahead of a gap", |one| {
        share(one.side.of(Class::Ahead).count(), one.side.placement.count())
    }),
    ("held at most", |one| octets(one.side.held_peak)),
    ("wait for placement: 50 % / 99 % / most", |one| spread(&one.side.placement)),
    ("wait for delivery: 50 % / 99 % / most", |one| spread(&one.side.delivery)),
    ("Reads: 50 % / 99 % / most", |one| spread(one.reads)),
    ("round trips: 50 % / 99 % / most", |one| spread(&one.side.rtt)),
];
