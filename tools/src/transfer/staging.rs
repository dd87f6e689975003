//! Memory between the network and a file: a buffer for each chunk in flight.
//!
//! Peers access this memory, never the file: shortening a file causes a short read in its session,
//! but would end the process with a SIGBUS if the file were mapped.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use urnic::Region;
use urnic_engine::wire::crc32c::Crc32c;

use crate::protocol::{CHUNK_LEN, PLACES_MAX};
use crate::transfer::chunk_range;

#[derive(Clone, Debug)]
pub(crate) struct Staging {
    region: Arc<Region>,
    place_len: u64,
    len: u64,
}

pub(crate) const fn place_len(len: u64) -> u64 {
    if len < CHUNK_LEN { len } else { CHUNK_LEN }
}

/// `None` if not even one chunk buffer fits.
pub(crate) fn places_within(len: u64, memory_max: u64) -> Option<u32> {
    let fit = memory_max.checked_div(place_len(len)).unwrap_or(u64::MAX);
    let wanted = len.div_ceil(CHUNK_LEN).clamp(1, u64::from(PLACES_MAX));
    u32::try_from(fit.min(wanted)).ok().filter(|places| *places > 0)
}

impl Staging {
    /// Allocates by `memory`.
    pub(crate) fn new(
        len: u64,
        places: u32,
        memory: impl FnOnce(usize) -> io::Result<Arc<Region>>,
    ) -> io::Result<Self> {
        let place_len = place_len(len);
        let total = place_len.checked_mul(u64::from(places));
        let total = total.and_then(|total| usize::try_from(total).ok());
        let region = memory(total.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Self { region, place_len, len })
    }

    pub(crate) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// Offset of the bytes `range` of the file, if their chunk is in `place`.
    pub(crate) fn offset(&self, place: u32, range: &Range<u64>) -> u64 {
        u64::from(place) * self.place_len + range.start % CHUNK_LEN
    }

    /// Returns the CRC32c. Fails if the file has become shorter, or for a wrong chunk or place.
    pub(crate) fn load(&self, file: &File, index: u64, place: u32) -> io::Result<u32> {
        let chunk = chunk_range(index, self.len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut crc = Crc32c::new();
        self.load_piece(file, place, chunk, &mut crc)?;
        Ok(crc.finish())
    }

    /// The bytes are within one chunk.
    pub(crate) fn load_piece(
        &self,
        file: &File,
        place: u32,
        range: Range<u64>,
        crc: &mut Crc32c,
    ) -> io::Result<()> {
        let mut at = self.offset(place, &range);
        let mut buffer = vec![0; buffer_len(&range)];
        let mut from = range.start;
        while from < range.end {
            let len = buffer_len(&(from..range.end));
            let octets = &mut buffer[..len];
            file.read_exact_at(octets, from).map_err(shortened)?;
            crc.update(octets);
            self.region.write(to_usize(at)?, octets).map_err(io::Error::other)?;
            (from, at) = (from + len as u64, at + len as u64);
        }
        Ok(())
    }

    /// Returns the CRC32c of the written bytes. The peer may change the memory meanwhile, so each
    /// byte is read once.
    pub(crate) fn store(&self, file: &File, index: u64, place: u32) -> io::Result<u32> {
        let chunk = chunk_range(index, self.len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut at = self.offset(place, &chunk);
        let mut buffer = vec![0; buffer_len(&chunk)];
        let mut crc = Crc32c::new();
        let mut to = chunk.start;
        while to < chunk.end {
            let len = buffer_len(&(to..chunk.end));
            let octets = &mut buffer[..len];
            self.region.read(to_usize(at)?, octets).map_err(io::Error::other)?;
            crc.update(octets);
            file.write_all_at(octets, to)?;
            (to, at) = (to + len as u64, at + len as u64);
        }
        Ok(crc.finish())
    }
}

fn buffer_len(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(BUFFER_LEN)
}

fn to_usize(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(io::Error::other)
}

pub(crate) fn shortened(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter meanwhile")
        }
        _ => error,
    }
}

/// Bytes copied at a time: they stay in the cache.
const BUFFER_LEN: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn file(octets: &[u8]) -> File {
        let file = crate::transfer::unnamed_file().unwrap();
        file.write_all_at(octets, 0).unwrap();
        file
    }

    #[test]
    fn places_are_as_many_as_fit_and_as_the_file_has_chunks() {
        assert_eq!(places_within(0, 0), Some(1), "an empty file needs no memory");
        assert_eq!(places_within(10, 10), Some(1));
        assert_eq!(places_within(10, 9), None);
        assert_eq!(places_within(CHUNK_LEN + 1, 100 * CHUNK_LEN), Some(2));
        assert_eq!(places_within(100 * CHUNK_LEN, 100 * CHUNK_LEN), Some(PLACES_MAX));
        assert_eq!(places_within(100 * CHUNK_LEN, 2 * CHUNK_LEN), Some(2));
        assert_eq!(places_within(u64::MAX, CHUNK_LEN - 1), None);
    }

    #[test]
    fn a_chunk_crosses_whole_and_a_shortened_file_says_so() {
        let len = CHUNK_LEN + 300_001;
        let octets: Vec<u8> =
            (0..len).map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
        let from = file(&octets);
        let staging = Staging::new(len, 2, Region::anonymous).unwrap();
        let to = file(&[]);
        for (index, place) in [(0, 1), (1, 0)] {
            let crc = staging.load(&from, index, place).unwrap();
            assert_eq!(staging.store(&to, index, place).unwrap(), crc);
        }
        let mut back = vec![0; octets.len()];
        to.read_exact_at(&mut back, 0).unwrap();
        assert!(back == octets);
        assert!(staging.load(&from, 2, 0).is_err(), "there is no such chunk");
        assert!(staging.load(&from, 0, 2).is_err(), "there is no such place");
        assert!(staging.store(&to, 0, u32::MAX).is_err(), "there is no such place");
        from.set_len(CHUNK_LEN + 300_000).unwrap();
        assert!(staging.load(&from, 0, 0).is_ok());
        let error = staging.load(&from, 1, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("shorter"), "{error}");
    }
}
