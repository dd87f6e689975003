//! The report as tables.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::draw::{octets, rate, time};
use crate::figures::{count, plural, share};
use crate::printable::printable;
use crate::report::{
    ConnectionReport, DirectionReport, FileReport, Finding, MpaReport, Report, Severity,
};

/// The report of all files.
pub fn of(report: &Report) -> String {
    let mut out = String::new();
    for file in &report.files {
        write_file(&mut out, file).expect("writing to a string does not fail");
    }
    out
}

fn write_file(out: &mut String, file: &FileReport) -> fmt::Result {
    let (name, frames) = (printable(&file.file), plural(file.frames, "frame"));
    write!(out, "{name}: {frames}, {} skipped", count(file.frames_skipped))?;
    match file.span_ns {
        0 => writeln!(out)?,
        span => writeln!(out, ", in {}", time(span))?,
    }
    // Standard error names a file that could not be read at all.
    if let Some(error) = file.error.as_ref().filter(|_| file.frames > 0) {
        writeln!(out, "  error: {}", printable(error))?;
    }
    write_findings(out, &file.findings)?;
    for connection in file.connections.iter().filter(|one| one.is_iwarp()) {
        write_connection(out, connection, file.first_ns)?;
    }
    let others: Vec<_> = file.connections.iter().filter(|one| !one.is_iwarp()).collect();
    if !others.is_empty() {
        let others = plural(others.len() as u64, "connection");
        writeln!(out, "\n  {others} without an MPA Request:")?;
    }
    for connection in others.iter().take(LISTED_MAX) {
        let segments: u64 = connection.directions.iter().map(|one| one.segments).sum();
        writeln!(
            out,
            "  {} → {}: {}",
            connection.initiator,
            connection.responder,
            plural(segments, "data segment")
        )?;
        write_findings(out, &connection.findings)?;
    }
    if others.len() > LISTED_MAX {
        writeln!(out, "  … and {} more", others.len() - LISTED_MAX)?;
    }
    writeln!(out)
}

fn write_connection(
    out: &mut String,
    connection: &ConnectionReport,
    first_ns: Option<u64>,
) -> fmt::Result {
    writeln!(out, "\n  {} → {}", connection.initiator, connection.responder)?;
    if let Some((begun, first)) = connection.first_ns.zip(first_ns) {
        match begun.saturating_sub(first) {
            0 => write!(out, "  begins with the capture")?,
            later => write!(out, "  begins {} into the capture", time(later))?,
        }
        write!(out, ", data for {}", time(connection.span_ns))?;
        if let Some(handshake) = connection.handshake_ns {
            write!(out, ", handshake {}", time(handshake))?;
        }
        writeln!(out)?;
    }
    if let Some(mpa) = &connection.mpa {
        writeln!(out, "  {}", startup_line(mpa))?;
    }
    write_table(out, &counters_table(connection))?;
    for direction in &connection.directions {
        if let Some(profile) = direction.profile {
            writeln!(out, "  {}: peer profile {profile}", direction.from)?;
        }
        for terminate in &direction.terminate {
            writeln!(
                out,
                "  {} sent Terminate {}/{}/{:02X}: {}{}",
                direction.from,
                terminate.layer,
                terminate.etype,
                terminate.code,
                terminate.text,
                terminate.about.as_ref().map_or(String::new(), |about| format!(", about {about}"))
            )?;
        }
    }
    for (index, direction) in connection.directions.iter().enumerate() {
        if direction.bytes_placed > 0 && connection.is_refused_memory(index) {
            writeln!(
                out,
                "  {}: bytes placed were placed, or would have been, had all their memory been registered",
                direction.from
            )?;
        }
    }
    if connection.directions.iter().any(|direction| !direction.buffers.is_empty()) {
        write_table(out, &buffers_table(&connection.directions))?;
    }
    if connection.findings.is_empty() {
        return writeln!(out, "  no findings");
    }
    write_findings(out, &connection.findings)
}

pub(crate) fn startup_line(mpa: &MpaReport) -> String {
    let answer = match mpa.accepted {
        Some(true) => "accepted",
        Some(false) => "rejected",
        None => "no reply",
    };
    let markers = match (mpa.markers.to_initiator, mpa.markers.to_responder) {
        (false, false) => "no markers",
        (true, false) => "markers to the initiator",
        (false, true) => "markers to the responder",
        (true, true) => "markers both ways",
    };
    let crc = if mpa.crc { "CRC" } else { "no CRC" };
    let mut line = format!("MPA revision {}, {answer}, {crc}, {markers}", mpa.revision);
    let mut add = |what: fmt::Arguments<'_>| {
        line.write_fmt(what).expect("writing to a string does not fail");
    };
    if let (Some(ird), Some(ord)) = (mpa.ird, mpa.ord) {
        add(format_args!(", IRD {ird} ORD {ord}"));
    }
    if let (Some(ird), Some(ord)) = (mpa.responder_ird, mpa.responder_ord) {
        add(format_args!(" answered by IRD {ird} ORD {ord}"));
    }
    if mpa.peer_to_peer {
        add(format_args!(", peer to peer"));
    }
    let [of_initiator, of_responder] = &mpa.private_texts;
    for (who, data, text) in [
        ("initiator", &mpa.initiator_private_data, of_initiator),
        ("responder", &mpa.responder_private_data, of_responder),
    ] {
        match text {
            Some(text) => add(format_args!("; private data of the {who}: {text:?}")),
            None if data.is_empty() => {}
            None => add(format_args!("; private data of the {who}: {data}")),
        }
    }
    line
}

