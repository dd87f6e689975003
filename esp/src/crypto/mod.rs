//! The algorithms of ESP behind one small trait.
//!
//! RFC 7146 §2 and RFC 8221 §5, §6 say which ones: AES-GCM, AES-GMAC, AES-CBC and no encryption,
//! the latter two with an HMAC. The cryptography itself is aws-lc-rs's, which also erases its own
//! copies of the keys.

mod composed;
mod gcm;
mod gmac;

use std::fmt;

use aws_lc_rs::error::Unspecified;

use crate::key::Key;
use composed::Composed;
use gcm::Gcm;
use gmac::Gmac;

/// Bytes of the longest IV.
pub(crate) const IV_LEN_MAX: usize = 16;
/// Bytes of the longest integrity check value.
pub(crate) const ICV_LEN_MAX: usize = 32;
/// Bytes of the longest block.
pub(crate) const BLOCK_LEN_MAX: usize = 16;

/// The algorithms of an association, with their keys.
// spec: SEC-I-15
#[derive(Clone, Debug)]
pub enum Keying {
    /// AES-GCM with an ICV of 16 bytes (RFC 4106). The key has 16 or 32 bytes, and 4 of salt.
    AesGcm(Key),
    /// AES-GMAC: integrity only (RFC 4543). The key is as of AES-GCM.
    AesGmac(Key),
    /// AES-CBC (RFC 3602) with an HMAC.
    AesCbc {
        /// 16 or 32 bytes.
        encryption: Key,
        /// Integrity algorithm.
        integrity: Integrity,
        /// [`Integrity::key_len`] bytes.
        authentication: Key,
    },
    /// No encryption (RFC 2410), with an HMAC.
    Null {
        /// Integrity algorithm.
        integrity: Integrity,
        /// [`Integrity::key_len`] bytes.
        authentication: Key,
    },
}

/// An HMAC, cut to the length of its ICV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// HMAC-SHA-1-96 (RFC 2404).
    HmacSha1,
    /// HMAC-SHA-256-128 (RFC 4868).
    HmacSha256,
    /// HMAC-SHA-384-192 (RFC 4868).
    HmacSha384,
    /// HMAC-SHA-512-256 (RFC 4868).
    HmacSha512,
}

impl Integrity {
    /// Bytes of the key (RFC 2404 §3, RFC 4868 §2.1.1).
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::HmacSha1 => 20,
            Self::HmacSha256 => 32,
            Self::HmacSha384 => 48,
            Self::HmacSha512 => 64,
        }
    }

    /// Bytes of the ICV.
    #[must_use]
    pub const fn icv_len(self) -> usize {
        match self {
            Self::HmacSha1 => 12,
            _ => self.key_len() / 2,
        }
    }
}

/// The key of an algorithm has a wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key has a length that its algorithm does not take")]
pub struct KeyLengthError;

/// Lengths that an algorithm adds to a packet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Initialization vector.
    pub iv: usize,
    /// Payload, padding and trailer are a multiple of this.
    pub block: usize,
    /// Integrity check value.
    pub icv: usize,
}

impl Keying {
    /// Returns the lengths that the algorithms add.
    #[must_use]
    pub const fn lengths(&self) -> Lengths {
        match self {
            Self::AesGcm(_) | Self::AesGmac(_) => Lengths { iv: 8, block: 4, icv: 16 },
            Self::AesCbc { integrity, .. } => {
                Lengths { iv: 16, block: BLOCK_LEN_MAX, icv: integrity.icv_len() }
            }
            Self::Null { integrity, .. } => Lengths { iv: 0, block: 4, icv: integrity.icv_len() },
        }
    }

    /// Prepares the keys for use.
    pub(crate) fn transform(&self) -> Result<Box<dyn Transform>, KeyLengthError> {
        Ok(match self {
            Self::AesGcm(key) => Box::new(Gcm::new(key)?),
            Self::AesGmac(key) => Box::new(Gmac::new(key)?),
            Self::AesCbc { encryption, integrity, authentication } => {
                Box::new(Composed::new(Some(encryption), *integrity, authentication)?)
            }
            Self::Null { integrity, authentication } => {
                Box::new(Composed::new(None, *integrity, authentication)?)
            }
        })
    }
}

/// Sequence number of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// The number; without extended numbers below 2^32.
    pub(crate) number: u64,
    /// Extended numbers: the upper half is authenticated, too.
    pub(crate) is_extended: bool,
}

impl Sequence {
    /// Returns the upper half.
    const fn high(self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.number.to_be_bytes();
        [a, b, c, d]
    }
}

/// Reason why a packet was not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransformError {
    /// The integrity check value is wrong.
    BadIcv,
    /// The cryptographic library refused to work.
    Refused,
}

impl From<Unspecified> for TransformError {
    fn from(Unspecified: Unspecified) -> Self {
        Self::Refused
    }
}

/// Algorithms with the keys of one association.
///
/// A packet here is an ESP packet from its SPI to the end of its ICV. Its length is right: header,
/// IV and ICV are there, and a multiple of the block is between them.
pub(crate) trait Transform: fmt::Debug + Send {
    /// Writes IV and ICV, and encrypts what is between them. The header is written.
    fn seal(&mut self, sequence: Sequence, packet: &mut [u8]) -> Result<(), TransformError>;

    /// Checks the ICV, and writes what is between IV and ICV to `plain`, decrypted. `plain` has its
    /// length; its contents have no meaning after an error.
    fn open(
        &mut self,
        sequence: Sequence,
        packet: &[u8],
        plain: &mut [u8],
    ) -> Result<(), TransformError>;
}

#[cfg(test)]
pub(crate) mod tests;
