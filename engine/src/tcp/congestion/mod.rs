//! Congestion control: how many bytes may be in the network. The sender decides which segments are
//! lost, and when a recovery begins and ends. All windows are in bytes; records may be shorter than
//! the EMSS, so nothing counts segments (RFC 5044 appendix B.2.2).

mod cubic;
mod dctcp;
mod hystart;
mod new_reno;

pub(crate) use cubic::Cubic;
pub(crate) use dctcp::Dctcp;
pub(crate) use new_reno::NewReno;

use std::fmt::Debug;
use std::mem::discriminant;
use std::ops::{Deref, DerefMut};
use std::ptr::fn_addr_eq;

use crate::time::Instant;

/// Congestion controller of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub enum CongestionKind {
    /// NewReno (RFC 5681 and RFC 6582).
    NewReno,
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// DCTCP (RFC 8257), for networks whose switches mark early. Needs ECN. Both ends must use it,
    /// because it echoes marks in another way than RFC 3168.
    Dctcp,
    /// A [`Controller`] from outside, made from the effective MSS and the initial window, in bytes,
    /// when a connection is established. Marks are echoed as RFC 3168 says.
    External(fn(u32, u64) -> Box<dyn Controller>),
}

impl PartialEq for CongestionKind {
    /// One function can have several addresses: then equal controllers may compare as different.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::External(a), Self::External(b)) => fn_addr_eq(*a, *b),
            _ => discriminant(self) == discriminant(other),
        }
    }
}

impl Eq for CongestionKind {}

/// Input of a controller for an acknowledgment of new data.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AckSample {
    /// Time of the acknowledgment.
    pub now: Instant,
    /// Bytes acknowledged for the first time.
    // spec: TCP-A.2-4
    pub acked_bytes: u64,
    /// Smoothed round-trip time.
    pub srtt_ns: Option<u64>,
    /// Round-trip time that this acknowledgment measured.
    pub rtt_ns: Option<u64>,
    /// SND.UNA after it, as an offset in the stream.
    pub una: u64,
    /// SND.NXT after it, as an offset in the stream.
    pub nxt: u64,
    /// The acknowledgment carried ECE: the network is congested.
    pub marked: bool,
    /// `cwnd` limited sending; if it did not, `cwnd` does not grow (RFC 9438 §5.8).
    pub cwnd_limited: bool,
}

/// A congestion controller.
///
/// [`CongestionKind::External`] takes one from outside of this crate:
///
/// ```
#[doc = include_str!("../../../examples/controller.rs")]
/// ```
pub trait Controller: Debug + Send {
    /// The congestion window, in bytes.
    fn cwnd(&self) -> u64;
    /// The slow start threshold, in bytes.
    fn ssthresh(&self) -> u64;
    /// Reacts to new data acknowledged outside of fast recovery.
    fn on_ack(&mut self, ack: &AckSample);
    /// Reacts to a loss found by acknowledgments, once per recovery; `flight` bytes were in flight.
    fn on_loss(&mut self, now: Instant, flight: u64);
    /// Reacts to echoed marks of a router, once per window; `flight` bytes were in flight.
    fn on_mark(&mut self, now: Instant, flight: u64) {
        // RFC 3168 §6.1.2: "essentially the same as the congestion control response to a *single*
        // dropped packet".
        self.on_loss(now, flight);
    }
    /// Reacts to an expired retransmission timer; `first`: the first time for this data.
    fn on_timeout(&mut self, now: Instant, flight: u64, first: bool);
    /// Reacts to silence: nothing was sent for a retransmission timeout (RFC 5681 §4.1).
    fn on_idle(&mut self);
    /// Updates the effective MSS, in bytes.
    fn set_emss(&mut self, emss: u32);
    /// Returns a copy, which replaces the controller if a reduction proves to have been spurious.
    fn boxed_clone(&self) -> Box<dyn Controller>;
}

#[derive(Clone, Debug)]
pub(crate) enum Congestion {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
    External(Box<dyn Controller>),
}

impl Clone for Box<dyn Controller> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

impl Congestion {
    /// Bytes that each acknowledgment needs: the epoch, and the window.
    pub(in crate::tcp) const HOT_HEAD: usize = 64;

    pub(crate) fn new(kind: CongestionKind, emss: u32, initial_window: u64) -> Self {
        match kind {
            CongestionKind::NewReno => Self::NewReno(NewReno::new(emss, initial_window)),
            CongestionKind::Cubic => Self::Cubic(Cubic::new(emss, initial_window)),
            CongestionKind::Dctcp => Self::Dctcp(Dctcp::new(emss, initial_window)),
            CongestionKind::External(new) => Self::External(new(emss, initial_window)),
        }
    }

    /// Read for each acknowledgment, so not by a virtual call.
    pub(crate) fn cwnd(&self) -> u64 {
        match self {
            Self::NewReno(controller) => controller.cwnd(),
            Self::Cubic(controller) => controller.cwnd(),
            Self::Dctcp(controller) => controller.cwnd(),
            Self::External(controller) => controller.cwnd(),
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &AckSample) {
        match self {
            Self::NewReno(controller) => controller.on_ack(ack),
            Self::Cubic(controller) => controller.on_ack(ack),
            Self::Dctcp(controller) => controller.on_ack(ack),
            Self::External(controller) => controller.on_ack(ack),
        }
    }
}

impl Deref for Congestion {
    type Target = dyn Controller;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::NewReno(controller) => controller,
            Self::Cubic(controller) => controller,
            Self::Dctcp(controller) => controller,
            Self::External(controller) => controller.as_ref(),
        }
    }
}

impl DerefMut for Congestion {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::NewReno(controller) => controller,
            Self::Cubic(controller) => controller,
            Self::Dctcp(controller) => controller,
            Self::External(controller) => controller.as_mut(),
        }
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
