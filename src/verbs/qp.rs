//! Queue pairs.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::queue::ArrayQueue;

use crate::limits::{QP_DEPTH_MAX, SGE_MAX};
use crate::types::{PdNum, QpNum};
use crate::verbs::doorbell::Bell;
use crate::verbs::{Cq, RecvWr, RnicShared, SendOp, SendWr, Wc, WcOpcode, WcStatus};

const _: () = assert!(SGE_MAX >= 1);

/// Where a queue pair is in its life (RFC 5040 §6, with the names of `ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Made, not connected: receives may be posted.
    Init = 0,
    /// Connected: work flows.
    Rts = 1,
    /// Closing in order: no new work.
    Closing = 2,
    /// Closed or failed: all work completes as flushed.
    Error = 3,
}

/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Where completions of the send queue go.
    pub send_cq: Cq,
    /// Where completions of the receive queue go.
    pub recv_cq: Cq,
    /// Work requests the send queue holds, until they complete.
    pub send_depth: usize,
    /// Work requests the receive queue holds, until they complete.
    pub recv_depth: usize,
}

/// Why a queue pair cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QpError {
    /// A depth of 0 or beyond [`QP_DEPTH_MAX`].
    #[error("a queue depth of {0} is outside 1..={QP_DEPTH_MAX}")]
    Depth(usize),
}

/// Why a work request was not taken. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as much as it was made for: poll completions first.
    #[error("the queue is full: poll completions before posting more")]
    Full,
    /// The queue pair cannot take this work in its state.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// The message is 2³² octets or longer (RFC 5041 §5.2).
    #[error("a message of {0} octets is longer than the protocol allows")]
    TooLong(u64),
    /// The scatter list does not fit the operation, or its memory may not be written.
    #[error("the scatter list does not fit the operation")]
    Scatter,
}

#[derive(Debug)]
pub(crate) struct QpShared {
    pub(crate) number: QpNum,
    pub(crate) pd: PdNum,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) sq: ArrayQueue<SendWr>,
    pub(crate) rq: ArrayQueue<RecvWr>,
    sq_outstanding: AtomicUsize,
    rq_outstanding: AtomicUsize,
    state: AtomicU8,
    /// Set once, when a port takes the queue pair.
    pub(crate) bell: OnceLock<Bell>,
}

impl QpShared {
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

    /// Raises the error completion of a send request and frees its place in the queue.
    pub(crate) fn fail_send(&self, wr: &SendWr, status: WcStatus) {
        let wc = Wc::failed(wr.id, status, wr.op.wc_opcode(), self.number);
        // A full queue has no room for bad news either; the overflow flag tells.
        let _lost_is_flagged = self.send_cq.push(wc);
        self.send_completed();
    }

    /// Raises the error completion of a receive request and frees its place in the queue.
    pub(crate) fn fail_receive(&self, wr: &RecvWr, status: WcStatus) {
        let wc = Wc::failed(wr.id, status, WcOpcode::Recv, self.number);
        let _lost_is_flagged = self.recv_cq.push(wc);
        self.recv_completed();
    }

    /// Fails every send request that the engine has not taken: `first` for the oldest.
    pub(crate) fn flush_posted_sends(&self, first: WcStatus) {
        let mut status = first;
        while let Some(wr) = self.sq.pop() {
            self.fail_send(&wr, status);
            status = WcStatus::WrFlushErr;
        }
    }

    /// Fails every receive request that the engine has not taken: `first` for the oldest.
    pub(crate) fn flush_posted_receives(&self, first: WcStatus) {
        let mut status = first;
        while let Some(wr) = self.rq.pop() {
            self.fail_receive(&wr, status);
            status = WcStatus::WrFlushErr;
        }
    }

    /// A send request has completed: its place in the queue is free.
    pub(crate) fn send_completed(&self) {
        self.sq_outstanding.fetch_sub(1, Ordering::Release);
    }

    /// A receive request has completed: its place in the queue is free.
    pub(crate) fn recv_completed(&self) {
        self.rq_outstanding.fetch_sub(1, Ordering::Release);
    }
}

