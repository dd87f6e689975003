//! The bytes of a segment as they are passed up: in one slice, or in runs of the device's memory.

use std::ops::Range;

use crate::mem::{Scattered, TableLease};
use crate::mpa::pieces::PieceStore;
use crate::stream::Stream;
use crate::time::Instant;
use crate::types::StreamOffset;

pub(crate) trait Payload {
    fn len(&self) -> usize;

    /// The bytes were never given before. Returns up to where they were used or kept.
    fn pass_up(
        &mut self,
        stream: &mut Stream,
        now: Instant,
        at: StreamOffset,
        range: Range<usize>,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset;
}

impl Payload for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn pass_up(
        &mut self,
        stream: &mut Stream,
        now: Instant,
        at: StreamOffset,
        range: Range<usize>,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        stream.handle_bytes(now, at, &self[range], store, lease)
    }
}

/// Runs of memory that may change. Bytes that cannot be used in place are copied first.
#[derive(Debug)]
pub(crate) struct InPlace<'a> {
    pub(crate) octets: Scattered<'a>,
    pub(crate) gathered: &'a mut Vec<u8>,
    pub(crate) bytes_gathered: &'a mut u64,
}

impl Payload for InPlace<'_> {
    fn len(&self) -> usize {
        self.octets.len()
    }

    fn pass_up(
        &mut self,
        stream: &mut Stream,
        now: Instant,
        at: StreamOffset,
        range: Range<usize>,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        let end = at + range.len() as u64;
        let part = self.octets.split_at_checked(range.start).map(|(_, behind)| behind);
        let part = part.and_then(|behind| behind.split_at_checked(range.len()));
        let (octets, _) = part.expect("a range of the payload");
        let used = stream.handle_scattered(at, &octets, store, lease);
        if used == end {
            return end;
        }
        let rest = octets.split_at_checked(used.index_from(at));
        let (_, rest) = rest.expect("at most all bytes are used");
        self.gathered.resize(rest.len(), 0);
        rest.copy_to(self.gathered);
        *self.bytes_gathered += rest.len() as u64;
        stream.handle_bytes(now, used, self.gathered, store, lease)
    }
}
