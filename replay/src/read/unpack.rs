//! Compressed captures: gzip and zstd, recognised by their first bytes.
//!
//! A truncated file is decompressed as far as possible, and [`Unpacked::cut`] says so. A file that
//! decompresses to a multiple of its length is refused: it could keep a reader busy for hours.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::GzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

use crate::limits::{
    EMPTY_PARTS_MAX, PART_COST, UNPACKED_FREE, UNPACKED_RATIO_MAX, ZSTD_WINDOW_MAX,
};

pub(crate) struct Unpacked<R: Read> {
    packing: Packing<R>,
    progress: Rc<Progress>,
    /// Bytes decompressed so far, and the limit of the caller.
    unpacked: u64,
    unpacked_max: Option<u64>,
    parts: u64,
    empty_parts: usize,
    cut: Option<&'static str>,
}

/// The file from its first byte on; its first bytes are read already.
type Whole<R> = BufReader<Chain<Cursor<Vec<u8>>, Packed<R>>>;

enum Packing<R: Read> {
    None(Whole<R>),
    Gzip(Box<GzDecoder<Whole<R>>>),
    Zstd(Frame<R>),
    /// Rest of the decoder's window for a truncated frame, not read yet.
    ZstdWindow(Box<FrameDecoder>),
    End,
}

/// The magic number of a frame is read before the decoder is created.
type Frame<R> = Box<StreamingDecoder<Chain<Cursor<Vec<u8>>, Whole<R>>, FrameDecoder>>;

#[derive(Debug, Default)]
struct Progress {
    read: Cell<u64>,
    is_at_end: Cell<bool>,
}

struct Packed<R> {
    source: R,
    progress: Rc<Progress>,
}

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        let Progress { read, is_at_end } = &*self.progress;
        read.set(read.get() + len as u64);
        is_at_end.set(len == 0 && !buffer.is_empty());
        Ok(len)
    }
}

impl<R: Read> std::fmt::Debug for Unpacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unpacked({})", self.packing.name())
    }
}

impl<R: Read> Packing<R> {
    const fn name(&self) -> &'static str {
        match self {
            Self::None(_) => "as it is",
            Self::Gzip(_) => "gzip",
            Self::Zstd(_) | Self::ZstdWindow(_) => "zstd",
            Self::End => "end",
        }
    }
}

