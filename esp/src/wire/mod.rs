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

/// Returns the internet checksum of some parts, each but the last of even length (RFC 1071).
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words
        .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| (*low).into()))
        .sum();
    // The sum is zero in ones' complement arithmetic exactly if it is a multiple of 0xffff.
    let folded = if sum == 0 { 0 } else { (sum - 1) % 0xffff + 1 };
    !u16::try_from(folded).unwrap_or(u16::MAX)
}
