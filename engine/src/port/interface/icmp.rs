//! ICMP errors about segments of ours, as far as they can be trusted.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet};

use crate::port::interface::framing::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_LEN, IPV6_LEN, Opened, PROTOCOL_TCP,
};
use crate::port::tuple::Tuple;
use crate::tcp::SeqNum;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// The destination of the ICMP datagram, which must be an address of the port.
    pub(crate) destination: IpAddr,
    pub(crate) tuple: Tuple,
    pub(crate) seq: SeqNum,
    pub(crate) report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The datagram of `datagram_len` bytes was too big; the next link takes `mtu` bytes, 0 if
    /// unknown (RFC 1191 §4, RFC 4443 §3.2).
    TooBig { mtu: usize, datagram_len: usize },
    /// Nothing is served at the port there.
    Refused,
    /// The protocol is not served there, or a filter on the path refuses the segment.
    Unreachable,
}

const PROTOCOL_ICMPV6: u8 = 58;
const TYPE_UNREACHABLE_V4: u8 = 3;
const CODE_FRAGMENTATION_NEEDED: u8 = 4;
// RFC 9293 §3.9.2.2 (MUST-56): network and host unreachable and source route failed (0, 1, 5) are
// soft errors: a router also sends them while it queries the host's link address.
/// Protocol; network and host administratively prohibited; filtered.
const CODES_UNREACHABLE_V4: [u8; 4] = [2, 9, 10, 13];
const CODE_PORT_UNREACHABLE_V4: u8 = 3;
const TYPE_UNREACHABLE_V6: u8 = 1;
/// Prohibited, policy, reject route; not "address unreachable", which is a soft error.
const CODES_UNREACHABLE_V6: [u8; 3] = [1, 5, 6];
const CODE_PORT_UNREACHABLE_V6: u8 = 4;
const TYPE_TOO_BIG_V6: u8 = 2;
/// Bytes of an ICMP header, the word before the quoted datagram included.
const ICMP_LEN: usize = 8;

pub(crate) fn parse(opened: &Opened<'_>) -> Option<IcmpError> {
    match opened.ethertype {
        ETHERTYPE_IPV4 => parse_v4(opened.payload),
        ETHERTYPE_IPV6 => parse_v6(opened.payload),
        _ => None,
    }
}

fn parse_v4(datagram: &[u8]) -> Option<IcmpError> {
    let packet = Ipv4Packet::new_checked(datagram).ok()?;
    if packet.next_header() != smoltcp::wire::IpProtocol::Icmp {
        return None;
    }
    let octets = packet.payload();
    let message = Icmpv4Packet::new_checked(octets).ok()?;
    let (head, quoted) = octets.split_first_chunk::<ICMP_LEN>()?;
    if head[0] != TYPE_UNREACHABLE_V4 || !message.verify_checksum() {
        return None;
    }
    let mtu = usize::from(u16::from_be_bytes([head[6], head[7]]));
    // Not `new_checked`: the quoted datagram is cut off.
    let [version, .., flags_high, flags_low, _, protocol, _, _] = *quoted.first_chunk::<12>()?;
    let fragment = u16::from_be_bytes([flags_high, flags_low]) & 0x1fff != 0;
    let header_len = usize::from(version & 15) * 4;
    if version >> 4 != 4 || header_len < IPV4_LEN || fragment || protocol != PROTOCOL_TCP {
        return None;
    }
    let addresses = quoted.get(12..20)?;
    let (source, destination) = addresses.split_first_chunk::<4>()?;
    let destination: [u8; 4] = destination.try_into().ok()?;
    let datagram_len = usize::from(u16::from_be_bytes([quoted[2], quoted[3]]));
    let report = match head[1] {
        CODE_FRAGMENTATION_NEEDED => Report::TooBig { mtu, datagram_len },
        CODE_PORT_UNREACHABLE_V4 => Report::Refused,
        code if CODES_UNREACHABLE_V4.contains(&code) => Report::Unreachable,
        _ => return None,
    };
    let to = IpAddr::V4(packet.dst_addr());
    error_about(to, (*source).into(), destination.into(), quoted.get(header_len..)?, report)
}

