//! Headers that a router reads and writes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use urnic_netdev::SharedSlice;

use super::limits::EXTENSIONS_MAX;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
pub(super) const IPV6_HEADER_LEN: usize = 40;
pub(super) const IPV4_HEADER_LEN_MAX: usize = 60;

#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    /// Datagram without any bytes after the length in its header.
    pub(super) octets: &'a [u8],
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// Bytes of the IPv4 header, or of the fixed IPv6 header.
    pub(super) header_len: usize,
    pub(super) hop_limit: u8,
    /// IPv4 without "don't fragment".
    pub(super) may_be_cut: bool,
}

impl<'a> Datagram<'a> {
    /// `None` if it is invalid (RFC 1812 §5.2.2, RFC 8200 §3).
    pub(super) fn parse(octets: &'a [u8]) -> Option<Self> {
        match octets.first()? >> 4 {
            4 => Self::parse_ipv4(octets),
            6 => Self::parse_ipv6(octets),
            _ => None,
        }
    }

    fn parse_ipv4(octets: &'a [u8]) -> Option<Self> {
        let head = octets.first_chunk::<20>()?;
        let header_len = usize::from(head[0] & 0xf) * 4;
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let octets = octets.get(..len)?;
        let header = octets.get(..header_len).filter(|header| header.len() >= 20)?;
        (checksum(header) == 0).then_some(Self {
            octets,
            source: Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(),
            destination: Ipv4Addr::new(head[16], head[17], head[18], head[19]).into(),
            header_len,
            hop_limit: head[8],
            may_be_cut: head[6] & 0x40 == 0,
        })
    }

    fn parse_ipv6(octets: &'a [u8]) -> Option<Self> {
        let head = octets.first_chunk::<IPV6_HEADER_LEN>()?;
        let len = IPV6_HEADER_LEN + usize::from(u16::from_be_bytes([head[4], head[5]]));
        let (_, addresses) = head.split_last_chunk::<32>()?;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        Some(Self {
            octets: octets.get(..len)?,
            source: Ipv6Addr::from(*source).into(),
            destination: Ipv6Addr::from(*destination.first_chunk::<16>()?).into(),
            header_len: IPV6_HEADER_LEN,
            hop_limit: head[7],
            may_be_cut: false,
        })
    }

    /// The contents after the IP headers; `None` if their end is not found.
    pub(super) fn upper(&self) -> Option<Upper<'a>> {
        if self.source.is_ipv4() {
            let is_first = u16::from_be_bytes([self.octets[6], self.octets[7]]) & 0x1fff == 0;
            let octets = if is_first { &self.octets[self.header_len..] } else { &[] };
            return Some(Upper { protocol: self.octets[9], named_at: 9, octets, is_first });
        }
        let (mut named_at, mut at) = (6, IPV6_HEADER_LEN);
        for _ in 0..EXTENSIONS_MAX {
            let protocol = *self.octets.get(named_at)?;
            let rest = self.octets.get(at..)?;
            let len = match protocol {
                // RFC 8200 §4: hop-by-hop options, routing, destination options.
                0 | 43 | 60 => (usize::from(*rest.get(1)?) + 1) * 8,
                // RFC 8200 §4.5: fragment header.
                44 if u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]) >> 3 == 0 => 8,
                44 => {
                    let protocol = *rest.first()?;
                    return Some(Upper { protocol, named_at: at, octets: &[], is_first: false });
                }
                _ => return Some(Upper { protocol, named_at, octets: rest, is_first: true }),
            };
            (named_at, at) = (at, at + len);
        }
        None
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Upper<'a> {
    pub(super) protocol: u8,
    /// Offset in the datagram.
    pub(super) named_at: usize,
    /// Empty in a fragment that is not the first.
    pub(super) octets: &'a [u8],
    /// The payload begins here: in a whole datagram, or in its first fragment.
    pub(super) is_first: bool,
}

/// RFC 1812 §5.3.1.
pub(super) fn decrement(header: &mut [u8]) {
    match header.first().map_or(0, |octet| octet >> 4) {
        4 => {
            header[8] = header[8].saturating_sub(1);
            write_checksum(header);
        }
        _ => header[7] = header[7].saturating_sub(1),
    }
}

pub(super) fn write_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Internet checksum (RFC 1071); 0 for data that contains a right checksum.
pub(super) fn checksum(octets: &[u8]) -> u16 {
    !SharedSlice::from_bytes(octets).ones_complement_sum()
}

pub(super) fn is_host(address: IpAddr) -> bool {
    !address.is_multicast() && is_destination(address)
}

/// RFC 1812 §4.2.2.11 and §5.3.7: not this network, this host or the reserved class E.
pub(super) fn is_destination(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 240..),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_loopback(),
    }
}
