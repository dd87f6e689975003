//! The arithmetic of atomic operations (RFC 7306 §5.1).

/// An operation on a 64-bit integer in memory, in the byte order of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds to the integer (RFC 7306 §5.1.1).
    FetchAdd {
        /// Number to add.
        add: u64,
        /// A one at bit k drops the carry out of it, the top bit of a separate field. Zero: plain.
        mask: u64,
    },
    /// Replaces some bits if other bits are equal to given ones (RFC 7306 §5.1.2).
    CmpSwap {
        /// Value to compare with.
        compare: u64,
        /// Bits to compare. Zero: always equal.
        compare_mask: u64,
        /// New values of the replaced bits.
        swap: u64,
        /// Bits to replace.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Result of the operation on `original`.
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => fetch_add(original, add, mask),
            Self::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                cmp_swap(original, compare, compare_mask, swap, swap_mask)
            }
        }
    }
}

// RFC 7306 §5.1.1: a one in the Add Mask stops the carry. First the addition without the mask's
// bits: a carry stops in such a bit. Then these bits are added without carry.
// spec: EXT-5.1.1-1
const fn fetch_add(original: u64, add: u64, mask: u64) -> u64 {
    let sum = (original & !mask).wrapping_add(add & !mask);
    sum ^ ((original ^ add) & mask)
}

// RFC 7306 §5.1.2: "if ((Compare Data XOR original) AND Compare Mask) = 0", then the bits under the
// Swap Mask change; otherwise nothing changes.
// spec: EXT-5.1.2-1
const fn cmp_swap(
    original: u64,
    compare: u64,
    compare_mask: u64,
    swap: u64,
    swap_mask: u64,
) -> u64 {
    if (compare ^ original) & compare_mask == 0 {
        (original & !swap_mask) | (swap & swap_mask)
    } else {
        original
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn add(original: u64, add: u64, mask: u64) -> u64 {
        AtomicOp::FetchAdd { add, mask }.apply(original)
    }

    const fn swap(original: u64, data: u64, mask: u64, compare: u64, compare_mask: u64) -> u64 {
        AtomicOp::CmpSwap { compare, compare_mask, swap: data, swap_mask: mask }.apply(original)
    }

    /// RFC 7306 §5.1.1, bit by bit as the RFC's figure does it.
    fn ripple_add(original: u64, add: u64, mask: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let total = (original >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }

    // spec: EXT-5.1.1-1
    #[test]
    fn fetch_add_drops_carries_at_the_mask() {
        assert_eq!(add(0xFFFF_FFFF, 1, 0), 0x1_0000_0000);
        assert_eq!(add(0xFFFF_FFFF, 1, 0x8000_0000), 0);
        assert_eq!(
            add(0xFF01_FF01_FF01_FF01, 0x0101_0101_0101_0101, 0x8080_8080_8080_8080),
            0x0002_0002_0002_0002
        );
        assert_eq!(
            add(0xAAAA_5555_AAAA_5555, u64::MAX, u64::MAX),
            0x5555_AAAA_5555_AAAA,
            "every bit its own field: exclusive or"
        );
        assert_eq!(add(u64::MAX, 2, 1 << 63), 1);
    }

    // spec: EXT-5.1.2-1
    #[test]
    fn cmp_swap_compares_and_swaps_under_masks() {
        let original = 0x1122_3344_5566_7788;
        assert_eq!(swap(original, 0xAA, 0xFF, 0x88, 0xFF), 0x1122_3344_5566_77AA);
        assert_eq!(swap(original, 0xAA, 0xFF, 0x89, 0xFF), original);
        assert_eq!(
            swap(original, 0xDEAD_BEEF_0000_0000, 0xFFFF_FFFF_0000_0000, 0x1234, 0),
            0xDEAD_BEEF_5566_7788
        );
    }

    proptest! {
        // spec: EXT-5.1.1-1
        #[test]
        fn fetch_add_is_the_ripple_adder(original: u64, data: u64, mask: u64) {
            prop_assert_eq!(add(original, data, mask), ripple_add(original, data, mask));
        }
    }
}
