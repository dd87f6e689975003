//! The server's end: accepts peers, serves all of them in one thread, and ends their sessions.
//!
//! Each peer has a session ([`peer`]) with memory of its own, bounded by the options before it is
//! allocated ([`resources`], [`places`], [`accounts`]). A turn polls only the peers with an event,
//! for any number of peers ([`peers`]); their completions come by shared queues ([`completions`]).
//! Only files are read, hashed and written elsewhere ([`files`]), by one thread for each transfer
//! ([`control_thread`]).

mod accounts;
mod activity;
mod admission;
mod both;
mod completions;
mod control_thread;
mod due_queue;
mod files;
mod link;
mod listen;
mod log;
mod outcomes;
mod peer;
mod peers;
mod ping_pong;
mod places;
mod ready_peers;
mod registration;
mod resources;
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
use crate::protocol::auth::{Challenge, prove_reply};
use crate::protocol::emit_refusal;
use crate::server::accounts::{Accounts, Grant};
use crate::server::admission::{AdmissionCounts, Admitted};
use crate::server::outcomes::Outcomes;
use crate::server::peer::Peer;
use crate::server::peers::Peers;
use crate::server::places::{Share, Shortage, Source};
use crate::server::resources::SessionResources;
use crate::transfer::{Folder, Room};

pub(crate) use crate::server::admission::{Admission, Holder};
pub(crate) use crate::server::listen::{Opened, await_address, check_address};
pub(crate) use crate::server::log::{Event, Log};
pub(crate) use crate::server::places::Places;

#[derive(Debug)]
pub(crate) struct Limits {
    /// Folder whose files are served and written; `None` serves no files.
    pub(crate) folder: Option<Folder>,
    /// Name of the key whose holders have these limits.
    pub(crate) key: Option<String>,
    /// Reason why peers may get no files.
    pub(crate) no_get: Option<&'static str>,
    /// Reason why peers may put no files.
    pub(crate) no_put: Option<&'static str>,
    /// Set if a peer may replace a file.
    pub(crate) allow_overwrite: bool,
    pub(crate) memory_max: u64,
    pub(crate) file_max: u64,
    pub(crate) room: Arc<Room>,
    pub(crate) places: Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// No session failed.
    Well,
    /// A session failed or was refused.
    Badly,
}

#[derive(Debug)]
pub(crate) struct Server<'h> {
    host: &'h Host,
    limits: Limits,
    admission: Admission,
    listener: Listener,
    peers: Peers,
    accounts: Accounts,
    outcomes: Outcomes,
    pause: Duration,
    turned_at: Instant,
    device_due: Instant,
    /// Set once the log has a line about wrong checksums.
    advised: bool,
}

impl<'h> Server<'h> {
    pub(crate) fn new(
        host: &'h Host,
        local: SocketAddr,
        limits: Limits,
        admission: Admission,
        log: Log,
    ) -> anyhow::Result<Self> {
        let now = monotonic_now();
        Ok(Self {
            host,
            accounts: Accounts::new(limits.places),
            limits,
            admission,
            listener: listen::open(host, local)?,
            peers: Peers::new(host),
            outcomes: Outcomes::new(log, now),
            pause: Duration::ZERO,
            turned_at: now,
            device_due: now,
            advised: false,
        })
    }

    pub(crate) const fn local(&self) -> SocketAddr {
        self.listener.local()
    }

    /// Serves until `stop`, or with `once` until a peer has come and all peers have left.
    pub(crate) fn run(&mut self, once: bool, stop: &Arc<AtomicBool>) -> anyhow::Result<Ended> {
        while !stop.load(Ordering::Relaxed) {
            let refused = self.turn()?;
            if once
                && self.peers.is_empty()
                && let Some(ended) = self.outcomes.ended
            {
                if refused {
                    // The reason must reach the peer.
                    self.host.endpoint.run_for(REFUSAL_TIME)?;
                }
                self.report_rest();
                return Ok(ended);
            }
        }
        self.stop()?;
        self.report_rest();
        Ok(Ended::Well)
    }

    /// Logs at the end the counts that no line has.
    fn report_rest(&mut self) {
        self.outcomes.report_rest();
        let counts = self.admission.counts();
        let AdmissionCounts { challenges: _, by_network, by_key, by_failures } = counts;
        if counts.refused() > 0 {
            self.outcomes.log.notice(format!(
                "{by_network} requests were refused for their network, {by_key} without a right \
                 key, {by_failures} after too many of those"
            ));
        }
    }

    /// Ends all sessions, and gives the peers some time to receive the reason.
    fn stop(&mut self) -> anyhow::Result<()> {
        // First the sessions that have ended by themselves.
        self.pause = Duration::ZERO;
        self.turn()?;
        let began = monotonic_now();
        self.peers.dismiss_all(STOPPED, began, &mut self.outcomes);
        loop {
            let now = monotonic_now();
            self.peers.turn(now, &mut self.accounts, &mut self.outcomes);
            if self.peers.is_empty() || now - began >= STOP_TIME {
                self.peers.clear();
                return Ok(());
            }
            self.host.endpoint.turn(self.peers.pause(now, STOP_TURN))?;
        }
    }

