//! Outbox of this end: writes frames into its ring, as descriptors of their bytes.
//!
//! The peer reads bytes sent by reference when it reaches their descriptor, long after `put` has
//! returned. The application may have overwritten them by then. This is correct for a transport
//! whose receiver acknowledges bytes only after it has read them:
//!
//! - *First transmission.* The application must not change bytes before their request is completed,
//!   and the request is completed only when the peer has acknowledged the bytes. So the peer reads
//!   them unchanged.
//! - *Retransmission.* The peer may reach the descriptor of a retransmitted frame after it has
//!   acknowledged the bytes, and may then read changed bytes. Its transport drops them as
//!   duplicates, by their sequence numbers.
//! - *Failed stream.* Frames of a failed stream may remain in the ring. Their requests failed with
//!   the stream. The peer places their bytes only if the CRC is right, and never reports their
//!   message as complete.
//! - *Withdrawn memory.* The peer can read it until the peer has read the ring up to the position
//!   of the withdrawal.
//!
//! [`referred`](Outbox::referred) counts the frames with bytes by reference that the peer has not
//! read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::shm::ShmCounters;
use crate::shm::announced::Announced;
use crate::shm::layout::{Header, INLINE, OwnMemory, PeerMemory, Run};
use crate::shm::limits::{
    FRAME_ALIGNMENT, FRAME_LEN_MAX, FRAME_SPACE_MAX, INLINE_LEN, REFERRED_LEN_MIN, RING_LEN,
};
use crate::{Fragment, TransmitError, TxFrame, vnet};

/// Frames to the peer.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) memory: OwnMemory,
    /// File of the memory, which the peer maps.
    pub(super) file: OwnedFd,
    /// Position of the next descriptor to write.
    written: u32,
    /// Position behind the last descriptor that the peer may read.
    published: u32,
    /// Position up to which the peer has read, as last loaded.
    consumed: u32,
    /// Bytes allocated in the inline area since the session began, including bytes left unused at
    /// the end of the area. The next frame begins at this number modulo the area's length.
    // The area is used as a ring, so the space freed first is reused first. The space freed last is
    // still in the cache of the peer's core, and a write would have to fetch each line from there.
    inline_used: usize,
    /// Bytes of the inline area that belong to no unread frame.
    inline_free: usize,
    /// Frames that the peer has not read, in ring order.
    frames: VecDeque<Sent>,
    /// Number of `frames` with bytes by reference.
    referred: usize,
}

/// A frame that the peer has not read.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Position behind the frame.
    end: u32,
    /// `Outbox::inline_used` after the frame was put.
    inline_used: usize,
    is_referred: bool,
}

/// Error: the peer claims to have read a position that was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it claims to have read more than was written")]
pub(super) struct ConsumedTooMuch;

impl Outbox {
    /// Creates an empty outbox.
    ///
    /// # Errors
    /// As [`published::memory`](crate::sys::published::memory).
    pub(super) fn new() -> io::Result<Self> {
        let (file, memory) = OwnMemory::new()?;
        Ok(Self {
            memory,
            file,
            written: 0,
            published: 0,
            consumed: 0,
            inline_used: 0,
            inline_free: INLINE_LEN,
            frames: VecDeque::with_capacity(RING_LEN as usize / DESCRIPTORS_MIN),
            referred: 0,
        })
    }

    /// Returns the position of the next descriptor.
    pub(super) const fn written(&self) -> u32 {
        self.written
    }

    /// Returns the position up to which the peer has read, as last loaded.
    pub(super) const fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Returns the number of frames with bytes by reference that the peer had not read when its
    /// position was last loaded.
    pub(super) const fn referred(&self) -> usize {
        self.referred
    }

    /// Returns the number of frames of the greatest length that fit, by the peer's position as last
    /// loaded.
    #[inline]
    fn room(&self) -> usize {
        self.room_of(self.consumed, self.inline_free)
    }

