//! A pcapng file of a live capture.

use std::io::{self, Write};

use super::LiveFrame;
use crate::report::comments::blocks::{
    ENHANCED_PACKET, INTERFACE_DESCRIPTION, OPTION_COMMENT, SECTION_HEADER,
};

/// A file of one Ethernet interface, with nanoseconds.
#[derive(Debug)]
pub struct LiveFile<W: Write> {
    sink: W,
    len: u64,
    /// Bytes kept of each frame.
    snap_len: usize,
    /// The block in flight.
    block: Vec<u8>,
}

impl<W: Write> LiveFile<W> {
    /// Begins a file of the frames of `interface`, written by `program`. Of each frame `snap_len` bytes are kept
    /// at most, all without it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(sink: W, interface: &str, program: &str, snap_len: Option<u32>) -> io::Result<Self> {
        let kept = snap_len.and_then(|len| usize::try_from(len).ok()).unwrap_or(usize::MAX);
        let mut file = Self { sink, len: 0, snap_len: kept, block: Vec::new() };
        let mut section = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        // The length of the section is unset.
        section.extend([0xff; 8]);
        section.extend(option(OPTION_PROGRAM, program.as_bytes()));
        section.extend([0; 4]);
        file.put(SECTION_HEADER, |block| block.extend(section), u64::MAX)?;
        // Ethernet; a length of 0 is no limit.
        let mut about = vec![1, 0, 0, 0];
        about.extend(snap_len.unwrap_or(0).to_le_bytes());
        about.extend(option(OPTION_NAME, interface.as_bytes()));
        about.extend(option(OPTION_TIMESTAMP_UNIT, &[9]));
        about.extend([0; 4]);
        file.put(INTERFACE_DESCRIPTION, |block| block.extend(about), u64::MAX)?;
        Ok(file)
    }

    /// Adds a frame. Returns false, and writes nothing, if the file would then be longer than
    /// `len_max`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn frame(
        &mut self,
        frame: &LiveFrame,
        comment: Option<&str>,
        len_max: u64,
    ) -> io::Result<bool> {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        let (high, low) = halves(frame.at_ns);
        let direction: u32 = if frame.is_outbound { 0b10 } else { 0b01 };
        let kept = &frame.bytes[..frame.bytes.len().min(self.snap_len)];
        let body = |block: &mut Vec<u8>| {
            block.extend([0; 4]);
            block.extend(high);
            block.extend(low);
            block.extend(number(kept.len()));
            block.extend(number(frame.original_len));
            block.extend(kept);
            block.resize(block.len().next_multiple_of(4), 0);
            put_option(block, OPTION_FLAGS, &direction.to_le_bytes());
            if let Some(comment) = comment {
                put_option(block, OPTION_COMMENT, comment.as_bytes());
            }
            block.extend([0; 4]);
        };
        self.put(ENHANCED_PACKET, body, len_max.saturating_sub(STATISTICS_LEN))
    }

    /// Writes the number of frames that the interface has lost, and flushes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, at_ns: u64, dropped: u64) -> io::Result<()> {
        let (high, low) = halves(at_ns);
        let mut body = vec![0; 4];
        body.extend([high, low].concat());
        body.extend(option(OPTION_DROPPED, &dropped.to_le_bytes()));
        body.extend([0; 4]);
        self.put(INTERFACE_STATISTICS, |block| block.extend(body), u64::MAX)?;
        self.sink.flush()
    }

    /// Writes buffered data.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// Writes a block, if the file is then not longer than `len_max`.
    fn put(
        &mut self,
        kind: u32,
        body: impl FnOnce(&mut Vec<u8>),
        len_max: u64,
    ) -> io::Result<bool> {
        let Self { sink, len, block, .. } = self;
        block.clear();
        block.extend(kind.to_le_bytes());
        block.extend([0; 4]);
        body(block);
        let block_len = u32::try_from(block.len() + 4).unwrap_or(u32::MAX).to_le_bytes();
        block[4..8].copy_from_slice(&block_len);
        block.extend(block_len);
        if *len + block.len() as u64 > len_max {
            return Ok(false);
        }
        *len += block.len() as u64;
        sink.write_all(block).map(|()| true)
    }
}

fn halves(at_ns: u64) -> ([u8; 4], [u8; 4]) {
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0).to_le_bytes();
    (half(at_ns >> 32), half(at_ns))
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = Vec::new();
    put_option(&mut option, code, value);
    option
}

/// Adds an option; omits a value that is too long for its length field.
fn put_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(len) = u16::try_from(value.len()) else { return };
    to.extend(code.to_le_bytes());
    to.extend(len.to_le_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

const INTERFACE_STATISTICS: u32 = 5;
/// Length of that block, which is the last.
const STATISTICS_LEN: u64 = 12 + 12 + 12 + 4;
const OPTION_NAME: u16 = 2;
const OPTION_FLAGS: u16 = 2;
const OPTION_PROGRAM: u16 = 4;
const OPTION_DROPPED: u16 = 5;
const OPTION_TIMESTAMP_UNIT: u16 = 9;
