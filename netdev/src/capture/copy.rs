//! A capture as pcapng blocks, for copies, with a comment added to packet blocks: all other bytes
//! are unchanged. (`pcap-file` rebuilds a changed block: options that it does not know or considers
//! wrong, their order, and padding.) A pcap file becomes a section with one interface.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use super::classic::Variant;
use super::format::{
    ENHANCED_PACKET, Endianness, INTERFACE_DESCRIPTION, OPTION_COMMENT, OPTION_END, OPTION_FCS_LEN,
    OPTION_TIMESTAMP_UNIT, PACKET, SECTION_HEADER, SIMPLE_PACKET, block_len,
};
use super::pcapng::{IMPOSSIBLE_LENGTH, LENGTHS_DIFFER, NO_BYTE_ORDER};
use super::source::Source;
use super::{CaptureError, foreign, write};

/// Reader of the blocks of a capture file, in order.
#[derive(Debug)]
pub struct BlockReader<R> {
    source: Source<R>,
    next: Next,
}

#[derive(Debug)]
enum Next {
    /// A block of pcapng, in the byte order of the last section; its first bytes, if already read.
    Block(Endianness, Option<[u8; 4]>),
    Section(Variant),
    /// Its interface.
    Interface(Variant, Block),
    Record(Variant),
}

/// One block with its type and both its lengths.
#[derive(Debug)]
pub struct Block {
    order: Endianness,
    kind: u32,
    octets: Vec<u8>,
    rest: Option<File>,
}

impl<R: Read> BlockReader<R> {
    /// Recognises the format. Reading is buffered here. Fails if the file cannot be read, has less
    /// than four bytes, or is no capture.
    pub fn open(file: R) -> Result<Self, CaptureError> {
        let mut source = Source::new(file);
        let magic = source.array::<4>()?;
        let next = match (Variant::of(magic), u32::from_be_bytes(magic)) {
            (Some(variant), _) => Next::Section(variant),
            (None, SECTION_HEADER) => Next::Block(Endianness::Little, Some(magic)),
            (None, magic) => {
                let known = foreign::format(magic, source.peek());
                return Err(CaptureError::UnknownFormat { magic, known });
            }
        };
        Ok(Self { source, next })
    }

    /// Returns the file.
    pub fn get_ref(&self) -> &R {
        self.source.get_ref()
    }

    /// Returns the next block. One of more than 64 MiB that is no packet is kept in a file that
    /// `create` creates. Fails if there are no further whole blocks, or the file cannot be used.
    pub fn next_block(
        &mut self,
        create: impl FnOnce() -> io::Result<File>,
    ) -> Result<Option<Block>, CaptureError> {
        let source = &mut self.source;
        let (block, next) =
            match std::mem::replace(&mut self.next, Next::Block(Endianness::Little, None)) {
                Next::Block(order, magic) => {
                    let Some(block) = Block::read(source, order, magic, create)? else {
                        return Ok(None);
                    };
                    let order = block.order;
                    (block, Next::Block(order, None))
                }
                Next::Section(variant) => {
                    let [section, interface] = heads(variant, source)?;
                    (section, Next::Interface(variant, interface))
                }
                Next::Interface(variant, interface) => (interface, Next::Record(variant)),
                Next::Record(variant) => match packet(variant, source)? {
                    Some(block) => (block, Next::Record(variant)),
                    None => return Ok(None),
                },
            };
        self.next = next;
        if block.is_frame() {
            self.source.frame_is_complete();
        }
        Ok(Some(block))
    }
}

/// Reads the header of a pcap file as a section and its interface.
fn heads<R: Read>(variant: Variant, source: &mut Source<R>) -> Result<[Block; 2], CaptureError> {
    let order = variant.endianness;
    let _version = variant.version(source)?;
    let (snap_len, network) = variant.head(source)?;
    let section = Block::new(order, SECTION_HEADER, |block| write::section(order, block));
    let interface = Block::new(order, INTERFACE_DESCRIPTION, |block| {
        let link = u16::try_from(network & 0xffff).unwrap_or(0);
        write::interface(order, block, link, snap_len);
        let unit = if variant.fraction_ns == 1 { 9 } else { 6 };
        write::option(order, block, OPTION_TIMESTAMP_UNIT, &[unit]);
        // The F bit: the number of 16-bit words of the check sequence at the end of each frame.
        if network & 1 << 26 != 0 {
            let len = u8::try_from(network >> 28).unwrap_or(0) * 2;
            write::option(order, block, OPTION_FCS_LEN, &[len]);
        }
        block.extend([0; 4]);
    });
    Ok([section, interface])
}

fn packet<R: Read>(
    variant: Variant,
    source: &mut Source<R>,
) -> Result<Option<Block>, CaptureError> {
    let Some(record) = variant.record(source)? else { return Ok(None) };
    let octets = source.octets(record.captured_len)?;
    let per_second = 1_000_000_000 / variant.fraction_ns;
    let ticks = u64::from(record.seconds) * per_second + u64::from(record.fraction);
    let lens = [record.captured_len, record.original_len];
    let order = variant.endianness;
    let block = Block::new(order, ENHANCED_PACKET, |block| {
        write::packet(order, block, 0, ticks, lens);
        block.extend(&octets);
        block.resize(block.len().next_multiple_of(4), 0);
    });
    source.recycle(octets);
    Ok(Some(block))
}

