//! AES-GCM as encryption and integrity (RFC 4106).
//!
//! The nonce is the salt of the key and the IV (§4). The IV is the 64-bit sequence number, which
//! never repeats under one key, as §3.1 demands.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::{KeyLengthError, Sequence, Transform, TransformError};
use crate::key::Key;
use crate::wire::esp::HEADER_LEN;

const SALT_LEN: usize = 4;
pub(super) const IV_LEN: usize = 8;
pub(super) const ICV_LEN: usize = 16;
/// Offset of what is encrypted.
const PLAIN_AT: usize = HEADER_LEN + IV_LEN;

/// A key with its salt.
#[derive(Debug)]
pub(super) struct Gcm {
    key: LessSafeKey,
    salt: Key,
}

impl Gcm {
    pub(super) fn new(key: &Key) -> Result<Self, KeyLengthError> {
        let (key, salt) = key.bytes().split_last_chunk::<SALT_LEN>().ok_or(KeyLengthError)?;
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            _ => return Err(KeyLengthError),
        };
        let key = UnboundKey::new(algorithm, key).map_err(|_| KeyLengthError)?;
        Ok(Self { key: LessSafeKey::new(key), salt: Key::from(&salt[..]) })
    }

    /// Returns the nonce of a packet with its IV.
    fn nonce(&self, packet: &[u8]) -> Nonce {
        let mut nonce = [0; SALT_LEN + IV_LEN];
        nonce[..SALT_LEN].copy_from_slice(self.salt.bytes());
        nonce[SALT_LEN..].copy_from_slice(&packet[HEADER_LEN..PLAIN_AT]);
        Nonce::assume_unique_for_key(nonce)
    }

    /// Computes the ICV of a packet with its IV, and encrypts `text`.
    pub(super) fn tag(
        &self,
        packet: &[u8],
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; ICV_LEN], TransformError> {
        let aad = Aad::from(aad);
        let tag = self.key.seal_in_place_separate_tag(self.nonce(packet), aad, text)?;
        tag.as_ref().first_chunk().copied().ok_or(TransformError::Refused)
    }

    /// Checks the ICV of a packet, and decrypts `text` to `plain`.
    pub(super) fn check(
        &self,
        packet: &[u8],
        aad: &[u8],
        text: &[u8],
        plain: &mut [u8],
    ) -> Result<(), TransformError> {
        let icv = &packet[packet.len() - ICV_LEN..];
        self.key
            .open_separate_gather(self.nonce(packet), Aad::from(aad), text, icv, plain)
            .map_err(|_| TransformError::BadIcv)
    }
}

/// Additional authenticated data: SPI and sequence number (RFC 4106 §5).
struct Header([u8; HEADER_LEN + 4], usize);

impl Header {
    fn new(sequence: Sequence, packet: &[u8]) -> Self {
        let mut header = [0; HEADER_LEN + 4];
        if sequence.is_extended {
            header[..4].copy_from_slice(&packet[..4]);
            header[4..].copy_from_slice(&sequence.number.to_be_bytes());
            Self(header, HEADER_LEN + 4)
        } else {
            header[..HEADER_LEN].copy_from_slice(&packet[..HEADER_LEN]);
            Self(header, HEADER_LEN)
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

/// Writes the IV of a packet.
pub(super) fn write_iv(sequence: Sequence, packet: &mut [u8]) {
    packet[HEADER_LEN..PLAIN_AT].copy_from_slice(&sequence.number.to_be_bytes());
}

impl Transform for Gcm {
    fn seal(&mut self, sequence: Sequence, packet: &mut [u8]) -> Result<(), TransformError> {
        write_iv(sequence, packet);
        let header = Header::new(sequence, packet);
        let icv_at = packet.len() - ICV_LEN;
        let (front, text) = packet.split_at_mut(PLAIN_AT);
        let (text, icv) = text.split_at_mut(icv_at - PLAIN_AT);
        icv.copy_from_slice(&self.tag(front, header.bytes(), text)?);
        Ok(())
    }

    fn open(
        &mut self,
        sequence: Sequence,
        packet: &[u8],
        plain: &mut [u8],
    ) -> Result<(), TransformError> {
        let header = Header::new(sequence, packet);
        let text = &packet[PLAIN_AT..packet.len() - ICV_LEN];
        self.check(packet, header.bytes(), text, plain)
    }
}
