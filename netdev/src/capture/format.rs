//! Numbers of both formats, for the readers and the writers: byte order, blocks, options.

/// Byte order of the numbers of a file, or of one of its sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endianness {
    Big,
    Little,
}

impl Endianness {
    /// Byte order of a section, by the byte-order magic in its header.
    pub(super) const fn of_section(magic: [u8; 4]) -> Option<Self> {
        match u32::from_be_bytes(magic) {
            BYTE_ORDER_MAGIC => Some(Self::Big),
            0x4d3c_2b1a => Some(Self::Little),
            _ => None,
        }
    }

    pub(super) const fn u16(self, octets: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(octets),
            Self::Little => u16::from_le_bytes(octets),
        }
    }

    pub(super) const fn u32(self, octets: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(octets),
            Self::Little => u32::from_le_bytes(octets),
        }
    }

    pub(super) const fn u64(self, octets: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(octets),
            Self::Little => u64::from_le_bytes(octets),
        }
    }

    /// Returns the 32-bit number at `index` of an array.
    pub(super) fn u32_at(self, octets: &[u8], index: usize) -> u32 {
        let at = index * 4;
        self.u32([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
    }

    pub(super) const fn of_u16(self, number: u16) -> [u8; 2] {
        match self {
            Self::Big => number.to_be_bytes(),
            Self::Little => number.to_le_bytes(),
        }
    }

    pub(super) const fn of_u32(self, number: u32) -> [u8; 4] {
        match self {
            Self::Big => number.to_be_bytes(),
            Self::Little => number.to_le_bytes(),
        }
    }
}

/// Length of a block by either of its length fields; `None` if it is impossible. Some writers leave
/// the padding out of the length, so it is rounded up to a multiple of four bytes.
pub(super) const fn block_len(field: u32) -> Option<u32> {
    match field.checked_next_multiple_of(4) {
        Some(len) if len >= BLOCK_LEN_MIN => Some(len),
        _ => None,
    }
}

/// Bytes around the body of a block.
pub(super) const BLOCK_LEN_MIN: u32 = 12;
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// The type of a section header, which is the same in both orders.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
pub(super) const PACKET: u32 = 2;
pub(super) const SIMPLE_PACKET: u32 = 3;
pub(super) const INTERFACE_STATISTICS: u32 = 5;
pub(super) const ENHANCED_PACKET: u32 = 6;

pub(super) const OPTION_END: u16 = 0;
pub(super) const OPTION_COMMENT: u16 = 1;
// Options of an interface:
pub(super) const OPTION_NAME: u16 = 2;
pub(super) const OPTION_TIMESTAMP_UNIT: u16 = 9;
pub(super) const OPTION_FCS_LEN: u16 = 13;
pub(super) const OPTION_TIMESTAMP_OFFSET: u16 = 14;
// Options of a packet:
pub(super) const OPTION_FLAGS: u16 = 2;
// Options of a section:
pub(super) const OPTION_PROGRAM: u16 = 4;
// Options of statistics:
pub(super) const OPTION_DROPPED: u16 = 5;
