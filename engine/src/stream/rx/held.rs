//! Messages for which no receive was posted when they came: their segments, in memory of the engine.

use std::collections::{BTreeMap, VecDeque};

use crate::ddp::DdpError;
use crate::limits::{HELD_BYTES_MAX, HELD_ROOM_MIN, HELD_SEGMENTS_MAX};
use crate::mem::SharedSlice;
use crate::stream::rx::PlacedSegment;
use crate::types::{MsgOffset, Msn};

/// One segment and its payload.
#[derive(Debug)]
pub(super) struct HeldSegment {
    pub(super) segment: PlacedSegment,
    pub(super) payload: Box<[u8]>,
}

/// The segments that one stream holds.
///
/// They are allocated one by one: the path of messages that come too early is not the one that has to
/// be fast. What a peer can have held is bounded by TCP's window, which closes as this fills.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct HeldMessages {
    /// Payload that was not delivered yet, by message and offset.
    ahead: BTreeMap<(u32, u32), HeldSegment>,
    /// Bytes of payload that were ever held, and those of them that found a receive.
    pub(super) held: u64,
    pub(super) settled: u64,
    /// Bytes of payload in `waiting`.
    waiting_len: usize,
    /// Segments in stream order, up to where the stream is delivered: the messages that wait.
    waiting: VecDeque<HeldSegment>,
}

impl HeldMessages {
    /// Whether messages that are next in stream order wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes that may come now.
    pub(super) fn room(&self) -> usize {
        if self.waiting.len() >= HELD_SEGMENTS_MAX {
            return 0;
        }
        let room = HELD_BYTES_MAX.saturating_sub(self.waiting_len);
        if room < HELD_ROOM_MIN { 0 } else { room }
    }

    /// Keeps the payload of a segment until it is delivered, or its message gets a receive.
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
        // A second segment for the same bytes: delivery would find the message out of order.
        match self.ahead.insert((msn.0, mo.0), HeldSegment { segment, payload }) {
            None => Ok(()),
            Some(_) => Err(DdpError::UntaggedMsgOffset),
        }
    }

    /// The segment is next in stream order, and its message has no receive: it waits.
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

    /// The segment of a request is next in stream order: it waits behind the messages that do. Not amid
    /// one: then nothing is done.
    pub(super) fn wait_request(&mut self, segment: PlacedSegment) -> bool {
        let waits = self.waiting.back().is_some_and(|last| last.segment.header.last());
        if waits {
            self.waiting.push_back(HeldSegment { segment, payload: Box::default() });
        }
        waits
    }

    /// Takes the oldest segment that waits, if it is that of a request.
    pub(super) fn next_request(&mut self) -> Option<PlacedSegment> {
        let next = self.waiting.front()?;
        next.segment.opcode.is_request().then(|| self.next())?.map(|held| held.segment)
    }

    /// Takes the oldest segment that waits.
    pub(super) fn next(&mut self) -> Option<HeldSegment> {
        let next = self.waiting.pop_front()?;
        self.waiting_len -= next.payload.len();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(next)
    }

    /// Takes a segment of message `msn` that was not delivered.
    pub(super) fn next_ahead(&mut self, msn: Msn) -> Option<HeldSegment> {
        let key = *self.ahead.range((msn.0, 0)..=(msn.0, u32::MAX)).next()?.0;
        self.ahead.remove(&key)
    }

    /// Gives everything up.
    pub(super) fn clear(&mut self) {
        *self = Self { held: self.held, settled: self.settled, ..Self::default() };
    }
}
