//! Tail loss probe: asks for an acknowledgment of the last segment before the RTO (RFC 8985 §7).

use super::SendHalf;
use super::recovery::{Disorder, Recovery};
use crate::tcp::sack::Resend;
use crate::time::Instant;
use crate::types::StreamOffset;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossProbe {
    /// "TLP.end_seq": SND.NXT after it was sent.
    end: StreamOffset,
    /// "TLP.is_retrans": the probe repeated a segment, and was not new data.
    is_retransmission: bool,
}

/// A probe that must be sent because its timer expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProbeDue {
    #[default]
    No,
    NewData,
    /// A retransmission of the last segment.
    LastSegment,
}

/// RFC 8985 §7.2: the timeout before the first sample.
const WITHOUT_SAMPLE_NS: u64 = 1_000_000_000;
/// Shortest delay of an acknowledgment on a very short path that is worth a probe.
const SLACK_MIN_NS: u64 = 25_000;

impl SendHalf {
    /// SACK is in use, data in flight, no loss known, no probe unanswered (RFC 8985 §7.2).
    pub(crate) fn may_probe(&self) -> bool {
        self.has_sack()
            && self.loss_probe.is_none()
            && self.recovery == Recovery::Open
            && self.board.flight() > 0
            && self.board.is_plain()
    }

    /// RFC 8985 §7.2 waits two smoothed round trips after the last transmission or acknowledgment.
    /// Here: as long as the acknowledgment can take, SRTT and four times its variation after the
    /// last transmission (RFC 9002 §6.2.1), but at most 1.75 round trips, so that a repaired
    /// segment is acknowledged within three. After an acknowledgment, at least the variation.
    pub(crate) fn loss_probe_at(&self) -> Instant {
        let Some(srtt_ns) = self.rtt.srtt_ns() else {
            return self.last_sent.plus_nanos(WITHOUT_SAMPLE_NS);
        };
        let most_ns = (srtt_ns / 4 * 3).max(SLACK_MIN_NS);
        let slack_ns =
            self.rtt.variation_ns().saturating_mul(4).max(srtt_ns / 4).clamp(SLACK_MIN_NS, most_ns);
        // The acknowledgment of a single segment may be delayed; samples show that delay, too.
        let delay_ns = if self.board.is_single() { self.ack_delay_ns.min(srtt_ns / 8) } else { 0 };
        let after_sending = self.last_sent.plus_nanos(srtt_ns + slack_ns + delay_ns);
        after_sending.max(self.progress_at().plus_nanos(slack_ns))
    }

    /// New data is sent if there is any (RFC 8985 §7.3), else the last segment is retransmitted.
    /// Returns true if there is a probe to send.
    // spec: TCP-8985-3
    pub(crate) fn begin_loss_probe(&mut self) -> bool {
        // Nothing is sent beyond a window that shrank: the retransmission timer probes that.
        if !self.may_probe() || self.window_end() < self.board.nxt() {
            return false;
        }
        let has_data = self.starved && self.window_room() >= u64::from(self.emss());
        self.probe_due = if has_data { ProbeDue::NewData } else { ProbeDue::LastSegment };
        true
    }

    /// Returns true if the next result of [`resend`](Self::resend) is a probe, and repairs no loss.
    pub(crate) fn is_loss_probe_next(&self) -> bool {
        self.probe_due == ProbeDue::LastSegment && !self.board.has_unsent_loss()
    }

    pub(super) fn take_loss_probe(&mut self, now: Instant) -> Option<Resend> {
        self.probe_due = ProbeDue::No;
        // spec: TCP-8985-5
        let resend = self.board.resend_last(now, self.emss())?;
        self.note_loss_probe(true);
        Some(resend)
    }

    pub(super) fn note_loss_probe(&mut self, is_retransmission: bool) {
        self.probe_due = ProbeDue::No;
        self.loss_probe = Some(LossProbe { end: self.board.nxt(), is_retransmission });
    }

    /// Updates the probe's state from an acknowledgment (RFC 8985 §7.4.2 "TLP_process_ack").
    // spec: TCP-8985-4
    pub(super) fn end_loss_probe(
        &mut self,
        now: Instant,
        ack: &Disorder<'_>,
        sacked: u64,
        dsack: bool,
    ) {
        let Some(probe) = self.loss_probe else { return };
        let una = self.board.una();
        if una < probe.end {
            return;
        }
        let advanced = ack.acked.bytes > 0;
        if !probe.is_retransmission || dsack {
            // The probe was new data; or the original arrived as well.
            self.loss_probe = None;
        } else if una > probe.end {
            // The probe has repaired the loss of the original: the reduction is still due, "so that
            // TLP does not mask the loss".
            self.loss_probe = None;
            if self.recovery == Recovery::Open {
                self.congestion.on_loss(now, self.board.flight() + ack.acked.bytes);
            }
        } else if !advanced && sacked == 0 {
            // An acknowledgment for the original, and another for the probe.
            self.loss_probe = None;
        }
    }
}
