//! Places for connections that peers have opened and no application has taken over yet. If a
//! [`Backlog`] is full, the least useful connection is evicted, or the new one is refused, *before*
//! it is admitted. The source that opened the most connections loses one first (RFC 5042 §6.4.1,
//! §6.4.2). An IPv6 source is a /64, because a /64 belongs to one subscriber (RFC 6177 §2).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use super::listen::SynRefusal;
use crate::limits::{LISTEN_REQUESTED_MAX, LISTEN_WAITING_MAX};

/// Startup progress of a connection in a [`Backlog`]; the lowest value is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// The connection failed or was refused: only its orderly end is left.
    Ended,
    /// The peer has not sent its Request.
    Silent,
    /// The application must answer the peer.
    Asked,
}

/// A place in one [`Backlog`]. A backlog never reuses the value for another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BacklogPlace(u64);

/// Result of [`Backlog::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The new connection's place.
    pub place: BacklogPlace,
    /// The connection that was evicted: the caller must reset it. Its place is free already.
    pub evicted: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    place: BacklogPlace,
    source: usize,
    standing: Standing,
    connection: u32,
}

/// A source keeps its index while it has a place: a walk over all places looks up no address.
#[derive(Clone, Debug, Default)]
struct Sources {
    by_address: BTreeMap<u128, usize>,
    places: Vec<(u128, usize)>,
    free: Vec<usize>,
}

impl Sources {
    fn places_of(&self, address: u128) -> usize {
        self.by_address.get(&address).map_or(0, |index| self.places[*index].1)
    }

    /// Counts one more place; returns the index of the source.
    fn enter(&mut self, address: u128) -> usize {
        let Self { by_address, places, free } = self;
        let index = *by_address.entry(address).or_insert_with(|| {
            let index = free.pop().unwrap_or(places.len());
            if index == places.len() {
                places.push((address, 0));
            }
            places[index] = (address, 0);
            index
        });
        places[index].1 += 1;
        index
    }

    fn leave(&mut self, index: usize) {
        let (address, places) = &mut self.places[index];
        *places -= 1;
        if *places == 0 {
            self.by_address.remove(address);
            self.free.push(index);
        }
    }
}

/// The connections of a listener that were not handed over to the application yet.
#[derive(Clone, Debug)]
pub struct Backlog {
    /// Oldest first, hence sorted by place.
    held: VecDeque<Held>,
    sources: Sources,
    max: usize,
    next: u64,
}

