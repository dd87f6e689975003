//! Which peers may have a session: places and memory, for all peers and for one address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::ensure;

use crate::size;

/// Where a peer comes from, as far as it matters for its share: all addresses that one host can
/// take by itself are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

impl Source {
    pub(crate) fn of(remote: SocketAddr) -> Self {
        Self(match remote.ip().to_canonical() {
            // RFC 4291 §2.5.4: a host chooses the last 64 bits itself.
            IpAddr::V6(address) => {
                let network = u128::from(address) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(network))
            }
            v4 => v4,
        })
    }
}

/// What a session takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) source: Source,
    /// Octets.
    pub(crate) memory: u64,
}

/// What all sessions may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Peers at a time.
    pub(crate) peers_max: usize,
    /// Of those, from one address.
    pub(crate) peers_per_source_max: usize,
    /// Octets of memory of all peers.
    pub(crate) memory_max: u64,
    /// Of those, for peers of one address.
    pub(crate) memory_per_source_max: u64,
}

/// What some of them have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) peers: usize,
    /// Octets.
    pub(crate) memory: u64,
}

impl Taken {
    /// A part of it is free again.
    pub(crate) const fn give_back(&mut self, part: Self) {
        self.peers -= part.peers;
        self.memory -= part.memory;
    }
}

impl Places {
    /// Whether there is room for another one with so much `memory`, beside what `all` have, and of
    /// those the ones of `own` address.
    ///
    /// # Errors
    /// Why not, with the option of `urnic serve` that decides.
    pub(crate) fn check(&self, all: Taken, own: Taken, memory: u64) -> anyhow::Result<()> {
        let (peers, own_peers) = (all.peers, own.peers);
        let own_memory = own.memory.saturating_add(memory);
        let memory = all.memory.saturating_add(memory);
        ensure!(
            own_peers < self.peers_per_source_max,
            "{own_peers} peers of your address are being served, and no more are taken: close some, \
             or start 'urnic serve' with a larger --peers-per-address"
        );
        ensure!(
            peers < self.peers_max,
            "{peers} peers are being served ({own_peers} of them from your address), and no more \
             are taken: try later, or start 'urnic serve' with a larger --peers"
        );
        ensure!(
            memory <= self.memory_max && own_memory <= self.memory_per_source_max,
            "with this session, peers would have {} of memory ({} those of your address), and there \
             are {} ({} for one address): ask for less, try later, or start 'urnic serve' with a \
             larger --total-size",
            size::format(memory),
            size::format(own_memory),
            size::format(self.memory_max),
            size::format(self.memory_per_source_max)
        );
        Ok(())
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
        let own = sum(&|share| share.source == wanted.source);
        match PLACES.check(sum(&|_| true), own, wanted.memory) {
            Ok(()) => String::new(),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn one_address_has_its_share_of_the_places_and_not_more() {
        let (a, b) = (share("192.0.2.1:1", 0), share("192.0.2.2:1", 0));
        assert_eq!(refusal(&[a], a), "");
        assert!(refusal(&[a, a], a).contains("--peers-per-address"));
        assert_eq!(refusal(&[a, a], b), "", "another address is let in");
        assert!(
            refusal(&[a, a, b], b).contains("--peers:")
                || refusal(&[a, a, b], b).contains("larger --peers")
        );
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
    }
}
