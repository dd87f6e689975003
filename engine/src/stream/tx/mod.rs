//! Transmit: from a posted request to the bytes of a segment. `turn` selects the next message,
//! `request` and `responses` build it, `describe` cuts it at the MULPDU just before it is sent,
//! `fpdus` queues the descriptors, `gather` and `frame` write inline bytes and runs of memory. A
//! retransmission reads the same descriptors. Bytes that must not be gathered (again) from the
//! application's memory are [`kept`].

mod confirmations;
mod describe;
mod fpdus;
mod frame;
mod gather;
mod kept;
mod marked;
mod message;
mod request;
mod responses;
mod send_path;
mod send_queue;
mod tagged;
#[cfg(test)]
mod tests;
mod turn;

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use describe::{Cut, FrameError, Room};
pub(crate) use frame::Digests;
pub(crate) use frame::FrameBuilder;
pub use frame::{Fragments, Scratch};
pub(crate) use responses::ResponseKind;
pub use send_path::SendPath;
pub(crate) use turn::Messages;

use crate::counters::RdmaTxCounters;
use crate::mem::pool::BlockPool;
use crate::mpa::marker::MarkerGrid;
use crate::mpa::startup::Framing;
use crate::stream::tx::fpdus::FpduQueue;
use crate::stream::tx::kept::Kept;
use crate::stream::tx::message::Message;
use crate::types::StreamOffset;
use crate::verbs::QpShared;
use crate::wire::ProtocolVersion;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct TxState {
    pub(crate) messages: Messages,
    fpdus: FpduQueue,
    framed_end: StreamOffset,
    fpdus_framed: u64,
    crc: bool,
    version: ProtocolVersion,
    grid: MarkerGrid,
    current: Option<Message>,
    /// Bytes that cannot be retransmitted: their request was flushed, and they were not kept.
    gone: Range<StreamOffset>,
    kept: Kept,
    counters: RdmaTxCounters,
}

impl TxState {
    pub(crate) const HOT_TO: usize = offset_of!(Self, kept) + Kept::HOT_TO;

    /// FPDUs begin at `origin`. At most `ord` Reads. Kept bytes are in blocks of `pool`.
    pub(crate) fn new(
        pool: Arc<BlockPool>,
        ord: u16,
        origin: StreamOffset,
        framing: &Framing,
    ) -> Self {
        Self {
            messages: Messages::new(ord),
            fpdus: FpduQueue::default(),
            kept: Kept::new(pool),
            gone: origin..origin,
            current: None,
            framed_end: origin,
            // spec: MPA-4.3-3
            grid: MarkerGrid::new(origin, framing.markers_to_peer),
            crc: framing.crc,
            version: framing.revision.protocol_version(),
            fpdus_framed: 0,
            counters: RdmaTxCounters::default(),
        }
    }

    pub(crate) const fn framed_end(&self) -> StreamOffset {
        self.framed_end
    }

    #[cfg(test)]
    pub(crate) fn boundaries(&self) -> Vec<StreamOffset> {
        self.fpdus.iter().map(fpdus::QueuedFpdu::start).chain([self.framed_end]).collect()
    }

    pub(crate) const fn fpdus_framed(&self) -> u64 {
        self.fpdus_framed
    }

    pub(crate) const fn count_staged(&mut self, len: usize) {
        self.counters.bytes_staged += len as u64;
    }

    pub(crate) fn counters(&self) -> RdmaTxCounters {
        RdmaTxCounters { confirmations: self.messages.confirmations(), ..self.counters }
    }

    #[inline]
    pub(crate) fn prefetch(&self) {
        self.messages.send_queue.prefetch();
        self.fpdus.prefetch();
    }

    pub(crate) fn has_work(&self, qp: &QpShared) -> bool {
        self.current.is_some() || self.messages.has_work(qp)
    }

    pub(crate) fn owes_empty_answers_only(&self, qp: &QpShared) -> bool {
        self.current.is_none() && self.messages.owes_empty_answers_only(qp)
    }

    pub(crate) const fn is_amid_message(&self) -> bool {
        self.current.is_some()
    }

    pub(crate) fn abandon_message(&mut self) {
        self.current = None;
    }

    pub(crate) fn is_idle(&self, qp: &QpShared) -> bool {
        self.current.is_none() && self.messages.is_idle(qp)
    }

    /// Drops acknowledged descriptors, completes requests. Returns false if a completion was lost.
    #[must_use]
    pub(crate) fn acknowledged(&mut self, qp: &QpShared, snd_una: StreamOffset) -> bool {
        let messages = &mut self.messages;
        messages.snd_una = snd_una;
        self.fpdus.release(snd_una, |source, count| messages.acknowledged(source, count));
        self.kept.release(snd_una);
        self.keep_across(snd_una);
        self.messages.send_queue.complete(qp, snd_una)
    }

    #[must_use]
    pub(crate) fn complete_answered(&mut self, qp: &QpShared) -> bool {
        self.messages.complete_answered(qp)
    }

    pub(crate) fn is_gone(&self, range: &Range<StreamOffset>) -> bool {
        !self.gone.is_empty() && self.gone.start < range.end && range.start < self.gone.end
    }
}
