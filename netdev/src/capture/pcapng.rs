//! pcapng format: sections of typed blocks; interfaces are declared, packets refer to them.
//!
//! ```text
//! type  total length  body ...  total length      lengths count the 12 bytes around the body
//! ```

mod interface;

use std::io::Read;

use interface::Interface;

use super::format::{
    BLOCK_LEN_MIN, ENHANCED_PACKET, Endianness, INTERFACE_DESCRIPTION, PACKET, SECTION_HEADER,
    SIMPLE_PACKET, block_len,
};
use super::source::Source;
use super::{CaptureError, CapturedFrame, FRAME_LEN_MAX, foreign};

#[derive(Debug)]
pub(super) struct Pcapng {
    endianness: Endianness,
    interfaces: Vec<Interface>,
}

struct Block {
    total_len: u32,
    left: u32,
}

struct Packet {
    interface: u32,
    /// In the interface's units; `None` in blocks without a timestamp.
    timestamp: Option<u64>,
    captured_len: u32,
    original_len: u32,
}

impl Pcapng {
    /// `magic` is the block type of the first section header.
    pub(super) fn open<R: Read>(
        magic: [u8; 4],
        source: &mut Source<R>,
    ) -> Result<Self, CaptureError> {
        let magic = u32::from_be_bytes(magic);
        if magic != SECTION_HEADER {
            let known = foreign::format(magic, source.peek());
            return Err(CaptureError::UnknownFormat { magic, known });
        }
        let mut reader = Self { endianness: Endianness::Little, interfaces: Vec::new() };
        reader.begin_section(source)?;
        Ok(reader)
    }

    pub(super) fn next_frame<R: Read>(
        &mut self,
        source: &mut Source<R>,
    ) -> Result<Option<CapturedFrame>, CaptureError> {
        while !source.is_at_end()? {
            let block_type = self.endianness.u32(source.array()?);
            if block_type == SECTION_HEADER {
                self.begin_section(source)?;
                continue;
            }
            let total_len = self.endianness.u32(source.array()?);
            let mut block = Block::new(total_len, source)?;
            let frame = match block_type {
                INTERFACE_DESCRIPTION => {
                    self.declare_interface(&mut block, source)?;
                    None
                }
                ENHANCED_PACKET | PACKET => {
                    let packet = self.packet(block_type, &mut block, source)?;
                    Some(self.frame(&packet, &mut block, source)?)
                }
                SIMPLE_PACKET => {
                    let packet = self.simple_packet(&mut block, source)?;
                    Some(self.frame(&packet, &mut block, source)?)
                }
                _ => None,
            };
            self.end(&block, source)?;
            if frame.is_some() {
                return Ok(frame);
            }
        }
        Ok(None)
    }

