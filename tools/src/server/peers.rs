//! All peers. A turn polls the peers with an event.
//!
//! Events are a completion, an event of the connection or an answer of the file thread
//! ([`ReadyPeers`]), and a timer ([`DueQueue`]). Sessions that poll memory are polled in each turn,
//! since memory raises no event.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use urnic::{Connecting, QpNum};
use urnic_engine::time::Instant;

use crate::device::DeviceSpec;
use crate::host::Host;
use crate::protocol::{Hello, Welcome};
use crate::server::Limits;
use crate::server::accounts::{Accounts, Excess, Grant};
use crate::server::activity::Patience;
use crate::server::completions::Completions;
use crate::server::due_queue::DueQueue;
use crate::server::outcomes::Outcomes;
use crate::server::peer::{Peer, PeerContext, Turn};
use crate::server::places::Site;
use crate::server::ready_peers::ReadyPeers;
use crate::server::resources::SessionResources;

#[derive(Debug)]
pub(super) struct Peers {
    table: Table,
    ready_peers: ReadyPeers,
    completions: Completions,
    patience: Patience,
    device: Rc<DeviceSpec>,
    /// Peers whose events are handled in this turn: empty between turns.
    ready: Vec<QpNum>,
}

/// Peers by the numbers of their queue pairs.
#[derive(Debug, Default)]
struct Table {
    // Boxed: a growing table moves its entries.
    peers: HashMap<QpNum, Box<Peer>, BuildHasherDefault<Spread>>,
    due_queue: DueQueue,
    watching: Vec<QpNum>,
    #[cfg(test)]
    polls: PollCounts,
}

#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PollCounts {
    pub(super) all: usize,
    pub(super) due: usize,
    /// Polls among them for completions of removed peers.
    pub(super) of_gone: usize,
}

#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) peers: usize,
    pub(super) watching: usize,
    pub(super) due_queue: usize,
    pub(super) completions: usize,
}

