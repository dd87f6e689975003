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
use crate::server::ledger::Ledger;
use crate::server::needs::Needs;
use crate::server::outcomes::Outcomes;
use crate::server::peer::Peer;
use crate::server::peers::Peers;
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
    listener: Listener,
    peers: Peers,
    ledger: Ledger,
    outcomes: Outcomes,
    /// How long the next turn may sleep.
    pause: Duration,
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
        Ok(Self {
            host,
            ledger: Ledger::new(limits.places),
            limits,
            listener: listen::open(host, local)?,
            peers: Peers::new(host),
            outcomes: Outcomes::new(log),
            pause: Duration::ZERO,
            device_due: monotonic_now(),
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
                return Ok(ended);
            }
        }
        self.peers.clear();
        Ok(Ended::Well)
    }

    /// Works once, and sleeps when there is nothing to do; whether it has refused a peer.
    fn turn(&mut self) -> anyhow::Result<bool> {
        self.host.endpoint.turn(self.pause)?;
        let now = monotonic_now();
        if now >= self.device_due {
            self.device_due = now + LOOK_INTERVAL;
            self.look_at_device();
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
        let admitted = self.prepare(&request);
        let is_admitted = admitted.is_ok();
        let result = match admitted {
            Ok((peer, welcome)) => {
                let (ird, ord) = (DEPTH_OF_READS, DEPTH_OF_READS);
                let offer = Offer { private_data: &welcome, ird, ord };
                request.accept(peer.qp(), &offer).map(|connecting| {
                    let session = peer.session().to_owned();
                    self.outcomes.log.tell(&Event::Started { peer: remote, session });
                    self.peers.insert(peer, connecting, now);
                })
            }
            Err(refusal) => {
                let reason = format!("{refusal:#}");
                self.outcomes.log.tell(&Event::Rejected { peer: remote, reason: reason.clone() });
                self.outcomes.ended = Some(Ended::Badly);
                request.reject(&emit_refusal(&reason))
            }
        };
        if let Err(error) = result {
            self.outcomes.log.notice(format!("{remote}: {error}"));
        }
        is_admitted
    }

    fn prepare(&mut self, request: &ConnectRequest) -> anyhow::Result<(Peer, Vec<u8>)> {
        let remote = request.remote();
        let source = Source::of(remote);
        // A peer that has no place costs no look at files.
        self.ledger.check(Share { source, memory: 0 })?;
        let hello = Hello::parse(&request.request().private_data)?;
        let needs = Needs::of(&hello, &self.limits)?;
        let grant = self.ledger.take(Share { source, memory: needs.memory })?;
        let (host, limits) = (self.host, &self.limits);
        let (peer, welcome) = self.peers.prepare(host, limits, remote, &hello, needs, grant)?;
        Ok((peer, welcome.emit()))
    }
}

/// How often the device is looked at, and signals at the latest.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a refused peer has to take in why, before a server for one ends.
const REFUSAL_TIME: Duration = Duration::from_millis(500);
/// Reads open at a time, in each direction.
const DEPTH_OF_READS: u16 = 16;
