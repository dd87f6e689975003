//! CRC32c, the digest of every FPDU, over bytes that may be scattered. `digest` of
//! [`mem`](crate::mem) computes it, faster than the crates at the lengths of FPDUs; without a
//! special kernel for the processor, the `crc32c` crate does. Tests compare the two.

use crate::mem::{SharedSlice, crc32c_append_shared};

/// An incremental CRC32c. RFC 5044 §4.4: the CRC is that of iSCSI: polynomial 0x1EDC6F41 (reflected
/// 0x82F63B78), register all ones at the start, bits reflected, result inverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c {
    register: u32,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The digest of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { register: u32::MAX }
    }

    #[must_use]
    pub(crate) const fn from_state(register: u32) -> Self {
        Self { register }
    }

    /// The raw register: reflected, before the final inversion.
    #[must_use]
    pub const fn state(&self) -> u32 {
        self.register
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.register =
            if cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))) {
                crc32c_append_shared(self.register, SharedSlice::from_bytes(bytes))
            } else {
                // The crate uses finished CRCs, hence the two inversions.
                !::crc32c::crc32c_append(!self.register, bytes)
            };
    }

    /// The CRC of all added bytes.
    // spec: MPA-4.4-7
    #[must_use]
    pub const fn finish(self) -> u32 {
        !self.register
    }
}

/// The CRC32c of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    over([bytes])
}

/// The CRC32c of several consecutive runs of bytes.
#[must_use]
pub fn over<'a>(runs: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Crc32c::new();
    for run in runs {
        digest.update(run);
    }
    digest.finish()
}

/// The four bytes of an FPDU's CRC field.
// RFC 5044 §4.4 and Figures 5, 6: the bit-reflected value is sent least significant byte first.
// spec: MPA-4.4-8
#[must_use]
pub const fn to_wire(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

/// The value in an FPDU's CRC field.
#[must_use]
pub const fn from_wire(field: [u8; 4]) -> u32 {
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests;
