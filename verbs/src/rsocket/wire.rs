//! Messages between two rsockets: `docs/rsocket` of rdma-core, in the form for iWARP, where a
//! message is a Send of four bytes (`RS_OPT_MSG_SEND` there) instead of immediate data.
//!
//! ```text
//! Private Data of both      version flags credits  reserved  iomap size   target SGL      first buffer
//!  40 bytes, big endian        1      1      2        3          1           16               16
//! message                   3 bits kind, 29 bits number                   a Send
//! SGE                       address 8, key 4, length 4                    a Write into the target SGL
//! iomap                     offset 8, SGE                                 a Write behind the target SGL
//! ```
//!
//! Everything but the Private Data is in the byte order of the hosts: little endian here on all
//! machines, which the flags state. A peer with the other byte order is refused, because
//! rdma-core's form for iWARP does not work between hosts of different byte order.

use urnic::{RemoteBuffer, Stag, TaggedOffset};

const VERSION: u8 = 1;
/// Set by hosts whose numbers are big endian.
const FLAG_NET: u8 = 1;
/// Set by ends that know iomaps.
const FLAG_IOMAP: u8 = 2;

pub(super) const CONN_DATA_LEN: usize = 40;
pub(super) const SGE_LEN: usize = 16;
pub(super) const IOMAP_LEN: usize = 8 + SGE_LEN;
pub(super) const MESSAGE_LEN: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) len: u32,
}

impl Target {
    pub(super) const fn at(self, offset: u64) -> RemoteBuffer {
        RemoteBuffer { stag: Stag(self.key), to: TaggedOffset(self.address.wrapping_add(offset)) }
    }

    pub(super) fn to_octets(self) -> [u8; SGE_LEN] {
        let mut octets = [0; SGE_LEN];
        octets[..8].copy_from_slice(&self.address.to_le_bytes());
        octets[8..12].copy_from_slice(&self.key.to_le_bytes());
        octets[12..].copy_from_slice(&self.len.to_le_bytes());
        octets
    }

    pub(super) fn of(octets: [u8; SGE_LEN]) -> Self {
        let [address, rest] = octets.as_chunks::<8>().0 else { return Self::default() };
        let [a, b, c, d, e, f, g, h] = *rest;
        Self {
            address: u64::from_le_bytes(*address),
            key: u32::from_le_bytes([a, b, c, d]),
            len: u32::from_le_bytes([e, f, g, h]),
        }
    }

    fn to_big_endian(self) -> [u8; SGE_LEN] {
        Self {
            address: self.address.swap_bytes(),
            key: self.key.swap_bytes(),
            len: self.len.swap_bytes(),
        }
        .to_octets()
    }

    fn of_big_endian(octets: [u8; SGE_LEN]) -> Self {
        let Self { address, key, len } = Self::of(octets);
        Self { address: address.swap_bytes(), key: key.swap_bytes(), len: len.swap_bytes() }
    }
}

/// A `riowrite` of the peer at `offset` writes to the start of `target`.
pub(super) fn iomap(offset: u64, target: Target) -> [u8; IOMAP_LEN] {
    let mut octets = [0; IOMAP_LEN];
    octets[..8].copy_from_slice(&offset.to_le_bytes());
    octets[8..].copy_from_slice(&target.to_octets());
    octets
}

pub(super) fn of_iomap(octets: [u8; IOMAP_LEN]) -> (u64, Target) {
    let [a, b, c] = octets.as_chunks::<8>().0 else { return (0, Target::default()) };
    let mut target = [0; SGE_LEN];
    target[..8].copy_from_slice(b);
    target[8..].copy_from_slice(c);
    (u64::from_le_bytes(*a), Target::of(target))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnData {
    /// Number of data messages that may be sent before more credits come.
    pub(super) credits: u16,
    /// Entries of the iomap, which is behind the target SGL.
    pub(super) iomap_size: u16,
    /// The target SGL; its length is counted in entries.
    pub(super) targets: Target,
    pub(super) buffer: Target,
}

impl ConnData {
    pub(super) fn to_octets(self) -> [u8; CONN_DATA_LEN] {
        let mut octets = [0; CONN_DATA_LEN];
        (octets[0], octets[1]) = (VERSION, FLAG_IOMAP);
        octets[2..4].copy_from_slice(&self.credits.to_be_bytes());
        octets[7] = to_scale(self.iomap_size);
        octets[8..24].copy_from_slice(&self.targets.to_big_endian());
        octets[24..].copy_from_slice(&self.buffer.to_big_endian());
        octets
    }

    /// `None` if the peer is no rsocket, or an incompatible one.
    pub(super) fn of(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; CONN_DATA_LEN] = octets.first_chunk()?;
        let [version, flags, credits_high, credits_low, _, _, _, iomap_size, sges @ ..] = octets;
        let [targets, buffer] = sges.as_chunks::<SGE_LEN>().0 else { return None };
        let has_iomap = flags & FLAG_IOMAP != 0;
        let said = Self {
            credits: u16::from_be_bytes([*credits_high, *credits_low]),
            iomap_size: if has_iomap { of_scale(*iomap_size) } else { 0 },
            targets: Target::of_big_endian(*targets),
            buffer: Target::of_big_endian(*buffer),
        };
        let is_known = *version == VERSION && flags & FLAG_NET == 0;
        let is_usable = said.credits > 0 && said.targets.len > 0 && said.buffer.len > 0;
        (is_known && is_usable).then_some(said)
    }
}

