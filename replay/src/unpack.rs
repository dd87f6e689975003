//! Captures that are packed: gzip and zstd, recognised by how they begin.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// A capture, unpacked where it was packed.
pub(crate) struct Unpacked<R: Read>(Packing<R>);

/// The file from its first octet on, of which the first few were read already.
type Whole<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

enum Packing<R: Read> {
    None(Whole<R>),
    Gzip(MultiGzDecoder<Whole<R>>),
    /// Frame after frame; `None` at the end.
    Zstd(Option<Frame<R>>),
}

type Frame<R> = Box<StreamingDecoder<Whole<R>, ruzstd::decoding::FrameDecoder>>;

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
        let (is_gzip, is_zstd) = (magic.starts_with(&GZIP), magic.starts_with(&ZSTD));
        let whole = BufReader::with_capacity(BUFFER_LEN, Cursor::new(magic).chain(source));
        Ok(Self(match () {
            () if is_gzip => Packing::Gzip(MultiGzDecoder::new(whole)),
            () if is_zstd => Packing::Zstd(Some(frame(whole)?)),
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
                    let mut rest = ended.into_inner();
                    if !rest.fill_buf()?.is_empty() {
                        *current = Some(frame(rest)?);
                    }
                }
                Ok(0)
            }
        }
    }
}

fn frame<R: Read>(whole: Whole<R>) -> io::Result<Frame<R>> {
    StreamingDecoder::new(whole).map(Box::new).map_err(io::Error::other)
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
