//! The report as a page: sentences, findings and pictures, in one self-contained file.

use std::fmt::{self, Write};

use crate::draw::{self, Picture, escaped, octets, rate, style, time};
use crate::figures::{count, plural, share};
use crate::report::text::startup_line;
use crate::report::{ConnectionReport, Finding, Severity};
use crate::trace::{ConnectionTrace, SideTrace};
use crate::{Pictured, PicturedFile};

/// Writes the page about these files.
#[must_use]
pub fn of(files: &[PicturedFile]) -> String {
    let mut out = String::new();
    write_page(&mut out, files).expect("writing to a string does not fail");
    out
}

/// Builds the single pictures of these files: a name without folder and extension, and SVG.
#[must_use]
pub fn pictures(files: &[PicturedFile]) -> Vec<(String, String)> {
    let several = files.len() > 1;
    let mut all = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for (place, one) in file.pictured.iter().enumerate() {
            for picture in pictures_of(&one.trace, one.in_order.as_ref()).into_iter().flatten() {
                let prefix = if several { format!("{}-", number + 1) } else { String::new() };
                let name = format!("{prefix}{}-{}", place + 1, picture.name);
                let styled = format!("<style>{}</style></svg>", style());
                let svg = picture.svg.strip_suffix("</svg>").unwrap_or(&picture.svg);
                all.push((name, format!("{svg}{styled}\n")));
            }
        }
    }
    all
}

/// Pictures of what the initiator sent, then of the responder's.
pub(crate) fn pictures_of(
    trace: &ConnectionTrace,
    in_order: Option<&ConnectionTrace>,
) -> [Vec<Picture>; 2] {
    [(0, "initiator"), (1, "responder")].map(|(index, from)| {
        let side = &trace.sides[index];
        if side.bins.bins.iter().all(|bin| bin.octets == 0) {
            return Vec::new();
        }
        let in_order = in_order.map(|other| &other.sides[index]);
        let mut pictures = vec![draw::sequence(side, from), draw::strip(side, from)];
        pictures.extend(draw::detail(side, from));
        if side.delivery.count() > 0 {
            pictures.push(draw::delays(side, in_order, from));
        }
        pictures.extend(draw::messages(side, &trace.answers[index], from));
        pictures.extend(draw::memory(side, from));
        pictures.push(draw::rates(side, from));
        if let Some((window, rtt)) = draw::round_trips(side, from) {
            pictures.push(window);
            pictures.extend(rtt);
        }
        pictures
    })
}

fn write_page(out: &mut String, files: &[PicturedFile]) -> fmt::Result {
    let names: Vec<String> = files.iter().map(|file| escaped(&file.report.file)).collect();
    write!(
        out,
        "{HEAD}<title>urnic replay: {0}</title><style>{PAGE_STYLE}{1}</style></head><body>\
         <h1>What happened in {0}</h1>{INTRODUCTION}",
        names.join(", "),
        style()
    )?;
    write_contents(out, files)?;
    for (number, file) in files.iter().enumerate() {
        write_file(out, file, number)?;
    }
    out.write_str("</body></html>\n")
}

/// Writes links if there are several files or connections.
fn write_contents(out: &mut String, files: &[PicturedFile]) -> fmt::Result {
    if files.len() + files.iter().map(|file| file.pictured.len()).sum::<usize>() < 3 {
        return Ok(());
    }
    out.write_str("<nav><ul>")?;
    for (number, file) in files.iter().enumerate() {
        write!(out, "<li><a href=\"#f{number}\">{}</a><ul>", escaped(&file.report.file))?;
        for (index, connection) in in_order(&file.report.connections) {
            if file.pictured.iter().all(|one| one.index != index) {
                continue;
            }
            let bytes = connection.directions.iter().map(|one| one.bytes_sent).sum();
            write!(
                out,
                "<li><a href=\"#f{number}c{index}\">{} → {}</a>: {}, {}</li>",
                escaped(&connection.initiator),
                escaped(&connection.responder),
                octets(bytes),
                plural(connection.findings.len() as u64, "finding")
            )?;
        }
        out.write_str("</ul></li>")?;
    }
    out.write_str("</ul></nav>")
}

