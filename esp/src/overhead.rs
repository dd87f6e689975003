//! Lengths: how long a packet becomes under ESP, and how long it may be.

use crate::crypto::Lengths;
use crate::wire::esp::{HEADER_LEN, TRAILER_LEN, padding_len};

/// Lengths that an association adds to packets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Outer IP header; 0 in transport mode.
    pub outer: usize,
    /// UDP header, or 0.
    pub udp: usize,
    /// Lengths of the algorithms.
    pub lengths: Lengths,
}

impl Overhead {
    /// Bytes that the association adds in front of the encrypted part.
    #[must_use]
    pub const fn front(&self) -> usize {
        self.outer + self.udp + HEADER_LEN + self.lengths.iv
    }

    /// Bytes that the association adds behind a payload of this length.
    #[must_use]
    pub const fn back(&self, payload_len: usize) -> usize {
        padding_len(payload_len, self.lengths.block) + TRAILER_LEN + self.lengths.icv
    }

    /// Returns the bytes of a packet's headers that stay in front of ESP: none in tunnel mode.
    const fn kept(&self, header_len: usize) -> usize {
        if self.outer == 0 { header_len } else { 0 }
    }

    /// Returns the length under ESP of a packet of `len` bytes with an IP header of `header_len`
    /// bytes.
    #[must_use]
    pub const fn sealed_len(&self, len: usize, header_len: usize) -> usize {
        let payload_len = len - self.kept(header_len);
        self.front() + len + self.back(payload_len)
    }

    /// Returns the length of the longest packet, with an IP header of `header_len` bytes, that
    /// under ESP is at most `mtu` bytes long. Returns `None` if none is short enough.
    #[must_use]
    pub fn largest_packet(&self, mtu: usize, header_len: usize) -> Option<usize> {
        let kept = self.kept(header_len);
        let room = mtu.checked_sub(self.front() + kept + self.lengths.icv)?;
        let payload_len =
            (room / self.lengths.block * self.lengths.block).checked_sub(TRAILER_LEN)?;
        let len = kept + payload_len;
        (len >= header_len).then_some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GCM: Lengths = Lengths { iv: 8, block: 4, icv: 16 };
    const CBC: Lengths = Lengths { iv: 16, block: 16, icv: 32 };

    /// The longest packet is exact: it fits, and one byte more does not.
    #[test]
    fn the_largest_packet_fits_and_a_longer_one_does_not() {
        for lengths in [GCM, CBC] {
            for (outer, udp) in [(0, 0), (0, 8), (20, 0), (40, 8)] {
                let overhead = Overhead { outer, udp, lengths };
                for header_len in [20, 40] {
                    for mtu in 0..=9000 {
                        match overhead.largest_packet(mtu, header_len) {
                            Some(len) => {
                                assert!(overhead.sealed_len(len, header_len) <= mtu);
                                assert!(overhead.sealed_len(len + 1, header_len) > mtu);
                            }
                            None => assert!(overhead.sealed_len(header_len, header_len) > mtu),
                        }
                    }
                }
            }
        }
    }

    /// TCP segments that fill common MTUs.
    #[test]
    fn segments_under_aes_gcm_have_known_lengths() {
        for (mtu, header_len, udp, segment_len) in
            [(1500, 20, 0, 1446), (1500, 20, 8, 1438), (9000, 20, 0, 8946), (1500, 40, 0, 1426)]
        {
            let overhead = Overhead { outer: 0, udp, lengths: GCM };
            let len = overhead.largest_packet(mtu, header_len).unwrap();
            assert_eq!(len - header_len, segment_len, "{mtu} {header_len} {udp}");
            assert_eq!(overhead.sealed_len(len, header_len), mtu);
        }
    }
}