impl Peers {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            table: Table::default(),
            ready_peers: ReadyPeers::new(host.endpoint.waker()),
            completions: Completions::new(host.rnic.clone()),
            patience: Patience { idle_max: host.options.timeout },
            device: Rc::new(host.options.dev.clone()),
            ready: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.peers.is_empty()
    }

    /// Call [`insert`](Self::insert) when the peer has been accepted. An error is its refusal.
    pub(super) fn prepare(
        &mut self,
        host: &Host,
        limits: &Limits,
        remote: std::net::SocketAddr,
        hello: &Hello,
        resources: SessionResources,
        grant: Grant,
    ) -> anyhow::Result<(Peer, Welcome)> {
        let Self { ready_peers, completions, device, .. } = self;
        let (peer, welcome) = Peer::new(
            PeerContext { host, device, limits, completions, ready_peers },
            remote,
            hello,
            resources,
            grant,
        )?;
        // Numbers repeat after 2^32 of them.
        let is_new = !self.table.peers.contains_key(&peer.qp().number());
        ensure!(is_new, "the number of the queue pair is still in use: try again");
        Ok((peer, welcome))
    }

    pub(super) fn insert(&mut self, peer: Peer, connecting: Connecting, now: Instant) {
        let look_at = now + self.patience.interval();
        self.table.insert(peer.connecting(connecting, look_at));
    }

    pub(super) fn turn(&mut self, now: Instant, accounts: &mut Accounts, outcomes: &mut Outcomes) {
        self.complete(now, outcomes);
        self.poll_ready(now, outcomes);
        self.watch(now, outcomes);
        self.look(now, accounts, outcomes);
    }

    /// Ends the session of `site` that was without payload for the longest time.
    pub(super) fn evict_for_place(&mut self, site: Site, now: Instant, outcomes: &mut Outcomes) {
        let parting = self.table.peers.values().filter(|peer| peer.is_parting()).count();
        let mut longest = None;
        for (&key, peer) in self.table.of_site(site) {
            // The last check may be a minute old.
            peer.see_payload(now);
            let (payload_at, began) = peer.last_of_use();
            let use_of_it = (payload_at, Reverse(began));
            if longest.is_none_or(|(other, _)| use_of_it < other) {
                longest = Some((use_of_it, key));
            }
        }
        if let Some((_, key)) = longest {
            self.table.dismiss(key, GAVE_WAY, parting >= PARTING_MAX, now, outcomes);
        }
    }

    /// Ends the largest sessions of `site` until the memory is free; none if [`EVICTIONS_MAX`]
    /// sessions, or the memory that the site has to spare, are not enough.
    pub(super) fn evict_for_memory(
        &mut self,
        site: Site,
        Excess { missing, spare }: Excess,
        now: Instant,
        outcomes: &mut Outcomes,
    ) {
        let mut of_site: Vec<_> =
            self.table.of_site(site).map(|(&key, peer)| (peer.memory(), key)).collect();
        of_site.sort_unstable_by_key(|(memory, _)| Reverse(*memory));
        let (mut freed, mut count) = (0, 0);
        for (memory, _) in of_site.iter().take(EVICTIONS_MAX) {
            if freed >= missing.min(spare) {
                break;
            }
            freed += memory;
            count += 1;
        }
        if freed < missing {
            return;
        }
        for (_, key) in &of_site[..count] {
            // A peer that stays to receive the reason would keep its memory.
            self.table.dismiss(*key, GAVE_WAY, true, now, outcomes);
        }
    }

    pub(super) fn dismiss_all(&mut self, why: &str, now: Instant, outcomes: &mut Outcomes) {
        let keys: Vec<_> = self.table.peers.keys().copied().collect();
        for key in keys {
            self.table.dismiss(key, why, false, now, outcomes);
        }
    }

    /// Adds the `time` for which this process was stopped to the deadlines.
    pub(super) fn excuse(&mut self, time: Duration) {
        self.table.peers.values_mut().for_each(|peer| peer.excuse(time));
    }

    /// Returns how long this thread may sleep; an event wakes the endpoint earlier.
    pub(super) fn pause(&self, now: Instant, longest: Duration) -> Duration {
        if self.ready_peers.any() || !self.completions.is_empty() {
            return Duration::ZERO;
        }
        self.table.due_queue.first().map_or(longest, |due| (due - now).min(longest))
    }

    /// Handles the completions that wait now. Completions of removed peers are ignored.
    fn complete(&mut self, now: Instant, outcomes: &mut Outcomes) {
        let Self { table, completions, .. } = self;
        for queue in 0..completions.queues() {
            let round = completions.begin(queue);
            let mut rest = (0..round.waiting).map_while(|_| completions.poll(&round));
            let mut next = rest.next();
            while let Some(first) = next.take() {
                #[cfg(test)]
                {
                    table.polls.of_gone += usize::from(!table.peers.contains_key(&first.qp));
                }
                // Most completions are followed by more of the same peer.
                table.poll_peer(first.qp, now, outcomes, |peer| {
                    let mut wc = first;
                    loop {
                        if peer.complete(&wc)? == Turn::Gone {
                            return Ok(Turn::Gone);
                        }
                        match rest.next() {
                            Some(following) if following.qp == first.qp => wc = following,
                            other => {
                                next = other;
                                return Ok(Turn::Stays);
                            }
                        }
                    }
                });
                next = next.or_else(|| rest.next());
            }
            completions.end(&round);
        }
        completions.trim();
    }

    fn poll_ready(&mut self, now: Instant, outcomes: &mut Outcomes) {
        if !self.ready_peers.any() {
            return;
        }
        self.ready_peers.take(&mut self.ready);
        for key in self.ready.drain(..) {
            self.table.poll_peer(key, now, outcomes, |peer| peer.poll_ready(now));
        }
    }

    fn watch(&mut self, now: Instant, outcomes: &mut Outcomes) {
        let mut index = 0;
        while let Some(key) = self.table.watching.get(index).copied() {
            if self.table.poll_peer(key, now, outcomes, Peer::watch) {
                index += 1;
            } else {
                self.table.watching.swap_remove(index);
            }
        }
    }

    /// Limits the number: each poll may make the endpoint work once.
    fn look(&mut self, now: Instant, accounts: &mut Accounts, outcomes: &mut Outcomes) {
        let (patience, interval) = (self.patience, self.patience.interval());
        for _ in 0..LOOKS_MAX {
            let Some(key) = self.table.due_queue.take(now) else { break };
            #[cfg(test)]
            {
                self.table.polls.due += 1;
            }
            self.table.poll_peer(key, now, outcomes, |peer| {
                *peer.entered() = None;
                let source = peer.source();
                let idle_max = patience.limit(now, accounts.active_at(source));
                peer.look(now, idle_max, interval, || accounts.note_active(source, now))
            });
        }
    }

    #[cfg(test)]
    pub(super) const fn polls(&self) -> PollCounts {
        self.table.polls
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Sizes {
        let Table { peers, watching, due_queue, .. } = &self.table;
        let completions = self.completions.depths().0;
        Sizes {
            peers: peers.len(),
            watching: watching.len(),
            due_queue: due_queue.len(),
            completions,
        }
    }

    #[cfg(test)]
    pub(super) const fn completions(&mut self) -> &mut Completions {
        &mut self.completions
    }

    pub(super) fn clear(&mut self) {
        self.table = Table::default();
    }
}

