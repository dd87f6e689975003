//! Powers of x modulo the CRC32c polynomial, by which the kernels move registers ahead. All are
//! *reflected*: bit 31 of a `u32` is the coefficient of x⁰, as in the register of the CRC.

/// The CRC32c polynomial 0x1EDC6F41 (RFC 3720 §12.1), reflected, without x³².
const POLYNOMIAL: u32 = 0x82F6_3B78;

const fn times_x(value: u32) -> u32 {
    if value & 1 == 0 { value >> 1 } else { (value >> 1) ^ POLYNOMIAL }
}

pub(super) const fn x_to_the(exponent: u32) -> u32 {
    let mut value = 1 << 31;
    let mut i = 0;
    while i < exponent {
        value = times_x(value);
        i += 1;
    }
    value
}

/// Factors that move a 128-bit piece ahead by `bits`, the low quadword's first. A product of
/// reflected operands is multiplied by x, and a 32-bit constant in the low half of a quadword
/// counts x³² more, hence −33. The low quadword holds the higher powers: 64 more.
#[cfg(target_arch = "x86_64")]
pub(super) const fn fold_factors(bits: u32) -> [i64; 2] {
    [x_to_the(bits + 64 - 33) as i64, x_to_the(bits - 33) as i64]
}

/// Bytes that one turn takes from each of the three lanes.
pub(super) const LANE_TURN_LEN: usize = 32;
/// Number of turns after which lanes are joined at the latest.
pub(super) const TURNS_MAX: usize = 64;

/// Factors that move a CRC register ahead: row `turns` has those for 1, 2, 3 and 6 lanes of `turns`
/// turns. Multiply without carries, then feed the 64-bit product to the CRC instruction, which
/// multiplies by x³² and reduces.
pub(super) static LANES_AHEAD: [[u32; 4]; TURNS_MAX + 1] = {
    const LANE_TURN_BITS: u32 = 8 * 32;
    const { assert!(LANE_TURN_LEN == 32) };
    let mut rows = [[0; 4]; TURNS_MAX + 1];
    let mut value = x_to_the(LANE_TURN_BITS - 33);
    let mut ahead = 1;
    while ahead <= 6 * TURNS_MAX {
        let lanes = [1, 2, 3, 6];
        let mut i = 0;
        while i < lanes.len() {
            if ahead % lanes[i] == 0 && ahead / lanes[i] <= TURNS_MAX {
                rows[ahead / lanes[i]][i] = value;
            }
            i += 1;
        }
        let mut bit = 0;
        while bit < LANE_TURN_BITS {
            value = times_x(value);
            bit += 1;
        }
        ahead += 1;
    }
    rows
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
    fn rows_are_powers_of_x() {
        for turns in [1, 2, 7, TURNS_MAX] {
            for (lanes, factor) in [1, 2, 3, 6].into_iter().zip(LANES_AHEAD[turns]) {
                let bits = u32::try_from(lanes * turns * LANE_TURN_LEN * 8 - 33).unwrap();
                assert_eq!(factor, x_to_the(bits), "{lanes} lanes of {turns} turns");
            }
        }
    }
}
