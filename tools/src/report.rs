//! Output of results: a table for people, JSON for programs, both from one struct.

use std::io::{self, BufWriter, Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
pub(crate) use urnic_replay::figures::{count, share};
use urnic_replay::printable::printable;

/// Makes a table in the style of all reports: all columns but the first are aligned to the right.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().enumerate().map(|(column, text)| align(column, (*text).into())));
    table
}

pub(crate) fn row<const N: usize>(table: &mut Table, cells: [String; N]) {
    table.add_row(cells.into_iter().enumerate().map(|(column, text)| align(column, text)));
}

fn align(column: usize, text: String) -> Cell {
    let side = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new_owned(text).set_alignment(side)
}

/// The source is hidden, because the reason is part of the text.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {0}")]
struct Unwritten(io::Error);

fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Unwritten(error))
}

/// Prints with a line feed, and in ASCII if the locale has nothing else.
pub(crate) fn print(text: &str) -> io::Result<()> {
    if is_ascii_locale() { print_as_it_is(&ascii(text)) } else { print_as_it_is(text) }
}

/// Returns false if no locale is set: UTF-8 is assumed.
fn is_ascii_locale() -> bool {
    let mut names = ["LC_ALL", "LC_CTYPE", "LANG"].iter().filter_map(std::env::var_os);
    names.find(|name| !name.is_empty()).is_some_and(|name| name == "C" || name == "POSIX")
}

/// Names of files lose the same characters; `--json` has them.
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

/// The reader of the report has closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|error| {
        error.kind() == io::ErrorKind::BrokenPipe
            && error.get_ref().is_some_and(|inner| inner.is::<Unwritten>())
    })
}

/// Indented.
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

pub(crate) fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    print_as_it_is(&serde_json::to_string(&Versioned { schema: SCHEMA, value })?)
}

/// Version of the meaning of all JSON fields (`docs/json.md`). New fields keep the number.
const SCHEMA: u32 = 3;

#[derive(Serialize)]
struct Versioned<'a, T: Serialize> {
    schema: u32,
    #[serde(flatten)]
    value: &'a T,
}

#[derive(Serialize)]
struct Failure<'a> {
    error: &'a str,
    exit_status: u8,
}

pub(crate) fn fail_as_json(text: &str, exit_status: u8) {
    let lines: Vec<String> = text.trim_end().lines().map(printable).collect();
    let _unheard = print_json(&Failure { error: &lines.join("\n"), exit_status });
}

/// Prints an error. If that fails, only the exit status shows it.
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
