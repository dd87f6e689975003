//! One RDMAP stream: MPA, DDP and RDMAP composed over an ordered flow of octets.
//!
//! A [`Stream`] does not know what carries it. The lower layer (LLP) calls `handle_bytes` with
//! octets it received, in any order if it can say where they belong; it asks `frame_segment` for
//! octets to send, and `gather` for their content as often as it has to send them. Two lower layers
//! exist: the MPA-aware TCP of this crate ([`optimized`]) and any ordered byte stream
//! ([`layered`]).
//!
//! `rx.rs` and `tx.rs` are the two pipelines, written to be read top to bottom.

mod closing;
pub mod error;
mod fpdus;
mod frame;
pub mod layered;
mod messages;
mod nudge;
pub mod optimized;
mod receive_queue;
mod rx;
mod send_queue;
mod startup;
mod tx;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

pub use error::StreamError;
pub use frame::Fragments;
pub(crate) use frame::{FrameBuilder, Scratch};
pub(crate) use startup::Phase;
pub use startup::PhaseError;
pub(crate) use tx::{Cut, Room, TxState};

use crate::counters::{MpaRxCounters, RdmaRxCounters};
use crate::limits::BAD_FPDU_DROPS_MAX;
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::{Receiver, RxConfig, RxError};
use crate::mpa::startup::{
    Framing, MpaStartupError, Negotiated, PeerRequest, Rejection, Retry, Rtr, RtrKind,
};
use crate::stream::messages::Messages;
use crate::stream::nudge::Nudge;
use crate::stream::rx::{Placed, Placer, RxState};
use crate::time::Instant;
use crate::types::{Stag, StreamOffset, TaggedOffset};
use crate::verbs::{QpShared, QpState, RemoteBuffer, RnicShared, SendOp, WcStatus};
use crate::wire::mpa::RtrKinds;
use crate::wire::terminate::{Terminate, TerminateCode};

/// Something that happened to a stream, for the application.
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
    /// This end found an error; the peer is told and the connection closed.
    Failed(StreamError),
    /// The peer ended the stream with this Terminate.
    Terminated(Terminate),
    /// The peer has closed its half of the connection.
    PeerClosed,
    /// Octets of streaming mode are there to be read.
    StreamingBytes,
}

/// Why a startup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupFailure {
    /// The peer broke the startup protocol or cannot be worked with.
    #[error(transparent)]
    Protocol(#[from] MpaStartupError),
    /// The peer did not answer in time.
    #[error("the peer's startup frame did not come in time")]
    Timeout,
    /// The connection ended before the startup did.
    #[error("the connection ended before MPA had started")]
    ConnectionLost,
}

/// How received FPDUs are treated, beyond what was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPolicy {
    /// Place FPDUs that arrive ahead of others. Off for applications that poll the last octet of
    /// a buffer, and over a lower layer that keeps order by itself.
    pub out_of_order: bool,
    /// Drop a segment whose FPDU fails its CRC, so that TCP brings it again, as long as that helps
    /// (RFC 5044 §8 allows it). Otherwise the first such FPDU ends the stream.
    pub drop_bad_fpdus: bool,
}

impl Default for RxPolicy {
    fn default() -> Self {
        Self { out_of_order: true, drop_bad_fpdus: true }
    }
}

/// Full operation: both pipelines.
#[derive(Debug)]
pub(crate) struct Full {
    mpa: Receiver<Placed>,
    rx: RxState,
    pub(crate) tx: TxState,
    /// RFC 5044 §7.1.2 (4): a responder sends nothing before the initiator's first valid FPDU.
    tx_unlocked: bool,
    /// Which part this end played in the startup.
    initiator: bool,
}