/// A queue pair: the application's end of one RDMAP stream.
///
/// Handles are references and may be used from several threads; requests posted from one thread
/// are processed in order.
#[derive(Clone, Debug)]
pub struct Qp {
    pub(crate) shared: Arc<QpShared>,
}

impl Qp {
    pub(crate) fn new(rnic: &RnicShared, pd: PdNum, config: QpConfig) -> Result<Self, QpError> {
        for depth in [config.send_depth, config.recv_depth] {
            if !(1..=QP_DEPTH_MAX).contains(&depth) {
                return Err(QpError::Depth(depth));
            }
        }
        let QpConfig { send_cq, recv_cq, send_depth, recv_depth } = config;
        Ok(Self {
            shared: Arc::new(QpShared {
                number: QpNum(rnic.qp_next.fetch_add(1, Ordering::Relaxed)),
                pd,
                send_cq,
                recv_cq,
                sq: ArrayQueue::new(send_depth),
                rq: ArrayQueue::new(recv_depth),
                sq_outstanding: AtomicUsize::new(0),
                rq_outstanding: AtomicUsize::new(0),
                state: AtomicU8::new(QpState::Init as u8),
                bell: OnceLock::new(),
            }),
        })
    }

    /// The queue pair's number.
    #[must_use]
    pub fn number(&self) -> QpNum {
        self.shared.number
    }

    /// Its state now.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Posts a request to the send queue.
    ///
    /// The memory it names belongs to the engine until the request completes: changing it
    /// meanwhile sends undefined octets, though never anything else (RFC 5040 §5.5 rule 8).
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        let state = self.shared.state();
        if state != QpState::Rts {
            return Err(PostError::State(state));
        }
        check_send(&wr)?;
        reserve(&self.shared.sq_outstanding, self.shared.sq.capacity())?;
        let pushed = self.shared.sq.push(wr);
        assert!(pushed.is_ok(), "the queue has room for every reserved place");
        if let Some(bell) = self.shared.bell.get() {
            bell.press();
        }
        // The engine may have flushed between the check above and the push.
        if self.shared.state() == QpState::Error {
            self.shared.flush_posted_sends(WcStatus::WrFlushErr);
        }
        Ok(())
    }

    /// Posts a buffer to the receive queue.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        let state = self.shared.state();
        if matches!(state, QpState::Closing | QpState::Error) {
            return Err(PostError::State(state));
        }
        if wr.sges.iter().any(|sge| !sge.writable) {
            return Err(PostError::Scatter);
        }
        if wr.len() > u64::from(u32::MAX) {
            return Err(PostError::TooLong(wr.len()));
        }
        reserve(&self.shared.rq_outstanding, self.shared.rq.capacity())?;
        let pushed = self.shared.rq.push(wr);
        assert!(pushed.is_ok(), "the queue has room for every reserved place");
        // As for sends: nobody else may be left to flush it.
        if self.shared.state() == QpState::Error {
            self.shared.flush_posted_receives(WcStatus::WrFlushErr);
        }
        Ok(())
    }
}

/// Takes one of `depth` places, or says that there is none.
fn reserve(outstanding: &AtomicUsize, depth: usize) -> Result<(), PostError> {
    outstanding
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < depth).then_some(n + 1))
        .map(drop)
        .map_err(|_| PostError::Full)
}

fn check_send(wr: &SendWr) -> Result<(), PostError> {
    let len = wr.len();
    // RFC 5041 §5.2: a ULP message is shorter than 2^32 octets.
    if len > u64::from(u32::MAX) {
        return Err(PostError::TooLong(len));
    }
    let fits = match wr.op {
        SendOp::Send { .. } | SendOp::RdmaWrite { .. } => true,
        // RFC 5040 §5.2.2: one Response writes one tagged buffer.
        SendOp::RdmaRead { .. } => wr.sges.len() == 1 && wr.sges[0].writable,
        SendOp::Immediate { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::CmpSwap { .. }
        | SendOp::LocalInvalidate { .. } => wr.sges.is_empty(),
    };
    if fits { Ok(()) } else { Err(PostError::Scatter) }
}
