//! Converts C's address vectors to IP addresses.
#![expect(unsafe_code, reason = "a GID is a union in C")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use crate::abi::ibv_ah_attr;
use crate::errno::Errno;
use crate::gid::{self, Gid};

pub(crate) fn local(vector: &ibv_ah_attr) -> Result<Gid, Errno> {
    let table = gid::table();
    let index = if vector.is_global == 0 { 0 } else { usize::from(vector.grh.sgid_index) };
    table.into_iter().nth(index).ok_or(Errno::INVALID)
}

/// A vector without a global route has a LID: the low half of the peer's IPv4 address, on the
/// network of this end.
pub(crate) fn remote(vector: &ibv_ah_attr, local: IpAddr) -> Result<IpAddr, Errno> {
    if vector.is_global != 0 {
        // SAFETY: both fields of the union are plain numbers, of the same bytes.
        return Ok(gid::address(unsafe { vector.grh.dgid.raw }));
    }
    match local {
        IpAddr::V4(local) => {
            let [a, b, _, _] = local.octets();
            let [c, d] = vector.dlid.to_be_bytes();
            Ok(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(_) => Err(Errno::INVALID),
    }
}

/// Link-local addresses need the interface.
pub(super) fn listener(address: IpAddr, tcp_port: u16, interface_index: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, tcp_port, 0, interface_index).into()
        }
        address => SocketAddr::new(address, tcp_port),
    }
}

/// Returns true if a connection from `remote` may be of an application at `said`: the two are
/// equal, or both are of this host, whose kernel may choose either.
pub(super) fn may_be(remote: IpAddr, said: IpAddr) -> bool {
    let remote = remote.to_canonical();
    remote == said || (is_own(remote) && is_own(said))
}

pub(super) fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || gid::table().iter().any(|gid| gid.address == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lid_is_the_low_half_of_an_address_on_the_same_network() {
        let mut vector = ibv_ah_attr::zeroed();
        vector.dlid = 0x0304;
        let own = IpAddr::from([10, 1, 9, 9]);
        assert_eq!(remote(&vector, own), Ok(IpAddr::from([10, 1, 3, 4])));
        assert_eq!(remote(&vector, "::1".parse().unwrap()), Err(Errno::INVALID));
    }

    #[test]
    fn address_of_another_host_is_refused_as_sender() {
        let [stranger, victim] = [[198, 51, 100, 1], [198, 51, 100, 2]].map(IpAddr::from);
        assert!(may_be(stranger, stranger) && !may_be(stranger, victim));
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert!(may_be(loopback, gid::first_address()));
        assert!(!may_be(loopback, victim) && !may_be(victim, loopback));
        let mapped = "::ffff:198.51.100.1".parse().unwrap();
        assert!(may_be(mapped, stranger));
    }
}
