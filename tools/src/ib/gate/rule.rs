//! Rules: datagrams that are forwarded, and the handling of all others.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::icmp::Report;
use super::packet::{Datagram, is_destination, is_host};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The TUN interface.
    Kernel,
    /// The InfiniBand link.
    Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Forward,
    /// The datagram is for the gate itself.
    Own,
    /// Dropped without a message.
    StaysHere,
    /// Invalid address for such a datagram.
    Martian,
    /// The datagram is dropped; the sender gets this message.
    Refuse(Report),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) ipv4: Option<(Ipv4Addr, u8)>,
    pub(crate) ipv6: Option<(Ipv6Addr, u8)>,
    /// Their datagrams go from the link to the kernel.
    pub(crate) groups: BTreeSet<IpAddr>,
    /// Server behind the kernel.
    pub(crate) dhcp_server: Option<Ipv4Addr>,
}

impl Rules {
    pub(super) fn own(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => self.ipv4.map(|(own, _)| own.into()),
            IpAddr::V6(_) => self.ipv6.map(|(own, _)| own.into()),
        }
    }

    /// `is_received` returns true if the kernel receives a group.
    pub(super) fn judge(
        &self,
        from: Side,
        datagram: &Datagram<'_>,
        is_received: impl Fn(IpAddr) -> bool,
    ) -> Verdict {
        let (source, to) = (datagram.source, datagram.destination);
        if stays_on_link(to) || self.is_directed_broadcast(to) {
            return Verdict::StaysHere;
        }
        // RFC 1812 §5.3.7; a datagram with this gate's address as its source came from elsewhere.
        if !is_host(source) || !is_destination(to) || self.own(source) == Some(source) {
            return Verdict::Martian;
        }
        if self.own(to) == Some(to) {
            return Verdict::Own;
        }
        match source {
            // RFC 3927 §2.7.
            IpAddr::V4(source) if source.is_link_local() => return Verdict::StaysHere,
            // RFC 4007 §9.
            IpAddr::V6(source) if source.is_unicast_link_local() => {
                return Verdict::Refuse(Report::BeyondScope);
            }
            _ => {}
        }
        if to.is_multicast() {
            let is_wanted = from == Side::Kernel || self.groups.contains(&to) || is_received(to);
            // RFC 1122 §3.2.2: no ICMP message about datagrams to a group.
            let goes_on = is_wanted && datagram.hop_limit > 1;
            return if goes_on { Verdict::Forward } else { Verdict::StaysHere };
        }
        // The kernel would send it back, because its route there is this gate.
        if from == Side::Link && self.is_on_link(to) {
            return Verdict::Refuse(Report::HostUnreachable);
        }
        if datagram.hop_limit <= 1 {
            return Verdict::Refuse(Report::HopsExceeded);
        }
        Verdict::Forward
    }

    fn is_on_link(&self, to: IpAddr) -> bool {
        match to {
            IpAddr::V4(to) => self.ipv4.is_some_and(|(own, len)| {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                own.to_bits() & mask == to.to_bits() & mask
            }),
            IpAddr::V6(to) => self.ipv6.is_some_and(|(own, len)| {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                own.to_bits() & mask == to.to_bits() & mask
            }),
        }
    }

    /// RFC 2644: not forwarded. RFC 3021: a link with two addresses has no directed broadcast.
    fn is_directed_broadcast(&self, to: IpAddr) -> bool {
        let (IpAddr::V4(to), Some((own, len))) = (to, self.ipv4) else { return false };
        let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
        hosts > 1 && to.to_bits() == own.to_bits() | hosts
    }
}

pub(crate) fn stays_on_link(to: IpAddr) -> bool {
    match to {
        // RFC 5771 §4; RFC 3927 §2.7.
        IpAddr::V4(to) => {
            to.is_broadcast() || to.octets()[..3] == [224, 0, 0] || to.is_link_local()
        }
        // RFC 4291 §2.5.6 and §2.7: scopes 0, 1 and 2.
        IpAddr::V6(to) => {
            to.is_unicast_link_local() || to.is_multicast() && to.octets()[1] & 0xf <= 2
        }
    }
}
