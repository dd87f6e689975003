//! Phase of a stream. [`Phase`] owns what the stream has in that phase and nothing else. The state
//! of the two half-connections is next to it, in the stream; [`stage`] reads both.

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

#[derive(Debug)]
pub(crate) enum Phase {
    /// Bytes pass unframed.
    Streaming,
    /// This end's Request is sent.
    AwaitingReply {
        initiator: Box<Initiator>,
        qp: Arc<QpShared>,
        asked: RequestedDepths,
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
    /// The startup has failed, and another attempt may succeed. The queue pair is unchanged.
    Retrying { retry: Box<Retry>, qp: Arc<QpShared> },
    /// Over, with nothing left.
    Over,
}

impl Phase {
    #[inline]
    pub(super) const fn full(&self) -> Option<&Full> {
        match self {
            Self::Full(full) | Self::Ending(full) => Some(full),
            _ => None,
        }
    }

    #[inline]
    pub(super) const fn full_mut(&mut self) -> Option<&mut Full> {
        match self {
            Self::Full(full) | Self::Ending(full) => Some(full),
            _ => None,
        }
    }

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

    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Ending(_) | Self::Retrying { .. } | Self::Over)
    }

    pub(super) fn end(&mut self) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::Full(full) | Self::Ending(full) => Self::Ending(full),
            _ => Self::Over,
        };
    }

    fn request_came(&mut self) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::AwaitingRequest { responder } => Self::AwaitingAnswer { responder },
            other => other,
        };
    }
}