/// Returns indices in the report: first those with errors or warnings, each part by bytes sent.
fn in_order(connections: &[ConnectionReport]) -> Vec<(usize, &ConnectionReport)> {
    let mut all: Vec<_> = connections.iter().enumerate().collect();
    all.sort_by_cached_key(|(_, one)| {
        let worst = one.findings.iter().map(|finding| finding.severity).max();
        let bytes: u64 = one.directions.iter().map(|direction| direction.bytes_sent).sum();
        std::cmp::Reverse((worst.filter(|worst| *worst > Severity::Note), bytes))
    });
    all
}

fn write_file(out: &mut String, file: &PicturedFile, number: usize) -> fmt::Result {
    let report = &file.report;
    let mpa = report.connections.iter().filter(|one| one.is_iwarp()).count();
    write!(
        out,
        "<h2 id=\"f{number}\">{}</h2><p>{}; {} could not be used (other protocols, fragments, \
         frames cut by the capture, damaged segments that arrived again). {}, {}",
        escaped(&report.file),
        plural(report.frames, "frame"),
        count(report.frames_skipped),
        plural(mpa as u64, "iWARP connection"),
        plural((report.connections.len() - mpa) as u64, "other TCP connection")
    )?;
    match report.connections_unlisted {
        0 => out.write_str(".</p>")?,
        more => write!(out, ", {} more of either that are not listed.</p>", count(more))?,
    }
    if let Some(error) = &report.error {
        write!(out, "<p class=\"error\">{}</p>", escaped(error))?;
    }
    if !report.findings.is_empty() {
        write_findings(out, &report.findings)?;
    }
    let mut others = Plain::default();
    let mut startups = Plain::default();
    for (index, connection) in in_order(&report.connections) {
        match file.pictured.iter().find(|one| one.index == index) {
            Some(one) => write_connection(out, connection, one, number)?,
            None if connection.is_iwarp() => {
                startups.write(out, connection, "Shorter than those with pictures.")?;
            }
            None if connection.findings.is_empty() => {}
            None => others.write(out, connection, "Without an MPA Request in this capture.")?,
        }
    }
    startups.write_left_out(out, "iWARP")?;
    others.write_left_out(out, "other TCP")
}

#[derive(Default)]
struct Plain {
    written: usize,
    left_out: u64,
    findings_left_out: u64,
}

impl Plain {
    /// Gives the reason why there is no picture, and the findings, if there is room.
    fn write(&mut self, out: &mut String, connection: &ConnectionReport, why: &str) -> fmt::Result {
        if self.written == PLAIN_MAX {
            self.left_out += 1;
            self.findings_left_out += connection.findings.len() as u64;
            return Ok(());
        }
        self.written += 1;
        write_heading(out, connection, "")?;
        write!(out, "<p>{why}</p>")?;
        write_findings(out, &connection.findings)
    }

    fn write_left_out(&self, out: &mut String, kind: &str) -> fmt::Result {
        if self.left_out == 0 {
            return Ok(());
        }
        write!(
            out,
            "<p>{} more {kind} connections, with {} findings, are in the JSON.</p>",
            count(self.left_out),
            count(self.findings_left_out)
        )
    }
}

fn write_heading(out: &mut String, connection: &ConnectionReport, id: &str) -> fmt::Result {
    let ConnectionReport { initiator, responder, mpa, .. } = connection;
    write!(out, "<h2{id}>{} → {}</h2>", escaped(initiator), escaped(responder))?;
    match mpa {
        Some(mpa) => write!(out, "<p>{}.</p>", escaped(&startup_line(mpa))),
        None => Ok(()),
    }
}

fn write_connection(
    out: &mut String,
    connection: &ConnectionReport,
    one: &Pictured,
    number: usize,
) -> fmt::Result {
    write_heading(out, connection, &format!(" id=\"f{number}c{}\"", one.index))?;
    out.write_str("<ul>")?;
    for index in 0..connection.directions.len().min(2) {
        let in_order = one.in_order.as_ref().map(|other| &other.sides[index]);
        write_summary(out, connection, &one.trace, index, in_order)?;
    }
    out.write_str("</ul>")?;
    write_findings(out, &connection.findings)?;
    for (pictures, direction) in
        pictures_of(&one.trace, one.in_order.as_ref()).into_iter().zip(&connection.directions)
    {
        if pictures.is_empty() {
            continue;
        }
        write!(out, "<h3>From the {}</h3>", direction.from)?;
        for Picture { title, help, svg, .. } in pictures {
            write!(
                out,
                "<figure><figcaption>{}</figcaption><div class=\"wide\">{svg}</div><details open><summary>How to read \
                 this</summary><p>{help}</p></details></figure>",
                escaped(&title)
            )?;
        }
    }
    Ok(())
}

