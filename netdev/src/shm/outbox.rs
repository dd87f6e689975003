//! What this end writes: frames into its ring, as descriptors of where their bytes are.
//!
//! A descriptor outlives the call that made it, and the peer reads the bytes later. For bytes that were
//! copied here nothing follows from that. Those that are referred to are read when the peer comes to them,
//! perhaps after the program has written over them. That is as it has to be, for frames of a transport
//! that acknowledges what its receiver has *taken*:
//!
//! - The ring is read in order. As long as bytes are not acknowledged, the program has to leave them (its
//!   request is not completed), and the peer acknowledges them only after it has read them: from this frame,
//!   or from an earlier one with the same bytes.
//! - Bytes that are read after they were acknowledged, from a frame that repeats others, are duplicates to
//!   the peer's transport. It drops them by their sequence numbers, whatever they are.
//! - What a stream that failed has left in the ring is of requests that failed with it. The peer places
//!   it only if its CRC is right, and then as bytes of a message that it is never told is whole.
//! - Memory that is withdrawn stays readable for the peer until it has read the ring up to that place.
//!
//! [`referred`](Outbox::referred) says how many such frames have not been read.

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

/// Frames on their way to the peer.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) memory: OwnMemory,
    /// What the peer maps.
    pub(super) file: OwnedFd,
    /// Positions: of the next descriptor; up to where the peer was told; up to where it has read.
    written: u32,
    published: u32,
    consumed: u32,
    /// Bytes copied since the session began, with what was left over at the end; and given back.
    //
    // Space that was given back first is used first: what was given back last is in the cache of the
    // peer's core, from where each line has to be fetched before it is written to.
    inline_used: usize,
    inline_free: usize,
    /// Frames that the peer has not read.
    frames: VecDeque<Sent>,
    referred: usize,
}

/// A frame that the peer has not read.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// The position behind it.
    end: u32,
    /// Of bytes copied, behind it.
    inline_used: usize,
    is_referred: bool,
}

/// The peer says that it has read what is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has read more than there is")]
pub(super) struct ConsumedTooMuch;

impl Outbox {
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

    /// The position of the next descriptor.
    pub(super) const fn written(&self) -> u32 {
        self.written
    }

    /// How far the peer has read, as was last seen.
    pub(super) const fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Frames with bytes that are referred to which the peer has not read, as was last seen.
    pub(super) const fn referred(&self) -> usize {
        self.referred
    }

    /// Frames of any kind that there is room for at least, as was last seen.
    #[inline]
    fn room(&self) -> usize {
        self.room_of(self.consumed, self.inline_free)
    }

    /// Whether there was no room for some frame when the peer was last looked at.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Frames of any kind that there is room for at least.
    #[inline]
    pub(super) fn room_now(&self, peer: &PeerMemory) -> usize {
        let room = self.room();
        if room > 0 {
            return room;
        }
        // A session that has to end says so when a frame is put.
        self.look(peer).map_or(1, |(consumed, count)| {
            let last = count.checked_sub(1).and_then(|last| self.frames.get(last));
            let inline_free = last.map_or(self.inline_free, |sent| self.inline_free_behind(sent));
            self.room_of(consumed, inline_free)
        })
    }

    #[inline]
    fn room_of(&self, consumed: u32, inline_free: usize) -> usize {
        let at = self.inline_used % INLINE_LEN;
        // Bytes up to the end of the area, and from its beginning.
        let here = (INLINE_LEN - at).min(inline_free);
        let there = inline_free - here;
        let descriptors = self.free_descriptors(consumed) / DESCRIPTORS_MIN;
        (here / FRAME_SPACE_MAX + there / FRAME_SPACE_MAX).min(descriptors)
    }

    #[inline]
    const fn free_descriptors(&self, consumed: u32) -> usize {
        (RING_LEN - self.written.wrapping_sub(consumed)) as usize
    }

    /// Bytes that are free when the peer has read a frame.
    const fn inline_free_behind(&self, sent: &Sent) -> usize {
        INLINE_LEN - (self.inline_used - sent.inline_used)
    }

    /// How far the peer has read, and how many frames that are.
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

    /// Takes back what the peer has read.
    ///
    /// # Errors
    /// [`ConsumedTooMuch`]: the session cannot go on.
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

    /// Puts a frame into the ring. [`publish`](Self::publish) lets the peer have it.
    ///
    /// # Errors
    /// [`TransmitError::Full`] exactly when it [is](Self::is_full), and what [`vnet::encode`] says.
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
        // The head, and each fragment, may be a run of its own; copied, they are one. The other frames
        // that there was said to be room for have to find it still.
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

    /// Lets the peer have what was put. Returns whether it wants to be told.
    #[inline]
    pub(super) fn publish(&mut self, peer: &PeerMemory) -> bool {
        let before = self.published;
        if before == self.written {
            return false;
        }
        self.memory.set_produced(self.written);
        self.published = self.written;
        // The position is written before it is asked whether the peer sleeps, which writes that it
        // does before it looks at the position.
        fence(SeqCst);
        peer.wants_frames(before, self.written)
    }

    /// Asks the peer to tell when it has read more, if there is no room. Returns whether it has already,
    /// in which case it may tell nothing.
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
    /// The position of the next descriptor.
    next: u32,
    /// The run that the next bytes may prolong.
    open: Option<Run>,
    /// Where inline bytes go next.
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

/// Descriptors of a frame that is copied: its header, and one run.
const DESCRIPTORS_MIN: usize = 2;
