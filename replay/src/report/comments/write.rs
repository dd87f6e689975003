//! A capture, copied block by block with its comments.

use std::io::{self, BufRead, BufReader, Read, Write};

use super::blocks::{self, Block, End, Order};
use super::classic::Classic;
use super::spool::Spooled;
use crate::read::unpack::Unpacked;
use crate::report::Written;

/// Copies a capture, and adds comments.
pub(crate) fn copy<R: Read>(
    source: Unpacked<R>,
    sink: &mut impl Write,
    comments: &mut Spooled,
) -> io::Result<Written> {
    let mut source = BufReader::new(source);
    let mut written = Written::default();
    let mut magic = Vec::new();
    if !blocks::fill(&mut source, &mut magic, 4)? {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the capture is empty"));
    }
    let magic = *magic.first_chunk().unwrap_or(&[0; 4]);
    let end = match Classic::of(magic) {
        Some(classic) => copy_classic(classic, &mut source, sink, comments, &mut written)?,
        None => copy_blocks(magic, &mut source, sink, comments, &mut written)?,
    };
    written.is_malformed = matches!(end, End::Malformed(_));
    written.cut = match end {
        End::Whole => source.get_ref().cut().map(|_| "the capture is cut off"),
        End::Cut => Some("the capture is cut off"),
        End::Malformed(what) => Some(what),
    };
    sink.flush()?;
    Ok(written)
}

fn copy_classic(
    classic: Classic,
    source: &mut impl BufRead,
    sink: &mut impl Write,
    comments: &mut Spooled,
    written: &mut Written,
) -> io::Result<End> {
    match classic.head(source)? {
        Ok(head) => {
            for block in head {
                block.write(sink)?;
            }
        }
        Err(end) => return Ok(end),
    }
    loop {
        match classic.next(source)? {
            Ok(block) => put(block, sink, comments, written)?,
            Err(end) => return Ok(end),
        }
    }
}

fn copy_blocks(
    magic: [u8; 4],
    source: &mut impl BufRead,
    sink: &mut impl Write,
    comments: &mut Spooled,
    written: &mut Written,
) -> io::Result<End> {
    if u32::from_be_bytes(magic) != blocks::SECTION_HEADER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "neither pcap nor pcapng"));
    }
    let mut magic = Some(magic);
    let mut order = Order::Little;
    loop {
        match blocks::next(source, magic.take(), order)? {
            Ok(block) => {
                order = block.order;
                put(block, sink, comments, written)?;
            }
            Err(end) => return Ok(end),
        }
    }
}

fn put(
    mut block: Block,
    sink: &mut impl Write,
    comments: &mut Spooled,
    written: &mut Written,
) -> io::Result<()> {
    block.forget_section_len();
    if block.is_frame() {
        written.frames += 1;
        if let Some(comment) = comments.of(written.frames)? {
            let has_place = block.comment(&comment);
            written.commented += u64::from(has_place);
            written.no_place += u64::from(!has_place);
        }
    }
    block.write(sink)
}