impl Backlog {
    /// Room for 1 to [`LISTEN_REQUESTED_MAX`](crate::limits::LISTEN_REQUESTED_MAX) connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let max = max.clamp(1, LISTEN_REQUESTED_MAX);
        Self { held: VecDeque::new(), sources: Sources::default(), max, next: 0 }
    }

    /// A backlog for established connections: twice as many as may be half open, up to
    /// [`LISTEN_WAITING_MAX`](crate::limits::LISTEN_WAITING_MAX), but at least `backlog`.
    #[must_use]
    pub fn waiting(backlog: usize) -> Self {
        Self::new(backlog.saturating_mul(2).min(LISTEN_WAITING_MAX).max(backlog))
    }

    /// Connections that have a place now.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn take_free(
        &mut self,
        source: IpAddr,
        connection: u32,
    ) -> Result<BacklogPlace, SynRefusal> {
        if self.held.len() >= self.max {
            return Err(SynRefusal::BacklogFull);
        }
        Ok(self.enter(source_of(source), connection))
    }

    /// Returns true if [`take`](Self::take) would find a place for a connection from `source`.
    #[must_use]
    pub fn has_place_for(&self, source: IpAddr) -> bool {
        self.held.len() < self.max || self.candidates(source_of(source)).next().is_some()
    }

    /// Takes a place for `connection`. If none is free, evicts one that has ended; else the oldest
    /// silent one of the source that has most places; else, if that source has more places than
    /// `source` will have, its newest connection. Errors: [`SynRefusal::BacklogFull`].
    // spec: SEC-P-8
    pub fn take(&mut self, source: IpAddr, connection: u32) -> Result<Taken, SynRefusal> {
        let source = source_of(source);
        let mut evicted = None;
        if self.held.len() >= self.max {
            let index = self.first_to_give_way(source).ok_or(SynRefusal::BacklogFull)?;
            evicted = Some(self.leave(index));
        }
        Ok(Taken { place: self.enter(source, connection), evicted })
    }

    /// Records startup progress of a connection. Does nothing if its place is free already.
    pub fn set_standing(&mut self, place: BacklogPlace, standing: Standing) {
        if let Some(index) = self.index_of(place) {
            self.held[index].standing = standing;
        }
    }

    /// Frees the place of a connection. Does nothing if it is free already.
    pub fn release(&mut self, place: BacklogPlace) {
        if let Some(index) = self.index_of(place) {
            self.leave(index);
        }
    }

    /// Places that `source` may take, with the number of places of each one's source.
    fn candidates(&self, source: u128) -> impl Iterator<Item = (usize, &Held, usize)> {
        let own = self.sources.places_of(source);
        let held = self.held.iter().enumerate();
        let held = held.map(|(index, held)| (index, held, self.sources.places[held.source].1));
        held.filter(move |(_, held, places)| held.standing != Standing::Asked || *places > own + 1)
    }

    fn first_to_give_way(&self, source: u128) -> Option<usize> {
        let order = |(index, held, places): &(usize, &Held, usize)| {
            let newest_first = held.standing == Standing::Asked;
            let age = if newest_first { usize::MAX - index } else { *index };
            (held.standing, Reverse(*places), age)
        };
        self.candidates(source).min_by_key(order).map(|(index, ..)| index)
    }

    fn index_of(&self, place: BacklogPlace) -> Option<usize> {
        self.held.binary_search_by_key(&place, |held| held.place).ok()
    }

    fn enter(&mut self, source: u128, connection: u32) -> BacklogPlace {
        let place = BacklogPlace(self.next);
        self.next += 1;
        let source = self.sources.enter(source);
        self.held.push_back(Held { place, source, standing: Standing::Silent, connection });
        place
    }

    fn leave(&mut self, index: usize) -> u32 {
        let held = self.held.remove(index).expect("the index of a place");
        self.sources.leave(held.source);
        held.connection
    }
}

