//! Congestion control: how many bytes may be in the network.
//!
//! A controller receives acknowledgments and losses and provides `cwnd`. The sender decides which
//! segments are lost, and when a recovery begins and ends. All windows are in bytes; records may be
//! shorter than the EMSS, so nothing counts segments (RFC 5044 appendix B.2.2).

mod cubic;
mod dctcp;
mod hystart;
mod new_reno;

pub(crate) use cubic::Cubic;
pub(crate) use dctcp::Dctcp;
pub(crate) use new_reno::NewReno;

use super::config::CongestionKind;
use crate::time::Instant;

/// Input of a controller for an acknowledgment of new data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSample {
    pub(crate) now: Instant,
    /// Bytes acknowledged for the first time.
    // spec: TCP-A.2-4
    pub(crate) acked_bytes: u64,
    /// Smoothed round-trip time.
    pub(crate) srtt_ns: Option<u64>,
    /// Round-trip time that this acknowledgment measured.
    pub(crate) rtt_ns: Option<u64>,
    /// SND.UNA and SND.NXT after it.
    pub(crate) una: u64,
    pub(crate) nxt: u64,
    /// The acknowledgment carried ECE: the network is congested.
    pub(crate) marked: bool,
    /// `cwnd` limited sending; if it did not, `cwnd` does not grow (RFC 9438 §5.8).
    pub(crate) cwnd_limited: bool,
}

/// A congestion controller.
pub(crate) trait Controller {
    /// The congestion window.
    fn cwnd(&self) -> u64;
    /// The slow start threshold.
    fn ssthresh(&self) -> u64;
    /// Reacts to new data acknowledged outside of fast recovery.
    fn on_ack(&mut self, ack: &AckSample);
    /// Reacts to a loss detected by acknowledgments; `flight` bytes were in flight. Once per
    /// recovery.
    fn on_loss(&mut self, now: Instant, flight: u64);
    /// Reacts to marks of a congested router that the peer echoed; `flight` bytes were in flight.
    /// Once per window.
    fn on_mark(&mut self, now: Instant, flight: u64) {
        // RFC 3168 §6.1.2: "essentially the same as the congestion control response to a *single*
        // dropped packet".
        self.on_loss(now, flight);
    }
    /// Reacts to an expired retransmission timer; `first`: the first time for this data.
    fn on_timeout(&mut self, now: Instant, flight: u64, first: bool);
    /// Reacts to silence: nothing was sent for a retransmission timeout (RFC 5681 §4.1).
    fn on_idle(&mut self);
    /// Updates the effective MSS.
    fn set_emss(&mut self, emss: u32);
}

/// The available controllers.
#[derive(Clone, Debug)]
pub(crate) enum Congestion {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
}

impl Congestion {
    /// Bytes at the start of the enum that each acknowledgment needs: the epoch, and the window.
    pub(in crate::tcp) const HOT_HEAD: usize = 64;

    /// A controller in slow start with an initial window of `initial_window` bytes.
    pub(crate) fn new(kind: CongestionKind, emss: u32, initial_window: u64) -> Self {
        match kind {
            CongestionKind::NewReno => Self::NewReno(NewReno::new(emss, initial_window)),
            CongestionKind::Cubic => Self::Cubic(Cubic::new(emss, initial_window)),
            CongestionKind::Dctcp => Self::Dctcp(Dctcp::new(emss, initial_window)),
        }
    }

    fn inner(&self) -> &dyn Controller {
        match self {
            Self::NewReno(controller) => controller,
            Self::Cubic(controller) => controller,
            Self::Dctcp(controller) => controller,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Controller {
        match self {
            Self::NewReno(controller) => controller,
            Self::Cubic(controller) => controller,
            Self::Dctcp(controller) => controller,
        }
    }
}

impl Controller for Congestion {
    fn cwnd(&self) -> u64 {
        match self {
            Self::NewReno(controller) => controller.cwnd(),
            Self::Cubic(controller) => controller.cwnd(),
            Self::Dctcp(controller) => controller.cwnd(),
        }
    }

    fn ssthresh(&self) -> u64 {
        self.inner().ssthresh()
    }

    fn on_ack(&mut self, ack: &AckSample) {
        match self {
            Self::NewReno(controller) => controller.on_ack(ack),
            Self::Cubic(controller) => controller.on_ack(ack),
            Self::Dctcp(controller) => controller.on_ack(ack),
        }
    }

    fn on_loss(&mut self, now: Instant, flight: u64) {
        self.inner_mut().on_loss(now, flight);
    }

    fn on_mark(&mut self, now: Instant, flight: u64) {
        self.inner_mut().on_mark(now, flight);
    }

    fn on_timeout(&mut self, now: Instant, flight: u64, first: bool) {
        self.inner_mut().on_timeout(now, flight, first);
    }

    fn on_idle(&mut self) {
        self.inner_mut().on_idle();
    }

    fn set_emss(&mut self, emss: u32) {
        self.inner_mut().set_emss(emss);
    }
}

/// Returns the initial window in bytes: RFC 6928 §2, or `segments` of `emss` if given.
pub(crate) fn initial_window(emss: u32, segments: Option<u16>) -> u64 {
    let emss = u64::from(emss);
    match segments {
        Some(segments) => emss * u64::from(segments.max(1)),
        // "min (10*MSS, max (2*MSS, 14600))"
        None => (10 * emss).min((2 * emss).max(INITIAL_WINDOW_BYTES)),
    }
}

const INITIAL_WINDOW_BYTES: u64 = 14_600;

#[cfg(test)]
mod tests;
