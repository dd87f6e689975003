//! One RDMAP stream: MPA, DDP and RDMAP over an ordered flow of bytes. The lower layer
//! ([`carrier`]) calls `handle_bytes` with received bytes, in any order if it knows their
//! positions, `frame_segment` for bytes to send, and `gather` for their content, once for each
//! transmission. `rx/` and `tx/` are the two pipelines; `phase/` controls how a stream begins and
//! ends.

pub mod carrier;
pub mod error;
pub mod life;
mod phase;
mod rx;
mod tx;

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

pub use error::StreamError;
pub use phase::{PhaseError, Setup, StartupFailure};
pub(crate) use tx::{Cut, Digests, FrameBuilder, Room};
pub use tx::{Fragments, Scratch, SendPath};

use crate::counters::{MpaRxCounters, RdmaRxCounters, RdmaTxCounters};
use crate::limits::STREAMING_BYTES_MAX;
use crate::mem::{Scattered, TableLease};
use crate::mpa::pieces::PieceStore;
use crate::mpa::startup::{Negotiated, PeerRequest, Rejection};
use crate::stream::life::LifeTimes;
use crate::stream::phase::{Early, Phase, Watch};
use crate::stream::tx::FrameError;
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::{HeldRnic, QpShared};
use crate::wire::terminate::Terminate;

/// Event of a stream, for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The peer asks to start RDMA; accept or reject it.
    Request(PeerRequest),
    /// RDMA has started on these terms.
    Established(Negotiated),
    /// The peer refused to start RDMA.
    Rejected(Rejection),
    /// The startup failed; the connection is being closed.
    StartupFailed(StartupFailure),
    /// This end found an error. It sends a Terminate to the peer and closes the connection.
    Failed(StreamError),
    /// The peer ended the stream with this Terminate.
    Terminated(Terminate),
    /// The peer has closed its half of the connection.
    PeerClosed,
    /// Bytes of streaming mode are ready to read.
    StreamingBytes,
}

/// Policy for received FPDUs, beyond the negotiated terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPolicy {
    /// Place FPDUs ahead of others. Off for applications that poll a buffer's last byte.
    pub out_of_order: bool,
    /// Drop a segment whose FPDU fails its CRC as long as that helps, so that TCP retransmits it
    /// (RFC 5044 §8). Otherwise the first such FPDU ends the stream.
    pub drop_bad_fpdus: bool,
}

impl Default for RxPolicy {
    fn default() -> Self {
        Self { out_of_order: true, drop_bad_fpdus: true }
    }
}

/// One RDMAP stream.
#[derive(Debug)]
#[repr(C)]
pub struct Stream {
    times: Arc<LifeTimes>,
    startup_rx: StreamOffset,
    streaming_rx: VecDeque<u8>,
    /// Copies of bytes that arrived ahead of others before full operation.
    early: Early,
    rnic: HeldRnic,
    streaming_tx: Vec<u8>,
    events: VecDeque<StreamEvent>,
    phase: Phase,
    /// State of the stage timer, with the last seen stage of [`life`].
    watch: Watch,
    /// Position up to which the lower layer has delivered.
    acknowledged: StreamOffset,
    policy: RxPolicy,
    connected: bool,
    rejected: bool,
    /// This end closes, or has failed.
    closing: bool,
    /// The lower layer has closed its sending half.
    sending_closed: bool,
    peer_closed: bool,
    lost: bool,
    /// The lower layer must reset the connection.
    reset: bool,
    gone: bool,
}

impl Stream {
    pub(crate) const DUE: Range<usize> = offset_of!(Self, phase)..offset_of!(Self, gone) + 1;

    pub(crate) fn new(rnic: HeldRnic, policy: RxPolicy, times: Arc<LifeTimes>) -> Self {
        Self {
            rnic,
            phase: Phase::Streaming,
            policy,
            times,
            watch: Watch::new(),
            streaming_tx: Vec::new(),
            streaming_rx: VecDeque::new(),
            early: Early::default(),
            startup_rx: StreamOffset::ZERO,
            acknowledged: StreamOffset::ZERO,
            connected: false,
            rejected: false,
            closing: false,
            sending_closed: false,
            peer_closed: false,
            lost: false,
            reset: false,
            gone: false,
            events: VecDeque::new(),
        }
    }

