//! Step 4: the results of a replay, in the structure of its JSON; its views as text and as a page.

pub(crate) mod comments;
pub mod compare;
pub mod page;
pub mod text;
pub mod times;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::printable::printable;
use times::Times;

/// All files.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One report each.
    pub files: Vec<FileReport>,
}

/// One capture file.
#[derive(Debug, Default, Serialize)]
pub struct FileReport {
    /// Name of the file, as given.
    pub file: String,
    /// Frames read.
    pub frames: u64,
    /// Capture time of the first frame, in nanoseconds since 1970; absent without timestamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<u64>,
    /// From the earliest timestamp to the latest.
    pub span_ns: u64,
    /// Frames without a usable TCP segment: other protocols, IP fragments, truncated segments, and
    /// damaged segments that were retransmitted.
    pub frames_skipped: u64,
    /// Skipped frames with a wrong checksum.
    pub frames_corrupt: u64,
    /// Skipped frames that were captured before: by another tap, or on another interface.
    #[serde(skip_serializing_if = "is_zero")]
    pub frames_copied: u64,
    /// Connections, in the order of their first frames.
    pub connections: Vec<ConnectionReport>,
    /// Connections that are only counted, because a report lists a limited number.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections_unlisted: u64,
    /// Findings that are errors, including unlisted ones.
    #[serde(skip)]
    pub errors: u64,
    /// Findings about the file as a whole.
    pub findings: Vec<Finding>,
    /// Result of writing it with comments, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
    /// Reason why the file could not be read, or not beyond `frames`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Result of writing a capture with comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Frames written.
    pub frames: u64,
    /// Frames written with a comment of this program.
    pub commented: u64,
    /// Comments left out: simple packets have no options, and others have inconsistent ones.
    pub no_place: u64,
    /// Findings about a frame that came too late for its comment.
    pub late: u64,
    /// Reason why the rest after the last complete block is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<&'static str>,
    /// Set if there is more that could not be copied; otherwise the capture merely ends early.
    #[serde(skip)]
    pub is_malformed: bool,
}

/// One TCP connection.
#[derive(Debug, Serialize)]
pub struct ConnectionReport {
    /// The side that sent the MPA Request; without one, the side of the first frame.
    pub initiator: String,
    /// The other side.
    pub responder: String,
    /// Capture time of its first frame, in nanoseconds since 1970; absent without timestamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<u64>,
    /// From its first segment with payload to its last.
    pub span_ns: u64,
    /// From the SYN to the acknowledgment of the SYN that answers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_ns: Option<u64>,
    /// `None` if the capture has no MPA Request of this connection.
    pub mpa: Option<MpaReport>,
    /// Segments of the initiator, then of the responder.
    pub directions: Vec<DirectionReport>,
    /// Findings, in the order of frames.
    pub findings: Vec<Finding>,
}

/// Terms of the startup.
#[derive(Debug, Serialize)]
pub struct MpaReport {
    /// Revision of the Reply; of the Request if there is no Reply.
    pub revision: u8,
    /// CRCs are in use.
    pub crc: bool,
    /// `None` if the capture has no Reply.
    pub accepted: Option<bool>,
    /// Directions with markers.
    pub markers: MarkersReport,
    /// Private Data in hexadecimal, without the word that an enhanced frame adds in front.
    pub initiator_private_data: String,
    /// See `initiator_private_data`.
    pub responder_private_data: String,
    /// The Private Data of initiator and responder as text; `None` if it cannot be printed.
    #[serde(skip)]
    pub private_texts: [Option<String>; 2],
    /// As the Request says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ird: Option<u16>,
    /// From the Request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ord: Option<u16>,
    /// From the Reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responder_ird: Option<u16>,
    /// From the Reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responder_ord: Option<u16>,
    /// The Request asks for the peer-to-peer model (RFC 6581 §9).
    pub peer_to_peer: bool,
}

/// Directions with markers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MarkersReport {
    /// Set if the responder sends markers.
    pub to_initiator: bool,
    /// Set if the initiator sends markers.
    pub to_responder: bool,
}

