//! pcapng blocks as bytes: read completely, with a comment added to packet blocks.
//!
//! `pcap-file` can write a block that it has read, but it rebuilds every block that is changed: it
//! changes options that it does not know or considers wrong, the order of options and the bytes of
//! padding. Here all bytes except those of the comment are unchanged.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::limits::BLOCK_LEN_MAX;

/// Byte order of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Big,
    Little,
}

/// Reason why there are no further blocks.
#[derive(Debug)]
pub(crate) enum End {
    /// End of the file.
    Whole,
    /// The file ends inside a block.
    Cut,
    /// The following bytes are no block.
    Malformed(&'static str),
}

/// One block with its type and both its lengths.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) order: Order,
    pub(crate) kind: u32,
    pub(crate) octets: Vec<u8>,
    /// Rest of a block that is longer than [`BLOCK_LEN_MAX`].
    pub(crate) rest: Option<File>,
}

impl Order {
    pub(crate) const fn u32(self, octets: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(octets),
            Self::Little => u32::from_le_bytes(octets),
        }
    }

    const fn u16(self, octets: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(octets),
            Self::Little => u16::from_le_bytes(octets),
        }
    }

    pub(crate) const fn of_u32(self, number: u32) -> [u8; 4] {
        match self {
            Self::Big => number.to_be_bytes(),
            Self::Little => number.to_le_bytes(),
        }
    }

    pub(crate) const fn of_u16(self, number: u16) -> [u8; 2] {
        match self {
            Self::Big => number.to_be_bytes(),
            Self::Little => number.to_le_bytes(),
        }
    }
}

/// Reads the next block of a file whose last section is in `order`; `magic` are bytes that were
/// already read.
pub(crate) fn next<R: Read>(
    source: &mut R,
    magic: Option<[u8; 4]>,
    order: Order,
) -> io::Result<Result<Block, End>> {
    let mut octets = magic.map_or_else(Vec::new, |magic| magic.to_vec());
    if !fill(source, &mut octets, 12)? {
        return Ok(Err(if octets.is_empty() { End::Whole } else { End::Cut }));
    }
    let number = |order: Order, at: usize| order.u32(four(&octets, at));
    // The type of a section header is the same in both orders.
    let kind = number(order, 0);
    let order = match (kind, number(Order::Big, 8)) {
        (SECTION_HEADER, 0x1a2b_3c4d) => Order::Big,
        (SECTION_HEADER, 0x4d3c_2b1a) => Order::Little,
        (SECTION_HEADER, _) => {
            return Ok(Err(End::Malformed("no byte-order magic in a section header")));
        }
        _ => order,
    };
    // Some writers leave the padding out of the length: every block ends at a multiple of four
    // bytes.
    let Some(total_len) = number(order, 4).checked_next_multiple_of(4).filter(|len| *len >= 12)
    else {
        return Ok(Err(End::Malformed("an impossible block length")));
    };
    let len = usize::try_from(total_len).unwrap_or(usize::MAX);
    let mut block = Block { order, kind, octets, rest: None };
    let is_long = len > BLOCK_LEN_MAX;
    if is_long && block.is_frame() {
        return Ok(Err(End::Malformed("a block of absurd length")));
    }
    if !fill(source, &mut block.octets, if is_long { LONG_HEAD_LEN } else { len })? {
        return Ok(Err(End::Cut));
    }
    let mut last = four(&block.octets, block.octets.len() - 4);
    if is_long {
        // Only a complete block is written: until its end is read, it is in a file.
        let mut rest = tempfile::tempfile()?;
        let rest_len = u64::from(total_len) - LONG_HEAD_LEN as u64;
        if io::copy(&mut source.by_ref().take(rest_len), &mut rest)? < rest_len {
            return Ok(Err(End::Cut));
        }
        rest.seek(SeekFrom::End(-4))?;
        rest.read_exact(&mut last)?;
        rest.seek(SeekFrom::Start(0))?;
        block.rest = Some(rest);
    }
    if order.u32(last).checked_next_multiple_of(4) != Some(total_len) {
        return Ok(Err(End::Malformed("a block whose two lengths differ")));
    }
    Ok(Ok(block))
}

