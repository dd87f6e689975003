//! The end that serves: takes peers in, works for all of them in one thread, and lets them go.
//!
//! Each peer has a session ([`peer`]) with memory of its own, all of it bounded by the options. Only
//! hashing and writing files is done elsewhere ([`files`]), by a thread for each transfer.

mod files;
mod peer;
mod role;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use urnic::driver::{ConnectRequest, EndpointError, Listener, monotonic_now};
use urnic::mpa::startup::Offer;
use urnic::time::Instant;

use crate::host::Host;
use crate::protocol::{Hello, emit_refusal, printable};
use crate::report;
use crate::server::peer::{Peer, Turn};
use crate::transfer::Folder;

/// What a server is willing to do.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The folder whose files are served and written to; none without it.
    pub(crate) folder: Option<Folder>,
    /// Octets of memory for one peer.
    pub(crate) memory_max: u64,
    /// Octets of one file.
    pub(crate) file_max: u64,
    /// Peers at a time.
    pub(crate) peers_max: usize,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As it should.
    Well,
    /// The only session did not end as it should have.
    Badly,
}

/// A listener with its peers.
#[derive(Debug)]
pub(crate) struct Server<'h> {
    host: &'h Host,
    limits: Limits,
    listener: Listener,
    peers: Vec<Peer>,
    look_due: Instant,
    /// Whether wrong checksums were told of.
    advised: bool,
}

impl<'h> Server<'h> {
    /// Listens.
    ///
    /// # Errors
    /// When that is not possible.
    pub(crate) fn new(host: &'h Host, local: SocketAddr, limits: Limits) -> anyhow::Result<Self> {
        let listener = match host.endpoint.listen(local, host.options.listen_params()) {
            Ok(listener) => listener,
            Err(EndpointError::Io(std::io::ErrorKind::AddrInUse)) => {
                bail!("{local} is taken by another program: choose another port")
            }
            Err(EndpointError::Io(std::io::ErrorKind::AddrNotAvailable)) => bail!(
                "{} is no address of this machine: 'ip address' lists them, 0.0.0.0 is all",
                local.ip()
            ),
            Err(error) => return Err(error).with_context(|| format!("listening at {local}")),
        };
        Ok(Self {
            host,
            limits,
            listener,
            peers: Vec::new(),
            look_due: monotonic_now(),
            advised: false,
        })
    }

    /// The address listened at.
    pub(crate) const fn local(&self) -> SocketAddr {
        self.listener.local()
    }

    /// Serves until `stop`, or with `once` until the first peer has gone.
    ///
    /// # Errors
    /// When the endpoint fails.
    pub(crate) fn run(&mut self, once: bool, stop: &Arc<AtomicBool>) -> anyhow::Result<Ended> {
        while !stop.load(Ordering::Relaxed) {
            self.host.endpoint.turn(LOOK_INTERVAL)?;
            // Those who have gone make room for those who come.
            if let Some(ended) = self.turn_peers()
                && once
            {
                return Ok(ended);
            }
            while let Some(request) = self.listener.next_request(Duration::ZERO)? {
                self.admit(request);
            }
        }
        self.peers.clear();
        Ok(Ended::Well)
    }

    /// Lets all peers work; how the last one that has gone did so, if one has.
    fn turn_peers(&mut self) -> Option<Ended> {
        let now = monotonic_now();
        let look = now >= self.look_due;
        if look {
            self.look_due = now + LOOK_INTERVAL;
            self.advise();
        }
        let mut ended = None;
        let idle_max = self.host.options.timeout;
        self.peers.retain_mut(|peer| match peer.turn(now, look, idle_max) {
            Ok(Turn::Stays) => true,
            Ok(Turn::Gone) => {
                ended = Some(Ended::Well);
                false
            }
            Err(error) => {
                report::complain(&format!("{}: {error:#}", peer.remote()));
                peer.abort();
                ended = Some(Ended::Badly);
                false
            }
        });
        ended
    }

    /// Tells, once, when nobody can connect for lack of right checksums.
    fn advise(&mut self) {
        if !self.advised
            && self.peers.is_empty()
            && let Some(advice) = self.host.checksum_advice()
        {
            report::complain(&advice);
            self.advised = true;
        }
    }

    /// Gives a peer the session it asks for, or tells it why not.
    fn admit(&mut self, request: ConnectRequest) {
        let remote = request.remote();
        let admitted = self.prepare(&request);
        let result = match admitted {
            Ok((peer, welcome)) => {
                let (ird, ord) = (DEPTH_OF_READS, DEPTH_OF_READS);
                let offer = Offer { private_data: &welcome, ird, ord };
                request.accept(peer.qp(), &offer).map(|connecting| {
                    self.peers.push(peer.connecting(connecting));
                })
            }
            Err(refusal) => {
                let reason = format!("{refusal:#}");
                report::complain(&format!("{remote}: rejected: {}", printable(&reason)));
                request.reject(&emit_refusal(&reason))
            }
        };
        if let Err(error) = result {
            report::complain(&format!("{remote}: {error}"));
        }
    }

    fn prepare(&self, request: &ConnectRequest) -> anyhow::Result<(Peer, Vec<u8>)> {
        if self.peers.len() >= self.limits.peers_max {
            bail!("{} peers are being served, no more are taken: try later", self.peers.len());
        }
        let hello = Hello::parse(&request.request().private_data)?;
        let (peer, welcome) = Peer::new(self.host, &self.limits, request.remote(), &hello)?;
        Ok((peer, welcome.emit()))
    }
}

/// How often peers are looked after that do nothing, and signals at the latest.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Reads open at a time, in each direction.
const DEPTH_OF_READS: u16 = 16;
