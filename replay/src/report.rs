//! What a replay found out, in the shape of its JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::times::Times;

/// All files.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One report each.
    pub files: Vec<FileReport>,
}

/// One capture file.
#[derive(Debug, Default, Serialize)]
pub struct FileReport {
    /// Its name, as it was given.
    pub file: String,
    /// Frames read.
    pub frames: u64,
    /// When the first of them was captured, in nanoseconds since 1970; absent without timestamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<u64>,
    /// From the earliest timestamp to the latest.
    pub span_ns: u64,
    /// Of those, frames with no TCP segment that can be used: other protocols, IP fragments,
    /// segments the capture cut, and segments with a wrong checksum that came again.
    pub frames_skipped: u64,
    /// Of the skipped frames, those with a wrong checksum.
    pub frames_corrupt: u64,
    /// Of the skipped frames, those that were captured before: by another tap, or on another interface.
    #[serde(skip_serializing_if = "is_zero")]
    pub frames_copied: u64,
    /// In the order of their first frames.
    pub connections: Vec<ConnectionReport>,
    /// Connections that are only counted: there are more than a report lists.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections_unlisted: u64,
    /// Findings that are errors, whether listed or not.
    #[serde(skip)]
    pub errors: u64,
    /// About the file as a whole.
    pub findings: Vec<Finding>,
    /// What was written of it with comments, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
    /// Why the file could not be read, or not further than `frames`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What was written of a capture with comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Frames.
    pub frames: u64,
    /// Of them, frames with a comment of this program.
    pub commented: u64,
    /// Comments without a place: on simple packets, which have no options, and beside options that
    /// contradict themselves.
    pub no_place: u64,
    /// Things found out about a frame so much later that they are not in its comment.
    pub late: u64,
    /// What follows the last whole block is missing: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<&'static str>,
    /// Whether there is more that could not be copied. Otherwise what is cut merely ends early.
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
    /// When its first frame was captured, in nanoseconds since 1970; absent without timestamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<u64>,
    /// From its first segment with payload to its last.
    pub span_ns: u64,
    /// From the SYN to the acknowledgment of the SYN that answers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_ns: Option<u64>,
    /// `None` when the capture has no MPA Request of this connection.
    pub mpa: Option<MpaReport>,
    /// What the initiator sent, then what the responder sent.
    pub directions: Vec<DirectionReport>,
    /// What is worth saying about it, in the order of frames.
    pub findings: Vec<Finding>,
}

/// What the startup settled.
#[derive(Debug, Serialize)]
pub struct MpaReport {
    /// That of the Reply; of the Request when there is no Reply.
    pub revision: u8,
    /// CRCs are in use.
    pub crc: bool,
    /// `None` when the capture has no Reply.
    pub accepted: Option<bool>,
    /// Where markers are.
    pub markers: MarkersReport,
    /// Hexadecimal, without the word that an enhanced frame puts in front.
    pub initiator_private_data: String,
    /// As those of the initiator.
    pub responder_private_data: String,
    /// As the Request says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ird: Option<u16>,
    /// As the Request says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ord: Option<u16>,
    /// As the Reply says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responder_ird: Option<u16>,
    /// As the Reply says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responder_ord: Option<u16>,
    /// The Request asks for the peer-to-peer model (RFC 6581 §9).
    pub peer_to_peer: bool,
}

/// In which directions markers are.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MarkersReport {
    /// In what the responder sends.
    pub to_initiator: bool,
    /// In what the initiator sends.
    pub to_responder: bool,
}

/// What one end sent.
#[derive(Debug, Default, Serialize)]
pub struct DirectionReport {
    /// `initiator` or `responder`.
    pub from: &'static str,
    /// The known implementation that the sender behaves like: `siw` for Linux's driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<&'static str>,
    /// TCP segments with payload, those of the startup and retransmissions included.
    pub segments: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Bytes that a segment may have, as the SYN of the other end says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mss: Option<u16>,
    /// The largest window that the other end offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_max: Option<u64>,
    /// Segments in full operation whose place among FPDUs is known: those of the startup and those beyond a
    /// gap are not among them.
    pub segments_judged: u64,
    /// Of those, segments that begin where an FPDU begins and end where one ends.
    pub segments_aligned: u64,
    /// Segments that begin beyond bytes not yet seen.
    pub segments_out_of_order: u64,
    /// Segments that bring no byte not yet seen.
    pub segments_retransmitted: u64,
    /// Distinct FPDUs, those with a wrong CRC included.
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
    /// Of those, markers that do not point at their FPDU.
    pub marker_errors: u64,
    /// FPDUs that a marker located.
    pub fpdus_by_marker: u64,
    /// FPDUs placed before all bytes ahead of them had come.
    pub fpdus_out_of_order: u64,
    /// Bytes of payload placed.
    pub bytes_placed: u64,
    /// Of those, bytes placed before all ahead of them had come.
    pub bytes_placed_out_of_order: u64,
    /// Most bytes kept at one time because their FPDU was not whole.
    pub bytes_held_peak: u64,
    /// Terminates it sent.
    pub terminate: Vec<TerminateReport>,
    /// Memory it wrote, by steering tag.
    pub buffers: Vec<BufferReport>,
    /// How long things took, where pictures of the connection are made.
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
    /// What the three say.
    pub text: &'static str,
    /// The frame it came in.
    #[serde(skip)]
    pub frame: u64,
    /// The segment that it is about, as it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// That segment is a tagged one.
    #[serde(skip)]
    pub is_about_tagged: bool,
}

/// What was placed under one steering tag.
#[derive(Debug, Serialize)]
pub struct BufferReport {
    /// The steering tag.
    pub stag: String,
    /// The lowest tagged offset written.
    pub first_offset: u64,
    /// Distinct bytes.
    pub bytes: u64,
    /// `None` when the buffer is too wide to digest.
    pub sha256: Option<String>,
}

/// Something worth saying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The section it goes by.
    pub rule: &'static str,
    /// Number of the frame concerned, from 1; 0 when it is about none. The first of several.
    pub frame: u64,
    /// How often the same was found of the same sender.
    #[serde(skip_serializing_if = "is_one")]
    pub count: u64,
    /// The first of the frames concerned, where it was found more than once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<u64>,
    /// One sentence.
    pub text: String,
    /// What the rule asks for, or what can be done.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub should: &'static str,
    /// What it may cost.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub costs: &'static str,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Legal and worth knowing.
    Note,
    /// The result is incomplete, or the session failed.
    Warning,
    /// A rule was broken.
    Error,
}

impl Report {
    /// Whether any finding is an error.
    pub fn has_errors(&self) -> bool {
        self.files.iter().any(|file| file.errors > 0)
    }
}

impl ConnectionReport {
    /// Returns the payload per second of a direction, in bits; `None` in no time at all.
    #[must_use]
    pub fn bits_per_second(&self, direction: &DirectionReport) -> Option<u64> {
        let bits = u128::from(direction.bytes_sent) * 8_000_000_000;
        let rate = bits.checked_div(u128::from(self.span_ns))?;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Returns true if the other end answered what this direction placed with a Terminate about its memory
    /// (RFC 5040 §4.8: remote protection; RFC 5041 §8: tagged buffer errors). A Terminate about the memory
    /// that a Read Request names is about nothing that was placed.
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

    /// Whether it has an MPA startup, or FPDUs that were found without one.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.mpa.is_some() || self.directions.iter().any(|one| one.fpdus > 0)
    }
}

impl Finding {
    /// One that says all there is to say in its text.
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

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        write!(out, "{byte:02x}").expect("writing to a string does not fail");
        out
    })
}
