//! Path MTU: the largest datagram that the path to a peer takes (RFC 1191, RFC 8201, RFC 4821).
//!
//! A router that drops large datagrams without an ICMP error (a black hole) is found by evidence
//! (RFC 4821 §7.7, RFC 8899 §4.3):
//!
//! 1. Nothing is acknowledged for [`SILENCE`] and [`BLACK_HOLE_TIMEOUTS`] retransmissions: the size
//!    is reduced to one that nearly every path takes; the old size is in doubt.
//! 2. The peer has a segment that was sent only in the old size: the old size is restored.
//! 3. Only short segments are acknowledged: the old size is tried once more. If that is not
//!    acknowledged, the path is a black hole: the size is reduced, and raised again from there in
//!    steps.

use std::collections::HashMap;
use std::mem::offset_of;
use std::net::IpAddr;

use tracing::debug;

use crate::limits::PATHS_KNOWN_MAX;
use crate::port::TRACE;
use crate::siphash::{Key, TableHash};
use crate::tcp;
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;

/// Path state of one connection. Sizes are of IP datagrams, in bytes. `ceiling`: limit of the
/// device, or that a router has reported. `current`: segments are cut for it. `confirmed`: data of
/// that size was acknowledged.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PathMtu {
    probe_at: Option<Instant>,
    doubt: Option<Doubt>,
    current: usize,
    confirmed: usize,
    since: StreamOffset,
    /// Consecutive timeouts that are no evidence about the size: the link was down.
    forgiven: u32,
    /// The limit that a router has reported, and the time until which nothing larger is tried.
    named: Option<(usize, Instant)>,
    ceiling: usize,
    floor: usize,
    ip_header_len: usize,
    /// The current size is the one before a doubt, tried once more.
    retried: bool,
}

/// A size given up because nothing was acknowledged, while the cause is not known.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    size: usize,
    /// The size was tested: smaller datagrams are acknowledged, and it is not.
    tried: bool,
    /// Time until a larger size is tried, in nanoseconds, once the cause is known.
    wait_ns: u64,
}

/// RFC 791 §3.2: the smallest limit of any path.
const MIN_V4: usize = 68;
/// RFC 8200 §5.
const MIN_V6: usize = 1280;
/// Consecutive timeouts after which a size is suspected. RFC 8899 §5.1.2 has MAX_PROBES = 3, the
/// first no timeout; RFC 4821 §7.7 leaves this open.
const BLACK_HOLE_TIMEOUTS: u32 = 2;
/// Time without an acknowledgment after which a size is suspected: the timeouts expire within some
/// 50 ms on a short path; hosts and links pause as long.
const SILENCE: Duration = Duration::from_secs(1);
/// Size that nearly every path takes (RFC 8899 §5.1.2 BASE_PLPMTU and RFC 8200 §5).
const BASE: usize = 1280;
/// Common MTUs of paths (RFC 1191 §7.1, with those of tunnels and of large frames), ascending.
const PLATEAUS: [usize; 14] =
    [68, 296, 552, 1006, 1280, 1400, 1452, 1492, 1500, 2002, 4352, 8166, 9000, 17_914];
/// Time between two steps up after a black hole (RFC 8899 §5.1.1: a probe timer of at least 1 s).
const STEP_NS: u64 = 1_000_000_000;
/// RFC 1191 §6.3, RFC 8201 §4, RFC 8899 PMTU_RAISE_TIMER: no larger size within 5 minutes after a
/// router has reported the limit; 10 are recommended.
const RAISE_NS: u64 = 600_000_000_000;
/// RFC 1191 §6.3: nor "less than 1 minute after a previous, successful attempted increase", beyond
/// that limit; twice that is recommended.
const RAISE_AGAIN_NS: u64 = 120_000_000_000;

