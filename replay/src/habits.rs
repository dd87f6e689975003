//! What TCP does, beside what it carries: rules that it departs from at the cost of what it carries.

use super::findings::{Findings, Kind};

/// What was noticed of one stream.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// The longest segment that the other side takes, as its SYN says.
    pub(super) mss: Option<u16>,
    /// Highest octet acknowledged.
    acked: u64,
    window_is_closed: bool,
    zero_windows: Seen,
    spurious: Seen,
    oversized: Seen,
}

/// How often something was seen, and in which frame first.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    times: u64,
    first: u64,
}

impl Seen {
    const fn again(&mut self, frame: u64) {
        if self.times == 0 {
            self.first = frame;
        }
        self.times += 1;
    }
}

impl Habits {
    /// A segment with octets `start..end` came, of which none is new if it is a repetition.
    pub(super) fn segment(&mut self, (start, end): (u64, u64), is_repetition: bool, frame: u64) {
        let len = end - start;
        // RFC 9293 §3.8.4: one octet before what is acknowledged is a keep-alive probe.
        if is_repetition && end <= self.acked && len > 1 {
            self.spurious.again(frame);
        }
        if self.mss.is_some_and(|mss| len > u64::from(mss)) {
            self.oversized.again(frame);
        }
    }

    /// The other side acknowledges octets before `acked`.
    pub(super) fn acknowledged(&mut self, acked: u64, window: u16, frame: u64) {
        self.acked = self.acked.max(acked);
        if window == 0 && !self.window_is_closed {
            self.zero_windows.again(frame);
        }
        self.window_is_closed = window == 0;
    }

    /// Makes the findings, of what `from` sent and `other` acknowledged.
    pub(super) fn note(&self, from: &'static str, other: &'static str, findings: &mut Findings) {
        let mut add = |kind, from, Seen { times, first }: Seen, text: &dyn Fn() -> String| {
            if times > 0 {
                findings.add(kind, from, first, text);
            }
        };
        let Self { zero_windows, spurious, oversized, .. } = *self;
        add(Kind::ZeroWindow, other, zero_windows, &|| {
            format!("closed its window, {} times in all", zero_windows.times)
        });
        add(Kind::Spurious, from, spurious, &|| {
            format!("sent again what had been acknowledged: {} segments", spurious.times)
        });
        add(Kind::Offloaded, from, oversized, &|| {
            format!(
                "{} segments are longer than the MSS of {}: a device cut or joined them outside this \
                 capture",
                oversized.times,
                self.mss.unwrap_or(0)
            )
        });
    }
}
