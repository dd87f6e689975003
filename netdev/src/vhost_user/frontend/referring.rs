//! Writes transmitted frames with long runs of published memory by reference; the alternative to
//! [`outbound`](crate::vhost_user::outbound).

use std::ops::Range;

use super::arena::{RUNS_MAX, WRITTEN_AT};
use crate::digests::Destination;
use crate::frame::Digester;
use crate::published::readable::Readable;
use crate::published::runs::{self, REFERRED_LEN_MIN, RunMemory, RunWriter, Written};
use crate::virtqueue::{MemoryTable, Run, TABLE_ENTRY_LEN, table_entry};
use crate::{SharedSlice, TxFrame};

/// Returns true if a frame has a fragment long enough to be sent by reference.
#[inline]
pub(super) fn has_long_run(frame: &TxFrame<'_>) -> bool {
    frame.payload.iter().any(|fragment| fragment.len() >= REFERRED_LEN_MIN)
}

/// Returns the written parts of the buffer: a table of all runs, and the copied bytes.
pub(super) const fn parts(written: Written) -> [Range<usize>; 2] {
    [0..written.runs * TABLE_ENTRY_LEN, WRITTEN_AT..WRITTEN_AT + written.copied]
}

/// Writes `header` and a frame into `buffer`, whose guest address is `address`: a table of all
/// runs, and at [`WRITTEN_AT`] the copied bytes. Panics if the frame exceeds the longest frame.
#[inline]
pub(super) fn write(
    header: &[u8],
    frame: &TxFrame<'_>,
    table: &MemoryTable,
    (buffer, address): (Run, u64),
    readable: &mut Readable<u64>,
) -> Written {
    let mut writer = RunWriter::new(Buffer { table, buffer, address }, readable, RUNS_MAX);
    writer.copy(SharedSlice::from_bytes(header));
    writer.copy(SharedSlice::from_bytes(frame.head));
    frame.copy_payload(&mut writer);
    writer.finish()
}

/// Transmit buffer with a table of runs.
struct Buffer<'a> {
    table: &'a MemoryTable,
    buffer: Run,
    address: u64,
}

impl RunMemory for Buffer<'_> {
    /// Guest address of a region. Regions have gaps between them, so runs of two regions are never
    /// merged.
    type Name = u64;

    #[inline]
    fn place(&self, at: usize) -> (u64, u64) {
        (self.address, (WRITTEN_AT + at) as u64)
    }

    #[inline]
    fn copy(&self, at: usize, octets: SharedSlice<'_>) {
        self.table.copy_from(self.buffer.part(WRITTEN_AT + at, octets.len()), octets);
    }

    #[inline]
    fn write(&self, index: usize, run: runs::Run<u64>, has_next: bool) {
        let entry = self.buffer.part(index * TABLE_ENTRY_LEN, TABLE_ENTRY_LEN);
        let next = has_next.then(|| u16::try_from(index + 1).expect("at most RUNS_MAX"));
        self.table.copy_in(entry, &table_entry(run.region + run.offset, run.len, next));
    }
}

impl Destination for RunWriter<'_, Buffer<'_>> {
    const DIGESTS_LAST: bool = false;

    #[inline]
    fn put(&mut self, octets: SharedSlice<'_>) {
        RunWriter::put(self, octets);
    }

    #[inline]
    fn put_and_digest(
        &mut self,
        octets: SharedSlice<'_>,
        digester: &Digester,
        register: u32,
    ) -> u32 {
        if let Some(place) = self.find(octets) {
            self.refer(place, octets.len());
            return digester.append(register, octets);
        }
        let at = self.reserve(octets.len());
        let Buffer { table, buffer, .. } = self.memory;
        let run = buffer.part(WRITTEN_AT + at, octets.len());
        table.copy_and_digest(run, octets, digester, register)
    }

    fn digest_last(&self, _len: usize, _digester: &Digester, _register: u32) -> u32 {
        unreachable!("what was appended may be elsewhere")
    }
}
