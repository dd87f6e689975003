//! A link of InfiniBand: IP over InfiniBand in its datagram mode (RFC 4391, RFC 4392), sans-IO.
//!
//! [`wire`] is octets and the values they stand for: link-layer addresses, the encapsulation header,
//! ARP and neighbour-discovery options, InfiniBand packets with their two CRCs, and the management
//! datagrams of subnet administration. [`multicast`] maps IP groups to InfiniBand ones.

pub mod multicast;
pub mod wire;
