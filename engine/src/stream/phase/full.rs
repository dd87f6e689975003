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
use crate::stream::phase::silence_probe::SilenceProbe;
use crate::stream::rx::{PlacedSegment, Placer, RxState, may_begin_with_send};
use crate::stream::tx::TxState;
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::{HeldRnic, QpShared, RnicShared};

// Layout: the fields that a message touches lie together, in two places.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Full {
    pub(in crate::stream) mpa: FpduReceiver<PlacedSegment>,
    pub(in crate::stream) rx: RxState,
    pub(in crate::stream) qp: Arc<QpShared>,
    /// A responder may not send FPDUs before the initiator's first valid one (RFC 5044 §7.1.2 (4)).
    pub(in crate::stream) tx_unlocked: bool,
    /// This end has asked for a ready-to-receive message as the initiator's first FPDU.
    pub(super) awaits_rtr: bool,
    initiator: bool,
    policy: RxPolicy,
    pub(super) silence_probe: Option<SilenceProbe>,
    bad_fpdus: BadFpdus,
    pub(in crate::stream) tx: TxState,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Origins {
    pub(super) rx: StreamOffset,
    pub(super) tx: StreamOffset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) enum Ended {
    /// The initiator received bytes that no legal startup allows (RFC 5044 §8).
    Lost,
    PeerTerminated,
    Failed(StreamError),
}

impl Full {
    /// Bytes that most messages need; the first two are for data from the peer.
    const HOT: [Range<usize>; 3] = {
        let (rx, tx) = (offset_of!(Self, rx), offset_of!(Self, tx));
        let [first, second] = RxState::HOT;
        [
            offset_of!(Self, mpa) + FpduReceiver::<PlacedSegment>::HOT_FROM..rx + first.end,
            rx + second.start..rx + second.end,
            rx + RxState::HOT_FROM..tx + TxState::HOT_TO,
        ]
    };

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
            // spec: MPA-4.4-5
            crc: framing.crc,
            // If the first FPDU may be a ready-to-receive Send, the number of the next Send is
            // unknown until it arrives: until then, FPDUs are placed in order.
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
            silence_probe: None,
            policy,
            initiator,
            bad_fpdus: BadFpdus::default(),
        }
    }

    /// Prefetches the state that most messages need, and with `data` what data from the peer needs.
    #[inline]
    pub(in crate::stream) fn prefetch(&self, data: bool) {
        let [first, second, both] = &Self::HOT;
        if data {
            prefetch_part(self, first);
            prefetch_part(self, second);
        }
        prefetch_part(self, both);
    }

    #[inline]
    pub(in crate::stream) fn prefetch_deadline(&self) {
        prefetch(&self.silence_probe);
    }

    #[inline]
    pub(in crate::stream) fn prefetch_queues(&self) {
        self.qp.prefetch();
        self.tx.prefetch();
    }

    /// Takes bytes that were never given before, those before the position returned.
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

    /// Takes whole FPDUs that continue the stream from memory that may change. The caller copies
    /// the rest for [`handle_bytes`](Self::handle_bytes).
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
        // RFC 5044 §7.1.2 (4): the responder is silent until the initiator has sent an FPDU. §8:
        // earlier bytes count as a lost connection.
        if self.initiator && tx.fpdus_framed() == 0 {
            return Err(Ended::Lost);
        }
        let taken = {
            let mut placer = Placer::new(rx, &mut tx.messages, qp, rnic, lease);
            take(mpa, store, &mut placer)
        };
        // An FPDU that DDP or RDMAP refuses is valid for MPA, so its Terminate may be sent.
        let refused_above = matches!(taken.error, Some(RxError::Sink(_)));
        // spec: MPA-7.1.2-9, MPA2-5-3
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
            // spec: DDP-7-1
            Some(RxError::Mpa(error)) => self.handle_fault(error, taken.end, store),
            Some(RxError::Sink(error)) => Err(Ended::Failed(error)),
        }
    }

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

    /// Handles an invalid FPDU: drops its segment from `start` on, or ends the stream.
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
            // spec: MPA-8-4
            && self.bad_fpdus.worth_dropping(start, delivered)
        {
            tracing::debug!(
                target: "urnic::stream", qp = self.qp.number.0, %start, %error,
                "FPDU dropped, for TCP to bring it again"
            );
            return Ok(start);
        }
        // Stops MPA explicitly: it would continue after a droppable fault.
        self.mpa.stop(store);
        Err(Ended::Failed(error.into()))
    }
}

/// Counts FPDUs dropped so that TCP retransmits them (RFC 5044 §8), until delivery advances. The
/// one that delivery waits for has a count of its own: a peer that computes wrong CRCs is detected
/// there, whatever it sends beyond it.
#[derive(Clone, Copy, Debug, Default)]
struct BadFpdus {
    delivered: StreamOffset,
    next: u32,
    ahead: u32,
}

impl BadFpdus {
    /// Returns true if the FPDU at `start` may be dropped once more.
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
