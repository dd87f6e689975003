//! From streaming mode to full operation (RFC 5044 §7.1).

use std::sync::Arc;

use crate::limits::{MPA_REPLY_TIMEOUT_NS, MPA_REQUEST_TIMEOUT_NS, STREAMING_BYTES_MAX};
use crate::mpa::startup::{
    Fallback, Initiator, MpaStartupError, Offer, Progress, ReplyOutcome, Responder, Retry, Setback,
    StartupConfig, StartupMisuse,
};
use crate::stream::nudge::Nudge;
use crate::stream::{StartupFailure, Stream, StreamEvent};
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::{QpShared, QpState, WcStatus};

/// Where a stream is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Octets pass as they are.
    Streaming,
    /// Our Request is out.
    AwaitingReply { initiator: Box<Initiator>, deadline: Instant },
    /// Waiting for the peer's Request.
    AwaitingRequest { responder: Box<Responder>, deadline: Instant },
    /// The application is to answer the peer's Request.
    AwaitingAnswer { responder: Box<Responder> },
    /// FPDUs in both directions.
    Full,
    /// Over: what still arrives is dropped.
    Discarding,
}

/// Why a call does not fit a stream's phase.
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
    /// Streaming mode keeps only a bounded number of octets.
    #[error("too many octets in streaming mode")]
    StreamingFull,
}

impl Stream {
    /// Sends octets as they are, before MPA is started.
    pub(crate) fn send_streaming(&mut self, octets: &[u8]) -> Result<(), PhaseError> {
        if !matches!(self.phase, Phase::Streaming) {
            return Err(PhaseError::NotStreaming);
        }
        if self.streaming_tx.len() + octets.len() > STREAMING_BYTES_MAX {
            return Err(PhaseError::StreamingFull);
        }
        self.streaming_tx.extend_from_slice(octets);
        Ok(())
    }

    /// Reads octets that came before MPA was started; returns how many.
    pub(crate) fn receive_streaming(&mut self, octets: &mut [u8]) -> usize {
        let len = octets.len().min(self.streaming_rx.len());
        for (octet, received) in octets.iter_mut().zip(self.streaming_rx.drain(..len)) {
            *octet = received;
        }
        len
    }

