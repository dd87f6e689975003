//! Inbox of this end: reads frames from the peer's ring, in place.

use std::sync::atomic::{Ordering::SeqCst, fence};

use arrayvec::ArrayVec;

use crate::shm::ShmCounters;
use crate::shm::layout::{Header, INLINE, OwnMemory, PeerMemory, Run};
use crate::shm::limits::{BYTES_MAX, FRAME_LEN_MAX, RING_LEN, RUNS_MAX, WHOLE_LEN_MAX};
use crate::shm::regions::Regions;
use crate::{RxFrame, SharedSlice, vnet};

#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) memory: PeerMemory,
    pub(super) regions: Regions,
    next: u32,
    published: u32,
    /// As last loaded.
    produced: u32,
    /// True after [`close`](Self::close): `produced` is not loaded again.
    is_closed: bool,
    runs: Vec<Run>,
    /// Private copy of the frame's first bytes, or of all, which the peer cannot change.
    stage: Box<[u8]>,
}

/// Error that makes the ring unusable: the start of the next frame is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RingFault {
    #[error("it has produced more descriptors than the ring has")]
    Position,
    #[error("a frame with no runs, more than {RUNS_MAX}, or more than were produced")]
    Runs,
}

/// Reasons why a frame is not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("a frame of invalid length")]
    Length,
    #[error("bytes of an unknown region")]
    Region,
    #[error("bytes outside of their region")]
    Outside,
}

impl Inbox {
    pub(super) fn new(memory: PeerMemory) -> Self {
        Self {
            memory,
            regions: Regions::new(BYTES_MAX),
            next: 0,
            published: 0,
            produced: 0,
            is_closed: false,
            runs: Vec::with_capacity(RUNS_MAX),
            stage: vec![0; FRAME_LEN_MAX].into_boxed_slice(),
        }
    }

    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Reads the descriptors of the next frame, each once.
    #[inline]
    pub(super) fn read(&mut self) -> Result<Option<Header>, RingFault> {
        let mut there = self.produced.wrapping_sub(self.next);
        if there == 0 {
            self.look()?;
            there = self.produced.wrapping_sub(self.next);
            if there == 0 {
                return Ok(None);
            }
        }
        let header = Header::from_octets(self.memory.descriptor(self.next));
        let count = u32::from(header.runs);
        if count == 0 || usize::from(header.runs) > RUNS_MAX || count >= there {
            return Err(RingFault::Runs);
        }
        self.runs.clear();
        let first = self.next.wrapping_add(1);
        let descriptor = |index| self.memory.descriptor(first.wrapping_add(index));
        self.runs.extend((0..count).map(|index| Run::from_octets(descriptor(index))));
        Ok(Some(header))
    }

    /// Loads the position up to which the peer has written, unless the inbox is closed.
    #[inline]
    fn look(&mut self) -> Result<(), RingFault> {
        if self.is_closed {
            return Ok(());
        }
        let produced = self.memory.produced();
        if produced.wrapping_sub(self.next) > RING_LEN {
            return Err(RingFault::Position);
        }
        self.produced = produced;
        Ok(())
    }

    /// The peer has closed the socket: ignores all later writes, since another process may still
    /// write its memory. Frames published up to now are still received.
    pub(super) fn close(&mut self) -> Result<(), RingFault> {
        self.look()?;
        self.is_closed = true;
        Ok(())
    }

    /// Passes the frame that [`read`](Self::read) has read to `sink`, unless it is refused.
    #[inline]
    pub(super) fn hand_over(
        &mut self,
        header: Header,
        counters: &mut ShmCounters,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> Result<(), Refusal> {
        let Self { memory, regions, runs, stage, .. } = self;
        let len = usize::try_from(header.len).map_err(|_| Refusal::Length)?;
        let sum: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
        if len == 0 || len > FRAME_LEN_MAX || sum != u64::from(header.len) {
            return Err(Refusal::Length);
        }
        let head_len = if len <= WHOLE_LEN_MAX { len } else { RxFrame::HEAD_LEN_MIN };
        let mut payload = ArrayVec::<_, RUNS_MAX>::new();
        let (head, rest) = stage.split_at_mut(head_len);
        let (mut filled, mut hint) = (0, 0);
        for run in runs {
            let mut fragment = locate(memory, regions, *run, &mut hint)?;
            if filled < head_len {
                let now = fragment.len().min(head_len - filled);
                fragment.part(0, now).copy_out(0, &mut head[filled..filled + now]);
                filled += now;
                fragment = fragment.part(now, fragment.len() - now);
            }
            if !fragment.is_empty() {
                payload.push(fragment);
            }
        }
        counters.frames_rx += 1;
        if let Some((checksum, segment_size)) = vnet::verdict(header.offload, head) {
            counters.rx_bytes_copied += head_len as u64;
            counters.rx_bytes_in_place += (len - head_len) as u64;
            sink(RxFrame { head, payload: &payload, checksum, segment_size });
            return Ok(());
        }
        // The checksum is not that of TCP or UDP: complete it here.
        let mut at = 0;
        for fragment in payload {
            fragment.copy_out(0, &mut rest[at..at + fragment.len()]);
            at += fragment.len();
        }
        counters.rx_bytes_copied += len as u64;
        sink(vnet::decode(header.offload, &mut stage[..len]));
        Ok(())
    }

    /// Advances the read position past the frame with this header.
    #[inline]
    pub(super) fn advance(&mut self, header: Header) {
        self.next = self.next.wrapping_add(1 + u32::from(header.runs));
    }

    /// Lets the peer reuse the space before the read position. Returns true if it asked for a
    /// wake-up.
    #[inline]
    pub(super) fn publish(&mut self, own: &OwnMemory) -> bool {
        let before = self.published;
        if before == self.next {
            return false;
        }
        self.regions.settle(self.next);
        own.set_consumed(self.next);
        self.published = self.next;
        // As in `Outbox::publish`.
        fence(SeqCst);
        self.memory.wants_room(before, self.next)
    }

    /// Asks the peer for a wake-up. Returns true if the peer has written more already: the caller
    /// must not sleep then, since no wake-up may come.
    pub(super) fn arm(&self, own: &OwnMemory) -> bool {
        own.ask_for_frames(self.next);
        fence(SeqCst);
        self.memory.produced() != self.next
    }

    pub(super) const fn is_drained(&self) -> bool {
        self.is_closed && self.produced == self.next
    }
}

/// `hint` is the index of the region found last.
#[inline]
fn locate<'a>(
    memory: &'a PeerMemory,
    regions: &'a Regions,
    run: Run,
    hint: &mut usize,
) -> Result<SharedSlice<'a>, Refusal> {
    let len = usize::try_from(run.len).map_err(|_| Refusal::Outside)?;
    let found = if run.region == INLINE {
        usize::try_from(run.offset).ok().and_then(|at| memory.inline(at, len))
    } else {
        *hint = regions.find(run.region, *hint).ok_or(Refusal::Region)?;
        regions.slice(*hint, run.offset, len)
    };
    found.ok_or(Refusal::Outside)
}
