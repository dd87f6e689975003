//! SYN cookies (RFC 4987 §3.6): a listener whose backlog is full answers without keeping state.
//!
//! ```text
//! ISN of the SYN-ACK:  | MSS class (3) | keyed hash of ends, peer's ISN, MSS class, period (29) |
//! its timestamp:       | clock (27)    | SACK (1) | window scale shift, 15: none (4)            |
//! ```
//!
//! The peer's ACK returns both. Window scaling and SACK are agreed on only with timestamps, whose
//! bytes hold them, unsigned: a peer that changes them harms only its own connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::config::PathConfig;
use super::connection::Tcb;
use super::header::Ecn;
use super::header::{Flags, Header, Options, Timestamps};
use super::recv::{SHIFT_MAX, shift_for};
use super::seq::SeqNum;
use crate::siphash::{Key, hash_of_ends};
use crate::time::Instant;

#[derive(Clone)]
pub(crate) struct SynCookies {
    key: Key,
}

impl fmt::Debug for SynCookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SynCookies").finish_non_exhaustive()
    }
}

/// The addresses of both ends, and the offset that hides the connection's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CookieEnds {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// See [`IsnGenerator::timestamp_offset`](super::IsnGenerator::timestamp_offset).
    pub ts_offset: u32,
}

/// A cookie is valid in the period it was made in and in the next.
const PERIOD_NS: u64 = 64_000_000_000;
pub(crate) const COOKIE_VALID_NS: u64 = 2 * PERIOD_NS;
/// Values that the peer's MSS is rounded down to, so that it fits three bits.
const MSS_CLASSES: [u16; 8] = [64, 536, 1200, 1360, 1440, 1460, 4312, 8940];
const HASH_BITS: u32 = 29;
const HASH_MASK: u32 = (1 << HASH_BITS) - 1;

const SHIFT_MASK: u32 = 15;
const SHIFT_NONE: u32 = 15;
const SACK_BIT: u32 = 16;
const CHOICES_MASK: u32 = SHIFT_MASK | SACK_BIT;
const TICK_NS: u64 = 1_000_000;

impl SynCookies {
    #[must_use]
    pub(crate) const fn new(key: (u64, u64)) -> Self {
        Self { key }
    }

    /// Returns the SYN-ACK that answers `syn`, which [`check_syn`](super::check_syn) has accepted.
    #[must_use]
    pub(crate) fn answer(
        &self,
        now: Instant,
        config: &PathConfig,
        syn: &Header,
        ends: &CookieEnds,
    ) -> Header {
        let class = mss_class(syn.options.mss.unwrap_or(config.mss_default));
        let theirs = syn.options.timestamps.filter(|_| config.timestamps);
        let scale = syn.options.window_scale.filter(|_| theirs.is_some() && config.window_scaling);
        let sack = theirs.is_some() && syn.options.sack_permitted && config.sack;
        let timestamps = theirs.map(|theirs| {
            let shift = scale.map_or(SHIFT_NONE, |shift| u32::from(shift.min(SHIFT_MAX)));
            let choices = shift | if sack { SACK_BIT } else { 0 };
            Timestamps { value: with_choices(clock(now, ends), choices), echo: theirs.value }
        });
        Header {
            src_port: syn.dst_port,
            dst_port: syn.src_port,
            seq: self.cookie(period(now), class, syn.seq, ends),
            ack: syn.seq.plus(1),
            flags: Flags::SYN | Flags::ACK,
            window: u16::try_from(config.window_bytes).unwrap_or(u16::MAX),
            // RFC 4987 §3.6: a cookie has no room for more; the connection does not use ECN.
            ecn: Ecn::NotCapable,
            options: Options {
                mss: Some(config.mss_receive),
                window_scale: scale.map(|_| shift_for(config.window_bytes)),
                sack_permitted: sack,
                timestamps,
                ..Options::default()
            },
        }
    }

