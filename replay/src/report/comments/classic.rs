//! A pcap file as the blocks of a pcapng file.

use std::io::{self, Read};

use super::blocks::{
    Block, ENHANCED_PACKET, End, INTERFACE_DESCRIPTION, Order, SECTION_HEADER, fill,
};
use urnic_netdev::capture::FRAME_LEN_MAX;

/// Information from the header of a pcap file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classic {
    order: Order,
    /// Timestamp units in a second.
    per_second: u64,
    /// Length of the header of a frame in bytes.
    header_len: usize,
}

impl Classic {
    /// Parses the first four bytes; `None` if the file is no pcap file.
    pub(crate) fn of(magic: [u8; 4]) -> Option<Self> {
        let (order, per_second, header_len) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (Order::Big, 1_000_000, 16),
            0xd4c3_b2a1 => (Order::Little, 1_000_000, 16),
            0xa1b2_3c4d => (Order::Big, 1_000_000_000, 16),
            0x4d3c_b2a1 => (Order::Little, 1_000_000_000, 16),
            // Modified pcap: interface, protocol and type of the frame follow.
            0xa1b2_cd34 => (Order::Big, 1_000_000, 24),
            0x34cd_b2a1 => (Order::Little, 1_000_000, 24),
            _ => return None,
        };
        Some(Self { order, per_second, header_len })
    }

    /// Reads the header after its first four bytes; returns the section and its interface.
    pub(crate) fn head<R: Read>(self, source: &mut R) -> io::Result<Result<[Block; 2], End>> {
        let mut header = Vec::new();
        if !fill(source, &mut header, 20)? {
            return Ok(Err(End::Cut));
        }
        let mut section = 0x1a2b_3c4d_u32.to_be_bytes().to_vec();
        if self.order == Order::Little {
            section.reverse();
        }
        section.extend(self.order.of_u16(1));
        section.extend(self.order.of_u16(0));
        // The length of the section is unset.
        section.extend([0xff; 8]);
        let network = self.number(&header, 4);
        let snap_len = self.number(&header, 3);
        let mut interface = Vec::new();
        interface.extend(self.order.of_u16(u16::try_from(network & 0xffff).unwrap_or(0)));
        interface.extend([0, 0]);
        interface.extend(self.order.of_u32(snap_len));
        let mut option = |code: u16, value: u8| {
            interface.extend(self.order.of_u16(code));
            interface.extend(self.order.of_u16(1));
            interface.extend([value, 0, 0, 0]);
        };
        option(OPTION_TIMESTAMP_UNIT, if self.per_second == 1_000_000 { 6 } else { 9 });
        // The F bit: the number of 16-bit words of the check sequence at the end of each frame.
        if network & 1 << 26 != 0 {
            option(OPTION_FCS_LEN, u8::try_from(network >> 28).unwrap_or(0) * 2);
        }
        interface.extend([0; 4]);
        Ok(Ok([
            self.block(SECTION_HEADER, &section),
            self.block(INTERFACE_DESCRIPTION, &interface),
        ]))
    }

    /// Reads the next frame.
    pub(crate) fn next<R: Read>(self, source: &mut R) -> io::Result<Result<Block, End>> {
        let mut header = Vec::new();
        if !fill(source, &mut header, self.header_len)? {
            return Ok(Err(if header.is_empty() { End::Whole } else { End::Cut }));
        }
        let [seconds, fraction, captured_len, original_len] =
            std::array::from_fn(|index| self.number(&header, index));
        let len = usize::try_from(captured_len).unwrap_or(usize::MAX);
        if len > FRAME_LEN_MAX {
            return Ok(Err(End::Malformed("a frame of absurd length")));
        }
        let mut body = Vec::with_capacity(20);
        body.extend([0; 4]);
        let ticks = u64::from(seconds) * self.per_second + u64::from(fraction);
        let high = u32::try_from(ticks >> 32).unwrap_or(u32::MAX);
        let low = u32::try_from(ticks & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        for number in [high, low, captured_len, original_len] {
            body.extend(self.order.of_u32(number));
        }
        if !fill(source, &mut body, 20 + len)? {
            return Ok(Err(End::Cut));
        }
        body.resize(body.len().next_multiple_of(4), 0);
        Ok(Ok(self.block(ENHANCED_PACKET, &body)))
    }

    fn number(self, octets: &[u8], index: usize) -> u32 {
        let four = octets.get(index * 4..).and_then(|octets| octets.first_chunk());
        self.order.u32(four.copied().unwrap_or_default())
    }

    fn block(self, kind: u32, body: &[u8]) -> Block {
        let len = self.order.of_u32(u32::try_from(body.len() + 12).unwrap_or(u32::MAX));
        let octets = [&self.order.of_u32(kind)[..], &len, body, &len].concat();
        Block { order: self.order, kind, octets, rest: None }
    }
}

const OPTION_TIMESTAMP_UNIT: u16 = 9;
const OPTION_FCS_LEN: u16 = 13;
