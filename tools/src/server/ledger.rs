//! What peers have of the places and of the memory, and when each address was last active.
//!
//! All sums are kept as they change: whether one more peer has room is a matter of one address, however
//! many are served.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use urnic_engine::time::Instant;

use crate::server::places::{Places, Share, Source, Taken};

/// What is taken.
#[derive(Debug)]
pub(crate) struct Ledger {
    places: Places,
    all: Taken,
    sources: HashMap<Source, Account>,
    returned: Arc<Returned>,
}

/// What the peers of one address have.
#[derive(Debug)]
struct Account {
    taken: Taken,
    /// When one of them was last seen to do something.
    active_at: Instant,
}

/// What was given back and is not in the sums yet. File threads give places back, too.
#[derive(Debug, Default)]
struct Returned(Mutex<Vec<(Source, Taken)>>);

impl Returned {
    fn give(&self, source: Source, taken: Taken) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((source, taken));
    }
}

/// The place of a peer, and of the thread that works on its file: taken until both have gone.
#[derive(Debug)]
pub(crate) struct Place {
    source: Source,
    returned: Arc<Returned>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.returned.give(self.source, Taken { peers: 1, memory: 0 });
    }
}

/// What a peer was granted. The memory is given back when it goes.
#[derive(Debug)]
pub(crate) struct Grant {
    place: Arc<Place>,
    memory: u64,
}

impl Grant {
    pub(crate) fn source(&self) -> Source {
        self.place.source
    }

    pub(crate) const fn place(&self) -> &Arc<Place> {
        &self.place
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.place.returned.give(self.place.source, Taken { peers: 0, memory: self.memory });
    }
}

impl Ledger {
    pub(crate) fn new(places: Places) -> Self {
        let (all, sources, returned) = (Taken::default(), HashMap::new(), Arc::default());
        Self { places, all, sources, returned }
    }

    /// Whether there is room for another peer.
    ///
    /// # Errors
    /// Why not, with the option of `urnic serve` that decides.
    pub(crate) fn check(&mut self, wanted: Share) -> anyhow::Result<()> {
        self.settle();
        let of_source = self.sources.get(&wanted.source).map(|account| account.taken);
        self.places.check(self.all, of_source.unwrap_or_default(), wanted.memory)
    }

    /// Gives another peer what it wants.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn take(&mut self, wanted: Share) -> anyhow::Result<Grant> {
        self.check(wanted)?;
        let Share { source, memory } = wanted;
        let none = Account { taken: Taken::default(), active_at: Instant::ZERO };
        let account = self.sources.entry(source).or_insert(none);
        for taken in [&mut self.all, &mut account.taken] {
            taken.peers += 1;
            // It was checked that the sum is within a limit.
            taken.memory += memory;
        }
        let place = Arc::new(Place { source, returned: Arc::clone(&self.returned) });
        Ok(Grant { place, memory })
    }

    /// One of an address has done something.
    pub(crate) fn note_active(&mut self, source: Source, at: Instant) {
        if let Some(account) = self.sources.get_mut(&source) {
            account.active_at = account.active_at.max(at);
        }
    }

    /// When one of an address was last seen to do something.
    pub(crate) fn active_at(&self, source: Source) -> Instant {
        self.sources.get(&source).map_or(Instant::ZERO, |account| account.active_at)
    }

    /// Takes what was given back out of the sums: each piece once, however long it was ago.
    fn settle(&mut self) {
        let mut returned = self.returned.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, taken) in returned.drain(..) {
            let Entry::Occupied(mut account) = self.sources.entry(source) else { continue };
            self.all.give_back(taken);
            account.get_mut().taken.give_back(taken);
            if account.get().taken == Taken::default() {
                account.remove();
            }
        }
    }

    /// What is taken, and by how many addresses.
    #[cfg(test)]
    pub(crate) fn taken(&mut self) -> (Taken, usize) {
        self.settle();
        (self.all, self.sources.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ledger() -> Ledger {
        Ledger::new(Places {
            peers_max: 4,
            peers_per_source_max: 2,
            memory_max: 100,
            memory_per_source_max: 60,
        })
    }

    fn share(address: u8, memory: u64) -> Share {
        Share { source: Source::of(([192, 0, 2, address], 1).into()), memory }
    }

    #[test]
    fn what_peers_have_is_taken_until_they_go() {
        let mut ledger = ledger();
        let held = [(1, 60), (2, 30), (2, 5)].map(|(address, memory)| {
            let share = share(address, memory);
            (ledger.take(share).unwrap(), share)
        });
        assert_eq!(ledger.taken(), (Taken { peers: 3, memory: 95 }, 2));
        assert!(ledger.take(share(1, 1)).is_err() && ledger.take(share(2, 0)).is_err());
        assert!(ledger.take(share(3, 6)).is_err(), "of all");
        assert_eq!(ledger.taken(), (Taken { peers: 3, memory: 95 }, 2), "a refusal takes nothing");
        let last = ledger.take(share(3, 5)).unwrap();
        assert!(ledger.check(share(4, 0)).is_err(), "four are the most");
        drop(last);
        for (grant, share) in held {
            assert_eq!(grant.source(), share.source);
            drop(grant);
        }
        assert_eq!(ledger.taken(), (Taken::default(), 0), "nothing is left of any address");
        ledger.take(share(1, 60)).unwrap();
    }

    #[test]
    fn a_thread_keeps_the_place_of_its_peer_and_not_the_memory() {
        let mut ledger = ledger();
        let grant = ledger.take(share(1, 60)).unwrap();
        let of_thread = Arc::clone(grant.place());
        drop(grant);
        assert_eq!(ledger.taken(), (Taken { peers: 1, memory: 0 }, 1));
        std::thread::spawn(move || drop(of_thread)).join().unwrap();
        assert_eq!(ledger.taken(), (Taken::default(), 0));
    }

    #[test]
    fn an_address_was_active_when_the_latest_of_its_peers_was() {
        let mut ledger = ledger();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let (one, two) = (share(1, 0), share(2, 0));
        let _held = [ledger.take(one).unwrap(), ledger.take(two).unwrap()];
        ledger.note_active(one.source, at(5));
        ledger.note_active(one.source, at(3));
        ledger.note_active(share(3, 0).source, at(9));
        assert_eq!(ledger.active_at(one.source), at(5));
        assert_eq!(ledger.active_at(two.source), at(0));
        assert_eq!(ledger.active_at(share(3, 0).source), at(0), "an address without peers");
    }
}