    /// Returns true if a frame of the greatest length does not fit, by the peer's position as last
    /// loaded.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Like [`room`](Self::room), but loads the peer's position if no frame fits otherwise.
    #[inline]
    pub(super) fn room_now(&self, peer: &PeerMemory) -> usize {
        let room = self.room();
        if room > 0 {
            return room;
        }
        // After an error, 1: `Session::transmit` is then called, and reports the error.
        self.look(peer).map_or(1, |(consumed, count)| {
            let last = count.checked_sub(1).and_then(|last| self.frames.get(last));
            let inline_free = last.map_or(self.inline_free, |sent| self.inline_free_behind(sent));
            self.room_of(consumed, inline_free)
        })
    }

    #[inline]
    fn room_of(&self, consumed: u32, inline_free: usize) -> usize {
        let at = self.inline_used % INLINE_LEN;
        // Free bytes up to the end of the area, and free bytes from its beginning. A frame's inline
        // bytes are contiguous.
        let here = (INLINE_LEN - at).min(inline_free);
        let there = inline_free - here;
        let descriptors = self.free_descriptors(consumed) / DESCRIPTORS_MIN;
        (here / FRAME_SPACE_MAX + there / FRAME_SPACE_MAX).min(descriptors)
    }

    #[inline]
    const fn free_descriptors(&self, consumed: u32) -> usize {
        (RING_LEN - self.written.wrapping_sub(consumed)) as usize
    }

    /// Returns the free inline bytes once the peer has read all frames up to `sent`.
    const fn inline_free_behind(&self, sent: &Sent) -> usize {
        INLINE_LEN - (self.inline_used - sent.inline_used)
    }

    /// Loads the peer's read position. Returns it, and the number of frames read since the last
    /// [`reap`](Self::reap).
    #[inline]
    fn look(&self, peer: &PeerMemory) -> Result<(u32, usize), ConsumedTooMuch> {
        if self.consumed == self.published {
            return Ok((self.consumed, 0));
        }
        let consumed = peer.consumed();
        let more = consumed.wrapping_sub(self.consumed);
        if more > self.published.wrapping_sub(self.consumed) {
            return Err(ConsumedTooMuch);
        }
        let is_read = |sent: &&Sent| sent.end.wrapping_sub(self.consumed) <= more;
        Ok((consumed, self.frames.iter().take_while(is_read).count()))
    }

    /// Frees the space of frames that the peer has read.
    ///
    /// # Errors
    /// [`ConsumedTooMuch`]: the session must end.
    #[inline]
    pub(super) fn reap(&mut self, peer: &PeerMemory) -> Result<(), ConsumedTooMuch> {
        let (consumed, count) = self.look(peer)?;
        self.consumed = consumed;
        for _ in 0..count {
            let Some(sent) = self.frames.pop_front() else { break };
            self.referred -= usize::from(sent.is_referred);
            self.inline_free = self.inline_free_behind(&sent);
        }
        Ok(())
    }