/// Returns the number that identifies a source: an IPv4 address, or an IPv6 /64.
fn source_of(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn full_of(sources: &[IpAddr]) -> (Backlog, Vec<BacklogPlace>) {
        let mut backlog = Backlog::new(sources.len());
        let places = sources.iter().zip(0..);
        let places = places.map(|(source, connection)| backlog.take(*source, connection));
        let places = places.map(|taken| taken.unwrap().place).collect();
        (backlog, places)
    }

    fn evicted_for(backlog: &mut Backlog, source: IpAddr) -> Option<u32> {
        let had_place = backlog.has_place_for(source);
        let taken = backlog.take(source, 99);
        assert_eq!(had_place, taken.is_ok());
        taken.ok().map(|taken| taken.evicted.expect("it was full"))
    }

    #[test]
    fn backlog_entry_is_released_once() {
        let mut backlog = Backlog::new(2);
        let first = backlog.take_free(host(1), 0).unwrap();
        let second = backlog.take_free(host(1), 1).unwrap();
        assert_eq!(backlog.take_free(host(2), 2), Err(SynRefusal::BacklogFull));
        backlog.release(first);
        backlog.release(first);
        assert_eq!(backlog.pending(), 1, "given back once");
        let third = backlog.take_free(host(2), 2).unwrap();
        assert!(third != first && third != second);
        backlog.release(first);
        assert_eq!(backlog.pending(), 2, "the name of a place that is free means nothing");
    }

    #[test]
    fn stale_entry_of_another_backlog_is_ignored() {
        let mut old = Backlog::new(4);
        let places: Vec<_> = (0..3).map(|n| old.take_free(host(1), n).unwrap()).collect();
        let mut new = Backlog::new(4);
        new.release(places[2]);
        assert_eq!(new.pending(), 0);
    }

    #[test]
    fn oldest_silent_entry_is_evicted() {
        let (mut backlog, _) = full_of(&[host(1), host(2), host(3)]);
        assert_eq!(evicted_for(&mut backlog, host(4)), Some(0));
        assert_eq!(evicted_for(&mut backlog, host(5)), Some(1));
        assert_eq!(backlog.pending(), 3);
    }

    #[test]
    fn entry_of_the_source_with_most_entries_is_evicted() {
        let (mut backlog, _) = full_of(&[host(1), host(2), host(2), host(3)]);
        assert_eq!(evicted_for(&mut backlog, host(4)), Some(1), "its oldest");
        // Each has one now: the oldest of all.
        assert_eq!(evicted_for(&mut backlog, host(5)), Some(0));
    }

    #[test]
    fn source_with_most_entries_evicts_its_own() {
        let (mut backlog, _) = full_of(&[host(1), host(2), host(2)]);
        assert_eq!(evicted_for(&mut backlog, host(2)), Some(1));
    }

    #[test]
    fn ended_entries_are_evicted_first() {
        let (mut backlog, places) = full_of(&[host(2), host(2), host(1)]);
        backlog.set_standing(places[2], Standing::Ended);
        assert_eq!(evicted_for(&mut backlog, host(2)), Some(2));
    }

    #[test]
    fn requested_entries_are_evicted_only_above_the_share_of_their_source() {
        let (mut backlog, places) = full_of(&[host(1), host(1), host(2)]);
        for place in places {
            backlog.set_standing(place, Standing::Asked);
        }
        assert_eq!(evicted_for(&mut backlog, host(1)), None);
        assert_eq!(evicted_for(&mut backlog, host(2)), None, "it would have as many");
        assert_eq!(evicted_for(&mut backlog, host(3)), Some(1), "the newest of its source");
        assert_eq!(backlog.pending(), 3);
    }

    #[test]
    fn silent_entries_are_evicted_before_requested_ones() {
        let (mut backlog, places) = full_of(&[host(1), host(1), host(2)]);
        backlog.set_standing(places[0], Standing::Asked);
        backlog.set_standing(places[1], Standing::Asked);
        assert_eq!(evicted_for(&mut backlog, host(3)), Some(2));
    }

    /// A source that has left gives its index to the next: the counts are as large as the backlog.
    #[test]
    fn counts_of_sources_that_have_left_are_used_again() {
        let mut backlog = Backlog::new(3);
        for n in 0..=255 {
            let taken = backlog.take(host(n), n.into()).unwrap();
            assert_eq!(taken.evicted, n.checked_sub(3).map(u32::from), "the oldest");
            assert_eq!(backlog.sources.by_address.len(), backlog.pending());
            assert!(backlog.sources.places.len() <= 3);
        }
        let places: Vec<_> = backlog.held.iter().map(|held| held.place).collect();
        places.into_iter().for_each(|place| backlog.release(place));
        assert!(backlog.sources.by_address.is_empty() && backlog.sources.free.len() == 3);
    }

    #[test]
    fn an_ipv6_subscriber_is_one_source_and_ipv4_hosts_are_each_one() {
        let v6 = |text: &str| text.parse::<IpAddr>().unwrap();
        let sources = [v6("fd00::1"), v6("fd00:0:0:1::1"), v6("fd00:0:0:1:8000::2")];
        let (mut backlog, _) = full_of(&sources);
        assert_eq!(evicted_for(&mut backlog, v6("fd00:0:0:2::1")), Some(1));
        let mapped = v6("::ffff:10.0.0.2");
        let (mut backlog, _) = full_of(&[host(1), host(3), host(2), mapped]);
        assert_eq!(evicted_for(&mut backlog, host(4)), Some(2), "two of one host");
    }

    #[test]
    fn a_backlog_has_a_limit_of_its_own() {
        let mut backlog = Backlog::new(usize::MAX);
        let full = (0..).find(|n| backlog.take_free(host(1), *n).is_err()).unwrap();
        assert_eq!(full as usize, LISTEN_REQUESTED_MAX);
        for (backlog, places) in [
            (1, 2),
            (LISTEN_WAITING_MAX / 2 + 1, LISTEN_WAITING_MAX),
            (LISTEN_WAITING_MAX + 1, LISTEN_WAITING_MAX + 1),
            (usize::MAX, LISTEN_REQUESTED_MAX),
        ] {
            assert_eq!(Backlog::waiting(backlog).max, places);
        }
        let mut backlog = Backlog::new(0);
        backlog.take_free(host(1), 0).unwrap();
        assert!(
            backlog.sources.places == [(source_of(host(1)), 1)]
                && backlog.take_free(host(1), 1).is_err()
        );
    }
}