fn parse_v6(datagram: &[u8]) -> Option<IcmpError> {
    let packet = Ipv6Packet::new_checked(datagram).ok()?;
    if u8::from(packet.next_header()) != PROTOCOL_ICMPV6 {
        return None;
    }
    let octets = packet.payload();
    let message = Icmpv6Packet::new_checked(octets).ok()?;
    if !message.verify_checksum(&packet.src_addr(), &packet.dst_addr()) {
        return None;
    }
    let (head, quoted) = octets.split_first_chunk::<ICMP_LEN>()?;
    let (inner, segment) = quoted.split_first_chunk::<IPV6_LEN>()?;
    if inner[0] >> 4 != 6 || inner[6] != PROTOCOL_TCP {
        return None;
    }
    let mtu = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let mtu = usize::try_from(mtu).unwrap_or(usize::MAX);
    let payload_len = usize::from(u16::from_be_bytes([inner[4], inner[5]]));
    let report = match (head[0], head[1]) {
        (TYPE_TOO_BIG_V6, _) => Report::TooBig { mtu, datagram_len: IPV6_LEN + payload_len },
        (TYPE_UNREACHABLE_V6, CODE_PORT_UNREACHABLE_V6) => Report::Refused,
        (TYPE_UNREACHABLE_V6, code) if CODES_UNREACHABLE_V6.contains(&code) => Report::Unreachable,
        _ => return None,
    };
    let [local, remote] = [8, 24].map(|at| inner[at..].first_chunk::<16>().copied());
    let [local, remote] = [Ipv6Addr::from(local?), Ipv6Addr::from(remote?)];
    // No segment from here has IPv4 addresses in an IPv6 header.
    if [local, remote].iter().any(|address| address.to_ipv4_mapped().is_some()) {
        return None;
    }
    error_about(IpAddr::V6(packet.dst_addr()), local.into(), remote.into(), segment, report)
}

