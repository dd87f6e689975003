//! Output of results: a table for people, JSON for programs, both from one struct.

use std::io::{self, BufWriter, Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
pub(crate) use urnic_replay::figures::{count, share};
use urnic_replay::printable::printable;

/// Creates an empty table in the style of all reports: `header` names its columns, all but the
/// first aligned to the right.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().enumerate().map(|(column, text)| align(column, (*text).into())));
    table
}

/// Adds a row to a table made by [`table`].
pub(crate) fn row<const N: usize>(table: &mut Table, cells: [String; N]) {
    table.add_row(cells.into_iter().enumerate().map(|(column, text)| align(column, text)));
}

fn align(column: usize, text: String) -> Cell {
    let side = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new_owned(text).set_alignment(side)
}

/// Error of a report that could not be written. Its source is hidden, because the reason is part of
/// the text.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {0}")]
struct Unwritten(io::Error);

/// Names the output that could not be written.
fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Unwritten(error))
}

/// Writes `text` and a line feed to standard output, in ASCII if the locale has nothing else.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn print(text: &str) -> io::Result<()> {
    if is_ascii_locale() { print_as_it_is(&ascii(text)) } else { print_as_it_is(text) }
}

/// Returns true in the locales C and POSIX; if no locale is set, UTF-8 is assumed.
fn is_ascii_locale() -> bool {
    let mut names = ["LC_ALL", "LC_CTYPE", "LANG"].iter().filter_map(std::env::var_os);
    names.find(|name| !name.is_empty()).is_some_and(|name| name == "C" || name == "POSIX")
}

/// Replaces the characters of tables, units and bars by ASCII. Names of files lose the same
/// characters; `--json` has them.
fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '─' | '╌' | '–' => plain.push('-'),
            '═' => plain.push('='),
            '│' | '┆' => plain.push('|'),
            '┌' | '┬' | '┐' | '├' | '┼' | '┤' | '└' | '┴' | '┘' | '╞' | '╪' | '╡' => {
                plain.push('+')
            }
            '█' | '▉' | '▊' | '▋' | '▌' => plain.push('#'),
            '▍' | '▎' | '▏' => plain.push('.'),
            'µ' => plain.push('u'),
            '\u{a0}' | '\u{202f}' => plain.push(' '),
            '→' => plain.push_str("->"),
            '…' => plain.push_str("..."),
            other => plain.push(other),
        }
    }
    plain
}

fn print_as_it_is(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut write = || {
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()
    };
    write().map_err(named)
}

/// Returns true if a report was not written because its reader has closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|error| {
        error.kind() == io::ErrorKind::BrokenPipe
            && error.get_ref().is_some_and(|inner| inner.is::<Unwritten>())
    })
}

/// Writes `value` as indented JSON to standard output.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    // Without a string in between: a report can be long.
    let mut out = BufWriter::new(io::stdout().lock());
    let mut write = || {
        serde_json::to_writer_pretty(&mut out, &Versioned { schema: SCHEMA, value })?;
        out.write_all(b"\n")?;
        out.flush()
    };
    write().map_err(named)
}

/// Writes `value` as JSON on one line to standard output.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    print_as_it_is(&serde_json::to_string(&Versioned { schema: SCHEMA, value })?)
}

/// Version of the meaning of all JSON fields (`docs/json.md`): it changes when a field is removed
/// or changes its meaning. New fields keep the number.
const SCHEMA: u32 = 3;

/// A report with the version of its fields.
#[derive(Serialize)]
struct Versioned<'a, T: Serialize> {
    schema: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// Reason why a command failed, for programs.
#[derive(Serialize)]
struct Failure<'a> {
    error: &'a str,
    exit_status: u8,
}

/// Writes to standard output, as JSON, the reason why a command failed.
pub(crate) fn fail_as_json(text: &str, exit_status: u8) {
    let lines: Vec<String> = text.trim_end().lines().map(printable).collect();
    let _unheard = print_json(&Failure { error: &lines.join("\n"), exit_status });
}

/// Writes an error to standard error. If that fails, only the exit status shows the error.
///
/// Names that a peer chose can be part of any error: control characters are replaced, line by line.
pub(crate) fn complain(text: &str) {
    let lines: Vec<String> = text.lines().map(printable).collect();
    let _unheard = writeln!(io::stderr(), "urnic: {}", lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_of_a_table_has_one_of_ascii() {
        let mut table = table(&["", "here", "server"]);
        row(&mut table, ["20.5 µs".into(), count(1_234_567), "–".into()]);
        row(&mut table, ["█▉▊▋▌▍▎▏".into(), "a → b…".into(), String::new()]);
        let plain = ascii(&table.to_string());
        assert!(plain.is_ascii(), "{plain}");
        assert_eq!(plain.lines().count(), table.to_string().lines().count());
        assert!(plain.contains("20.5 us") && plain.contains("#####..."), "{plain}");
        assert_eq!(ascii("größer.txt"), "größer.txt", "a name stays");
    }
}
