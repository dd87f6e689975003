//! What a listener needs: initial sequence numbers, the check of a SYN, the answer to a segment
//! that no connection wants.

use std::net::{IpAddr, SocketAddr};

use super::header::{Flags, Header};
use super::seq::SeqNum;
use crate::limits::LISTEN_BACKLOG_MAX;
use crate::time::Instant;

/// Chooses initial sequence numbers and timestamp offsets that outsiders cannot predict
/// (RFC 6528 §3, RFC 7323 §5.4). The same key gives the same choices.
#[derive(Clone, Debug)]
pub struct IsnGenerator {
    key: (u64, u64),
}

/// RFC 9293 §3.4.1: the clock "whose low-order bit is incremented roughly every 4 microseconds".
const ISN_TICK_NS: u64 = 4_000;

impl IsnGenerator {
    /// A generator with this secret key, which should come from a source of randomness.
    #[must_use]
    pub const fn new(key: (u64, u64)) -> Self {
        Self { key }
    }

    /// RFC 9293 MUST-9: "ISN = M + F(localip, localport, remoteip, remoteport, secretkey)".
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
    pub fn isn(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> SeqNum {
        SeqNum((now.as_nanos() / ISN_TICK_NS) as u32).plus(self.hash(0, local, remote) as u32)
    }

    /// What to add to the timestamp clock of a connection between these addresses.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "timestamps are modulo 2^32")]
    pub fn timestamp_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.hash(1, local, remote) as u32
    }

    fn hash(&self, purpose: u8, local: SocketAddr, remote: SocketAddr) -> u64 {
        keyed_hash(self.key, purpose, local, remote, &[])
    }
}

/// A hash of two addresses and more under a secret key, for one of several purposes.
pub(super) fn keyed_hash(
    key: (u64, u64),
    purpose: u8,
    local: SocketAddr,
    remote: SocketAddr,
    extra: &[u8],
) -> u64 {
    let mut hasher = SipHasher24::new(key);
    hasher.write(&[purpose]);
    for address in [local, remote] {
        match address.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write(&address.port().to_be_bytes());
    }
    hasher.write(extra);
    hasher.finish()
}

/// Why a segment that arrived at a listener opens no connection (RFC 9293 §3.10.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SynRefusal {
    /// Not a SYN, or a SYN together with FIN or RST: drop it silently.
    #[error("not a valid SYN")]
    NotSyn,
    /// It acknowledges something a listener never sent: answer with [`reset_for`].
    #[error("a segment for no connection")]
    UnknownConnection,
    /// Too many connections are being set up: drop it, the peer tries again.
    #[error("the backlog is full")]
    BacklogFull,
}

/// Counts the connections of a listener that are not handed over yet.
#[derive(Clone, Debug)]
pub struct Backlog {
    pending: usize,
    max: usize,
}

impl Backlog {
    /// Room for `max` connections, at most `limits::LISTEN_BACKLOG_MAX`.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { pending: 0, max: max.clamp(1, LISTEN_BACKLOG_MAX) }
    }

    /// Connections counted now.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.pending
    }

    /// Checks a segment that belongs to no connection and counts the one it opens.
    ///
    /// # Errors
    /// When it opens none; nothing is counted then.
    pub fn admit(&mut self, header: &Header) -> Result<(), SynRefusal> {
        check_syn(header)?;
        self.reserve()
    }

    /// Counts a connection that was opened otherwise, by a cookie.
    ///
    /// # Errors
    /// [`SynRefusal::BacklogFull`]; nothing is counted then.
    pub const fn reserve(&mut self) -> Result<(), SynRefusal> {
        if self.pending >= self.max {
            return Err(SynRefusal::BacklogFull);
        }
        self.pending += 1;
        Ok(())
    }

    /// A counted connection was handed over, or is gone.
    ///
    /// # Panics
    /// When none is counted: a caller's bug.
    pub fn release(&mut self) {
        self.pending = self.pending.checked_sub(1).expect("released once per admission");
    }
}

/// RFC 9293 §3.10.7.2: whether a segment to a listener is a SYN that opens a connection.
///
/// # Errors
/// When it is not; the refusal says what to do.
pub const fn check_syn(header: &Header) -> Result<(), SynRefusal> {
    let flags = header.flags;
    if flags.contains(Flags::RST) {
        return Err(SynRefusal::NotSyn);
    }
    if flags.contains(Flags::ACK) {
        return Err(SynRefusal::UnknownConnection);
    }
    if !flags.contains(Flags::SYN) || flags.contains(Flags::FIN) {
        return Err(SynRefusal::NotSyn);
    }
    Ok(())
}

/// The RST that answers a segment which no connection wants (RFC 9293 §3.10.7.1); `None` for a RST.
#[must_use]
pub fn reset_for(header: &Header, payload_len: usize) -> Option<Header> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let mut reset =
        Header { src_port: header.dst_port, dst_port: header.src_port, ..Header::default() };
    if header.flags.contains(Flags::ACK) {
        reset.seq = header.ack;
        reset.flags = Flags::RST;
    } else {
        let control = u32::from(header.flags.contains(Flags::SYN))
            + u32::from(header.flags.contains(Flags::FIN));
        let len = u32::try_from(payload_len).unwrap_or(u32::MAX).wrapping_add(control);
        reset.ack = header.seq.plus(len);
        reset.flags = Flags::RST | Flags::ACK;
    }
    Some(reset)
}