fn error_about(
    destination: IpAddr,
    local: IpAddr,
    remote: IpAddr,
    segment: &[u8],
    report: Report,
) -> Option<IcmpError> {
    // RFC 792: at least 64 bits of the segment are quoted: ports and sequence number.
    let &[a, b, c, d, seq @ ..] = segment.first_chunk::<8>()?;
    let (local_port, remote_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let tuple = Tuple::new(local, local_port, remote, remote_port);
    Some(IcmpError { destination, tuple, seq: SeqNum(u32::from_be_bytes(seq)), report })
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::checksum;

    use super::*;
    use crate::port::interface::framing::LinkFraming;

    /// Fragmentation needed, from 10.0.0.9 to 10.0.0.1, about a segment to 10.0.0.2.
    fn too_big_v4() -> Vec<u8> {
        unreachable_v4(CODE_FRAGMENTATION_NEEDED)
    }

    fn unreachable_v4(code: u8) -> Vec<u8> {
        let mut quoted = vec![0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 63, 6, 0, 0];
        quoted.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        quoted.extend([0x1c, 6, 0x9c, 0x40, 0, 0, 0x12, 0x34]);
        let mut icmp = vec![3, code, 0, 0, 0, 0, 0x05, 0x78];
        icmp.extend(quoted);
        let sum = !checksum::data(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut datagram = vec![0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1];
        let sum = !checksum::data(&datagram);
        datagram[10..12].copy_from_slice(&sum.to_be_bytes());
        datagram.extend(icmp);
        datagram
    }

    fn parsed(datagram: &[u8]) -> Option<IcmpError> {
        parse(&LinkFraming::Ip.open(datagram).ok()?)
    }

    #[test]
    fn fragmentation_needed_names_the_connection_and_the_mtu() {
        let error = parsed(&too_big_v4()).unwrap();
        let tuple = Tuple::new([10, 0, 0, 1].into(), 7174, [10, 0, 0, 2].into(), 40_000);
        assert_eq!((error.tuple, error.seq), (tuple, SeqNum(0x1234)));
        assert_eq!(error.report, Report::TooBig { mtu: 1400, datagram_len: 1500 });
        assert_eq!(error.destination, IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn damaged_and_truncated_icmp_errors_are_ignored() {
        let good = too_big_v4();
        for at in 20..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(parsed(&bad), None, "octet {at}");
        }
        for len in 0..good.len() {
            assert_eq!(parsed(&good[..len]), None, "{len} octets");
        }
    }

    /// An ICMPv6 error about a segment between these addresses.
    fn error_v6([kind, code]: [u8; 2], own: [u8; 16], peer: [u8; 16]) -> Vec<u8> {
        let router = [0xfd; 16];
        let mut icmp = vec![kind, code, 0, 0, 0, 0, 0x05, 0x00, 0x60, 0, 0, 0, 0x05, 0xb4, 6, 64];
        icmp.extend(own);
        icmp.extend(peer);
        icmp.extend([0x1c, 6, 0x9c, 0x40, 0, 0, 0x12, 0x34]);
        let len = u8::try_from(icmp.len()).unwrap();
        let sums = [checksum::data(&router), checksum::data(&own), u16::from(len), 58];
        let sum = !checksum::combine(&[checksum::combine(&sums), checksum::data(&icmp)]);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut datagram = vec![0x60, 0, 0, 0, 0, len, 58, 64];
        datagram.extend(router);
        datagram.extend(own);
        datagram.extend(icmp);
        datagram
    }

    #[test]
    fn codes_say_too_big_refused_unreachable_or_nothing() {
        use Report::{Refused, Unreachable};
        let report_v4 = |code| parsed(&unreachable_v4(code)).map(|error| error.report);
        let too_big = Some(Report::TooBig { mtu: 1400, datagram_len: 1500 });
        for code in 0..=255 {
            let expected = match code {
                4 => too_big,
                3 => Some(Refused),
                2 | 9 | 10 | 13 => Some(Unreachable),
                _ => None,
            };
            assert_eq!(report_v4(code), expected, "code {code}");
            let expected = match code {
                4 => Some(Refused),
                1 | 5 | 6 => Some(Unreachable),
                _ => None,
            };
            let datagram = error_v6([1, code], [0xaa; 16], [0xbb; 16]);
            assert_eq!(parsed(&datagram).map(|error| error.report), expected, "v6 code {code}");
        }
    }

    #[test]
    fn errors_that_quote_ipv4_addresses_in_ipv6_are_ignored() {
        let mapped = Ipv6Addr::from_bits(0xffff_0a00_0001).octets();
        assert!(parsed(&error_v6([2, 0], [0xaa; 16], [0xbb; 16])).is_some());
        assert_eq!(parsed(&error_v6([2, 0], mapped, [0xbb; 16])), None);
        assert_eq!(parsed(&error_v6([2, 0], [0xaa; 16], mapped)), None);
    }

    #[test]
    fn packet_too_big_names_the_connection_and_the_mtu() {
        let (own, peer) = ([0xaa; 16], [0xbb; 16]);
        let datagram = error_v6([2, 0], own, peer);
        let error = parsed(&datagram).unwrap();
        assert_eq!(error.report, Report::TooBig { mtu: 1280, datagram_len: 1500 });
        assert_eq!(error.tuple, Tuple::new(own.into(), 7174, peer.into(), 40_000));
        for at in 24..datagram.len() {
            let mut bad = datagram.clone();
            bad[at] ^= 1;
            assert_eq!(parsed(&bad), None, "octet {at}");
        }
    }
}
