//! Places and memory that peers have, and the time when each address was last active.
//!
//! All sums are updated as they change: the check for one more peer looks at one address only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use urnic_engine::time::Instant;

use crate::server::places::{Places, Share, Shortage, Site, Source, Taken};

#[derive(Debug)]
pub(crate) struct Accounts {
    places: Places,
    all: Taken,
    sources: HashMap<Source, Account>,
    sites: HashMap<Site, Taken>,
    returned: Arc<Returned>,
}

#[derive(Debug)]
struct Account {
    taken: Taken,
    /// Time when one of them was last active.
    active_at: Instant,
}

/// Released, and not yet subtracted from the sums. File threads release places, too.
#[derive(Debug, Default)]
struct Returned(Mutex<Vec<(Source, Taken)>>);

impl Returned {
    fn give(&self, source: Source, taken: Taken) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((source, taken));
    }
}

/// Place in use until the peer and the thread of its file have ended, or until the peer has
/// [left](Grant::leave_place).
#[derive(Debug)]
pub(crate) struct Place {
    source: Source,
    is_back: AtomicBool,
    returned: Arc<Returned>,
}

impl Place {
    /// Does nothing the second time.
    fn give_back(&self) {
        if !self.is_back.swap(true, Ordering::Relaxed) {
            self.returned.give(self.source, Taken { peers: 1, memory: 0 });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Memory that a site must release so that a peer of another site has room, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Bytes that are missing.
    pub(crate) missing: u64,
    /// Excess over what the other site would have. No session ends for more.
    pub(crate) spare: u64,
}

/// Resources of a peer. Dropping the grant releases its memory.
#[derive(Debug)]
pub(crate) struct Grant {
    /// `None` after [`leave_place`](Self::leave_place).
    place: Option<Arc<Place>>,
    source: Source,
    memory: u64,
    returned: Arc<Returned>,
}

impl Grant {
    pub(crate) const fn source(&self) -> Source {
        self.source
    }

    pub(crate) const fn memory(&self) -> u64 {
        self.memory
    }

    pub(crate) const fn place(&self) -> Option<&Arc<Place>> {
        self.place.as_ref()
    }

    /// Releases the place: only the reason has still to reach the peer, and its file thread ends.
    pub(crate) fn leave_place(&mut self) {
        if let Some(place) = self.place.take() {
            place.give_back();
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.returned.give(self.source, Taken { peers: 0, memory: self.memory });
    }
}

impl Accounts {
    pub(crate) fn new(places: Places) -> Self {
        let (sources, sites) = (HashMap::new(), HashMap::new());
        Self { places, all: Taken::default(), sources, sites, returned: Arc::default() }
    }

    /// Fails if there is no room for another peer, with the option of `urnic serve` that decides.
    pub(crate) fn check(&mut self, wanted: Share) -> anyhow::Result<()> {
        let own = self.taken_by(wanted.source);
        match self.places.shortage(self.all, own, wanted.memory) {
            None => Ok(()),
            Some(shortage) => Err(self.places.refusal(shortage, self.all, own, wanted.memory)),
        }
    }

    fn taken_by(&mut self, source: Source) -> Taken {
        self.settle();
        self.sources.get(&source).map(|account| account.taken).unwrap_or_default()
    }

    /// Finds the site that must give way to another peer: it has most of the short resource, and
    /// more than the other's site would have. If places and memory are short, memory decides:
    /// releasing it releases places, too.
    pub(crate) fn crowder(&mut self, wanted: Share) -> Option<(Site, Shortage)> {
        let own = self.taken_by(wanted.source);
        let shortage = match self.places.shortage(self.all, own, wanted.memory)? {
            Shortage::Peers if self.missing(wanted) > 0 => Shortage::Memory,
            shortage => shortage,
        };
        let own = self.sites.get(&wanted.source.site()).copied().unwrap_or_default();
        let (site, most) = match shortage {
            Shortage::Peers => self.sites.iter().max_by_key(|(_, taken)| taken.peers)?,
            Shortage::Memory => self.sites.iter().max_by_key(|(_, taken)| taken.memory)?,
            Shortage::PeersOfSource | Shortage::MemoryOfSource => return None,
        };
        let has_more = match shortage {
            Shortage::Peers => most.peers > own.peers + 1,
            _ => most.memory > own.memory.saturating_add(wanted.memory),
        };
        has_more.then_some((*site, shortage))
    }

    /// Counts within the limit for all peers.
    fn missing(&self, wanted: Share) -> u64 {
        let total = self.all.memory.saturating_add(wanted.memory);
        total.saturating_sub(self.places.memory_max)
    }

    pub(crate) fn excess(&self, wanted: Share, crowder: Site) -> Excess {
        let of = |site| self.sites.get(&site).map_or(0, |taken| taken.memory);
        let wanted_in_all = of(wanted.source.site()).saturating_add(wanted.memory);
        Excess { missing: self.missing(wanted), spare: of(crowder).saturating_sub(wanted_in_all) }
    }

    /// Reserves the place and memory of another peer. Fails as [`check`](Self::check).
    pub(crate) fn take(&mut self, wanted: Share) -> anyhow::Result<Grant> {
        self.check(wanted)?;
        let Share { source, memory } = wanted;
        let none = Account { taken: Taken::default(), active_at: Instant::ZERO };
        let account = self.sources.entry(source).or_insert(none);
        let of_site = self.sites.entry(source.site()).or_default();
        for taken in [&mut self.all, of_site, &mut account.taken] {
            taken.peers += 1;
            taken.memory += memory;
        }
        let returned = Arc::clone(&self.returned);
        let place =
            Place { source, is_back: AtomicBool::new(false), returned: Arc::clone(&returned) };
        Ok(Grant { place: Some(Arc::new(place)), source, memory, returned })
    }

    pub(crate) fn note_active(&mut self, source: Source, at: Instant) {
        if let Some(account) = self.sources.get_mut(&source) {
            account.active_at = account.active_at.max(at);
        }
    }

    pub(crate) fn active_at(&self, source: Source) -> Instant {
        self.sources.get(&source).map_or(Instant::ZERO, |account| account.active_at)
    }

    /// Subtracts released places and memory, each once, at any later time.
    fn settle(&mut self) {
        let mut returned = self.returned.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, taken) in returned.drain(..) {
            let Entry::Occupied(mut account) = self.sources.entry(source) else { continue };
            self.all.give_back(taken);
            if let Entry::Occupied(mut site) = self.sites.entry(source.site()) {
                site.get_mut().give_back(taken);
                if *site.get() == Taken::default() {
                    site.remove();
                }
            }
            account.get_mut().taken.give_back(taken);
            if account.get().taken == Taken::default() {
                account.remove();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn taken(&mut self) -> (Taken, usize) {
        self.settle();
        assert!(self.sites.len() <= self.sources.len());
        (self.all, self.sources.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn accounts() -> Accounts {
        Accounts::new(Places {
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
    fn resources_of_peers_are_accounted_until_they_leave() {
        let mut accounts = accounts();
        let held = [(1, 60), (2, 30), (2, 5)].map(|(address, memory)| {
            let share = share(address, memory);
            (accounts.take(share).unwrap(), share)
        });
        assert_eq!(accounts.taken(), (Taken { peers: 3, memory: 95 }, 2));
        assert!(accounts.take(share(1, 1)).is_err() && accounts.take(share(2, 0)).is_err());
        assert!(accounts.take(share(3, 6)).is_err(), "of all");
        assert_eq!(
            accounts.taken(),
            (Taken { peers: 3, memory: 95 }, 2),
            "a refusal takes nothing"
        );
        let last = accounts.take(share(3, 5)).unwrap();
        assert!(accounts.check(share(4, 0)).is_err(), "four are the most");
        drop(last);
        for (grant, share) in held {
            assert_eq!(grant.source(), share.source);
            drop(grant);
        }
        assert_eq!(accounts.taken(), (Taken::default(), 0), "nothing is left of any address");
        accounts.take(share(1, 60)).unwrap();
    }

    #[test]
    fn thread_keeps_the_admission_of_its_peer_but_not_the_memory() {
        let mut accounts = accounts();
        let grant = accounts.take(share(1, 60)).unwrap();
        let of_thread = Arc::clone(grant.place().unwrap());
        drop(grant);
        assert_eq!(accounts.taken(), (Taken { peers: 1, memory: 0 }, 1));
        std::thread::spawn(move || drop(of_thread)).join().unwrap();
        assert_eq!(accounts.taken(), (Taken::default(), 0));
    }

    #[test]
    fn released_admission_is_returned_once_despite_its_thread() {
        let mut accounts = accounts();
        let mut grant = accounts.take(share(1, 60)).unwrap();
        let of_thread = Arc::clone(grant.place().unwrap());
        grant.leave_place();
        assert_eq!(accounts.taken(), (Taken { peers: 0, memory: 60 }, 1));
        let _other = accounts.take(share(1, 0)).unwrap();
        drop(of_thread);
        drop(grant);
        assert_eq!(accounts.taken(), (Taken { peers: 1, memory: 0 }, 1));
    }

    /// RFC 5042 §6.4: no peer starves the others.
    #[test]
    fn site_with_most_of_a_scarce_resource_is_evicted() {
        let v6 = |subnet: u16, memory| {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, 1);
            Share { source: Source::of((address, 1).into()), memory }
        };
        let site = |share: Share| share.source.site();
        let mut accounts = accounts();
        let mut held: Vec<_> = [share(1, 30), share(1, 0), v6(1, 10), v6(2, 40)]
            .map(|share| accounts.take(share).unwrap())
            .into();
        assert_eq!(accounts.crowder(share(1, 0)), None, "its own limit stands");
        let (crowder, shortage) = accounts.crowder(share(9, 0)).unwrap();
        assert_eq!(shortage, Shortage::Peers);
        assert!([site(share(1, 0)), site(v6(7, 0))].contains(&crowder), "two places each");
        assert_eq!(accounts.crowder(v6(3, 0)), None, "a /48 counts as one and would have three");
        // One place is free, and memory is short.
        held.remove(1).leave_place();
        assert_eq!(accounts.crowder(share(9, 20)), None, "there is room");
        assert_eq!(accounts.crowder(share(9, 30)), Some((site(v6(2, 0)), Shortage::Memory)));
        assert_eq!(accounts.crowder(share(9, 50)), None, "that would be as much as the most has");
        assert_eq!(accounts.crowder(v6(3, 30)), None);
        assert_eq!(accounts.crowder(share(9, 61)), None, "its own limit stands");
        let excess = |accounts: &Accounts, wanted| accounts.excess(wanted, site(v6(2, 0)));
        assert_eq!(excess(&accounts, share(9, 30)), Excess { missing: 10, spare: 20 });
        // Both are short: a site that gives way releases memory.
        held.push(accounts.take(share(5, 0)).unwrap());
        assert_eq!(accounts.crowder(share(9, 30)), Some((site(v6(2, 0)), Shortage::Memory)));
        assert!(matches!(accounts.crowder(share(1, 20)), None | Some((_, Shortage::Peers))));
        drop(held);
        assert_eq!((accounts.taken(), accounts.sites.len()), ((Taken::default(), 0), 0));
    }

    #[test]
    fn an_address_was_active_when_the_latest_of_its_peers_was() {
        let mut accounts = accounts();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let (one, two) = (share(1, 0), share(2, 0));
        let _held = [accounts.take(one).unwrap(), accounts.take(two).unwrap()];
        accounts.note_active(one.source, at(5));
        accounts.note_active(one.source, at(3));
        accounts.note_active(share(3, 0).source, at(9));
        assert_eq!(accounts.active_at(one.source), at(5));
        assert_eq!(accounts.active_at(two.source), at(0));
        assert_eq!(accounts.active_at(share(3, 0).source), at(0), "an address without peers");
    }
}