    /// Starts MPA as initiator: the Request goes out now.
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
        check_unused(qp)?;
        // What was said in streaming mode cannot be said again on another connection.
        let fresh = self.streaming_tx.is_empty() && self.startup_rx == StreamOffset::ZERO;
        let fallback = if fresh { config.fallback } else { Fallback::empty() };
        let config = StartupConfig { fallback, ..*config };
        let (initiator, request) = Initiator::new(&config, offer)?;
        self.streaming_tx.extend_from_slice(&request);
        self.qp = Some(Arc::clone(qp));
        let deadline = now.plus_nanos(MPA_REPLY_TIMEOUT_NS);
        self.phase = Phase::AwaitingReply { initiator: Box::new(initiator), deadline };
        self.nudge = config.nudge.then(|| Nudge::first(now));
        Ok(())
    }

    /// Starts MPA as responder: the peer's next octets are its Request.
    pub(crate) fn respond(
        &mut self,
        now: Instant,
        config: &StartupConfig,
    ) -> Result<(), PhaseError> {
        if !matches!(self.phase, Phase::Streaming) {
            return Err(PhaseError::NotStreaming);
        }
        let responder = Box::new(Responder::new(config)?);
        let deadline = now.plus_nanos(MPA_REQUEST_TIMEOUT_NS);
        self.phase = Phase::AwaitingRequest { responder, deadline };
        // What the peer sent too early for streaming mode belongs to the Request.
        if !self.streaming_rx.is_empty() {
            let early: Vec<u8> = self.streaming_rx.drain(..).collect();
            self.read_startup(&early);
        }
        Ok(())
    }

    /// Accepts the peer's Request.
    pub(crate) fn accept(
        &mut self,
        qp: &Arc<QpShared>,
        offer: &Offer<'_>,
    ) -> Result<(), PhaseError> {
        let Phase::AwaitingAnswer { responder } = &mut self.phase else {
            return Err(PhaseError::NoRequest);
        };
        check_unused(qp)?;
        let (reply, terms) = responder.accept(offer)?;
        self.streaming_tx.extend_from_slice(&reply);
        self.qp = Some(Arc::clone(qp));
        self.begin_full(qp, &terms, false);
        self.events.push_back(StreamEvent::Established(terms));
        Ok(())
    }

    /// Refuses the peer's Request. TCP stays open in streaming mode (RFC 5044 §7.1.2 (6)).
    pub(crate) fn reject(&mut self, offer: &Offer<'_>) -> Result<(), PhaseError> {
        let Phase::AwaitingAnswer { responder } = &mut self.phase else {
            return Err(PhaseError::NoRequest);
        };
        let reply = responder.reject(offer)?;
        self.streaming_tx.extend_from_slice(&reply);
        self.phase = Phase::Streaming;
        Ok(())
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.deadline(), self.nudge.map(Nudge::at)].into_iter().flatten().min()
    }

    /// When a startup that does not come on, or a peer that keeps this end from closing, is given up.
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::AwaitingReply { deadline, .. } | Phase::AwaitingRequest { deadline, .. } => {
                Some(deadline)
            }
            Phase::Full => self.silence_end(),
            _ => None,
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        // RFC 5044 §7.1.2 (8), (10): both sides time out on startup frames that do not come.
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            match self.phase {
                Phase::Full => self.end_silence(now),
                _ => self.startup_failed(StartupFailure::Timeout),
            }
        }
        self.nudge_silent_peer(now);
    }

    /// Octets before full operation. Only those in order are taken: where full operation begins
    /// is not known before.
    pub(super) fn handle_startup_bytes(
        &mut self,
        offset: StreamOffset,
        bytes: &[u8],
    ) -> StreamOffset {
        if offset != self.startup_rx {
            return offset;
        }
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
        if matches!(self.phase, Phase::Discarding) {
            return offset + bytes.len() as u64;
        }
        // In full operation the origin of FPDUs must not move any more.
        if self.full.is_none() {
            self.startup_rx = offset + taken as u64;
        }
        offset + taken as u64
    }

    /// Reads the peer's startup frame; returns how many octets were its.
    fn read_startup(&mut self, bytes: &[u8]) -> usize {
        match &mut self.phase {
            Phase::AwaitingReply { initiator, .. } => match initiator.handle_bytes(bytes) {
                Ok(Progress::NeedMore) => bytes.len(),
                Ok(Progress::Done { consumed, value: ReplyOutcome::Accepted(_) })
                    if consumed < bytes.len() =>
                {
                    self.startup_error(MpaStartupError::EarlyData, bytes.len())
                }
                Ok(Progress::Done { consumed, value }) => {
                    self.startup_rx = self.startup_rx + consumed as u64;
                    self.reply_came(value);
                    consumed
                }
                Err(error) => self.startup_error(error, bytes.len()),
            },
            Phase::AwaitingRequest { responder, .. } | Phase::AwaitingAnswer { responder } => {
                match responder.handle_bytes(bytes) {
                    Ok(Progress::NeedMore) => bytes.len(),
                    // RFC 5044 §7.1.2 (3): the initiator waits for the Reply.
                    Ok(Progress::Done { consumed, .. }) if consumed < bytes.len() => {
                        self.startup_error(MpaStartupError::EarlyData, bytes.len())
                    }
                    Ok(Progress::Done { consumed, value }) => {
                        self.events.push_back(StreamEvent::Request(value));
                        self.request_came();
                        consumed
                    }
                    Err(error) => self.startup_error(error, bytes.len()),
                }
            }
            Phase::Streaming | Phase::Full | Phase::Discarding => bytes.len(),
        }
    }

    fn request_came(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Discarding);
        let Phase::AwaitingRequest { responder, .. } = phase else {
            unreachable!("a Request only completes while one is awaited");
        };
        self.phase = Phase::AwaitingAnswer { responder };
    }

    fn reply_came(&mut self, outcome: ReplyOutcome) {
        match outcome {
            ReplyOutcome::Accepted(terms) => {
                let qp = Arc::clone(self.qp.as_ref().expect("an initiator has its queue pair"));
                self.begin_full(&qp, &terms, true);
                self.events.push_back(StreamEvent::Established(terms));
            }
            ReplyOutcome::Rejected(rejection) => {
                if let Phase::AwaitingReply { initiator, .. } = &self.phase
                    && let Some(retry) = initiator.retry(&Setback::Rejected(&rejection))
                {
                    self.retry = Some(Box::new(retry));
                    self.phase = Phase::Discarding;
                    self.closing = true;
                    return;
                }
                // RFC 5044 §7.1.2 (3): MPA is left, TCP stays open.
                self.phase = Phase::Streaming;
                // A queue pair serves one connection in its life, and this was it.
                self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
                self.qp = None;
                self.events.push_back(StreamEvent::Rejected(rejection));
            }
        }
    }

    /// The lower layer has a connection: a peer is there that can refuse.
    pub(crate) const fn connected(&mut self) {
        self.connected = true;
    }

    /// Whether the startup is to be tried once more, on another connection of the lower layer, with
    /// another stream.
    pub(crate) const fn wants_retry(&self) -> bool {
        self.retry.is_some()
    }

    /// What to try, and for whom. This stream then has no queue pair any more.
    pub(crate) fn take_retry(&mut self) -> Option<(Box<Retry>, Arc<QpShared>)> {
        self.lost = true;
        Some((self.retry.take()?, self.qp.take()?))
    }

    /// There will be no other startup after all: this one has failed.
    pub(crate) fn give_up_retry(&mut self) {
        if self.retry.take().is_some() {
            self.lost = true;
            self.events.push_back(StreamEvent::StartupFailed(StartupFailure::ConnectionLost));
            self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
        }
    }

    /// Whether a startup that failed like this is worth another attempt.
    pub(super) fn retry_after(&self, failure: StartupFailure) -> Option<Box<Retry>> {
        let Phase::AwaitingReply { initiator, .. } = &self.phase else { return None };
        let setback = match failure {
            StartupFailure::ConnectionLost if self.connected => Setback::Closed,
            StartupFailure::Protocol(error) => Setback::Unusable(error),
            StartupFailure::ConnectionLost | StartupFailure::Timeout => return None,
        };
        initiator.retry(&setback).map(Box::new)
    }

    fn startup_error(&mut self, error: MpaStartupError, len: usize) -> usize {
        if let Some((code, framing)) = error.terminate() {
            self.startup_rx = self.startup_rx + len as u64;
            self.terminate_startup(code, framing);
        }
        self.startup_failed(error.into());
        len
    }
}

fn check_unused(qp: &QpShared) -> Result<(), PhaseError> {
    if qp.state() == QpState::Init { Ok(()) } else { Err(PhaseError::QpInUse) }
}
