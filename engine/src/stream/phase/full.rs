//! Full operation: both pipelines, and the queue pair that they serve.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use crate::limits::{BAD_FPDU_DROPS_AHEAD_MAX, BAD_FPDU_DROPS_MAX};
use crate::mem::region::prefetch::{prefetch, prefetch_part};
use crate::mem::{Scattered, TableLease};
use crate::mpa::MpaError;
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::{FpduReceiver, RxConfig, RxError, Taken};
use crate::mpa::startup::{Negotiated, Rtr};
use crate::stream::RxPolicy;
use crate::stream::error::StreamError;
use crate::stream::phase::nudge::Nudge;
use crate::stream::rx::{PlacedSegment, Placer, RxState, may_begin_with_send};
use crate::stream::tx::TxState;
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::{HeldRnic, QpShared, RnicShared};

/// Full operation of one stream.
// As in the connection of a port: what a message touches lies together, in two places.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Full {
    pub(in crate::stream) mpa: FpduReceiver<PlacedSegment>,
    pub(in crate::stream) rx: RxState,
    pub(in crate::stream) qp: Arc<QpShared>,
    /// RFC 5044 §7.1.2 (4): a responder sends nothing before the initiator's first valid FPDU.
    pub(in crate::stream) tx_unlocked: bool,
    /// The initiator's first FPDU is a ready-to-receive message, which was asked for.
    pub(super) awaits_rtr: bool,
    /// Which part this end played in the startup.
    initiator: bool,
    policy: RxPolicy,
    /// When to remind a silent responder of what was sent.
    pub(super) nudge: Option<Nudge>,
    /// FPDUs dropped for a bad CRC since delivery last came on.
    bad_fpdus: BadFpdus,
    pub(in crate::stream) tx: TxState,
}

/// Where the two directions of full operation begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origins {
    pub(super) rx: StreamOffset,
    pub(super) tx: StreamOffset,
}

/// Why full operation ends with what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) enum Ended {
    /// What came belongs to no connection that was started like this one.
    Lost,
    /// The peer's Terminate was delivered.
    PeerTerminated,
    /// This end found an error.
    Failed(StreamError),
}

impl Full {
    /// What most messages need, in bytes from the beginning: the first two parts are for data from the peer.
    const HOT: [Range<usize>; 3] = {
        let (rx, tx) = (offset_of!(Self, rx), offset_of!(Self, tx));
        let [first, second] = RxState::HOT;
        [
            offset_of!(Self, mpa) + FpduReceiver::<PlacedSegment>::HOT_FROM..rx + first.end,
            rx + second.start..rx + second.end,
            rx + RxState::HOT_FROM..tx + TxState::HOT_TO,
        ]
    };

    /// Both pipelines on the negotiated terms.
    pub(super) fn new(
        rnic: &HeldRnic,
        qp: Arc<QpShared>,
        terms: &Negotiated,
        initiator: bool,
        policy: RxPolicy,
        origins: Origins,
    ) -> Self {
        let Negotiated { framing, ird, ord, ref rtr, immediates, .. } = *terms;
        let version = framing.revision.protocol_version();
        let config = RxConfig {
            markers: framing.markers_to_us,
            crc: framing.crc,
            // Where the first FPDU may be a ready-to-receive Send, what number the next Send has is not
            // known before: until then, FPDUs are placed in order.
            out_of_order: policy.out_of_order && !may_begin_with_send(rtr),
            ..RxConfig::default()
        };
        let blocks = Arc::clone(rnic.blocks());
        let mut tx = TxState::new(blocks, ord, origins.tx, &framing);
        if let Rtr::Send(kind) = rtr {
            tx.messages.set_rtr(*kind);
        }
        Self {
            qp,
            mpa: FpduReceiver::new(config, origins.rx),
            rx: RxState::new(version, ird, ord, rtr, immediates),
            tx,
            tx_unlocked: initiator,
            awaits_rtr: matches!(rtr, Rtr::Expect(_)),
            nudge: None,
            policy,
            initiator,
            bad_fpdus: BadFpdus::default(),
        }
    }

    /// What most messages need is needed soon; with what data from the peer need.
    #[inline]
    pub(in crate::stream) fn prefetch(&self, data: bool) {
        let [first, second, both] = &Self::HOT;
        if data {
            prefetch_part(self, first);
            prefetch_part(self, second);
        }
        prefetch_part(self, both);
    }

    /// When something is due is needed soon.
    #[inline]
    pub(in crate::stream) fn prefetch_deadline(&self) {
        prefetch(&self.nudge);
    }

    /// What the queues point to is needed soon.
    #[inline]
    pub(in crate::stream) fn prefetch_queues(&self) {
        self.qp.prefetch();
        self.tx.prefetch();
    }