/// Reads until there are `len` bytes; returns true if the file had them.
pub(crate) fn fill<R: Read>(source: &mut R, octets: &mut Vec<u8>, len: usize) -> io::Result<bool> {
    let missing = len.saturating_sub(octets.len());
    let read = source.by_ref().take(missing as u64).read_to_end(octets)?;
    Ok(read == missing)
}

fn four(octets: &[u8], at: usize) -> [u8; 4] {
    octets.get(at..).and_then(|octets| octets.first_chunk()).copied().unwrap_or_default()
}

impl Block {
    /// Returns true if other programs count it as a frame.
    pub(crate) const fn is_frame(&self) -> bool {
        matches!(self.kind, PACKET | SIMPLE_PACKET | ENHANCED_PACKET)
    }

    /// Writes the whole block.
    pub(crate) fn write(self, sink: &mut impl Write) -> io::Result<()> {
        sink.write_all(&self.octets)?;
        self.rest.map_or(Ok(0), |mut rest| io::copy(&mut rest, sink)).map(|_| ())
    }

    /// Unsets the length of a section, because its blocks may grow.
    pub(crate) fn forget_section_len(&mut self) {
        if self.kind == SECTION_HEADER
            && self.octets.len() >= SECTION_HEADER_LEN_MIN
            && let Some(len) = self.octets.get_mut(16..24)
        {
            len.fill(0xff);
        }
    }

    /// Adds a comment after the existing options. Returns false if that is impossible: a simple
    /// packet has no options, and inconsistent options are left unchanged.
    pub(crate) fn comment(&mut self, text: &str) -> bool {
        let Some(at) = self.options_end() else { return false };
        let text = text.as_bytes();
        let Ok(len) = u16::try_from(text.len()) else { return false };
        let Self { order, octets, .. } = self;
        octets.truncate(at);
        octets.extend(order.of_u16(OPTION_COMMENT));
        octets.extend(order.of_u16(len));
        octets.extend(text);
        octets.resize(octets.len().next_multiple_of(4), 0);
        // The end of the options.
        octets.extend([0; 4]);
        let total_len = u32::try_from(octets.len() + 4).unwrap_or(u32::MAX);
        octets.extend(order.of_u32(total_len));
        octets[4..8].copy_from_slice(&order.of_u32(total_len));
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
            if self.order.u16([c0, c1]) == 0 {
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

pub(crate) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(crate) const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(crate) const ENHANCED_PACKET: u32 = 6;
pub(crate) const OPTION_COMMENT: u16 = 1;
/// Length of a section header without options: only a header of at least this length has a field
/// for the section's length.
const SECTION_HEADER_LEN_MIN: usize = 28;
/// Bytes in memory of a block that is too long for memory: only these bytes may be changed.
const LONG_HEAD_LEN: usize = SECTION_HEADER_LEN_MIN;
/// Offset of a frame's bytes in its block.
const PACKET_AT: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a block with this body.
    fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
        let len = order.of_u32(u32::try_from(body.len() + 12).unwrap());
        [&order.of_u32(kind)[..], &len, body, &len].concat()
    }

    fn packet(order: Order, data: &[u8], options: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 12];
        let len = order.of_u32(u32::try_from(data.len()).unwrap());
        body.extend([len, len].concat());
        body.extend(data);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(options);
        block(order, ENHANCED_PACKET, &body)
    }

    fn read(order: Order, octets: &[u8]) -> Block {
        next(&mut &octets[..], None, order).unwrap().unwrap()
    }

    #[test]
    fn a_comment_follows_the_options_that_there_are() {
        for order in [Order::Big, Order::Little] {
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
        let order = Order::Little;
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
    fn what_has_no_place_for_a_comment_stays_as_it_is() {
        let order = Order::Little;
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
            let octets = block(Order::Little, SECTION_HEADER, &body);
            let mut found = read(Order::Little, &octets);
            found.forget_section_len();
            assert_eq!(found.octets != octets, is_changed, "{body_len}");
            assert_eq!(found.octets[octets.len() - 4..], octets[octets.len() - 4..]);
        }
    }

    #[test]
    fn what_is_no_block_is_the_end() {
        let end = |octets: &[u8]| match next(&mut &octets[..], None, Order::Little).unwrap() {
            Err(End::Malformed(what)) => what,
            Err(End::Cut) => "cut",
            Err(End::Whole) => "whole",
            Ok(_) => "a block",
        };
        let good = packet(Order::Little, b"abcd", &[]);
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
