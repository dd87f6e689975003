//! The end that serves: takes peers in, works for all of them in one thread, and lets them go.
//!
//! Each peer has a session ([`peer`]) with memory of its own, all of it bounded by the options before
//! it is taken ([`needs`], [`places`], [`ledger`]). A turn visits the peers that something has happened
//! to, however many there are ([`peers`]); their completions come by queues that they share
//! ([`completions`]). Only reading, hashing and writing files is done elsewhere ([`files`]), by a thread
//! for each transfer ([`clerk`]).

mod activity;
mod both;
mod clerk;
mod completions;
mod dues;
mod files;
mod ledger;
mod link;
mod listen;
mod log;
mod needs;
mod news;
mod outcomes;
mod peer;
mod peers;
mod ping_pong;
mod places;
mod registration;
mod role;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urnic::{ConnectRequest, EndpointEvent, Listener, Offer, monotonic_now};
use urnic_engine::time::Instant;

use crate::host::Host;
use crate::protocol::{Hello, emit_refusal};
use crate::server::ledger::{Grant, Ledger};
use crate::server::needs::Needs;
use crate::server::outcomes::Outcomes;
use crate::server::peer::Peer;
use crate::server::peers::Peers;
use crate::server::places::{Share, Shortage, Source};
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
    /// Bytes of memory for one peer.
    pub(crate) memory_max: u64,
    /// Bytes of one file.
    pub(crate) file_max: u64,
    /// Bytes of all files that come.
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
    listener: Listener,
    peers: Peers,
    ledger: Ledger,
    outcomes: Outcomes,
    /// How long the next turn may sleep.
    pause: Duration,
    /// When the last turn began to work.
    turned_at: Instant,
    /// When the device is looked at next.
    device_due: Instant,
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
        let now = monotonic_now();
        Ok(Self {
            host,
            ledger: Ledger::new(limits.places),
            limits,
            listener: listen::open(host, local)?,
            peers: Peers::new(host),
            outcomes: Outcomes::new(log, now),
            pause: Duration::ZERO,
            turned_at: now,
            device_due: now,
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
            let refused = self.turn()?;
            if once
                && self.peers.is_empty()
                && let Some(ended) = self.outcomes.ended
            {
                if refused {
                    // The reason has to reach the peer.
                    self.host.endpoint.run_for(REFUSAL_TIME)?;
                }
                self.outcomes.tell_rest();
                return Ok(ended);
            }
        }
        self.stop()?;
        self.outcomes.tell_rest();
        Ok(Ended::Well)
    }

    /// Ends all sessions, and gives the peers some time to take in why.
    fn stop(&mut self) -> anyhow::Result<()> {
        // First those that have ended by themselves.
        self.pause = Duration::ZERO;
        self.turn()?;
        let began = monotonic_now();
        self.peers.dismiss_all(STOPPED, began, &mut self.outcomes);
        loop {
            let now = monotonic_now();
            self.peers.turn(now, &mut self.ledger, &mut self.outcomes);
            if self.peers.is_empty() || now - began >= STOP_TIME {
                self.peers.clear();
                return Ok(());
            }
            self.host.endpoint.turn(self.peers.pause(now, STOP_TURN))?;
        }
    }

    /// Works once, and sleeps when there is nothing to do; whether it has refused a peer.
    fn turn(&mut self) -> anyhow::Result<bool> {
        self.host.endpoint.turn(self.pause)?;
        let now = monotonic_now();
        let away = (now - self.turned_at).saturating_sub(self.pause);
        if away >= OWN_STOP_MIN {
            // What came meanwhile is handled in this turn and the next ones.
            self.peers.excuse(away);
        }
        self.turned_at = now;
        if now >= self.device_due {
            self.device_due = now + LOOK_INTERVAL;
            self.look_at_device();
            self.outcomes.tell_left_out(now);
        }
        // Peers that have gone make room for the next.
        self.peers.turn(now, &mut self.ledger, &mut self.outcomes);
        let mut refused = false;
        while let Some(request) = self.listener.next_request(Duration::ZERO)? {
            refused |= !self.admit(request, now);
        }
        self.pause = self.peers.pause(now, LOOK_INTERVAL);
        Ok(refused)
    }

    /// Tells what has happened to the device, and once, when no peer can connect for lack of right
    /// checksums.
    fn look_at_device(&mut self) {
        while let Ok(Some(event)) = self.host.endpoint.next_event(Duration::ZERO) {
            match event {
                EndpointEvent::AddressAcquired { address, .. } => {
                    self.outcomes
                        .log
                        .notice(format!("{} has the address {address}", self.host.options.dev));
                }
                EndpointEvent::AddressLost { address } => self.outcomes.log.notice(format!(
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
            self.outcomes.log.notice(advice);
            self.advised = true;
        }
    }

    /// Gives a peer the session it asks for, or tells it why not; whether it got it.
    fn admit(&mut self, request: ConnectRequest, now: Instant) -> bool {
        let remote = request.remote();
        let admitted = self.prepare(&request, now);
        let is_admitted = admitted.is_ok();
        let result = match admitted {
            Ok((peer, welcome)) => {
                let (ird, ord) = (DEPTH_OF_READS, DEPTH_OF_READS);
                let offer = Offer { private_data: &welcome, ird, ord };
                request.accept(peer.qp(), &offer).map(|connecting| {
                    let session = peer.session().to_owned();
                    self.outcomes.tell(&Event::Started { peer: remote, session }, now);
                    self.peers.insert(peer, connecting, now);
                })
            }
            Err(refusal) => {
                let reason = format!("{refusal:#}");
                let event = Event::Rejected { peer: remote, reason: reason.clone() };
                self.outcomes.tell(&event, now);
                self.outcomes.ended = Some(Ended::Badly);
                request.reject(&emit_refusal(&reason))
            }
        };
        if let Err(error) = result {
            self.outcomes.tell(&Event::Notice { text: format!("{remote}: {error}") }, now);
        }
        is_admitted
    }

    fn prepare(
        &mut self,
        request: &ConnectRequest,
        now: Instant,
    ) -> anyhow::Result<(Peer, Vec<u8>)> {
        let remote = request.remote();
        let source = Source::of(remote);
        // A peer that gets no place costs no look at files.
        let least = Share { source, memory: 0 };
        let has_place = self.ledger.check(least);
        if has_place.is_err() && self.ledger.crowder(least).is_none() {
            has_place?;
        }
        let hello = Hello::parse(&request.request().private_data)?;
        let needs = Needs::of(&hello, &self.limits)?;
        let memory = needs.memory.saturating_add(needs.beside);
        let grant = self.grant(Share { source, memory }, now)?;
        let (host, limits) = (self.host, &self.limits);
        let (peer, welcome) = self.peers.prepare(host, limits, remote, &hello, needs, grant)?;
        Ok((peer, welcome.emit()))
    }

    /// Gives a peer its place and its memory; when all are taken, those of an address that has more.
    fn grant(&mut self, share: Share, now: Instant) -> anyhow::Result<Grant> {
        match self.ledger.crowder(share) {
            Some((site, Shortage::Memory)) => {
                let excess = self.ledger.excess(share, site);
                self.peers.evict_for_memory(site, excess, now, &mut self.outcomes);
            }
            Some((site, _)) => self.peers.evict_for_place(site, now, &mut self.outcomes),
            None => {}
        }
        self.ledger.take(share)
    }
}

/// How often the device is looked at, and signals at the latest.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a refused peer has to take in why, before a server for one ends.
const REFUSAL_TIME: Duration = Duration::from_millis(500);
/// What peers are told when the server ends.
const STOPPED: &str = "the server was stopped";
/// How long they have to take that in.
const STOP_TIME: Duration = Duration::from_millis(500);
/// Longest sleep meanwhile.
const STOP_TURN: Duration = Duration::from_millis(10);
/// A turn that begins so late shows that this process was stopped.
const OWN_STOP_MIN: Duration = Duration::from_secs(1);
/// Reads open at a time, in each direction.
const DEPTH_OF_READS: u16 = 16;