    /// Drops the state of the section before.
    fn begin_section<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), CaptureError> {
        let total_len = source.array::<4>()?;
        // The length precedes the number that defines the byte order.
        self.endianness = Endianness::of_section(source.array()?)
            .ok_or_else(|| source.malformed(NO_BYTE_ORDER))?;
        self.interfaces.clear();
        let mut block = Block::new(self.endianness.u32(total_len), source)?;
        block.take(4, source)?;
        let version = block.array::<R, 4>(source)?;
        let major = self.endianness.u16([version[0], version[1]]);
        let minor = self.endianness.u16([version[2], version[3]]);
        // Minor version 2 was written by some tools and means 0.
        if major != 1 {
            return Err(CaptureError::UnsupportedVersion { major, minor });
        }
        self.end(&block, source)
    }

    fn declare_interface<R: Read>(
        &mut self,
        block: &mut Block,
        source: &mut Source<R>,
    ) -> Result<(), CaptureError> {
        if self.interfaces.len() >= INTERFACES_MAX {
            return Err(source.malformed("more interfaces than there can be"));
        }
        if usize::try_from(block.left).is_ok_and(|len| len > FRAME_LEN_MAX) {
            return Err(source.malformed("an interface description of absurd length"));
        }
        let body = source.octets(std::mem::take(&mut block.left))?;
        let interface = Interface::parse(&body, self.endianness)
            .ok_or_else(|| source.malformed("a cut interface description"))?;
        self.interfaces.push(interface);
        Ok(())
    }

    /// Reads the fields of an enhanced packet block, or of the obsolete packet block.
    fn packet<R: Read>(
        &self,
        block_type: u32,
        block: &mut Block,
        source: &mut Source<R>,
    ) -> Result<Packet, CaptureError> {
        let fields = block.array::<R, 20>(source)?;
        let number = |k| self.endianness.u32_at(&fields, k);
        let interface = if block_type == PACKET {
            // 16 bits of interface, then 16 of dropped frames.
            u32::from(self.endianness.u16([fields[0], fields[1]]))
        } else {
            number(0)
        };
        let timestamp = Some(u64::from(number(1)) << 32 | u64::from(number(2)));
        Ok(Packet { interface, timestamp, captured_len: number(3), original_len: number(4) })
    }

    /// Reads the field of a simple packet block: a frame of the first interface.
    fn simple_packet<R: Read>(
        &self,
        block: &mut Block,
        source: &mut Source<R>,
    ) -> Result<Packet, CaptureError> {
        let original_len = self.endianness.u32(block.array(source)?);
        // The captured length is not in the block; the rest of the body includes padding.
        let snap_len = self.interfaces.first().map_or(0, |interface| interface.snap_len);
        let snap_len = if snap_len == 0 { u32::MAX } else { snap_len };
        let captured_len = original_len.min(snap_len).min(block.left);
        Ok(Packet { interface: 0, timestamp: None, captured_len, original_len })
    }

    fn frame<R: Read>(
        &self,
        packet: &Packet,
        block: &mut Block,
        source: &mut Source<R>,
    ) -> Result<CapturedFrame, CaptureError> {
        let interface = usize::try_from(packet.interface)
            .ok()
            .and_then(|index| self.interfaces.get(index))
            .ok_or_else(|| source.malformed("a frame of an interface that was not declared"))?;
        let bytes = block.octets(packet.captured_len, source)?;
        Ok(CapturedFrame {
            number: source.frame(),
            timestamp_ns: packet.timestamp.map_or(0, |ticks| interface.timestamp_ns(ticks)),
            link: interface.link,
            interface: packet.interface,
            original_len: usize::try_from(packet.original_len).unwrap_or(usize::MAX),
            bytes,
        })
    }

    fn end<R: Read>(&self, block: &Block, source: &mut Source<R>) -> Result<(), CaptureError> {
        source.skip(block.left)?;
        let last = self.endianness.u32(source.array()?);
        if block_len(last) == Some(block.total_len) {
            Ok(())
        } else {
            Err(source.malformed(LENGTHS_DIFFER))
        }
    }
}

impl Block {
    fn new<R: Read>(total_len: u32, source: &Source<R>) -> Result<Self, CaptureError> {
        let total_len = block_len(total_len).ok_or_else(|| source.malformed(IMPOSSIBLE_LENGTH))?;
        Ok(Self { total_len, left: total_len - BLOCK_LEN_MIN })
    }

    fn take<R: Read>(&mut self, len: u32, source: &Source<R>) -> Result<(), CaptureError> {
        self.left = self
            .left
            .checked_sub(len)
            .ok_or_else(|| source.malformed("a block too short for its contents"))?;
        Ok(())
    }

    fn array<R: Read, const N: usize>(
        &mut self,
        source: &mut Source<R>,
    ) -> Result<[u8; N], CaptureError> {
        self.take(u32::try_from(N).expect("a header's length"), source)?;
        source.array()
    }

    fn octets<R: Read>(
        &mut self,
        len: u32,
        source: &mut Source<R>,
    ) -> Result<Vec<u8>, CaptureError> {
        // Check first whether the length is possible at all: that is the clearer error.
        if usize::try_from(len).is_ok_and(|len| len <= FRAME_LEN_MAX) {
            self.take(len, source)?;
        }
        source.octets(len)
    }
}

/// Most interfaces of a section; a file that declares more is not a capture.
const INTERFACES_MAX: usize = 65_536;
pub(super) const NO_BYTE_ORDER: &str = "no byte-order magic in a section header";
pub(super) const IMPOSSIBLE_LENGTH: &str = "an impossible block length";
pub(super) const LENGTHS_DIFFER: &str = "a block whose two lengths differ";
