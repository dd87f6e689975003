//! For listeners: initial sequence numbers, check of a SYN, answer to a segment for no connection.

use std::fmt;
use std::net::SocketAddr;

use super::header::{Flags, Header};
use super::seq::SeqNum;
use crate::siphash::{Key, hash_of_ends};
use crate::time::Instant;

/// Chooses initial sequence numbers and timestamp offsets that outsiders cannot predict (RFC 6528
/// §3, RFC 7323 §5.4). Equal keys give equal choices.
#[derive(Clone)]
pub(crate) struct IsnGenerator {
    key: Key,
    timestamps_key: Key,
}

impl fmt::Debug for IsnGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsnGenerator").finish_non_exhaustive()
    }
}

/// RFC 9293 §3.4.1: the clock "whose low-order bit is incremented roughly every 4 microseconds".
const ISN_TICK_NS: u64 = 4_000;

impl IsnGenerator {
    #[must_use]
    pub(crate) const fn new(key: (u64, u64), timestamps_key: (u64, u64)) -> Self {
        Self { key, timestamps_key }
    }

    /// "ISN = M + F(localip, localport, remoteip, remoteport, secretkey)" (RFC 9293 MUST-9).
    // spec: TCP-9293-4
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
    pub(crate) fn isn(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> SeqNum {
        SeqNum((now.as_nanos() / ISN_TICK_NS) as u32).plus(hash_of_ends(
            self.key,
            local,
            remote,
            &[],
        ) as u32)
    }

    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "timestamps are modulo 2^32")]
    pub(crate) fn timestamp_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        hash_of_ends(self.timestamps_key, local, remote, &[]) as u32
    }
}

/// Reason why a segment that arrived at a listener opens no connection (RFC 9293 §3.10.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SynRefusal {
    /// Not a SYN, or a SYN together with FIN or RST: drop it silently.
    #[error("not a valid SYN")]
    NotSyn,
    /// It acknowledges something a listener never sent: answer with a RST.
    #[error("a segment for no connection")]
    UnknownConnection,
    /// Too many connections are being set up: drop it, the peer retransmits its SYN.
    #[error("the backlog is full")]
    BacklogFull,
}

/// Checks that a segment to a listener is a SYN that opens a connection (RFC 9293 §3.10.7.2).
pub(crate) const fn check_syn(header: &Header) -> Result<(), SynRefusal> {
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

/// Returns the RST for a segment for no connection (RFC 9293 §3.10.7.1), unless it is a RST.
#[must_use]
pub(crate) fn reset_for(header: &Header, payload_len: usize) -> Option<Header> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn address(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], port))
    }

    // spec: TCP-9293-4
    #[test]
    fn initial_numbers_follow_a_four_microsecond_clock_and_differ_by_address() {
        let generator = IsnGenerator::new((1, 2), (3, 4));
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
        let offset = generator.timestamp_offset(local, remote);
        assert_ne!(offset, start.0);
        // Each key determines one of the two.
        let other = IsnGenerator::new((1, 3), (3, 4));
        assert_ne!(other.isn(Instant::ZERO, local, remote), start);
        assert_eq!(other.timestamp_offset(local, remote), offset);
        let other = IsnGenerator::new((1, 2), (3, 5));
        assert_eq!(other.isn(Instant::ZERO, local, remote), start);
        assert_ne!(other.timestamp_offset(local, remote), offset);
        let ends = [(address(2, 7174), remote), (address(1, 7175), remote), (remote, local)];
        for (local, remote) in ends {
            assert_ne!(generator.isn(Instant::ZERO, local, remote), start);
            assert_ne!(generator.timestamp_offset(local, remote), offset);
        }
    }

    #[test]
    fn only_a_plain_syn_opens_a_connection() {
        let check = |flags| check_syn(&Header { flags, ..Header::default() });
        assert_eq!(check(Flags::RST | Flags::SYN), Err(SynRefusal::NotSyn));
        assert_eq!(check(Flags::ACK | Flags::SYN), Err(SynRefusal::UnknownConnection));
        assert_eq!(check(Flags::FIN), Err(SynRefusal::NotSyn));
        assert_eq!(check(Flags::FIN | Flags::SYN), Err(SynRefusal::NotSyn));
        assert_eq!(check(Flags::SYN), Ok(()));
    }

    #[test]
    fn reset_has_acceptable_numbers_for_its_receiver() {
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
