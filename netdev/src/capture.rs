//! Reader of capture files: pcap and pcapng.
//!
//! Owns the file's position and gives out its frames one by one, each with its link type, so that
//! [`CapturedFrame::ip_packet`] finds the IP datagram whatever the capture was taken on. Promises
//! that no file whatsoever makes it panic, hang or allocate more than [`FRAME_LEN_MAX`] bytes at
//! once: lengths in the file are checked before they are believed.
//!
//! The formats are parsed here and not by `pcap-file`, which this package writes with. Version 2.0
//! of that crate takes every pcapng timestamp for nanoseconds, ignoring `if_tsresol`; hands out
//! the padding of simple packets as data; refuses frames longer than the snap length, which every
//! truncating capture has, and options without an end mark, which the format allows; and rejects a
//! whole file for a malformed option of a kind that does not matter here.

mod classic;
mod foreign;
mod link;
mod pcapng;
mod source;

use std::io::Read;

use classic::Classic;
pub use foreign::{ForeignFormat, link_name};
pub use link::{LinkError, LinkType};
use pcapng::Pcapng;
use source::Source;

/// A frame of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Its number in the file, from 1, as other tools count.
    pub number: u64,
    /// When it was captured, in nanoseconds since the capture's epoch (1970 for real captures).
    /// Zero when the file does not say.
    pub timestamp_ns: u64,
    /// What its bytes begin with.
    pub link: LinkType,
    /// Which interface of its section it was captured on, from 0; 0 where the format knows of one only.
    pub interface: u32,
    /// Bytes it had on the link; more than `bytes` holds when the capture was truncating.
    pub original_len: usize,
    /// Its captured bytes.
    pub bytes: Vec<u8>,
}

impl CapturedFrame {
    /// The IP datagram in the frame, behind the link header and VLAN tags and without padding;
    /// `None` when the frame carries something else.
    ///
    /// A datagram of which not everything was captured is returned as far as it goes.
    ///
    /// # Errors
    /// When the frame ends inside its link header.
    pub fn ip_packet(&self) -> Result<Option<&[u8]>, LinkError> {
        self.link.ip_packet(&self.bytes)
    }
}

/// Why a capture cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// Reading failed.
    #[error("reading the capture failed")]
    Io(#[from] std::io::Error),
    /// There is nothing to read.
    #[error("the capture is empty")]
    Empty,
    /// This is no capture, or one of a format that is not known here.
    #[error("neither pcap nor pcapng: {}", foreign::begins(*magic, *known))]
    UnknownFormat {
        /// The first four bytes, as a big-endian number.
        magic: u32,
        /// The format that begins like this, where one is known.
        known: Option<ForeignFormat>,
    },
    /// The format's version is not known here.
    #[error("capture format version {major}.{minor} is not supported")]
    UnsupportedVersion {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// All frames begin with a header that is not known here. Frames of one interface of several are
    /// returned all the same, with [`LinkType::Other`].
    #[error("frame {frame}: link type {} is not supported", link_name(*number))]
    UnsupportedLink {
        /// The link type's number (`LINKTYPE_` value) in the file.
        number: u32,
        /// Number of the first frame that has it.
        frame: u64,
    },
    /// The file ends inside something. All whole frames have been returned.
    #[error("the capture is cut off at octet {offset}, before frame {frame} is whole")]
    Truncated {
        /// Number of the first frame that is not whole.
        frame: u64,
        /// Length of the file.
        offset: u64,
    },
    /// A frame claims to be longer than any frame is; more likely the file is damaged.
    #[error("frame {frame} claims {len} octets, more than {FRAME_LEN_MAX}")]
    FrameTooLong {
        /// The frame's number.
        frame: u64,
        /// Bytes that it claims.
        len: u32,
    },
    /// The file contradicts itself or its format.
    #[error("damaged capture: {what}, before octet {offset}, at frame {frame}")]
    Malformed {
        /// Number of the frame that comes next or is concerned.
        frame: u64,
        /// How far the file was read.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads the frames of a capture file, in order.
///
/// An iterator over `Result<CapturedFrame, CaptureError>`; the first error is the last item.
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
    /// Recognises the format and reads the file's header. Reading is buffered here.
    ///
    /// # Errors
    /// When the file cannot be read, is empty, is no capture, or has a link type or version that
    /// is not supported; see [`CaptureError`].
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
    /// Gives a frame back that is not needed any more: its memory is used for the next one.
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
