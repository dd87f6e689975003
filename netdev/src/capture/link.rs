//! Link headers of captured frames, and the position of the IP datagram behind them.

use crate::ethernet;

/// Link type: the header at which a captured frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkType {
    /// An Ethernet header (1).
    Ethernet,
    /// An IPv4 or IPv6 header (101; 12 and 14 on some systems).
    RawIp,
    /// An IPv4 header (228).
    Ipv4,
    /// An IPv6 header (229).
    Ipv6,
    /// The Linux "cooked" header of 16 bytes (113).
    LinuxCooked,
    /// The Linux "cooked" header of 20 bytes (276).
    LinuxCookedV2,
    /// A protocol family of 4 bytes, in the byte order of the capturing machine (0) or network
    /// (108).
    Loopback,
    /// A record of the Extensible Record Format (197): Ethernet (types 2, 11, 16), InfiniBand (21).
    Erf,
    /// IP over InfiniBand (242): 40 bytes of a global header, or of addresses, and encapsulation.
    Ipoib,
    /// An InfiniBand packet from its local header on (247).
    InfiniBand,
    /// PPP, with or without address and control bytes (9), or in HDLC framing (50).
    Ppp,
    /// A PPPoE session header (51).
    Pppoe,
    /// Cisco HDLC: address, control byte, EtherType (104).
    CiscoHdlc,
    /// MPLS labels (219).
    Mpls,
    /// Four bytes of a netANALYZER, then Ethernet (240).
    NetAnalyzer,
    /// Per-packet information with the number of the link type behind it (192).
    Ppi,
    /// Any other link type, by its number: no datagram is found behind it.
    Other(u32),
}

/// Error: a frame ends inside its link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {len} bytes ends inside its link header")]
pub struct LinkError {
    /// Captured bytes of the frame.
    pub len: usize,
}

impl LinkType {
    /// Returns the link type with this number in capture files, if it is supported.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 | 108 => Self::Loopback,
            1 => Self::Ethernet,
            9 | 50 => Self::Ppp,
            51 => Self::Pppoe,
            12 | 14 | 101 => Self::RawIp,
            104 => Self::CiscoHdlc,
            113 => Self::LinuxCooked,
            192 => Self::Ppi,
            197 => Self::Erf,
            219 => Self::Mpls,
            228 => Self::Ipv4,
            229 => Self::Ipv6,
            240 => Self::NetAnalyzer,
            242 => Self::Ipoib,
            247 => Self::InfiniBand,
            276 => Self::LinuxCookedV2,
            _ => return None,
        })
    }

    /// Returns the IP datagram in a frame; see
    /// [`CapturedFrame::ip_packet`](super::CapturedFrame::ip_packet). Fails if the frame ends
    /// inside its link header.
    pub fn ip_packet(self, frame: &[u8]) -> Result<Option<&[u8]>, LinkError> {
        let error = LinkError { len: frame.len() };
        let at = match self {
            Self::Ethernet => {
                ethernet::network_header(frame).map(|found| by_ethertype(frame, found))
            }
            Self::LinuxCooked => cooked(frame, 14, 16),
            Self::LinuxCookedV2 => cooked(frame, 0, 20),
            Self::RawIp | Self::Ipv4 | Self::Ipv6 => Some(Some(0)),
            Self::Loopback => frame.first_chunk().map(by_family),
            Self::Erf => record(frame),
            Self::Ipoib => encapsulated(frame, 40),
            Self::InfiniBand => infiniband(frame, 0),
            Self::Ppp => ppp(frame, 0),
            Self::Pppoe => pppoe(frame, 0),
            Self::CiscoHdlc => hdlc(frame),
            Self::Mpls => Some(behind_labels(frame, 0)),
            Self::NetAnalyzer => behind(frame, 4, Self::Ethernet),
            Self::Ppi => per_packet(frame),
            Self::Other(_) => Some(None),
        };
        let Some(at) = at.ok_or(error)? else { return Ok(None) };
        let packet = frame.get(at..).filter(|packet| !packet.is_empty()).ok_or(error)?;
        let version = packet[0] >> 4;
        let is_ip = match self {
            Self::Ipv4 => version == 4,
            Self::Ipv6 => version == 6,
            _ => matches!(version, 4 | 6),
        };
        Ok(is_ip.then(|| without_padding(packet)))
    }
}

/// `None` if the header is truncated, `Some(None)` if it does not announce IP.
fn cooked(frame: &[u8], ethertype_at: usize, len: usize) -> Option<Option<usize>> {
    let header = frame.get(..len)?;
    let ethertype = u16::from_be_bytes([header[ethertype_at], header[ethertype_at + 1]]);
    ethernet::skip_tags(frame, len, ethertype).map(|found| by_ethertype(frame, found))
}

