//! ICMP messages: errors for senders, and answers to echo requests (RFC 792, RFC 4443).

use std::net::IpAddr;

use super::packet::{self, Datagram, ICMP, ICMPV6, IPV6_HEADER_LEN, TCP, UDP, is_host};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    HopsExceeded,
    NoRoute,
    HostUnreachable,
    /// Valid on one link only (IPv6).
    BeyondScope,
    TooBig {
        mtu: usize,
    },
    PortUnreachable,
    /// The gate does not have this protocol; `named_at` is the offset of the field that names it.
    ProtocolUnreachable {
        named_at: usize,
    },
}

impl Report {
    /// Type, code, and the bytes after the checksum.
    fn ipv4(self) -> (u8, u8, u32) {
        match self {
            Self::HopsExceeded => (11, 0, 0),
            Self::NoRoute => (3, 0, 0),
            Self::HostUnreachable | Self::BeyondScope => (3, 1, 0),
            Self::ProtocolUnreachable { .. } => (3, 2, 0),
            Self::PortUnreachable => (3, 3, 0),
            // RFC 1191 §4.
            Self::TooBig { mtu } => (3, 4, u32::from(u16::try_from(mtu).unwrap_or(u16::MAX))),
        }
    }

    fn ipv6(self) -> (u8, u8, u32) {
        match self {
            Self::HopsExceeded => (3, 0, 0),
            Self::NoRoute => (1, 0, 0),
            Self::BeyondScope => (1, 2, 0),
            Self::HostUnreachable => (1, 3, 0),
            Self::PortUnreachable => (1, 4, 0),
            Self::TooBig { mtu } => (2, 0, u32::try_from(mtu).unwrap_or(u32::MAX)),
            Self::ProtocolUnreachable { named_at } => {
                (4, 1, u32::try_from(named_at).unwrap_or(u32::MAX))
            }
        }
    }
}

/// Builds a message from `own`; `None` if no message is allowed.
pub(super) fn report(own: IpAddr, report: Report, about: &Datagram<'_>) -> Option<Vec<u8>> {
    if !may_report(report, about) {
        return None;
    }
    let ((kind, code, value), len_max) = match own {
        // RFC 1812 §4.3.2.3.
        IpAddr::V4(_) => (report.ipv4(), 576 - 20),
        // RFC 4443 §2.4 (c).
        IpAddr::V6(_) => (report.ipv6(), 1280 - IPV6_HEADER_LEN),
    };
    let quoted = &about.octets[..about.octets.len().min(len_max - 8)];
    let mut message = vec![kind, code, 0, 0];
    message.extend(value.to_be_bytes());
    message.extend(quoted);
    emit(own, about.source, message)
}

/// Returns true if a message is allowed (RFC 1812 §4.3.2.7, RFC 4443 §2.4 (e)).
fn may_report(report: Report, about: &Datagram<'_>) -> bool {
    let is_of_ipv6 = about.source.is_ipv6();
    let to_group = about.destination.is_multicast();
    let exempt = is_of_ipv6 && matches!(report, Report::TooBig { .. });
    if !is_host(about.source) || to_group && !exempt {
        return false;
    }
    let Some(upper) = about.upper() else { return false };
    if !upper.is_first {
        // ICMP, or a protocol after unknown headers: the datagram may be part of an error message.
        return is_of_ipv6 && matches!(upper.protocol, TCP | UDP);
    }
    match (upper.protocol, upper.octets.first()) {
        // Redirects and error messages; RFC 4443 §2.1: error messages have types below 128.
        (ICMP, Some(kind)) if !is_of_ipv6 => !matches!(kind, 3 | 4 | 5 | 11 | 12),
        (ICMPV6, Some(kind)) if is_of_ipv6 => *kind >= 128 && *kind != 137,
        _ => true,
    }
}

/// Answers an echo request to `own` (RFC 1812 §4.3.3.6, RFC 4443 §4.2); `None` for other datagrams.
pub(super) fn echo(own: IpAddr, request: &Datagram<'_>) -> Option<Vec<u8>> {
    let (protocol, asks, answers) = if own.is_ipv4() { (ICMP, 8, 0) } else { (ICMPV6, 128, 129) };
    let upper = request.upper().filter(|upper| upper.protocol == protocol)?;
    let [kind, 0, _, _, rest @ ..] = upper.octets else { return None };
    let is_whole = match own {
        IpAddr::V4(_) => packet::checksum(upper.octets) == 0 && request.octets[6] & 0x20 == 0,
        IpAddr::V6(_) => sum_with_addresses(request.source, own, upper.octets) == 0,
    };
    if *kind != asks || !is_whole {
        return None;
    }
    let mut message = vec![answers, 0, 0, 0];
    message.extend(rest);
    emit(own, request.source, message)
}

fn emit(source: IpAddr, to: IpAddr, mut message: Vec<u8>) -> Option<Vec<u8>> {
    let sum = match source {
        IpAddr::V4(_) => packet::checksum(&message),
        IpAddr::V6(_) => sum_with_addresses(source, to, &message),
    };
    message.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
    wrap(source, to, if source.is_ipv4() { ICMP } else { ICMPV6 }, &message)
}

pub(super) fn wrap(source: IpAddr, to: IpAddr, protocol: u8, upper: &[u8]) -> Option<Vec<u8>> {
    match (source, to) {
        (IpAddr::V4(source), IpAddr::V4(to)) => {
            let len = u16::try_from(20 + upper.len()).ok()?;
            // RFC 6864 §4.1: an atomic datagram needs no identification.
            let mut datagram = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, protocol, 0, 0];
            datagram[2..4].copy_from_slice(&len.to_be_bytes());
            datagram.extend(source.octets());
            datagram.extend(to.octets());
            packet::write_checksum(&mut datagram);
            datagram.extend(upper);
            Some(datagram)
        }
        (IpAddr::V6(source), IpAddr::V6(to)) => {
            let len = u16::try_from(upper.len()).ok()?.to_be_bytes();
            let mut datagram = vec![0x60, 0, 0, 0, len[0], len[1], protocol, HOP_LIMIT];
            datagram.extend(source.octets());
            datagram.extend(to.octets());
            datagram.extend(upper);
            Some(datagram)
        }
        _ => None,
    }
}

/// Computes the checksum with the IPv6 pseudo-header (RFC 8200 §8.1).
fn sum_with_addresses(source: IpAddr, to: IpAddr, message: &[u8]) -> u16 {
    let (IpAddr::V6(source), IpAddr::V6(to)) = (source, to) else { return 0 };
    let mut summed = Vec::with_capacity(IPV6_HEADER_LEN + message.len());
    summed.extend(source.octets());
    summed.extend(to.octets());
    summed.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    summed.extend([0, 0, 0, ICMPV6]);
    summed.extend(message);
    packet::checksum(&summed)
}

/// Initial hop limit of most hosts.
const HOP_LIMIT: u8 = 64;
