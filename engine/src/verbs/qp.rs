//! Queue pairs: the handle of the application.

mod batch;
mod config;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::limits::{QP_DEPTH_MAX, SGE_MAX};
use crate::mem::Access;
use crate::types::{PdNum, QpNum};
use crate::verbs::doorbell::{Doorbell, DoorbellButton};
use crate::verbs::receives::reserve;
use crate::verbs::{RecvWr, RnicShared, SendOp, SendWr, Sge, WcStatus};

pub use batch::SendBatch;
pub use config::{CompletionLevel, PostError, QpConfig, QpRules, QpState, QueueError};
pub(crate) use shared::QpShared;

const _: () = assert!(SGE_MAX >= 1);

/// A queue pair: the application's end of one RDMAP stream. A queue pair serves one connection in
/// its life. Each request completes once. Requests left when the state becomes [`QpState::Error`]
/// complete with errors, in order in each queue: one that caused the error, mostly the oldest, with
/// the reason, the others as flushed ([`WcStatus::WrFlushErr`]). The end of the connection is
/// reported after that.
///
/// Handles are references for any threads; requests posted from one thread are processed in order.
#[derive(Clone, Debug)]
pub struct Qp {
    pub(crate) shared: Arc<QpShared>,
}

impl Qp {
    pub(crate) fn new(rnic: &RnicShared, pd: PdNum, config: QpConfig) -> Result<Self, QueueError> {
        for depth in [config.send_depth, config.recv_depth] {
            if !(1..=QP_DEPTH_MAX).contains(&depth) {
                return Err(QueueError::QpDepth(depth));
            }
        }
        Ok(Self { shared: Arc::new(QpShared::new(rnic, pd, config)?) })
    }

    /// Number of the queue pair.
    #[must_use]
    pub fn number(&self) -> QpNum {
        self.shared.number
    }

    /// Posted work rings `doorbell` for `connection`: the last attempt to connect counts.
    pub fn attach(&self, doorbell: &Arc<Doorbell>, connection: u32) {
        let first = self.shared.button.set(DoorbellButton::new(Arc::clone(doorbell), connection));
        if first.is_err()
            && let Some(button) = self.shared.button.get()
        {
            button.attach(doorbell, connection);
        }
    }

    /// The link to the doorbell, once the queue pair belongs to a connection.
    #[must_use]
    pub fn button(&self) -> Option<&DoorbellButton> {
        self.shared.button.get()
    }

    /// Returns true if both are handles of one queue pair.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Current state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Ends a queue pair that has no connection: its work completes as flushed, the oldest Send or
    /// Write with `first`. Returns true if that was done. If an attempt to connect is in progress,
    /// the queue pair ends when the attempt fails.
    pub fn give_up(&self, first: WcStatus) -> bool {
        self.shared.end_attempts();
        fence(Ordering::SeqCst);
        let is_free = self.shared.claim();
        if is_free {
            self.shared.attempt_failed(first, WcStatus::WrFlushErr);
        }
        is_free
    }

    /// Number of requests in the send queue that have not completed.
    #[must_use]
    pub fn sends_outstanding(&self) -> usize {
        self.shared.sq_outstanding.load(Ordering::Acquire)
    }

    /// Number of RDMA Writes of the peer that were placed, with everything before them. Writes
    /// without payload are not counted: the ready-to-receive message (RFC 6581 §9.2) may be one. A
    /// Write raises no completion (RFC 5040 §5.1): an application that waits until its memory
    /// changes polls this count.
    #[must_use]
    pub fn writes_delivered(&self) -> u64 {
        self.shared.writes_delivered()
    }

    /// Number of segments of the peer's RDMA Writes that were placed, with everything before them:
    /// it grows while a Write of many segments arrives.
    #[must_use]
    pub fn write_segments_delivered(&self) -> u64 {
        self.shared.write_segments_delivered()
    }

    /// Ends the completions of this queue pair (`ibv_destroy_qp`): waiting ones are dropped, and
    /// its requests raise no further ones. The connection continues.
    pub fn discard_completions(&self) {
        let QpShared { number, send_cq, recv_cq, silent, .. } = &*self.shared;
        silent.store(true, Ordering::Release);
        send_cq.discard(*number);
        recv_cq.discard(*number);
    }

    /// Like [`discard_completions`](Self::discard_completions), but leaves the waiting ones until
    /// they are polled: the cost does not depend on their number.
    pub fn end_completions(&self) {
        let QpShared { send_cq, recv_cq, silent, .. } = &*self.shared;
        silent.store(true, Ordering::Release);
        send_cq.settle();
        recv_cq.settle();
    }

    /// Limits the peer to `rights`, whatever rights its steering tags give:
    /// [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`] and [`Access::REMOTE_ATOMIC`]. Initially
    /// the peer has all of them.
    pub fn set_remote_rights(&self, rights: Access) {
        self.shared.remote_rights.store(rights.bits(), Ordering::Release);
    }

