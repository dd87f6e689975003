//! Parses an IP datagram and its TCP segment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::wire::checksum;
use urnic_engine::tcp;
use urnic_netdev::SharedSlice;

#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) at_ns: u64,
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) header: tcp::Header,
    pub(crate) payload: &'a [u8],
    pub(crate) checksum: Checksum,
    /// Place where it was captured, if places are distinguished.
    pub(crate) place: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Right,
    /// Captured at the sender, before the device had filled in the checksum.
    Offloaded,
    Wrong,
}

impl<'a> Segment<'a> {
    /// `None` if there is no TCP, or only a part. `is_right`: the checksum is known to be right.
    pub(crate) fn parse(datagram: &'a [u8], at_ns: u64, is_right: bool) -> Option<Self> {
        let ip = match datagram.first()? >> 4 {
            4 => Datagram::v4(datagram)?,
            6 => Datagram::v6(datagram)?,
            _ => return None,
        };
        let (header, payload_at) = tcp::Header::parse(ip.payload).ok()?;
        let checksum = if is_right { Checksum::Right } else { ip.tcp_checksum() };
        Some(Self {
            at_ns,
            source: SocketAddr::new(ip.source, header.src_port),
            target: SocketAddr::new(ip.target, header.dst_port),
            payload: ip.payload.get(payload_at..)?,
            header,
            checksum,
            place: 0,
        })
    }
}

struct Datagram<'a> {
    source: IpAddr,
    target: IpAddr,
    payload: &'a [u8],
    header_is_wrong: bool,
}

impl<'a> Datagram<'a> {
    fn v4(datagram: &'a [u8]) -> Option<Self> {
        let fixed = datagram.first_chunk::<20>()?;
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        // A length of 0 means all bytes: segmentation offload had not set it yet.
        let total_len = match usize::from(u16::from_be_bytes([fixed[2], fixed[3]])) {
            0 => datagram.len(),
            len => len,
        };
        let is_fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
        if header_len < fixed.len() || fixed[9] != TCP || is_fragment {
            return None;
        }
        let header = datagram.get(..header_len)?;
        let is_unset = fixed[10..12] == [0, 0];
        Some(Self {
            source: IpAddr::V4(Ipv4Addr::from([fixed[12], fixed[13], fixed[14], fixed[15]])),
            target: IpAddr::V4(Ipv4Addr::from([fixed[16], fixed[17], fixed[18], fixed[19]])),
            payload: datagram.get(header_len..total_len)?,
            header_is_wrong: !is_unset && sum(header) != u16::MAX,
        })
    }

    fn v6(datagram: &'a [u8]) -> Option<Self> {
        let fixed = datagram.first_chunk::<40>()?;
        let end = match usize::from(u16::from_be_bytes([fixed[4], fixed[5]])) {
            0 => datagram.len(),
            len => fixed.len() + len,
        };
        let datagram = datagram.get(..end)?;
        let (mut next, mut at) = (fixed[6], fixed.len());
        while EXTENSIONS.contains(&next) {
            let extension = datagram.get(at..)?.first_chunk::<8>()?;
            next = extension[0];
            at += 8 + 8 * usize::from(extension[1]);
        }
        let address = |at: usize| {
            let octets = fixed.get(at..)?.first_chunk::<16>()?;
            Some(IpAddr::V6(Ipv6Addr::from(*octets)))
        };
        let payload = datagram.get(at..).filter(|_| next == TCP)?;
        Some(Self { source: address(8)?, target: address(24)?, payload, header_is_wrong: false })
    }

    fn tcp_checksum(&self) -> Checksum {
        if self.header_is_wrong {
            return Checksum::Wrong;
        }
        let addresses = |len: &[u8]| {
            let of = |address: IpAddr| match address {
                IpAddr::V4(address) => sum(&address.octets()),
                IpAddr::V6(address) => sum(&address.octets()),
            };
            checksum::combine(&[of(self.source), of(self.target), u16::from(TCP), sum(len)])
        };
        let len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let pseudo_header = addresses(&len.to_be_bytes());
        if checksum::combine(&[pseudo_header, sum(self.payload)]) == u16::MAX {
            return Checksum::Right;
        }
        // If left to the device, it holds the pseudo-header's sum, perhaps without the length, or
        // 0.
        let field = self.payload.get(16..18).map_or(0, sum);
        if [0, pseudo_header, addresses(&[])].contains(&field) {
            Checksum::Offloaded
        } else {
            Checksum::Wrong
        }
    }
}

/// Returns the sum, not complemented.
fn sum(octets: &[u8]) -> u16 {
    SharedSlice::from_bytes(octets).ones_complement_sum()
}

const TCP: u8 = 6;
/// IPv6 extension headers that may come before TCP: hop-by-hop, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