    /// Puts a frame into the ring. The peer can read it after [`publish`](Self::publish).
    ///
    /// # Errors
    /// - The errors of [`vnet::encode`].
    /// - [`TransmitError::TooLong`] beyond [`FRAME_LEN_MAX`], [`TransmitError::Refused`] if the
    ///   frame is empty.
    /// - [`TransmitError::Full`] if the outbox [is full](Self::is_full), even for a short frame.
    #[inline]
    pub(super) fn put(
        &mut self,
        frame: &TxFrame<'_>,
        announced: &mut Announced,
        counters: &mut ShmCounters,
    ) -> Result<(), TransmitError> {
        let offload = vnet::encode(frame)?;
        let len = frame.len();
        if len > FRAME_LEN_MAX {
            return Err(TransmitError::TooLong);
        }
        if len == 0 {
            return Err(TransmitError::Refused);
        }
        let room = self.room();
        if room == 0 {
            return Err(TransmitError::Full);
        }
        let at = self.inline_used % INLINE_LEN;
        let left_over = if INLINE_LEN - at < FRAME_SPACE_MAX { INLINE_LEN - at } else { 0 };
        let start = if left_over > 0 { 0 } else { at };
        // The head and each fragment may need a run each, while a copied frame needs one run only.
        // Leave descriptors for `room - 1` more copied frames, which `room` has promised.
        let runs_max = self.free_descriptors(self.consumed) - DESCRIPTORS_MIN * (room - 1) - 1;
        let refers = frame.payload.len() < runs_max;
        let first = self.written.wrapping_add(1);
        let mut writer = Writer { memory: &self.memory, next: first, open: None, inline_at: start };
        let mut referred = 0;
        writer.put_inline(Fragment::from_slice(frame.head));
        for fragment in frame.payload {
            let found = (refers && fragment.len() >= REFERRED_LEN_MIN)
                .then(|| announced.find(*fragment))
                .flatten();
            match found {
                Some((region, offset)) => {
                    writer.put_run(region, offset, fragment.len());
                    referred += fragment.len();
                }
                None => writer.put_inline(*fragment),
            }
        }
        writer.close();
        let Writer { next, inline_at, .. } = writer;
        let runs = u16::try_from(next.wrapping_sub(first)).expect("at most RUNS_MAX");
        let header = Header { len: u32::try_from(len).expect("FRAME_LEN_MAX"), runs, offload };
        self.memory.put_descriptor(self.written, header.to_octets());
        self.written = next;
        let taken = left_over + (inline_at - start).next_multiple_of(FRAME_ALIGNMENT);
        self.inline_used += taken;
        self.inline_free -= taken;
        let is_referred = referred > 0;
        self.referred += usize::from(is_referred);
        self.frames.push_back(Sent { end: next, inline_used: self.inline_used, is_referred });
        counters.frames_tx += 1;
        counters.tx_bytes_referred += referred as u64;
        counters.tx_bytes_copied += (len - referred) as u64;
        Ok(())
    }

    /// Lets the peer read the frames put so far. Returns true if the peer asked for a wake-up at
    /// one of them.
    #[inline]
    pub(super) fn publish(&mut self, peer: &PeerMemory) -> bool {
        let before = self.published;
        if before == self.written {
            return false;
        }
        self.memory.set_produced(self.written);
        self.published = self.written;
        // Store the position first, then load the peer's event word. The peer stores its event word
        // first, then loads the position. With a fence on each side at least one of the two sees
        // the other's store.
        fence(SeqCst);
        peer.wants_frames(before, self.written)
    }

    /// If the outbox is full, asks the peer for a wake-up when it has read more. Returns true if
    /// the peer has read more already. The caller must not sleep then: the peer may send no
    /// wake-up.
    pub(super) fn arm(&self, peer: &PeerMemory) -> bool {
        if self.room() > 0 {
            return false;
        }
        self.memory.ask_for_room(self.consumed);
        fence(SeqCst);
        peer.consumed() != self.consumed
    }
}

/// Writes the runs of one frame.
struct Writer<'a> {
    memory: &'a OwnMemory,
    /// Position of the next descriptor.
    next: u32,
    /// Last run, not in the ring yet: bytes that follow it directly extend it.
    open: Option<Run>,
    /// Offset in the inline area of the next copied byte.
    inline_at: usize,
}

impl Writer<'_> {
    #[inline]
    fn put_inline(&mut self, fragment: Fragment<'_>) {
        self.memory.put_inline(self.inline_at, fragment);
        self.put_run(INLINE, self.inline_at as u64, fragment.len());
        self.inline_at += fragment.len();
    }

    #[inline]
    fn put_run(&mut self, region: u32, offset: u64, len: usize) {
        if len == 0 {
            return;
        }
        let len = u32::try_from(len).expect("no more than a frame");
        if let Some(open) = &mut self.open {
            if open.region == region && open.offset + u64::from(open.len) == offset {
                open.len += len;
                return;
            }
            let octets = open.to_octets();
            self.memory.put_descriptor(self.next, octets);
            self.next = self.next.wrapping_add(1);
        }
        self.open = Some(Run { region, len, offset });
    }

    #[inline]
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.memory.put_descriptor(self.next, open.to_octets());
            self.next = self.next.wrapping_add(1);
        }
    }
}

/// Descriptors of a copied frame: header and one run.
const DESCRIPTORS_MIN: usize = 2;