fn by_ethertype(frame: &[u8], (at, ethertype): (usize, u16)) -> Option<usize> {
    match ethertype {
        ethernet::IPV4 | ethernet::IPV6 => Some(at),
        MPLS => behind_labels(frame, at),
        PPPOE => pppoe(frame, at).flatten(),
        0..=LENGTH_MAX => snap(frame, at),
        _ => None,
    }
}

/// IEEE 802.2: a header of LLC and SNAP for an EtherType, behind a length.
fn snap(frame: &[u8], at: usize) -> Option<usize> {
    let header = frame.get(at..)?.first_chunk::<8>()?;
    let ethertype = u16::from_be_bytes([header[6], header[7]]);
    let is_ip = matches!(ethertype, ethernet::IPV4 | ethernet::IPV6);
    (header[..6] == [0xaa, 0xaa, 3, 0, 0, 0] && is_ip).then_some(at + header.len())
}

/// RFC 1661 §2 and RFC 1662 §3.1: address and control bytes may be missing, and a protocol below
/// 256 may take one byte. Some captures have Cisco's framing under the same number.
fn ppp(frame: &[u8], mut at: usize) -> Option<Option<usize>> {
    match *frame.get(at..)? {
        [0xff, 3, ..] => at += 2,
        [0x0f | 0x8f, 0, ..] if at == 0 => return hdlc(frame),
        _ => {}
    }
    let first = u16::from(*frame.get(at)?);
    let protocol = if first & 1 == 1 {
        at += 1;
        first
    } else {
        at += 2;
        first << 8 | u16::from(*frame.get(at - 1)?)
    };
    Some(match protocol {
        0x21 | 0x57 => Some(at),
        0x281 => behind_labels(frame, at),
        _ => None,
    })
}

/// RFC 2516 §4: version and type, code 0 for a session, its number and the length.
fn pppoe(frame: &[u8], at: usize) -> Option<Option<usize>> {
    let header = frame.get(at..)?.first_chunk::<6>()?;
    if header[..2] == [0x11, 0] { ppp(frame, at + header.len()) } else { Some(None) }
}

fn hdlc(frame: &[u8]) -> Option<Option<usize>> {
    let header = frame.first_chunk::<4>()?;
    let ethertype = u16::from_be_bytes([header[2], header[3]]);
    Some(by_ethertype(frame, (header.len(), ethertype)))
}

fn behind(frame: &[u8], at: usize, link: LinkType) -> Option<Option<usize>> {
    let inner = frame.get(at..)?;
    let found = match link {
        LinkType::Ethernet => {
            ethernet::network_header(inner).map(|found| by_ethertype(inner, found))?
        }
        LinkType::LinuxCooked => cooked(inner, 14, 16)?,
        LinkType::RawIp | LinkType::Ipv4 | LinkType::Ipv6 => Some(0),
        LinkType::Ppp => ppp(inner, 0)?,
        _ => None,
    };
    Some(found.map(|found| at + found))
}

/// Version, flags, length of the header and link type, in little-endian order.
fn per_packet(frame: &[u8]) -> Option<Option<usize>> {
    let [_, _, l0, l1, d0, d1, d2, d3] = *frame.first_chunk::<8>()?;
    let len = usize::from(u16::from_le_bytes([l0, l1]));
    match LinkType::from_number(u32::from_le_bytes([d0, d1, d2, d3])) {
        Some(link) if len >= 8 => behind(frame, len, link),
        _ => Some(None),
    }
}

/// Skips labels of four bytes, the last with its bottom bit set (RFC 3032 §2.1): the first byte of
/// the payload must look like IP's.
fn behind_labels(frame: &[u8], at: usize) -> Option<usize> {
    let labels = frame.get(at..)?.chunks_exact(4);
    let count = labels.clone().position(|label| label[2] & 1 != 0)? + 1;
    Some(at + 4 * count)
}

/// EtherType of MPLS unicast (RFC 3032 §5).
const MPLS: u16 = 0x8847;
/// EtherType of a PPPoE session (RFC 2516 §4).
const PPPOE: u16 = 0x8864;
/// Largest value of an EtherType field that is a length.
const LENGTH_MAX: u16 = 1500;

