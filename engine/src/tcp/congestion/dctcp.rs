//! DCTCP (RFC 8257): the window shrinks by the share of bytes that met congestion.

use super::{AckSample, Controller, NewReno};
use crate::time::Instant;

/// RFC 8257 §4.2: the estimation gain g.
const GAIN: f64 = 1.0 / 16.0;

/// The controller of RFC 8257. Without marks it is NewReno.
#[derive(Clone, Debug)]
pub(crate) struct Dctcp {
    reno: NewReno,
    /// "DCTCP.Alpha": estimated share of marked bytes.
    alpha: f64,
    /// Bytes acknowledged in this window, and how many of them carried ECE.
    acked_bytes: u64,
    marked_bytes: u64,
    /// "DCTCP.WindowEnd".
    window_end: u64,
}

impl Dctcp {
    pub(crate) fn new(emss: u32, initial_window: u64) -> Self {
        let reno = NewReno::new(emss, initial_window);
        // §4.2: the first reduction equals that of a loss.
        Self { reno, alpha: 1.0, acked_bytes: 0, marked_bytes: 0, window_end: 0 }
    }

    /// "DCTCP.Alpha = DCTCP.Alpha * (1 - g) + g * M", once per window (RFC 8257 §3.3).
    fn estimate(&mut self, ack: &AckSample) {
        self.acked_bytes += ack.acked_bytes;
        self.marked_bytes += if ack.marked { ack.acked_bytes } else { 0 };
        if ack.una > self.window_end {
            let share = share(self.marked_bytes, self.acked_bytes);
            self.alpha = self.alpha * (1.0 - GAIN) + GAIN * share;
            self.acked_bytes = 0;
            self.marked_bytes = 0;
            self.window_end = ack.nxt;
        }
    }
}

impl Controller for Dctcp {
    fn cwnd(&self) -> u64 {
        self.reno.cwnd()
    }

    fn ssthresh(&self) -> u64 {
        self.reno.ssthresh()
    }

    fn on_ack(&mut self, ack: &AckSample) {
        self.estimate(ack);
        if !ack.marked {
            self.reno.on_ack(ack);
        }
    }

    fn on_loss(&mut self, now: Instant, flight: u64) {
        self.reno.on_loss(now, flight);
    }

    fn on_mark(&mut self, _now: Instant, _flight: u64) {
        // §3.3: "cwnd = cwnd * (1 - DCTCP.Alpha / 2)".
        self.reno.scale(1.0 - self.alpha / 2.0);
    }

    fn on_timeout(&mut self, now: Instant, flight: u64, first: bool) {
        self.reno.on_timeout(now, flight, first);
    }

    fn on_idle(&mut self) {
        self.reno.on_idle();
    }

    fn set_emss(&mut self, emss: u32) {
        self.reno.set_emss(emss);
    }

    fn boxed_clone(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no further digits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