fn write_summary(
    out: &mut String,
    connection: &ConnectionReport,
    trace: &ConnectionTrace,
    index: usize,
    in_order: Option<&SideTrace>,
) -> fmt::Result {
    let direction = &connection.directions[index];
    let side = &trace.sides[index];
    let from = direction.from;
    if direction.segments == 0 {
        return write!(out, "<li>The {from} sent nothing.</li>");
    }
    let bytes = direction.bytes_sent;
    let bits = u128::from(bytes) * 8_000_000_000 / u128::from(side.canvas.span_ns());
    write!(
        out,
        "<li>The {from} sent {} in {} within {} ({} on average) and {}. ",
        octets(bytes),
        plural(direction.segments, "segment"),
        time(side.canvas.span_ns()),
        rate(u64::try_from(bits).unwrap_or(u64::MAX)),
        plural(direction.fpdus, "FPDU")
    )?;
    if let Some(profile) = direction.profile {
        write!(out, "It behaves like {}. ", escaped(profile))?;
    }
    if direction.segments_judged > 0 {
        write!(
            out,
            "{} of its segments in full operation are aligned with FPDUs. ",
            share(direction.segments_aligned, direction.segments_judged)
        )?;
    }
    write!(
        out,
        "{} of all arrived out of order, {} were retransmitted. ",
        share(direction.segments_out_of_order, direction.segments),
        share(direction.segments_retransmitted, direction.segments)
    )?;
    if direction.bytes_placed > 0 {
        let placed = match connection.is_refused_memory(index) {
            true => "were placed, or would have been, had all their memory been registered",
            false => "were placed",
        };
        write!(
            out,
            "{} {placed}, {} of them ahead of a gap. ",
            octets(direction.bytes_placed),
            share(direction.bytes_placed_out_of_order, direction.bytes_placed)
        )?;
    }
    write_held(out, side, in_order)?;
    write_answers(out, trace, index)?;
    for terminate in &direction.terminate {
        write!(
            out,
            "It ended the stream with Terminate {}/{}/{:02X} in frame {}: {}{}. ",
            terminate.layer,
            terminate.etype,
            terminate.code,
            terminate.frame,
            escaped(terminate.text),
            terminate
                .about
                .as_ref()
                .map_or(String::new(), |about| escaped(&format!(", about {about}")))
        )?;
    }
    out.write_str("</li>")
}

fn write_answers(out: &mut String, trace: &ConnectionTrace, index: usize) -> fmt::Result {
    let reads = &trace.answers[index].reads.latency;
    if reads.count() > 0 {
        write!(
            out,
            "From a Read Request to the last byte of its Response: half within {}, 99 % within {}, \
             at most {}. ",
            time(reads.quantile(500)),
            time(reads.quantile(990)),
            time(reads.max_ns())
        )?;
    }
    let terminated = &trace.answers[index].sends.latency;
    if terminated.count() > 0 {
        write!(
            out,
            "From its Send to the Terminate of the other end that is about it: {}. ",
            time(terminated.max_ns())
        )?;
    }
    Ok(())
}

fn write_held(out: &mut String, side: &SideTrace, in_order: Option<&SideTrace>) -> fmt::Result {
    if side.held_peak > 0 || in_order.is_some_and(|other| other.held_peak > 0) {
        write!(out, "At most {} waited at one time", octets(side.held_peak))?;
    }
    match in_order {
        Some(other) if other.held_peak != side.held_peak => {
            write!(
                out,
                "; without markers, or layered over a TCP that delivers bytes in order, it would \
                 have been <b>{}</b>",
                octets(other.held_peak)
            )?;
            let [slowest, own] = [other, side].map(|side| side.placement.max_ns());
            if time(slowest) != time(own) {
                write!(
                    out,
                    ", and the slowest FPDU would have waited {} instead of {}",
                    time(slowest),
                    time(own)
                )?;
            }
            out.write_str(". ")
        }
        Some(_) if side.held_peak > 0 => out.write_str(
            "; a receiver without markers, or layered over a TCP that delivers bytes in order, would \
             have held as much. ",
        ),
        None if side.held_peak > 0 => out.write_str(". "),
        _ => Ok(()),
    }
}