    /// Takes bytes that were never given before; returns up to where they were used or kept.
    #[inline]
    pub(in crate::stream) fn handle_bytes(
        &mut self,
        now: Instant,
        offset: StreamOffset,
        bytes: &[u8],
        rnic: &RnicShared,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> Result<StreamOffset, Ended> {
        self.qp.prefetch_counts();
        self.handle(rnic, store, lease, |mpa, store, placer| {
            mpa.handle_bytes(now, offset, bytes, store, placer)
        })
    }

    /// Takes such bytes in memory that may change, as far as they are whole FPDUs which continue the
    /// stream; the rest is to be given in one place.
    #[inline]
    pub(in crate::stream) fn handle_scattered(
        &mut self,
        offset: StreamOffset,
        octets: &Scattered<'_>,
        rnic: &RnicShared,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> Result<StreamOffset, Ended> {
        self.handle(rnic, store, lease, |mpa, store, placer| {
            mpa.handle_scattered(offset, octets, store, placer)
        })
    }

    #[inline(always)]
    fn handle(
        &mut self,
        rnic: &RnicShared,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
        take: impl FnOnce(
            &mut FpduReceiver<PlacedSegment>,
            &mut PieceStore,
            &mut Placer<'_, '_>,
        ) -> Taken<StreamError>,
    ) -> Result<StreamOffset, Ended> {
        let Self { qp, mpa, rx, tx, policy, .. } = self;
        // RFC 5044 §7.1.2 (4): the responder is silent until the initiator has sent an FPDU.
        // Bytes before that belong to no legal startup; §8: that counts as a lost connection.
        if self.initiator && tx.fpdus_framed() == 0 {
            return Err(Ended::Lost);
        }
        let taken = {
            let mut placer = Placer::new(rx, &mut tx.messages, qp, rnic, lease);
            take(mpa, store, &mut placer)
        };
        // An FPDU that DDP or RDMAP refuses is valid to MPA, and its Terminate may go out.
        let refused_above = matches!(taken.error, Some(RxError::Sink(_)));
        self.tx_unlocked |= refused_above || mpa.counters().fpdus > 0;
        mpa.place_out_of_order(policy.out_of_order && !rx.awaits_first());
        let completed = tx.complete_answered(qp);
        if taken.error.is_none() && rx.receive_queue.is_waiting() {
            self.deliver_held(rnic, lease)?;
        }
        let Self { rx, .. } = self;
        if rx.peer_terminate.is_some() {
            return Err(Ended::PeerTerminated);
        }
        match taken.error {
            None if completed => Ok(taken.end),
            None => Err(Ended::Failed(StreamError::CompletionQueueOverflow)),
            Some(RxError::Mpa(error)) => self.handle_fault(error, taken.end, store),
            Some(RxError::Sink(error)) => Err(Ended::Failed(error)),
        }
    }

    /// Delivers messages that wait for receives into those that are posted now.
    #[cold]
    pub(in crate::stream) fn deliver_held(
        &mut self,
        rnic: &RnicShared,
        lease: &mut TableLease<'_>,
    ) -> Result<(), Ended> {
        let Self { qp, rx, tx, .. } = self;
        let mut placer = Placer::new(rx, &mut tx.messages, qp, rnic, lease);
        placer.deliver_held().map_err(Ended::Failed)
    }

    /// An FPDU is not valid: its segment is dropped from `start` on, or the stream ends.
    #[cold]
    fn handle_fault(
        &mut self,
        error: MpaError,
        start: StreamOffset,
        store: &mut PieceStore,
    ) -> Result<StreamOffset, Ended> {
        let delivered = self.mpa.delivered();
        if error.droppable
            && self.policy.drop_bad_fpdus
            && self.bad_fpdus.worth_dropping(start, delivered)
        {
            tracing::debug!(
                target: "urnic::stream", qp = self.qp.number.0, %start, %error,
                "FPDU dropped, for TCP to bring it again"
            );
            return Ok(start);
        }
        // It may have been one that could have been dropped, after which MPA would go on.
        self.mpa.stop(store);
        Err(Ended::Failed(error.into()))
    }
}

/// Counts FPDUs that were dropped in the hope of a better copy (RFC 5044 §8), until delivery comes on.
///
/// A peer that computes wrong is found at the FPDU that delivery waits for, however many other places
/// it sends wrong ones to meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct BadFpdus {
    /// Up to where the stream was delivered when counting began.
    delivered: StreamOffset,
    next: u32,
    ahead: u32,
}

impl BadFpdus {
    /// Whether the FPDU at `start` may be dropped once more, with the stream delivered up to
    /// `delivered`.
    fn worth_dropping(&mut self, start: StreamOffset, delivered: StreamOffset) -> bool {
        if self.delivered != delivered {
            *self = Self { delivered, next: 0, ahead: 0 };
        }
        let (times, max) = if start == delivered {
            (&mut self.next, BAD_FPDU_DROPS_MAX)
        } else {
            (&mut self.ahead, BAD_FPDU_DROPS_AHEAD_MAX)
        };
        *times += 1;
        *times <= max
    }
}
