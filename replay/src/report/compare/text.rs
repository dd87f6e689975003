//! A comparison as tables, with the rows that the page also has.

use std::fmt::{self, Write};

use super::{ComparedDirection, Comparison};
use crate::draw::{octets, rate, time};
use crate::figures::{count, share};
use crate::printable::printable;
use crate::report::text::{table, write_table};
use crate::report::times::Spread;

/// Writes a table for each direction, with a column for each of the two connections.
#[must_use]
pub fn text(comparison: &Comparison<'_>) -> String {
    let mut out = String::new();
    write(&mut out, comparison).expect("writing to a string does not fail");
    out
}

fn write(out: &mut String, comparison: &Comparison<'_>) -> fmt::Result {
    let [a, b] = comparison.names();
    for (index, from) in FROM.into_iter().enumerate() {
        writeln!(out, "from the {from}")?;
        let mut lines = table(&["", &printable(&a), &printable(&b)]);
        for (name, cells) in rows(comparison, index) {
            let [a, b] = cells;
            lines.add_row([name.to_owned(), a, b]);
        }
        write_table(out, &lines)?;
    }
    Ok(())
}

/// A name and two cells, empty if there is no such direction.
pub(super) fn rows(
    comparison: &Comparison<'_>,
    index: usize,
) -> impl Iterator<Item = (&'static str, [String; 2])> {
    let directions = comparison.compared.each_ref().map(|one| one.directions.get(index));
    ROWS.into_iter()
        .map(move |(name, show)| (name, directions.map(|one| one.map_or_else(String::new, show))))
}

fn spread(delays: Spread) -> String {
    if delays.count == 0 {
        return "–".to_owned();
    }
    let Spread { p50_ns, p99_ns, max_ns, .. } = delays;
    format!("{} / {} / {}", time(p50_ns), time(p99_ns), time(max_ns))
}

pub(super) const FROM: [&str; 2] = ["initiator", "responder"];

type Row = (&'static str, fn(&ComparedDirection) -> String);

const ROWS: [Row; 14] = [
    ("bytes sent", |one| octets(one.bytes_sent)),
    ("within", |one| time(one.span_ns)),
    ("rate", |one| rate(one.bits_per_second)),
    ("data segments", |one| count(one.segments)),
    ("  aligned with FPDUs", |one| share(one.segments_aligned, one.segments_judged)),
    ("  out of order", |one| share(one.segments_out_of_order, one.segments)),
    ("  retransmitted", |one| share(one.segments_retransmitted, one.segments)),
    ("FPDUs", |one| count(one.fpdus)),
    ("  placed ahead of a gap", |one| share(one.fpdus_placed_ahead, one.fpdus)),
    ("held at most", |one| octets(one.bytes_held_peak)),
    ("wait for placement: 50 % / 99 % / most", |one| spread(one.times.placement)),
    ("wait for delivery: 50 % / 99 % / most", |one| spread(one.times.delivery)),
    ("Reads: 50 % / 99 % / most", |one| spread(one.times.reads)),
    ("round trips: 50 % / 99 % / most", |one| spread(one.times.round_trips)),
];