/// One RDMAP stream.
#[derive(Debug)]
pub struct Stream {
    rnic: Arc<RnicShared>,
    qp: Option<Arc<QpShared>>,
    phase: Phase,
    full: Option<Box<Full>>,
    policy: RxPolicy,
    /// Octets sent before full operation; the first is at stream offset 0.
    streaming_tx: Vec<u8>,
    /// Octets received in streaming mode and not read.
    streaming_rx: VecDeque<u8>,
    /// Next octet expected before full operation.
    startup_rx: StreamOffset,
    /// Where FPDUs were last dropped for a bad CRC, and how often in a row.
    bad_fpdu: (StreamOffset, u32),
    closing: bool,
    /// While closing: when a peer that says nothing is given up.
    silent_until: Option<Instant>,
    /// FPDUs received and framed when that was set.
    fpdus_before: (u64, u64),
    lost: bool,
    /// Whether the lower layer has carried octets.
    connected: bool,
    /// The startup has failed in a way that another one may not; the application knows nothing of
    /// it, and the queue pair is as it was.
    retry: Option<Box<Retry>>,
    /// When to remind a silent responder of what was sent.
    nudge: Option<Nudge>,
    events: VecDeque<StreamEvent>,
}

impl Stream {
    /// A stream in streaming mode: octets pass as they are until MPA is started.
    pub(crate) fn new(rnic: Arc<RnicShared>, policy: RxPolicy) -> Self {
        Self {
            rnic,
            qp: None,
            phase: Phase::Streaming,
            full: None,
            policy,
            streaming_tx: Vec::new(),
            streaming_rx: VecDeque::new(),
            startup_rx: StreamOffset::ZERO,
            bad_fpdu: (StreamOffset::ZERO, 0),
            closing: false,
            silent_until: None,
            fpdus_before: (0, 0),
            lost: false,
            connected: false,
            retry: None,
            nudge: None,
            events: VecDeque::with_capacity(4),
        }
    }

    /// A stream like this one, at its very beginning.
    pub(crate) fn successor(&self) -> Self {
        Self::new(Arc::clone(&self.rnic), self.policy)
    }

    /// What the stream belongs to.
    pub(crate) fn rnic(&self) -> Arc<RnicShared> {
        Arc::clone(&self.rnic)
    }

    /// The queue pair, once there is one.
    pub(crate) const fn qp(&self) -> Option<&Arc<QpShared>> {
        self.qp.as_ref()
    }

    /// What has happened since the last call.
    pub(crate) fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// Counts of MPA reception.
    pub(crate) fn mpa_counters(&self) -> MpaRxCounters {
        self.full.as_ref().map_or_else(MpaRxCounters::default, |full| *full.mpa.counters())
    }

    /// Counts of placement and delivery.
    pub(crate) fn rdma_counters(&self) -> RdmaRxCounters {
        self.full.as_ref().map_or_else(RdmaRxCounters::default, |full| full.rx.counters())
    }

    /// FPDUs framed for sending.
    pub(crate) fn fpdus_framed(&self) -> u64 {
        self.full.as_ref().map_or(0, |full| full.tx.fpdus_framed())
    }

    // ---- receive ----

    /// Takes octets of the stream at `offset` that were never given before. Returns up to where
    /// they were used or kept; the rest counts as not received.
    pub(crate) fn handle_bytes(
        &mut self,
        offset: StreamOffset,
        bytes: &[u8],
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        match self.phase {
            Phase::Full => self.handle_fpdus(offset, bytes, store, lease),
            Phase::Discarding => offset + bytes.len() as u64,
            _ => self.handle_startup_bytes(offset, bytes),
        }
    }

