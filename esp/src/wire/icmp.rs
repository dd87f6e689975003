//! ICMP errors: the packet that they quote, and the path MTU.

use crate::wire::ip::{Flow, Header, IPV6_LEN};
use crate::wire::{esp, read_u16, read_u32, udp, write_u16};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Bytes of an error before the quotation.
const ERROR_LEN: usize = 8;

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The flow of the quoted packet.
    pub quoted: Flow,
    /// SPI and lower half of the sequence number of the quoted ESP packet, also inside UDP.
    pub esp: Option<(u32, u32)>,
    /// The MTU of the next hop, if the error says that the packet was too long. An old router
    /// reports 0 (RFC 1191 §5).
    pub mtu: Option<u32>,
}

/// Reads an ICMP error in clear.
#[must_use]
pub fn parse(packet: &[u8], header: &Header) -> Option<IcmpError> {
    if header.is_fragment {
        return None;
    }
    // Extension headers behind those for each hop are not expected in an error.
    let message = packet.get(header.payload_at..header.len)?;
    let (kind, code) = (*message.first()?, *message.get(1)?);
    let mtu = match (header.next_header, kind, code) {
        (ICMP, 3, 4) => Some(u32::from(read_u16(message, 6)?)),
        (ICMP, 3 | 4 | 5 | 11 | 12, _) | (ICMPV6, 1 | 3 | 4, _) => None,
        (ICMPV6, 2, _) => Some(read_u32(message, 4)?),
        _ => return None,
    };
    let mut room = [0; QUOTED_MAX];
    let quotation = whole(message.get(ERROR_LEN..)?, &mut room)?;
    let quoted = Header::parse(quotation)?;
    let upper = quotation.get(quoted.payload_at..)?;
    let esp = match quoted.next_header {
        esp::PROTOCOL => esp::read_header(upper),
        udp::PROTOCOL => upper.get(udp::HEADER_LEN..).and_then(esp::read_header),
        _ => None,
    };
    Some(IcmpError { quoted: quoted.flow, esp, mtu })
}

/// Most bytes of a quotation that are read: the longest IPv4 header, UDP, and the beginning of ESP.
const QUOTED_MAX: usize = 128;

/// Copies the beginning of a quoted packet, with its length shortened to that of the copy: a router
/// quotes only a part.
fn whole<'a>(quotation: &[u8], room: &'a mut [u8; QUOTED_MAX]) -> Option<&'a [u8]> {
    let len = quotation.len().min(QUOTED_MAX);
    room[..len].copy_from_slice(&quotation[..len]);
    let (at, counted) = if room[0] >> 4 == 4 { (2, len) } else { (4, len.checked_sub(IPV6_LEN)?) };
    write_u16(room, at, u16::try_from(counted).ok()?);
    Some(&room[..len])
}
