//! AES-GMAC as integrity without encryption (RFC 4543): AES-GCM of an empty text.

use super::gcm::{Gcm, ICV_LEN, IV_LEN, write_iv};
use super::{KeyLengthError, Sequence, Transform, TransformError};
use crate::key::Key;
use crate::wire::esp::HEADER_LEN;

/// A key with its salt.
#[derive(Debug)]
pub(super) struct Gmac {
    gcm: Gcm,
    /// Authenticated data with the upper half of the sequence number, which is not in the packet.
    extended: Vec<u8>,
}

impl Gmac {
    pub(super) fn new(key: &Key) -> Result<Self, KeyLengthError> {
        Ok(Self { gcm: Gcm::new(key)?, extended: Vec::new() })
    }

    /// Returns the authenticated data: the packet without its ICV, with the whole sequence number
    /// (RFC 4543 §3.3).
    fn data<'a>(extended: &'a mut Vec<u8>, sequence: Sequence, packet: &'a [u8]) -> &'a [u8] {
        let packet = &packet[..packet.len() - ICV_LEN];
        if !sequence.is_extended {
            return packet;
        }
        extended.clear();
        extended.extend_from_slice(&packet[..4]);
        extended.extend_from_slice(&sequence.high());
        extended.extend_from_slice(&packet[4..]);
        extended
    }
}

impl Transform for Gmac {
    fn seal(&mut self, sequence: Sequence, packet: &mut [u8]) -> Result<(), TransformError> {
        write_iv(sequence, packet);
        let data = Self::data(&mut self.extended, sequence, packet);
        let icv = self.gcm.tag(packet, data, &mut [])?;
        let icv_at = packet.len() - ICV_LEN;
        packet[icv_at..].copy_from_slice(&icv);
        Ok(())
    }

    fn open(
        &mut self,
        sequence: Sequence,
        packet: &[u8],
        plain: &mut [u8],
    ) -> Result<(), TransformError> {
        let data = Self::data(&mut self.extended, sequence, packet);
        self.gcm.check(packet, data, &[], &mut [])?;
        plain.copy_from_slice(&packet[HEADER_LEN + IV_LEN..packet.len() - ICV_LEN]);
        Ok(())
    }
}
