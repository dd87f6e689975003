//! Where a stream is, from streaming mode over the startup to full operation, and to the end.
//!
//! [`Phase`] owns what the stream has in that phase and nothing else: no queue pair before one is
//! named, no pipelines before FPDUs flow. What both halves of the connection have come to is beside
//! it, in the stream; [`stage`] reads both.

mod closing;
mod full;
mod nudge;
mod places;
mod stage;
mod startup;

use std::sync::Arc;

pub(super) use full::Ended;
pub(crate) use full::Full;
pub(super) use stage::Watch;
pub use startup::{PhaseError, Setup, StartupFailure};

use crate::mpa::startup::{Initiator, Responder, Retry};
use crate::stream::phase::nudge::Nudge;
use crate::stream::phase::places::Asked;
use crate::verbs::QpShared;

/// Where a stream is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Bytes pass as they are.
    Streaming,
    /// Our Request is out.
    AwaitingReply {
        initiator: Box<Initiator>,
        qp: Arc<QpShared>,
        asked: Asked,
        /// When to remind a silent responder of what was sent.
        nudge: Option<Nudge>,
    },
    /// Waiting for the peer's Request.
    AwaitingRequest { responder: Box<Responder> },
    /// The application is to answer the peer's Request.
    AwaitingAnswer { responder: Box<Responder> },
    /// FPDUs in both directions.
    Full(Box<Full>),
    /// Full operation is over: what still arrives is dropped, what the peer is owed still goes out.
    Ending(Box<Full>),
    /// The startup has failed in a way that another one may not. The application knows nothing of
    /// it, and the queue pair is as it was.
    Retrying { retry: Box<Retry>, qp: Arc<QpShared> },
    /// Over, without anything left.
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

    /// The same, to be changed.
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

    /// Whether nothing that arrives is looked at any more.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Ending(_) | Self::Retrying { .. } | Self::Over)
    }

    /// Ends the phase, whichever it is.
    pub(super) fn end(&mut self) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::Full(full) | Self::Ending(full) => Self::Ending(full),
            _ => Self::Over,
        };
    }

    /// The peer's Request was read.
    fn request_came(&mut self) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::AwaitingRequest { responder } => Self::AwaitingAnswer { responder },
            other => other,
        };
    }
}
