//! Writers of capture files: pcapng, of one section with timestamps in nanoseconds, and pcap. Each
//! block or record is written by one call of the sink.

use std::io::{self, Write};
use std::time::Duration;

use super::format::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, Endianness, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS,
    OPTION_COMMENT, OPTION_DROPPED, OPTION_FLAGS, OPTION_NAME, OPTION_PROGRAM,
    OPTION_TIMESTAMP_UNIT, SECTION_HEADER,
};
use crate::Medium;

/// Writer of a pcapng file.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    sink: W,
    len: u64,
    block: Vec<u8>,
}

/// Frame to be written.
#[derive(Clone, Copy, Debug)]
pub struct WrittenFrame<'a> {
    /// Number of its interface, from 0.
    pub interface: u32,
    /// Time of capture, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Set if it was sent; otherwise it was received.
    pub is_outbound: bool,
    /// Length on the link, in bytes.
    pub original_len: usize,
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Comment on the frame. A comment that is too long for its length field is left out.
    pub comment: Option<&'a str>,
}

impl<W: Write> PcapngWriter<W> {
    /// Begins a file, written by `program`.
    pub fn new(sink: W, program: Option<&str>) -> io::Result<Self> {
        let mut file = Self { sink, len: 0, block: Vec::new() };
        let body = |block: &mut Vec<u8>| {
            section(ORDER, block);
            if let Some(program) = program {
                option(ORDER, block, OPTION_PROGRAM, program.as_bytes());
                block.extend([0; 4]);
            }
        };
        file.put(SECTION_HEADER, body, u64::MAX)?;
        Ok(file)
    }

    /// Declares an interface with frames of a medium, and a snap length; 0 is no limit.
    pub fn interface(&mut self, medium: Medium, name: &str, snap_len: u32) -> io::Result<()> {
        let link = match medium {
            Medium::Ethernet => LINK_ETHERNET,
            Medium::Ip => LINK_RAW_IP,
        };
        let body = |block: &mut Vec<u8>| {
            interface(ORDER, block, link, snap_len);
            option(ORDER, block, OPTION_NAME, name.as_bytes());
            option(ORDER, block, OPTION_TIMESTAMP_UNIT, &[NANOSECONDS]);
            block.extend([0; 4]);
        };
        self.put(INTERFACE_DESCRIPTION, body, u64::MAX).map(|_| ())
    }

    /// Adds a frame. Returns false, and writes nothing, if the file would then be longer than
    /// `len_max` with [`statistics`](Self::statistics) at its end.
    pub fn frame(&mut self, frame: &WrittenFrame<'_>, len_max: u64) -> io::Result<bool> {
        let flags: u32 = if frame.is_outbound { 0b10 } else { 0b01 };
        let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let body = |block: &mut Vec<u8>| {
            let lens = [number(frame.bytes.len()), number(frame.original_len)];
            packet(ORDER, block, frame.interface, frame.at_ns, lens);
            block.extend(frame.bytes);
            block.resize(block.len().next_multiple_of(4), 0);
            option(ORDER, block, OPTION_FLAGS, &flags.to_le_bytes());
            if let Some(comment) = frame.comment {
                option(ORDER, block, OPTION_COMMENT, comment.as_bytes());
            }
            block.extend([0; 4]);
        };
        self.put(ENHANCED_PACKET, body, len_max.saturating_sub(STATISTICS_LEN))
    }

    /// Writes the number of frames that the first interface has lost until `at_ns`.
    pub fn statistics(&mut self, at_ns: u64, dropped: u64) -> io::Result<()> {
        let body = |block: &mut Vec<u8>| {
            let [high, low] = halves(at_ns);
            block.extend([0, high, low].map(|number| ORDER.of_u32(number)).as_flattened());
            option(ORDER, block, OPTION_DROPPED, &dropped.to_le_bytes());
            block.extend([0; 4]);
        };
        self.put(INTERFACE_STATISTICS, body, u64::MAX).map(|_| ())
    }

    /// Writes buffered data.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// Returns the sink.
    pub fn into_inner(self) -> W {
        self.sink
    }

    fn put(
        &mut self,
        kind: u32,
        body: impl FnOnce(&mut Vec<u8>),
        len_max: u64,
    ) -> io::Result<bool> {
        let Self { sink, len, block } = self;
        block.clear();
        begin(ORDER, block, kind);
        body(block);
        end(ORDER, block);
        if *len + block.len() as u64 > len_max {
            return Ok(false);
        }
        *len += block.len() as u64;
        sink.write_all(block).map(|()| true)
    }
}

/// Writer of a pcap file with timestamps in microseconds.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    sink: W,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a file of frames of a link type (`LINKTYPE_` value).
    pub fn new(mut sink: W, link: u32, snap_len: u32) -> io::Result<Self> {
        let mut header = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        header.extend([2_u16, 4].map(u16::to_le_bytes).as_flattened());
        header.extend([0, 0, snap_len, link].map(u32::to_le_bytes).as_flattened());
        sink.write_all(&header)?;
        Ok(Self { sink })
    }

    /// Adds a whole frame that was captured at a time since 1970.
    pub fn frame(&mut self, at: Duration, bytes: &[u8]) -> io::Result<()> {
        let [_, seconds] = halves(at.as_secs());
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = [seconds, at.subsec_micros(), len, len].map(u32::to_le_bytes);
        self.sink.write_all(&[header.as_flattened(), bytes].concat())
    }

    /// Writes buffered data.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// Begins a block; [`end`] sets its length.
pub(super) fn begin(order: Endianness, block: &mut Vec<u8>, kind: u32) {
    block.extend(order.of_u32(kind));
    block.extend([0; 4]);
}

