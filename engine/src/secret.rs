//! Secrets that peers must not guess: a seed, and a key for each purpose derived from it. Outputs
//! of one key reveal nothing about the other keys: each is a block of the ChaCha20 keystream (RFC
//! 8439 §2.3) under the seed, with a nonce that identifies the purpose.

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::siphash::Key;

/// 32 bytes from which all randomness of an [`Rnic`](crate::verbs::Rnic) is derived:
/// `urnic::random_seed`, or for a repeatable run `Seed::from(1_u64)`, which others can guess.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; Self::LEN]);

impl Seed {
    /// Bytes of a seed.
    pub const LEN: usize = 32;

    /// A seed of these bytes, which should come from a source of randomness.
    #[must_use]
    pub const fn from_octets(octets: [u8; Self::LEN]) -> Self {
        Self(octets)
    }

    pub(crate) fn key(&self, purpose: Purpose, user: u32) -> [u8; Self::LEN] {
        let mut keystream = ChaCha20Rng::from_seed(self.0);
        keystream.set_stream((purpose as u64) << 32 | u64::from(user));
        let mut key = [0; Self::LEN];
        keystream.fill_bytes(&mut key);
        key
    }

    /// The ports of one interface share their keys: a cookie may return to another port.
    pub(crate) fn port_keys(&self) -> PortKeys {
        PortKeys {
            sequence_numbers: self.hash_key(Purpose::SequenceNumbers),
            timestamps: self.hash_key(Purpose::Timestamps),
            cookies: self.hash_key(Purpose::Cookies),
            source_ports: self.hash_key(Purpose::SourcePorts),
            tables: self.hash_key(Purpose::Tables),
            host_sequence_numbers: self.hash_key(Purpose::HostSequenceNumbers),
        }
    }

    fn hash_key(&self, purpose: Purpose) -> Key {
        let key = self.key(purpose, 0);
        let (words, _) = key.as_chunks();
        (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
    }
}

/// Makes the seed of a repeatable run: the number determines each key.
impl From<u64> for Seed {
    fn from(number: u64) -> Self {
        let mut octets = [0; Self::LEN];
        ChaCha20Rng::seed_from_u64(number).fill_bytes(&mut octets);
        Self(octets)
    }
}

/// Hides the bytes: others can read traces and panics.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(…)")
    }
}

/// A key of SipHash for each purpose of a port. Not printed.
pub(crate) struct PortKeys {
    pub(crate) sequence_numbers: Key,
    pub(crate) timestamps: Key,
    pub(crate) cookies: Key,
    pub(crate) source_ports: Key,
    pub(crate) tables: Key,
    pub(crate) host_sequence_numbers: Key,
}

/// Two purposes with the same number would have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Steering tags (RFC 5040 §8.1.1 (8)).
    Stags = 1,
    /// Initial sequence numbers (RFC 6528 §3).
    SequenceNumbers = 2,
    /// Offsets of the timestamp clock (RFC 7323 §5.4).
    Timestamps = 3,
    /// SYN cookies (RFC 4987 §3.6).
    Cookies = 4,
    /// TCP ports of connections opened by this end (RFC 6056 §3.3.3).
    SourcePorts = 5,
    /// Hash tables that outsiders fill.
    Tables = 6,
    /// Randomness of the host stack; each port is a user.
    HostStack = 7,
    /// Initial sequence numbers of the host stack's connections.
    HostSequenceNumbers = 8,
}

#[cfg(test)]
impl Purpose {
    pub(crate) const ALL: [Self; 8] = [
        Self::Stags,
        Self::SequenceNumbers,
        Self::Timestamps,
        Self::Cookies,
        Self::SourcePorts,
        Self::Tables,
        Self::HostStack,
        Self::HostSequenceNumbers,
    ];
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns all runs of eight bytes of a key.
    fn windows(key: [u8; Seed::LEN]) -> Vec<[u8; 8]> {
        key.windows(8).map(|window| window.try_into().unwrap()).collect()
    }

    #[test]
    fn no_two_keys_have_eight_octets_in_common_and_none_has_any_of_the_seed() {
        let mut seen = HashSet::new();
        for number in 0..4_u64 {
            let seed = Seed::from(number);
            assert!(windows(seed.0).into_iter().all(|window| seen.insert(window)), "the seed");
            for purpose in Purpose::ALL {
                for user in [0, 1, u32::MAX] {
                    let fresh =
                        windows(seed.key(purpose, user)).into_iter().all(|part| seen.insert(part));
                    assert!(fresh, "seed {number} {purpose:?} {user}");
                }
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_keys_and_each_octet_counts() {
        let octets = [7; Seed::LEN];
        let of = |octets| Seed::from_octets(octets).key(Purpose::Stags, 0);
        assert_eq!(of(octets), of(octets));
        for at in 0..Seed::LEN {
            let mut other = octets;
            other[at] ^= 0x80;
            assert_ne!(of(other), of(octets), "octet {at}");
        }
    }

    #[test]
    fn a_hash_key_is_the_front_of_the_key() {
        let seed = Seed::from(3);
        let (low, high) = seed.hash_key(Purpose::Cookies);
        let key = seed.key(Purpose::Cookies, 0);
        assert_eq!(key[..8], low.to_le_bytes());
        assert_eq!(key[8..16], high.to_le_bytes());
    }

    #[test]
    fn a_port_has_another_key_for_each_purpose() {
        let keys = Seed::from(3).port_keys();
        let mut all = HashSet::new();
        let PortKeys { sequence_numbers, timestamps, cookies, source_ports, tables, .. } = keys;
        for key in [sequence_numbers, timestamps, cookies, source_ports, tables] {
            assert!(all.insert(key.0) && all.insert(key.1));
        }
        let host = keys.host_sequence_numbers;
        assert!(all.insert(host.0) && all.insert(host.1));
    }

    #[test]
    fn a_seed_is_not_printed() {
        let printed = format!("{:?} {:x?}", Seed::from_octets([0xab; 32]), Seed::from(1));
        assert_eq!(printed, "Seed(…) Seed(…)");
    }
}
