//! Assembly of one startup frame from pieces of any size.

use std::ops::RangeInclusive;

use super::{MpaStartupError, Revision};
use crate::wire::mpa::{StartupFrame, StartupHeader, StartupKind};

#[derive(Clone, Debug)]
pub(super) struct FrameReader {
    kind: StartupKind,
    revisions: RangeInclusive<Revision>,
    buffer: [u8; StartupFrame::LEN_MAX],
    /// `len <= wanted <= buffer.len()`
    len: usize,
    /// First of the fixed part, then of the whole frame.
    wanted: usize,
    /// Known once the fixed part has proved valid.
    revision: Option<Revision>,
}

impl FrameReader {
    pub(super) const fn new(kind: StartupKind, revisions: RangeInclusive<Revision>) -> Self {
        Self {
            kind,
            revisions,
            buffer: [0; StartupFrame::LEN_MAX],
            len: 0,
            wanted: StartupHeader::LEN,
            revision: None,
        }
    }

    /// Returns the bytes consumed. Reports every fault as soon as its byte has arrived. An error
    /// persists: the next call parses the same bytes.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<usize, MpaStartupError> {
        // spec: MPA-7.1-1
        let mut consumed = self.fill(bytes);
        if self.revision.is_none()
            && let Some((header, private_data_len)) =
                StartupHeader::parse(self.kind, &self.buffer[..self.len])?
        {
            // RFC 5044 §7.1.1: Rev MUST be checked, and the connection closed if it does not fit.
            // spec: MPA-7.1.1-5
            let revision = Revision::from_wire(header.revision)
                .filter(|revision| self.revisions.contains(revision))
                // RFC 5044 Appendix C.1: an RNIC of the RDMA Consortium always sends M = 1. A peer
                // with revision 0 without M is none, and its later behaviour is unknown.
                .filter(|revision| *revision > Revision::Rdmac || header.markers)
                .ok_or(MpaStartupError::Revision(header.revision))?;
            self.revision = Some(revision);
            self.wanted += usize::from(private_data_len);
            consumed += self.fill(&bytes[consumed..]);
        }
        Ok(consumed)
    }

    pub(super) fn frame(&self) -> Option<(StartupFrame<'_>, Revision)> {
        let revision = self.revision?;
        let (frame, _) = StartupFrame::parse_as(self.kind, &self.buffer[..self.len]).ok()??;
        Some((frame, revision))
    }

    // RFC 5044 §7.1.2 (9): no more than PD_Length bytes are ever copied.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        // spec: MPA-7.1.2-12
        let count = bytes.len().min(self.wanted - self.len);
        self.buffer[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
        count
    }
}
