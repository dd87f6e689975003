//! Digests computed while a frame is copied, so that the bytes are read only once. Over many short
//! runs, the digest is computed afterwards over the copy: restarting it takes longer.

use crate::SharedSlice;
use crate::cursor::Cursor;
use crate::sys::digester::Digester;

/// A digest of a frame's payload that is still to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Offset of the first payload byte not yet covered by the register.
    pub from: u32,
    /// Offset of the digest's [`LEN`](Self::LEN) bytes: the device adds the bytes from `from` to
    /// here, and sends the digest instead of the fragments' bytes here.
    pub at: u32,
    /// Register before the bytes from `from` on are added.
    pub register: u32,
    /// True if the covered bytes are in short runs.
    pub is_scattered: bool,
}

impl Digest {
    /// Length of a digest: the complement of the register, least significant byte first.
    pub const LEN: usize = 4;

    const fn field(register: u32) -> [u8; Self::LEN] {
        (!register).to_le_bytes()
    }
}

/// Digests of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    /// Digests in order, without overlap.
    pub digests: &'a [Digest],
    /// Offset of the frame's first payload byte in the payload that the digests refer to.
    pub base: u32,
    /// Digest algorithm.
    pub digester: &'a Digester,
}

pub(crate) trait Destination {
    /// True if [`digest_last`](Self::digest_last) is supported.
    const DIGESTS_LAST: bool = true;

    /// Appends bytes.
    fn put(&mut self, octets: SharedSlice<'_>);

    /// Appends bytes and adds them to a register.
    fn put_and_digest(
        &mut self,
        octets: SharedSlice<'_>,
        digester: &Digester,
        register: u32,
    ) -> u32;

    /// Adds the last `len` appended bytes to a register. Call only if `DIGESTS_LAST` is true.
    fn digest_last(&self, len: usize, digester: &Digester, register: u32) -> u32;
}

impl Digests<'_> {
    /// Appends a frame's payload, with its digests.
    pub(crate) fn copy<D: Destination>(&self, payload: &[SharedSlice<'_>], to: &mut D) {
        let mut rest = Cursor::of(payload);
        let mut at = self.base;
        for digest in self.digests {
            let Digest { from, at: end, mut register, is_scattered } = *digest;
            rest.take(distance(at, from), |octets| to.put(octets));
            let covered = distance(from, end);
            if is_scattered && D::DIGESTS_LAST {
                rest.take(covered, |octets| to.put(octets));
                register = to.digest_last(covered, self.digester, register);
            } else {
                rest.take(covered, |octets| {
                    register = to.put_and_digest(octets, self.digester, register);
                });
            }
            rest.take(Digest::LEN, |_| {});
            to.put(SharedSlice::from_bytes(&Digest::field(register)));
            at = end.wrapping_add(4);
        }
        rest.take(usize::MAX, |octets| to.put(octets));
    }
}

#[inline]
fn distance(from: u32, to: u32) -> usize {
    to.saturating_sub(from) as usize
}

#[derive(Debug)]
pub(crate) struct Room<'a> {
    octets: &'a mut [u8],
    filled: usize,
}

impl<'a> Room<'a> {
    pub(crate) const fn new(octets: &'a mut [u8]) -> Self {
        Self { octets, filled: 0 }
    }

    pub(crate) const fn filled(&self) -> usize {
        self.filled
    }

    #[inline]
    fn next(&mut self, len: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += len;
        &mut self.octets[start..self.filled]
    }
}

impl Destination for Room<'_> {
    #[inline]
    fn put(&mut self, octets: SharedSlice<'_>) {
        octets.copy_out(0, self.next(octets.len()));
    }

    #[inline]
    fn put_and_digest(
        &mut self,
        octets: SharedSlice<'_>,
        digester: &Digester,
        register: u32,
    ) -> u32 {
        digester.copy(register, octets, self.next(octets.len()))
    }

    #[inline]
    fn digest_last(&self, len: usize, digester: &Digester, register: u32) -> u32 {
        let last = &self.octets[self.filled - len..self.filled];
        digester.append(register, SharedSlice::from_bytes(last))
    }
}

#[cfg(test)]
pub(crate) mod tests;
