//! State that a queue pair's handles and its connection share.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering, fence};

use crate::mem::region::prefetch::{prefetch, prefetch_part};
use crate::mem::{Access, Refusal};
use crate::types::{PdNum, QpNum};
use crate::verbs::doorbell::DoorbellButton;
use crate::verbs::posted::Posted;
use crate::verbs::qp::config::{CompletionLevel, QpConfig, QpRules, QpState, QueueError};
use crate::verbs::receives::Receives;
use crate::verbs::{Cq, RecvWr, RnicShared, SendWr, Wc, WcOpcode, WcStatus};

// Layout: a request of the application touches the first two cache lines, a Write of the peer the
// third. Two queue pairs share none: most applications create all of theirs one after the other.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct QpShared {
    pub(crate) sq: Posted<SendWr>,
    pub(super) sq_outstanding: AtomicUsize,
    pub(crate) button: OnceLock<DoorbellButton>,
    pub(crate) send_cq: Cq,
    pub(crate) number: QpNum,
    pub(crate) pd: PdNum,
    pub(super) state: AtomicU8,
    pub(super) silent: AtomicBool,
    pub(super) is_flushed: AtomicBool,
    /// Sends and Writes with immediate data are agreed on; set together with `ord`.
    pub(super) immediates: AtomicBool,
    /// Limit of outstanding Reads and Atomics; set when the connection is established.
    pub(super) ord: AtomicU16,
    writes: AtomicU64,
    /// Delivered segments of Writes, including those of an incomplete Write.
    write_segments: AtomicU64,
    pub(super) remote_rights: AtomicU8,
    /// A queue pair serves one connection in its life, unless a startup is retried.
    pub(super) claimed: AtomicBool,
    /// No further attempt to connect may follow.
    pub(super) given_up: AtomicBool,
    pub(crate) rules: QpRules,
    pub(crate) completion: CompletionLevel,
    pub(crate) recv_cq: Cq,
    pub(crate) receives: Receives,
}

impl QpShared {
    const HOT: Range<usize> = 0..offset_of!(Self, remote_rights) + 1;

    pub(super) fn new(rnic: &RnicShared, pd: PdNum, config: QpConfig) -> Result<Self, QueueError> {
        let QpConfig { send_cq, recv_cq, send_depth, recv_depth, rules, number, .. } = config;
        let QpConfig { srq, completion, .. } = config;
        let next = || QpNum(rnic.qp_next.fetch_add(1, Ordering::Relaxed));
        // InfiniBand leaves the domain of the shared queue open.
        if rules.is_iwarp() && srq.as_ref().is_some_and(|srq| srq.pd() != pd) {
            return Err(QueueError::SrqNotAssociated);
        }
        Ok(Self {
            number: number.unwrap_or_else(next),
            pd,
            send_cq,
            recv_cq,
            sq: Posted::new(send_depth),
            receives: Receives::new(recv_depth, srq, rules != QpRules::Iwarp),
            rules,
            completion,
            sq_outstanding: AtomicUsize::new(0),
            state: AtomicU8::new(QpState::Init as u8),
            silent: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            remote_rights: AtomicU8::new(Access::all().bits()),
            is_flushed: AtomicBool::new(false),
            ord: AtomicU16::new(0),
            immediates: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            write_segments: AtomicU64::new(0),
            button: OnceLock::new(),
        })
    }

