//! Capture files, pcap and pcapng: frames are read ([`CaptureReader`]), blocks are copied
//! ([`BlockReader`]), files are written. No file causes a panic, a hang or an allocation of more
//! than [`FRAME_LEN_MAX`] bytes at once: lengths in the file are checked before they are used. Not
//! `pcap-file`, which tests compare with: its version 2.0 takes every pcapng timestamp for
//! nanoseconds, ignoring `if_tsresol`; returns the padding of simple packets as data; refuses
//! frames longer than the snap length, which every truncating capture has, and options without an
//! end mark, which the format allows; and rejects a whole file for a malformed option of a kind
//! that does not matter here.

mod classic;
mod copy;
mod foreign;
mod format;
mod link;
mod pcapng;
mod source;
mod write;

use std::io::Read;

use classic::Classic;
pub use copy::{Block, BlockReader};
pub use foreign::{ForeignFormat, link_name};
pub use link::{LinkError, LinkType};
use pcapng::Pcapng;
use source::Source;
pub use write::{PcapWriter, PcapngWriter, WrittenFrame};

/// A frame of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Number in the file, from 1, as in other tools.
    pub number: u64,
    /// Time of capture, in nanoseconds since 1970 in real captures; zero if the file has none.
    pub timestamp_ns: u64,
    /// Link type: the header at which its bytes begin.
    pub link: LinkType,
    /// Interface of its section, from 0; 0 if the format has only one.
    pub interface: u32,
    /// Length on the link, in bytes; more than that of `bytes` if the frame was truncated.
    pub original_len: usize,
    /// Captured bytes.
    pub bytes: Vec<u8>,
}

impl CapturedFrame {
    /// Returns the IP datagram in the frame, as far as it was captured, behind the link header and
    /// VLAN tags and without padding; `None` if the frame carries something else. Fails if the
    /// frame ends inside its link header.
    pub fn ip_packet(&self) -> Result<Option<&[u8]>, LinkError> {
        self.link.ip_packet(&self.bytes)
    }
}

/// Reasons why a capture cannot be read (further).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// Reading failed.
    #[error("reading the capture failed")]
    Io(#[from] std::io::Error),
    /// The file is empty.
    #[error("the capture is empty")]
    Empty,
    /// The file is no capture, or one of an unknown format.
    #[error("neither pcap nor pcapng: {}", foreign::begins(*magic, *known))]
    UnknownFormat {
        /// The first four bytes, as a big-endian number.
        magic: u32,
        /// The format that begins with these bytes, if it is known.
        known: Option<ForeignFormat>,
    },
    /// Unknown version of the format.
    #[error("capture format version {major}.{minor} is not supported")]
    UnsupportedVersion {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// All frames begin with an unknown header. If only one of several interfaces has one, its
    /// frames are returned with [`LinkType::Other`].
    #[error("frame {frame}: link type {} is not supported", link_name(*number))]
    UnsupportedLink {
        /// The link type's number (`LINKTYPE_` value) in the file.
        number: u32,
        /// Number of the first frame that has it.
        frame: u64,
    },
    /// The file is truncated. All whole frames have been returned.
    #[error("the capture is cut off at byte {offset}, before the end of frame {frame}")]
    Truncated {
        /// Number of the first frame that is not whole.
        frame: u64,
        /// Length of the file.
        offset: u64,
    },
    /// A frame claims to be longer than any frame; more likely the file is damaged.
    #[error("frame {frame} claims {len} bytes, more than {FRAME_LEN_MAX}")]
    FrameTooLong {
        /// Number of the frame.
        frame: u64,
        /// Claimed length, in bytes.
        len: u32,
    },
    /// The file contradicts itself or its format.
    #[error("damaged capture: {what}, before byte {offset}, at frame {frame}")]
    Malformed {
        /// Number of the next frame, or of the affected one.
        frame: u64,
        /// Position in the file.
        offset: u64,
        /// The contradiction.
        what: &'static str,
    },
}

/// An iterator over the frames of a capture file, in order; the first error is the last item.
#[derive(Debug)]
pub struct CaptureReader<R> {
    source: Source<R>,
    format: Format,
    is_done: bool,
}

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Pcapng(Pcapng),
}

impl<R: Read> CaptureReader<R> {
    /// Recognises the format and reads the file's header. Reading is buffered here. Errors: see
    /// [`CaptureError`].
    pub fn open(file: R) -> Result<Self, CaptureError> {
        let mut source = Source::new(file);
        if source.is_at_end()? {
            return Err(CaptureError::Empty);
        }
        let magic = source.array::<4>()?;
        let format = match Classic::open(magic, &mut source)? {
            Some(classic) => Format::Classic(classic),
            None => Format::Pcapng(Pcapng::open(magic, &mut source)?),
        };
        Ok(Self { source, format, is_done: false })
    }
}

impl<R: Read> CaptureReader<R> {
    /// Recycles a frame: its memory is used for the next one.
    pub fn recycle(&mut self, frame: CapturedFrame) {
        self.source.recycle(frame.bytes);
    }
}

impl<R: Read> Iterator for CaptureReader<R> {
    type Item = Result<CapturedFrame, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let frame = match &mut self.format {
            Format::Classic(classic) => classic.next_frame(&mut self.source),
            Format::Pcapng(pcapng) => pcapng.next_frame(&mut self.source),
        };
        match frame {
            Ok(Some(_)) => self.source.frame_is_complete(),
            Ok(None) | Err(_) => self.is_done = true,
        }
        frame.transpose()
    }
}

/// Most bytes of one frame, 256 KiB: the largest snap length that capture tools accept.
pub const FRAME_LEN_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests;