/// Encodes a size in eight bits; sizes beyond 128 in units of 256 (`rs_value_to_scale`).
const fn to_scale(size: u16) -> u8 {
    let [high, low] = size.to_be_bytes();
    if size <= 128 { low } else { 128 | high }
}

const fn of_scale(octet: u8) -> u16 {
    if octet <= 128 { octet as u16 } else { u16::from_be_bytes([octet & 127, 0]) }
}

pub(super) fn scaled(size: u16) -> u16 {
    of_scale(to_scale(size.min(127 << 8)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Number of bytes that this end has written into the peer's ring, behind earlier ones.
    Data(u32),
    /// Data messages up to this number may be sent; the target SGL may have a new entry.
    Credits(u16),
    Iomap(u32),
    /// The sender will neither send nor accept data.
    Disconnect,
    KeepAlive,
    /// The sender will not send further data.
    Shutdown,
}

const KIND_SHIFT: u32 = 29;
const NUMBER_MASK: u32 = (1 << KIND_SHIFT) - 1;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    pub(super) fn to_octets(self) -> [u8; MESSAGE_LEN] {
        let (kind, number) = match self {
            Self::Data(octets) => (DATA, octets),
            Self::Credits(up_to) => (CREDITS, u32::from(up_to)),
            Self::Iomap(index) => (IOMAP, index),
            Self::Disconnect => (CONTROL, 0),
            Self::KeepAlive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
        };
        ((kind << KIND_SHIFT) | (number & NUMBER_MASK)).to_le_bytes()
    }

    /// `None` for a word that no rsocket sends.
    pub(super) fn of(octets: [u8; MESSAGE_LEN]) -> Option<Self> {
        let word = u32::from_le_bytes(octets);
        let number = word & NUMBER_MASK;
        Some(match (word >> KIND_SHIFT, number) {
            (DATA, 1..) => Self::Data(number),
            // Numbers of messages have 16 bits and wrap.
            (CREDITS, _) => {
                let [low, high, ..] = number.to_le_bytes();
                Self::Credits(u16::from_le_bytes([low, high]))
            }
            (IOMAP, _) => Self::Iomap(number),
            (CONTROL, 0) => Self::Disconnect,
            (CONTROL, 1) => Self::KeepAlive,
            (CONTROL, 2) => Self::Shutdown,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> ConnData {
        ConnData {
            credits: 384,
            iomap_size: 128,
            targets: Target { address: 0x0102_0304_0506_0708, key: 0x1122_3344, len: 2 },
            buffer: Target { address: 9, key: 10, len: 65_536 },
        }
    }

    /// Field by field as in `struct rs_conn_data`.
    #[test]
    fn the_private_data_is_that_of_rdma_core() {
        let octets = said().to_octets();
        let mut expected = [0; CONN_DATA_LEN];
        expected[..8].copy_from_slice(&[1, 2, 1, 0x80, 0, 0, 0, 128]);
        expected[8..24]
            .copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 2]);
        expected[31] = 9;
        expected[35] = 10;
        expected[37] = 1;
        assert_eq!(octets, expected);
        assert_eq!(ConnData::of(&octets), Some(said()));
    }

    #[test]
    fn private_data_of_no_rsocket_is_refused() {
        let octets = said().to_octets();
        assert_eq!(ConnData::of(&octets[..39]), None);
        for (at, value) in [(0, 2), (1, 3), (23, 0)] {
            let mut wrong = octets;
            wrong[at] = value;
            assert_eq!(ConnData::of(&wrong), None, "{at}");
        }
        for empty in
            [ConnData { credits: 0, ..said() }, ConnData { buffer: Target::default(), ..said() }]
        {
            assert_eq!(ConnData::of(&empty.to_octets()), None);
        }
    }

    #[test]
    fn a_peer_that_knows_no_iomaps_has_none() {
        let mut octets = said().to_octets();
        octets[1] = 0;
        assert_eq!(ConnData::of(&octets), Some(ConnData { iomap_size: 0, ..said() }));
    }

    #[test]
    fn messages_are_words_of_kind_and_number() {
        for (message, word) in [
            (Message::Data(7), 7),
            (Message::Credits(0xffff), 0x8000_ffff),
            (Message::Iomap(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002_u32),
        ] {
            assert_eq!(message.to_octets(), word.to_le_bytes());
            assert_eq!(Message::of(word.to_le_bytes()), Some(message));
        }
        for none in [0, 1 << 29, 2 << 29, 3 << 29, 5 << 29, 0xe000_0003] {
            assert_eq!(Message::of(u32::to_le_bytes(none)), None, "{none:x}");
        }
    }

    #[test]
    fn sizes_of_iomaps_are_coarse_beyond_128() {
        assert_eq!([0, 1, 128, 129, 300, 60_000].map(scaled), [0, 1, 128, 128, 256, 127 << 8]);
    }
}
