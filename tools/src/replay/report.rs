//! What a replay found out, in the shape of its JSON.

use std::collections::BTreeMap;

use serde::Serialize;

/// All files.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) files: Vec<FileReport>,
}

/// One capture file.
#[derive(Debug, Default, Serialize)]
pub(crate) struct FileReport {
    pub(crate) file: String,
    /// Frames read.
    pub(crate) frames: u64,
    /// Of those, frames with no TCP segment that can be used: other protocols, IP fragments,
    /// segments the capture cut, and segments with a wrong checksum that came again.
    pub(crate) frames_skipped: u64,
    /// Of the skipped frames, those with a wrong checksum.
    pub(crate) frames_corrupt: u64,
    pub(crate) connections: Vec<ConnectionReport>,
    /// Connections that are only counted: there are more than a report lists.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) connections_unlisted: u64,
    /// Findings that are errors, whether listed or not.
    #[serde(skip)]
    pub(crate) errors: u64,
    /// About the file as a whole.
    pub(crate) findings: Vec<Finding>,
    /// Why the file could not be read, or not further than `frames`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// One TCP connection.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectionReport {
    /// The side that sent the MPA Request; without one, the side of the first frame.
    pub(crate) initiator: String,
    pub(crate) responder: String,
    /// `None` when the capture has no MPA Request of this connection.
    pub(crate) mpa: Option<MpaReport>,
    pub(crate) directions: Vec<DirectionReport>,
    pub(crate) findings: Vec<Finding>,
}

/// What the startup settled.
#[derive(Debug, Serialize)]
pub(crate) struct MpaReport {
    /// That of the Reply; of the Request when there is no Reply.
    pub(crate) revision: u8,
    pub(crate) crc: bool,
    /// `None` when the capture has no Reply.
    pub(crate) accepted: Option<bool>,
    pub(crate) markers: MarkersReport,
    /// Hexadecimal, without the word that an enhanced frame puts in front.
    pub(crate) initiator_private_data: String,
    pub(crate) responder_private_data: String,
    /// As the Request says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ird: Option<u16>,
    /// As the Request says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ord: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) responder_ird: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) responder_ord: Option<u16>,
    /// The Request asks for the peer-to-peer model (RFC 6581 §9).
    pub(crate) peer_to_peer: bool,
}

/// In which directions markers are.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct MarkersReport {
    pub(crate) to_initiator: bool,
    pub(crate) to_responder: bool,
}

/// What one end sent.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DirectionReport {
    pub(crate) from: &'static str,
    /// The known implementation that the sender behaves like: `siw` for Linux's driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<&'static str>,
    /// TCP segments with payload, those of the startup and retransmissions included.
    pub(crate) segments: u64,
    /// Of those, segments that begin where an FPDU begins and end where one ends.
    pub(crate) segments_aligned: u64,
    /// Segments that begin beyond octets not yet seen.
    pub(crate) segments_out_of_order: u64,
    /// Segments that bring no octet not yet seen.
    pub(crate) segments_retransmitted: u64,
    /// Distinct FPDUs, those with a wrong CRC included.
    pub(crate) fpdus: u64,
    pub(crate) fpdus_by_opcode: BTreeMap<String, u64>,
    /// FPDUs with the Last flag, by opcode.
    pub(crate) messages: BTreeMap<String, u64>,
    pub(crate) crc_good: u64,
    pub(crate) crc_bad: u64,
    pub(crate) markers: u64,
    pub(crate) marker_errors: u64,
    pub(crate) fpdus_by_marker: u64,
    pub(crate) fpdus_out_of_order: u64,
    pub(crate) bytes_placed: u64,
    pub(crate) bytes_placed_out_of_order: u64,
    /// Most octets kept at one time because their FPDU was not whole.
    pub(crate) bytes_held_peak: u64,
    pub(crate) terminate: Vec<TerminateReport>,
    pub(crate) buffers: Vec<BufferReport>,
}

/// A Terminate message.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct TerminateReport {
    pub(crate) layer: u8,
    #[serde(rename = "type")]
    pub(crate) etype: u8,
    pub(crate) code: u8,
    pub(crate) text: &'static str,
}

/// What was placed under one steering tag.
#[derive(Debug, Serialize)]
pub(crate) struct BufferReport {
    pub(crate) stag: String,
    pub(crate) first_offset: u64,
    /// Distinct octets.
    pub(crate) bytes: u64,
    /// `None` when the buffer is too wide to digest.
    pub(crate) sha256: Option<String>,
}

/// Something worth saying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) rule: &'static str,
    /// Number of the frame concerned, from 1; 0 when it is about none.
    pub(crate) frame: u64,
    pub(crate) text: String,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Legal and worth knowing.
    Note,
    /// The result is incomplete, or the session failed.
    Warning,
    /// A rule was broken.
    Error,
}

impl Report {
    /// Whether any finding is an error.
    pub(crate) fn has_errors(&self) -> bool {
        self.files.iter().any(|file| file.errors > 0)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde passes")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Octets in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        write!(out, "{byte:02x}").expect("writing to a string does not fail");
        out
    })
}