    #[inline]
    fn handle_fpdus(
        &mut self,
        offset: StreamOffset,
        bytes: &[u8],
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        let (Some(full), Some(qp)) = (&mut self.full, &self.qp) else {
            unreachable!("full operation has a queue pair and both pipelines");
        };
        let Full { mpa, rx, tx, tx_unlocked, initiator } = &mut **full;
        // RFC 5044 §7.1.2 (4): the responder is silent until the initiator has sent an FPDU.
        // Octets before that belong to no legal startup; §8: that counts as a lost connection.
        if *initiator && tx.fpdus_framed() == 0 {
            self.connection_lost();
            return offset + bytes.len() as u64;
        }
        let taken = {
            let mut placer = Placer::new(rx, &mut tx.messages, qp, &self.rnic, lease);
            mpa.handle_bytes(offset, bytes, store, &mut placer)
        };
        // An FPDU that DDP or RDMAP refuses is valid to MPA, and its Terminate may go out.
        let refused_above = matches!(taken.error, Some(RxError::Sink(_)));
        *tx_unlocked |= refused_above || mpa.counters().fpdus > 0;
        let completed = tx.complete_answered(qp);
        if rx.peer_terminate.is_some() {
            self.peer_terminated();
            return offset + bytes.len() as u64;
        }
        match taken.error {
            None if !completed => {
                self.fail(StreamError::CompletionQueueOverflow);
                offset + bytes.len() as u64
            }
            None => taken.end,
            Some(RxError::Mpa(error))
                if error.is_droppable()
                    && self.policy.drop_bad_fpdus
                    && self.worth_dropping(taken.end) =>
            {
                taken.end
            }
            Some(RxError::Mpa(error)) => {
                self.fail(error.into());
                offset + bytes.len() as u64
            }
            Some(RxError::Sink(error)) => {
                self.fail(error);
                offset + bytes.len() as u64
            }
        }
    }

    /// Whether the FPDU at `start` may be dropped once more in the hope of a better copy.
    fn worth_dropping(&mut self, start: StreamOffset) -> bool {
        let (place, times) = &mut self.bad_fpdu;
        if *place != start {
            (*place, *times) = (start, 0);
        }
        *times += 1;
        *times <= BAD_FPDU_DROPS_MAX
    }

    // ---- transmit ----

    /// End of what is framed: TCP may send up to here.
    pub(crate) fn framed_end(&self) -> StreamOffset {
        self.full
            .as_ref()
            .map_or(StreamOffset(self.streaming_tx.len() as u64), |full| full.tx.framed_end())
    }

    /// Frames whole FPDUs for one more segment, if there is work.
    pub(crate) fn frame_segment(&mut self, room: &mut Room) {
        if let (Some(full), Some(qp)) = (&mut self.full, &self.qp)
            && full.tx_unlocked
        {
            full.tx.frame_segment(qp, &self.rnic, room);
            // An invalidation may be done with nothing to wait for.
            let completed = full.tx.complete_answered(qp);
            if full.tx.messages.requester.is_in_vain() {
                self.connection_lost();
            } else if !completed {
                self.fail(StreamError::CompletionQueueOverflow);
            }
        }
    }

    /// Frames as many further segments like the last, of `segment_len` octets, as the message has, at
    /// most `segments`.
    pub(crate) fn frame_alike(&mut self, segment_len: usize, segments: usize, room: &mut Room) {
        if let Some(full) = &mut self.full {
            full.tx.frame_alike(segment_len, segments, room);
        }
    }

