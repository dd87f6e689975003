//! How large a datagram the path to a peer takes (RFC 1191, RFC 8201, RFC 4821).
//!
//! ```text
//! ceiling    what the device takes, or the limit that a router has named
//! current    what segments are cut for
//! confirmed  a size that the peer has acknowledged something after
//! ```
//!
//! A router that drops large datagrams without a word is found by timeouts: the size goes down to
//! one that nearly every path takes, and from there up again in steps. An outage looks the same at
//! first, and is over within a few steps. A step is an ordinary change of the size: what is lost by
//! it is sent again, cut to fit.

use std::net::IpAddr;

use tracing::debug;

use crate::port::TRACE;
use crate::tcp;
use crate::time::Instant;
use crate::types::StreamOffset;

/// The path of one connection. All sizes are of IP datagrams, in octets.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PathMtu {
    /// When a larger size is tried.
    probe_at: Option<Instant>,
    current: usize,
    confirmed: usize,
    /// SND.NXT when the current size was taken up.
    since: StreamOffset,
    /// Timeouts in a row that say nothing about the size: the link was down.
    forgiven: u32,
    /// The limit that a router has named, and until when nothing beyond it is tried.
    named: Option<(usize, Instant)>,
    ceiling: usize,
    /// What the path is not asked to fall below.
    floor: usize,
    ip_header_len: usize,
}

/// RFC 791 §3.2: every path takes as much.
const MIN_V4: usize = 68;
/// RFC 8200 §5.
const MIN_V6: usize = 1280;
/// Timeouts in a row from which a size is suspected (RFC 4821 §7.7 leaves the number open; RFC 8899
/// §5.1.2 has MAX_PROBES = 3 transmissions, of which the first is no timeout).
const BLACK_HOLE_TIMEOUTS: u32 = 2;
/// What nearly every path takes (RFC 8899 §5.1.2 BASE_PLPMTU and RFC 8200 §5).
const BASE: usize = 1280;
/// Sizes that paths have (RFC 1191 §7.1, with those of tunnels and of large frames), upward.
const PLATEAUS: [usize; 14] =
    [68, 296, 552, 1006, 1280, 1400, 1452, 1492, 1500, 2002, 4352, 8166, 9000, 17_914];
/// Time between two steps up after a black hole, in nanoseconds (RFC 8899 §5.1.1: a probe timer of
/// at least 1 s).
const STEP_NS: u64 = 1_000_000_000;
/// RFC 1191 §6.3 and RFC 8201 §4: a larger size is not tried within 5 minutes after a router has
/// named the limit; 10 are recommended. RFC 8899 PMTU_RAISE_TIMER is the same.
const RAISE_NS: u64 = 600_000_000_000;
/// RFC 1191 §6.3: nor "less than 1 minute after a previous, successful attempted increase", beyond
/// that limit; twice that is recommended.
const RAISE_AGAIN_NS: u64 = 120_000_000_000;

