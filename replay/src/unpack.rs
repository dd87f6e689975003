//! Captures that are packed: gzip and zstd, recognised by how they begin.

use std::io::{self, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::limits::ZSTD_WINDOW_MAX;

/// A capture, unpacked where it was packed.
pub(crate) struct Unpacked<R: Read>(Packing<R>);

/// The file from its first octet on, of which the first few were read already.
type Whole<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

enum Packing<R: Read> {
    None(Whole<R>),
    Gzip(MultiGzDecoder<Whole<R>>),
    /// Frame after frame; `None` behind the last.
    Zstd(Option<Frame<R>>),
}

/// The magic number of a frame is read before the decoder is made.
type Frame<R> =
    Box<StreamingDecoder<Chain<Cursor<Vec<u8>>, Whole<R>>, ruzstd::decoding::FrameDecoder>>;

impl<R: Read> std::fmt::Debug for Unpacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            Packing::None(_) => "Unpacked(as it is)",
            Packing::Gzip(_) => "Unpacked(gzip)",
            Packing::Zstd(_) => "Unpacked(zstd)",
        })
    }
}

impl<R: Read> Unpacked<R> {
    /// Looks at the first octets of `source`.
    ///
    /// # Errors
    /// When they cannot be read, or begin a file of zstd that is damaged.
    pub(crate) fn new(mut source: R) -> io::Result<Self> {
        let mut magic = Vec::with_capacity(MAGIC_LEN);
        source.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut magic)?;
        let is_gzip = magic.starts_with(&GZIP);
        let is_zstd = magic == ZSTD || is_skippable(&magic);
        let whole = BufReader::with_capacity(BUFFER_LEN, Cursor::new(magic).chain(source));
        Ok(Self(match () {
            () if is_gzip => Packing::Gzip(MultiGzDecoder::new(whole)),
            () if is_zstd => Packing::Zstd(next_frame(whole)?),
            () => Packing::None(whole),
        }))
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Packing::None(whole) => whole.read(buffer),
            Packing::Gzip(decoder) => decoder.read(buffer),
            Packing::Zstd(current) => {
                // RFC 8878 §3: several frames one after the other are one file.
                while let Some(decoder) = current {
                    let len = decoder.read(buffer)?;
                    if len > 0 || buffer.is_empty() {
                        return Ok(len);
                    }
                    let Some(ended) = current.take() else { break };
                    // The decoder has read more than what came before the rest of the file.
                    *current = next_frame(ended.into_inner().into_inner().1)?;
                }
                Ok(0)
            }
        }
    }
}

/// The next frame with data in it; `None` at the end of the file.
fn next_frame<R: Read>(mut whole: Whole<R>) -> io::Result<Option<Frame<R>>> {
    loop {
        let mut magic = Vec::with_capacity(MAGIC_LEN);
        whole.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut magic)?;
        if magic.is_empty() {
            return Ok(None);
        }
        if !is_skippable(&magic) {
            let source = Cursor::new(magic).chain(whole);
            let decoder = StreamingDecoder::new_with_max_window_size(source, ZSTD_WINDOW_MAX);
            return decoder.map(|decoder| Some(Box::new(decoder))).map_err(io::Error::other);
        }
        let mut len = [0; 4];
        whole.read_exact(&mut len)?;
        let len = u64::from(u32::from_le_bytes(len));
        if io::copy(&mut whole.by_ref().take(len), &mut io::sink())? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// RFC 8878 §3.1.2: a frame of user data, sixteen magic numbers, which a decoder passes over.
fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// RFC 1952 §2.3.1, with the only method there is.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
/// RFC 8878 §3.1.1.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const MAGIC_LEN: usize = 4;
const BUFFER_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::read::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// Reads one octet at a time, as a slow pipe does.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = buffer.len().min(1);
            self.0.read(&mut buffer[..len])
        }
    }

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Unpacked::new(Slow(packed))?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn gzip(octets: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        GzEncoder::new(octets, Compression::fast()).read_to_end(&mut out).unwrap();
        out
    }

    fn zstd(octets: &[u8]) -> Vec<u8> {
        compress_to_vec(octets, CompressionLevel::Fastest)
    }

    #[test]
    fn what_was_packed_comes_out_and_what_was_not_is_left_as_it_is() {
        let octets: Vec<u8> = (0..100_000_u32).flat_map(|at| (at / 7).to_le_bytes()).collect();
        for plain in [&octets[..], b"abcdefg", b"a", b""] {
            assert_eq!(unpacked(plain).unwrap(), plain);
            assert_eq!(unpacked(&gzip(plain)).unwrap(), plain);
            assert_eq!(unpacked(&zstd(plain)).unwrap(), plain);
        }
        let (head, tail) = octets.split_at(12_345);
        assert_eq!(unpacked(&[gzip(head), gzip(tail)].concat()).unwrap(), octets);
        assert_eq!(unpacked(&[zstd(head), zstd(tail)].concat()).unwrap(), octets);
    }

    /// `len` octets of user data, in a frame that decoders skip.
    fn skippable(number: u8, len: u32) -> Vec<u8> {
        let head = [&[0x50 + number, 0x2a, 0x4d, 0x18][..], &len.to_le_bytes()].concat();
        [head, vec![0xee; len as usize]].concat()
    }

    #[test]
    fn skippable_frames_of_zstd_are_passed_over_wherever_they_are() {
        let octets = [7; 5000];
        for parts in [
            [skippable(0, 4), zstd(&octets)],
            [zstd(&octets), skippable(15, 100_000)],
            [
                [skippable(3, 0), skippable(4, 1)].concat(),
                [zstd(&octets), skippable(5, 9)].concat(),
            ],
        ] {
            assert_eq!(unpacked(&parts.concat()).unwrap(), octets);
        }
        assert_eq!(unpacked(&skippable(1, 20)).unwrap(), b"");
        for cut in [skippable(0, 9), [zstd(&octets), skippable(0, 9)].concat()] {
            for missing in [1, 10, 13] {
                assert!(unpacked(&cut[..cut.len() - missing]).is_err(), "{missing}");
            }
        }
    }

    #[test]
    fn a_window_of_zstd_beyond_the_limit_is_refused() {
        // RFC 8878 §3.1.1.1.2: exponent 18 above 10, then a mantissa of 0.
        let head = [&ZSTD[..], &[0, 18 << 3]].concat();
        let error = unpacked(&head).unwrap_err();
        assert!(error.to_string().contains("window"), "{error}");
    }

    #[test]
    fn what_is_damaged_or_cut_is_an_error() {
        for packed in [gzip(&[7; 5000]), zstd(&[7; 5000])] {
            assert!(unpacked(&packed[..packed.len() - 3]).is_err());
            let mut damaged = packed.clone();
            damaged[4..].fill(0xff);
            assert!(unpacked(&damaged).is_err());
        }
    }
}