fn counters_table(connection: &ConnectionReport) -> Table {
    let directions = &connection.directions;
    let from = directions.iter().map(|one| format!("from {}", one.from));
    let header: Vec<String> = std::iter::once(String::new()).chain(from).collect();
    let mut table = table(&header.iter().map(String::as_str).collect::<Vec<_>>());
    let rates = directions.iter().map(|one| match one.bytes_sent {
        0 => "–".to_owned(),
        _ => connection.bits_per_second(one).map_or_else(|| "–".to_owned(), rate),
    });
    let rows: [Row; 19] = [
        ("bytes sent", |one| count(one.bytes_sent)),
        ("MSS of the other end", |one| {
            one.mss.map_or_else(|| "–".to_owned(), |mss| count(mss.into()))
        }),
        ("window of the other end, at most", |one| {
            one.window_max.map_or_else(|| "–".to_owned(), octets)
        }),
        ("data segments", |one| count(one.segments)),
        ("  in full operation, judged", |one| count(one.segments_judged)),
        ("    aligned with FPDUs", |one| part(one.segments_aligned, one.segments_judged)),
        ("  out of order", |one| part(one.segments_out_of_order, one.segments)),
        ("  retransmitted", |one| part(one.segments_retransmitted, one.segments)),
        ("FPDUs", |one| count(one.fpdus)),
        ("  found by a marker", |one| part(one.fpdus_by_marker, one.fpdus)),
        ("  out of order", |one| part(one.fpdus_out_of_order, one.fpdus)),
        ("CRCs right", |one| count(one.crc_good)),
        ("CRCs wrong", |one| count(one.crc_bad)),
        ("markers", |one| count(one.markers)),
        ("  wrong", |one| count(one.marker_errors)),
        ("bytes placed", |one| count(one.bytes_placed)),
        ("  out of order", |one| part(one.bytes_placed_out_of_order, one.bytes_placed)),
        ("bytes held, at most", |one| count(one.bytes_held_peak)),
        ("messages", |one| count(one.messages.values().sum())),
    ];
    table.add_row(std::iter::once("rate on average".to_owned()).chain(rates));
    for (name, show) in rows {
        table.add_row(std::iter::once(name.to_owned()).chain(directions.iter().map(show)));
    }
    let opcodes: BTreeSet<_> =
        directions.iter().flat_map(|one| one.fpdus_by_opcode.keys()).collect();
    for opcode in opcodes {
        let counts = directions.iter().map(|one| {
            let messages = one.messages.get(opcode).copied().unwrap_or(0);
            match one.fpdus_by_opcode.get(opcode).copied().unwrap_or(0) {
                fpdus if fpdus == messages => count(fpdus),
                fpdus => format!("{} in {} FPDUs", count(messages), count(fpdus)),
            }
        });
        table.add_row(std::iter::once(format!("  {opcode}")).chain(counts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    table
}

/// Omits the share if the count is zero.
fn part(number: u64, whole: u64) -> String {
    if number == 0 { count(0) } else { format!("{} ({})", count(number), share(number, whole)) }
}

fn buffers_table(directions: &[DirectionReport]) -> Table {
    let mut table = table(&["written by", "STag", "first offset", "bytes", "SHA-256"]);
    let buffers = directions
        .iter()
        .flat_map(|direction| direction.buffers.iter().map(move |buffer| (direction.from, buffer)));
    let total = buffers.clone().count();
    for (from, buffer) in buffers.take(LISTED_MAX) {
        let digest = match &buffer.sha256 {
            Some(digest) => format!("{}…", digest.get(..16).unwrap_or(digest)),
            None => "(too wide)".to_owned(),
        };
        let first_offset = format!("{:#x}", buffer.first_offset);
        let bytes = count(buffer.bytes);
        table.add_row([from, &buffer.stag, &first_offset, &bytes, &digest]);
    }
    if total > LISTED_MAX {
        table.add_row([format!("and {} more", total - LISTED_MAX)]);
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn write_findings(out: &mut String, findings: &[Finding]) -> fmt::Result {
    for Finding { severity, rule, frame, text, .. } in findings {
        let severity = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        match frame {
            0 => writeln!(out, "  {severity}: {text} ({rule})")?,
            _ => writeln!(out, "  {severity}: frame {frame}: {text} ({rule})")?,
        }
    }
    Ok(())
}

pub(crate) fn write_table(out: &mut String, table: &Table) -> fmt::Result {
    for line in table.lines() {
        writeln!(out, "  {}", line.trim_end())?;
    }
    Ok(())
}

type Row = (&'static str, fn(&DirectionReport) -> String);

/// Buffers, and connections without MPA, listed for one file or connection.
const LISTED_MAX: usize = 32;