    pub(crate) fn successor(&self) -> Self {
        Self::new(self.rnic.clone(), self.policy, Arc::clone(&self.times))
    }

    pub(crate) fn rnic(&self) -> HeldRnic {
        self.rnic.clone()
    }

    pub(crate) const fn qp(&self) -> Option<&Arc<QpShared>> {
        self.phase.qp()
    }

    /// Prefetches the state that most messages need, and with `data` what data from the peer needs.
    #[inline]
    pub(crate) fn prefetch(&self, data: bool) {
        if let Some(full) = self.phase.full() {
            full.prefetch(data);
        }
    }

    #[inline]
    pub(crate) fn prefetch_deadline(&self) {
        if let Some(full) = self.phase.full() {
            full.prefetch_deadline();
        }
    }

    #[inline]
    pub(crate) fn prefetch_queues(&self) {
        if let Some(full) = self.phase.full() {
            full.prefetch_queues();
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<StreamEvent> {
        let event = self.events.pop_front()?;
        if self.events.is_empty() {
            // Frees the memory: few events happen to a stream, most of them at its beginning.
            self.events = VecDeque::new();
        }
        Some(event)
    }

    pub(crate) fn mpa_counters(&self) -> MpaRxCounters {
        self.phase.full().map_or_else(MpaRxCounters::default, |full| *full.mpa.counters())
    }

    pub(crate) fn bytes_held(&self) -> u64 {
        self.phase.full().map_or(0, |full| full.mpa.bytes_held())
    }

    pub(crate) fn rdma_counters(&self) -> RdmaRxCounters {
        self.phase.full().map_or_else(RdmaRxCounters::default, |full| full.rx.counters())
    }

    /// Refused accesses of the peer: at most one, since the stream ends with it.
    pub(crate) fn accesses_refused(&self) -> u64 {
        self.phase.full().map_or(0, |full| u64::from(full.rx.access_refused))
    }

    pub(crate) fn tx_counters(&self) -> RdmaTxCounters {
        self.phase.full().map_or_else(RdmaTxCounters::default, |full| full.tx.counters())
    }

    #[cold]
    pub(crate) fn count_staged(&mut self, len: usize) {
        if let Some(full) = self.phase.full_mut() {
            full.tx.count_staged(len);
        }
    }

    pub(crate) fn fpdus_framed(&self) -> u64 {
        self.phase.full().map_or(0, |full| full.tx.fpdus_framed())
    }

    /// Bytes never given before. Those from the position returned on count as not received.
    pub(crate) fn handle_bytes(
        &mut self,
        now: Instant,
        offset: StreamOffset,
        bytes: &[u8],
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        let end = offset + bytes.len() as u64;
        match &mut self.phase {
            Phase::Full(full) => {
                let taken = full.handle_bytes(now, offset, bytes, &self.rnic, store, lease);
                let taken = taken.unwrap_or_else(|ended| {
                    self.end_full(ended);
                    end
                });
                self.reset_if_speechless();
                taken
            }
            // spec: DDP-3-8, DDP-7.1-5, TCP-9293-7
            Phase::Ending(_) | Phase::Retrying { .. } | Phase::Over => end,
            Phase::Streaming
            | Phase::AwaitingReply { .. }
            | Phase::AwaitingRequest { .. }
            | Phase::AwaitingAnswer { .. } => {
                self.handle_bytes_before_full(now, offset, bytes, store, lease)
            }
        }
    }

    /// As [`handle_bytes`](Self::handle_bytes), from memory that may change. Copy those after the
    /// position returned into one slice and give it to `handle_bytes`.
    pub(crate) fn handle_scattered(
        &mut self,
        offset: StreamOffset,
        octets: &Scattered<'_>,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        let Phase::Full(full) = &mut self.phase else { return offset };
        let taken = full.handle_scattered(offset, octets, &self.rnic, store, lease);
        let taken = taken.unwrap_or_else(|ended| {
            self.end_full(ended);
            offset + octets.len() as u64
        });
        self.reset_if_speechless();
        taken
    }

    pub(crate) fn framed_end(&self) -> StreamOffset {
        match self.phase.full() {
            Some(full) => full.tx.framed_end(),
            None => StreamOffset(self.streaming_tx.len() as u64),
        }
    }

    /// Frames whole FPDUs for one more segment. Returns the end of the framed bytes.
    #[inline]
    pub(crate) fn frame_segment(&mut self, room: &mut Room) -> StreamOffset {
        let Some(full) = self.phase.full_mut().filter(|full| full.tx_unlocked) else {
            return self.framed_end();
        };
        let before = full.tx.framed_end();
        let mut framed = full.tx.frame_segment(&full.qp, &self.rnic, room);
        // An invalidation may complete here without waiting for anything.
        let is_done = full.tx.messages.has_answered();
        let mut completed = full.tx.complete_answered(&full.qp);
        if is_done && framed.is_ok() && full.tx.framed_end() == before {
            // The next request may have waited only for the end of the invalidation.
            framed = full.tx.frame_segment(&full.qp, &self.rnic, room);
            completed &= full.tx.complete_answered(&full.qp);
        }
        let unanswerable = full.tx.messages.requester.has_unanswerable();
        match framed {
            Ok(()) if completed && !unanswerable => full.tx.framed_end(),
            _ => self.end_framing(framed, completed, unanswerable, room),
        }
    }

    #[cold]
    fn end_framing(
        &mut self,
        framed: Result<(), FrameError>,
        completed: bool,
        unanswerable: bool,
        room: &mut Room,
    ) -> StreamOffset {
        if unanswerable {
            self.give_up();
        } else if !completed {
            self.fail(StreamError::CompletionQueueOverflow);
        } else if let Err(error) = framed {
            self.fail_to_frame(error, room);
        }
        self.framed_end()
    }

    /// Fails the stream and frames a Terminate instead of the message (RFC 5040 §7.1 (1)).
    // spec: RDMAP-7.1-2, EXT-8.1-1
    #[cold]
    fn fail_to_frame(&mut self, error: FrameError, room: &mut Room) {
        let Some(full) = self.phase.full_mut() else { return };
        let error = match error {
            FrameError::Local(error) => error,
            FrameError::Source { refusal, request, msn } => {
                full.rx.note_rest(refusal, &request, msn)
            }
        };
        self.fail(error);
        if let Some(full) = self.phase.full_mut() {
            let framed = full.tx.frame_segment(&full.qp, &self.rnic, room);
            debug_assert!(framed.is_ok(), "a Terminate needs no memory");
        }
    }

    /// Frames at most `segments` further segments like the last, of `segment_len` bytes.
    pub(crate) fn frame_alike(&mut self, segment_len: usize, segments: usize, room: &mut Room) {
        if let Some(full) = self.phase.full_mut() {
            full.tx.frame_alike(&full.qp, &self.rnic, segment_len, segments, room);
        }
    }

    /// Call before gathering a range that may cut an FPDU: copies it for its later transmissions.
    pub(crate) fn keep_cut(&mut self, range: &Range<StreamOffset>) {
        if let Some(full) = self.phase.full_mut() {
            full.tx.keep_cut(range);
        }
    }

    /// The bytes in `range` are the application's again: reset the connection.
    pub(crate) fn is_gone(&self, range: &Range<StreamOffset>) -> bool {
        self.phase.full().is_some_and(|full| full.tx.is_gone(range))
    }

    pub(crate) fn gather<'a>(
        &'a self,
        range: Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let startup_end = StreamOffset(self.streaming_tx.len() as u64);
        if range.start < startup_end {
            let start = range.start.index_from(StreamOffset::ZERO);
            let end = range.end.min(startup_end).index_from(StreamOffset::ZERO);
            frame.push_inline(&self.streaming_tx[start..end]);
        }
        if range.end > startup_end
            && let Some(full) = self.phase.full()
        {
            full.tx.gather(range.start.max(startup_end)..range.end, frame);
        }
    }

    /// Returns true if the bytes at `start` belong to an FPDU, false if they belong to the startup.
    pub(crate) const fn has_fpdus_at(&self, start: StreamOffset) -> bool {
        self.phase.full().is_some() && start.0 >= self.streaming_tx.len() as u64
    }

    pub(crate) fn acknowledged(&mut self, snd_una: StreamOffset) {
        self.acknowledged = snd_una;
        if let Some(full) = self.phase.full_mut()
            && !full.tx.acknowledged(&full.qp, snd_una)
        {
            self.fail(StreamError::CompletionQueueOverflow);
        }
    }

    /// Returns true if the lower layer must close its sending half once all framed bytes are sent.
    // spec: DDP-3-10, DDP-6.2.2-3, RDMAP-7-1
    pub(crate) fn wants_close(&self) -> bool {
        self.closing
            && match &self.phase {
                // A Terminate that may not be sent now will never be sent.
                Phase::Ending(full) if !full.tx_unlocked => true,
                Phase::Full(full) | Phase::Ending(full) => full.tx.is_idle(&full.qp),
                _ => true,
            }
    }

    /// Returns true if the stream is over and only the connection is left.
    pub(crate) const fn is_over(&self) -> bool {
        self.phase.is_over()
    }

    pub(crate) fn receive_room(&self) -> Option<usize> {
        match &self.phase {
            Phase::Streaming => Some(STREAMING_BYTES_MAX - self.streaming_rx.len()),
            Phase::Full(full) => full.rx.receive_queue.room(),
            _ => None,
        }
    }

    /// Too many messages wait for receives: the lower layer must deliver no bytes for now.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.phase, Phase::Full(_)) && self.receive_room() == Some(0)
    }

