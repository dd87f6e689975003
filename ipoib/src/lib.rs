//! IP over InfiniBand (IPoIB) in its datagram mode (RFC 4391, RFC 4392), sans-IO.
//!
//! [`wire`] converts between bytes and values: link-layer addresses, the encapsulation header, ARP
//! and neighbour-discovery options, InfiniBand packets with their two CRCs, and the management
//! datagrams of subnet administration. [`multicast`] maps IP groups to InfiniBand groups. [`link`]
//! is an interface on a link; [`fabric`] defines what the interface needs of the fabric.

pub mod counters;
pub mod device;
pub mod fabric;
pub mod ibsim;
pub mod limits;
pub mod link;
pub mod memory;
pub mod multicast;
pub mod wire;
