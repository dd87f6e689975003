//! The report as tables.

use std::fmt::Write as _;
use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::report::{
    ConnectionReport, DirectionReport, FileReport, Finding, MpaReport, Report, Severity,
};

/// Writes the report of all files.
pub(crate) fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    for file in &report.files {
        write_file(out, file)?;
    }
    Ok(())
}

fn write_file(out: &mut dyn Write, file: &FileReport) -> io::Result<()> {
    writeln!(out, "{}: {} frames, {} skipped", file.file, file.frames, file.frames_skipped)?;
    if let Some(error) = &file.error {
        writeln!(out, "  error: {error}")?;
    }
    write_findings(out, &file.findings)?;
    let is_mpa = |connection: &&ConnectionReport| connection.mpa.is_some();
    for connection in file.connections.iter().filter(is_mpa) {
        write_connection(out, connection)?;
    }
    let others: Vec<_> = file.connections.iter().filter(|one| one.mpa.is_none()).collect();
    if !others.is_empty() {
        writeln!(out, "\n  {} connection(s) without an MPA Request:", others.len())?;
    }
    for connection in others.iter().take(LISTED_MAX) {
        let segments: u64 = connection.directions.iter().map(|one| one.segments).sum();
        writeln!(
            out,
            "  {} → {}: {segments} data segments",
            connection.initiator, connection.responder
        )?;
        write_findings(out, &connection.findings)?;
    }
    if others.len() > LISTED_MAX {
        writeln!(out, "  … and {} more", others.len() - LISTED_MAX)?;
    }
    writeln!(out)
}

fn write_connection(out: &mut dyn Write, connection: &ConnectionReport) -> io::Result<()> {
    writeln!(out, "\n  {} → {}", connection.initiator, connection.responder)?;
    if let Some(mpa) = &connection.mpa {
        writeln!(out, "  {}", startup_line(mpa))?;
    }
    write_table(out, &counters_table(&connection.directions))?;
    for direction in &connection.directions {
        for terminate in &direction.terminate {
            writeln!(
                out,
                "  {} sent Terminate {}/{}/{:02X}: {}",
                direction.from, terminate.layer, terminate.etype, terminate.code, terminate.text
            )?;
        }
    }
    if connection.directions.iter().any(|direction| !direction.buffers.is_empty()) {
        write_table(out, &buffers_table(&connection.directions))?;
    }
    write_findings(out, &connection.findings)
}

fn startup_line(mpa: &MpaReport) -> String {
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
    let mut add = |what: std::fmt::Arguments<'_>| {
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
    for (who, data) in
        [("initiator", &mpa.initiator_private_data), ("responder", &mpa.responder_private_data)]
    {
        if !data.is_empty() {
            add(format_args!("; private data of the {who}: {data}"));
        }
    }
    line
}

fn counters_table(directions: &[DirectionReport]) -> Table {
    let mut table = table();
    let from = directions.iter().map(|one| format!("from {}", one.from));
    table.set_header(std::iter::once(String::new()).chain(from));
    let rows: [Row; 15] = [
        ("data segments", |one| one.segments),
        ("  aligned with FPDUs", |one| one.segments_aligned),
        ("  out of order", |one| one.segments_out_of_order),
        ("  retransmitted", |one| one.segments_retransmitted),
        ("FPDUs", |one| one.fpdus),
        ("  found by a marker", |one| one.fpdus_by_marker),
        ("  out of order", |one| one.fpdus_out_of_order),
        ("CRCs right", |one| one.crc_good),
        ("CRCs wrong", |one| one.crc_bad),
        ("markers", |one| one.markers),
        ("  wrong", |one| one.marker_errors),
        ("bytes placed", |one| one.bytes_placed),
        ("  out of order", |one| one.bytes_placed_out_of_order),
        ("bytes held, at most", |one| one.bytes_held_peak),
        ("messages", |one| one.messages.values().sum()),
    ];
    for (name, count) in rows {
        let counts = directions.iter().map(|one| count(one).to_string());
        table.add_row(std::iter::once(name.to_owned()).chain(counts));
    }
    let opcodes: std::collections::BTreeSet<_> =
        directions.iter().flat_map(|one| one.fpdus_by_opcode.keys()).collect();
    for opcode in opcodes {
        let counts = directions.iter().map(|one| {
            let messages = one.messages.get(opcode).copied().unwrap_or(0);
            match one.fpdus_by_opcode.get(opcode).copied().unwrap_or(0) {
                0 => String::from("0"),
                fpdus if fpdus == messages => fpdus.to_string(),
                fpdus => format!("{messages} in {fpdus} FPDUs"),
            }
        });
        table.add_row(std::iter::once(format!("  {opcode}")).chain(counts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn buffers_table(directions: &[DirectionReport]) -> Table {
    let mut table = table();
    table.set_header(["written by", "STag", "first offset", "bytes", "SHA-256"]);
    let buffers = directions
        .iter()
        .flat_map(|direction| direction.buffers.iter().map(move |buffer| (direction.from, buffer)));
    let count = buffers.clone().count();
    for (from, buffer) in buffers.take(LISTED_MAX) {
        let digest = match &buffer.sha256 {
            Some(digest) => format!("{}…", digest.get(..16).unwrap_or(digest)),
            None => "(too wide)".to_owned(),
        };
        let first_offset = format!("{:#x}", buffer.first_offset);
        let bytes = buffer.bytes.to_string();
        table.add_row([from, &buffer.stag, &first_offset, &bytes, &digest]);
    }
    if count > LISTED_MAX {
        table.add_row([format!("and {} more", count - LISTED_MAX)]);
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn write_findings(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    for Finding { severity, rule, frame, text } in findings {
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

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn write_table(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    for line in table.lines() {
        writeln!(out, "  {}", line.trim_end())?;
    }
    Ok(())
}

/// A line of the table of counters: its name, and what it counts.
type Row = (&'static str, fn(&DirectionReport) -> u64);

/// Buffers, and connections that are not MPA, listed of one file or connection.
const LISTED_MAX: usize = 32;
