//! Checksums of files: CRC32c of chunks, SHA-256 of the whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};
use urnic_engine::wire::crc32c::Crc32c;

use crate::transfer::chunk_range;
use crate::transfer::staging::shortened;

pub(crate) fn chunk_crc(file: &File, index: u64, len: u64) -> io::Result<u32> {
    let range = chunk_range(index, len).ok_or(io::ErrorKind::InvalidInput)?;
    let mut crc = Crc32c::new();
    let mut buffer = vec![0; BUFFER_LEN];
    let mut at = range.start;
    while at < range.end {
        let octets = read(file, at, range.end, &mut buffer)?;
        crc.update(octets);
        at += octets.len() as u64;
    }
    Ok(crc.finish())
}

/// Reads a part, not beyond `end`.
fn read<'a>(file: &File, at: u64, end: u64, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
    file.read_exact_at(&mut buffer[..len], at).map_err(shortened)?;
    Ok(&buffer[..len])
}

/// Hashes in steps: a large file takes a while.
#[derive(Debug)]
pub(crate) struct Hashing {
    state: Sha256,
    at: u64,
    len: u64,
    buffer: Vec<u8>,
}

impl Hashing {
    pub(crate) fn new(len: u64) -> Self {
        Self { state: Sha256::new(), at: 0, len, buffer: vec![0; BUFFER_LEN] }
    }

    /// Returns the digest when all is hashed.
    pub(crate) fn step(&mut self, file: &File) -> io::Result<Option<[u8; 32]>> {
        if self.at < self.len {
            let octets = read(file, self.at, self.len, &mut self.buffer)?;
            self.state.update(octets);
            self.at += octets.len() as u64;
        }
        let is_done = self.at == self.len;
        Ok(is_done.then(|| self.state.clone().finalize().into()))
    }

    /// Hashes the rest, while `wanted` returns true; `None` if it was stopped before the end.
    pub(crate) fn finish(
        mut self,
        file: &File,
        wanted: impl Fn() -> bool,
    ) -> io::Result<Option<[u8; 32]>> {
        while wanted() {
            if let Some(sha256) = self.step(file)? {
                return Ok(Some(sha256));
            }
        }
        Ok(None)
    }
}

/// A step stays in the cache, and takes less than a millisecond.
const BUFFER_LEN: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::unnamed_file;
    use std::cell::Cell;

    #[test]
    fn hashing_stops_when_its_result_is_unneeded() {
        let file = unnamed_file().unwrap();
        let len = 10 * BUFFER_LEN as u64;
        file.set_len(len).unwrap();
        let asked = Cell::new(0);
        let wanted = || asked.replace(asked.get() + 1) < 3;
        assert_eq!(Hashing::new(len).finish(&file, wanted).unwrap(), None);
        assert_eq!(asked.get(), 4, "asked before every step");
        assert!(Hashing::new(len).finish(&file, || true).unwrap().is_some());
        assert!(Hashing::new(len + 1).finish(&file, || true).is_err(), "it is shorter");
    }
}
