//! Outbox of this end: writes frames into its ring, as descriptors of their bytes, which are copied
//! or in published memory (see `published/readable.rs`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::published::Publisher;
use crate::published::readable::Readable;
use crate::published::runs::{RunMemory, RunWriter, Written};
use crate::shm::ShmCounters;
use crate::shm::layout::{Header, INLINE, OwnMemory, PeerMemory, Run};
use crate::shm::limits::{FRAME_ALIGNMENT, FRAME_LEN_MAX, FRAME_SPACE_MAX, INLINE_LEN, RING_LEN};
use crate::{SharedSlice, TransmitError, TxFrame, vnet};

#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) memory: OwnMemory,
    pub(super) readable: Readable<u32>,
    pub(super) file: OwnedFd,
    written: u32,
    /// Position behind the last descriptor that the peer may read.
    published: u32,
    /// Position up to which the peer has read, as last loaded.
    consumed: u32,
    /// Bytes allocated in the inline area since the session began, including those left unused at
    /// its end. The next frame begins at this number modulo the area's length.
    // A ring reuses the space freed first. That freed last is still in the cache of the peer's
    // core, and a write would have to fetch each line from there.
    inline_used: usize,
    /// Bytes of the inline area that belong to no unread frame.
    inline_free: usize,
    frames: VecDeque<Sent>,
    referred: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    end: u32,
    inline_used: usize,
    is_referred: bool,
}

/// Error: the peer claims to have read a position that was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it claims to have read more than was written")]
pub(super) struct ConsumedTooMuch;

impl Outbox {
    pub(super) fn new(publisher: &Publisher) -> io::Result<Self> {
        let (file, memory) = OwnMemory::new()?;
        Ok(Self {
            memory,
            readable: Readable::new(publisher),
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

    pub(super) const fn written(&self) -> u32 {
        self.written
    }

    pub(super) const fn consumed(&self) -> u32 {
        self.consumed
    }

    /// By the peer's position as last loaded.
    pub(super) const fn referred(&self) -> usize {
        self.referred
    }

    /// Number of frames of the greatest length that fit, by the peer's position as last loaded.
    #[inline]
    fn room(&self) -> usize {
        self.room_of(self.consumed, self.inline_free)
    }

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
        // Free bytes up to the end of the area, and from its beginning: a frame's are contiguous.
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

    /// Loads the peer's read position. Returns it, and the number of frames read since
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

    /// Puts a frame into the ring. The peer can read it after [`publish`](Self::publish). Requires
    /// that the published memory [is current](Readable::is_current). Fails with the errors of
    /// [`vnet::encode`]; with [`TransmitError::TooLong`] beyond [`FRAME_LEN_MAX`],
    /// [`TransmitError::Refused`] if the frame is empty, [`TransmitError::Full`] if the outbox [is
    /// full](Self::is_full), even for a short frame.
    #[inline]
    pub(super) fn put(
        &mut self,
        frame: &TxFrame<'_>,
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
        // Leave descriptors for `room - 1` more copied frames, which `room` has promised.
        let runs_max = self.free_descriptors(self.consumed) - DESCRIPTORS_MIN * (room - 1) - 1;
        let first = self.written.wrapping_add(1);
        let memory = FrameMemory { memory: &self.memory, first, start };
        let mut writer = RunWriter::new(memory, &mut self.readable, runs_max);
        writer.copy(SharedSlice::from_bytes(frame.head));
        for fragment in frame.payload {
            writer.put(*fragment);
        }
        let Written { runs, copied, referred } = writer.finish();
        let runs = u16::try_from(runs).expect("at most RUNS_MAX");
        let header = Header { len: u32::try_from(len).expect("FRAME_LEN_MAX"), runs, offload };
        self.memory.put_descriptor(self.written, header.to_octets());
        self.written = first.wrapping_add(runs.into());
        let taken = left_over + copied.next_multiple_of(FRAME_ALIGNMENT);
        self.inline_used += taken;
        self.inline_free -= taken;
        let is_referred = referred > 0;
        self.referred += usize::from(is_referred);
        self.frames.push_back(Sent {
            end: self.written,
            inline_used: self.inline_used,
            is_referred,
        });
        counters.frames_tx += 1;
        counters.tx_bytes_referred += referred as u64;
        counters.tx_bytes_copied += copied as u64;
        Ok(())
    }

    /// Lets the peer read the frames put so far. Returns true if it asked for a wake-up at one of
    /// them.
    #[inline]
    pub(super) fn publish(&mut self, peer: &PeerMemory) -> bool {
        let before = self.published;
        if before == self.written {
            return false;
        }
        self.memory.set_produced(self.written);
        self.published = self.written;
        // Store the position, then load the peer's event word. The peer stores its event word, then
        // loads the position. With a fence on each side at least one of the two sees the other's
        // store.
        fence(SeqCst);
        peer.wants_frames(before, self.written)
    }

    /// If the outbox is full, asks the peer for a wake-up. Returns true if the peer has read more
    /// already: the caller must not sleep then, since the peer may send no wake-up.
    pub(super) fn arm(&self, peer: &PeerMemory) -> bool {
        if self.room() > 0 {
            return false;
        }
        self.memory.ask_for_room(self.consumed);
        fence(SeqCst);
        peer.consumed() != self.consumed
    }
}

struct FrameMemory<'a> {
    memory: &'a OwnMemory,
    first: u32,
    /// Offset in the inline area of the first copied byte.
    start: usize,
}

impl RunMemory for FrameMemory<'_> {
    type Name = u32;

    #[inline]
    fn place(&self, at: usize) -> (u32, u64) {
        (INLINE, (self.start + at) as u64)
    }

    #[inline]
    fn copy(&self, at: usize, octets: SharedSlice<'_>) {
        self.memory.put_inline(self.start + at, octets);
    }

    #[inline]
    fn write(&self, index: usize, run: Run, _has_next: bool) {
        let index = u32::try_from(index).expect("at most RUNS_MAX");
        self.memory.put_descriptor(self.first.wrapping_add(index), run.to_octets());
    }
}

/// Descriptors of a copied frame: header and one run.
const DESCRIPTORS_MIN: usize = 2;
