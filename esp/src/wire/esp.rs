//! The ESP packet (RFC 4303 §2): header, padding and trailer.
//!
//! ```text
//! SPI 4 | sequence number 4 | IV | payload | padding | pad length 1 | next header 1 | ICV
//! ```

use crate::wire::read_u32;

/// Bytes of the SPI and the sequence number.
pub const HEADER_LEN: usize = 8;
/// Bytes of the pad length and the next header.
pub const TRAILER_LEN: usize = 2;
/// The number of ESP in IP headers.
pub const PROTOCOL: u8 = 50;
/// Next header of a dummy packet (RFC 4303 §2.6).
pub const NO_NEXT_HEADER: u8 = 59;
/// Largest SPI that is reserved (RFC 4303 §2.1).
pub const SPI_RESERVED_MAX: u32 = 255;

/// Reads the SPI and the lower half of the sequence number.
#[must_use]
pub fn read_header(packet: &[u8]) -> Option<(u32, u32)> {
    Some((read_u32(packet, 0)?, read_u32(packet, 4)?))
}

/// Writes the header.
pub(crate) fn write_header(packet: &mut [u8], spi: u32, number: u64) {
    let [_, _, _, _, low @ ..] = number.to_be_bytes();
    packet[..4].copy_from_slice(&spi.to_be_bytes());
    packet[4..8].copy_from_slice(&low);
}

/// Returns the padding of a payload, so that it ends with its trailer at a multiple of `block`.
#[must_use]
pub const fn padding_len(payload_len: usize, block: usize) -> usize {
    (payload_len + TRAILER_LEN).next_multiple_of(block) - (payload_len + TRAILER_LEN)
}

/// Writes padding (1, 2, 3 and so on, RFC 4303 §2.4), its length, and the next header.
pub(crate) fn write_trailer(trailer: &mut [u8], next_header: u8) {
    let Some((next, rest)) = trailer.split_last_mut() else { return };
    *next = next_header;
    let Some((length, padding)) = rest.split_last_mut() else { return };
    *length = 0;
    for (number, byte) in (1..=u8::MAX).zip(padding) {
        *byte = number;
        *length = number;
    }
}

/// Returns the length of the payload of a decrypted packet, and the next header. Returns `None` if
/// the padding is not as the sender must write it.
#[must_use]
pub fn read_trailer(plain: &[u8]) -> Option<(usize, u8)> {
    let (rest, [pad_len, next_header]) = plain.split_last_chunk()?;
    let payload_len = rest.len().checked_sub(usize::from(*pad_len))?;
    let right = rest[payload_len..].iter().zip(1..=u8::MAX).all(|(byte, number)| *byte == number);
    right.then_some((payload_len, *next_header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_trailer_is_read_for_each_length_and_alignment() {
        for block in [4, 16] {
            for payload_len in 0..64 {
                let pad_len = padding_len(payload_len, block);
                assert!(pad_len < block);
                let mut plain = vec![0xee; payload_len + pad_len + TRAILER_LEN];
                assert!(plain.len().is_multiple_of(block));
                write_trailer(&mut plain[payload_len..], 6);
                assert_eq!(read_trailer(&plain), Some((payload_len, 6)));
            }
        }
    }

    #[test]
    fn wrong_padding_is_refused() {
        assert_eq!(read_trailer(&[1, 2, 2, 6]), Some((0, 6)));
        for plain in [&[1, 3, 2, 6][..], &[0, 0, 2, 6], &[3, 6], &[255, 6], &[6], &[]] {
            assert_eq!(read_trailer(plain), None, "{plain:?}");
        }
        // The longest padding.
        let mut plain: Vec<u8> = (1..=255).collect();
        plain.extend([255, 4]);
        assert_eq!(read_trailer(&plain), Some((0, 4)));
    }
}