    /// Describes the octets in `range` of the stream.
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
            && let Some(full) = &self.full
        {
            full.tx.gather(range.start.max(startup_end)..range.end, frame);
        }
    }

    /// Whether what is sent at `start` is an FPDU's and not the startup's.
    pub(crate) const fn has_fpdus_at(&self, start: StreamOffset) -> bool {
        self.full.is_some() && start.0 >= self.streaming_tx.len() as u64
    }

    /// The lower layer has delivered everything before `snd_una`.
    pub(crate) fn acknowledged(&mut self, snd_una: StreamOffset) {
        if let (Some(full), Some(qp)) = (&mut self.full, &self.qp)
            && !full.tx.acknowledged(qp, snd_una)
        {
            self.fail(StreamError::CompletionQueueOverflow);
        }
    }

    /// Whether the lower layer is to close its sending half once all framed octets are sent.
    pub(crate) fn wants_close(&self) -> bool {
        self.closing
            && match (&self.full, &self.qp) {
                // A Terminate that may not be sent yet never will be.
                (Some(full), Some(_)) if self.is_over() && !full.tx_unlocked => true,
                (Some(full), Some(qp)) => full.tx.is_idle(qp),
                _ => true,
            }
    }

    // ---- end of life ----

    /// The application closes the stream: what was posted is finished, nothing new is taken.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.give_up_retry();
        if let Some(qp) = &self.qp
            && qp.state() == QpState::Rts
        {
            qp.set_state(QpState::Closing);
        }
    }

    /// The peer has closed its half, after everything it sent was delivered.
    pub(crate) fn peer_closed(&mut self) {
        let silenced = self.is_silenced();
        match self.phase {
            Phase::Full => {
                self.events.push_back(StreamEvent::PeerClosed);
                let (Some(full), Some(qp)) = (&mut self.full, &self.qp) else { return };
                // RFC 5041 §6.2.1: this end may go on sending. Nothing more can be received, so
                // receives are flushed, and Reads that await a Response never get one.
                full.rx.receive_queue.fail(qp, WcStatus::WrFlushErr);
                // A peer that ends in the middle of an FPDU did not close in order either, and one
                // that never sent an FPDU keeps a responder from ever sending.
                let whole = full.mpa.octets_held() == 0;
                if !whole || silenced || !full.tx.messages.requester.peer_closed() {
                    self.connection_lost();
                }
            }
            Phase::Streaming => self.events.push_back(StreamEvent::PeerClosed),
            Phase::Discarding => {}
            _ => self.startup_failed(StartupFailure::ConnectionLost),
        }
    }

    /// Both directions were closed in order.
    pub(crate) fn connection_closed(&mut self) {
        if matches!(self.phase, Phase::Full) && self.closing {
            self.phase = Phase::Discarding;
        }
        self.connection_lost();
    }

    /// Whether the stream is over, and only the connection is still there.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Discarding)
    }

    /// Whether MPA startup is under way or still to come.
    pub(crate) const fn is_starting(&self) -> bool {
        !matches!(self.phase, Phase::Full | Phase::Discarding)
    }

    /// Whether there may be something to frame.
    pub(crate) fn has_work(&self) -> bool {
        match (&self.full, &self.qp) {
            (Some(full), Some(qp)) => full.tx_unlocked && full.tx.has_work(qp),
            _ => false,
        }
    }

    /// Whether a message is framed in part, so that more of it follows.
    pub(crate) fn is_amid_message(&self) -> bool {
        self.full.as_ref().is_some_and(|full| full.tx.is_amid_message())
    }

    /// Gives back what is held for unfinished FPDUs.
    pub(crate) fn release(&mut self, store: &mut PieceStore) {
        if let Some(full) = &mut self.full {
            full.mpa.stop(store);
        }
    }

    /// The lower layer is gone.
    pub(crate) fn connection_lost(&mut self) {
        if self.lost || self.retry.is_some() {
            return;
        }
        self.lost = true;
        match self.phase {
            Phase::Full => {
                // What waited for an answer does not keep this end from closing.
                if let Some(full) = &mut self.full {
                    full.tx.abandon_message();
                    full.tx.messages.stop();
                }
                self.flush(WcStatus::RetryExcErr, WcStatus::WrFlushErr);
                self.events.push_back(StreamEvent::Failed(StreamError::ConnectionLost));
                self.phase = Phase::Discarding;
            }
            Phase::Streaming | Phase::Discarding => {}
            _ => self.startup_failed(StartupFailure::ConnectionLost),
        }
        self.closing = true;
        if self.retry.is_none() {
            self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
        }
    }

    /// This end found an error: tell the peer, flush everything, close.
    fn fail(&mut self, error: StreamError) {
        let Some(full) = &mut self.full else { return };
        // RFC 5040 §7.1: the Terminate is sent at the first chance; RFC 5041 §7.1: the rest of
        // what arrives is dropped silently.
        full.tx.abandon_message();
        let fault = full.rx.fault.take();
        if let Some(terminate) = fault.or_else(|| error.terminate_code().map(Terminate::new)) {
            full.tx.messages.terminate(terminate);
        }
        self.phase = Phase::Discarding;
        self.closing = true;
        self.flush(WcStatus::WrFlushErr, error.receive_status());
        self.events.push_back(StreamEvent::Failed(error));
    }

    /// The peer's Terminate was delivered: nothing outstanding will succeed.
    fn peer_terminated(&mut self) {
        let Some(full) = &mut self.full else { return };
        let Some(terminate) = full.rx.peer_terminate.take() else { return };
        full.tx.abandon_message();
        full.tx.messages.stop();
        self.phase = Phase::Discarding;
        // RFC 5040 §6.2.1: a graceful close is preferred after a Terminate.
        self.closing = true;
        self.flush(error::status_of_terminate(terminate.code), WcStatus::WrFlushErr);
        self.events.push_back(StreamEvent::Terminated(terminate));
    }

    /// Completes all outstanding work with errors.
    fn flush(&mut self, first_send: WcStatus, first_receive: WcStatus) {
        let Some(qp) = &self.qp else { return };
        qp.set_state(QpState::Error);
        if let Some(full) = &mut self.full {
            full.tx.messages.send_queue.fail(qp, first_send);
            full.rx.receive_queue.fail(qp, first_receive);
        } else {
            // Nothing was started: all that was posted is where it was posted.
            qp.flush_posted_sends(first_send);
            qp.flush_posted_receives(first_receive);
        }
    }

    fn startup_failed(&mut self, failure: StartupFailure) {
        self.retry = self.retry_after(failure);
        self.phase = Phase::Discarding;
        self.closing = true;
        if self.retry.is_some() {
            return;
        }
        self.events.push_back(StreamEvent::StartupFailed(failure));
        self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
    }

    /// RFC 6581 §9.1, §9.2: an initiator that cannot go on says so in the negotiated framing.
    fn terminate_startup(&mut self, code: TerminateCode, framing: Framing) {
        let Some(qp) = self.qp.clone() else { return };
        let terms = Negotiated {
            framing,
            enhanced: true,
            ird: 1,
            ord: 1,
            peer_depths: crate::mpa::startup::PeerDepths::default(),
            rtr: Rtr::None,
            private_data: Vec::new(),
        };
        self.begin_full(&qp, &terms, true);
        if let Some(full) = &mut self.full {
            full.tx.messages.terminate(Terminate::new(code));
        }
    }

    /// Enters full operation on the negotiated terms.
    fn begin_full(&mut self, qp: &Arc<QpShared>, terms: &Negotiated, initiator: bool) {
        let Negotiated { framing, ird, ord, ref rtr, .. } = *terms;
        let version = framing.revision.protocol_version();
        let mut messages = Messages::new(qp.sq.capacity(), ord, ird);
        if let Rtr::Send(kind) = rtr {
            messages.set_rtr(rtr_message(*kind));
        }
        // RFC 6581 §9.2: a zero-length Send as RTR takes a message number but no buffer.
        let absorb = matches!(rtr, Rtr::Expect(kinds) if *kinds == RtrKinds::SEND);
        let config = RxConfig {
            markers: framing.markers_to_us,
            crc: framing.crc,
            out_of_order: self.policy.out_of_order,
            ..RxConfig::default()
        };
        let tx_origin = StreamOffset(self.streaming_tx.len() as u64);
        self.full = Some(Box::new(Full {
            mpa: Receiver::new(config, self.startup_rx),
            rx: RxState::new(version, ird, ord, qp.rq.capacity(), absorb),
            tx: TxState::new(messages, tx_origin, framing.markers_to_peer, framing.crc, version),
            tx_unlocked: initiator,
            initiator,
        }));
        self.phase = Phase::Full;
        qp.set_state(QpState::Rts);
    }
}

/// The message that opens a peer-to-peer connection.
const fn rtr_message(kind: RtrKind) -> SendOp {
    // Shipping hardware refuses STag 0 even at length 0, so the tag is not 0.
    let remote = RemoteBuffer { stag: Stag(1), to: TaggedOffset(0) };
    match kind {
        RtrKind::SendZero => SendOp::Send { invalidate: None, solicited: false },
        RtrKind::WriteZero => SendOp::RdmaWrite { remote },
        RtrKind::ReadZero => SendOp::RdmaRead { remote },
    }
}
