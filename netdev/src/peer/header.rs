//! Header of a message, and the errors that end a connection. The format is that of the vhost-user
//! protocol (QEMU's `docs/interop/vhost-user.rst`, "Header"): three 32-bit words in the machine's
//! byte order.

pub(crate) const HEADER_LEN: usize = 12;
/// Longest accepted body, in bytes. The longest request of vhost-user known here has 264.
pub(crate) const BODY_LEN_MAX: usize = 4096 - HEADER_LEN;
/// Most descriptors with a message: one for each region of a vhost-user memory table.
pub(crate) const DESCRIPTORS_MAX: usize = 8;

/// "Header": "Lower 2 bits are the version (currently 0x01)".
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Reasons why a message ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// Another version of the protocol, or a reply where a request is due.
    #[error("a message that is no request of version 1")]
    Flags,
    #[error("a message of {0} bytes")]
    TooLong(u32),
    #[error("unknown request {0}")]
    Unknown(u32),
    /// The body, or a number in it, is invalid for the request.
    #[error("request {0} with an invalid body")]
    Body(u32),
    #[error("request {0} with {1} descriptors")]
    Descriptors(u32, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) request: u32,
    flags: u32,
    pub(crate) len: u32,
}

impl Header {
    pub(crate) const fn of_request(request: u32, len: u32, needs_reply: bool) -> Self {
        let flags = VERSION | if needs_reply { NEED_REPLY } else { 0 };
        Self { request, flags, len }
    }

    pub(crate) const fn of_reply(request: u32, len: u32) -> Self {
        Self { request, flags: VERSION | REPLY, len }
    }

    pub(crate) fn from_octets(octets: [u8; HEADER_LEN]) -> Result<Self, MessageError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = octets;
        let header = Self {
            request: u32::from_ne_bytes([a, b, c, d]),
            flags: u32::from_ne_bytes([e, f, g, h]),
            len: u32::from_ne_bytes([i, j, k, l]),
        };
        if header.flags & VERSION_MASK != VERSION {
            return Err(MessageError::Flags);
        }
        if usize::try_from(header.len).is_ok_and(|len| len <= BODY_LEN_MAX) {
            Ok(header)
        } else {
            Err(MessageError::TooLong(header.len))
        }
    }

    pub(crate) fn to_octets(self) -> [u8; HEADER_LEN] {
        let mut octets = [0; HEADER_LEN];
        octets[..4].copy_from_slice(&self.request.to_ne_bytes());
        octets[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        octets[8..].copy_from_slice(&self.len.to_ne_bytes());
        octets
    }

    pub(crate) const fn is_reply(&self) -> bool {
        self.flags & REPLY != 0
    }

    /// Returns true if the frontend waits for the result of the request (`REPLY_ACK`).
    pub(crate) const fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

/// The part of a body that is not parsed yet.
pub(crate) struct Fields<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) id: u32,
}

impl Fields<'_> {
    pub(crate) fn octets<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.body.split_first_chunk().ok_or(MessageError::Body(self.id))?;
        self.body = rest;
        Ok(*first)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MessageError> {
        self.octets().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MessageError> {
        self.octets().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_and_lengths_are_refused() {
        let header = |flags, len| Header { request: 1, flags, len }.to_octets();
        assert_eq!(Header::from_octets(header(0, 0)), Err(MessageError::Flags));
        assert_eq!(Header::from_octets(header(2, 0)), Err(MessageError::Flags));
        let long = u32::try_from(BODY_LEN_MAX).unwrap() + 1;
        assert_eq!(Header::from_octets(header(1, long)), Err(MessageError::TooLong(long)));
        assert!(Header::from_octets(header(1, long - 1)).is_ok());
    }
}
