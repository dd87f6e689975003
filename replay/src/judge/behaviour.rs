//! Behaviour of TCP that affects the iWARP stream that it carries.

use super::acks::{Acks, Why};
use super::findings::{Findings, Kind};
use crate::figures::plural;

#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u32>,
    /// Bytes, among windows with a known scale.
    pub(crate) window_max: Option<u64>,
    options_len: u16,
    pub(crate) acks: Acks,
    window_is_closed: bool,
    zero_windows: Seen,
    spurious: Seen,
    /// Retransmissions that a lost acknowledgment may explain, or that came after a received one.
    untold: u64,
    known: u64,
    acks_lost: Seen,
    ack_lost: u64,
    oversized: Seen,
    /// Segments of the maximum length, if this length cannot hold whole FPDUs.
    odd: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) times: u64,
    pub(crate) first: u64,
}

impl Seen {
    pub(crate) const fn again(&mut self, frame: u64) {
        if self.times == 0 {
            self.first = frame;
        }
        self.times += 1;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) octets: (u64, u64),
    pub(crate) is_repetition: bool,
    pub(crate) frame: u64,
    pub(crate) at_ns: u64,
    pub(crate) echo: Option<u32>,
}

impl Behaviour {
    pub(crate) fn segment(&mut self, sent: Sent) {
        let Sent { octets: (start, end), is_repetition, frame, at_ns, echo } = sent;
        let len = end - start;
        self.options_len = if echo.is_some() { TIMESTAMPS_LEN } else { 0 };
        // RFC 9293 §3.8.4: one byte before the acknowledged end is a keep-alive probe.
        if is_repetition
            && len > 1
            && let Some(why) = self.acks.why(end, at_ns, echo)
        {
            match why {
                Why::AckLost(ack) => {
                    if self.acks_lost.times == 0 {
                        self.ack_lost = ack;
                    }
                    self.acks_lost.again(frame);
                }
                Why::Known | Why::Crossed | Why::Untold => {
                    self.known += u64::from(why == Why::Known);
                    self.untold += u64::from(why == Why::Untold);
                    self.spurious.again(frame);
                }
            }
        }
        if self.mss.is_some_and(|mss| len > u64::from(mss)) {
            self.oversized.again(frame);
        }
        // RFC 5044 §4.1, §4.3: the lengths of FPDUs and markers are multiples of four bytes.
        if !is_repetition && self.emss() == Some(len) && !len.is_multiple_of(4) {
            self.odd.again(frame);
        }
    }

    /// Bytes of data in the longest segment (RFC 9293 §3.7.1: the MSS counts options as data).
    pub(crate) fn emss(&self) -> Option<u64> {
        self.mss.map(|mss| u64::from(mss.saturating_sub(self.options_len)))
    }

    pub(crate) const fn is_offloaded(&self) -> bool {
        self.oversized.times > 0
    }

    pub(crate) fn window(&mut self, window: u16, is_syn: bool, frame: u64) {
        // RFC 7323 §2.2: the window of a SYN is not scaled.
        let scale = if is_syn { Some(0) } else { self.window_scale };
        self.window_max = self.window_max.max(scale.map(|scale| u64::from(window) << scale));
        if window == 0 && !self.window_is_closed {
            self.zero_windows.again(frame);
        }
        self.window_is_closed = window == 0;
    }

    pub(crate) fn note(&self, from: &'static str, other: &'static str, findings: &mut Findings) {
        let mut add = |kind, from, Seen { times, first }: Seen, text: &dyn Fn() -> String| {
            if times > 0 {
                findings.add(kind, from, first, text);
            }
        };
        let Self { zero_windows, spurious, oversized, acks_lost, odd, .. } = *self;
        let mss = self.mss.unwrap_or(0);
        add(Kind::ZeroWindow, other, zero_windows, &|| {
            format!("closed its window, {} in all", plural(zero_windows.times, "time"))
        });
        add(Kind::AckLost, from, acks_lost, &|| {
            format!(
                "sent {} again although the capture has their acknowledgment (the first in frame \
                 {}), more than two round trips of the handshake before: it was lost on its way to the \
                 {from}, or delayed for as long",
                plural(acks_lost.times, "segment"),
                self.ack_lost
            )
        });
        add(Kind::Spurious, from, spurious, &|| {
            let mut text = format!(
                "retransmitted data that had been acknowledged: {}",
                plural(spurious.times, "segment")
            );
            if self.known > 0 {
                text.push_str(&format!(
                    ", {} of them after it had received the acknowledgment, as their echoed timestamp shows",
                    self.known
                ));
            }
            if self.untold > 0 {
                text.push_str(&format!(
                    "; for {} it is not known if the acknowledgment was lost, because the capture lacks the \
                     handshake or timestamps",
                    self.untold
                ));
            }
            text
        });
        add(Kind::Offloaded, from, oversized, &|| {
            format!(
                "{} segments are longer than the MSS of {mss}: a device cut or joined them outside this \
                 capture",
                oversized.times
            )
        });
        add(Kind::EmssOdd, from, odd, &|| {
            format!(
                "{} segments are full with {} bytes (MSS {mss}, options {}), not a multiple of four like \
                 FPDUs: none of these segments holds complete ones",
                odd.times,
                self.emss().unwrap_or(0),
                self.options_len
            )
        });
    }
}

/// Bytes of the timestamps option in a segment, with padding (RFC 7323 appendix A).
const TIMESTAMPS_LEN: u16 = 12;
