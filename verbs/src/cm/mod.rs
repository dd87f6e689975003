//! `librdmacm`: connection ids, their events, connections.
//!
//! One thread of the process (`crate::turn`) advances the ids. It reports what happened to their
//! connections as events to C.

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
