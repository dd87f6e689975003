//! A DHCP relay agent (RFC 2131 §4.1, RFC 1542 §4.1): it relays broadcast requests of the link's
//! clients to one server behind the gate, and the server's answers back. By RFC 4390 a client has
//! no hardware address and asks for broadcast answers (§2.1, §2.2); a client that has its address
//! is answered there.

use std::net::Ipv4Addr;

use urnic_ipoib::wire::dhcp::udp_checksum;

use super::icmp::wrap;
use super::packet::{Datagram, UDP};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
/// RFC 1542 §4.1.1: a request that passed more relay agents is in a loop.
const HOPS_MAX: u8 = 16;
/// Bytes of a message before its options (RFC 2131 §2).
const FIXED_LEN: usize = 236;
const HOPS: usize = 3;
const FLAGS: usize = 10;
const CLIENT_ADDRESS: usize = 12;
const RELAY_ADDRESS: usize = 24;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Relayed {
    /// DHCP, forwarded as this datagram.
    On(Vec<u8>),
    /// DHCP, dropped.
    Dropped,
    /// Not for the relay agent.
    No,
}

pub(super) fn to_server(own: Ipv4Addr, server: Ipv4Addr, datagram: &Datagram<'_>) -> Relayed {
    if datagram.destination != Ipv4Addr::BROADCAST && datagram.destination != own {
        return Relayed::No;
    }
    let Some((SERVER_PORT, message)) = message(datagram) else { return Relayed::No };
    let [1, _, _, hops, ..] = *message else { return Relayed::Dropped };
    if hops >= HOPS_MAX {
        return Relayed::Dropped;
    }
    let mut message = message.to_vec();
    message[HOPS] += 1;
    // RFC 1542 §4.1.1: the first relay agent adds the network of the client.
    if address(&message, RELAY_ADDRESS).is_unspecified() {
        message[RELAY_ADDRESS..RELAY_ADDRESS + 4].copy_from_slice(&own.octets());
    }
    on((own, SERVER_PORT), (server, SERVER_PORT), &message)
}

pub(super) fn to_client(own: Ipv4Addr, datagram: &Datagram<'_>) -> Relayed {
    if datagram.destination != own {
        return Relayed::No;
    }
    let Some((SERVER_PORT, message)) = message(datagram) else { return Relayed::No };
    let [2, ..] = *message else { return Relayed::Dropped };
    if address(message, RELAY_ADDRESS) != own {
        return Relayed::Dropped;
    }
    let client = address(message, CLIENT_ADDRESS);
    let to_all = message[FLAGS] & 0x80 != 0 || client.is_unspecified();
    let to = if to_all { Ipv4Addr::BROADCAST } else { client };
    on((own, SERVER_PORT), (to, CLIENT_PORT), message)
}

/// Parses a whole UDP datagram over IPv4 that is long enough for DHCP.
fn message<'a>(datagram: &Datagram<'a>) -> Option<(u16, &'a [u8])> {
    let is_whole = datagram.source.is_ipv4() && datagram.octets[6] & 0x20 == 0;
    let upper = datagram.upper().filter(|upper| is_whole && upper.is_first)?;
    let [_, _, a, b, c, d, ..] = *upper.octets else { return None };
    let segment = upper.octets.get(..usize::from(u16::from_be_bytes([c, d])))?;
    let message = segment.get(8..)?;
    let is_right = upper.protocol == UDP && message.len() >= FIXED_LEN;
    // RFC 768: 0 means no checksum.
    let is_sound = segment[6..8] == [0, 0] || udp_checksum(datagram.octets, segment) == 0;
    (is_right && is_sound).then_some((u16::from_be_bytes([a, b]), message))
}

fn address(message: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3])
}

fn on(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), message: &[u8]) -> Relayed {
    let Ok(len) = u16::try_from(8 + message.len()) else { return Relayed::Dropped };
    let mut segment = Vec::with_capacity(8 + message.len());
    for field in [from.1, to.1, len, 0] {
        segment.extend(field.to_be_bytes());
    }
    segment.extend(message);
    let Some(mut octets) = wrap(from.0.into(), to.0.into(), UDP, &segment) else {
        return Relayed::Dropped;
    };
    // RFC 768: a checksum of 0 is sent as all ones.
    let sum = match udp_checksum(&octets, &segment) {
        0 => u16::MAX,
        sum => sum,
    };
    octets[26..28].copy_from_slice(&sum.to_be_bytes());
    Relayed::On(octets)
}
