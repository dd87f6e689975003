//! From streaming mode to full operation (RFC 5044 §7.1).

use std::sync::Arc;

use crate::limits::{FRAGMENTS_MAX, STREAMING_BYTES_MAX};
use crate::mpa::startup::{
    Fallback, Framing, Initiator, MpaStartupError, Negotiated, Offer, Progress, Rejection,
    ReplyOutcome, Responder, Retry, Setback, StartupConfig, StartupMisuse,
};
use crate::stream::error::startup_code;
use crate::stream::phase::full::{Full, Origins};
use crate::stream::phase::places::RequestedDepths;
use crate::stream::phase::silence_probe::SilenceProbe;
use crate::stream::phase::{Early, Phase};
use crate::stream::tx::TxState;
use crate::stream::{Cut, Fragments, FrameBuilder, Room, Scratch, Stream, StreamEvent};
use crate::tcp::Standing;
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::{QpShared, QpState, WcStatus};
use crate::wire::terminate::{Terminate, TerminateCode};

/// Reason why a call does not fit a stream's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PhaseError {
    /// MPA can only be started from streaming mode.
    #[error("MPA has been started already")]
    NotStreaming,
    /// There is no Request to answer.
    #[error("no request of the peer waits for an answer")]
    NoRequest,
    /// The queue pair belongs to another connection, or did.
    #[error("the queue pair has been used for a connection already")]
    QpInUse,
    /// The parameters cannot be sent.
    #[error(transparent)]
    Startup(#[from] StartupMisuse),
    /// Streaming mode keeps only a bounded number of bytes.
    #[error("too many bytes in streaming mode")]
    StreamingFull,
}

/// Progress of the startup of a stream that a peer opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// MPA has not started, or was refused.
    Streaming {
        /// Bytes have arrived.
        has_received: bool,
    },
    /// The peer's Request is awaited.
    AwaitingRequest,
    /// The application must answer the Request.
    AwaitingAnswer,
    /// This end no longer waits as a responder.
    Started,
    /// The stream is over.
    Over,
}

impl Setup {
    /// `None` if it has left its listener. `asked`: a Request has arrived. `closing`: this end
    /// closes.
    #[must_use]
    pub const fn standing(self, asked: bool, closing: bool) -> Option<Standing> {
        match self {
            Self::AwaitingRequest | Self::Streaming { has_received: false } if !asked => {
                Some(Standing::Silent)
            }
            // A delayed startup: the application knows of the connection.
            Self::Streaming { .. } if !asked => Some(Standing::Asked),
            Self::AwaitingRequest | Self::AwaitingAnswer => Some(Standing::Asked),
            // RFC 5044 §7.1.2 (6): refused. The application may continue in streaming mode.
            Self::Streaming { .. } if !closing => None,
            Self::Streaming { .. } | Self::Over => Some(Standing::Ended),
            Self::Started => None,
        }
    }
}

/// Reason for a failed startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupFailure {
    /// The peer broke the startup protocol, or its terms are not acceptable.
    #[error(transparent)]
    Protocol(#[from] MpaStartupError),
    /// The peer did not answer in time.
    #[error("the peer's startup frame did not come in time")]
    Timeout,
    /// The connection ended before the startup did.
    #[error("the connection ended before MPA had started")]
    ConnectionLost,
    /// The peer's host refused the connection.
    #[error("the peer refused the connection: nothing listens at that address and port")]
    Refused,
    /// The network reported that the peer cannot be reached.
    #[error("the network reports that the peer cannot be reached")]
    Unreachable,
}

impl Stream {
    pub(crate) fn send_streaming(&mut self, octets: &[u8]) -> Result<(), PhaseError> {
        if !matches!(self.phase, Phase::Streaming) {
            // spec: RDMAP-6.1-1
            return Err(PhaseError::NotStreaming);
        }
        if self.streaming_tx.len() + octets.len() > STREAMING_BYTES_MAX {
            return Err(PhaseError::StreamingFull);
        }
        self.streaming_tx.extend_from_slice(octets);
        Ok(())
    }

    pub(crate) fn receive_streaming(&mut self, octets: &mut [u8]) -> usize {
        let len = octets.len().min(self.streaming_rx.len());
        for (octet, received) in octets.iter_mut().zip(self.streaming_rx.drain(..len)) {
            *octet = received;
        }
        len
    }

