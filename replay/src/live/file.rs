//! A pcapng file of a live capture.

use std::io::{self, Write};

use urnic_netdev::Medium;
use urnic_netdev::capture::{PcapngWriter, WrittenFrame};

use super::LiveFrame;

/// A file of one Ethernet interface, with nanoseconds.
#[derive(Debug)]
pub struct LiveFile<W: Write> {
    file: PcapngWriter<W>,
    /// Bytes kept of each frame.
    snap_len: usize,
}

impl<W: Write> LiveFile<W> {
    /// Begins a file for `interface`, written by `program`, with frames cut to `snap_len` bytes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(sink: W, interface: &str, program: &str, snap_len: Option<u32>) -> io::Result<Self> {
        let mut file = PcapngWriter::new(sink, Some(program))?;
        file.interface(Medium::Ethernet, interface, snap_len.unwrap_or(0))?;
        let snap_len = snap_len.and_then(|len| usize::try_from(len).ok()).unwrap_or(usize::MAX);
        Ok(Self { file, snap_len })
    }

    /// Adds a frame. Returns false, and writes nothing, if the file would be longer than `len_max`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn frame(
        &mut self,
        frame: &LiveFrame,
        comment: Option<&str>,
        len_max: u64,
    ) -> io::Result<bool> {
        let LiveFrame { at_ns, is_outbound, original_len, ref bytes } = *frame;
        let bytes = &bytes[..bytes.len().min(self.snap_len)];
        let frame = WrittenFrame { interface: 0, at_ns, is_outbound, original_len, bytes, comment };
        self.file.frame(&frame, len_max)
    }

    /// Writes the number of frames that the interface has lost, and flushes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, at_ns: u64, dropped: u64) -> io::Result<()> {
        self.file.statistics(at_ns, dropped)?;
        self.file.flush()
    }

    /// Writes buffered data.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
