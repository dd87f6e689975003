//! Frames out, of which long runs of published memory stay where they are: the other way of
//! [`outbound`](crate::vhost_user::outbound).

use arrayvec::ArrayVec;

use super::pair::QUEUE_SIZE;
use super::readable::Readable;
use crate::digests::Destination;
use crate::frame::Digester;
use crate::virtqueue::{MemoryTable, Run, TABLE_ENTRY_LEN, table_entry};
use crate::{Fragment, TxFrame};

/// Octets of a fragment from which on it is referred to: a shorter one takes less time to copy than its
/// reader takes to fetch a descriptor and the lines of one more place.
const REFERRED_LEN_MIN: usize = 256;
/// Runs of a frame. Virtio 1.2 §2.7.5.3.1: "A driver MUST NOT create a descriptor chain longer than the Queue Size
/// of the device", and the descriptor of the table may count.
const RUNS_MAX: usize = QUEUE_SIZE as usize - 1;
/// Octets that the table of a frame's runs takes.
pub(super) const TABLE_LEN: usize = RUNS_MAX * TABLE_ENTRY_LEN;

/// Whether a frame has anything that could be referred to.
#[inline]
pub(super) fn has_long_run(frame: &TxFrame<'_>) -> bool {
    frame.payload.iter().any(|fragment| fragment.len() >= REFERRED_LEN_MIN)
}

/// Where the octets of a frame are, in their order.
#[derive(Debug)]
pub(super) struct Runs {
    list: ArrayVec<(u64, u32), RUNS_MAX>,
    /// Octets of them that were copied into the buffer.
    pub(super) copied: usize,
    /// Octets of them that are in published memory.
    pub(super) referred: usize,
}

impl Runs {
    /// Copies what cannot be referred to of `header` and a frame to the front of `buffer`, which descriptors call
    /// `address`.
    ///
    /// # Panics
    /// When there is no room for all of it.
    #[inline]
    pub(super) fn of(
        header: &[u8],
        frame: &TxFrame<'_>,
        table: &MemoryTable,
        (buffer, address): (Run, u64),
        readable: &mut Readable,
    ) -> Self {
        let runs = Self { list: ArrayVec::new(), copied: 0, referred: 0 };
        let mut writer = Writer { table, buffer, address, readable, runs };
        writer.copy(Fragment::from_slice(header));
        writer.copy(Fragment::from_slice(frame.head));
        frame.copy_payload(&mut writer);
        writer.runs
    }

    /// Writes the table of them to the front of `place`. Returns how many entries it has.
    ///
    /// # Panics
    /// When there is less room than [`TABLE_LEN`].
    #[inline]
    pub(super) fn write(&self, table: &MemoryTable, place: Run) -> usize {
        let mut octets = [0; TABLE_LEN];
        for (index, (address, len)) in self.list.iter().enumerate() {
            let next = index + 1;
            let next = u16::try_from(next).ok().filter(|_| next < self.list.len());
            let at = index * TABLE_ENTRY_LEN;
            octets[at..at + TABLE_ENTRY_LEN].copy_from_slice(&table_entry(*address, *len, next));
        }
        table.copy_in(place, &octets[..self.list.len() * TABLE_ENTRY_LEN]);
        self.list.len()
    }

    #[inline]
    fn push(&mut self, address: u64, len: usize) {
        let len = u32::try_from(len).expect("no more than a frame");
        match self.list.last_mut() {
            // Regions are apart, so that two are never taken for one.
            Some((start, before)) if *start + u64::from(*before) == address => *before += len,
            _ => self.list.push((address, len)),
        }
    }
}

struct Writer<'a> {
    table: &'a MemoryTable,
    buffer: Run,
    address: u64,
    readable: &'a mut Readable,
    runs: Runs,
}

impl Writer<'_> {
    /// Where a fragment is referred to. Behind the run that it is, there is always room for one more, of all that
    /// follows, copied.
    #[inline]
    fn find(&mut self, fragment: Fragment<'_>) -> Option<u64> {
        let refers = fragment.len() >= REFERRED_LEN_MIN && self.runs.list.len() + 2 <= RUNS_MAX;
        refers.then(|| self.readable.find(fragment)).flatten()
    }

    /// The place in the buffer for the next `len` octets that are copied.
    #[inline]
    fn place(&mut self, len: usize) -> Run {
        let at = self.runs.copied;
        self.runs.copied += len;
        if len > 0 {
            self.runs.push(self.address + at as u64, len);
        }
        self.buffer.part(at, len)
    }

    #[inline]
    fn copy(&mut self, octets: Fragment<'_>) {
        let place = self.place(octets.len());
        self.table.copy_from(place, octets);
    }

    #[inline]
    fn refer(&mut self, address: u64, len: usize) {
        self.runs.push(address, len);
        self.runs.referred += len;
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
