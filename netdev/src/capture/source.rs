//! Bytes of a capture file, and the reader's position.

use std::io::{self, BufRead, BufReader, Read, Write};

use super::{CaptureError, FRAME_LEN_MAX};

#[derive(Debug)]
pub(super) struct Source<R> {
    file: BufReader<R>,
    offset: u64,
    frame: u64,
    spare: Vec<u8>,
}

impl<R: Read> Source<R> {
    pub(super) fn new(file: R) -> Self {
        let file = BufReader::with_capacity(BUFFER_LEN, file);
        Self { file, offset: 0, frame: 1, spare: Vec::new() }
    }

    pub(super) fn get_ref(&self) -> &R {
        self.file.get_ref()
    }

    pub(super) fn recycle(&mut self, memory: Vec<u8>) {
        self.spare = memory;
    }

    pub(super) const fn frame(&self) -> u64 {
        self.frame
    }

    pub(super) const fn frame_is_complete(&mut self) {
        self.frame += 1;
    }

    pub(super) fn is_at_end(&mut self) -> Result<bool, CaptureError> {
        Ok(self.fill()?.is_empty())
    }

    /// Without consuming them, as far as they are buffered after one read.
    pub(super) fn peek(&mut self) -> &[u8] {
        self.fill().unwrap_or_default()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CaptureError> {
        let mut octets = [0; N];
        let mut filled = 0;
        while filled < N {
            let available = self.fill()?;
            if available.is_empty() {
                return Err(self.truncated());
            }
            let len = available.len().min(N - filled);
            octets[filled..filled + len].copy_from_slice(&available[..len]);
            filled += len;
            self.consume(len);
        }
        Ok(octets)
    }

    pub(super) fn octets(&mut self, len: u32) -> Result<Vec<u8>, CaptureError> {
        let len = match usize::try_from(len) {
            Ok(usable) if usable <= FRAME_LEN_MAX => usable,
            _ => return Err(CaptureError::FrameTooLong { frame: self.frame, len }),
        };
        let mut octets = std::mem::take(&mut self.spare);
        octets.clear();
        self.extend(&mut octets, len)?;
        Ok(octets)
    }

    /// Appends to `octets` until there are `len`.
    pub(super) fn extend(&mut self, octets: &mut Vec<u8>, len: usize) -> Result<(), CaptureError> {
        let missing = len.saturating_sub(octets.len());
        // Reserves at most the buffer's length: a short file can claim many long frames.
        octets.reserve(missing.min(BUFFER_LEN));
        self.copy(octets, missing as u64)
    }

    pub(super) fn skip(&mut self, len: u32) -> Result<(), CaptureError> {
        self.copy(&mut io::sink(), u64::from(len))
    }

    pub(super) fn copy(&mut self, sink: &mut impl Write, len: u64) -> Result<(), CaptureError> {
        let mut left = len;
        while left > 0 {
            let available = self.fill()?;
            if available.is_empty() {
                return Err(self.truncated());
            }
            let taken = available.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            sink.write_all(&available[..taken])?;
            self.consume(taken);
            left -= taken as u64;
        }
        Ok(())
    }

    pub(super) const fn malformed(&self, what: &'static str) -> CaptureError {
        CaptureError::Malformed { frame: self.frame, offset: self.offset, what }
    }

    const fn truncated(&self) -> CaptureError {
        CaptureError::Truncated { frame: self.frame, offset: self.offset }
    }

    fn consume(&mut self, len: usize) {
        self.file.consume(len);
        self.offset = self.offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// Reads first if no bytes are buffered. Empty at the end of the file.
    fn fill(&mut self) -> Result<&[u8], CaptureError> {
        loop {
            match self.file.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.file.buffer())
    }
}

const BUFFER_LEN: usize = 64 * 1024;