    /// Returns true if messages of the peer wait for receives
    /// ([`QpRules::IwarpWait`](crate::verbs::QpRules::IwarpWait)).
    #[must_use]
    pub fn messages_wait(&self) -> bool {
        self.shared.receives.are_awaited()
    }

    /// Posts a request to the send queue.
    ///
    /// The memory in the request belongs to the engine until the request completes. RDMA Writes and
    /// Sends are gathered from it when they are sent, and again for a retransmission. Changing it
    /// meanwhile sends undefined bytes (RFC 5040 §5.5 rule 8), under a CRC that may be that of
    /// other bytes: the peer may then end the stream. The end of the registration does not withdraw
    /// a posted Write or Send; a Read whose sink is no longer registered fails with
    /// [`WcStatus::LocProtErr`]. After a flush the engine reads nothing from the memory.
    ///
    /// An Atomic of the peer is executed when its request is delivered; a Read is answered with the
    /// contents of memory when the Response is sent. So a Read may see the result of a later Atomic
    /// of the same peer that is not [fenced](SendWr::fenced): RFC 7306 §7 orders only the
    /// Responses. Errors: see [`PostError`]; nothing was posted.
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.check_send(&wr)?;
        reserve(&self.shared.sq_outstanding, self.shared.sq.depth())?;
        let pushed = self.shared.sq.push(wr);
        assert!(pushed.is_ok(), "the queue has room for every reserved place");
        self.shared.press();
        // The engine may have flushed between the check above and the push.
        if self.shared.is_flushed.load(Ordering::SeqCst) {
            self.shared.flush_posted_sends(WcStatus::WrFlushErr);
        }
        Ok(())
    }

    /// Posts a buffer to the receive queue. If the registration of its memory ends before a message
    /// arrives, the message ends the stream, and the buffer completes with
    /// [`WcStatus::LocProtErr`]. Errors: see [`PostError`]; nothing was posted.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        let state = self.shared.state();
        // RFC 5041 §6.2.1: this end's half-close keeps reception running.
        // spec: DDP-6.2.1-4
        if state == QpState::Error && self.shared.rules.is_iwarp() {
            return Err(PostError::State(state));
        }
        if wr.sges.iter().any(|sge| !sge.writable) && !wr.inaccessible {
            return Err(PostError::Scatter);
        }
        if !wr.inaccessible && !wr.sges.iter().all(|sge| self.may_place_in(sge)) {
            return Err(PostError::NotAssociated);
        }
        if wr.len() > u64::from(u32::MAX) {
            return Err(PostError::TooLong(wr.len()));
        }
        if self.shared.receives.post(wr)? {
            self.shared.press();
        }
        // As for sends: the engine may have flushed before the push.
        if self.shared.is_flushed.load(Ordering::SeqCst) {
            self.shared.flush_posted_receives(WcStatus::WrFlushErr);
        }
        Ok(())
    }

    fn check_send(&self, wr: &SendWr) -> Result<(), PostError> {
        let state = self.shared.state();
        if state != QpState::Rts && self.shared.rules.is_iwarp() {
            return Err(PostError::State(state));
        }
        let len = wr.len();
        // RFC 5041 §5.2: a ULP message is shorter than 2^32 bytes.
        // spec: DDP-5.2-2
        if len > u64::from(u32::MAX) {
            return Err(PostError::TooLong(len));
        }
        let fits = match wr.op {
            SendOp::Send { .. }
            | SendOp::RdmaWrite { .. }
            | SendOp::SendImmediate { .. }
            | SendOp::RdmaWriteImmediate { .. } => true,
            SendOp::RdmaRead { .. } => wr.sges.iter().all(|sge| sge.writable),
            SendOp::Immediate { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::CmpSwap { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw { .. } => wr.sges.is_empty(),
        };
        if !fits && !wr.inaccessible {
            return Err(PostError::Scatter);
        }
        let is_read = matches!(wr.op, SendOp::RdmaRead { .. });
        let own = |sge: &Sge| {
            if is_read { self.may_place_in(sge) } else { sge.pd == self.shared.pd }
        };
        if !wr.inaccessible && !wr.sges.iter().all(own) {
            return Err(PostError::NotAssociated);
        }
        // RFC 5040 §6.1: with an ORD of 0 the request would block all later requests.
        let is_agreed = state == QpState::Rts;
        if is_agreed && wr.op.awaits_response() && self.shared.ord.load(Ordering::Relaxed) == 0 {
            return Err(PostError::OrdZero);
        }
        if is_agreed && wr.op.needs_agreement() && !self.shared.has_immediates() {
            return Err(PostError::NoImmediates);
        }
        Ok(())
    }

    /// Arriving data may be placed in the memory (RFC 5040 §8.1.1 (1), RFC 5042 §7.3).
    fn may_place_in(&self, sge: &Sge) -> bool {
        sge.pd == self.shared.pd && sge.only.is_none_or(|only| only == self.shared.number)
    }
}
