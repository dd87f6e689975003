//! Contents of the Sends.

use urnic::{RemoteBuffer, Stag, TaggedOffset};

/// A buffer of the client: `be64 address, be32 STag, be32 size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) buffer: RemoteBuffer,
    pub(crate) size: u32,
}

impl Descriptor {
    pub(crate) const LEN: usize = 16;

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [to @ .., s0, s1, s2, s3, l0, l1, l2, l3] = bytes;
        Self {
            buffer: RemoteBuffer {
                to: TaggedOffset(u64::from_be_bytes(to)),
                stag: Stag(u32::from_be_bytes([s0, s1, s2, s3])),
            },
            size: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.buffer.to.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.buffer.stag.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_has_the_octets_of_rdma_core() {
        // From a capture of rping between two Linux hosts.
        let bytes =
            [0x00, 0x00, 0x55, 0xd4, 0x33, 0x00, 0x62, 0xc0, 0x9a, 0x5b, 0x3e, 0x00, 0, 0, 0, 64];
        let descriptor = Descriptor::from_bytes(bytes);
        assert_eq!(descriptor.buffer.to, TaggedOffset(0x55d4_3300_62c0));
        assert_eq!(descriptor.buffer.stag, Stag(0x9a5b_3e00));
        assert_eq!(descriptor.size, 64);
        assert_eq!(descriptor.to_bytes(), bytes);
    }
}
