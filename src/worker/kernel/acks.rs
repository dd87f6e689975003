//! Detects that the peer's TCP no longer acknowledges bytes written to a kernel socket.
//!
//! R2 of RFC 9293 §3.8.3. The kernel's own `TCP_USER_TIMEOUT` also ends a connection whose peer
//! keeps its window closed but answers every probe, which MUST-37 forbids.

use urnic_netdev::stream_socket::Delivery;

use urnic_engine::time::{Duration, Instant};

/// Checks periodically while written bytes may be unacknowledged.
#[derive(Debug)]
pub(super) struct AckWatch {
    limit: Duration,
    /// Time since which the peer owes an acknowledgment, or up to one step earlier: bytes
    /// acknowledged and written between two checks are not noticed.
    since: Option<Instant>,
    look_at: Instant,
}

impl AckWatch {
    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, since: None, look_at: Instant::ZERO }
    }

    fn step(&self) -> Duration {
        self.limit / STEPS
    }

    pub(super) fn wrote(&mut self, now: Instant) {
        if self.since.is_none() {
            self.since = Some(now);
            self.look_at = now + self.step();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.since.map(|_| self.look_at)
    }

    pub(super) fn is_over(&mut self, now: Instant, delivery: impl FnOnce() -> Delivery) -> bool {
        let Some(since) = self.since.filter(|_| now >= self.look_at) else { return false };
        let heard_at = match delivery() {
            Delivery::Done => {
                self.since = None;
                return false;
            }
            Delivery::Answered => now,
            Delivery::Awaited(ago) => {
                let ago_ns = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
                Instant::from_nanos(now.as_nanos().saturating_sub(ago_ns))
            }
        };
        let since = since.max(heard_at);
        self.since = Some(since);
        let end = since + self.limit + self.step();
        self.look_at = end.min(now + self.step());
        now >= end
    }
}

const STEPS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn ago(seconds: u64) -> Delivery {
        Delivery::Awaited(Duration::from_secs(seconds))
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_is_given_up_after_the_limit_and_a_step() {
        let mut watch = AckWatch::new(LIMIT);
        assert_eq!(watch.poll_timeout(), None);
        watch.wrote(at(100));
        watch.wrote(at(105));
        assert_eq!(watch.poll_timeout(), Some(at(101)));
        assert!(!watch.is_over(at(100), || unreachable!("not yet")));
        for second in 101..109 {
            assert!(!watch.is_over(at(second), || ago(second)), "{second}");
            assert_eq!(watch.poll_timeout(), Some(at(second + 1)));
        }
        assert!(watch.is_over(at(109), || ago(109)));
    }

    #[test]
    fn answers_to_probes_count() {
        let mut watch = AckWatch::new(LIMIT);
        watch.wrote(at(0));
        for second in 1..1000 {
            let state = if second % 5 < 3 { Delivery::Answered } else { ago(1000) };
            assert!(!watch.is_over(at(second), || state), "{second}");
        }
        let last = watch.poll_timeout().unwrap();
        assert_eq!(last, at(1000));
    }

    #[test]
    fn acknowledgments_count() {
        let mut watch = AckWatch::new(LIMIT);
        watch.wrote(at(0));
        for second in 1..1000 {
            assert!(!watch.is_over(at(second), || ago(second % 7)), "{second}");
        }
    }

    #[test]
    fn fully_acknowledged_connection_needs_no_check() {
        let mut watch = AckWatch::new(LIMIT);
        watch.wrote(at(0));
        assert!(!watch.is_over(at(1), || Delivery::Done));
        assert_eq!(watch.poll_timeout(), None);
        // Bytes written later have the full time, however long ago the last answer was.
        watch.wrote(at(1000));
        assert!(!watch.is_over(at(1008), || ago(1008)));
        assert!(watch.is_over(at(1009), || ago(1009)));
    }

    #[test]
    fn octets_written_between_two_checks_have_the_full_time() {
        let mut watch = AckWatch::new(LIMIT);
        watch.wrote(at(0));
        // All is acknowledged at 0, and more is written shortly before the first check.
        assert!(!watch.is_over(at(1), || ago(1)));
        assert!(!watch.is_over(at(8), || ago(8)));
        assert!(watch.is_over(at(9), || ago(9)));
    }
}
