//! CUBIC (RFC 9438). Windows are kept in bytes; the curve is computed in segments.

use super::hystart::{Growth, HyStart};
use super::{AckSample, Controller};
use crate::time::Instant;

/// RFC 9438 §5: "C SHOULD be set to 0.4".
const C: f64 = 0.4;
/// RFC 9438 §4.6: multiplicative decrease factor.
const BETA: f64 = 0.7;
/// RFC 9438 §4.3: α of the Reno-friendly region.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Cap of cwnd: no window is larger.
const CWND_MAX: f64 = (1_u64 << 40) as f64;

#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Cubic {
    epoch: Option<Epoch>,
    cwnd: f64,
    /// Bytes; infinite before the first loss.
    ssthresh: f64,
    emss: f64,
    /// The retransmission timer expired, and congestion avoidance has not begun since.
    after_timeout: bool,
    initial_window: f64,
    /// W_max: the window before the last reduction, or less (fast convergence), in segments.
    w_max: f64,
    /// Window before the reduction that began this epoch, in segments.
    cwnd_prior: f64,
    hystart: HyStart,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// Start time, moved forward by the time that cwnd did not limit sending (RFC 9438 §5.8).
    start: Instant,
    last_ack: Instant,
    /// Window at which the curve is flat, in segments: the window before the reduction, or that of
    /// the start if it is larger.
    w_max: f64,
    /// Seconds until the curve reaches `w_max`.
    k: f64,
    /// Window that Reno would have, in segments.
    w_est: f64,
}

impl Cubic {
    pub(crate) fn new(emss: u32, initial_window: u64) -> Self {
        Self {
            cwnd: octets(initial_window),
            ssthresh: f64::INFINITY,
            emss: f64::from(emss),
            initial_window: octets(initial_window),
            w_max: 0.0,
            cwnd_prior: 0.0,
            epoch: None,
            after_timeout: false,
            hystart: HyStart::new(),
        }
    }

    /// RFC 5681 §3.1, the first time with HyStart++ (RFC 9438 §4.10). Returns the acknowledged
    /// bytes that are left for congestion avoidance.
    fn slow_start(&mut self, ack: &AckSample) -> f64 {
        let acked = octets(ack.acked_bytes);
        if self.ssthresh.is_finite() {
            let room = (self.ssthresh - self.cwnd).max(0.0);
            if acked < room {
                self.cwnd += acked;
                return 0.0;
            }
            self.cwnd = self.cwnd.max(self.ssthresh);
            return acked - room;
        }
        match self.hystart.on_ack(ack) {
            Growth::Add(added) => self.cwnd += octets(added),
            // §4.10: "CUBIC MUST use the current cwnd as W_max", with K = 0.
            Growth::Leave => self.ssthresh = self.cwnd,
        }
        0.0
    }

    /// RFC 9438 §4.2 to §4.5.
    fn avoid(&mut self, ack: &AckSample, acked: f64) {
        let cwnd = self.cwnd / self.emss;
        if std::mem::take(&mut self.after_timeout) {
            // §4.8: after a timeout, "K is set to 0, and W_max is set to the congestion window size
            // at the beginning of the current congestion avoidance stage".
            self.w_max = cwnd;
        }
        let w_max = self.w_max.max(cwnd);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            start: ack.now,
            last_ack: ack.now,
            w_max,
            k: ((w_max - cwnd) / C).cbrt(),
            w_est: cwnd,
        });
        epoch.last_ack = ack.now;
        let acked = acked / self.emss;
        // §4.3: α is 1 once the estimate reaches the window before the reduction.
        // spec: TCP-9438-2
        let alpha = if epoch.w_est >= self.cwnd_prior { 1.0 } else { ALPHA };
        epoch.w_est += alpha * acked / cwnd;
        let t = seconds(ack.now.nanos_since(epoch.start));
        // spec: TCP-9438-1
        let w_cubic = |t: f64| C * (t - epoch.k).powi(3) + epoch.w_max;
        if w_cubic(t) < epoch.w_est {
            self.cwnd = (epoch.w_est * self.emss).max(self.cwnd);
            return;
        }
        // §4.2: the target one round trip ahead, kept in [cwnd, 1.5·cwnd].
        let target = w_cubic(t + seconds(ack.srtt_ns.unwrap_or(0))).clamp(cwnd, 1.5 * cwnd);
        self.cwnd += (target - cwnd) / cwnd * acked * self.emss;
    }

    /// Reduces the window after a loss or a timeout (§4.6, §4.7).
    // spec: TCP-9438-3
    fn reduce(&mut self, flight: u64) {
        let cwnd = self.cwnd / self.emss;
        // §4.7 fast convergence: a window that did not get back to w_max is reduced further.
        // spec: TCP-9438-4
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        self.cwnd_prior = cwnd;
        self.ssthresh = (octets(flight) * BETA).max(2.0 * self.emss);
        self.epoch = None;
    }
}

impl Controller for Cubic {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between one EMSS and CWND_MAX"
    )]
    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive; the cast saturates"
    )]
    fn ssthresh(&self) -> u64 {
        self.ssthresh as u64
    }

    fn on_ack(&mut self, ack: &AckSample) {
        if ack.marked {
            return;
        }
        if !ack.cwnd_limited {
            if let Some(epoch) = &mut self.epoch {
                let idle_ns = ack.now.nanos_since(epoch.last_ack);
                epoch.start = epoch.start.plus_nanos(idle_ns);
                epoch.last_ack = ack.now;
            }
            return;
        }
        let left = self.slow_start(ack);
        if left > 0.0 {
            self.avoid(ack, left);
        }
        self.cwnd = self.cwnd.min(CWND_MAX);
    }

    fn on_loss(&mut self, _now: Instant, flight: u64) {
        self.reduce(flight);
        self.after_timeout = false;
        self.cwnd = self.ssthresh;
    }

    fn on_timeout(&mut self, _now: Instant, flight: u64, first: bool) {
        if first {
            self.reduce(flight);
        }
        self.cwnd = self.emss;
        self.after_timeout = true;
        self.epoch = None;
    }

    fn on_idle(&mut self) {
        self.cwnd = self.cwnd.min(self.initial_window);
        self.epoch = None;
    }

    fn set_emss(&mut self, emss: u32) {
        let ratio = self.emss / f64::from(emss);
        self.w_max *= ratio;
        self.cwnd_prior *= ratio;
        self.emss = f64::from(emss);
        self.cwnd = self.cwnd.max(self.emss);
        self.epoch = None;
    }

    fn boxed_clone(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

#[expect(clippy::cast_precision_loss, reason = "windows are far below 2^52 bytes")]
const fn octets(octets: u64) -> f64 {
    octets as f64
}

#[expect(clippy::cast_precision_loss, reason = "a duration's last digits do not matter")]
const fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
