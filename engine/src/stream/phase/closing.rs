//! How a stream ends: in order, by an error of either end, or with its connection.

use std::collections::VecDeque;

use crate::limits::FLUSHED_BYTES_KEPT_MAX;
use crate::mem::TableLease;
use crate::stream::error::{StreamError, status_of_terminate};
use crate::stream::life::{Row, Told};
use crate::stream::phase::{Ended, Phase, StartupFailure};
use crate::stream::{Stream, StreamEvent};
use crate::verbs::calls::HeldCalls;
use crate::verbs::{QpRules, QpState, WcStatus};
use crate::wire::terminate::Terminate;

impl Stream {
    /// The application closes the stream: what was posted is finished, nothing new is taken. A
    /// startup that is not done is given up.
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

    /// The program takes its queue pair back: when this returns, no memory that the queue pair names is
    /// read or written any more, though the connection goes on until what was sent is delivered, and
    /// closes in order. Work that had not completed fails.
    pub(crate) fn release_qp(&mut self) {
        match &mut self.phase {
            Phase::Full(full) => {
                full.tx.abandon_message();
                full.tx.messages.stop();
                full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
            }
            // It has failed, and its work with it: what is still sent was kept then.
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

    /// The peer has closed its half, after everything it sent was delivered.
    pub(crate) fn peer_closed(&mut self) {
        let (silenced, told) = (self.is_silenced(), self.told(|row| row.peer_closes));
        self.peer_closed = true;
        match told {
            Told::Nothing | Told::Failed => return,
            Told::StartupFailed => return self.startup_failed(StartupFailure::ConnectionLost),
            Told::PeerClosed => self.events.push_back(StreamEvent::PeerClosed),
        }
        let Some(full) = self.phase.full_mut() else { return };
        // RFC 5041 §6.2.1: this end may go on sending. Nothing more can be received, so
        // receives are flushed, and Reads that await a Response never get one. Messages that came
        // before and wait for receives are still delivered, until this end closes too.
        if full.qp.rules == QpRules::Iwarp && !full.rx.receive_queue.is_waiting() {
            full.rx.receive_queue.fail(&full.qp, WcStatus::WrFlushErr);
        }
        // A peer that ends in the middle of an FPDU did not close in order either, and one
        // that never sent an FPDU keeps a responder from ever sending.
        let whole = full.mpa.bytes_held() == 0;
        if !whole || silenced || !full.tx.messages.peer_closed() {
            self.give_up();
        } else if !full.tx.complete_answered(&full.qp) {
            self.fail(StreamError::CompletionQueueOverflow);
        }
    }

    /// Receives may have been posted for messages that wait: delivers those.
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
                    && full.qp.rules == QpRules::Iwarp
                    && !full.rx.receive_queue.is_waiting() =>
            {
                full.rx.receive_queue.fail(&full.qp, WcStatus::WrFlushErr);
            }
            Ok(()) => {}
            Err(ended) => self.end_full(ended),
        }
        self.reset_if_speechless();
    }

    /// What the table has for an event that is told; nothing when the lower layer is gone.
    fn told(&self, of: impl FnOnce(Row) -> Told) -> Told {
        self.stage().map_or(Told::Nothing, |stage| of(stage.row()))
    }

    /// Both directions were closed in order.
    pub(crate) fn connection_closed(&mut self) {
        if matches!(self.phase, Phase::Full(_)) && self.closing {
            self.phase.end();
        }
        self.connection_lost();
    }

    /// The lower layer is gone.
    pub(crate) fn connection_lost(&mut self) {
        self.give_up();
        self.gone = true;
    }

    /// All work fails, and this end closes.
    pub(in crate::stream) fn give_up(&mut self) {
        if self.lost || self.wants_retry() {
            return;
        }
        self.lost = true;
        match self.told(|row| row.lost) {
            Told::StartupFailed => self.startup_failed(StartupFailure::ConnectionLost),
            Told::Failed => {
                // What waited for an answer does not keep this end from closing.
                if let Some(full) = self.phase.full_mut() {
                    full.tx.abandon_message();
                    full.tx.messages.stop();
                }
                self.flush(WcStatus::RetryExcErr, WcStatus::WrFlushErr);
                self.events.push_back(StreamEvent::Failed(StreamError::ConnectionLost));
                self.phase.end();
            }
            Told::Nothing | Told::PeerClosed => {}
        }
        self.closing = true;
        if !self.wants_retry() {
            self.flush(WcStatus::WrFlushErr, WcStatus::WrFlushErr);
        }
    }