/// Header (16), extension headers (8 each) while the top bit before announces one, contents by
/// type.
fn record(frame: &[u8]) -> Option<Option<usize>> {
    let kind = *frame.get(8)?;
    let mut at = 16;
    let mut announces = kind & 0x80 != 0;
    while announces {
        announces = frame.get(at)? & 0x80 != 0;
        at += 8;
    }
    match kind & 0x7f {
        // Ethernet has an offset and a pad byte in front, also with a colour or a DSM colour.
        2 | 11 | 16 => {
            let inner = frame.get(at + 2..)?;
            let (found, ethertype) = ethernet::network_header(inner)?;
            Some(by_ethertype(inner, (found, ethertype)).map(|found| at + 2 + found))
        }
        21 if at == 16 => infiniband(frame, at),
        _ => Some(None),
    }
}

/// Local header (8), global header (40, if the local one announces it), BTH (12), DETH (8),
/// encapsulation header. `None` if it is truncated, `Some(None)` if it is no IPoIB datagram.
fn infiniband(frame: &[u8], at: usize) -> Option<Option<usize>> {
    const UD_SEND_ONLY: u8 = 0x64;
    let [_, local_next, ..] = *frame.get(at..)?.first_chunk::<8>()?;
    let transport_at = match local_next & 3 {
        2 => at + 8,
        3 => at + 8 + 40,
        _ => return Some(None),
    };
    let transport = frame.get(transport_at..)?.first_chunk::<20>()?;
    // RFC 4391 uses datagrams; queue pairs 0 and 1 are for management.
    let is_management = transport[5..7] == [0, 0] && transport[7] <= 1;
    if transport[0] != UD_SEND_ONLY || is_management {
        return Some(None);
    }
    encapsulated(frame, transport_at + transport.len())
}

/// RFC 4391 §6.
fn encapsulated(frame: &[u8], at: usize) -> Option<Option<usize>> {
    let header = frame.get(at..)?.first_chunk::<4>()?;
    let ethertype = u16::from_be_bytes([header[0], header[1]]);
    Some(by_ethertype(frame, (at + header.len(), ethertype)))
}

fn by_family(octets: &[u8; 4]) -> Option<usize> {
    // The file does not record its machine's byte order: the one that gives a small number is
    // taken. 2 is IPv4 everywhere; IPv6 is 10 on Linux and 24, 28 or 30 on the BSDs.
    let family = u32::from_be_bytes(*octets).min(u32::from_le_bytes(*octets));
    matches!(family, 2 | 10 | 24 | 28 | 30).then_some(octets.len())
}