impl Table {
    fn of_site(&mut self, site: Site) -> impl Iterator<Item = (&QpNum, &mut Box<Peer>)> {
        let peers = self.peers.iter_mut();
        peers.filter(move |(_, peer)| peer.source().site() == site && !peer.is_parting())
    }

    fn insert(&mut self, mut peer: Peer) {
        let key = peer.qp().number();
        if peer.watches_memory() {
            self.watching.push(key);
        }
        enter(&mut self.due_queue, key, &mut peer);
        self.peers.insert(key, Box::new(peer));
    }

    /// Removes the peer when it has ended. Returns true if it exists afterwards.
    #[inline]
    fn poll_peer(
        &mut self,
        key: QpNum,
        now: Instant,
        outcomes: &mut Outcomes,
        work: impl FnOnce(&mut Peer) -> anyhow::Result<Turn>,
    ) -> bool {
        #[cfg(test)]
        {
            self.polls.all += 1;
        }
        let Some(peer) = self.peers.get_mut(&key) else { return false };
        let stays = match work(peer) {
            Ok(Turn::Stays) => true,
            Ok(Turn::Gone) => {
                outcomes.gone(peer, now);
                false
            }
            Err(error) => {
                outcomes.failed(peer, &error, now);
                peer.part(now)
            }
        };
        if stays {
            enter(&mut self.due_queue, key, peer);
        } else {
            self.remove(key);
        }
        stays
    }

    #[cold]
    fn dismiss(
        &mut self,
        key: QpNum,
        why: &str,
        at_once: bool,
        now: Instant,
        outcomes: &mut Outcomes,
    ) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if !peer.is_parting() {
            outcomes.failed(peer, &anyhow!("{why}"), now);
        }
        if peer.dismiss(why, at_once, now) {
            enter(&mut self.due_queue, key, peer);
        } else {
            self.remove(key);
        }
    }

    #[cold]
    fn remove(&mut self, key: QpNum) {
        if let Some(mut peer) = self.peers.remove(&key) {
            self.due_queue.strike(key, peer.entered().take());
        }
    }
}

/// A peer that is entered for an earlier time finds nothing to do then, and is entered again.
#[inline]
fn enter(due_queue: &mut DueQueue, key: QpNum, peer: &mut Peer) {
    let due = peer.due();
    let entered = peer.entered();
    if entered.is_none_or(|entered| due < entered) {
        due_queue.enter(key, entered.replace(due), due);
    }
}

/// Most peers that are polled in one turn because of their timers.
pub(super) const LOOKS_MAX: usize = 16;

/// Most sessions that are evicted for one that needs their memory.
pub(super) const EVICTIONS_MAX: usize = 16;
/// Most peers without a place that may stay until they have received the reason.
const PARTING_MAX: usize = 64;
/// Reason of a session that is evicted for one of another address.
const GAVE_WAY: &str = "the server is full, and your address has most sessions: this one has to give \
                        way to another address";

/// Hashes numbers that this end has assigned, in sequence: no peer chooses them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.write_u32(u32::from(*octet));
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // 2^64 over the golden ratio: successive numbers differ in the upper bits, too.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
