//! Captures from inside a tunnel: finds the IP datagram inside GRE, VXLAN or IP in IP.

use urnic_netdev::capture::LinkType;

/// The datagram itself if it is not tunnelled.
pub(crate) fn innermost(mut datagram: &[u8]) -> &[u8] {
    for _ in 0..TUNNELS_MAX {
        match inner(datagram) {
            Some(found) => datagram = found,
            None => break,
        }
    }
    datagram
}

fn inner(datagram: &[u8]) -> Option<&[u8]> {
    let (protocol, payload) = payload_of(datagram)?;
    match protocol {
        IPV4 | IPV6 => Some(payload),
        GRE => in_gre(payload),
        UDP => in_vxlan(payload),
        _ => None,
    }
}

/// Supports only an IPv6 header directly followed by the payload, and no fragments.
fn payload_of(datagram: &[u8]) -> Option<(u8, &[u8])> {
    match datagram.first()? >> 4 {
        4 => {
            let header = datagram.first_chunk::<20>()?;
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let payload = datagram.get(usize::from(header[0] & 0xf) * 4..)?;
            (!is_fragment).then_some((header[9], payload))
        }
        6 => datagram.split_first_chunk::<40>().map(|(header, payload)| (header[6], payload)),
        _ => None,
    }
}

/// RFC 2784 §2, with the key and sequence number of RFC 2890 §2.
fn in_gre(packet: &[u8]) -> Option<&[u8]> {
    let ([flags, version, high, low], _) = packet.split_first_chunk()?;
    // Routing (RFC 1701) was removed from the protocol; version 1 is PPTP's.
    if flags & 0x40 != 0 || version & 7 != 0 {
        return None;
    }
    let words = 1 + (flags & 0xb0).count_ones() as usize;
    let payload = packet.get(4 * words..)?;
    match u16::from_be_bytes([*high, *low]) {
        0x0800 | 0x86dd => Some(payload),
        0x6558 => in_ethernet(payload),
        _ => None,
    }
}

/// RFC 7348 §5: a UDP header, then eight bytes, the first with the I flag set.
fn in_vxlan(packet: &[u8]) -> Option<&[u8]> {
    let (header, frame) = packet.split_first_chunk::<16>()?;
    let port = u16::from_be_bytes([header[2], header[3]]);
    if port == VXLAN_PORT && header[8] & 0x08 != 0 { in_ethernet(frame) } else { None }
}

fn in_ethernet(frame: &[u8]) -> Option<&[u8]> {
    LinkType::Ethernet.ip_packet(frame).ok().flatten()
}

const TUNNELS_MAX: usize = 4;
const IPV4: u8 = 4;
const UDP: u8 = 17;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const VXLAN_PORT: u16 = 4789;
