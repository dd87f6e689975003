//! A capture, copied block by block with its comments.

use std::io::{self, Read, Write};

use urnic_netdev::capture::{Block, BlockReader, CaptureError};

use super::spool::Spooled;
use crate::read::unpack::Unpacked;
use crate::report::Written;

pub(crate) fn copy<R: Read>(
    source: Unpacked<R>,
    sink: &mut impl Write,
    comments: &mut Spooled,
) -> io::Result<Written> {
    let mut source = BlockReader::open(source).map_err(|error| match error {
        CaptureError::Io(error) => error,
        CaptureError::UnknownFormat { .. } => {
            io::Error::new(io::ErrorKind::InvalidData, "neither pcap nor pcapng")
        }
        _ => io::Error::new(io::ErrorKind::UnexpectedEof, "the capture is empty"),
    })?;
    let mut written = Written::default();
    let end = loop {
        match source.next_block(tempfile::tempfile) {
            Ok(Some(block)) => put(block, sink, comments, &mut written)?,
            Ok(None) => break source.get_ref().cut().map(|_| CUT),
            Err(CaptureError::Io(error)) => return Err(error),
            Err(CaptureError::Malformed { what, .. }) => {
                written.is_malformed = true;
                break Some(what);
            }
            Err(CaptureError::FrameTooLong { .. }) => {
                written.is_malformed = true;
                break Some("a frame of absurd length");
            }
            Err(_) => break Some(CUT),
        }
    };
    written.cut = end;
    sink.flush()?;
    Ok(written)
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

const CUT: &str = "the capture is cut off";
