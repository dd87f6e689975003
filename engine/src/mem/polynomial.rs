//! Powers of x modulo the CRC32c polynomial, as the digest's folding steps need them.
//!
//! Everything here is *reflected*: bit 31 of a `u32` is the coefficient of x⁰, as in the register
//! of the CRC itself. Computed by the compiler.

/// The CRC32c polynomial 0x1EDC6F41 (RFC 3720 §12.1), reflected, without x³².
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `value · x` modulo the polynomial.
const fn times_x(value: u32) -> u32 {
    if value & 1 == 0 { value >> 1 } else { (value >> 1) ^ POLYNOMIAL }
}

/// `x^exponent` modulo the polynomial.
pub(super) const fn x_to_the(exponent: u32) -> u32 {
    let mut value = 1 << 31;
    let mut i = 0;
    while i < exponent {
        value = times_x(value);
        i += 1;
    }
    value
}

/// The two factors that move a 128-bit piece ahead by `bits`, low quadword's first.
///
/// A carry-less product of reflected operands comes out multiplied by x, and a 32-bit constant in
/// the low half of a quadword counts x³² more, hence −33. The low quadword holds the higher
/// powers: 64 more.
pub(super) const fn fold_factors(bits: u32) -> [u32; 2] {
    [x_to_the(bits + 64 - 33), x_to_the(bits - 33)]
}

/// Quadwords by which [`LANE_SHIFTS`] can move a register.
pub(super) const LANE_SHIFTS_LEN: usize = 256;

/// Entry `i` moves a CRC register ahead by `i` quadwords: multiply without carries, then feed the
/// 64-bit product to the CRC instruction, which multiplies by x³² and reduces. Entry 0 is unused.
pub(super) static LANE_SHIFTS: [u32; LANE_SHIFTS_LEN + 1] = {
    let mut shifts = [0; LANE_SHIFTS_LEN + 1];
    let mut value = x_to_the(64 - 33);
    let mut i = 1;
    while i <= LANE_SHIFTS_LEN {
        shifts[i] = value;
        let mut bit = 0;
        while bit < 64 {
            value = times_x(value);
            bit += 1;
        }
        i += 1;
    }
    shifts
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_powers_of_x_are_single_bits() {
        assert_eq!(x_to_the(0), 0x8000_0000);
        assert_eq!(x_to_the(31), 1);
        assert_eq!(x_to_the(32), POLYNOMIAL);
    }

    #[test]
    fn lane_shifts_are_powers_of_x() {
        for i in [1, 2, 100, 256] {
            let bits = u32::try_from(i * 64 - 33).unwrap();
            assert_eq!(LANE_SHIFTS[i], x_to_the(bits));
        }
    }
}