    /// Returns the connection, in SYN-RECEIVED, that an ACK with a cookie of ours opens; the caller
    /// must hand it the same segment next.
    #[must_use]
    pub(crate) fn redeem(
        &self,
        now: Instant,
        config: &Arc<PathConfig>,
        ack: &Header,
        ends: &CookieEnds,
    ) -> Option<Tcb> {
        let unwanted = Flags::SYN | Flags::RST;
        if !ack.flags.contains(Flags::ACK) || ack.flags.intersects(unwanted) {
            return None;
        }
        let isn = SeqNum(ack.ack.0.wrapping_sub(1));
        let peer_isn = SeqNum(ack.seq.0.wrapping_sub(1));
        let class = (isn.0 >> HASH_BITS) as usize;
        let current = period(now);
        let is_ours = [current, current.wrapping_sub(1)]
            .into_iter()
            .any(|period| self.cookie(period, class, peer_isn, ends) == isn);
        if !is_ours {
            return None;
        }
        // The options of the SYN, as far as they are known.
        let echoed = ack.options.timestamps.filter(|_| config.timestamps);
        let choices = echoed.map_or(SHIFT_NONE, |echoed| echoed.echo & CHOICES_MASK);
        let shift = Some(choices & SHIFT_MASK).filter(|shift| *shift != SHIFT_NONE);
        let syn = Header {
            seq: peer_isn,
            flags: Flags::SYN,
            options: Options {
                mss: Some(MSS_CLASSES[class]),
                window_scale: shift.and_then(|shift| u8::try_from(shift).ok()),
                sack_permitted: choices & SACK_BIT != 0,
                timestamps: echoed,
                ..Options::default()
            },
            ..ack.clone()
        };
        let mut connection = Tcb::accept(now, config, &syn, isn, ends.ts_offset);
        connection.syn_went_out(now);
        Some(connection)
    }

    fn cookie(&self, period: u64, class: usize, peer_isn: SeqNum, ends: &CookieEnds) -> SeqNum {
        let mut extra = [0; 13];
        extra[..8].copy_from_slice(&period.to_be_bytes());
        extra[8..12].copy_from_slice(&peer_isn.0.to_be_bytes());
        let class = u32::try_from(class).expect("eight classes");
        extra[12] = class.to_be_bytes()[3];
        let hash = hash_of_ends(self.key, ends.local, ends.remote, &extra);
        let [_, _, _, _, a, b, c, d] = hash.to_be_bytes();
        SeqNum(class << HASH_BITS | u32::from_be_bytes([a, b, c, d]) & HASH_MASK)
    }
}

const fn period(now: Instant) -> u64 {
    now.as_nanos() / PERIOD_NS
}

#[expect(clippy::cast_possible_truncation, reason = "timestamps are ticks modulo 2^32")]
const fn clock(now: Instant, ends: &CookieEnds) -> u32 {
    ends.ts_offset.wrapping_add((now.as_nanos() / TICK_NS) as u32)
}

/// Returns the latest clock value not after `clock` whose low bits are `choices`: the connection's
/// timestamps must not be older than its SYN-ACK's.
const fn with_choices(clock: u32, choices: u32) -> u32 {
    let value = clock & !CHOICES_MASK | choices;
    if value & CHOICES_MASK > clock & CHOICES_MASK {
        value.wrapping_sub(CHOICES_MASK + 1)
    } else {
        value
    }
}

