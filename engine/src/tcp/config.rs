//! Settings of a connection.

use std::ops::Deref;

use super::congestion::CongestionKind;
use super::ecn::EcnUse;
use crate::limits::RECEIVE_WINDOW_BYTES;
use crate::time::Duration;

/// Settings of one connection. [`Config::default`] suits a local network. This TCP does not have
/// Nagle's algorithm: RFC 9293 SHLD-7 recommends it, MUST-17 wants a way to turn it off, and RFC
/// 5044 appendix A.2 turns it off for latency-sensitive applications. Records that are posted
/// together share segments nevertheless: the layer above packs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Receive window policy, in bytes; at most 1 GiB.
    pub window_bytes: u32,
    /// Offer window scaling (RFC 7323 §2).
    pub window_scaling: bool,
    /// Offer timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Delay of an acknowledgment that waits for data to carry it; below 0.5 s (RFC 9293 MUST-40).
    /// Pushed data is acknowledged at once. The default, 50 µs, is short for peers that do not set
    /// PSH. The peer is assumed to delay as long.
    pub delayed_ack: Duration,
    /// Delay of a due acknowledgment that waits for the rest of a burst, unless a gap, a duplicate
    /// or a push must be answered. The default is zero: every second segment is acknowledged (RFC
    /// 9293 SHLD-19). Choose at most [`delayed_ack`](Self::delayed_ack).
    pub ack_hold: Duration,
    /// Data segments at the start of the connection that are acknowledged one by one.
    pub quick_acks: u8,
    /// Smallest distance of the RTO from the smoothed round trip; it is also at least twice that.
    /// RFC 6298 §2.4 asks for 1 s. The default is 10 ms for local networks: RACK and the tail loss
    /// probe repair losses long before, and a spurious timeout is undone.
    // spec: TCP-6298-2
    pub rto_min: Duration,
    /// Ceiling of the retransmission timeout, at least 60 s (RFC 6298 §2.5).
    pub rto_max: Duration,
    /// Retransmission timeout before the first round-trip sample (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// R2 of RFC 9293 §3.8.3: the connection is aborted after data stayed unacknowledged so long.
    pub user_timeout: Duration,
    /// R2 for a SYN, at least 3 minutes (RFC 9293 MUST-23).
    pub syn_timeout: Duration,
    /// Duration of TIME-WAIT, 2·MSL.
    pub time_wait: Duration,
    /// Keep-alive probes; off by default (RFC 9293 MUST-25). MUST-28 requires a default idle time
    /// of two hours: here the application names any time.
    /// [`Tcb::set_keepalive`](super::Tcb::set_keepalive) changes it later.
    pub keepalive: Option<KeepAliveTimes>,
    /// Use of explicit congestion notification (RFC 3168).
    pub ecn: EcnUse,
    /// Congestion controller.
    pub congestion: CongestionKind,
    /// Initial window in segments; `None`: RFC 6928, ten segments, but two if they are large.
    pub initial_window_segments: Option<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window_bytes: RECEIVE_WINDOW_BYTES,
            window_scaling: true,
            timestamps: true,
            sack: true,
            delayed_ack: Duration::from_micros(50),
            ack_hold: Duration::ZERO,
            quick_acks: 16,
            rto_min: Duration::from_millis(10),
            rto_max: Duration::from_secs(60),
            rto_initial: Duration::from_secs(1),
            user_timeout: Duration::from_secs(100),
            syn_timeout: Duration::from_secs(180),
            time_wait: Duration::from_secs(60),
            keepalive: None,
            ecn: EcnUse::default(),
            congestion: CongestionKind::default(),
            initial_window_segments: None,
        }
    }
}

/// Settings of a connection, and the sizes of its path, which follow from the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    pub(super) settings: Config,
    /// MTU less the fixed IP and TCP headers (RFC 9293 §3.7.1), options not subtracted, in bytes.
    pub(super) mss_receive: u16,
    /// Largest IP payload the path takes: MTU less the IP header, in bytes.
    pub(super) path_payload_max: u16,
    /// The peer's MSS if its SYN has no MSS option: 536 for IPv4, 1220 for IPv6 (RFC 9293 MUST-15).
    pub(super) mss_default: u16,
}

