//! The end that serves: takes peers in, works for all of them in one thread, and lets them go.
//!
//! Each peer has a session ([`peer`]) with memory of its own, all of it bounded by the options before
//! it is taken ([`needs`], [`places`]). Only reading, hashing and writing files is done elsewhere
//! ([`files`]), by a thread for each transfer ([`clerk`]).

mod both;
mod clerk;
mod files;
mod listen;
mod log;
mod needs;
mod peer;
mod ping_pong;
mod places;
mod registration;
mod role;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urnic::{ConnectRequest, EndpointEvent, Listener, Offer, monotonic_now};
use urnic_engine::time::Instant;

use crate::host::Host;
use crate::protocol::{Hello, emit_refusal};
use crate::server::clerk::Leaving;
use crate::server::needs::Needs;
use crate::server::peer::{Peer, Turn};
use crate::server::places::{Share, Source};
use crate::transfer::{Folder, Room};

pub(crate) use crate::server::listen::{Opened, await_address, check_address};
pub(crate) use crate::server::log::{Event, Log};
pub(crate) use crate::server::places::Places;

/// What a server is willing to do.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The folder whose files are served and written to; none without it.
    pub(crate) folder: Option<Folder>,
    /// Whether nothing is written there.
    pub(crate) read_only: bool,
    /// Whether a peer may replace a file.
    pub(crate) allow_overwrite: bool,
    /// Octets of memory for one peer.
    pub(crate) memory_max: u64,
    /// Octets of one file.
    pub(crate) file_max: u64,
    /// Octets of all files that come.
    pub(crate) room: Arc<Room>,
    /// Peers at a time, and their memory.
    pub(crate) places: Places,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As it should.
    Well,
    /// A session did not end as it should have, or was refused.
    Badly,
}

/// A listener with its peers.
#[derive(Debug)]
pub(crate) struct Server<'h> {
    host: &'h Host,
    limits: Limits,
    log: Log,
    listener: Listener,
    peers: Vec<Peer>,
    leaving: Leaving,
    look_due: Instant,
    /// The peer that is looked after next.
    look_next: usize,
    /// How the sessions that have ended did so; `None` while none has.
    ended: Option<Ended>,
    /// Whether wrong checksums were told of.
    advised: bool,
}

impl<'h> Server<'h> {
    /// Listens.
    ///
    /// # Errors
    /// When that is not possible.
    pub(crate) fn new(
        host: &'h Host,
        local: SocketAddr,
        limits: Limits,
        log: Log,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            host,
            limits,
            log,
            listener: listen::open(host, local)?,
            peers: Vec::new(),
            leaving: Leaving::default(),
            look_due: monotonic_now(),
            look_next: 0,
            ended: None,
            advised: false,
        })
    }

    /// The address listened at.
    pub(crate) const fn local(&self) -> SocketAddr {
        self.listener.local()
    }

    /// Serves until `stop`, or with `once` until a peer has come and all have gone.
    ///
    /// # Errors
    /// When the endpoint fails.
    pub(crate) fn run(&mut self, once: bool, stop: &Arc<AtomicBool>) -> anyhow::Result<Ended> {
        while !stop.load(Ordering::Relaxed) {
            self.host.endpoint.turn(LOOK_INTERVAL)?;
            // Peers that have gone make room for the next.
            self.turn_peers();
            let mut refused = false;
            while let Some(request) = self.listener.next_request(Duration::ZERO)? {
                refused |= !self.admit(request);
            }
            if once
                && self.peers.is_empty()
                && let Some(ended) = self.ended
            {
                if refused {
                    // The reason has to reach the peer.
                    self.host.endpoint.run_for(REFUSAL_TIME)?;
                }
                return Ok(ended);
            }
        }
        self.peers.clear();
        Ok(Ended::Well)
    }

    /// Lets all peers work, and looks after some of them when it is time to.
    fn turn_peers(&mut self) {
        let now = monotonic_now();
        let mut looked_at = 0..0;
        let mut active_at = HashMap::new();
        if now >= self.look_due {
            self.look_due = now + LOOK_INTERVAL;
            let count = self.peers.len().div_ceil(LOOK_SHARE);
            let from = if self.look_next < self.peers.len() { self.look_next } else { 0 };
            looked_at = from..from + count;
            self.look_next = looked_at.end;
            for peer in &self.peers {
                let latest = active_at.entry(peer.share().source).or_insert(Instant::ZERO);
                *latest = peer.active_at().max(*latest);
            }
            self.look_at_device();
        }
        let (idle_max, mut index) = (self.host.options.timeout, 0);
        let (ended, log) = (&mut self.ended, self.log);
        self.peers.retain_mut(|peer| {
            let look = looked_at.contains(&index).then(|| {
                let source = active_at.get(&peer.share().source);
                idle_limit(idle_max, now, source.copied().unwrap_or_default())
            });
            index += 1;
            match peer.turn(now, look) {
                Ok(Turn::Stays) => true,
                Ok(Turn::Gone) => {
                    if let Some(event) = peer.ended_well(now) {
                        log.tell(&event);
                    }
                    ended.get_or_insert(Ended::Well);
                    false
                }
                Err(error) => {
                    let (remote, session) = (peer.remote(), peer.session().to_owned());
                    let reason = format!("{error:#}");
                    log.tell(&Event::Failed { peer: remote, session, reason });
                    *ended = Some(Ended::Badly);
                    peer.part(now)
                }
            }
        });
    }

    /// Tells what has happened to the device, and once, when no peer can connect for lack of right
    /// checksums.
    fn look_at_device(&mut self) {
        while let Ok(Some(event)) = self.host.endpoint.next_event(Duration::ZERO) {
            match event {
                EndpointEvent::AddressAcquired { address, .. } => {
                    self.log.notice(format!("{} has the address {address}", self.host.options.dev));
                }
                EndpointEvent::AddressLost { address } => self.log.notice(format!(
                    "{} has lost the address {address}: the DHCP server took it back",
                    self.host.options.dev
                )),
                _ => {}
            }
        }
        if !self.advised
            && self.peers.is_empty()
            && let Some(advice) = self.host.checksum_advice()
        {
            self.log.notice(advice);
            self.advised = true;
        }
    }

    /// Gives a peer the session it asks for, or tells it why not; whether it got it.
    fn admit(&mut self, request: ConnectRequest) -> bool {
        let remote = request.remote();
        let admitted = self.prepare(&request);
        let is_admitted = admitted.is_ok();
        let result = match admitted {
            Ok((peer, welcome)) => {
                let (ird, ord) = (DEPTH_OF_READS, DEPTH_OF_READS);
                let offer = Offer { private_data: &welcome, ird, ord };
                request.accept(peer.qp(), &offer).map(|connecting| {
                    let session = peer.session().to_owned();
                    self.log.tell(&Event::Started { peer: remote, session });
                    self.peers.push(peer.connecting(connecting));
                })
            }
            Err(refusal) => {
                let reason = format!("{refusal:#}");
                self.log.tell(&Event::Rejected { peer: remote, reason: reason.clone() });
                self.ended = Some(Ended::Badly);
                request.reject(&emit_refusal(&reason))
            }
        };
        if let Err(error) = result {
            self.log.notice(format!("{remote}: {error}"));
        }
        is_admitted
    }

    /// What peers have, and what those that have gone still take: a thread that has not noticed it
    /// yet has a place, too.
    fn taken(&self) -> impl Iterator<Item = Share> {
        let leaving = self.leaving.sources().into_iter();
        let leaving = leaving.map(|source| Share { source, memory: 0 });
        self.peers.iter().map(Peer::share).chain(leaving)
    }

    fn prepare(&self, request: &ConnectRequest) -> anyhow::Result<(Peer, Vec<u8>)> {
        let remote = request.remote();
        let source = Source::of(remote);
        // A peer that has no place costs no look at files.
        self.limits.places.check(self.taken(), Share { source, memory: 0 })?;
        let hello = Hello::parse(&request.request().private_data)?;
        let needs = Needs::of(&hello, &self.limits)?;
        let share = Share { source, memory: needs.memory };
        self.limits.places.check(self.taken(), share)?;
        let (peer, welcome) =
            Peer::new(self.host, &self.limits, &self.leaving, remote, &hello, needs, share)?;
        Ok((peer, welcome.emit()))
    }
}