    /// Returns true if it has refused a peer.
    fn turn(&mut self) -> anyhow::Result<bool> {
        self.host.endpoint.turn(self.pause)?;
        let now = monotonic_now();
        let away = (now - self.turned_at).saturating_sub(self.pause);
        if away >= OWN_STOP_MIN {
            // Events that came meanwhile are handled in this turn and the next ones.
            self.peers.excuse(away);
        }
        self.turned_at = now;
        if now >= self.device_due {
            self.device_due = now + LOOK_INTERVAL;
            self.look_at_device();
            self.outcomes.report_left_out(now);
        }
        // Peers that leave make room for the next.
        self.peers.turn(now, &mut self.accounts, &mut self.outcomes);
        let mut refused = false;
        while let Some(request) = self.listener.next_request(Duration::ZERO)? {
            refused |= !self.admit(request, now);
        }
        self.pause = self.peers.pause(now, LOOK_INTERVAL);
        Ok(refused)
    }

    /// Logs events of the device, and once, if wrong checksums keep peers from connecting.
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

    /// Gives a peer the session that it asks for, or sends it a challenge, or the reason why not.
    /// Returns false if the peer is refused.
    fn admit(&mut self, request: ConnectRequest, now: Instant) -> bool {
        let remote = request.remote();
        let admitted = self.prepare(&request, now);
        let is_admitted = admitted.is_ok();
        let result = match admitted {
            Ok(Prepared::Session(peer, reply)) => {
                let (ird, ord) = (DEPTH_OF_READS, DEPTH_OF_READS);
                let offer = Offer { private_data: &reply, ird, ord };
                request.accept(peer.qp(), &offer).map(|connecting| {
                    let (session, key) = (peer.session().to_owned(), peer.key());
                    self.outcomes.report(&Event::Started { peer: remote, key, session }, now);
                    self.peers.insert(*peer, connecting, now);
                })
            }
            Ok(Prepared::Challenge(challenge)) => request.reject(&challenge.emit()),
            Err(refusal) => {
                let reason = format!("{refusal:#}");
                let event = Event::Rejected { peer: remote, reason: reason.clone() };
                self.outcomes.report(&event, now);
                self.outcomes.ended = Some(Ended::Badly);
                request.reject(&emit_refusal(&reason))
            }
        };
        if let Err(error) = result {
            self.outcomes.report(&Event::Notice { text: format!("{remote}: {error}") }, now);
        }
        is_admitted
    }

    fn prepare(&mut self, request: &ConnectRequest, now: Instant) -> anyhow::Result<Prepared> {
        let remote = request.remote();
        self.admission.check_address(remote)?;
        let private_data = &request.request().private_data;
        let (hello, holder) = match self.admission.admit(private_data, remote, now)? {
            Admitted::Session(hello, holder) => (hello, holder),
            Admitted::Challenge(challenge) => return Ok(Prepared::Challenge(challenge)),
        };
        let source = Source::of(remote);
        // A peer for which there is no room costs no access to files.
        let least = Share { source, memory: 0 };
        let has_place = self.accounts.check(least);
        if has_place.is_err() && self.accounts.crowder(least).is_none() {
            has_place?;
        }
        let limits = holder.as_ref().map_or(&self.limits, |holder| &holder.limits);
        let resources = SessionResources::of(&hello, limits)?;
        let memory = resources.memory.saturating_add(resources.beside);
        let grant = self.grant(Share { source, memory }, now)?;
        let limits = holder.as_ref().map_or(&self.limits, |holder| &holder.limits);
        let (peer, welcome) =
            self.peers.prepare(self.host, limits, remote, &hello, resources, grant)?;
        let mut reply = welcome.emit();
        if let Some(holder) = holder {
            prove_reply(&holder.key, private_data, &mut reply);
        }
        Ok(Prepared::Session(Box::new(peer), reply))
    }

    /// Reserves place and memory, if need be by evicting sessions of an address that has more.
    fn grant(&mut self, share: Share, now: Instant) -> anyhow::Result<Grant> {
        match self.accounts.crowder(share) {
            Some((site, Shortage::Memory)) => {
                let excess = self.accounts.excess(share, site);
                self.peers.evict_for_memory(site, excess, now, &mut self.outcomes);
            }
            Some((site, _)) => self.peers.evict_for_place(site, now, &mut self.outcomes),
            None => {}
        }
        self.accounts.take(share)
    }
}

/// Answer to a request.
#[derive(Debug)]
enum Prepared {
    /// The peer's session, and the Private Data of the Reply.
    Session(Box<Peer>, Vec<u8>),
    /// The client must prove first that it has a key.
    Challenge(Challenge),
}

/// Interval of looks at the device; signals are seen at least as often.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Time for a refused peer to receive the reason, before a server for one peer ends.
const REFUSAL_TIME: Duration = Duration::from_millis(500);
/// Reason that peers receive when the server ends.
const STOPPED: &str = "the server was stopped";
/// Time for them to receive it.
const STOP_TIME: Duration = Duration::from_millis(500);
/// Longest sleep during that time.
const STOP_TURN: Duration = Duration::from_millis(10);
/// A turn that begins so late shows that this process was stopped.
const OWN_STOP_MIN: Duration = Duration::from_secs(1);
/// Reads in flight at a time, in each direction.
const DEPTH_OF_READS: u16 = 16;