/// Data of one end, as sent.
#[derive(Debug, Default, Serialize)]
pub struct DirectionReport {
    /// `initiator` or `responder`.
    pub from: &'static str,
    /// Known implementation that the sender behaves like: `siw` for Linux's driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<&'static str>,
    /// TCP segments with payload, including startup frames and retransmissions.
    pub segments: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Largest segment in bytes, from the SYN of the other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mss: Option<u16>,
    /// The largest window that the other end offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_max: Option<u64>,
    /// Segments in full operation with a known position among FPDUs: not beyond a gap.
    pub segments_judged: u64,
    /// Judged segments that begin where an FPDU begins and end where one ends.
    pub segments_aligned: u64,
    /// Segments that begin beyond bytes not yet seen.
    pub segments_out_of_order: u64,
    /// Segments without a new byte.
    pub segments_retransmitted: u64,
    /// Distinct FPDUs, including those with a wrong CRC.
    pub fpdus: u64,
    /// FPDUs by the RDMAP opcode in them.
    pub fpdus_by_opcode: BTreeMap<String, u64>,
    /// FPDUs with the Last flag, by opcode.
    pub messages: BTreeMap<String, u64>,
    /// FPDUs whose CRC is right.
    pub crc_good: u64,
    /// FPDUs whose CRC is wrong.
    pub crc_bad: u64,
    /// Markers seen.
    pub markers: u64,
    /// Markers that do not point at their FPDU.
    pub marker_errors: u64,
    /// FPDUs that a marker located.
    pub fpdus_by_marker: u64,
    /// FPDUs placed before all earlier bytes had arrived.
    pub fpdus_out_of_order: u64,
    /// Bytes of payload placed.
    pub bytes_placed: u64,
    /// Bytes placed before all earlier bytes had arrived.
    pub bytes_placed_out_of_order: u64,
    /// Most bytes held at one time because their FPDU was incomplete.
    pub bytes_held_peak: u64,
    /// Terminates it sent.
    pub terminate: Vec<TerminateReport>,
    /// Memory it wrote, by steering tag.
    pub buffers: Vec<BufferReport>,
    /// Durations, if pictures of the connection are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
}

/// A Terminate message.
#[derive(Clone, Debug, Serialize)]
pub struct TerminateReport {
    /// 0 RDMAP, 1 DDP, 2 MPA (RFC 5040 §4.8).
    pub layer: u8,
    /// Error type within the layer.
    #[serde(rename = "type")]
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
    /// Meaning of the three numbers.
    pub text: &'static str,
    /// Frame that contains it.
    #[serde(skip)]
    pub frame: u64,
    /// Segment that the Terminate names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Set if that segment is tagged.
    #[serde(skip)]
    pub is_about_tagged: bool,
}

/// Bytes placed under one steering tag.
#[derive(Debug, Serialize)]
pub struct BufferReport {
    /// The steering tag.
    pub stag: String,
    /// The lowest tagged offset written.
    pub first_offset: u64,
    /// Distinct bytes.
    pub bytes: u64,
    /// `None` if the range is too wide to digest.
    pub sha256: Option<String>,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// RFC section of the rule.
    pub rule: &'static str,
    /// Number of the frame concerned, the first of several, from 1; 0 if there is none.
    pub frame: u64,
    /// Number of occurrences for the same sender.
    #[serde(skip_serializing_if = "is_one")]
    pub count: u64,
    /// The first frames concerned, if there are several occurrences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<u64>,
    /// One sentence.
    pub text: String,
    /// Requirement of the rule, or advice.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub should: &'static str,
    /// Possible effect.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub costs: &'static str,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Permitted, for information.
    Note,
    /// The result is incomplete, or the session failed.
    Warning,
    /// A rule was broken.
    Error,
}

impl Report {
    /// Returns true if any finding is an error.
    pub fn has_errors(&self) -> bool {
        self.files.iter().any(|file| file.errors > 0)
    }
}

impl ConnectionReport {
    /// Returns the payload per second of a direction, in bits; `None` if the time is zero.
    #[must_use]
    pub fn bits_per_second(&self, direction: &DirectionReport) -> Option<u64> {
        let bits = u128::from(direction.bytes_sent) * 8_000_000_000;
        let rate = bits.checked_div(u128::from(self.span_ns))?;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Returns true if the other end answered data of this direction with a Terminate about its
    /// memory (RFC 5040 §4.8: remote protection; RFC 5041 §8: tagged buffer errors), not about the
    /// memory that a Read Request names.
    #[must_use]
    pub fn is_refused_memory(&self, direction: usize) -> bool {
        let is_about_memory = |one: &TerminateReport| match (one.layer, one.etype) {
            (0, 1) => one.is_about_tagged,
            error => error == (1, 1),
        };
        let mut others =
            self.directions.iter().enumerate().filter(|(other, _)| *other != direction);
        others.any(|(_, other)| other.terminate.iter().any(is_about_memory))
    }

    /// Returns true if it has an MPA startup, or FPDUs that were found without one.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.mpa.is_some() || self.directions.iter().any(|one| one.fpdus > 0)
    }
}

impl Finding {
    pub(crate) const fn of(
        severity: Severity,
        rule: &'static str,
        frame: u64,
        text: String,
    ) -> Self {
        Self { severity, rule, frame, count: 1, frames: Vec::new(), text, should: "", costs: "" }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde passes")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde passes")]
const fn is_one(count: &u64) -> bool {
    *count == 1
}

/// Private data as text, if all of it shows as itself; zeros behind it are left out.
pub(super) fn text_of(bytes: &[u8]) -> Option<String> {
    let len = bytes.iter().rposition(|byte| *byte != 0)? + 1;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    (printable(text) == text).then(|| text.to_owned())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        write!(out, "{byte:02x}").expect("writing to a string does not fail");
        out
    })
}
