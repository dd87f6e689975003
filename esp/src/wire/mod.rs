//! Headers of IP, UDP, ICMP and ESP as values.

pub mod esp;
pub mod icmp;
pub mod ip;
pub mod udp;

/// Reads a 16-bit number at an offset.
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads a 32-bit number at an offset.
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes a 16-bit number at an offset. The caller has made sure of the length.
pub(crate) fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the internet checksum of some parts, each but the last a multiple of four bytes long
/// (RFC 1071).
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        let (words, rest) = part.as_chunks::<4>();
        sum += words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum::<u64>();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_be_bytes(last));
    }
    // Each step keeps the sum in ones' complement arithmetic; after the last one 16 bits are left.
    for bits in [32, 16, 16, 16] {
        sum = (sum >> bits) + (sum & ((1 << bits) - 1));
    }
    let [.., high, low] = sum.to_be_bytes();
    !u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::checksum;

    proptest! {
        #[test]
        fn the_checksum_is_the_sum_of_16_bit_words(
            first in proptest::collection::vec(any::<[u8; 4]>(), 0..20),
            last in proptest::collection::vec(prop_oneof![Just(0xff_u8), any::<u8>()], 0..100),
        ) {
            let first = first.concat();
            let mut sum = 0_u32;
            for word in [&first[..], &last].concat().chunks(2) {
                sum += u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0));
                sum = (sum >> 16) + (sum & 0xffff);
            }
            prop_assert_eq!(u32::from(!checksum(&[&first, &last])), sum);
        }
    }
}