fn mss_class(mss: u16) -> usize {
    MSS_CLASSES.iter().rposition(|class| *class <= mss).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::State;
    use crate::time::Duration;

    fn ends(port: u16) -> CookieEnds {
        let (local, remote) = (([10, 0, 0, 2], 7174), ([10, 0, 0, 1], port));
        CookieEnds { local: local.into(), remote: remote.into(), ts_offset: 0xffff_fff0 }
    }

    fn syn(options: Options) -> Header {
        let (src_port, dst_port) = (4000, 7174);
        Header {
            src_port,
            dst_port,
            seq: SeqNum(u32::MAX),
            flags: Flags::SYN,
            options,
            ..Header::default()
        }
    }

    fn reply_to(answer: &Header) -> Header {
        let timestamps = answer
            .options
            .timestamps
            .map(|theirs| Timestamps { value: theirs.echo.wrapping_add(3), echo: theirs.value });
        Header {
            src_port: answer.dst_port,
            dst_port: answer.src_port,
            seq: answer.ack,
            ack: answer.seq.plus(1),
            flags: Flags::ACK,
            window: 100,
            ecn: Ecn::NotCapable,
            options: Options { timestamps, ..Options::default() },
        }
    }

    fn rich() -> Options {
        Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 77, echo: 0 }),
            ..Options::default()
        }
    }

    #[test]
    fn redeemed_cookie_restores_the_options_of_the_syn() {
        let (cookies, config) = (SynCookies::new((1, 2)), Arc::new(PathConfig::default()));
        for at in (0..200).map(|ms| Instant::ZERO + Duration::from_millis(ms)) {
            let answer = cookies.answer(at, &config, &syn(rich()), &ends(4000));
            assert_eq!(answer.options.window_scale, Some(shift_for(config.window_bytes)));
            let later = at + Duration::from_secs(60);
            let ack = reply_to(&answer);
            let mut connection = cookies.redeem(later, &config, &ack, &ends(4000)).unwrap();
            let arrival = connection.handle_segment(later, &ack, 0, 1);
            assert_eq!((connection.state(), arrival.drop), (State::Established, None));
            // Window 100 scaled by the peer's 7; 12 bytes of timestamps off the EMSS.
            assert_eq!(connection.emss(), 1448);
            assert!(connection.send_budget(later).bytes > 0);
            let own = connection.record_sent(later, 8, 8, true).options.timestamps.unwrap();
            let first = answer.options.timestamps.unwrap();
            assert!(own.value.wrapping_sub(first.value).cast_signed() >= 0, "time goes forward");
            assert_eq!(own.echo, 80);
        }
    }

    #[test]
    fn without_timestamps_nothing_else_is_agreed_on() {
        let (cookies, config) = (SynCookies::new((1, 2)), Arc::new(PathConfig::default()));
        let plain = Options { timestamps: None, mss: None, ..rich() };
        let answer = cookies.answer(Instant::ZERO, &config, &syn(plain), &ends(4000));
        assert_eq!((answer.options.window_scale, answer.options.sack_permitted), (None, false));
        let ack = reply_to(&answer);
        let connection = cookies.redeem(Instant::ZERO, &config, &ack, &ends(4000)).unwrap();
        assert_eq!(connection.emss(), 536, "536 is what a SYN without MSS stands for");
    }

    #[test]
    fn a_cookie_is_good_for_one_peer_and_not_for_long() {
        let (cookies, config) = (SynCookies::new((1, 2)), Arc::new(PathConfig::default()));
        let answer = cookies.answer(Instant::ZERO, &config, &syn(rich()), &ends(4000));
        let ack = reply_to(&answer);
        let redeem = |cookies: &SynCookies, now: Instant, ack: &Header, ends: &CookieEnds| {
            cookies.redeem(now, &config, ack, ends).is_some()
        };
        assert!(redeem(&cookies, Instant::ZERO, &ack, &ends(4000)));
        assert!(!redeem(&cookies, Instant::ZERO, &ack, &ends(4001)));
        assert!(!redeem(&SynCookies::new((1, 3)), Instant::ZERO, &ack, &ends(4000)));
        let late = Instant::ZERO + Duration::from_nanos(COOKIE_VALID_NS);
        assert!(!redeem(&cookies, late, &ack, &ends(4000)));
        for bit in 0..32 {
            let forged = Header { ack: SeqNum(ack.ack.0 ^ 1 << bit), ..ack.clone() };
            assert!(!redeem(&cookies, Instant::ZERO, &forged, &ends(4000)), "bit {bit}");
            let forged = Header { seq: SeqNum(ack.seq.0 ^ 1 << bit), ..ack.clone() };
            assert!(!redeem(&cookies, Instant::ZERO, &forged, &ends(4000)), "bit {bit}");
        }
        for flags in [Flags::RST | Flags::ACK, Flags::SYN | Flags::ACK, Flags::empty()] {
            let odd = Header { flags, ..ack.clone() };
            assert!(!redeem(&cookies, Instant::ZERO, &odd, &ends(4000)));
        }
    }

    #[test]
    fn an_mss_is_never_rounded_up() {
        for mss in [64, 535, 536, 1459, 1460, 8939, 8940, u16::MAX] {
            assert!(MSS_CLASSES[mss_class(mss)] <= mss);
        }
        assert_eq!(mss_class(1), 0);
    }

    /// A cookie is valid in the period after its own, and not in the one after that.
    #[test]
    fn a_cookie_outlives_the_period_it_was_made_in_by_one() {
        let (cookies, config) = (SynCookies::new((1, 2)), Arc::new(PathConfig::default()));
        let made_at = Instant::from_nanos(PERIOD_NS - 1_000_000);
        let answer = cookies.answer(made_at, &config, &syn(rich()), &ends(4000));
        let ack = reply_to(&answer);
        let redeemed = |at_ns| {
            let now = Instant::from_nanos(at_ns);
            cookies.redeem(now, &config, &ack, &ends(4000)).is_some()
        };
        assert!(redeemed(PERIOD_NS - 1) && redeemed(PERIOD_NS) && redeemed(2 * PERIOD_NS - 1));
        assert!(!redeemed(2 * PERIOD_NS));
    }

    /// The SYN-ACK was sent as a cookie: the connection sends none of its own at first, and its
    /// next one is a retransmission.
    #[test]
    fn first_syn_ack_after_a_cookie_is_a_retransmission() {
        let (cookies, config, now) =
            (SynCookies::new((1, 2)), Arc::new(PathConfig::default()), Instant::ZERO);
        let answer = cookies.answer(now, &config, &syn(rich()), &ends(4000));
        let redeemed = cookies.redeem(now, &config, &reply_to(&answer), &ends(4000));
        let mut connection = redeemed.unwrap();
        assert_eq!(connection.poll_transmit(now), None);
        let later = connection.poll_timeout().unwrap();
        connection.handle_timeout(later);
        let again = connection.poll_transmit(later).unwrap();
        assert!(again.retransmission);
        assert_eq!((again.header.flags, again.header.seq), (answer.flags, answer.seq));
    }

    /// The low bits of the timestamp repeat the options of the SYN; and the connection's own clock
    /// is never behind it, not even at the same instant.
    #[test]
    fn choices_survive_in_the_timestamp() {
        let (cookies, config) = (SynCookies::new((1, 2)), Arc::new(PathConfig::default()));
        for (theirs, ours) in [(0, 0), (7, 7), (14, 14), (15, 14), (255, 14)] {
            for sack_permitted in [false, true] {
                for at in (0..40).map(|ms| Instant::ZERO + Duration::from_millis(ms)) {
                    let asked = Options { window_scale: Some(theirs), sack_permitted, ..rich() };
                    let answer = cookies.answer(at, &config, &syn(asked), &ends(4000));
                    assert_eq!(answer.options.sack_permitted, sack_permitted);
                    let ack = Header { window: 1, ..reply_to(&answer) };
                    let redeemed = cookies.redeem(at, &config, &ack, &ends(4000));
                    let mut connection = redeemed.unwrap();
                    connection.handle_segment(at, &ack, 0, 1);
                    assert_eq!(connection.snd.window_room(), 1 << ours);
                    assert_eq!(connection.snd.has_sack(), sack_permitted);
                    connection.acks.owe();
                    let own = connection.poll_ack(at).unwrap().options.timestamps.unwrap();
                    let first = answer.options.timestamps.unwrap();
                    assert!(own.value.wrapping_sub(first.value) < 32, "it goes forward");
                }
            }
        }
    }
}
