//! The TCP ports that connections are opened from (RFC 6056).

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::siphash::{Key, hash_of_ends};

/// RFC 6056 §3.3.3, "Algorithm 3: Simple Hash-Based Port Selection": an outsider cannot infer the
/// ports toward one peer from those toward another. Toward one peer all ports are used before one
/// is reused, so its TIME-WAIT is rarely met. The secret determines the first port for each peer.
pub(super) struct SourcePorts {
    key: Key,
    range: RangeInclusive<u16>,
    next: u16,
}

impl std::fmt::Debug for SourcePorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourcePorts").field("range", &self.range).finish_non_exhaustive()
    }
}

impl SourcePorts {
    /// Panics if the range is empty.
    pub(super) fn new(key: Key, range: RangeInclusive<u16>) -> Self {
        assert!(!range.is_empty(), "a port to choose");
        Self { key, range, next: 0 }
    }

    pub(super) fn set_range(&mut self, range: RangeInclusive<u16>) {
        *self = Self::new(self.key, range);
    }

    pub(super) fn range(&self) -> RangeInclusive<u16> {
        self.range.clone()
    }

    /// For a connection from `local` to `remote`; `None` if no port is free.
    pub(super) fn choose(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let count = last - first + 1;
        let offset = self.offset(local, remote, count);
        for _ in 0..count {
            let turn = u32::from(self.next);
            self.next = self.next.wrapping_add(1);
            let port = u16::try_from(first + (turn + offset) % count).expect("at most `last`");
            if is_free(port) {
                return Some(port);
            }
        }
        None
    }

    /// F(local_IP, remote_IP, remote_port, secret_key), below `count`.
    fn offset(&self, local: IpAddr, remote: SocketAddr, count: u32) -> u32 {
        let hash = hash_of_ends(self.key, SocketAddr::new(local, 0), remote, &[]);
        u32::try_from(hash % u64::from(count)).expect("below `count`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn peer(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 7174).into()
    }

    #[test]
    fn every_port_is_used_before_one_repeats_toward_a_peer() {
        for range in [49_152..=u16::MAX, 32_768..=49_151, 7..=7, 0..=u16::MAX] {
            let mut ports = SourcePorts::new((1, 2), range.clone());
            let mut chosen: Vec<u16> =
                range.clone().map(|_| ports.choose(LOCAL, peer(2), |_| true).unwrap()).collect();
            assert!(chosen.windows(2).all(|two| two[0] != two[1]));
            chosen.sort_unstable();
            assert!(chosen.into_iter().eq(range));
        }
    }

    #[test]
    fn taken_port_is_skipped() {
        let mut ports = SourcePorts::new((1, 2), 100..=109);
        for _ in 0..20 {
            assert_eq!(ports.choose(LOCAL, peer(2), |port| port == 105), Some(105));
        }
        assert_eq!(ports.choose(LOCAL, peer(2), |_| false), None);
        ports.set_range(200..=200);
        assert_eq!(ports.choose(LOCAL, peer(2), |_| true), Some(200));
    }

    #[test]
    fn first_source_port_depends_on_peer_address_and_key() {
        let first = |key, local: IpAddr, remote| {
            SourcePorts::new(key, 49_152..=u16::MAX).choose(local, remote, |_| true).unwrap()
        };
        let mut begins: Vec<u16> = (0..100).map(|last| first((1, 2), LOCAL, peer(last))).collect();
        begins.extend((0..100).map(|key| first((3, key), LOCAL, peer(2))));
        begins.extend((0..100).map(|last| first((1, 2), [10, 0, 1, last].into(), peer(2))));
        begins.extend((0..100).map(|port| first((1, 2), LOCAL, ([10, 0, 0, 2], port).into())));
        // Few of four hundred coincide by chance among sixteen thousand.
        begins.sort_unstable();
        begins.dedup();
        assert!(begins.len() > 385, "{}", begins.len());
    }
}
