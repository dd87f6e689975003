//! Socket addresses of C, and the address of this host that leads to another.
#![expect(unsafe_code, reason = "C's addresses are of the length that their family says")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use libc::{AF_INET, AF_INET6, c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errno::Errno;
use crate::network;
use crate::process;

/// `None` if it is NULL or of no IP family.
///
/// # Safety
/// `address` is NULL, or an address of the length that its family has.
pub(crate) unsafe fn from_c(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: an address has a family, by this function's contract.
    let family = unsafe { (*address).sa_family };
    match c_int::from(family) {
        AF_INET => {
            // SAFETY: the family says that it is of this type.
            let of = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from_bits(u32::from_be(of.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(of.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: as above.
            let of = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(of.sin6_addr.s6_addr);
            let port = u16::from_be(of.sin6_port);
            Some(SocketAddrV6::new(ip, port, of.sin6_flowinfo, of.sin6_scope_id).into())
        }
        _ => None,
    }
}

pub(crate) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: zero is a value of every address.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            let of = sockaddr_in {
                sin_family: FAMILY_V4,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: address.ip().to_bits().to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a storage has room for any address, and its alignment.
            unsafe { place.cast::<sockaddr_in>().write(of) };
        }
        SocketAddr::V6(address) => {
            let of = sockaddr_in6 {
                sin6_family: FAMILY_V6,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(of) };
        }
    }
    storage
}

#[expect(clippy::cast_possible_truncation, reason = "2 and 10")]
const FAMILY_V4: libc::sa_family_t = AF_INET as libc::sa_family_t;
#[expect(clippy::cast_possible_truncation, reason = "2 and 10")]
pub(crate) const FAMILY_V6: libc::sa_family_t = AF_INET6 as libc::sa_family_t;

/// Returns an address without a port. A link-local address includes its interface.
pub(super) fn source_for(remote: SocketAddr) -> Result<SocketAddr, Errno> {
    if let Some(spec) = network::device() {
        return process::source_for(spec, remote.ip()).map(|ip| SocketAddr::new(ip, 0));
    }
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let found = || -> io::Result<SocketAddr> {
        // Connecting a datagram socket looks up the route and sends nothing.
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        // Any port will do; 0 is invalid.
        socket.connect(SocketAddr::new(remote.ip(), remote.port().max(1)))?;
        let mut local = socket.local_addr()?;
        local.set_port(0);
        Ok(local)
    };
    found().map_err(Errno::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_goes_to_c_and_back() {
        for text in ["10.1.2.3:4", "[fe80::1%3]:5", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let place = storage(address);
            // SAFETY: the address that was written.
            let back = unsafe { from_c((&raw const place).cast()) };
            assert_eq!(back, Some(address));
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { from_c(std::ptr::null()) }, None);
    }

    #[test]
    fn loopback_is_reached_from_loopback() {
        let remote = "127.0.0.1:7".parse().unwrap();
        assert_eq!(source_for(remote), Ok((Ipv4Addr::LOCALHOST, 0).into()));
    }
}