    // spec: MPA-7.1-3, MPA-7.1.2-1
    pub(crate) fn initiate(
        &mut self,
        now: Instant,
        qp: &Arc<QpShared>,
        config: &StartupConfig,
        offer: &Offer<'_>,
    ) -> Result<(), PhaseError> {
        if !matches!(self.phase, Phase::Streaming) {
            return Err(PhaseError::NotStreaming);
        }
        let claim = Claim::take(qp)?;
        // Data of streaming mode cannot be repeated on another connection.
        let fresh = self.streaming_tx.is_empty() && self.startup_rx == StreamOffset::ZERO;
        let fallback = if fresh { config.fallback } else { Fallback::empty() };
        let config = StartupConfig { fallback, ..*config };
        let asked = RequestedDepths::of(offer);
        let offer = asked.offer(qp, offer.private_data);
        let (initiator, request) = Initiator::new(&config, &offer)?;
        self.streaming_tx.extend_from_slice(&request);
        self.phase = Phase::AwaitingReply {
            initiator: Box::new(initiator),
            qp: claim.keep(),
            asked,
            silence_probe: config.silence_probe.then(|| SilenceProbe::first(now)),
        };
        self.watch(now);
        Ok(())
    }

    // spec: MPA-7.1.5-1
    pub(crate) fn respond(
        &mut self,
        now: Instant,
        config: &StartupConfig,
    ) -> Result<(), PhaseError> {
        if !matches!(self.phase, Phase::Streaming) {
            return Err(PhaseError::NotStreaming);
        }
        let responder = Box::new(Responder::new(config)?);
        self.phase = Phase::AwaitingRequest { responder };
        self.watch(now);
        // Bytes that the peer sent early are in the streaming buffer, but belong to the Request.
        if !self.streaming_rx.is_empty() {
            let early: Vec<u8> = self.streaming_rx.drain(..).collect();
            self.read_startup(&early);
        }
        Ok(())
    }

    // spec: MPA-7.1.2-5
    pub(crate) fn accept(
        &mut self,
        qp: &Arc<QpShared>,
        offer: &Offer<'_>,
    ) -> Result<(), PhaseError> {
        let Phase::AwaitingAnswer { responder } = &mut self.phase else {
            return Err(PhaseError::NoRequest);
        };
        let claim = Claim::take(qp)?;
        let asked = RequestedDepths::of(offer);
        let (reply, mut terms) = responder.accept(&asked.offer(qp, offer.private_data))?;
        self.streaming_tx.extend_from_slice(&reply);
        let apart = asked.divide(qp, &mut terms);
        self.begin_full(claim.keep(), &terms, apart, false, None);
        // No copy is used in full operation, which keeps pieces in the store.
        self.early = Early::default();
        asked.show(qp, &mut terms);
        self.establish(terms);
        Ok(())
    }

