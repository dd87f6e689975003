//! The addresses of a connection.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// IPv4 addresses are mapped to IPv6, quick to compare. Packed: TIME-WAIT records stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub(crate) struct Tuple {
    local: u128,
    remote: u128,
    /// Local port in the high half.
    ports: u32,
}

impl Tuple {
    #[inline]
    pub(crate) fn new(local: IpAddr, local_port: u16, remote: IpAddr, remote_port: u16) -> Self {
        Self::of_mapped(mapped(local), local_port, mapped(remote), remote_port)
    }

    /// Returns the tuple of two IPv6 or [mapped](mapped_ipv4) addresses.
    #[inline(always)]
    pub(crate) fn of_mapped(local: u128, local_port: u16, remote: u128, remote_port: u16) -> Self {
        let ports = u32::from(local_port) << 16 | u32::from(remote_port);
        Self { local, remote, ports }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.local), self.local_port())
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.remote), (self.ports & 0xffff) as u16)
    }

    pub(crate) const fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }
}

impl Display for Tuple {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.local(), self.remote())
    }
}

/// Hashes as few words as the addresses need.
impl Hash for Tuple {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        if is_mapped_ipv4(self.local) && is_mapped_ipv4(self.remote) {
            let low = |address: u128| u64::try_from(address & 0xffff_ffff).expect("32 bits");
            state.write_u64(low(self.local) << 32 | low(self.remote));
        } else {
            state.write_u128(self.local);
            state.write_u128(self.remote);
        }
        state.write_u32(self.ports);
    }
}

#[inline]
fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => mapped_ipv4(address),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Prefix of IPv4-mapped addresses (RFC 4291 §2.5.5.2), above 32 bits.
const MAPPED: u128 = 0xffff;

#[inline(always)]
pub(crate) fn mapped_ipv4(address: Ipv4Addr) -> u128 {
    MAPPED << 32 | u128::from(address.to_bits())
}

#[inline(always)]
pub(crate) const fn is_mapped_ipv4(address: u128) -> bool {
    address >> 32 == MAPPED
}

fn unmapped(bits: u128) -> IpAddr {
    Ipv6Addr::from_bits(bits).to_canonical()
}
