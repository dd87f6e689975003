//! The application's memory in pieces (`iovec`).
#![expect(unsafe_code, reason = "the program's memory is named by address and length")]

use std::slice;

use libc::{c_int, iovec};
use urnic::{Mr, Region};

use super::transfer::Cursor;
use crate::errno::Errno;

const CHUNK_LEN: usize = 4096;
/// Maximum number of pieces of one call, as for `readv` (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Pieces<'a> {
    pieces: &'a [iovec],
    /// Bytes of the first piece that are done.
    done: usize,
    left: usize,
    written: bool,
}

impl<'a> Pieces<'a> {
    /// # Safety
    /// Each piece is memory of the application as long as this value is used, and may be written if
    /// `written`.
    pub(super) unsafe fn new(pieces: &'a [iovec], written: bool) -> Result<Self, Errno> {
        let add = |left: usize, piece: &iovec| left.checked_add(piece.iov_len);
        let left = pieces.iter().try_fold(0, add).filter(|left| isize::try_from(*left).is_ok());
        let left = left.ok_or(Errno::INVALID)?;
        if pieces.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
            return Err(Errno(libc::EFAULT));
        }
        Ok(Self { pieces, done: 0, left, written })
    }

    /// Returns at most `len` contiguous bytes.
    fn next(&mut self, len: usize) -> (*mut u8, usize) {
        while let [first, rest @ ..] = self.pieces
            && first.iov_len == self.done
        {
            (self.pieces, self.done) = (rest, 0);
        }
        let Some(first) = self.pieces.first() else { return (std::ptr::dangling_mut(), 0) };
        let len = len.min(first.iov_len - self.done);
        let place = first.iov_base.cast::<u8>().wrapping_add(self.done);
        self.done += len;
        self.left -= len;
        (place, len)
    }
}

impl Cursor for Pieces<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn copy(&mut self, mr: &Mr, mut at: usize, mut len: usize) {
        let mut chunk = [0; CHUNK_LEN];
        while len > 0 {
            let (place, next) = self.next(len.min(CHUNK_LEN));
            let octets = &mut chunk[..next];
            if self.written {
                mr.copy_out(at, octets);
                // SAFETY: inside a piece, which may be written, by the contract of `new`; the chunk
                // is not in the application's memory.
                unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), place, next) };
            } else {
                // SAFETY: inside a piece, by the contract of `new`.
                unsafe { Region::read_raw(place, octets) };
                mr.copy_in(at, octets);
            }
            (at, len) = (at + next, len - next);
        }
    }
}

/// # Safety
/// `pieces` points at `count` of them, which stay valid while the returned slice is used.
pub(super) unsafe fn pieces<'a>(pieces: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PIECES_MAX);
    match count.ok_or(Errno::INVALID)? {
        0 => Ok(&[]),
        _ if pieces.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: not NULL, and of `count` pieces, by this function's contract.
        count => Ok(unsafe { slice::from_raw_parts(pieces, count) }),
    }
}