fn write_findings(out: &mut String, findings: &[Finding]) -> fmt::Result {
    if findings.is_empty() {
        return out.write_str("<p>No findings.</p>");
    }
    out.write_str(
        "<table class=\"findings\"><tr><th>severity</th><th>rule</th><th>in Wireshark</th><th>finding</th></tr>",
    )?;
    for Finding { severity, rule, frame, frames, text, should, costs, .. } in
        findings.iter().take(FINDINGS_MAX)
    {
        let severity = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let frame = match (frame, &frames[..]) {
            (0, _) => String::new(),
            (_, [_, _, ..]) => {
                let few = frames.iter().take(FRAMES_MAX).map(u64::to_string).collect::<Vec<_>>();
                format!("<code>frame.number in {{{}}}</code>", few.join(", "))
            }
            (frame, _) => format!("<code>frame.number == {frame}</code>"),
        };
        write!(
            out,
            "<tr class=\"{severity}\"><td>{severity}</td><td>{}</td><td>{frame}</td><td>{}",
            escaped(rule),
            escaped(text)
        )?;
        for (label, text) in [("To do or to know", should), ("What it may cost", costs)] {
            if !text.is_empty() {
                write!(out, "<br/><small><b>{label}:</b> {}</small>", escaped(text))?;
            }
        }
        out.write_str("</td></tr>")?;
    }
    out.write_str("</table>")?;
    match findings.len().saturating_sub(FINDINGS_MAX) {
        0 => Ok(()),
        more => write!(out, "<p>{} more findings are in the JSON.</p>", count(more as u64)),
    }
}

pub(crate) const HEAD: &str = "\
<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
<meta name=\"color-scheme\" content=\"light dark\">";

pub(crate) const INTRODUCTION: &str = "\
<details open><summary>The words of this page</summary><p>iWARP is RDMA over TCP: one end writes \
into or reads from memory of the other. TCP carries bytes without borders, so each piece of a message travels \
as an <b>FPDU</b>: a length, a header with its place in memory, the payload and a CRC. A segment is \
<b>aligned</b> if it holds complete FPDUs; then it can be <b>placed</b>, that is copied to its \
memory, as soon as it arrives, even if segments before it are lost. A <b>marker</b> is a pointer every \
512 bytes of the stream to the beginning of its FPDU: with it a receiver finds FPDUs beyond a gap although they \
are not aligned. <b>Delivery</b>, the notification of the application, always waits for all earlier data. The \
<b>initiator</b> opens the connection with an MPA Request, the <b>responder</b> answers it; after this startup the connection is in \
<b>full operation</b>. An <b>STag</b> (steering tag) names a piece of memory that the other end may write or read. \
<b>IRD</b> and <b>ORD</b> are the numbers of RDMA Reads that an end accepts and requests at a time. A receiver is <b>layered</b> \
if its TCP delivers bytes in order only, as a kernel's socket does. <b>siw</b> is Linux's own iWARP. The figures \
and pictures come from urnic's own receive code, which processed these frames.</p></details>";

pub(crate) const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:1020px;margin:2em auto;\
padding:0 1em;background:#fff;color:#222;overflow-wrap:anywhere}h1{font-size:1.5em}h2{font-size:1.25em;margin-top:2em;\
border-top:1px solid #8886;padding-top:.7em}figure{margin:1.6em 0;break-inside:avoid}figcaption{font-weight:600}\
table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #8885;padding:.2em .6em;text-align:left;\
vertical-align:top}.wide{overflow-x:auto}.findings td:nth-child(-n+3){white-space:nowrap}tr.error td:first-child,p.error{color:#c2410c;font-weight:700}\
tr.warning td:first-child{font-weight:700}details p{margin:.3em 0;font-size:13.5px}summary{cursor:pointer;font-size:13.5px}\
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}tr.error td:first-child,p.error{color:#ff8a3d}}\
@media screen{figure svg.p{min-width:700px}}\
@media(max-width:600px){.findings tr,.findings td{display:block}.findings th{display:none}.findings td{border:0}\
.findings tr{border:1px solid #8885;margin:.6em 0}}\
@media print{h2,h3,th{break-after:avoid}body{max-width:none;margin:0}}
";

/// Connections without pictures that are listed with findings: iWARP, and others.
const PLAIN_MAX: usize = 200;
/// Most frames in the filter of a finding.
const FRAMES_MAX: usize = 12;
const FINDINGS_MAX: usize = 300;
