//! End of a stream: in order, by an error of either end, or with its connection.

use std::collections::VecDeque;

use crate::limits::FLUSHED_BYTES_KEPT_MAX;
use crate::mem::TableLease;
use crate::stream::error::{StreamError, status_of_terminate};
use crate::stream::life::{Notice, Row};
use crate::stream::phase::{Early, Ended, Phase, StartupFailure};
use crate::stream::{Stream, StreamEvent};
use crate::verbs::calls::HeldCalls;
use crate::verbs::{QpState, WcStatus};
use crate::wire::ddp::DdpHeader;
use crate::wire::terminate::Terminate;

impl Stream {
    /// Posted work is finished, new work is refused. A startup in progress is given up.
    // spec: DDP-6.2.1-1
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.give_up_retry();
        if !matches!(self.phase, Phase::Streaming) && self.is_starting() {
            self.startup_failed(StartupFailure::ConnectionLost);
        }
        if let Some(qp) = self.phase.qp()
            && qp.state() == QpState::Rts
        {
            qp.set_state(QpState::Closing);
        }
    }

    /// Takes the queue pair from the stream. After the return, no memory that it names is read or
    /// written. The connection continues until the sent bytes are delivered. Work that had not
    /// completed fails.
    pub(crate) fn release_qp(&mut self) {
        match &mut self.phase {
            Phase::Full(full) => {
                full.tx.abandon_message();
                full.tx.messages.stop();
                full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
            }
            // The stream has failed. Its work was flushed and the bytes still to send were kept.
            Phase::Ending(_) => return,
            _ => {
                if let Some(qp) = self.phase.qp() {
                    qp.end_attempts();
                }
                return self.close();
            }
        }
        self.phase.end();
        self.closing = true;
        self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
    }

    /// After everything that the peer sent was delivered.
    // spec: DDP-3-9, MPA-7.2-2
    pub(crate) fn peer_closed(&mut self) {
        let (silenced, notice) = (self.is_silenced(), self.notice(|row| row.peer_closes));
        self.peer_closed = true;
        match notice {
            Notice::Nothing | Notice::Failed => return,
            Notice::StartupFailed => return self.startup_failed(StartupFailure::ConnectionLost),
            Notice::PeerClosed => self.events.push_back(StreamEvent::PeerClosed),
        }
        let Some(full) = self.phase.full_mut() else { return };
        // RFC 5041 §6.2.1: this end may continue to send, but receives are flushed, and Reads never
        // get a Response. Messages that arrived before and wait for receives are still delivered.
        // spec: DDP-6.2.1-3
        if full.qp.rules.is_iwarp() && !full.rx.receive_queue.is_waiting() {
            full.rx.receive_queue.fail(&full.qp, WcStatus::WrFlushErr);
        }
        // A peer that stops in the middle of an FPDU did not close in order. One that never sent an
        // FPDU keeps a responder from ever sending.
        let whole = full.mpa.bytes_held() == 0;
        if !whole || silenced || !full.tx.messages.peer_closed() {
            self.give_up();
        } else if !full.tx.complete_answered(&full.qp) {
            self.fail(StreamError::CompletionQueueOverflow);
        }
    }

    #[inline]
    pub(crate) fn deliver_held(&mut self) {
        if let Phase::Full(full) = &self.phase
            && full.rx.receive_queue.is_waiting()
        {
            self.deliver_waiting();
        }
    }

    #[cold]
    fn deliver_waiting(&mut self) {
        let rnic = self.rnic();
        let _until_the_lease_is_closed = HeldCalls::new();
        let mut lease = TableLease::new(&rnic.table);
        let Phase::Full(full) = &mut self.phase else { return };
        match full.deliver_held(&rnic, &mut lease) {
            Ok(())
                if self.peer_closed
                    && full.qp.rules.is_iwarp()
                    && !full.rx.receive_queue.is_waiting() =>
            {
                full.rx.receive_queue.fail(&full.qp, WcStatus::WrFlushErr);
            }
            Ok(()) => {}
            Err(ended) => self.end_full(ended),
        }
        self.reset_if_speechless();
    }

    /// Returns the entry that `of` selects in the current stage's row.
    fn notice(&self, of: impl FnOnce(Row) -> Notice) -> Notice {
        self.stage().map_or(Notice::Nothing, |stage| of(stage.row()))
    }

    pub(crate) fn connection_closed(&mut self) {
        if matches!(self.phase, Phase::Full(_)) && self.closing {
            self.phase.end();
        }
        self.connection_lost();
    }

    pub(crate) fn connection_lost(&mut self) {
        self.give_up();
        self.gone = true;
    }

    pub(crate) fn connection_refused(&mut self) {
        self.give_up_for(StartupFailure::Refused);
        self.gone = true;
    }

    pub(crate) fn connection_unreachable(&mut self) {
        self.give_up_for(StartupFailure::Unreachable);
        self.gone = true;
    }

    pub(in crate::stream) fn give_up(&mut self) {
        self.give_up_for(StartupFailure::ConnectionLost);
    }

    // spec: DDP-3-3, DDP-6.2.2-1
    fn give_up_for(&mut self, failure: StartupFailure) {
        if self.lost || self.wants_retry() {
            return;
        }
        self.lost = true;
        match self.notice(|row| row.lost) {
            Notice::StartupFailed => self.startup_failed(failure),
            Notice::Failed => {
                // Work that awaited an answer must not keep this end from closing.
                if let Some(full) = self.phase.full_mut() {
                    full.tx.abandon_message();
                    full.tx.messages.stop();
                }
                self.flush(WcStatus::RetryExcErr, WcStatus::WrFlushErr);
                self.events.push_back(StreamEvent::Failed(StreamError::ConnectionLost));
                self.phase.end();
            }
            Notice::Nothing | Notice::PeerClosed => {}
        }
        self.closing = true;
        if !self.wants_retry() {
            self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
        }
    }

    #[cold]
    pub(in crate::stream) fn end_full(&mut self, ended: Ended) {
        match ended {
            Ended::Lost => self.give_up(),
            Ended::PeerTerminated => self.peer_terminated(),
            Ended::Failed(error) => self.fail(error),
        }
    }

    /// Handles an error that this end found: sends a Terminate, flushes all work, closes.
    #[cold]
    pub(in crate::stream) fn fail(&mut self, error: StreamError) {
        let Some(full) = self.phase.full_mut() else { return };
        // RFC 5040 §7.1: the Terminate is sent at the first opportunity. RFC 5041 §7.1: whatever
        // still arrives is dropped silently.
        full.tx.abandon_message();
        full.rx.access_refused |= error.is_access_refusal();
        let fault = full.rx.fault.take();
        let about = || error.terminate_code().map(|code| Box::new(Terminate::new(code)));
        let terminate = fault.or_else(about);
        let code = terminate.as_ref().map(|terminate| tracing::field::display(terminate.code));
        let qp = full.qp.number.0;
        tracing::warn!(target: "urnic::stream", qp, %error, terminate = code, "the stream fails");
        if let Some(terminate) = terminate {
            // spec: DDP-6.2.2-2, DDP-7.1-6, RDMAP-6.2-1, MPA-8-6
            full.tx.messages.terminate(terminate);
        }
        // Bytes that were sent and did not reach the peer must precede the Terminate.
        full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
        self.phase.end();
        self.closing = true;
        self.flush(WcStatus::WrFlushErr, error.receive_status());
        // spec: DDP-6.2.2-1, RDMAP-7.1-1
        self.events.push_back(StreamEvent::Failed(error));
    }

    /// Handles the peer's Terminate after its delivery: nothing outstanding will succeed.
    // spec: RDMAP-5.4-3, RDMAP-6.2-2
    fn peer_terminated(&mut self) {
        let Some(full) = self.phase.full_mut() else { return };
        let Some(terminate) = full.rx.peer_terminate.take() else { return };
        let (qp, code) = (full.qp.number.0, terminate.code);
        let text = code.text();
        tracing::warn!(target: "urnic::stream", qp, %code, text, "the peer terminates the stream");
        full.tx.abandon_message();
        full.tx.messages.stop();
        full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
        if let Some(header) = &terminate.ddp_header
            && let Ok(DdpHeader::Tagged(header)) = DdpHeader::parse(header)
        {
            full.tx.messages.send_queue.refused_at(header.stag, header.to);
        }
        self.phase.end();
        // RFC 5040 §6.2.1: a graceful close is preferred after a Terminate.
        // spec: RDMAP-6.2-3
        self.closing = true;
        self.flush(status_of_terminate(code), WcStatus::WrFlushErr);
        self.events.push_back(StreamEvent::Terminated(*terminate));
    }

    // spec: RDMAP-5.4-4
    pub(super) fn flush(&mut self, first_send: WcStatus, first_receive: WcStatus) {
        if let Some(full) = self.phase.full_mut() {
            full.qp.set_state(QpState::Error);
            // The memory belongs to the application again: bytes not kept are never retransmitted.
            full.tx.keep_requests(0);
            full.tx.messages.send_queue.fail(&full.qp, first_send);
            full.rx.receive_queue.fail(&full.qp, first_receive);
            full.qp.flushed();
        } else if let Some(qp) = self.phase.qp() {
            qp.attempt_failed(first_send, first_receive);
        }
    }

    /// Resets the connection if a request of the peer, or an error, came after this end's FIN: no
    /// answer or Terminate can be sent, and the peer must not wait for ever.
    pub(in crate::stream) fn reset_if_speechless(&mut self) {
        if !self.sending_closed {
            return;
        }
        let Some(full) = self.phase.full_mut() else { return };
        // The FIN tells a peer that asks by an empty Read that no answer comes.
        full.tx.messages.forget_empty_answers();
        if full.tx.messages.owes() {
            self.reset();
        }
    }

    pub(super) fn reset(&mut self) {
        self.give_up();
        self.reset = true;
    }

    pub(crate) fn retire(&mut self) {
        self.streaming_tx = Vec::new();
        self.streaming_rx = VecDeque::new();
        self.early = Early::default();
        self.phase = Phase::Over;
    }
}
