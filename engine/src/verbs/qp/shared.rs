//! What a queue pair's handles and its connection share.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering, fence};

use crate::mem::region::prefetch::{prefetch, prefetch_part};
use crate::mem::{Access, Refusal};
use crate::types::{PdNum, QpNum};
use crate::verbs::doorbell::Bell;
use crate::verbs::posted::Posted;
use crate::verbs::qp::config::{CompletionMeans, QpConfig, QpRules, QpState, QueueError};
use crate::verbs::receives::Receives;
use crate::verbs::{Cq, RecvWr, RnicShared, SendWr, Wc, WcOpcode, WcStatus};

// What a request of the program touches lies in the first two lines, what a Write of the peer in the third.
// Two queue pairs have no cache line in common: most programs make all of theirs one after the other.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct QpShared {
    pub(crate) sq: Posted<SendWr>,
    pub(super) sq_outstanding: AtomicUsize,
    /// Set when a port takes the queue pair.
    pub(crate) bell: OnceLock<Bell>,
    pub(crate) send_cq: Cq,
    pub(crate) number: QpNum,
    pub(crate) pd: PdNum,
    pub(super) state: AtomicU8,
    /// Its completions are wanted no more.
    pub(super) silent: AtomicBool,
    /// The engine has flushed what it had.
    pub(super) is_flushed: AtomicBool,
    /// Whether Sends and Writes with immediate data may be sent; set as `ord`.
    pub(super) immediates: AtomicBool,
    /// Reads and Atomics that may be outstanding; set when the connection is established.
    pub(super) ord: AtomicU16,
    /// RDMA Writes of the peer that were delivered.
    writes: AtomicU64,
    /// Segments of them, and of one that is not complete yet.
    write_segments: AtomicU64,
    /// What its peer may do with memory that is the peer's to use; bits of [`Access`].
    pub(super) remote_rights: AtomicU8,
    /// Whether a connection has it: one in its life, but for a startup that is tried again.
    pub(super) claimed: AtomicBool,
    /// No other attempt to connect is to be made.
    pub(super) given_up: AtomicBool,
    pub(crate) rules: QpRules,
    pub(crate) completion: CompletionMeans,
    pub(crate) recv_cq: Cq,
    pub(crate) receives: Receives,
}

impl QpShared {
    /// What most messages need, in bytes from the beginning.
    const HOT: Range<usize> = 0..offset_of!(Self, remote_rights) + 1;

