//! Messages that arrived before a receive was posted: their segments, in memory of the engine.

use std::collections::{BTreeMap, VecDeque};

use crate::ddp::DdpError;
use crate::limits::{HELD_BYTES_MAX, HELD_ROOM_MIN, HELD_SEGMENTS_MAX};
use crate::mem::SharedSlice;
use crate::stream::rx::PlacedSegment;
use crate::types::{MsgOffset, Msn};

#[derive(Debug)]
pub(super) struct HeldSegment {
    pub(super) segment: PlacedSegment,
    pub(super) payload: Box<[u8]>,
}

/// The segments that one stream holds, each in an allocation of its own: messages that arrive too
/// early need no fast path. TCP's window closes as held segments fill the [room](Self::room).
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct HeldMessages {
    /// Segments that delivery has not reached, by message number and offset.
    ahead: BTreeMap<(u32, u32), HeldSegment>,
    /// Bytes of payload ever held (`held`), and how many of them have found a receive (`filled`).
    pub(super) held: u64,
    pub(super) filled: u64,
    waiting_len: usize,
    /// Segments of the waiting messages in stream order, up to the delivered position.
    waiting: VecDeque<HeldSegment>,
}

impl HeldMessages {
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn room(&self) -> usize {
        if self.waiting.len() >= HELD_SEGMENTS_MAX {
            return 0;
        }
        let room = HELD_BYTES_MAX.saturating_sub(self.waiting_len);
        if room < HELD_ROOM_MIN { 0 } else { room }
    }

    pub(super) fn hold<'p>(
        &mut self,
        segment: PlacedSegment,
        (msn, mo): (Msn, MsgOffset),
        payload: impl Iterator<Item = SharedSlice<'p>>,
    ) -> Result<(), DdpError> {
        let len = segment.payload_len();
        if len == 0 {
            return Ok(());
        }
        let mut octets = Vec::with_capacity(len);
        for chunk in payload {
            let at = octets.len();
            octets.resize(at + chunk.len(), 0);
            chunk.copy_out(0, &mut octets[at..]);
        }
        self.held += len as u64;
        let payload = octets.into_boxed_slice();
        // A second segment at the same offset: delivery would find its message out of order.
        match self.ahead.insert((msn.0, mo.0), HeldSegment { segment, payload }) {
            None => Ok(()),
            Some(_) => Err(DdpError::UntaggedMsgOffset),
        }
    }

    /// Lets a segment wait that is next in stream order and whose message has no receive.
    pub(super) fn wait(
        &mut self,
        segment: PlacedSegment,
        (msn, mo): (Msn, MsgOffset),
    ) -> Result<(), DdpError> {
        let payload = if segment.payload_len() == 0 {
            Box::default()
        } else {
            let held = self.ahead.remove(&(msn.0, mo.0));
            held.ok_or(DdpError::UntaggedMsgOffset)?.payload
        };
        self.waiting_len += payload.len();
        self.waiting.push_back(HeldSegment { segment, payload });
        Ok(())
    }

    /// Returns false if no message waits or the last one is incomplete.
    pub(super) fn wait_request(&mut self, segment: PlacedSegment) -> bool {
        let waits = self.waiting.back().is_some_and(|last| last.segment.header.last());
        if waits {
            self.waiting.push_back(HeldSegment { segment, payload: Box::default() });
        }
        waits
    }

    /// Takes the oldest waiting segment if it is a request.
    pub(super) fn next_request(&mut self) -> Option<PlacedSegment> {
        let next = self.waiting.front()?;
        next.segment.opcode.is_request().then(|| self.next())?.map(|held| held.segment)
    }

    pub(super) fn next(&mut self) -> Option<HeldSegment> {
        let next = self.waiting.pop_front()?;
        self.waiting_len -= next.payload.len();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(next)
    }

    pub(super) fn next_ahead(&mut self, msn: Msn) -> Option<HeldSegment> {
        let key = *self.ahead.range((msn.0, 0)..=(msn.0, u32::MAX)).next()?.0;
        self.ahead.remove(&key)
    }

    pub(super) fn clear(&mut self) {
        *self = Self { held: self.held, filled: self.filled, ..Self::default() };
    }
}
