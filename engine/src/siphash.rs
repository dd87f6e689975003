//! SipHash (Aumasson, Bernstein 2012): a short hash that cannot be guessed without its key. Own
//! code: the standard library's hasher guarantees no algorithm and takes no key, but a simulation
//! is repeatable only with equal numbers everywhere; a crate for a hundred lines is one more
//! dependency.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};

/// A key of SipHash, in the order of the paper.
pub(crate) type Key = (u64, u64);

/// SipHash-C-D: C rounds for each word of input, D at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SipHasher<const C: usize, const D: usize> {
    v: [u64; 4],
    tail: u64,
    len: u64,
}

/// The variant for values that outsiders see: sequence numbers, cookies, ports.
pub(crate) type SipHasher24 = SipHasher<2, 4>;
/// The variant for hash tables, whose hashes stay inside.
pub(crate) type SipHasher13 = SipHasher<1, 3>;

impl<const C: usize, const D: usize> SipHasher<C, D> {
    pub(crate) const fn new((k0, k1): Key) -> Self {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { v, tail: 0, len: 0 }
    }

    #[inline]
    const fn round(&mut self) {
        let [mut v0, mut v1, mut v2, mut v3] = self.v;
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
        self.v = [v0, v1, v2, v3];
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        for _ in 0..C {
            self.round();
        }
        self.v[0] ^= word;
    }
}

impl<const C: usize, const D: usize> Hasher for SipHasher<C, D> {
    fn write(&mut self, octets: &[u8]) {
        for &octet in octets {
            self.tail |= u64::from(octet) << (8 * (self.len % 8));
            self.len += 1;
            if self.len.is_multiple_of(8) {
                let word = std::mem::take(&mut self.tail);
                self.word(word);
            }
        }
    }

    /// Hashes its bytes, least significant first; in one step if all input so far was whole words.
    #[inline]
    fn write_u64(&mut self, word: u64) {
        if self.len.is_multiple_of(8) {
            self.len += 8;
            self.word(word);
        } else {
            self.write(&word.to_le_bytes());
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both halves are written")]
    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }

    /// Hashes a whole word: the keys of a table have the same parts in the same order each time.
    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut last = *self;
        last.word(self.tail | (self.len << 56));
        last.v[2] ^= 0xff;
        for _ in 0..D {
            last.round();
        }
        let [a, b, c, d] = last.v;
        a ^ b ^ c ^ d
    }
}

/// Returns SipHash-2-4 of these bytes, for messages between urnic processes: the same everywhere.
#[must_use]
pub fn keyed_hash(key: (u64, u64), octets: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new(key);
    hasher.write(octets);
    hasher.finish()
}

pub(crate) fn hash_of_ends(key: Key, local: SocketAddr, remote: SocketAddr, extra: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new(key);
    for end in [local, remote] {
        match end.ip() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
        hasher.write(&end.port().to_be_bytes());
    }
    hasher.write(extra);
    hasher.finish()
}

/// Without the key outsiders cannot choose table keys that fall into one bucket.
#[derive(Clone, Copy)]
pub(crate) struct TableHash(Key);

impl fmt::Debug for TableHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableHash")
    }
}

impl TableHash {
    pub(crate) const fn new(key: Key) -> Self {
        Self(key)
    }
}

impl BuildHasher for TableHash {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher::new(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);

    /// The example of the paper's appendix A.
    #[test]
    fn the_hash_is_siphash_2_4() {
        let mut hasher = SipHasher24::new(KEY);
        hasher.write(&(0_u8..15).collect::<Vec<_>>());
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    /// The standard library uses SipHash-1-3 with a zero key, although it does not guarantee that.
    #[test]
    fn the_hash_of_tables_is_siphash_1_3() {
        let octets: Vec<u8> = (0..40).collect();
        for len in 0..octets.len() {
            let mut ours = SipHasher13::new((0, 0));
            let mut theirs = std::hash::DefaultHasher::new();
            ours.write(&octets[..len]);
            theirs.write(&octets[..len]);
            assert_eq!(ours.finish(), theirs.finish(), "{len} octets");
        }
    }

    #[test]
    fn hashing_a_word_equals_hashing_its_octets() {
        let word = 0x0102_0304_0506_0708_u64;
        for before in 0..9 {
            let (mut a, mut b) = (SipHasher13::new(KEY), SipHasher13::new(KEY));
            a.write(&vec![7; before]);
            b.write(&vec![7; before]);
            a.write_u64(word);
            b.write(&word.to_le_bytes());
            assert_eq!(a.finish(), b.finish(), "after {before} octets");
        }
    }

    #[test]
    fn hash_depends_on_the_key_and_every_word() {
        let of = |key: Key, words: [u64; 2]| TableHash::new(key).hash_one(words);
        let base = of(KEY, [1, 2]);
        assert_eq!(base, of(KEY, [1, 2]));
        for other in [of((KEY.0 ^ 1, KEY.1), [1, 2]), of((KEY.0, KEY.1 ^ 1), [1, 2])] {
            assert_ne!(other, base);
        }
        for words in [[0, 2], [1, 3], [2, 1]] {
            assert_ne!(of(KEY, words), base);
        }
        assert_ne!(
            TableHash::new(KEY).hash_one(1_u128),
            TableHash::new(KEY).hash_one(1_u128 << 64)
        );
    }
}
