//! Interface of a pcapng section: link type and timestamp unit.

use crate::capture::LinkType;
use crate::capture::format::{
    Endianness, OPTION_END, OPTION_TIMESTAMP_OFFSET, OPTION_TIMESTAMP_UNIT,
};

/// A declared interface.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) link: LinkType,
    /// Most bytes captured per frame; 0 for no limit.
    pub(super) snap_len: u32,
    unit: Unit,
    /// Offset of each timestamp, in seconds.
    offset_s: i64,
}

/// Unit of a timestamp.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// 10^-n seconds.
    Decimal(u32),
    /// 2^-n seconds.
    Binary(u32),
}

impl Interface {
    /// Parses the body of an interface description; `None` if it is too short.
    pub(super) fn parse(body: &[u8], endianness: Endianness) -> Option<Self> {
        let (header, mut options) = body.split_at_checked(8)?;
        let number = u32::from(endianness.u16([header[0], header[1]]));
        let mut interface = Self {
            link: LinkType::from_number(number).unwrap_or(LinkType::Other(number)),
            snap_len: endianness.u32_at(header, 1),
            unit: Unit::Decimal(6),
            offset_s: 0,
        };
        // Options end with their end mark, with the body, or at the first malformed one.
        while let Some(([c0, c1, l0, l1], rest)) = options.split_first_chunk() {
            let len = usize::from(endianness.u16([*l0, *l1]));
            let Some(value) = rest.get(..len) else { break };
            match (endianness.u16([*c0, *c1]), value) {
                (OPTION_END, _) => break,
                (OPTION_TIMESTAMP_UNIT, [unit]) => interface.unit = Unit::parse(*unit),
                (OPTION_TIMESTAMP_OFFSET, value) => {
                    if let Some(octets) = value.first_chunk() {
                        interface.offset_s = endianness.u64(*octets).cast_signed();
                    }
                }
                _ => {}
            }
            options = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(interface)
    }

    /// Returns a timestamp in nanoseconds since 1970, clamped to the range.
    pub(super) fn timestamp_ns(&self, ticks: u64) -> u64 {
        let ns = self.unit.nanoseconds(ticks);
        let offset_ns = i128::from(self.offset_s) * 1_000_000_000;
        let shifted = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset_ns);
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}

impl Unit {
    fn parse(octet: u8) -> Self {
        let exponent = u32::from(octet & 0x7f);
        if octet & 0x80 == 0 { Self::Decimal(exponent) } else { Self::Binary(exponent) }
    }

    fn nanoseconds(self, ticks: u64) -> u128 {
        let ticks = u128::from(ticks);
        match self {
            Self::Decimal(exponent @ 0..=9) => ticks * 10_u128.pow(9 - exponent),
            // Below a nanosecond; from 10^39 on the result is zero.
            Self::Decimal(exponent) => {
                ticks / 10_u128.checked_pow(exponent - 9).unwrap_or(u128::MAX)
            }
            // No overflow: 2^64 * 10^9 < 2^94, and exponents are below 128.
            Self::Binary(exponent) => (ticks * 1_000_000_000) >> exponent,
        }
    }
}
