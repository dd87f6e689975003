//! Phase of a stream, from streaming mode through the startup to full operation and the end.
//!
//! [`Phase`] owns what the stream has in that phase and nothing else: no queue pair before one is
//! named, no pipelines before FPDUs flow. The state of the two half-connections is stored next to
//! it, in the stream; [`stage`] reads both.

mod closing;
mod early;
mod full;
mod places;
mod silence_probe;
mod stage;
mod startup;

use std::sync::Arc;

pub(super) use early::Early;
pub(super) use full::Ended;
pub(crate) use full::Full;
pub(super) use stage::Watch;
pub use startup::{PhaseError, Setup, StartupFailure};

use crate::mpa::startup::{Initiator, Responder, Retry};
use crate::stream::phase::places::RequestedDepths;
use crate::stream::phase::silence_probe::SilenceProbe;
use crate::verbs::QpShared;

/// Phase of a stream.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Bytes pass unframed.
    Streaming,
    /// This end's Request is sent.
    AwaitingReply {
        initiator: Box<Initiator>,
        qp: Arc<QpShared>,
        asked: RequestedDepths,
        /// Time of the next empty Write to a silent responder.
        silence_probe: Option<SilenceProbe>,
    },
    /// Waiting for the peer's Request.
    AwaitingRequest { responder: Box<Responder> },
    /// The application must answer the peer's Request.
    AwaitingAnswer { responder: Box<Responder> },
    /// FPDUs in both directions.
    Full(Box<Full>),
    /// Full operation is over: arriving bytes are dropped, bytes owed to the peer are still sent.
    Ending(Box<Full>),
    /// The startup has failed, and another attempt may succeed. The application does not know of
    /// the failure, and the queue pair is unchanged.
    Retrying { retry: Box<Retry>, qp: Arc<QpShared> },
    /// Over, with nothing left.
    Over,
}

impl Phase {
    /// Both pipelines, from the end of the startup on.
    #[inline]
    pub(super) const fn full(&self) -> Option<&Full> {
        match self {
            Self::Full(full) | Self::Ending(full) => Some(full),
            _ => None,
        }
    }

    /// Mutable form of [`full`](Self::full).
    #[inline]
    pub(super) const fn full_mut(&mut self) -> Option<&mut Full> {
        match self {
            Self::Full(full) | Self::Ending(full) => Some(full),
            _ => None,
        }
    }

    /// The queue pair, once there is one.
    pub(super) const fn qp(&self) -> Option<&Arc<QpShared>> {
        match self {
            Self::AwaitingReply { qp, .. } | Self::Retrying { qp, .. } => Some(qp),
            Self::Full(full) | Self::Ending(full) => Some(&full.qp),
            Self::Streaming
            | Self::AwaitingRequest { .. }
            | Self::AwaitingAnswer { .. }
            | Self::Over => None,
        }
    }

    /// Returns true if arriving bytes are ignored.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Ending(_) | Self::Retrying { .. } | Self::Over)
    }

    /// Ends any phase.
    pub(super) fn end(&mut self) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::Full(full) | Self::Ending(full) => Self::Ending(full),
            _ => Self::Over,
        };
    }

    /// Notes that the peer's Request was read.
    fn request_came(&mut self) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::AwaitingRequest { responder } => Self::AwaitingAnswer { responder },
            other => other,
        };
    }
}
