//! Events of a port, and its reasons to refuse a call.

use std::net::{IpAddr, SocketAddr};

use crate::port::connections::connection::{ConnectionCounters, ConnectionId};
use crate::stream::{PhaseError, StreamEvent};

/// An event of a port. Exhaustive on purpose: an application must handle each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A peer has opened a connection to a listener; MPA has not started yet.
    Incoming {
        /// The new connection.
        connection: ConnectionId,
        /// The listener's address, from [`Port::listen_at`](crate::port::Port::listen_at).
        listener: SocketAddr,
        /// The local address of the connection.
        local: SocketAddr,
        /// The peer's address.
        remote: SocketAddr,
    },
    /// An event of a connection's stream.
    Stream {
        /// The connection.
        connection: ConnectionId,
        /// The event.
        event: StreamEvent,
    },
    /// A connection is over and its identifier is invalid. If this end closed first, its addresses
    /// remain in use for two segment lifetimes (RFC 9293 §3.6.1).
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Its counters.
        counters: Box<ConnectionCounters>,
    },
    /// DHCP has given the port an address.
    AddressAcquired {
        /// The address.
        address: IpAddr,
        /// Prefix length of its network.
        prefix_len: u8,
    },
    /// The lease of an address has ended or changed. Connections of the lost address are over.
    AddressLost {
        /// The address.
        address: IpAddr,
    },
    /// No DHCP server has given an address for
    /// [`ADDRESS_PATIENCE_NS`](crate::limits::ADDRESS_PATIENCE_NS). The port keeps asking.
    AddressOverdue,
    /// The device's link is down. Connections wait for its return.
    LinkDown,
    /// The device's link is up again.
    LinkUp,
}

/// Reason why a call to a port was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// No such connection, or it is over.
    #[error("no such connection")]
    NoConnection,
    /// The port has no address of the peer's family.
    #[error("the port has no address of the same family as {0}")]
    NoAddress(IpAddr),
    /// DHCP was asked for an address and has not given one yet; see [`PortEvent::AddressAcquired`].
    #[error("DHCP has not given the port an IPv4 address yet, so that it cannot reach {0}")]
    AddressPending(IpAddr),
    /// The port does not have that address.
    #[error("{0} is no address of this interface or machine")]
    NoSuchAddress(IpAddr),
    /// Another listener or connection uses the TCP port.
    #[error("TCP port {0} is taken")]
    PortTaken(u16),
    /// No TCP port or connection slot is free.
    #[error("no connection slot is free")]
    Exhausted,
    /// The ports cannot be queues of one interface; see [`Port::join`](crate::port::Port::join).
    #[error("queues of one interface need the same addresses, not by DHCP, and no connections yet")]
    NotOneInterface,
    /// The call is not valid in the connection's phase.
    #[error(transparent)]
    Phase(#[from] PhaseError),
}
