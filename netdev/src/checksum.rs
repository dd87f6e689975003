//! Internet checksum over plain bytes. For middleware only: the stack above computes its checksums
//! while it touches the payload anyway.

use crate::SharedSlice;

/// Ones' complement sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes as 16-bit big-endian words. An odd last byte is padded with zero, so only the
    /// last run of a sum may have odd length.
    pub(crate) fn octets(self, bytes: &[u8]) -> Self {
        // RFC 1071 §2 (C): sums may be folded before they are added, because 2^16 = 1 modulo
        // 2^16 - 1. A 64-bit accumulator holds 2^48 folded ones.
        Self(self.0 + u64::from(SharedSlice::from_bytes(bytes).ones_complement_sum()))
    }

    /// Adds a number, as if its big-endian bytes had been added.
    pub(crate) fn number(self, value: u32) -> Self {
        Self(self.0 + u64::from(value))
    }

    /// Returns the checksum: the folded sum's complement. It is zero if the summed bytes contain a
    /// correct checksum.
    pub(crate) fn checksum(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !u16::try_from(sum).expect("folded to 16 bits")
    }
}

/// Completes the partial transport checksum of a whole frame; see
/// [`TxChecksum::Partial`](crate::TxChecksum::Partial). A field outside the frame is left alone.
pub(crate) fn complete(frame: &mut [u8], start: u16, offset: u16) {
    let (start, offset) = (usize::from(start), usize::from(offset));
    let Some(covered) = frame.get_mut(start..) else { return };
    // The field already holds the pseudo-header's sum and is summed along.
    let checksum = Sum::default().octets(covered).checksum();
    if let Some(field) = covered.get_mut(offset..offset + 2) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_rfc_1071_is_reproduced() {
        // RFC 1071 §3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        let sum = Sum::default().octets(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.checksum(), !0xddf2);
    }

    #[test]
    fn any_length_sums_like_the_naive_walk() {
        let bytes: Vec<u8> = (0..=255).cycle().take(600).map(|b: u8| b.wrapping_mul(37)).collect();
        for len in 0..bytes.len() {
            let naive: u64 =
                (0..len).map(|i| u64::from(bytes[i]) << if i % 2 == 0 { 8 } else { 0 }).sum();
            let mut folded = naive;
            while folded > 0xffff {
                folded = (folded >> 16) + (folded & 0xffff);
            }
            let sum = Sum::default().octets(&bytes[..len]);
            assert_eq!(u64::from(!sum.checksum()), folded, "{len} octets");
        }
    }

    #[test]
    fn a_checksum_field_outside_the_frame_is_left_alone() {
        let mut frame = [7; 10];
        complete(&mut frame, 11, 0);
        complete(&mut frame, 4, 5);
        complete(&mut frame, u16::MAX, u16::MAX);
        assert_eq!(frame, [7; 10]);
        complete(&mut frame, 4, 4);
        assert_ne!(frame, [7; 10]);
    }
}
