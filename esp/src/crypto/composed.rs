//! AES-CBC (RFC 3602) or no encryption (RFC 2410), with an HMAC (RFC 2404, RFC 4868).
//!
//! Encrypt, then authenticate (RFC 4303 §3.3.2.1). The IV of CBC must not be predictable (RFC 3602
//! §3): it is the sequence number, encrypted with the same key (NIST SP 800-38A, Appendix C).

use std::fmt;

use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;

use super::{Integrity, KeyLengthError, Sequence, Transform, TransformError};
use crate::key::Key;
use crate::wire::esp::HEADER_LEN;

const BLOCK_LEN: usize = 16;

/// An optional cipher, and an HMAC.
pub(super) struct Composed {
    cipher: Option<Cbc>,
    integrity: Integrity,
    authentication: hmac::Key,
}

struct Cbc {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
}

impl Composed {
    pub(super) fn new(
        encryption: Option<&Key>,
        integrity: Integrity,
        authentication: &Key,
    ) -> Result<Self, KeyLengthError> {
        if authentication.len() != integrity.key_len() {
            return Err(KeyLengthError);
        }
        let algorithm = match integrity {
            Integrity::HmacSha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Integrity::HmacSha256 => hmac::HMAC_SHA256,
            Integrity::HmacSha384 => hmac::HMAC_SHA384,
            Integrity::HmacSha512 => hmac::HMAC_SHA512,
        };
        Ok(Self {
            cipher: encryption.map(Cbc::new).transpose()?,
            integrity,
            authentication: hmac::Key::new(algorithm, authentication.bytes()),
        })
    }

    #[cfg(test)]
    pub(super) fn encrypt(
        &self,
        iv: [u8; BLOCK_LEN],
        text: &mut [u8],
    ) -> Result<(), TransformError> {
        self.cipher.as_ref().map_or(Ok(()), |cbc| cbc.encrypt(iv, text))
    }

    const fn iv_len(&self) -> usize {
        if self.cipher.is_some() { BLOCK_LEN } else { 0 }
    }

    /// Computes the HMAC of a packet without its ICV. The upper half of an extended sequence number
    /// follows the packet (RFC 4303 §2.2.1).
    pub(super) fn hmac(&self, sequence: Sequence, packet: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.authentication);
        context.update(packet);
        if sequence.is_extended {
            context.update(&sequence.high());
        }
        context.sign()
    }
}

impl Cbc {
    fn new(key: &Key) -> Result<Self, KeyLengthError> {
        let algorithm = match key.len() {
            16 => &AES_128,
            32 => &AES_256,
            _ => return Err(KeyLengthError),
        };
        let key = || UnboundCipherKey::new(algorithm, key.bytes()).map_err(|_| KeyLengthError);
        Ok(Self {
            encrypting: EncryptingKey::cbc(key()?).map_err(|_| KeyLengthError)?,
            decrypting: DecryptingKey::cbc(key()?).map_err(|_| KeyLengthError)?,
        })
    }

    fn encrypt(&self, iv: [u8; BLOCK_LEN], text: &mut [u8]) -> Result<(), TransformError> {
        let context = EncryptionContext::Iv128(FixedLength::from(iv));
        self.encrypting.less_safe_encrypt(text, context)?;
        Ok(())
    }
}

/// Omits the keys.
impl fmt::Debug for Composed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cipher, integrity, .. } = self;
        let mut out = f.debug_struct("Composed");
        out.field("is_encrypted", &cipher.is_some()).field("integrity", integrity);
        out.finish_non_exhaustive()
    }
}

impl Transform for Composed {
    fn seal(&mut self, sequence: Sequence, packet: &mut [u8]) -> Result<(), TransformError> {
        let (packet, icv) = packet.split_at_mut(packet.len() - self.integrity.icv_len());
        if let Some(cbc) = &self.cipher {
            let mut iv = [0; BLOCK_LEN];
            iv[BLOCK_LEN - 8..].copy_from_slice(&sequence.number.to_be_bytes());
            cbc.encrypt([0; BLOCK_LEN], &mut iv)?;
            let (front, text) = packet.split_at_mut(HEADER_LEN + BLOCK_LEN);
            front[HEADER_LEN..].copy_from_slice(&iv);
            cbc.encrypt(iv, text)?;
        }
        icv.copy_from_slice(&self.hmac(sequence, packet).as_ref()[..icv.len()]);
        Ok(())
    }

    fn open(
        &mut self,
        sequence: Sequence,
        packet: &[u8],
        plain: &mut [u8],
    ) -> Result<(), TransformError> {
        let (packet, icv) = packet.split_at(packet.len() - self.integrity.icv_len());
        let tag = self.hmac(sequence, packet);
        verify_slices_are_equal(&tag.as_ref()[..icv.len()], icv)
            .map_err(|_| TransformError::BadIcv)?;
        let (front, text) = packet.split_at(HEADER_LEN + self.iv_len());
        plain.copy_from_slice(text);
        if let Some(cbc) = &self.cipher {
            let iv = front.last_chunk::<BLOCK_LEN>().ok_or(TransformError::Refused)?;
            let context = DecryptionContext::Iv128(FixedLength::from(*iv));
            cbc.decrypting.decrypt(plain, context)?;
        }
        Ok(())
    }
}
