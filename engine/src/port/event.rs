//! What a port tells, and why it refuses a call.

use std::net::{IpAddr, SocketAddr};

use crate::port::connections::connection::{ConnectionCounters, ConnectionId};
use crate::stream::{PhaseError, StreamEvent};

/// Something that happened at a port.
///
/// Not marked as open to additions: a program that drives a port by itself has to know of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A peer has opened a connection to a listener; MPA has not started yet.
    Incoming {
        /// The new connection.
        connection: ConnectionId,
        /// The address of the listener, as [`Port::listen_at`](crate::port::Port::listen_at) returned it.
        listener: SocketAddr,
        /// The address it came to.
        local: SocketAddr,
        /// Where it came from.
        remote: SocketAddr,
    },
    /// Something happened to a connection's stream.
    Stream {
        /// The connection.
        connection: ConnectionId,
        /// What happened.
        event: StreamEvent,
    },
    /// A connection is over; its identifier means nothing any more, and nothing of it is left but
    /// the addresses, for two segment lifetimes, if this end closed first (RFC 9293 §3.6.1).
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// What it counted.
        counters: Box<ConnectionCounters>,
    },
    /// DHCP has given the port an address.
    AddressAcquired {
        /// The address.
        address: IpAddr,
        /// Bits of it that its network has in common.
        prefix_len: u8,
    },
    /// The lease of an address has ended, or DHCP has given another. Connections of the lost
    /// address are over.
    AddressLost {
        /// The address.
        address: IpAddr,
    },
    /// DHCP has been asked for an address for
    /// [`ADDRESS_PATIENCE_NS`](crate::limits::ADDRESS_PATIENCE_NS), and no server has given one. It
    /// goes on being asked.
    AddressOverdue,
    /// The device's link is down. Connections wait for its return.
    LinkDown,
    /// The device's link is up again.
    LinkUp,
}

/// Why a call to a port was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// No such connection, or it is over.
    #[error("no such connection")]
    NoConnection,
    /// The port has no address of the peer's family.
    #[error("the port has no address of the same family as {0}")]
    NoAddress(IpAddr),
    /// DHCP was asked for an address and has not given one yet; see
    /// [`PortEvent::AddressAcquired`].
    #[error("DHCP has not given the port an IPv4 address yet, so that it cannot reach {0}")]
    AddressPending(IpAddr),
    /// The port does not have that address.
    #[error("{0} is no address of this interface or machine")]
    NoSuchAddress(IpAddr),
    /// That TCP port is listened on already.
    #[error("TCP port {0} is taken")]
    PortTaken(u16),
    /// No free TCP port or connection slot.
    #[error("no connection slot is free")]
    Exhausted,
    /// The ports cannot be queues of one interface; see [`Port::join`](crate::port::Port::join).
    #[error("queues of one interface need the same addresses, not by DHCP, and no connections yet")]
    NotOneInterface,
    /// The call does not fit what the connection is doing.
    #[error(transparent)]
    Phase(#[from] PhaseError),
}
