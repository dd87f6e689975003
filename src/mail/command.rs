//! Commands from handles in application threads to the worker of their endpoint.

pub(crate) mod outbox;

use std::net::{IpAddr, SocketAddr};

use crossbeam::channel::Sender;

use crate::config::ConnectOptions;
use crate::error::Error;
use crate::mail::channel::{HandleEnd, WorkerEnd};
use crate::mail::command::outbox::Claim;
use crate::mail::figures::EndpointFigures;
use crate::mail::notice::Notice;
use urnic_engine::mpa::startup::{Offer, PeerRequest};
use urnic_engine::port::{ConnectionCounters, ListenParams, PortDrops};
use urnic_engine::time::Instant;
use urnic_engine::verbs::Qp;

/// Assigned by the handles, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey(pub(crate) u64);

#[derive(Clone, Debug)]
pub(crate) struct OwnedOffer {
    private_data: Vec<u8>,
    ird: u16,
    ord: u16,
}

impl OwnedOffer {
    pub(crate) fn new(offer: &Offer<'_>) -> Self {
        Self { private_data: offer.private_data.to_vec(), ird: offer.ird, ord: offer.ord }
    }

    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer { private_data: &self.private_data, ird: self.ird, ord: self.ord }
    }
}

/// A peer's connection with its Request, for the listener. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) claim: Claim,
    pub(crate) remote: SocketAddr,
    pub(crate) request: PeerRequest,
    pub(crate) notices: HandleEnd<Notice>,
}

/// A command to a worker. Events of a connection arrive as [`Notice`]s.
#[derive(Debug)]
pub(crate) enum Command {
    /// Open a connection.
    Connect {
        key: ConnectionKey,
        remote: SocketAddr,
        qp: Qp,
        options: Box<ConnectOptions>,
        notices: WorkerEnd<Notice>,
    },
    /// Wait for connections.
    Listen {
        local: SocketAddr,
        params: ListenParams,
        requests: WorkerEnd<Incoming>,
        /// The listening address with the TCP port.
        reply: Sender<Result<SocketAddr, Error>>,
    },
    /// Stop listening. Existing connections stay.
    Unlisten {
        local: SocketAddr,
        /// For a caller that waits until the address is free.
        reply: Option<Sender<()>>,
    },
    /// Stop using the memory of a queue pair, and close its connection.
    Release { qp: Qp, reply: Sender<()> },
    /// Accept the peer's Request.
    Accept { key: ConnectionKey, qp: Qp, offer: OwnedOffer },
    /// Refuse the peer's Request and close.
    Reject { key: ConnectionKey, offer: OwnedOffer },
    /// Close in order.
    Disconnect { key: ConnectionKey },
    /// End at once.
    Abort { key: ConnectionKey },
    /// Report counters; no answer if the connection is over.
    Counters { key: ConnectionKey, reply: Sender<Box<ConnectionCounters>> },
    /// Report the main counters of all connections.
    Figures { reply: Sender<EndpointFigures> },
    /// Report the endpoint's IPv4 address: at once, even if there is none yet, and then when it has
    /// one, until `until`.
    AwaitAddress { until: Instant, reply: Sender<Option<IpAddr>> },
    /// Report the frames dropped before they reached a connection, unless the kernel does that.
    Drops { reply: Sender<PortDrops> },
    /// Close all connections, and report whether the peers have received everything. At `until`,
    /// reset the others.
    Finish { until: Instant, reply: Sender<bool> },
    /// End all connections and stop.
    Shutdown,
}

impl Command {
    pub(crate) const fn key(&self) -> Option<ConnectionKey> {
        match self {
            Self::Accept { key, .. }
            | Self::Reject { key, .. }
            | Self::Disconnect { key }
            | Self::Abort { key }
            | Self::Counters { key, .. } => Some(*key),
            Self::Connect { .. }
            | Self::Listen { .. }
            | Self::Unlisten { .. }
            | Self::Release { .. }
            | Self::Figures { .. }
            | Self::AwaitAddress { .. }
            | Self::Drops { .. }
            | Self::Finish { .. }
            | Self::Shutdown => None,
        }
    }
}