    /// Full operation ends with what was received.
    #[cold]
    pub(in crate::stream) fn end_full(&mut self, ended: Ended) {
        match ended {
            Ended::Lost => self.give_up(),
            Ended::PeerTerminated => self.peer_terminated(),
            Ended::Failed(error) => self.fail(error),
        }
    }

    /// This end found an error: tell the peer, flush everything, close.
    #[cold]
    pub(in crate::stream) fn fail(&mut self, error: StreamError) {
        let Some(full) = self.phase.full_mut() else { return };
        // RFC 5040 §7.1: the Terminate is sent at the first chance; RFC 5041 §7.1: the rest of
        // what arrives is dropped silently.
        full.tx.abandon_message();
        full.rx.access_refused |= error.is_access_refusal();
        let fault = full.rx.fault.take();
        let about = || error.terminate_code().map(|code| Box::new(Terminate::new(code)));
        let terminate = fault.or_else(about);
        let code = terminate.as_ref().map(|terminate| tracing::field::display(terminate.code));
        let qp = full.qp.number.0;
        tracing::warn!(target: "urnic::stream", qp, %error, terminate = code, "the stream fails");
        if let Some(terminate) = terminate {
            full.tx.messages.terminate(terminate);
        }
        // What was sent and is missing at the peer has to go before the Terminate.
        full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
        self.phase.end();
        self.closing = true;
        self.flush(WcStatus::WrFlushErr, error.receive_status());
        self.events.push_back(StreamEvent::Failed(error));
    }

    /// The peer's Terminate was delivered: nothing outstanding will succeed.
    fn peer_terminated(&mut self) {
        let Some(full) = self.phase.full_mut() else { return };
        let Some(terminate) = full.rx.peer_terminate.take() else { return };
        let (qp, code) = (full.qp.number.0, terminate.code);
        let text = code.text();
        tracing::warn!(target: "urnic::stream", qp, %code, text, "the peer terminates the stream");
        full.tx.abandon_message();
        full.tx.messages.stop();
        full.tx.keep_requests(FLUSHED_BYTES_KEPT_MAX);
        self.phase.end();
        // RFC 5040 §6.2.1: a graceful close is preferred after a Terminate.
        self.closing = true;
        self.flush(status_of_terminate(code), WcStatus::WrFlushErr);
        self.events.push_back(StreamEvent::Terminated(*terminate));
    }

    /// Completes all outstanding work with errors.
    pub(super) fn flush(&mut self, first_send: WcStatus, first_receive: WcStatus) {
        if let Some(full) = self.phase.full_mut() {
            full.qp.set_state(QpState::Error);
            // Their memory is the program's again: what was not kept is never retransmitted.
            full.tx.keep_requests(0);
            full.tx.messages.send_queue.fail(&full.qp, first_send);
            full.rx.receive_queue.fail(&full.qp, first_receive);
            full.qp.flushed();
        } else if let Some(qp) = self.phase.qp() {
            qp.attempt_failed(first_send, first_receive);
        }
    }

    /// A request of the peer, or an error, that came after our FIN: it can neither be answered nor
    /// told any more, and a peer that awaits the answer must not wait for ever.
    pub(in crate::stream) fn reset_if_speechless(&mut self) {
        if !self.sending_closed {
            return;
        }
        let Some(full) = self.phase.full_mut() else { return };
        // A peer that asks whether its Writes were placed learns from our FIN that it is not told any more.
        full.tx.messages.forget_empty_answers();
        if full.tx.messages.owes() {
            self.reset();
        }
    }

    /// All work fails, and the lower layer is to reset the connection: there is no other way to say
    /// anything.
    pub(super) fn reset(&mut self) {
        self.give_up();
        self.reset = true;
    }

    /// Gives back all memory: the connection is over for the application, though TCP keeps its
    /// addresses for a while.
    pub(crate) fn retire(&mut self) {
        self.streaming_tx = Vec::new();
        self.streaming_rx = VecDeque::new();
        self.phase = Phase::Over;
    }
}