impl<R: Read> Unpacked<R> {
    /// Detects the compression from the first bytes. Unpacks at most `unpacked_max` bytes; without
    /// it [`UNPACKED_FREE`] and [`UNPACKED_RATIO_MAX`] apply.
    pub(crate) fn new(mut source: R, unpacked_max: Option<u64>) -> io::Result<Self> {
        let mut magic = Vec::with_capacity(MAGIC_LEN);
        source.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut magic)?;
        let is_gzip = magic.starts_with(&GZIP);
        let is_zstd = magic == ZSTD || is_skippable(&magic);
        let progress = Rc::<Progress>::default();
        let packed = Packed { source, progress: Rc::clone(&progress) };
        let whole = BufReader::with_capacity(BUFFER_LEN, Cursor::new(magic).chain(packed));
        let mut unpacked = Self {
            packing: Packing::End,
            progress,
            unpacked: 0,
            unpacked_max,
            parts: 0,
            empty_parts: 0,
            cut: None,
        };
        match () {
            () if is_gzip => unpacked.packing = Packing::Gzip(Box::new(GzDecoder::new(whole))),
            () if is_zstd => unpacked.begin_frame(whole)?,
            () => unpacked.packing = Packing::None(whole),
        }
        Ok(unpacked)
    }

    /// Name of the compression, if the compressed file was truncated.
    pub(crate) const fn cut(&self) -> Option<&'static str> {
        self.cut
    }

    fn advance(&mut self) -> io::Result<()> {
        self.empty_parts += 1;
        if self.empty_parts > EMPTY_PARTS_MAX {
            return Err(io::Error::other(format!(
                "more than {EMPTY_PARTS_MAX} packed parts in a row have nothing in them"
            )));
        }
        self.parts += 1;
        self.check_len()?;
        match std::mem::replace(&mut self.packing, Packing::End) {
            Packing::Gzip(member) => {
                let mut whole = member.into_inner();
                if !whole.fill_buf()?.is_empty() {
                    self.packing = Packing::Gzip(Box::new(GzDecoder::new(whole)));
                }
                Ok(())
            }
            // The decoder has read a part of the rest of the file.
            Packing::Zstd(frame) => self.begin_frame(frame.into_inner().into_inner().1),
            _ => Ok(()),
        }
    }

    fn begin_frame(&mut self, whole: Whole<R>) -> io::Result<()> {
        match next_frame(whole) {
            Ok(frame) => self.packing = frame.map_or(Packing::End, Packing::Zstd),
            Err(_) if self.progress.is_at_end.get() => self.cut = Some("zstd"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles the end of the file inside a part: takes the rest of the decoder's output.
    fn cut_off(&mut self) {
        self.cut = Some(self.packing.name());
        if let Packing::Zstd(frame) = std::mem::replace(&mut self.packing, Packing::End) {
            let mut decoder = frame.into_frame_decoder();
            // An empty last block releases the bytes kept as a reference for later blocks.
            if decoder.decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::All).is_ok() {
                self.packing = Packing::ZstdWindow(Box::new(decoder));
            }
        }
    }

    fn check_len(&self) -> io::Result<()> {
        if let Some(max) = self.unpacked_max {
            return match self.unpacked > max {
                true => Err(io::Error::other(format!("it unpacks to more than {max} bytes"))),
                false => Ok(()),
            };
        }
        let max = UNPACKED_FREE.max(self.progress.read.get().saturating_mul(UNPACKED_RATIO_MAX));
        if self.unpacked.saturating_add(self.parts.saturating_mul(PART_COST)) <= max {
            return Ok(());
        }
        let parts = match self.parts.saturating_mul(PART_COST) < self.unpacked {
            true => String::new(),
            false => format!(" (each of its {} packed parts counts {PART_COST})", self.parts),
        };
        Err(io::Error::other(format!(
            "it unpacks to more than {} MiB, and {UNPACKED_RATIO_MAX} times its length{parts}: if you \
             trust the file, allow more with --unpack-max",
            UNPACKED_FREE >> 20
        )))
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match &mut self.packing {
                Packing::None(whole) => return whole.read(buffer),
                Packing::End => return Ok(0),
                Packing::Gzip(member) => member.read(buffer),
                Packing::Zstd(frame) => frame.read(buffer),
                Packing::ZstdWindow(decoder) => decoder.read(buffer),
            };
            match read {
                Ok(0) if buffer.is_empty() => return Ok(0),
                Ok(0) => self.advance()?,
                Ok(len) => {
                    self.empty_parts = 0;
                    self.unpacked += len as u64;
                    self.check_len()?;
                    return Ok(len);
                }
                Err(_) if self.progress.is_at_end.get() => self.cut_off(),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Finds the next frame with data; `None` at the end of the file.
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

/// Frames of user data have sixteen magic numbers (RFC 8878 §3.1.2).
fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// RFC 1952 §2.3.1, with the only defined method.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
/// RFC 8878 §3.1.1.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const MAGIC_LEN: usize = 4;
/// RFC 8878 §3.1.1.2: a last block, raw, empty; then bytes for a checksum.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
const BUFFER_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::read::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// Reads one byte at a time, as a slow pipe does.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = buffer.len().min(1);
            self.0.read(&mut buffer[..len])
        }
    }

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut source = Unpacked::new(Slow(packed), None)?;
        source.read_to_end(&mut out)?;
        assert_eq!(source.cut(), None);
        Ok(out)
    }

    /// Returns the output of a truncated file, and its compression.
    fn cut(packed: &[u8]) -> (Vec<u8>, Option<&'static str>) {
        let mut out = Vec::new();
        let mut source = Unpacked::new(Slow(packed), None).unwrap();
        source.read_to_end(&mut out).unwrap();
        (out, source.cut())
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
    fn compressed_files_are_unpacked_and_others_pass_unchanged() {
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

    /// `len` bytes of user data, in a frame that decoders skip.
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
        for file in [skippable(0, 9), [zstd(&octets), skippable(0, 9)].concat()] {
            for missing in [1, 10, 13] {
                let (out, packing) = cut(&file[..file.len() - missing]);
                assert_eq!(packing, Some("zstd"), "{missing}");
                assert!(octets.starts_with(&out) && [0, 5000].contains(&out.len()), "{missing}");
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
    fn damaged_compressed_data_is_an_error() {
        for packed in [gzip(&[7; 5000]), zstd(&[7; 5000])] {
            let mut damaged = packed.clone();
            let middle = packed.len() / 2;
            damaged[middle..middle + 4].fill(0xff);
            // Enough bytes after the damage that it is not taken for the end of the file.
            damaged.extend([0xff; 200_000]);
            assert!(unpacked(&damaged).is_err());
        }
        let mut wrong_sum = gzip(&[7; 5000]);
        let at = wrong_sum.len() - 8;
        wrong_sum[at] ^= 1;
        assert!(unpacked(&wrong_sum).is_err());
    }

    #[test]
    fn a_file_that_is_cut_off_is_unpacked_as_far_as_it_goes() {
        let octets: Vec<u8> =
            (0..200_000_u32).flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        for (name, packed) in [("gzip", gzip(&octets)), ("zstd", zstd(&octets))] {
            let mut longest = 0;
            for len in (5..packed.len()).step_by(packed.len() / 50).chain([packed.len() - 1]) {
                let (out, packing) = cut(&packed[..len]);
                assert_eq!(packing, Some(name), "{len} of {}", packed.len());
                assert!(octets.starts_with(&out), "{len}");
                assert!(out.len() >= longest, "{len}");
                longest = out.len();
            }
            assert!(longest > octets.len() / 2, "{name}: {longest} of {}", octets.len());
            let (head, tail) = (packed.clone(), &packed[..packed.len() / 2]);
            let (out, packing) = cut(&[&head[..], tail].concat());
            assert_eq!(packing, Some(name), "a second part that is cut");
            assert!(out.starts_with(&octets) && out.len() > octets.len());
        }
    }

    #[test]
    fn a_file_that_unpacks_to_far_more_than_it_is_long_is_refused() {
        let refusal = |packed: &[u8], max| {
            let mut source = Unpacked::new(packed, max).unwrap();
            match io::copy(&mut source, &mut io::sink()) {
                Ok(len) => format!("{len}"),
                Err(error) => error.to_string(),
            }
        };
        let member = gzip(&[0; 1 << 20]);
        for packed in [member.clone(), zstd(&[0; 1 << 20])] {
            assert_eq!(refusal(&packed, None), "1048576");
            assert_eq!(refusal(&packed, Some(1 << 20)), "1048576");
            let text = refusal(&packed, Some((1 << 20) - 1));
            assert_eq!(text, "it unpacks to more than 1048575 bytes");
        }
        // A file of many members that decompresses to a thousand times its length.
        let count = usize::try_from(UNPACKED_FREE >> 20).unwrap() + 1;
        let bomb = member.repeat(count);
        let text = refusal(&bomb, None);
        assert!(text.starts_with("it unpacks to more than 1024 MiB, and 64 times"), "{text}");
        assert!(
            text.ends_with("its length: if you trust the file, allow more with --unpack-max"),
            "{text}"
        );
        assert_eq!(refusal(&bomb, Some(u64::MAX)), (count << 20).to_string());
    }

    #[test]
    fn a_file_of_more_parts_than_its_length_allows_is_refused() {
        let count = usize::try_from(UNPACKED_FREE / PART_COST).unwrap() + 1;
        let packed = gzip(b"x").repeat(count);
        let mut source = Unpacked::new(&packed[..], None).unwrap();
        let error = io::copy(&mut source, &mut io::sink()).unwrap_err().to_string();
        assert!(error.contains(" packed parts counts 4096): if you trust the file"), "{error}");
        // The caller's limit counts only bytes.
        let mut source = Unpacked::new(&packed[..], Some(count as u64)).unwrap();
        assert_eq!(io::copy(&mut source, &mut io::sink()).unwrap(), count as u64);
    }

    #[test]
    fn consecutive_empty_parts_are_limited() {
        for (part, full) in [(gzip(b""), gzip(b"abc")), (zstd(b""), zstd(b"abc"))] {
            let few = part.repeat(EMPTY_PARTS_MAX - 1);
            let packed = [&few[..], &full, &few, &full].concat();
            assert_eq!(unpacked(&packed).unwrap(), b"abcabc");
            let error = unpacked(&part.repeat(EMPTY_PARTS_MAX + 1)).unwrap_err();
            assert!(error.to_string().contains("have nothing in them"), "{error}");
        }
    }
}