    /// Refuses the peer's Request. TCP stays open in streaming mode (RFC 5044 §7.1.2 (6)).
    // spec: MPA-7.1.2-4
    pub(crate) fn reject(&mut self, offer: &Offer<'_>) -> Result<(), PhaseError> {
        let Phase::AwaitingAnswer { responder } = &mut self.phase else {
            return Err(PhaseError::NoRequest);
        };
        let reply = responder.reject(offer)?;
        self.streaming_tx.extend_from_slice(&reply);
        self.phase = Phase::Streaming;
        self.rejected = true;
        Ok(())
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.stage_end(), self.silence_probe_at()].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        // Progress since the last call counts before the timer does.
        self.watch(now);
        // RFC 5044 §7.1.2 (8), (10): both sides time out if a startup frame does not arrive.
        // spec: MPA-7.1.2-11
        if self.stage_end().is_some_and(|end| end <= now) {
            self.end_stage();
            self.watch(now);
        }
        self.probe_silent_peer(now);
    }

    /// Others are at most copied: the start of full operation is not known yet.
    pub(in crate::stream) fn handle_startup_bytes(
        &mut self,
        offset: StreamOffset,
        bytes: &[u8],
    ) -> StreamOffset {
        debug_assert!(offset == self.startup_rx, "bytes beyond a gap");
        let taken = if matches!(self.phase, Phase::Streaming) {
            let room = STREAMING_BYTES_MAX - self.streaming_rx.len();
            let taken = bytes.len().min(room);
            self.streaming_rx.extend(&bytes[..taken]);
            if taken > 0 {
                self.events.push_back(StreamEvent::StreamingBytes);
            }
            taken
        } else {
            self.read_startup(bytes)
        };
        if self.phase.is_over() {
            return offset + bytes.len() as u64;
        }
        // In full operation the origin of FPDUs must not move.
        if self.phase.full().is_none() {
            self.startup_rx = offset + taken as u64;
        }
        offset + taken as u64
    }

    fn read_startup(&mut self, bytes: &[u8]) -> usize {
        match &mut self.phase {
            Phase::AwaitingReply { initiator, qp, asked, silence_probe } => {
                match initiator.handle_bytes(bytes) {
                    Ok(Progress::NeedMore) => bytes.len(),
                    Ok(Progress::Done { consumed, value: ReplyOutcome::Accepted(_) })
                        if consumed < bytes.len() =>
                    {
                        self.startup_error(MpaStartupError::EarlyData, bytes.len())
                    }
                    Ok(Progress::Done { consumed, value: ReplyOutcome::Accepted(mut terms) }) => {
                        let (qp, asked, silence_probe) = (Arc::clone(qp), *asked, *silence_probe);
                        let apart = asked.divide(&qp, &mut terms);
                        self.startup_rx = self.startup_rx + consumed as u64;
                        self.begin_full(Arc::clone(&qp), &terms, apart, true, silence_probe);
                        asked.show(&qp, &mut terms);
                        self.establish(terms);
                        consumed
                    }
                    Ok(Progress::Done { consumed, value: ReplyOutcome::Rejected(rejection) }) => {
                        self.startup_rx = self.startup_rx + consumed as u64;
                        self.reject_came(rejection);
                        consumed
                    }
                    Err(error) => self.startup_error(error, bytes.len()),
                }
            }
            Phase::AwaitingRequest { responder } | Phase::AwaitingAnswer { responder } => {
                match responder.handle_bytes(bytes) {
                    Ok(Progress::NeedMore) => bytes.len(),
                    // RFC 5044 §7.1.2 (3): the initiator waits for the Reply.
                    Ok(Progress::Done { consumed, .. }) if consumed < bytes.len() => {
                        self.startup_error(MpaStartupError::EarlyData, bytes.len())
                    }
                    Ok(Progress::Done { consumed, value }) => {
                        self.events.push_back(StreamEvent::Request(value));
                        self.phase.request_came();
                        consumed
                    }
                    Err(error) => self.startup_error(error, bytes.len()),
                }
            }
            Phase::Streaming
            | Phase::Full(_)
            | Phase::Ending(_)
            | Phase::Retrying { .. }
            | Phase::Over => bytes.len(),
        }
    }

    fn reject_came(&mut self, rejection: Rejection) {
        tracing::debug!(
            target: "urnic::stream", ird = rejection.peer_depths.ird, ord = rejection.peer_depths.ord,
            "the peer rejects the startup"
        );
        if let Some(retry) = self.retry_after(&Setback::Rejected(&rejection)) {
            self.phase = retry;
            self.closing = true;
            return;
        }
        // A queue pair serves one connection in its life, and this connection was it.
        self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
        // RFC 5044 §7.1.2 (3): MPA is left, TCP stays open.
        // spec: MPA-7.1.2-7
        self.phase = Phase::Streaming;
        self.events.push_back(StreamEvent::Rejected(rejection));
    }

    fn establish(&mut self, terms: Negotiated) {
        let Negotiated { framing, ird, ord, ref rtr, .. } = terms;
        let Framing { revision, crc, markers_to_peer, markers_to_us } = framing;
        let qp = self.qp().map(|qp| qp.number.0);
        tracing::debug!(
            target: "urnic::stream", qp, ?revision, crc, markers_to_peer, markers_to_us, ird, ord,
            ?rtr, "terms"
        );
        // spec: RDMAP-6.1-2
        self.events.push_back(StreamEvent::Established(terms));
    }

    /// `apart`: confirmations have a unit of ORD of their own.
    // spec: DDP-6.1-1, MPA-7.1-2, MPA-7.1.2-8
    fn begin_full(
        &mut self,
        qp: Arc<QpShared>,
        terms: &Negotiated,
        apart: bool,
        initiator: bool,
        silence_probe: Option<SilenceProbe>,
    ) {
        let origins =
            Origins { rx: self.startup_rx, tx: StreamOffset(self.streaming_tx.len() as u64) };
        let shared = Arc::clone(&qp);
        let mut full = Full::new(&self.rnic, qp, terms, initiator, self.policy, origins);
        full.tx.messages.confirm(&full.qp, apart);
        full.silence_probe = silence_probe;
        self.phase = Phase::Full(Box::new(full));
        shared.set_terms(terms.ord, terms.immediates);
        shared.set_state(QpState::Rts);
    }

    /// Notes that the lower layer has a connection: there is a peer that can refuse.
    pub(crate) const fn connected(&mut self) {
        self.connected = true;
    }

    /// On another connection with another stream.
    pub(crate) const fn wants_retry(&self) -> bool {
        matches!(self.phase, Phase::Retrying { .. })
    }

    pub(crate) fn take_retry(&mut self) -> Option<(Box<Retry>, Arc<QpShared>)> {
        self.lost = true;
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Retrying { retry, qp } => {
                qp.release_claim();
                Some((retry, qp))
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    pub(crate) fn give_up_retry(&mut self) {
        if self.wants_retry() {
            self.lost = true;
            self.events.push_back(StreamEvent::StartupFailed(StartupFailure::ConnectionLost));
            self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
            self.phase.end();
        }
    }

    /// The phase after a setback that another attempt may avoid; `None` if no attempt may.
    fn retry_after(&self, setback: &Setback<'_>) -> Option<Phase> {
        let Phase::AwaitingReply { initiator, qp, asked, .. } = &self.phase else { return None };
        let mut retry = Box::new(initiator.retry(setback)?);
        asked.restore(&mut retry);
        tracing::debug!(
            target: "urnic::stream", qp = qp.number.0, ?setback, startup = ?retry.startup,
            "the startup is tried once more"
        );
        Some(Phase::Retrying { retry, qp: Arc::clone(qp) })
    }

    pub(super) fn startup_failed(&mut self, failure: StartupFailure) {
        let setback = match failure {
            // An application that closes does not want another attempt.
            _ if self.closing => None,
            StartupFailure::ConnectionLost if self.connected => Some(Setback::Closed),
            StartupFailure::Protocol(error) => Some(Setback::Unusable(error)),
            StartupFailure::ConnectionLost
            | StartupFailure::Timeout
            | StartupFailure::Refused
            | StartupFailure::Unreachable => None,
        };
        self.closing = true;
        if let Some(retry) = setback.and_then(|setback| self.retry_after(&setback)) {
            self.phase = retry;
            return;
        }
        let qp = self.qp().map(|qp| qp.number.0);
        tracing::debug!(target: "urnic::stream", qp, %failure, "the startup has failed");
        self.events.push_back(StreamEvent::StartupFailed(failure));
        self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
        self.early = Early::default();
        self.phase.end();
    }

    // spec: MPA-7.1.2-3
    fn startup_error(&mut self, error: MpaStartupError, len: usize) -> usize {
        if let Some(framing) = error.terminates_in() {
            self.terminate_startup(startup_code(error), &framing);
        }
        self.startup_failed(error.into());
        len
    }

    /// Sends a Terminate in the negotiated framing, as an initiator must (RFC 6581 §9.1, §9.2). The
    /// failed attempt fails the queue pair's work.
    fn terminate_startup(&mut self, code: TerminateCode, framing: &Framing) {
        let Some(qp) = self.phase.qp() else { return };
        let origin = StreamOffset(self.streaming_tx.len() as u64);
        let mut tx = TxState::new(Arc::clone(self.rnic.blocks()), 0, origin, framing);
        tx.messages.terminate(Box::new(Terminate::new(code)));
        let mut room =
            Room { segment_len: TERMINATE_ROOM, fragments: FRAGMENTS_MAX, cut: Cut::Always };
        let framed = tx.frame_segment(qp, &self.rnic, &mut room);
        debug_assert!(framed.is_ok(), "a Terminate needs no memory");
        let (mut scratch, mut fragments) = (Scratch::default(), Fragments::new());
        let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
        tx.gather(origin..tx.framed_end(), &mut frame);
        frame.finish();
        for fragment in &fragments {
            let at = self.streaming_tx.len();
            self.streaming_tx.resize(at + fragment.len(), 0);
            fragment.copy_out(0, &mut self.streaming_tx[at..]);
        }
    }
}

/// Segment room for a Terminate: more than it needs with a marker.
const TERMINATE_ROOM: usize = 512;

/// A claim on a queue pair, released on drop unless it is kept.
struct Claim<'q>(Option<&'q Arc<QpShared>>);

impl<'q> Claim<'q> {
    fn take(qp: &'q Arc<QpShared>) -> Result<Self, PhaseError> {
        if qp.claim() { Ok(Self(Some(qp))) } else { Err(PhaseError::QpInUse) }
    }

    fn keep(mut self) -> Arc<QpShared> {
        Arc::clone(self.0.take().expect("kept once"))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(qp) = self.0 {
            qp.release_claim();
        }
    }
}
