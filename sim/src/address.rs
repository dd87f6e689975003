//! The addresses of nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) fn address_v4(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number(node))
}

pub(crate) fn address_v6(node: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number(node)))
}

pub(crate) fn address(node: usize, ipv6: bool) -> IpAddr {
    if ipv6 { IpAddr::V6(address_v6(node)) } else { IpAddr::V4(address_v4(node)) }
}

fn number(node: usize) -> u8 {
    u8::try_from(node + 1).expect("few nodes")
}