/// SipHash-2-4 (Aumasson, Bernstein 2012). The standard library's hasher promises no algorithm, and
/// this one must give the same numbers everywhere for a simulation to repeat.
struct SipHasher24 {
    v: [u64; 4],
    tail: u64,
    len: u64,
}

impl SipHasher24 {
    const fn new((k0, k1): (u64, u64)) -> Self {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { v, tail: 0, len: 0 }
    }

    const fn round(v: [u64; 4]) -> [u64; 4] {
        let [mut v0, mut v1, mut v2, mut v3] = v;
        v0 = v0.wrapping_add(v1);
        v2 = v2.wrapping_add(v3);
        v1 = v1.rotate_left(13) ^ v0;
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.rotate_left(32);
        v2 = v2.wrapping_add(v1);
        v0 = v0.wrapping_add(v3);
        v1 = v1.rotate_left(17) ^ v2;
        v3 = v3.rotate_left(21) ^ v0;
        v2 = v2.rotate_left(32);
        [v0, v1, v2, v3]
    }

    fn word(mut v: [u64; 4], word: u64) -> [u64; 4] {
        v[3] ^= word;
        v = Self::round(Self::round(v));
        v[0] ^= word;
        v
    }

    fn write(&mut self, octets: &[u8]) {
        for &octet in octets {
            self.tail |= u64::from(octet) << (8 * (self.len % 8));
            self.len += 1;
            if self.len.is_multiple_of(8) {
                self.v = Self::word(self.v, self.tail);
                self.tail = 0;
            }
        }
    }

    fn finish(&self) -> u64 {
        let mut v = Self::word(self.v, self.tail | (self.len << 56));
        v[2] ^= 0xff;
        for _ in 0..4 {
            v = Self::round(v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn address(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], port))
    }

    /// The example of the paper's appendix A.
    #[test]
    fn the_hash_is_siphash_2_4() {
        let key = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let mut hasher = SipHasher24::new(key);
        hasher.write(&(0_u8..15).collect::<Vec<_>>());
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn initial_numbers_follow_a_four_microsecond_clock_and_differ_by_address() {
        let generator = IsnGenerator::new((1, 2));
        let (local, remote) = (address(1, 7174), address(2, 40_000));
        let start = generator.isn(Instant::ZERO, local, remote);
        let later = Instant::ZERO + Duration::from_secs(1);
        let second = generator.isn(later, local, remote);
        assert_eq!(second.distance_from(start), 250_000);
        let mut seen: Vec<u32> =
            (0..1000).map(|port| generator.isn(Instant::ZERO, local, address(2, port)).0).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
        assert_ne!(IsnGenerator::new((1, 3)).isn(Instant::ZERO, local, remote), start);
        assert_ne!(generator.timestamp_offset(local, remote), start.0);
    }

    #[test]
    fn only_a_plain_syn_opens_a_connection_and_the_backlog_has_an_end() {
        let with = |flags| Header { flags, ..Header::default() };
        let mut backlog = Backlog::new(1);
        assert_eq!(backlog.admit(&with(Flags::RST | Flags::SYN)), Err(SynRefusal::NotSyn));
        assert_eq!(
            backlog.admit(&with(Flags::ACK | Flags::SYN)),
            Err(SynRefusal::UnknownConnection)
        );
        assert_eq!(backlog.admit(&with(Flags::FIN)), Err(SynRefusal::NotSyn));
        assert_eq!(backlog.admit(&with(Flags::FIN | Flags::SYN)), Err(SynRefusal::NotSyn));
        assert_eq!(backlog.admit(&with(Flags::SYN)), Ok(()));
        assert_eq!(backlog.admit(&with(Flags::SYN)), Err(SynRefusal::BacklogFull));
        backlog.release();
        assert_eq!(backlog.admit(&with(Flags::SYN)), Ok(()));
        assert_eq!(backlog.pending(), 1);
    }

    #[test]
    fn a_reset_is_acceptable_to_whoever_sent_the_segment() {
        let (seq, ack) = (SeqNum(u32::MAX), SeqNum(9));
        let base = Header { src_port: 1, dst_port: 2, seq, ack, ..Header::default() };
        let with = |flags| Header { flags, ..base.clone() };
        let reset = reset_for(&with(Flags::ACK), 5).unwrap();
        assert_eq!((reset.seq, reset.flags), (SeqNum(9), Flags::RST));
        assert_eq!((reset.src_port, reset.dst_port), (2, 1));
        let reset = reset_for(&with(Flags::SYN), 5).unwrap();
        assert_eq!((reset.seq, reset.ack), (SeqNum(0), SeqNum(5)));
        assert_eq!(reset.flags, Flags::RST | Flags::ACK);
        assert_eq!(reset_for(&with(Flags::RST), 0), None);
    }
}