impl PathConfig {
    /// The settings on a link with this MTU and IP header length, both in bytes.
    #[must_use]
    pub const fn new(settings: Config, mtu: u16, ip_header_len: u16) -> Self {
        let path_payload_max = mtu.saturating_sub(ip_header_len);
        // spec: TCP-9293-3
        let mss_default = if ip_header_len > 20 { 1220 } else { 536 };
        let mss_receive = path_payload_max.saturating_sub(20);
        Self { settings, mss_receive, path_payload_max, mss_default }
    }
}

impl Deref for PathConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.settings
    }
}

impl Default for PathConfig {
    fn default() -> Self {
        Self::new(Config::default(), 1500, 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: TCP-9293-3
    #[test]
    fn the_defaults_of_both_families_are_those_of_rfc_9293() {
        // MUST-15: the peer's MSS if its SYN has none. §3.7.1: ours leaves out the fixed headers.
        for (ip_header_len, mss_default, mss_receive) in [(20, 536, 1460), (40, 1220, 1440)] {
            let config = PathConfig::new(Config::default(), 1500, ip_header_len);
            assert_eq!((config.mss_default, config.mss_receive), (mss_default, mss_receive));
        }
    }

    #[test]
    fn probes_that_give_up_after_a_limit_take_about_as_long() {
        for (limit, expected) in [(0, 2), (1, 2), (2, 2), (3, 3), (5, 5), (100, 100), (3600, 3600)]
        {
            let times = KeepAliveTimes::giving_up_after(Duration::from_secs(limit));
            let total = times.idle + times.interval * times.probes;
            assert_eq!(total.as_secs(), expected, "{limit}: {times:?}");
            assert_eq!(times, times.within_limits());
        }
        let longest = KeepAliveTimes::giving_up_after(Duration::MAX);
        assert_eq!((longest.idle, longest.probes), (TIME_MAX, PROBES_MAX));
    }
}

/// Times of keep-alive probes, and the number of unanswered probes after which the connection is
/// aborted.
///
/// Times are 1 s to 32,767 s and probes are 1 to 127, as in the kernel's TCP; other values are
/// replaced by the nearest of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAliveTimes {
    /// Silence of the peer before the first probe.
    pub idle: Duration,
    /// Time from one probe to the next.
    pub interval: Duration,
    /// Unanswered probes before the connection is aborted.
    pub probes: u32,
}

impl Default for KeepAliveTimes {
    /// RFC 9293 MUST-28: the default idle time "MUST be no less than two hours". RFC 9293 §3.8.4:
    /// one unanswered probe does not prove a dead connection; here nine in eleven minutes do.
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

impl KeepAliveTimes {
    /// The default times with another idle time.
    #[must_use]
    pub fn after(idle: Duration) -> Self {
        Self { idle, ..Self::default() }
    }

    /// Times that abort a connection after about `limit` of silence; at least two seconds.
    #[must_use]
    pub fn giving_up_after(limit: Duration) -> Self {
        let idle = (limit / 4).clamp(TIME_MIN, TIME_MAX);
        let probes = (limit.as_nanos() / idle.as_nanos()).saturating_sub(1);
        let probes = u32::try_from(probes).unwrap_or(PROBES_MAX);
        Self { idle, interval: idle, probes }.within_limits()
    }

    /// Limits the times to what every TCP below supports.
    #[must_use]
    pub fn within_limits(self) -> Self {
        Self {
            idle: self.idle.clamp(TIME_MIN, TIME_MAX),
            interval: self.interval.clamp(TIME_MIN, TIME_MAX),
            probes: self.probes.clamp(1, PROBES_MAX),
        }
    }
}

/// Linux takes seconds up to these for `TCP_KEEPIDLE` and `TCP_KEEPINTVL`, and probes up to these
/// for `TCP_KEEPCNT`.
const TIME_MIN: Duration = Duration::from_secs(1);
const TIME_MAX: Duration = Duration::from_secs(32_767);
const PROBES_MAX: u32 = 127;