    pub(crate) fn state(&self) -> QpState {
        match self.state.load(Ordering::Acquire) {
            0 => QpState::Init,
            1 => QpState::Rts,
            2 => QpState::Closing,
            _ => QpState::Error,
        }
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Claims the queue pair for a connection. Of several concurrent attempts, one succeeds.
    pub(crate) fn claim(&self) -> bool {
        self.state() == QpState::Init && !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Releases the claim: the startup was not begun, or will be retried.
    pub(crate) fn release_claim(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    pub(crate) fn attempt_failed(&self, first_send: WcStatus, first_receive: WcStatus) {
        if self.rules == QpRules::InfiniBand && !self.given_up.load(Ordering::Acquire) {
            self.release_claim();
            // The queue pair may be given up concurrently: this side sees that, or the other the
            // free claim.
            fence(Ordering::SeqCst);
            if !self.given_up.load(Ordering::Acquire) || !self.claim() {
                return;
            }
        }
        self.set_state(QpState::Error);
        // Nothing was started: all posted work is still in the posted queues.
        self.flush_posted_sends(first_send);
        self.flush_posted_receives(first_receive);
        self.flushed();
    }

    /// Returns an error if the peer lacks this right on this stream (RFC 5040 §8.1.1 (4)).
    #[inline]
    pub(crate) fn check_right(&self, right: Access) -> Result<(), Refusal> {
        let rights = Access::from_bits_retain(self.remote_rights.load(Ordering::Relaxed));
        if rights.contains(right) { Ok(()) } else { Err(Refusal::AccessRights) }
    }

    pub(crate) fn end_attempts(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// The engine has flushed all its work. Work posted from now on is flushed by the posting call,
    /// so its completions come after those of the engine.
    pub(crate) fn flushed(&self) {
        self.is_flushed.store(true, Ordering::SeqCst);
        self.flush_posted_sends(WcStatus::WrFlushErr);
        self.flush_posted_receives(WcStatus::WrFlushErr);
    }

    pub(crate) fn set_terms(&self, ord: u16, immediates: bool) {
        self.ord.store(ord, Ordering::Relaxed);
        self.immediates.store(immediates, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_part(self, &Self::HOT);
    }

    #[inline]
    pub(crate) fn prefetch_counts(&self) {
        prefetch(&self.writes);
    }

    /// Only the thread that runs the connection calls it.
    #[inline]
    pub(crate) fn note_write(&self, last: bool) {
        self.write_segments
            .store(self.write_segments.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if last {
            self.writes.store(self.writes.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }

    pub(super) fn write_segments_delivered(&self) -> u64 {
        self.write_segments.load(Ordering::Relaxed)
    }

    pub(super) fn writes_delivered(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    pub(crate) fn has_immediates(&self) -> bool {
        self.immediates.load(Ordering::Relaxed)
    }

    pub(crate) fn fail_send(&self, wr: &SendWr, status: WcStatus) {
        let wc = Wc::failed(wr.id, status, wr.op.wc_opcode(), self.number);
        self.send_completed();
        // If the queue is full, this completion is lost too; the overflow flag reports it.
        let _lost_is_flagged = self.push_send(wc);
    }

    pub(crate) fn fail_receive(&self, wr: &RecvWr, status: WcStatus) {
        let wc = Wc::failed(wr.id, status, WcOpcode::Recv, self.number);
        self.receives.completed();
        let _lost_is_flagged = self.push_receive(wc);
    }

    #[must_use]
    pub(crate) fn push_send(&self, wc: Wc) -> bool {
        self.send_cq.push(wc, &self.silent)
    }

    #[must_use]
    pub(crate) fn push_receive(&self, wc: Wc) -> bool {
        self.recv_cq.push(wc, &self.silent)
    }

    /// `first` for the oldest.
    pub(crate) fn flush_posted_sends(&self, first: WcStatus) {
        let mut status = first;
        while let Some(wr) = self.sq.pop() {
            self.fail_send(&wr, status);
            status = WcStatus::WrFlushErr;
        }
    }

    /// `first` for the oldest. A shared queue's requests do not belong to this queue pair.
    pub(crate) fn flush_posted_receives(&self, first: WcStatus) {
        if self.receives.are_shared() {
            return;
        }
        let mut status = first;
        while let Some(wr) = self.receives.take() {
            self.fail_receive(&wr, status);
            status = WcStatus::WrFlushErr;
        }
    }

    pub(crate) fn press(&self) {
        if let Some(button) = self.button.get() {
            button.press();
        }
    }

    pub(crate) fn send_completed(&self) {
        self.sq_outstanding.fetch_sub(1, Ordering::Release);
    }
}
