//! Routes: link and IP headers of frames to a peer, prepared once per connection.

use std::net::IpAddr;

use smoltcp::wire::checksum;

use crate::port::interface::framing::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_LEN, IPV6_LEN, LinkFraming, PROTOCOL_TCP,
    VLAN_TAG_LEN,
};
use crate::tcp::Ecn;

const TTL: u8 = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkHeader {
    pub(crate) source: [u8; 6],
    pub(crate) destination: [u8; 6],
    pub(crate) tag: Option<[u8; VLAN_TAG_LEN]>,
}

impl LinkHeader {
    pub(crate) const fn new(framing: LinkFraming, source: [u8; 6], destination: [u8; 6]) -> Self {
        Self { source, destination, tag: framing.tag() }
    }
}

/// The link and IP headers of every frame to a peer, without the lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    headers: [u8; Self::HEADERS_LEN_MAX],
    len: usize,
    ip_at: usize,
    /// Sum of the pseudo-header without the length.
    pseudo_sum: u16,
    /// Sum of an IPv4 header without the length.
    ip_sum: u16,
}

impl Route {
    /// Bytes of a tagged Ethernet header and an IPv6 header.
    pub(crate) const HEADERS_LEN_MAX: usize = ETHERNET_LEN + VLAN_TAG_LEN + IPV6_LEN;

    /// `link`: addresses and VLAN tag, if there is a link layer. Panics if the families differ.
    pub(crate) fn new(link: Option<LinkHeader>, local: IpAddr, remote: IpAddr) -> Self {
        let mut headers = [0; Self::HEADERS_LEN_MAX];
        let mut ip_at = 0;
        if let Some(LinkHeader { source, destination, tag }) = link {
            let ethertype = if local.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
            let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
            for part in [&destination[..], &source, tag, &ethertype.to_be_bytes()] {
                headers[ip_at..ip_at + part.len()].copy_from_slice(part);
                ip_at += part.len();
            }
        }
        let ip = &mut headers[ip_at..];
        let (ip_len, addresses_at) = match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                // RFC 5044 Appendix A.5.1 and RFC 1191: DF is set. The identification has no
                // meaning then (RFC 6864 §4.1).
                // spec: TCP-A.5.1-1, TCP-PMTU-1
                ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, TTL, PROTOCOL_TCP, 0, 0]);
                ip[12..16].copy_from_slice(&local.octets());
                ip[16..20].copy_from_slice(&remote.octets());
                (IPV4_LEN, 12)
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, PROTOCOL_TCP, TTL]);
                ip[8..24].copy_from_slice(&local.octets());
                ip[24..40].copy_from_slice(&remote.octets());
                (IPV6_LEN, 8)
            }
            _ => unreachable!("both ends of a connection have addresses of one family"),
        };
        let pseudo_sum = checksum::combine(&[
            checksum::data(&ip[addresses_at..ip_len]),
            u16::from(PROTOCOL_TCP),
        ]);
        let ip_sum = checksum::data(&ip[..ip_len]);
        Self { headers, len: ip_at + ip_len, ip_at, pseudo_sum, ip_sum }
    }

    pub(crate) const fn headers_len(&self) -> usize {
        self.len
    }

    /// Writes the headers of a segment of `tcp_len` bytes to `out`. Returns the sum of its
    /// pseudo-header (RFC 9293 §3.1). A length that is too long for its field is set to the
    /// maximum; the device that cuts the super-frame writes the lengths of the pieces.
    #[inline]
    pub(crate) fn write_headers(&self, out: &mut [u8], tcp_len: usize, ecn: Ecn) -> u16 {
        match out.first_chunk_mut() {
            // A copy of constant length needs no call; later writes overwrite what is behind.
            Some(room) => *room = self.headers,
            None => out[..self.len].copy_from_slice(&self.headers[..self.len]),
        }
        let tcp_len_field = u16::try_from(tcp_len).unwrap_or(u16::MAX);
        let ip = &mut out[self.ip_at..self.len];
        if ip.len() == IPV4_LEN {
            let total = u16::try_from(tcp_len + IPV4_LEN).unwrap_or(u16::MAX);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[1] = ecn.bits();
            let sum = !folded(self.ip_sum, total, u16::from(ecn.bits()));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            // RFC 3168 §5: the last two bits of the traffic class.
            ip[1] = ecn.bits() << 4;
            ip[4..6].copy_from_slice(&tcp_len_field.to_be_bytes());
        }
        folded(self.pseudo_sum, tcp_len_field, 0)
    }
}

/// Returns the one's complement sum of three words (RFC 1071).
#[inline]
fn folded(a: u16, b: u16, c: u16) -> u16 {
    let sum = u32::from(a) + u32::from(b) + u32::from(c);
    let sum = (sum >> 16) + (sum & 0xffff);
    let [_, _, high, low] = ((sum >> 16) + sum).to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

    use super::*;

    // spec: TCP-A.5.1-1, TCP-PMTU-1
    #[test]
    fn ipv4_headers_are_complete_and_their_checksum_is_right() {
        for tag in [None, Some([0x81, 0, 0, 5])] {
            let link = LinkHeader { source: [2; 6], destination: [4; 6], tag };
            let route = Route::new(Some(link), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let mut link = vec![4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2];
            link.extend(tag.into_iter().flatten());
            link.extend([8, 0]);
            for tcp_len in [20, 1480, 65_515] {
                let mut frame = vec![0; route.headers_len() + tcp_len];
                route.write_headers(&mut frame, tcp_len, Ecn::Capable0);
                let datagram = frame.strip_prefix(&link[..]).unwrap();
                let packet = Ipv4Packet::new_checked(datagram).unwrap();
                assert_eq!(packet.ecn(), 2);
                assert!(packet.verify_checksum() && packet.dont_frag());
                assert_eq!(usize::from(packet.total_len()), tcp_len + 20);
            }
        }
    }

    #[test]
    fn ipv6_headers_carry_the_length() {
        let (local, remote) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let route = Route::new(None, IpAddr::V6(local), IpAddr::V6(remote));
        let mut frame = vec![0; route.headers_len() + 100];
        route.write_headers(&mut frame, 100, Ecn::Capable0);
        let packet = Ipv6Packet::new_checked(&frame[..]).unwrap();
        assert_eq!((packet.src_addr(), packet.dst_addr()), (local, remote));
        assert_eq!(packet.payload_len(), 100);
        assert_eq!((packet.traffic_class(), packet.flow_label()), (2, 0));
    }
}