pub(super) fn end(order: Endianness, block: &mut Vec<u8>) {
    let len = order.of_u32(u32::try_from(block.len() + 4).unwrap_or(u32::MAX));
    block.extend(len);
    block[4..8].copy_from_slice(&len);
}

/// Adds the body of a section header, without options. The length of the section is unset.
pub(super) fn section(order: Endianness, block: &mut Vec<u8>) {
    block.extend(order.of_u32(BYTE_ORDER_MAGIC));
    block.extend([1, 0].map(|number| order.of_u16(number)).as_flattened());
    block.extend([0xff; 8]);
}

/// Adds the body of an interface description, without options.
pub(super) fn interface(order: Endianness, block: &mut Vec<u8>, link: u16, snap_len: u32) {
    block.extend([link, 0].map(|number| order.of_u16(number)).as_flattened());
    block.extend(order.of_u32(snap_len));
}

/// Adds the fields before the bytes of an enhanced packet: captured and original length.
pub(super) fn packet(
    order: Endianness,
    block: &mut Vec<u8>,
    interface: u32,
    ticks: u64,
    [captured_len, original_len]: [u32; 2],
) {
    let [high, low] = halves(ticks);
    let fields = [interface, high, low, captured_len, original_len];
    block.extend(fields.map(|number| order.of_u32(number)).as_flattened());
}

/// Adds an option; omits a value that is too long for its length field.
pub(super) fn option(order: Endianness, block: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(len) = u16::try_from(value.len()) else { return };
    block.extend([code, len].map(|number| order.of_u16(number)).as_flattened());
    block.extend(value);
    block.resize(block.len().next_multiple_of(4), 0);
}

fn halves(number: u64) -> [u32; 2] {
    [number >> 32, number & 0xffff_ffff].map(|half| u32::try_from(half).unwrap_or(0))
}

/// `LINKTYPE_ETHERNET` and `LINKTYPE_RAW`.
const LINK_ETHERNET: u16 = 1;
const LINK_RAW_IP: u16 = 101;
/// Byte order of files written here.
const ORDER: Endianness = Endianness::Little;
/// `if_tsresol`: 10^-9 seconds.
const NANOSECONDS: u8 = 9;
const STATISTICS_LEN: u64 = 12 + 12 + 12 + 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{BlockReader, CaptureReader, LinkType};

    fn written<'a>(bytes: &'a [u8], comment: Option<&'a str>) -> WrittenFrame<'a> {
        let original_len = bytes.len();
        WrittenFrame { interface: 0, at_ns: 7, is_outbound: false, original_len, bytes, comment }
    }

    fn file() -> PcapngWriter<Vec<u8>> {
        let mut file = PcapngWriter::new(Vec::new(), None).unwrap();
        file.interface(Medium::Ip, "one", 0).unwrap();
        file
    }

    /// A frame is written if the statistics still fit behind it.
    #[test]
    fn a_file_is_no_longer_than_its_limit() {
        let mut whole = file();
        whole.frame(&written(&[0x45; 61], None), u64::MAX).unwrap();
        whole.statistics(9, 0).unwrap();
        let len = whole.into_inner().len() as u64;
        for (len_max, fits) in [(len - 1, false), (len, true)] {
            let mut file = file();
            assert_eq!(file.frame(&written(&[0x45; 61], None), len_max).unwrap(), fits);
            file.statistics(9, 0).unwrap();
            assert!(file.into_inner().len() as u64 <= len_max);
        }
    }

    #[test]
    fn frames_name_their_interface_and_its_link() {
        let mut file = file();
        for _ in 1..300 {
            file.interface(Medium::Ethernet, "other", 0).unwrap();
        }
        for interface in [0, 255, 256, 299] {
            let frame = WrittenFrame { interface, ..written(&[0x45; 20], None) };
            file.frame(&frame, u64::MAX).unwrap();
        }
        let octets = file.into_inner();
        let frames = CaptureReader::open(&octets[..]).unwrap().map(|frame| {
            let frame = frame.unwrap();
            (frame.interface, frame.link)
        });
        let [ip, ethernet] = [LinkType::RawIp, LinkType::Ethernet];
        let expected = [(0, ip), (255, ethernet), (256, ethernet), (299, ethernet)];
        assert_eq!(frames.collect::<Vec<_>>(), expected);
    }

    /// The options of a frame may be of any length; a comment is added behind all of them.
    #[test]
    fn a_comment_follows_others_of_any_length() {
        for text in ["a", "ab", "abc", "abcd"] {
            let mut file = file();
            file.frame(&written(&[0x45; 21], Some(text)), u64::MAX).unwrap();
            let octets = file.into_inner();
            let mut blocks = BlockReader::open(&octets[..]).unwrap();
            let mut out = Vec::new();
            while let Some(mut block) = blocks.next_block(|| unreachable!("short blocks")).unwrap()
            {
                if block.is_frame() {
                    assert!(block.comment("behind"));
                }
                block.write(&mut out).unwrap();
            }
            // The option and its padding, at the place of the end of options.
            assert_eq!(out.len(), octets.len() + 4 + 8, "{text}");
            let at = octets.len() - 4 - 4;
            assert_eq!(out[at..at + 4], [1, 0, 6, 0], "{text}");
            assert_eq!(out[at + 4..at + 10], *b"behind");
            assert_eq!(CaptureReader::open(&out[..]).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_pcap_record_has_microseconds() {
        let mut file = PcapWriter::new(Vec::new(), 1, 0).unwrap();
        let len = file.sink.len();
        file.frame(Duration::new(5, 123_456_789), &[1, 2, 3]).unwrap();
        let expected = [5, 123_456, 3, 3].map(u32::to_le_bytes);
        assert_eq!(file.sink[len..], [expected.as_flattened(), &[1, 2, 3]].concat());
    }
}
