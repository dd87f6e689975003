//! Limits on sessions: places and memory, for all peers and for one address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::anyhow;

use crate::size;

/// Address of a peer for its share. A host can choose all addresses of a /64 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

/// Addresses that count as one when all places are in use: an IPv4 address, or a subscriber's /48
/// of IPv6 (RFC 6177 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site(IpAddr);

impl Source {
    pub(crate) fn of(remote: SocketAddr) -> Self {
        // RFC 4291 §2.5.4: a host chooses the last 64 bits itself.
        Self(first_bits(remote.ip().to_canonical(), 64))
    }

    pub(crate) fn site(self) -> Site {
        Site(first_bits(self.0, SITE_BITS))
    }
}

fn first_bits(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V6(address) => {
            let rest = u128::BITS - bits;
            IpAddr::V6(Ipv6Addr::from(u128::from(address) >> rest << rest))
        }
        v4 => v4,
    }
}

const SITE_BITS: u32 = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) source: Source,
    pub(crate) memory: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) peers_max: usize,
    pub(crate) peers_per_source_max: usize,
    pub(crate) memory_max: u64,
    /// Bytes of memory for peers of one address.
    pub(crate) memory_per_source_max: u64,
}

/// Resources in use by some sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) peers: usize,
    pub(crate) memory: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    PeersOfSource,
    Peers,
    MemoryOfSource,
    Memory,
}

impl Taken {
    pub(crate) const fn give_back(&mut self, part: Self) {
        self.peers -= part.peers;
        self.memory -= part.memory;
    }
}

impl Places {
    /// Finds the limit that leaves no room for `memory` more bytes, given the sums of `all`
    /// sessions and of its `own` address. The address's limits come first, independent of others.
    pub(crate) const fn shortage(&self, all: Taken, own: Taken, memory: u64) -> Option<Shortage> {
        if own.peers >= self.peers_per_source_max {
            Some(Shortage::PeersOfSource)
        } else if own.memory.saturating_add(memory) > self.memory_per_source_max {
            Some(Shortage::MemoryOfSource)
        } else if all.peers >= self.peers_max {
            Some(Shortage::Peers)
        } else if all.memory.saturating_add(memory) > self.memory_max {
            Some(Shortage::Memory)
        } else {
            None
        }
    }

    /// Names the option of `urnic serve` that decides.
    pub(crate) fn refusal(
        &self,
        shortage: Shortage,
        all: Taken,
        own: Taken,
        memory: u64,
    ) -> anyhow::Error {
        let (peers, own_peers) = (all.peers, own.peers);
        match shortage {
            Shortage::PeersOfSource => anyhow!(
                "{own_peers} peers of your address are being served, which is the limit: close \
                 some, or start 'urnic serve' with a larger --peers-per-address"
            ),
            Shortage::Peers => anyhow!(
                "{peers} peers are being served ({own_peers} of them from your address), which is \
                 the limit: try later, or start 'urnic serve' with a larger --peers"
            ),
            Shortage::MemoryOfSource | Shortage::Memory => anyhow!(
                "with this session, peers would have {} of memory ({} those of your address), and \
                 there are {} ({} for one address): ask for less, try later, or start 'urnic serve' \
                 with a larger --total-size",
                size::format(all.memory.saturating_add(memory)),
                size::format(own.memory.saturating_add(memory)),
                size::format(self.memory_max),
                size::format(self.memory_per_source_max)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places {
        peers_max: 3,
        peers_per_source_max: 2,
        memory_max: 100,
        memory_per_source_max: 60,
    };

    fn share(remote: &str, memory: u64) -> Share {
        Share { source: Source::of(remote.parse().unwrap()), memory }
    }

    fn refusal(taken: &[Share], wanted: Share) -> String {
        let sum = |of: &dyn Fn(&&Share) -> bool| {
            let of_them: Vec<_> = taken.iter().filter(of).collect();
            let memory = of_them.iter().map(|share| share.memory).sum();
            Taken { peers: of_them.len(), memory }
        };
        let (all, own) = (sum(&|_| true), sum(&|share| share.source == wanted.source));
        let shortage = PLACES.shortage(all, own, wanted.memory);
        shortage.map_or_else(String::new, |shortage| {
            PLACES.refusal(shortage, all, own, wanted.memory).to_string()
        })
    }

    #[test]
    fn one_address_has_its_share_of_the_places_and_not_more() {
        let (a, b) = (share("192.0.2.1:1", 0), share("192.0.2.2:1", 0));
        assert_eq!(refusal(&[a], a), "");
        assert!(refusal(&[a, a], a).contains("--peers-per-address"));
        assert_eq!(refusal(&[a, a], b), "", "another address is let in");
        assert!(refusal(&[a, a, b], b).ends_with("larger --peers"));
    }

    #[test]
    fn memory_is_shared_in_the_same_way() {
        let (a, b) = (|memory| share("192.0.2.1:1", memory), |memory| share("192.0.2.2:1", memory));
        assert_eq!(refusal(&[], a(60)), "");
        assert!(refusal(&[], a(61)).contains("--total-size"));
        assert!(refusal(&[a(30)], a(31)).contains("--total-size"));
        assert_eq!(refusal(&[a(60)], b(40)), "");
        assert!(refusal(&[a(60)], b(41)).contains("--total-size"));
        assert!(refusal(&[a(60)], a(u64::MAX)).contains("--total-size"), "a sum beyond 64 bits");
    }

    #[test]
    fn addresses_that_one_host_can_take_are_one() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff:ffff:ffff:ffff]:6"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
        assert_eq!(of("192.0.2.1:5"), of("[::ffff:192.0.2.1]:5"));
        assert_ne!(of("192.0.2.1:5"), of("192.0.2.2:5"));
        let site = |text: &str| of(text).site();
        assert_eq!(site("[2001:db8::1]:5"), site("[2001:db8:0:ffff::1]:5"));
        assert_ne!(site("[2001:db8::1]:5"), site("[2001:db8:1::1]:5"));
        assert_eq!(site("192.0.2.1:5"), site("[::ffff:192.0.2.1]:6"));
        assert_ne!(site("192.0.2.1:5"), site("192.0.2.2:5"));
    }
}
