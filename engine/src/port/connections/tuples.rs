//! Look-up of the connection that a segment belongs to: the port's own table, and the table of
//! owners. Addresses enter and leave both tables together and only here: no two queues of the
//! interface have a connection with the same addresses. The argument `is` of a look-up returns true
//! if the connection with a number has the addresses that are looked for.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::port::connections::table::Table;
use crate::port::tuple::Tuple;
use crate::siphash::{Key, TableHash};

/// Table of owners: the queue of an interface that has the connection.
type Owners = HashMap<Tuple, usize, TableHash>;

#[derive(Debug)]
pub(super) struct Tuples {
    numbers: Table,
    hash: TableHash,
    last_hit: Option<(Tuple, u32)>,
    claims: Option<Claims>,
}

#[derive(Clone, Debug)]
struct Claims {
    index: usize,
    owners: Arc<Mutex<Owners>>,
}

/// Error: the addresses belong to another connection, of this port or of another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::port) struct Taken;

impl Claims {
    fn owners(&self) -> MutexGuard<'_, Owners> {
        // A poisoned lock is still good: the table is changed in one step.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tuples {
    pub(super) fn new(key: Key) -> Self {
        Self { numbers: Table::default(), hash: TableHash::new(key), last_hit: None, claims: None }
    }

    pub(super) fn join<'a>(key: Key, ports: impl Iterator<Item = &'a mut Self>) {
        let owners = Arc::new(Mutex::new(Owners::with_hasher(TableHash::new(key))));
        for (index, tuples) in ports.enumerate() {
            debug_assert!(tuples.numbers.len() == 0, "connections are claimed when they are made");
            tuples.claims = Some(Claims { index, owners: Arc::clone(&owners) });
        }
    }

    #[inline(always)]
    pub(super) fn find_again(&self, tuple: &Tuple) -> Option<u32> {
        let (last, slot) = self.last_hit.as_ref()?;
        (last == tuple).then_some(*slot)
    }

    /// Depends on a secret key: an outsider cannot construct addresses with equal hashes.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash is one")]
    fn hash(&self, tuple: &Tuple) -> u32 {
        self.hash.hash_one(tuple) as u32
    }

    #[inline]
    pub(super) fn find(&mut self, tuple: &Tuple, is: impl Fn(u32) -> bool) -> Option<u32> {
        let number = self.numbers.find(self.hash(tuple), is)?;
        self.last_hit = Some((*tuple, number));
        Some(number)
    }

    pub(super) fn contains(&self, tuple: &Tuple, is: impl Fn(u32) -> bool) -> bool {
        self.numbers.find(self.hash(tuple), is).is_some()
    }

    pub(super) fn other_owner(&self, tuple: &Tuple) -> Option<usize> {
        let claims = self.claims.as_ref()?;
        claims.owners().get(tuple).copied().filter(|owner| *owner != claims.index)
    }

    pub(super) fn insert(
        &mut self,
        tuple: Tuple,
        number: u32,
        is: impl Fn(u32) -> bool,
    ) -> Result<(), Taken> {
        let hash = self.hash(&tuple);
        if self.numbers.find(hash, is).is_some() {
            return Err(Taken);
        }
        if let Some(claims) = &self.claims {
            let mut owners = claims.owners();
            if owners.contains_key(&tuple) {
                return Err(Taken);
            }
            owners.insert(tuple, claims.index);
        }
        self.numbers.insert(hash, number);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: &Tuple,
        to: Tuple,
        number: u32,
        is: impl Fn(u32) -> bool,
    ) -> Result<(), Taken> {
        self.insert(to, number, is)?;
        self.remove(from, number);
        Ok(())
    }

    pub(super) fn renumber(&mut self, tuple: &Tuple, from: u32, to: u32) {
        let has_them = self.numbers.renumber(self.hash(tuple), from, to);
        debug_assert!(has_them, "a connection has them");
        self.last_hit = None;
    }

    pub(super) fn remove(&mut self, tuple: &Tuple, number: u32) {
        if self.numbers.remove(self.hash(tuple), number)
            && let Some(claims) = &self.claims
        {
            claims.owners().remove(tuple);
        }
        self.last_hit = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (1, 2);

    fn tuple(remote_port: u16) -> Tuple {
        Tuple::new([10, 0, 0, 1].into(), 7174, [10, 0, 0, 2].into(), remote_port)
    }

    /// The tables of a port, and the addresses of each number as its connections would have them.
    struct Known {
        tuples: Tuples,
        of: HashMap<u32, Tuple>,
    }

    impl Known {
        fn new() -> Self {
            Self { tuples: Tuples::new(KEY), of: HashMap::new() }
        }

        fn find(&mut self, tuple: &Tuple) -> Option<u32> {
            self.tuples.find(tuple, |number| self.of[&number] == *tuple)
        }

        fn contains(&self, tuple: &Tuple) -> bool {
            self.tuples.contains(tuple, |number| self.of[&number] == *tuple)
        }

        fn insert(&mut self, tuple: Tuple, number: u32) -> Result<(), Taken> {
            self.tuples.insert(tuple, number, |number| self.of[&number] == tuple)?;
            self.of.insert(number, tuple);
            Ok(())
        }

        fn rename(&mut self, number: u32, to: Tuple) -> Result<(), Taken> {
            let from = self.of[&number];
            self.tuples.rename(&from, to, number, |number| self.of[&number] == to)?;
            self.of.insert(number, to);
            Ok(())
        }
    }

    fn queues() -> [Known; 2] {
        let mut both = [Known::new(), Known::new()];
        Tuples::join(KEY, both.iter_mut().map(|known| &mut known.tuples));
        both
    }

    fn claimed(known: &Known) -> Vec<(Tuple, usize)> {
        let owners = known.tuples.claims.as_ref().unwrap().owners();
        owners.iter().map(|(tuple, index)| (*tuple, *index)).collect()
    }

    #[test]
    fn a_connection_is_found_until_it_is_removed() {
        let mut known = Known::new();
        assert_eq!(known.find(&tuple(1)), None);
        known.insert(tuple(1), 7).unwrap();
        known.insert(tuple(2), 8).unwrap();
        for _ in 0..2 {
            assert_eq!((known.find(&tuple(1)), known.find(&tuple(2))), (Some(7), Some(8)));
            let again = |tuple| known.tuples.find_again(tuple);
            assert_eq!((again(&tuple(1)), again(&tuple(2))), (None, Some(8)));
        }
        known.tuples.remove(&tuple(2), 8);
        assert_eq!(known.tuples.find_again(&tuple(2)), None);
        assert_eq!((known.find(&tuple(1)), known.find(&tuple(2))), (Some(7), None));
        assert!(known.contains(&tuple(1)) && !known.contains(&tuple(2)));
        assert_eq!(known.insert(tuple(1), 9), Err(Taken));
        assert_eq!(known.find(&tuple(1)), Some(7));
    }

    /// Two connections may have addresses with equal hashes.
    #[test]
    fn tuples_with_equal_hashes_are_distinguished() {
        let mut known = Known::new();
        for number in 0..40 {
            known.of.insert(number, tuple(number.try_into().unwrap()));
            known.tuples.numbers.insert(known.tuples.hash(&tuple(0)), number);
        }
        let same = known.tuples.hash(&tuple(0));
        for number in 0..40 {
            let looked_for = tuple(number.try_into().unwrap());
            let found = known.tuples.numbers.find(same, |other| known.of[&other] == looked_for);
            assert_eq!(found, Some(number));
        }
        assert_eq!(known.find(&tuple(0)), Some(0));
    }

    #[test]
    fn a_renamed_connection_has_its_new_addresses_only_here_and_at_the_owners() {
        let [mut one, mut other] = queues();
        one.insert(tuple(1), 7).unwrap();
        assert_eq!(one.find(&tuple(1)), Some(7));
        one.rename(7, tuple(2)).unwrap();
        assert_eq!((one.find(&tuple(1)), one.find(&tuple(2))), (None, Some(7)));
        assert_eq!(claimed(&one), [(tuple(2), 0)]);
        assert_eq!(other.tuples.other_owner(&tuple(2)), Some(0));
        assert_eq!(other.tuples.other_owner(&tuple(1)), None);
        assert_eq!(one.tuples.other_owner(&tuple(2)), None, "its own");
        // Addresses of another queue are refused, and the attempt loses nothing.
        other.insert(tuple(1), 3).unwrap();
        assert_eq!(one.rename(7, tuple(1)), Err(Taken));
        assert_eq!(other.insert(tuple(2), 4), Err(Taken));
        assert_eq!((one.find(&tuple(2)), other.find(&tuple(1))), (Some(7), Some(3)));
        assert_eq!(other.find(&tuple(2)), None);
    }

    #[test]
    fn the_table_of_owners_is_empty_when_no_queue_has_a_connection() {
        let [mut one, mut other] = queues();
        for port in 0..1000 {
            let known = if port % 3 == 0 { &mut one } else { &mut other };
            known.insert(tuple(port), u32::from(port)).unwrap();
            // Removing addresses that a queue does not own changes nothing.
            let without = if port % 3 == 0 { &mut other } else { &mut one };
            without.tuples.remove(&tuple(port), u32::from(port));
        }
        assert_eq!(claimed(&one).len(), 1000);
        for port in 0..1000 {
            let known = if port % 3 == 0 { &mut one } else { &mut other };
            known.tuples.remove(&tuple(port), u32::from(port));
        }
        assert_eq!(claimed(&one), []);
        assert!(one.tuples.numbers.len() == 0 && other.tuples.numbers.len() == 0);
    }

    /// The hash of an outsider's addresses cannot be computed without the key: addresses that share
    /// a bucket of the table under one key are spread under another.
    #[test]
    fn addresses_that_collide_under_one_key_do_not_under_another() {
        let buckets = |key, tuples: &[Tuple]| {
            let hash = TableHash::new(key);
            let mut buckets: Vec<u64> =
                tuples.iter().map(|tuple| hash.hash_one(tuple) % 1024).collect();
            buckets.sort_unstable();
            buckets.dedup();
            buckets.len()
        };
        let hash = TableHash::new(KEY);
        let chosen: Vec<Tuple> =
            (0..=u16::MAX).map(tuple).filter(|tuple| hash.hash_one(tuple) % 1024 == 5).collect();
        assert!(chosen.len() > 30, "{}", chosen.len());
        assert_eq!(buckets(KEY, &chosen), 1);
        assert!(buckets((1, 3), &chosen) * 4 > chosen.len() * 3);
        // Every part of the addresses counts.
        let base = tuple(1);
        let parts = [
            Tuple::new([10, 0, 0, 3].into(), 7174, [10, 0, 0, 2].into(), 1),
            Tuple::new([10, 0, 0, 1].into(), 7175, [10, 0, 0, 2].into(), 1),
            Tuple::new([10, 0, 0, 1].into(), 7174, [10, 0, 0, 3].into(), 1),
            tuple(2),
        ];
        for other in parts {
            assert_ne!(hash.hash_one(other), hash.hash_one(base));
        }
        // The two ends are not interchangeable, and each half of an IPv6 address counts.
        let v6 = |local: u128, remote: u128| {
            let [local, remote] = [local, remote].map(std::net::Ipv6Addr::from_bits);
            hash.hash_one(Tuple::new(local.into(), 1, remote.into(), 2))
        };
        let all = [v6(1, 2), v6(2, 1), v6(1 << 64, 2), v6(1, 2 << 64), v6(1, 3), v6(3, 2)];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
        let swapped = Tuple::new([10, 0, 0, 2].into(), 7174, [10, 0, 0, 1].into(), 1);
        assert_ne!(hash.hash_one(swapped), hash.hash_one(base));
    }

    /// The upper half of an IPv6 address and the lower one do not cancel out.
    #[test]
    fn ipv6_addresses_with_equal_xor_of_halves_hash_differently() {
        let hash = TableHash::new(KEY);
        let of = |high: u64, low: u64| {
            let remote = std::net::Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
            hash.hash_one(Tuple::new([10, 0, 0, 1].into(), 7174, remote.into(), 1))
        };
        let mut seen: Vec<u64> = (0..1000).map(|x| of(x, x ^ 0x1234_5678)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
    }
}