    /// A queue pair that no connection has.
    pub(super) fn new(rnic: &RnicShared, pd: PdNum, config: QpConfig) -> Result<Self, QueueError> {
        let QpConfig { send_cq, recv_cq, send_depth, recv_depth, rules, number, .. } = config;
        let QpConfig { receiver_not_ready, srq, completion, .. } = config;
        let next = || QpNum(rnic.qp_next.fetch_add(1, Ordering::Relaxed));
        if srq.as_ref().is_some_and(|srq| srq.pd() != pd) {
            return Err(QueueError::SrqNotAssociated);
        }
        Ok(Self {
            number: number.unwrap_or_else(next),
            pd,
            send_cq,
            recv_cq,
            sq: Posted::new(send_depth),
            receives: Receives::new(recv_depth, srq, receiver_not_ready),
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
            bell: OnceLock::new(),
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

    /// Takes the queue pair for a connection; of several attempts at the same time, one succeeds.
    pub(crate) fn claim(&self) -> bool {
        self.state() == QpState::Init && !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// The startup was not begun, or is to be tried again: the next claim succeeds.
    pub(crate) fn release_claim(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// A startup has failed, or its connection before RDMA began.
    pub(crate) fn attempt_failed(&self, first_send: WcStatus, first_receive: WcStatus) {
        if self.rules == QpRules::InfiniBand && !self.given_up.load(Ordering::Acquire) {
            self.release_claim();
            // It may have been given up just now, when the claim was still taken: either that is seen
            // here, or the free claim there.
            fence(Ordering::SeqCst);
            if !self.given_up.load(Ordering::Acquire) || !self.claim() {
                return;
            }
        }
        self.set_state(QpState::Error);
        // Nothing was started: all that was posted is where it was posted.
        self.flush_posted_sends(first_send);
        self.flush_posted_receives(first_receive);
        self.flushed();
    }

    /// RFC 5040 §8.1.1 (4): whether the peer may do this on this stream.
    #[inline]
    pub(crate) fn check_right(&self, right: Access) -> Result<(), Refusal> {
        let rights = Access::from_bits_retain(self.remote_rights.load(Ordering::Relaxed));
        if rights.contains(right) { Ok(()) } else { Err(Refusal::AccessRights) }
    }

    /// No other attempt to connect is to be made: the one that fails next is the last.
    pub(crate) fn end_attempts(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// All that the engine had of it is flushed: what is posted from now on is flushed where it is
    /// posted, behind that.
    pub(crate) fn flushed(&self) {
        self.is_flushed.store(true, Ordering::SeqCst);
        self.flush_posted_sends(WcStatus::WrFlushErr);
        self.flush_posted_receives(WcStatus::WrFlushErr);
    }

    /// What was agreed on; to be told before the state that lets requests be posted.
    pub(crate) fn set_terms(&self, ord: u16, immediates: bool) {
        self.ord.store(ord, Ordering::Relaxed);
        self.immediates.store(immediates, Ordering::Relaxed);
    }

    /// What requests of the program and Writes of the peer touch is needed soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_part(self, &Self::HOT);
    }

    /// What [`note_write`](Self::note_write) changes is needed soon.
    #[inline]
    pub(crate) fn prefetch_counts(&self) {
        prefetch(&self.writes);
    }

    /// A segment of the peer's Writes was delivered. One thread at a time says so: that which turns
    /// the connection.
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

    /// Whether the connection has agreed on Sends and Writes with immediate data.
    pub(crate) fn has_immediates(&self) -> bool {
        self.immediates.load(Ordering::Relaxed)
    }

    /// Raises the error completion of a send request and frees its place in the queue.
    pub(crate) fn fail_send(&self, wr: &SendWr, status: WcStatus) {
        let wc = Wc::failed(wr.id, status, wr.op.wc_opcode(), self.number);
        self.send_completed();
        // A full queue has no room for bad news either; the overflow flag tells.
        let _lost_is_flagged = self.push_send(wc);
    }

    /// Raises the error completion of a receive request and frees its place in the queue.
    pub(crate) fn fail_receive(&self, wr: &RecvWr, status: WcStatus) {
        let wc = Wc::failed(wr.id, status, WcOpcode::Recv, self.number);
        self.receives.completed();
        let _lost_is_flagged = self.push_receive(wc);
    }

    /// Raises a completion of the send queue; `false` when it was lost.
    #[must_use]
    pub(crate) fn push_send(&self, wc: Wc) -> bool {
        self.send_cq.push(wc, &self.silent)
    }

    /// Raises a completion of the receive queue; `false` when it was lost.
    #[must_use]
    pub(crate) fn push_receive(&self, wc: Wc) -> bool {
        self.recv_cq.push(wc, &self.silent)
    }

    /// Fails every send request that the engine has not taken: `first` for the oldest.
    pub(crate) fn flush_posted_sends(&self, first: WcStatus) {
        let mut status = first;
        while let Some(wr) = self.sq.pop() {
            self.fail_send(&wr, status);
            status = WcStatus::WrFlushErr;
        }
    }

    /// Fails every receive request that the engine has not taken: `first` for the oldest. Those of a
    /// shared queue are not this queue pair's.
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

    /// There is something for the stream to look at.
    pub(crate) fn press(&self) {
        if let Some(bell) = self.bell.get() {
            bell.press();
        }
    }

    /// A send request has completed: its place in the queue is free.
    pub(crate) fn send_completed(&self) {
        self.sq_outstanding.fetch_sub(1, Ordering::Release);
    }
}
