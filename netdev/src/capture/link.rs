//! What captured frames begin with, and where the IP datagram is behind it.

use crate::ethernet;

/// What a captured frame begins with.
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
    /// The Linux "cooked" header of 16 octets (113).
    LinuxCooked,
    /// The Linux "cooked" header of 20 octets (276).
    LinuxCookedV2,
    /// A protocol family of 4 octets, in the order of the capturing machine (0) or the network
    /// (108).
    Loopback,
}

/// A frame ends inside its link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {len} octets ends inside its link header")]
pub struct LinkError {
    /// Captured octets of the frame.
    pub len: usize,
}

impl LinkType {
    /// The link type with this number in capture files, if it is supported.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 | 108 => Self::Loopback,
            1 => Self::Ethernet,
            12 | 14 | 101 => Self::RawIp,
            113 => Self::LinuxCooked,
            228 => Self::Ipv4,
            229 => Self::Ipv6,
            276 => Self::LinuxCookedV2,
            _ => return None,
        })
    }

    /// The IP datagram in a frame of this link type; see
    /// [`CapturedFrame::ip_packet`](super::CapturedFrame::ip_packet).
    ///
    /// # Errors
    /// When the frame ends inside its link header.
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

/// A cooked header with its EtherType at `ethertype_at` and VLAN tags behind its `len` octets.
/// `None` when it is cut, `Some(None)` when it does not announce IP.
fn cooked(frame: &[u8], ethertype_at: usize, len: usize) -> Option<Option<usize>> {
    let header = frame.get(..len)?;
    let ethertype = u16::from_be_bytes([header[ethertype_at], header[ethertype_at + 1]]);
    ethernet::skip_tags(frame, len, ethertype).map(|found| by_ethertype(frame, found))
}

fn by_ethertype(frame: &[u8], (at, ethertype): (usize, u16)) -> Option<usize> {
    match ethertype {
        ethernet::IPV4 | ethernet::IPV6 => Some(at),
        MPLS => behind_labels(frame, at),
        _ => None,
    }
}

/// RFC 3032 §2.1: labels of four octets, the last with its bottom bit set. What follows does not say
/// what it is: its first octet has to look like IP's.
fn behind_labels(frame: &[u8], at: usize) -> Option<usize> {
    let labels = frame.get(at..)?.chunks_exact(4);
    let count = labels.clone().position(|label| label[2] & 1 != 0)? + 1;
    Some(at + 4 * count)
}

/// The EtherType of MPLS unicast (RFC 3032 §5).
const MPLS: u16 = 0x8847;

fn by_family(octets: &[u8; 4]) -> Option<usize> {
    // The file does not say which order its machine had, so take the one that gives a small number:
    // 2 is IPv4 everywhere; IPv6 is 10 on Linux and 24, 28 or 30 on the BSDs.
    let family = u32::from_be_bytes(*octets).min(u32::from_le_bytes(*octets));
    matches!(family, 2 | 10 | 24 | 28 | 30).then_some(octets.len())
}

/// Drops what follows the datagram. A length of zero stands for a datagram that was captured
/// before segmentation offload had set it: all of it is there.
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
