//! Writes transmitted frames with long runs of published memory by reference; the alternative to
//! [`outbound`](crate::vhost_user::outbound).

use std::ops::Range;

use super::arena::{RUNS_MAX, WRITTEN_AT};
use super::readable::Readable;
use crate::digests::Destination;
use crate::frame::Digester;
use crate::virtqueue::{MemoryTable, Run, TABLE_ENTRY_LEN, table_entry};
use crate::{Fragment, TxFrame};

/// Shortest fragment that is sent by reference. Copying a shorter one takes less time than the
/// reader needs to fetch one more descriptor and the cache lines that it refers to.
const REFERRED_LEN_MIN: usize = 256;

/// Returns true if a frame has a fragment long enough to be sent by reference.
#[inline]
pub(super) fn has_long_run(frame: &TxFrame<'_>) -> bool {
    frame.payload.iter().any(|fragment| fragment.len() >= REFERRED_LEN_MIN)
}

/// Result of writing a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Entries of the table at the front of the buffer.
    pub(super) entries: usize,
    /// Bytes copied, at [`WRITTEN_AT`].
    pub(super) copied: usize,
    /// Bytes that the backend reads in place.
    pub(super) referred: usize,
}

impl Written {
    /// Returns the written parts of the buffer.
    pub(super) const fn parts(&self) -> [Range<usize>; 2] {
        [0..self.entries * TABLE_ENTRY_LEN, WRITTEN_AT..WRITTEN_AT + self.copied]
    }
}

/// Writes `header` and a frame into `buffer`, whose guest address is `address`: a table of all
/// runs, and at [`WRITTEN_AT`] the copied bytes.
///
/// # Panics
/// If the frame exceeds the longest frame.
#[inline]
pub(super) fn write(
    header: &[u8],
    frame: &TxFrame<'_>,
    table: &MemoryTable,
    (buffer, address): (Run, u64),
    readable: &mut Readable,
) -> Written {
    let open = (address + WRITTEN_AT as u64, 0);
    let written = Written { entries: 0, copied: 0, referred: 0 };
    let mut writer = Writer { table, buffer, address, readable, open, written };
    writer.copy(Fragment::from_slice(header));
    writer.copy(Fragment::from_slice(frame.head));
    frame.copy_payload(&mut writer);
    writer.close(false);
    writer.written
}

struct Writer<'a> {
    table: &'a MemoryTable,
    buffer: Run,
    address: u64,
    readable: &'a mut Readable,
    /// Address and length of the last run, which has no table entry yet: bytes that follow it
    /// directly extend it. The first run of a frame is of copied bytes.
    open: (u64, u32),
    written: Written,
}

impl Writer<'_> {
    /// Returns the guest address of a fragment that can be sent by reference. `None` if the
    /// fragment must be copied: it is short, it is not in published memory, or the table would have
    /// no entry left for the rest of the frame.
    #[inline]
    fn find(&mut self, fragment: Fragment<'_>) -> Option<u64> {
        // The open run has no entry yet.
        let refers = fragment.len() >= REFERRED_LEN_MIN && self.written.entries + 3 <= RUNS_MAX;
        refers.then(|| self.readable.find(fragment)).flatten()
    }

    #[inline]
    fn push(&mut self, address: u64, len: usize) {
        let len = u32::try_from(len).expect("no more than a frame");
        // Regions have gaps between them, so runs of two regions are never merged.
        if self.open.0 + u64::from(self.open.1) == address {
            self.open.1 += len;
        } else if len > 0 {
            self.close(true);
            self.open = (address, len);
        }
    }

    /// Writes the entry of the open run.
    #[inline]
    fn close(&mut self, has_next: bool) {
        let Written { entries, .. } = &mut self.written;
        let place = self.buffer.part(*entries * TABLE_ENTRY_LEN, TABLE_ENTRY_LEN);
        *entries += 1;
        let next = has_next.then(|| u16::try_from(*entries).expect("at most RUNS_MAX"));
        self.table.copy_in(place, &table_entry(self.open.0, self.open.1, next));
    }

    /// Allocates space in the buffer for the next `len` copied bytes.
    #[inline]
    fn place(&mut self, len: usize) -> Run {
        let at = WRITTEN_AT + self.written.copied;
        self.written.copied += len;
        self.push(self.address + at as u64, len);
        self.buffer.part(at, len)
    }

    #[inline]
    fn copy(&mut self, octets: Fragment<'_>) {
        let place = self.place(octets.len());
        self.table.copy_from(place, octets);
    }

    #[inline]
    fn refer(&mut self, address: u64, len: usize) {
        self.push(address, len);
        self.written.referred += len;
    }
}

impl Destination for Writer<'_> {
    const DIGESTS_LAST: bool = false;

    #[inline]
    fn put(&mut self, octets: Fragment<'_>) {
        match self.find(octets) {
            Some(address) => self.refer(address, octets.len()),
            None => self.copy(octets),
        }
    }

    #[inline]
    fn put_and_digest(&mut self, octets: Fragment<'_>, digester: &Digester, register: u32) -> u32 {
        if let Some(address) = self.find(octets) {
            self.refer(address, octets.len());
            return digester.append(register, octets);
        }
        let place = self.place(octets.len());
        self.table.copy_and_digest(place, octets, digester, register)
    }

    fn digest_last(&self, _len: usize, _digester: &Digester, _register: u32) -> u32 {
        unreachable!("what was appended may be elsewhere")
    }
}