    pub(crate) fn setup(&self) -> Setup {
        match self.phase {
            Phase::Streaming => {
                Setup::Streaming { has_received: self.startup_rx > StreamOffset::ZERO }
            }
            Phase::AwaitingRequest { .. } => Setup::AwaitingRequest,
            Phase::AwaitingAnswer { .. } => Setup::AwaitingAnswer,
            Phase::AwaitingReply { .. } | Phase::Full(_) => Setup::Started,
            Phase::Ending(_) | Phase::Retrying { .. } | Phase::Over => Setup::Over,
        }
    }

    pub(crate) const fn is_starting(&self) -> bool {
        match self.phase {
            Phase::Streaming => !self.rejected && !self.closing,
            Phase::AwaitingReply { .. }
            | Phase::AwaitingRequest { .. }
            | Phase::AwaitingAnswer { .. } => true,
            Phase::Full(_) | Phase::Ending(_) | Phase::Retrying { .. } | Phase::Over => false,
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.phase.full().is_some_and(|full| full.tx_unlocked && full.tx.has_work(&full.qp))
    }

    /// Returns true if all that may be framed are answers to Reads of no bytes.
    pub(crate) fn owes_empty_answers_only(&self) -> bool {
        let full = self.phase.full().filter(|full| full.tx_unlocked);
        full.is_some_and(|full| full.tx.owes_empty_answers_only(&full.qp))
    }

    pub(crate) fn is_amid_message(&self) -> bool {
        self.phase.full().is_some_and(|full| full.tx.is_amid_message())
    }

    /// Time since which no FPDU was delivered while bytes far beyond the next one were held.
    pub(crate) fn stalled_since(&self) -> Option<Instant> {
        self.phase.full()?.mpa.stalled_since()
    }

    /// Gives up held bytes far beyond the next FPDU. Calls `forget` with each range of them.
    pub(crate) fn give_up_far(
        &mut self,
        store: &mut PieceStore,
        forget: impl FnMut(Range<StreamOffset>),
    ) {
        if let Some(full) = self.phase.full_mut() {
            full.mpa.give_up_far(store, forget);
        }
    }

    pub(crate) fn release(&mut self, store: &mut PieceStore) {
        if let Some(full) = self.phase.full_mut() {
            full.mpa.stop(store);
        }
    }
}

#[cfg(test)]
mod tests;