/// A length of zero means that the datagram was captured before segmentation offload set it.
fn without_padding(packet: &[u8]) -> &[u8] {
    let len = match *packet {
        [v, _, high, low, ..] if v >> 4 == 4 => usize::from(u16::from_be_bytes([high, low])),
        [_, _, _, _, high, low, ..] => match u16::from_be_bytes([high, low]) {
            0 => 0,
            len => 40 + usize::from(len),
        },
        _ => 0,
    };
    if len == 0 { packet } else { packet.get(..len).unwrap_or(packet) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header alone.
    const DATAGRAM: [u8; 20] = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];

    fn record(kind: u8, has_global: bool, queue_pair: u8, ethertype: u16) -> Vec<u8> {
        let mut frame = vec![0; 8];
        frame.extend([kind, 4, 0, 0, 0, 0, 0, 0]);
        frame.extend([0, if has_global { 3 } else { 2 }, 0, 4, 0, 0, 0, 6]);
        frame.extend(vec![0; if has_global { 40 } else { 0 }]);
        frame.extend([0x64, 0x40, 0xff, 0xff, 0, 0, 0, queue_pair, 0, 0, 0, 0]);
        frame.extend([0x80, 1, 0x0b, 0x1b, 0, 0, 0, 0x48]);
        frame.extend(ethertype.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(DATAGRAM);
        // Pad and CRCs.
        frame.extend([0; 6]);
        frame
    }

    #[test]
    fn datagrams_are_found_in_records_of_infiniband() {
        for has_global in [false, true] {
            let frame = record(21, has_global, 0x49, 0x0800);
            assert_eq!(LinkType::Erf.ip_packet(&frame), Ok(Some(&DATAGRAM[..])));
            let header_len = frame.len() - DATAGRAM.len() - 6;
            for len in 0..=header_len {
                assert!(LinkType::Erf.ip_packet(&frame[..len]).is_err(), "{len} octets");
            }
        }
        // Another type, ARP, management, another operation.
        for other in [record(3, true, 0x49, 0x0800), record(21, true, 0x49, 0x0806)] {
            assert_eq!(LinkType::Erf.ip_packet(&other), Ok(None));
        }
        assert_eq!(LinkType::Erf.ip_packet(&record(21, false, 1, 0x0800)), Ok(None));
        let mut other = record(21, false, 0x49, 0x0800);
        other[24] = 0x04;
        assert_eq!(LinkType::Erf.ip_packet(&other), Ok(None));
    }

    #[test]
    fn datagrams_are_found_in_records_of_ethernet() {
        for (kind, extensions) in [(2, 0), (11, 0), (16, 0), (0x82, 1), (0x82, 2)] {
            let mut frame = vec![0; 8];
            frame.extend([kind, 4, 0, 0, 0, 0, 0, 0]);
            for extension in 1..=extensions {
                frame.extend([if extension < extensions { 0x83 } else { 3 }, 0, 0, 0, 0, 0, 0, 0]);
            }
            frame.extend(
                [&[0; 2][..], &[2; 12], &[0x81, 0, 0, 5, 8, 0], &DATAGRAM, &[0; 4]].concat(),
            );
            assert_eq!(LinkType::Erf.ip_packet(&frame), Ok(Some(&DATAGRAM[..])), "{kind:#x}");
            for len in 0..16 + 8 * extensions + 20 {
                assert!(LinkType::Erf.ip_packet(&frame[..len]).is_err(), "{len} octets");
            }
        }
    }

    #[test]
    fn datagrams_are_found_in_packets_of_infiniband() {
        let frame = record(21, true, 0x49, 0x0800)[16..].to_vec();
        assert_eq!(LinkType::InfiniBand.ip_packet(&frame), Ok(Some(&DATAGRAM[..])));
        assert!(LinkType::InfiniBand.ip_packet(&frame[..60]).is_err());
    }

    #[test]
    fn datagrams_are_found_behind_rare_headers() {
        let ethernet: &[u8] = &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8, 0];
        let with = |head: &[u8], link: u32| [head, &link.to_le_bytes()].concat();
        let cases: [(u32, Vec<u8>); 15] = [
            (9, vec![0, 0x21]),
            (9, vec![0x21]),
            (9, vec![0xff, 3, 0, 0x21]),
            (9, vec![0xff, 3, 2, 0x81, 0, 0, 0x10, 64, 0, 0, 0x11, 64]),
            (50, vec![0x0f, 0, 8, 0]),
            (50, vec![0x8f, 0, 8, 0]),
            (51, vec![0x11, 0, 0, 7, 0, 22, 0, 0x21]),
            (104, vec![0x0f, 0, 8, 0]),
            (219, vec![0, 0, 0x11, 64]),
            (240, [&[0; 4], ethernet].concat()),
            (192, [&with(&[0, 0, 8, 0], 1)[..], ethernet].concat()),
            (192, [&with(&[0, 0, 12, 0], 101)[..], &[0; 4]].concat()),
            (192, [&with(&[0, 0, 8, 0], 9)[..], &[0xff, 3, 0, 0x21]].concat()),
            (1, [&[2; 12][..], &[0x88, 0x64, 0x11, 0, 0, 7, 0, 22, 0, 0x21]].concat()),
            (1, [&[2; 12][..], &[0, 28, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]].concat()),
        ];
        for (number, header) in cases {
            let link = LinkType::from_number(number).unwrap();
            let frame = [&header[..], &DATAGRAM].concat();
            assert_eq!(link.ip_packet(&frame), Ok(Some(&DATAGRAM[..])), "{number} {header:?}");
            for len in 0..header.len() {
                assert_ne!(
                    link.ip_packet(&frame[..len]),
                    Ok(Some(&DATAGRAM[..])),
                    "{number} {len}"
                );
            }
        }
        for (number, header) in [
            (9, vec![0xff, 3, 0xc0, 0x21]),
            (51, vec![0x11, 9, 0, 0, 0, 22, 0, 0x21]),
            (1, [&[2; 12][..], &[0, 28, 0x42, 0x42, 3, 0, 0, 0, 8, 0]].concat()),
            (192, with(&[0, 0, 8, 0], 192)),
            (192, with(&[0, 0, 7, 0], 1)),
        ] {
            let link = LinkType::from_number(number).unwrap();
            let frame = [&header[..], &DATAGRAM].concat();
            assert_eq!(link.ip_packet(&frame), Ok(None), "{number} {header:?}");
        }
        assert_eq!(LinkType::Other(220).ip_packet(&DATAGRAM), Ok(None));
    }

    #[test]
    fn datagrams_are_found_behind_a_pseudo_header_of_ipoib() {
        let frame = [&[0; 40][..], &[8, 0, 0, 0], &DATAGRAM].concat();
        assert_eq!(LinkType::Ipoib.ip_packet(&frame), Ok(Some(&DATAGRAM[..])));
        assert!(LinkType::Ipoib.ip_packet(&frame[..44]).is_err());
        assert_eq!(
            [197, 242].map(LinkType::from_number),
            [LinkType::Erf, LinkType::Ipoib].map(Some)
        );
    }
}