/// How long a peer may do nothing, when one of its address was last active at `active_at`. With a
/// thousand connections on a link that loses much, TCP may leave one out for longer than it takes to
/// see that a peer is gone; the others show that it is not.
fn idle_limit(idle_max: Duration, now: Instant, active_at: Instant) -> Duration {
    if now - active_at < idle_max { idle_max.saturating_mul(PATIENCE) } else { idle_max }
}

/// Times `--timeout` that a peer may be silent while others of its address are not.
const PATIENCE: u32 = 6;
/// How often some of the peers are looked after, and signals at the latest.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Looks until all peers have been looked after: asking all at once would stop the work for a while.
const LOOK_SHARE: usize = 4;
/// How long a refused peer has to take in why, before a server for one ends.
const REFUSAL_TIME: Duration = Duration::from_millis(500);
/// Reads open at a time, in each direction.
const DEPTH_OF_READS: u16 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::StackOptions;

    #[test]
    fn a_thread_whose_peer_has_gone_keeps_its_place_until_it_ends() {
        let options = StackOptions::kernel(Duration::from_secs(1));
        let host = Host::open(&options, Duration::ZERO).unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::new(&host, local, limits(), Log::Text).unwrap();
        let source = Source::of(local);
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let work = move |_: &clerk::Desk| assert!(waits.recv().is_err());
        let clerk = clerk::Clerk::start(&host, source, &server.leaving, work).unwrap();
        assert_eq!(server.taken().count(), 0, "the peer itself is counted while it is there");
        drop(clerk);
        assert_eq!(server.taken().next(), Some(Share { source, memory: 0 }));
        drop(go_on);
        let deadline = monotonic_now() + Duration::from_secs(10);
        while server.taken().count() > 0 {
            assert!(monotonic_now() < deadline, "the thread has ended, and its place is free");
        }
    }

    #[test]
    fn a_silent_peer_has_more_time_while_others_of_its_address_are_active() {
        let (idle_max, now) = (Duration::from_secs(10), Instant::ZERO + Duration::from_secs(100));
        let before = |seconds: u64| Instant::ZERO + Duration::from_secs(100 - seconds);
        assert_eq!(idle_limit(idle_max, now, before(9)), idle_max * PATIENCE);
        assert_eq!(idle_limit(idle_max, now, before(10)), idle_max);
        assert_eq!(idle_limit(Duration::MAX, now, now), Duration::MAX);
    }

    /// Limits of a server with 1 MiB for a peer.
    pub(crate) fn limits() -> Limits {
        Limits {
            folder: None,
            read_only: false,
            allow_overwrite: false,
            memory_max: 1 << 20,
            file_max: 1 << 40,
            room: Arc::new(Room::new(None, 0)),
            places: Places {
                peers_max: 4,
                peers_per_source_max: 4,
                memory_max: 1 << 30,
                memory_per_source_max: 1 << 30,
            },
        }
    }
}
