//! Slow start and congestion avoidance of RFC 5681.

use super::{AckSample, Controller};
use crate::time::Instant;

/// The controller of RFC 5681.
#[derive(Clone, Debug)]
pub(crate) struct NewReno {
    cwnd: u64,
    ssthresh: u64,
    /// Bytes acknowledged since `cwnd` last grew in congestion avoidance.
    acked_bytes: u64,
    emss: u64,
    initial_window: u64,
}

impl NewReno {
    pub(crate) fn new(emss: u32, initial_window: u64) -> Self {
        Self {
            cwnd: initial_window,
            ssthresh: u64::MAX,
            acked_bytes: 0,
            emss: u64::from(emss),
            initial_window,
        }
    }

    /// Multiplies the window; congestion avoidance continues from the result.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "between nothing and the window itself"
    )]
    pub(super) fn scale(&mut self, factor: f64) {
        self.cwnd = ((self.cwnd as f64 * factor) as u64).max(2 * self.emss);
        self.ssthresh = self.cwnd;
        self.acked_bytes = 0;
    }
}

impl Controller for NewReno {
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &AckSample) {
        if !ack.cwnd_limited || ack.marked {
            return;
        }
        // RFC 5681 §3.1 (2): "cwnd += min (N, SMSS)". An ACK for a super-frame counts as the ACKs
        // it replaces (RFC 3465 §2.2 with the acknowledged bytes as limit). Slow start ends at
        // ssthresh.
        // spec: TCP-5681-2
        let slow_start = ack.acked_bytes.min(self.ssthresh.saturating_sub(self.cwnd));
        self.cwnd = self.cwnd.saturating_add(slow_start);
        // RFC 5681 §3.1: one SMSS per cwnd acknowledged.
        self.acked_bytes += ack.acked_bytes - slow_start;
        if self.acked_bytes >= self.cwnd {
            self.acked_bytes -= self.cwnd;
            self.cwnd = self.cwnd.saturating_add(self.emss);
        }
    }

    fn on_loss(&mut self, _now: Instant, flight: u64) {
        // RFC 5681 §3.1 (4): "ssthresh = max (FlightSize / 2, 2*SMSS)".
        // spec: TCP-5681-3
        self.ssthresh = (flight / 2).max(2 * self.emss);
        self.cwnd = self.ssthresh;
        self.acked_bytes = 0;
    }

    fn on_timeout(&mut self, _now: Instant, flight: u64, first: bool) {
        // RFC 5681 §3.1: when the segment was already retransmitted by the timer, "the value of
        // ssthresh is held constant"; "cwnd MUST be set to no more than the loss window".
        // spec: TCP-5681-3
        if first {
            self.ssthresh = (flight / 2).max(2 * self.emss);
        }
        self.cwnd = self.emss;
        self.acked_bytes = 0;
    }

    fn on_idle(&mut self) {
        self.cwnd = self.cwnd.min(self.initial_window);
    }

    fn set_emss(&mut self, emss: u32) {
        self.emss = u64::from(emss);
        self.cwnd = self.cwnd.max(self.emss);
    }

    fn boxed_clone(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}