impl Block {
    fn new(order: Endianness, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut octets = Vec::new();
        write::begin(order, &mut octets, kind);
        body(&mut octets);
        write::end(order, &mut octets);
        Self { order, kind, octets, rest: None }
    }

    /// The last section is in `order`; `magic` are bytes that were already read.
    fn read<R: Read>(
        source: &mut Source<R>,
        order: Endianness,
        magic: Option<[u8; 4]>,
        create: impl FnOnce() -> io::Result<File>,
    ) -> Result<Option<Self>, CaptureError> {
        if magic.is_none() && source.is_at_end()? {
            return Ok(None);
        }
        let mut octets = magic.map_or_else(Vec::new, |magic| magic.to_vec());
        source.extend(&mut octets, 12)?;
        let kind = order.u32_at(&octets, 0);
        let order = if kind == SECTION_HEADER {
            let found = Endianness::of_section(four(&octets, 8));
            found.ok_or_else(|| source.malformed(NO_BYTE_ORDER))?
        } else {
            order
        };
        let total_len = block_len(order.u32_at(&octets, 1));
        let total_len = total_len.ok_or_else(|| source.malformed(IMPOSSIBLE_LENGTH))?;
        let len = usize::try_from(total_len).unwrap_or(usize::MAX);
        let mut block = Self { order, kind, octets, rest: None };
        let is_long = len > BLOCK_LEN_MAX;
        if is_long && block.is_frame() {
            return Err(source.malformed("a block of absurd length"));
        }
        source.extend(&mut block.octets, if is_long { LONG_HEAD_LEN } else { len })?;
        let mut last = four(&block.octets, block.octets.len() - 4);
        if is_long {
            // Only a complete block is written: until its end is read, it is in a file.
            let mut rest = create()?;
            source.copy(&mut rest, u64::from(total_len) - LONG_HEAD_LEN as u64)?;
            rest.seek(SeekFrom::End(-4))?;
            rest.read_exact(&mut last)?;
            rest.seek(SeekFrom::Start(0))?;
            block.rest = Some(rest);
        }
        if block_len(order.u32(last)) != Some(total_len) {
            return Err(source.malformed(LENGTHS_DIFFER));
        }
        Ok(Some(block))
    }

    /// Returns true if other programs count it as a frame.
    #[must_use]
    pub const fn is_frame(&self) -> bool {
        matches!(self.kind, PACKET | SIMPLE_PACKET | ENHANCED_PACKET)
    }

    /// Writes the whole block.
    pub fn write(self, sink: &mut impl Write) -> io::Result<()> {
        sink.write_all(&self.octets)?;
        self.rest.map_or(Ok(0), |mut rest| io::copy(&mut rest, sink)).map(|_| ())
    }

    /// Unsets the length of a section, because its blocks may grow.
    pub fn forget_section_len(&mut self) {
        if self.kind == SECTION_HEADER
            && self.octets.len() >= SECTION_HEADER_LEN_MIN
            && let Some(len) = self.octets.get_mut(16..24)
        {
            len.fill(0xff);
        }
    }

    /// Adds a comment. Returns false if that is impossible: a simple packet has no options, and
    /// inconsistent options are left unchanged.
    pub fn comment(&mut self, text: &str) -> bool {
        let Some(at) = self.options_end() else { return false };
        if u16::try_from(text.len()).is_err() {
            return false;
        }
        let Self { order, octets, .. } = self;
        octets.truncate(at);
        write::option(*order, octets, OPTION_COMMENT, text.as_bytes());
        // The end of the options.
        octets.extend([0; 4]);
        write::end(*order, octets);
        true
    }

    /// Returns the end of a packet's options, before their end mark.
    fn options_end(&self) -> Option<usize> {
        if !matches!(self.kind, PACKET | ENHANCED_PACKET) {
            return None;
        }
        let end = self.octets.len() - 4;
        let captured_len = self.order.u32(*self.octets.get(20..24)?.first_chunk()?);
        let captured_len = usize::try_from(captured_len).ok()?.checked_next_multiple_of(4)?;
        let mut at = PACKET_AT.checked_add(captured_len)?;
        if at > end {
            return None;
        }
        while let Some([c0, c1, l0, l1]) = self.octets[at..end].first_chunk().copied() {
            if self.order.u16([c0, c1]) == OPTION_END {
                break;
            }
            let len = usize::from(self.order.u16([l0, l1]));
            at = at + 4 + len.next_multiple_of(4);
            if at > end {
                return None;
            }
        }
        Some(at)
    }
}

fn four(octets: &[u8], at: usize) -> [u8; 4] {
    octets.get(at..).and_then(|octets| octets.first_chunk()).copied().unwrap_or_default()
}

