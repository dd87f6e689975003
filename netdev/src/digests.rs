//! Digests that are computed while a frame is copied: the bytes are read once for both.
//!
//! What lies before a digest may be in one long run of memory, which is digested while it is copied. Or
//! in many short runs: a digest that is begun anew for each takes longer than one over the copy of all.

use crate::cursor::Cursor;
use crate::sys::digester::Digester;
use crate::sys::fragment::Fragment;

/// A digest of a frame's payload that is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The first byte of payload that is still to be added.
    pub from: u32,
    /// Where the [`LEN`](Self::LEN) bytes of the digest are: it covers what is before, from there on. What
    /// the fragments have there is not sent.
    pub at: u32,
    /// The register when nothing of that is added.
    pub register: u32,
    /// What it covers is in short runs.
    pub is_scattered: bool,
}

impl Digest {
    /// Bytes of a digest: the complement of the register, least significant byte first.
    pub const LEN: usize = 4;

    const fn field(register: u32) -> [u8; Self::LEN] {
        (!register).to_le_bytes()
    }
}

/// The digests of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    /// In their order, without overlap.
    pub digests: &'a [Digest],
    /// Offset in the payload that the first byte of the frame's payload has for them: not 0 in a frame that
    /// was cut from a longer run.
    pub base: u32,
    /// How they are computed.
    pub digester: &'a Digester,
}

/// Where a frame is copied to, front to back.
pub(crate) trait Destination {
    /// Whether it can [look back](Self::digest_last).
    const DIGESTS_LAST: bool = true;

    /// Appends bytes.
    fn put(&mut self, octets: Fragment<'_>);

    /// Appends bytes and adds them to a register.
    fn put_and_digest(&mut self, octets: Fragment<'_>, digester: &Digester, register: u32) -> u32;

    /// Adds the `len` bytes that were appended last to a register. Not to be called of one that cannot.
    fn digest_last(&self, len: usize, digester: &Digester, register: u32) -> u32;
}

impl Digests<'_> {
    /// Appends a frame's payload, with its digests.
    pub(crate) fn copy<D: Destination>(&self, payload: &[Fragment<'_>], to: &mut D) {
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
            to.put(Fragment::from_slice(&Digest::field(register)));
            at = end.wrapping_add(4);
        }
        rest.take(usize::MAX, |octets| to.put(octets));
    }
}

/// Bytes between two offsets.
#[inline]
fn distance(from: u32, to: u32) -> usize {
    to.saturating_sub(from) as usize
}

/// Room in memory of this process.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    octets: &'a mut [u8],
    filled: usize,
}

impl<'a> Room<'a> {
    pub(crate) const fn new(octets: &'a mut [u8]) -> Self {
        Self { octets, filled: 0 }
    }

    /// Bytes that were appended.
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
    fn put(&mut self, octets: Fragment<'_>) {
        octets.copy_to(self.next(octets.len()));
    }

    #[inline]
    fn put_and_digest(&mut self, octets: Fragment<'_>, digester: &Digester, register: u32) -> u32 {
        digester.copy(register, octets, self.next(octets.len()))
    }

    #[inline]
    fn digest_last(&self, len: usize, digester: &Digester, register: u32) -> u32 {
        let last = &self.octets[self.filled - len..self.filled];
        digester.append(register, Fragment::from_slice(last))
    }
}

#[cfg(test)]
pub(crate) mod tests;