impl PathMtu {
    /// `floor_v4`: what an IPv4 path is not asked to fall below.
    pub(crate) fn new(remote: IpAddr, device_mtu: usize, floor_v4: usize) -> Self {
        let (floor, ip_header_len) = match remote {
            IpAddr::V4(_) => (floor_v4.max(MIN_V4), 20),
            IpAddr::V6(_) => (MIN_V6, 40),
        };
        Self {
            current: device_mtu,
            confirmed: 0,
            ceiling: device_mtu,
            floor: floor.min(device_mtu),
            ip_header_len,
            probe_at: None,
            named: None,
            since: StreamOffset::ZERO,
            forgiven: 0,
        }
    }

    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.probe_at
    }

    /// A router has dropped a datagram of `datagram_len` octets: the next link takes `mtu`, 0 when
    /// it does not say. Returns whether that changed something.
    pub(crate) fn on_too_big(
        &mut self,
        now: Instant,
        tcp: &mut tcp::Tcb,
        mtu: usize,
        datagram_len: usize,
    ) -> bool {
        // RFC 1191 §5: old routers name no size; the next plateau below what was dropped.
        let named = if mtu == 0 { plateau_below(datagram_len.min(self.current)) } else { mtu };
        // RFC 8201 §4: a message with less than 1280 is discarded; RFC 1191 §3 never goes below
        // 68. RFC 5044 §9.1: what is reported is range-checked.
        if self.ip_header_len == 40 && named < MIN_V6 {
            return false;
        }
        let size = named.max(self.floor);
        // RFC 1191 §3: "must not increase its estimate in response".
        if size >= self.current {
            return false;
        }
        self.confirmed = self.confirmed.min(size);
        self.ceiling = size;
        let until = now.plus_nanos(RAISE_NS);
        self.named = Some((size, until));
        self.probe_at = Some(until);
        self.take(now, tcp, size);
        true
    }

    /// The device's MTU has changed from `before` to `mtu`.
    pub(crate) fn on_device(
        &mut self,
        now: Instant,
        tcp: &mut tcp::Tcb,
        before: usize,
        mtu: usize,
    ) {
        let at_device = self.ceiling >= before;
        if mtu < self.ceiling || at_device {
            self.ceiling = mtu;
        }
        self.floor = self.floor.min(mtu);
        self.confirmed = self.confirmed.min(mtu);
        // One that was limited by the device alone follows it up; any other is probed as before.
        if self.current > mtu || (at_device && self.current == before) {
            self.take(now, tcp, mtu);
        }
    }

    /// The connection's retransmission timer may have run out, or [`poll_timeout`](Self::poll_timeout)
    /// has come. `device_mtu` bounds what is tried.
    pub(crate) fn handle_timeout(&mut self, now: Instant, tcp: &mut tcp::Tcb, device_mtu: usize) {
        let timeouts = tcp.consecutive_timeouts();
        if timeouts == 0 {
            self.forgiven = 0;
            if tcp.snd_una() > self.since {
                self.confirmed = self.confirmed.max(self.current);
            }
        } else if timeouts >= self.forgiven + BLACK_HOLE_TIMEOUTS {
            self.on_black_hole(now, tcp);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            // While it is not clear how this size does, no larger one is tried.
            if timeouts > 0 {
                self.probe_at = Some(now.plus_nanos(STEP_NS));
            } else {
                self.step_up(now, tcp, device_mtu);
            }
        }
    }

    /// The link is down: the timeouts so far, and the next, are its fault.
    pub(crate) fn forgive(&mut self, timeouts: u32) {
        self.forgiven = timeouts + 1;
    }

    /// Segments of the current size do not seem to get through.
    fn on_black_hole(&mut self, now: Instant, tcp: &mut tcp::Tcb) {
        let probing = self.confirmed >= self.floor && self.confirmed < self.current;
        let size = if probing {
            self.confirmed
        } else if self.current > BASE {
            BASE.max(self.floor)
        } else {
            self.floor
        };
        let segment_len = tcp.oldest_in_flight_len();
        let cut_for = size.saturating_sub(self.ip_header_len);
        // What is small already is not lost for its size.
        if size >= self.current || segment_len <= cut_for {
            return;
        }
        // A step up that failed is not tried again soon; a path that fell silent is.
        let wait_ns = if probing { RAISE_NS } else { STEP_NS };
        self.probe_at = Some(now.plus_nanos(wait_ns));
        // The smaller size gets as many chances.
        self.forgiven = tcp.consecutive_timeouts();
        self.take(now, tcp, size);
    }

    fn step_up(&mut self, now: Instant, tcp: &mut tcp::Tcb, device_mtu: usize) {
        let held_until = self.named.map(|(_, until)| until).filter(|until| *until > now);
        if held_until.is_none() {
            // The limit that a router has named is old enough to be tried anew.
            self.ceiling = device_mtu;
        }
        let next = PLATEAUS.iter().copied().find(|size| *size > self.current);
        let size = next.map_or(self.ceiling, |size| size.min(self.ceiling));
        if size >= self.ceiling {
            self.probe_at = held_until;
        } else {
            // Up to what a router has named the way is known.
            let is_beyond = self.named.is_some_and(|(named, _)| size >= named);
            self.probe_at = Some(now.plus_nanos(if is_beyond { RAISE_AGAIN_NS } else { STEP_NS }));
        }
        if size > self.current {
            self.take(now, tcp, size);
        }
    }

    fn take(&mut self, now: Instant, tcp: &mut tcp::Tcb, size: usize) {
        debug!(target: TRACE, from = self.current, to = size, "path MTU changed");
        self.current = size;
        self.since = tcp.snd_nxt();
        tcp.set_path_mtu(now, size.saturating_sub(self.ip_header_len));
    }

    /// What segments are cut for.
    pub(crate) const fn current(&self) -> usize {
        self.current
    }
}