/// Without options: a shorter header has no field for the section's length.
const SECTION_HEADER_LEN_MIN: usize = 28;
/// Longest block that is copied in memory, in bytes; a longer block is copied through a file.
const BLOCK_LEN_MAX: usize = 64 << 20;
/// Bytes in memory of a block that is too long for it: only they may be changed.
const LONG_HEAD_LEN: usize = SECTION_HEADER_LEN_MIN;
/// Offset of a frame's bytes in its block.
const PACKET_AT: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a block with this body.
    fn block(order: Endianness, kind: u32, body: &[u8]) -> Vec<u8> {
        let len = order.of_u32(u32::try_from(body.len() + 12).unwrap());
        [&order.of_u32(kind)[..], &len, body, &len].concat()
    }

    fn packet(order: Endianness, data: &[u8], options: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 12];
        let len = order.of_u32(u32::try_from(data.len()).unwrap());
        body.extend([len, len].concat());
        body.extend(data);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(options);
        block(order, ENHANCED_PACKET, &body)
    }

    fn next(order: Endianness, octets: &[u8]) -> Result<Option<Block>, CaptureError> {
        let reader =
            &mut BlockReader { source: Source::new(octets), next: Next::Block(order, None) };
        reader.next_block(|| Err(io::ErrorKind::Unsupported.into()))
    }

    fn read(order: Endianness, octets: &[u8]) -> Block {
        next(order, octets).unwrap().unwrap()
    }

    #[test]
    fn a_comment_follows_the_options_that_there_are() {
        for order in [Endianness::Big, Endianness::Little] {
            let flags = [&order.of_u16(2)[..], &order.of_u16(4), &[0, 0, 0, 1]].concat();
            let comment = [&order.of_u16(1)[..], &order.of_u16(2), b"hi\0\0"].concat();
            for (options, kept) in [
                (vec![], vec![]),
                (vec![0; 4], vec![]),
                (flags.clone(), flags.clone()),
                ([&flags[..], &[0; 4]].concat(), flags.clone()),
            ] {
                let mut found = read(order, &packet(order, b"abcde", &options));
                assert!(found.comment("hi"));
                let expected = packet(order, b"abcde", &[&kept[..], &comment, &[0; 4]].concat());
                assert_eq!(found.octets, expected, "{order:?} {options:?}");
            }
        }
    }

    #[test]
    fn a_block_whose_length_lacks_its_padding_is_copied_and_commented() {
        let order = Endianness::Little;
        let good = packet(order, b"abcde", &[]);
        let len = u32::try_from(good.len()).unwrap();
        let mut short = good.clone();
        for at in [4, good.len() - 4] {
            short[at..at + 4].copy_from_slice(&(len - 3).to_le_bytes());
        }
        let mut found = read(order, &short);
        assert_eq!(found.octets, short, "as it is without a comment");
        let mut expected = read(order, &good);
        assert!(found.comment("hi") && expected.comment("hi"));
        assert_eq!(found.octets, expected.octets);
    }

    #[test]
    fn blocks_without_room_for_a_comment_are_copied_unchanged() {
        let order = Endianness::Little;
        let mut too_long = packet(order, b"abcd", &[]);
        too_long[20] = 200;
        let wrong_option = packet(order, b"abcd", &[2, 0, 0xff, 0]);
        for octets in [too_long, wrong_option, block(order, SIMPLE_PACKET, &[0; 40])] {
            let mut found = read(order, &octets);
            assert!(found.is_frame() && !found.comment("hi"));
            assert_eq!(found.octets, octets);
        }
    }

    #[test]
    fn only_a_section_header_with_a_length_of_the_section_is_changed() {
        let magic = 0x1a2b_3c4d_u32.to_le_bytes();
        for (body_len, is_changed) in [(12, false), (16, true), (40, true)] {
            let mut body = magic.to_vec();
            body.resize(body_len, 7);
            let octets = block(Endianness::Little, SECTION_HEADER, &body);
            let mut found = read(Endianness::Little, &octets);
            found.forget_section_len();
            assert_eq!(found.octets != octets, is_changed, "{body_len}");
            assert_eq!(found.octets[octets.len() - 4..], octets[octets.len() - 4..]);
        }
    }

    #[test]
    fn a_block_with_an_invalid_length_ends_the_file() {
        let end = |octets: &[u8]| match next(Endianness::Little, octets) {
            Err(CaptureError::Malformed { what, .. }) => what,
            Err(CaptureError::Truncated { .. }) => "cut",
            Ok(None) => "whole",
            Ok(Some(_)) => "a block",
            Err(error) => panic!("{error}"),
        };
        let good = packet(Endianness::Little, b"abcd", &[]);
        assert_eq!(end(&good), "a block");
        assert_eq!(end(&[]), "whole");
        assert!((1..good.len()).all(|len| end(&good[..len]) == "cut"));
        let with_len = |len: u32| {
            let mut octets = good.clone();
            octets[4..8].copy_from_slice(&len.to_le_bytes());
            octets
        };
        assert_eq!(end(&with_len(8)), "an impossible block length");
        assert_eq!(end(&with_len(u32::MAX)), "an impossible block length");
        assert_eq!(end(&with_len(1 << 31)), "a block of absurd length");
        assert_eq!(end(&with_len(32)), "a block whose two lengths differ");
    }
}
