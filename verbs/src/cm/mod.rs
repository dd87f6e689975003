//! `librdmacm`: connection ids, their events, connections.
//!
//! One thread of the process (`turn`) moves ids on when the endpoint's worker tells that something has
//! happened to their connections; what it finds is told to C as events.

pub(crate) mod address;
mod addrinfo;
mod channel;
mod connect;
mod end;
mod ep;
mod event;
pub(crate) mod id;
mod listen;
mod options;
mod own_qp;
mod peer_end;
mod ports;
mod probe;
mod queue_pair;
pub(crate) mod show;
pub(crate) mod socket;
mod sync;
mod turn;
mod udp_users;
