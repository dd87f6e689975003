//! A link of InfiniBand: IP over InfiniBand in its datagram mode (RFC 4391, RFC 4392), sans-IO.
//!
//! [`wire`] is bytes and the values they stand for: link-layer addresses, the encapsulation header,
//! ARP and neighbour-discovery options, InfiniBand packets with their two CRCs, and the management
//! datagrams of subnet administration. [`multicast`] maps IP groups to InfiniBand ones. [`link`] is an
//! interface on a link; [`fabric`] what it needs of the fabric.

pub mod counters;
pub mod device;
pub mod fabric;
pub mod ibsim;
pub mod limits;
pub mod link;
pub mod memory;
pub mod multicast;
pub mod wire;
