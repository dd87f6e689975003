//! A pcapng file of frames as they pass.

use std::io::{self, Write};

use super::LiveFrame;
use crate::comments::blocks::{
    Block, ENHANCED_PACKET, INTERFACE_DESCRIPTION, Order, SECTION_HEADER,
};

/// A file of one Ethernet interface, with nanoseconds.
#[derive(Debug)]
pub struct LiveFile<W: Write> {
    sink: W,
    len: u64,
}

impl<W: Write> LiveFile<W> {
    /// Begins a file of the frames of `interface`, written by `program`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(sink: W, interface: &str, program: &str) -> io::Result<Self> {
        let mut file = Self { sink, len: 0 };
        let mut section = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        // Its length is not told.
        section.extend([0xff; 8]);
        section.extend(option(OPTION_PROGRAM, program.as_bytes()));
        section.extend([0; 4]);
        file.put(&block(SECTION_HEADER, &section))?;
        // Ethernet, without a limit of length.
        let mut about = vec![1, 0, 0, 0, 0, 0, 0, 0];
        about.extend(option(OPTION_NAME, interface.as_bytes()));
        about.extend(option(OPTION_TIMESTAMP_UNIT, &[9]));
        about.extend([0; 4]);
        file.put(&block(INTERFACE_DESCRIPTION, &about))?;
        Ok(file)
    }

    /// Adds a frame. Returns false, and writes nothing, if the file would be longer than `len_max` then.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn frame(
        &mut self,
        frame: &LiveFrame,
        comment: Option<&str>,
        len_max: u64,
    ) -> io::Result<bool> {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        let (high, low) = halves(frame.at_ns);
        let mut body = vec![0; 4];
        body.extend([high, low].concat());
        body.extend(number(frame.bytes.len()));
        body.extend(number(frame.original_len));
        body.extend(&frame.bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        let direction: u32 = if frame.is_outbound { 0b10 } else { 0b01 };
        body.extend(option(OPTION_FLAGS, &direction.to_le_bytes()));
        body.extend([0; 4]);
        let mut block = block(ENHANCED_PACKET, &body);
        if let Some(comment) = comment {
            block.comment(comment);
        }
        if self.len + block.octets.len() as u64 + STATISTICS_LEN > len_max {
            return Ok(false);
        }
        self.put(&block).map(|()| true)
    }

    /// Says how many frames the interface has lost, and flushes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self, at_ns: u64, dropped: u64) -> io::Result<()> {
        let (high, low) = halves(at_ns);
        let mut body = vec![0; 4];
        body.extend([high, low].concat());
        body.extend(option(OPTION_DROPPED, &dropped.to_le_bytes()));
        body.extend([0; 4]);
        self.put(&block(INTERFACE_STATISTICS, &body))?;
        self.sink.flush()
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    fn put(&mut self, block: &Block) -> io::Result<()> {
        self.len += block.octets.len() as u64;
        self.sink.write_all(&block.octets)
    }
}

fn halves(at_ns: u64) -> ([u8; 4], [u8; 4]) {
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0).to_le_bytes();
    (half(at_ns >> 32), half(at_ns))
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len()).unwrap_or(0);
    let mut option = [code.to_le_bytes(), len.to_le_bytes()].concat();
    option.extend(&value[..usize::from(len)]);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

fn block(kind: u32, body: &[u8]) -> Block {
    let len = u32::try_from(body.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
    let octets = [&kind.to_le_bytes()[..], &len, body, &len].concat();
    Block { order: Order::Little, kind, octets, rest: None }
}

const INTERFACE_STATISTICS: u32 = 5;
/// Octets of that block, which is the last.
const STATISTICS_LEN: u64 = 12 + 12 + 12 + 4;
const OPTION_NAME: u16 = 2;
const OPTION_FLAGS: u16 = 2;
const OPTION_PROGRAM: u16 = 4;
const OPTION_DROPPED: u16 = 5;
const OPTION_TIMESTAMP_UNIT: u16 = 9;
