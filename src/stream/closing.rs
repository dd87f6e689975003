//! Closing while the peer is silent: how long a stream that was told to close waits for it.

use crate::limits::{CLOSE_SILENCE_NS, MPA_FIRST_FPDU_TIMEOUT_NS};
use crate::stream::{Phase, Stream};
use crate::time::Instant;

impl Stream {
    /// Sees to it that a stream that is to close, and cannot yet, does not wait for ever.
    ///
    /// RFC 5041 §6.2.1 wants what was posted to be done before the close. Where all that is left is
    /// to wait for the peer, no timer of TCP finds out that it has gone:
    /// - RFC 5044 §7.1.2 (4) forbids a responder to send before the initiator's first FPDU. To flush
    ///   at once would lose what was posted to one whose first FPDU is under way.
    /// - The Response to a Read may stay away though the request was acknowledged.
    pub(crate) fn limit_close(&mut self, now: Instant) {
        if self.closing && self.silent_until.is_none() {
            self.extend_silence(now);
        }
    }

    fn extend_silence(&mut self, now: Instant) {
        let limit_ns =
            if self.is_silenced() { MPA_FIRST_FPDU_TIMEOUT_NS } else { CLOSE_SILENCE_NS };
        self.silent_until = Some(now.plus_nanos(limit_ns));
        self.fpdus_before = self.fpdus_so_far();
    }

    fn fpdus_so_far(&self) -> (u64, u64) {
        (self.mpa_counters().fpdus, self.fpdus_framed())
    }

    /// Gives up a peer that keeps this end from closing, and has said nothing for too long.
    pub(super) fn end_silence(&mut self, now: Instant) {
        let stuck = self.fpdus_before == self.fpdus_so_far() && self.awaits_response();
        if self.is_silenced() || stuck {
            self.connection_lost();
        } else {
            self.extend_silence(now);
        }
    }

    /// Whether all that was sent was delivered, and a Response is still to come.
    fn awaits_response(&self) -> bool {
        self.full
            .as_ref()
            .is_some_and(|full| full.tx.all_acknowledged() && !full.tx.messages.requester.is_idle())
    }

    /// Whether there is work that waits for the initiator's first FPDU.
    pub(super) fn is_silenced(&self) -> bool {
        match (&self.phase, &self.full, &self.qp) {
            (Phase::Full, Some(full), Some(qp)) => !full.tx_unlocked && !full.tx.is_idle(qp),
            _ => false,
        }
    }

    /// When a peer that keeps this end from closing is given up.
    pub(super) fn silence_end(&self) -> Option<Instant> {
        self.silent_until.filter(|_| !self.wants_close())
    }
}