/// The largest plateau below `len`.
fn plateau_below(len: usize) -> usize {
    PLATEAUS.iter().rev().copied().find(|size| *size < len).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::SeqNum;
    use crate::time::Duration;

    fn tcp() -> tcp::Tcb {
        let config = tcp::Config::for_mtu(1500, 20);
        tcp::Tcb::connect(Instant::ZERO, &config.into(), 1, 2, SeqNum(0), 0)
    }

    fn path(remote: &str, floor: usize) -> PathMtu {
        PathMtu::new(remote.parse().unwrap(), 1500, floor)
    }

    #[test]
    fn a_named_limit_is_taken_within_its_range() {
        // Family, what the router says, what it dropped, what is cut for then.
        let cases = [
            ("10.0.0.2", 1400, 1500, 1400),
            ("10.0.0.2", 40, 1500, 68),
            ("10.0.0.2", 68, 1500, 68),
            ("10.0.0.2", 9000, 9000, 1500),
            ("10.0.0.2", 1500, 1500, 1500),
            ("10.0.0.2", 0, 1500, 1492),
            ("10.0.0.2", 0, 1000, 552),
            ("fd00::2", 1400, 1500, 1400),
            ("fd00::2", 1280, 1500, 1280),
            ("fd00::2", 1279, 1500, 1500),
            ("fd00::2", 0, 1500, 1492),
            ("fd00::2", usize::MAX, 1500, 1500),
        ];
        for (remote, mtu, dropped, expected) in cases {
            let mut path = path(remote, 68);
            let changed = path.on_too_big(Instant::ZERO, &mut tcp(), mtu, dropped);
            assert_eq!((path.current(), changed), (expected, expected != 1500), "{remote} {mtu}");
        }
        let mut path = path("10.0.0.2", 552);
        path.on_too_big(Instant::ZERO, &mut tcp(), 68, 1500);
        assert_eq!(path.current(), 552, "an attacker cannot make it tiny");
    }

    #[test]
    fn a_named_limit_holds_for_ten_minutes() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.on_too_big(Instant::ZERO, &mut tcp, 1400, 1500);
        let at = path.poll_timeout().unwrap();
        assert_eq!(at, Instant::ZERO + Duration::from_secs(600));
        path.handle_timeout(Instant::ZERO + Duration::from_secs(599), &mut tcp, 1500);
        assert_eq!(path.current(), 1400);
        // RFC 1191 §6.3: two minutes between steps beyond the limit.
        assert_eq!(steps(&mut path, &mut tcp), [(600, 1452), (720, 1492), (840, 1500)]);
    }

    /// The steps up that follow: the second, and the size.
    fn steps(path: &mut PathMtu, tcp: &mut tcp::Tcb) -> Vec<(u64, usize)> {
        let mut steps = Vec::new();
        while let Some(at) = path.poll_timeout() {
            path.handle_timeout(at, tcp, 1500);
            steps.push((at.as_nanos() / 1_000_000_000, path.current()));
        }
        steps
    }

    #[test]
    fn a_path_that_falls_silent_does_not_make_a_named_limit_older() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.on_too_big(Instant::ZERO, &mut tcp, 1452, 1500);
        // As a black hole leaves it: a small size that is stepped up from soon.
        let at = Instant::ZERO + Duration::from_secs(60);
        path.take(at, &mut tcp, BASE);
        path.probe_at = Some(at);
        let expected = [(60, 1400), (61, 1452), (600, 1492), (720, 1500)];
        assert_eq!(steps(&mut path, &mut tcp), expected);
    }

    #[test]
    fn the_device_is_followed_down_always_and_up_when_it_was_the_limit() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        for (before, mtu, expected) in [(1500, 9000, 9000), (9000, 1400, 1400), (1400, 1500, 1500)]
        {
            path.on_device(Instant::ZERO, &mut tcp, before, mtu);
            assert_eq!(path.current(), expected);
        }
        path.on_too_big(Instant::ZERO, &mut tcp, 1300, 1500);
        path.on_device(Instant::ZERO, &mut tcp, 1500, 9000);
        assert_eq!(path.current(), 1300, "a router was the limit");
        path.on_device(Instant::ZERO, &mut tcp, 9000, 100);
        assert_eq!(path.current(), 100, "below every floor, if the device is");
    }

    /// What was acknowledged before the device's MTU went down says nothing of sizes above it: when
    /// it is up again and large segments are lost, the size falls to what was confirmed since.
    #[test]
    fn a_size_that_the_device_no_longer_took_is_not_confirmed_any_more() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.confirmed = 1500;
        path.on_device(Instant::ZERO, &mut tcp, 1500, 1400);
        assert_eq!((path.current, path.confirmed), (1400, 1400));
        path.on_device(Instant::ZERO, &mut tcp, 1400, 1500);
        assert_eq!((path.current, path.confirmed), (1500, 1400), "1500 is to be shown anew");
        // A limit that a router names does the same.
        path.confirmed = 1500;
        path.on_too_big(Instant::ZERO, &mut tcp, 1300, 1500);
        assert_eq!((path.current, path.confirmed, path.ceiling), (1300, 1300, 1300));
        path.confirmed = 1000;
        path.on_too_big(Instant::ZERO, &mut tcp, 1200, 1500);
        assert_eq!(path.confirmed, 1000, "nor is it raised");
    }
}