impl PathMtu {
    pub(crate) const HOT_HEAD: usize = offset_of!(Self, current);

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
            doubt: None,
            retried: false,
        }
    }

    /// With the limit that another connection to the same host has learned, until it expires.
    pub(crate) fn begin_with(&mut self, now: Instant, tcp: &mut tcp::Tcb, known: KnownPath) {
        let size = known.size.max(self.floor);
        if size < self.current {
            self.ceiling = size;
            self.named = Some((size, known.until));
            self.probe_at = Some(known.until);
            self.take(now, tcp, size);
        }
    }

    pub(crate) const fn known(&self) -> Option<KnownPath> {
        match self.named {
            Some((size, until)) => Some(KnownPath { size, until }),
            None => None,
        }
    }

    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.probe_at
    }

    /// A router has dropped a datagram of `datagram_len` bytes: the next link takes `mtu`, 0 if
    /// unknown. Returns true if the size changed.
    pub(crate) fn on_too_big(
        &mut self,
        now: Instant,
        tcp: &mut tcp::Tcb,
        mtu: usize,
        datagram_len: usize,
    ) -> bool {
        // RFC 1191 §5: old routers report no size; the next plateau below the dropped size is used.
        // spec: TCP-PMTU-2
        let named = if mtu == 0 { plateau_below(datagram_len.min(self.current)) } else { mtu };
        // RFC 8201 §4: a message with less than 1280 is discarded; RFC 1191 §3 never goes below 68.
        // RFC 5044 §9.1: the reported size is range-checked.
        // spec: MPA-9-1
        if self.ip_header_len == 40 && named < MIN_V6 {
            return false;
        }
        let size = named.max(self.floor);
        // RFC 1191 §3: "must not increase its estimate in response".
        // spec: TCP-PMTU-1
        if size >= self.current {
            return false;
        }
        self.confirmed = self.confirmed.min(size);
        self.ceiling = size;
        (self.doubt, self.retried) = (None, false);
        let until = now.plus_nanos(RAISE_NS);
        self.named = Some((size, until));
        self.probe_at = Some(until);
        self.take(now, tcp, size);
        true
    }

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
        (self.doubt, self.retried) = (None, false);
        // A size that only the device limited follows the device; any other is probed as before.
        if self.current > mtu || (at_device && self.current == before) {
            self.take(now, tcp, mtu);
        }
    }

    /// For an expired retransmission timer, or [`poll_timeout`](Self::poll_timeout). Returns true
    /// if the [limit](Self::known) of the path is known now.
    #[must_use]
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        tcp: &mut tcp::Tcb,
        device_mtu: usize,
    ) -> bool {
        let timeouts = tcp.consecutive_timeouts();
        let is_limit_known = self.judge(now, tcp);
        if tcp.snd_una() > self.since {
            self.confirmed = self.confirmed.max(self.current);
            self.retried = false;
        }
        if timeouts == 0 {
            self.forgiven = 0;
        } else if self.is_suspect(timeouts, tcp, now) {
            self.on_black_hole(now, tcp);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            // No larger size is tried while it is unknown if this one passes.
            if timeouts > 0 || self.doubt.is_some() {
                self.probe_at = Some(now.plus_nanos(STEP_NS));
            } else {
                self.step_up(now, tcp, device_mtu);
            }
        }
        is_limit_known
    }

    pub(crate) fn forgive(&mut self, timeouts: u32) {
        self.forgiven = timeouts + 1;
    }

    /// Returns true if a size is in doubt: [`judge`](Self::judge) must find out.
    #[inline]
    pub(crate) const fn is_doubted(&self) -> bool {
        self.doubt.is_some()
    }

    /// True if the [limit](Self::known) of the path is known by what the peer has acknowledged.
    #[must_use]
    pub(crate) fn judge(&mut self, now: Instant, tcp: &mut tcp::Tcb) -> bool {
        let Some(doubt) = self.doubt else { return false };
        if tcp.is_long_delivered() {
            (self.doubt, self.retried) = (None, false);
            self.confirmed = self.confirmed.max(doubt.size);
            self.take(now, tcp, doubt.size);
            return false;
        }
        // The timeouts end with the first acknowledgment of something new.
        if tcp.consecutive_timeouts() > 0 {
            return false;
        }
        self.doubt = None;
        self.forgiven = 0;
        self.confirmed = self.confirmed.max(self.current);
        if doubt.tried {
            let until = now.plus_nanos(doubt.wait_ns);
            self.probe_at = Some(until);
            // The largest size that passes is known when a step up has failed.
            let is_limit = doubt.wait_ns == RAISE_NS;
            if is_limit {
                // Silence is weaker evidence than a router's report: it is used for a shorter time.
                self.named = Some((self.current, now.plus_nanos(RAISE_AGAIN_NS)));
            }
            return is_limit;
        }
        self.take(now, tcp, doubt.size);
        self.retried = true;
        false
    }

    /// Returns true if the current size may be the reason that nothing is acknowledged.
    fn is_suspect(&self, timeouts: u32, tcp: &tcp::Tcb, now: Instant) -> bool {
        let enough = if self.doubt.is_some() || self.retried {
            // The size before was silent for a long time already.
            1
        } else {
            BLACK_HOLE_TIMEOUTS
        };
        let is_long = self.is_probing(tcp) || self.doubt.is_some() || tcp.silence(now) >= SILENCE;
        timeouts >= self.forgiven + enough && is_long
    }

    /// Returns true if a smaller size has passed, and the oldest segment in flight is longer. If it
    /// fits in that size, it is lost for another reason: the path has shrunk, or only short
    /// segments have confirmed the size.
    fn is_probing(&self, tcp: &tcp::Tcb) -> bool {
        let is_smaller = self.confirmed >= self.floor && self.confirmed < self.current;
        is_smaller && tcp.oldest_in_flight_len() > self.segment_max(self.confirmed)
    }

    const fn segment_max(&self, size: usize) -> usize {
        size.saturating_sub(self.ip_header_len)
    }

    /// Reduces the size: segments of the current size do not seem to pass.
    // spec: TCP-PMTU-6
    fn on_black_hole(&mut self, now: Instant, tcp: &mut tcp::Tcb) {
        let probing = self.is_probing(tcp);
        let segment_len = tcp.oldest_in_flight_len();
        let size = if probing {
            self.confirmed
        } else if self.current > BASE && segment_len > self.segment_max(BASE.max(self.floor)) {
            BASE.max(self.floor)
        } else {
            // The segment fits in the base size, but may not fit in the path.
            self.floor
        };
        // A small segment is not lost because of its size.
        if size >= self.current || segment_len <= self.segment_max(size) {
            return;
        }
        // A step up that failed is not repeated soon; the size of a path that fell silent is.
        let wait_ns = if probing && !self.retried { RAISE_NS } else { STEP_NS };
        let doubt = Doubt { size: self.current, tried: probing, wait_ns };
        if self.doubt.is_none() {
            // The size was reduced for another reason before: evidence since then is not about it.
            tcp.forget_path_evidence();
            self.doubt = Some(doubt);
        }
        self.retried = false;
        // Earlier acknowledgments are no evidence now.
        self.confirmed = self.confirmed.min(size);
        // The smaller size gets its own timeouts.
        self.forgiven = tcp.consecutive_timeouts();
        self.take(now, tcp, size);
    }

    // spec: TCP-PMTU-7
    fn step_up(&mut self, now: Instant, tcp: &mut tcp::Tcb, device_mtu: usize) {
        // spec: TCP-PMTU-3
        let held_until = self.named.map(|(_, until)| until).filter(|until| *until > now);
        if held_until.is_none() {
            // The limit that a router has reported is old enough to be tested again.
            self.ceiling = device_mtu;
        }
        let next = PLATEAUS.iter().copied().find(|size| *size > self.current);
        let size = next.map_or(self.ceiling, |size| size.min(self.ceiling));
        if size >= self.ceiling {
            self.probe_at = held_until;
        } else {
            // Up to the limit that a router has reported, the path is known.
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

    pub(crate) const fn current(&self) -> usize {
        self.current
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownPath {
    size: usize,
    /// Time before which nothing larger is tried.
    until: Instant,
}

#[derive(Debug)]
pub(crate) struct KnownPaths {
    by_host: HashMap<IpAddr, KnownPath, TableHash>,
}

impl KnownPaths {
    pub(crate) fn new(key: Key) -> Self {
        Self { by_host: HashMap::with_hasher(TableHash::new(key)) }
    }

    /// Stores a limit. If there are too many, an expired limit is evicted, otherwise any.
    pub(crate) fn keep(&mut self, now: Instant, host: IpAddr, known: KnownPath) {
        if self.by_host.len() >= PATHS_KNOWN_MAX && !self.by_host.contains_key(&host) {
            self.by_host.retain(|_, kept| kept.until > now);
            let is_full = self.by_host.len() >= PATHS_KNOWN_MAX;
            if let Some(dropped) = self.by_host.keys().next().copied().filter(|_| is_full) {
                self.by_host.remove(&dropped);
            }
        }
        self.by_host.insert(host, known);
    }

    pub(crate) fn get(&self, now: Instant, host: IpAddr) -> Option<KnownPath> {
        self.by_host.get(&host).copied().filter(|known| known.until > now)
    }
}

fn plateau_below(len: usize) -> usize {
    PLATEAUS.iter().rev().copied().find(|size| *size < len).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::SeqNum;

    fn tcp() -> tcp::Tcb {
        let config = tcp::PathConfig::default();
        tcp::Tcb::connect(Instant::ZERO, &config.into(), 1, 2, SeqNum(0), 0)
    }

    fn path(remote: &str, floor: usize) -> PathMtu {
        PathMtu::new(remote.parse().unwrap(), 1500, floor)
    }

    // spec: MPA-9-1, TCP-PMTU-1, TCP-PMTU-2
    #[test]
    fn reported_mtu_is_clamped_to_its_range() {
        // Family, size that the router reports, size that it dropped, resulting size.
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

    // spec: TCP-PMTU-3
    #[test]
    fn reported_mtu_is_kept_for_ten_minutes() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.on_too_big(Instant::ZERO, &mut tcp, 1400, 1500);
        let at = path.poll_timeout().unwrap();
        assert_eq!(at, Instant::ZERO + Duration::from_secs(600));
        let _not_learned =
            path.handle_timeout(Instant::ZERO + Duration::from_secs(599), &mut tcp, 1500);
        assert_eq!(path.current(), 1400);
        // RFC 1191 §6.3: two minutes between steps beyond the limit.
        assert_eq!(steps(&mut path, &mut tcp), [(600, 1452), (720, 1492), (840, 1500)]);
    }

    /// Runs the steps up that follow; returns the second and the size of each.
    fn steps(path: &mut PathMtu, tcp: &mut tcp::Tcb) -> Vec<(u64, usize)> {
        let mut steps = Vec::new();
        while let Some(at) = path.poll_timeout() {
            let _not_learned = path.handle_timeout(at, tcp, 1500);
            steps.push((at.as_nanos() / 1_000_000_000, path.current()));
        }
        steps
    }

    /// A limit found from silence is stored for other connections as soon as it is clear, for two
    /// minutes; this connection tries no larger size for ten.
    #[test]
    fn black_hole_limit_is_shared_for_two_minutes() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.take(Instant::ZERO, &mut tcp, 1400);
        path.doubt = Some(Doubt { size: 1452, tried: true, wait_ns: RAISE_NS });
        let now = Instant::ZERO + Duration::from_secs(1);
        assert!(path.handle_timeout(now, &mut tcp, 1500));
        let until = now + Duration::from_secs(120);
        assert_eq!(path.known(), Some(KnownPath { size: 1400, until }));
        assert_eq!(path.poll_timeout(), Some(now + Duration::from_secs(600)));
    }

    #[test]
    fn black_hole_does_not_age_a_reported_mtu() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.on_too_big(Instant::ZERO, &mut tcp, 1452, 1500);
        // The state after a black hole: a small size that is soon raised in steps.
        let at = Instant::ZERO + Duration::from_secs(60);
        path.take(at, &mut tcp, BASE);
        path.probe_at = Some(at);
        let expected = [(60, 1400), (61, 1452), (600, 1492), (720, 1500)];
        assert_eq!(steps(&mut path, &mut tcp), expected);
    }

    #[test]
    fn path_follows_a_lowered_device_mtu_always_and_a_raised_one_if_limiting() {
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

    /// Acknowledgments before the device's MTU was lowered are no evidence for sizes above it: when
    /// it is raised again and large segments are lost, the size falls to the one confirmed since.
    #[test]
    fn lowered_device_mtu_revokes_the_confirmed_size() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        path.confirmed = 1500;
        path.on_device(Instant::ZERO, &mut tcp, 1500, 1400);
        assert_eq!((path.current, path.confirmed), (1400, 1400));
        path.on_device(Instant::ZERO, &mut tcp, 1400, 1500);
        assert_eq!((path.current, path.confirmed), (1500, 1400), "1500 is to be shown anew");
        // A limit that a router reports does the same.
        path.confirmed = 1500;
        path.on_too_big(Instant::ZERO, &mut tcp, 1300, 1500);
        assert_eq!((path.current, path.confirmed, path.ceiling), (1300, 1300, 1300));
        path.confirmed = 1000;
        path.on_too_big(Instant::ZERO, &mut tcp, 1200, 1500);
        assert_eq!(path.confirmed, 1000, "nor is it raised");
    }

    #[test]
    fn limits_of_paths_are_bounded_and_age() {
        let mut paths = KnownPaths::new((1, 2));
        let host = |n: usize| IpAddr::V4(u32::try_from(n).unwrap().into());
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let known = |seconds| KnownPath { size: 1400, until: at(seconds) };
        for n in 0..PATHS_KNOWN_MAX {
            paths.keep(at(0), host(n), known(if n == 7 { 1 } else { 600 }));
        }
        assert_eq!(paths.get(at(0), host(7)), Some(known(1)));
        assert_eq!(paths.get(at(1), host(7)), None, "too old");
        // First expired limits are evicted, then any.
        for n in PATHS_KNOWN_MAX..2 * PATHS_KNOWN_MAX {
            paths.keep(at(2), host(n), known(600));
            assert_eq!(paths.get(at(2), host(n)), Some(known(600)));
            assert_eq!(paths.by_host.len(), PATHS_KNOWN_MAX);
            let is_first = n == PATHS_KNOWN_MAX;
            assert!(!is_first || (0..n).all(|n| n == 7 || paths.get(at(2), host(n)).is_some()));
        }
        // Storing a known host again evicts no other.
        paths.keep(at(2), host(2 * PATHS_KNOWN_MAX - 1), known(700));
        assert_eq!(paths.by_host.len(), PATHS_KNOWN_MAX);
    }

    #[test]
    fn connection_starts_with_the_known_path_mtu() {
        let (mut path, mut tcp) = (path("10.0.0.2", 552), tcp());
        let known = KnownPath { size: 1400, until: Instant::ZERO + Duration::from_secs(300) };
        path.begin_with(Instant::ZERO, &mut tcp, known);
        assert_eq!((path.current(), path.known()), (1400, Some(known)));
        assert_eq!(steps(&mut path, &mut tcp), [(300, 1452), (420, 1492), (540, 1500)]);
        // A limit above the device's MTU or below the floor has no effect.
        for (size, expected) in [(9000, 1500), (1500, 1500), (100, 552)] {
            let mut path = self::path("10.0.0.2", 552);
            path.begin_with(Instant::ZERO, &mut tcp, KnownPath { size, ..known });
            assert_eq!(path.current(), expected);
        }
    }
}
