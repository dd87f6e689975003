//! Extension headers of IPv6 (RFC 8200 §4) in front of TCP.

use std::net::{IpAddr, Ipv6Addr};

use crate::limits::EXTENSION_HEADERS_MAX;
use crate::port::drops::FrameDrop;
use crate::port::interface::framing::{IPV6_LEN, PROTOCOL_TCP};
use crate::port::interface::reassembly::{DatagramKey, Part};

pub(super) enum Upper<'f> {
    Tcp(&'f [u8]),
    Fragment(Part<'f>),
    Other,
}

/// Up to a limit, which RFC 8504 §5.3 allows (RFC 8200 §4).
pub(super) fn upper_layer(
    datagram: &[u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
) -> Result<Upper<'_>, FrameDrop> {
    let mut next_header_at = IPV6_NEXT_HEADER_AT;
    let mut at = IPV6_LEN;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let next_header = datagram[next_header_at];
        let rest = datagram.get(at..).ok_or(FrameDrop::Malformed)?;
        match next_header {
            PROTOCOL_TCP => return Ok(Upper::Tcp(rest)),
            HOP_BY_HOP if at != IPV6_LEN => return Err(FrameDrop::Malformed),
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {
                let [_, words, _, segments_left, ..] = *rest else {
                    return Err(FrameDrop::Malformed);
                };
                // RFC 8200 §4.4: a datagram whose route is not complete is not for this host.
                if next_header == ROUTING && segments_left != 0 {
                    return Ok(Upper::Other);
                }
                next_header_at = at;
                at += (usize::from(words) + 1) * 8;
            }
            FRAGMENT => {
                let Some((&[next, _, a, b, id @ ..], payload)) =
                    rest.split_first_chunk::<FRAGMENT_HEADER_LEN>()
                else {
                    return Err(FrameDrop::Malformed);
                };
                let word = u16::from_be_bytes([a, b]);
                let key = DatagramKey {
                    source: IpAddr::V6(source),
                    destination: IpAddr::V6(destination),
                    id: u32::from_be_bytes(id),
                    protocol: next,
                };
                let (offset, more) = (usize::from(word & !7), word & 1 != 0);
                let header = &datagram[..at];
                let next_header = Some((next_header_at, next));
                return Ok(Upper::Fragment(Part {
                    key,
                    offset,
                    more,
                    header,
                    next_header,
                    payload,
                }));
            }
            _ => return Ok(Upper::Other),
        }
    }
    Err(FrameDrop::Malformed)
}

const IPV6_NEXT_HEADER_AT: usize = 6;
const FRAGMENT_HEADER_LEN: usize = 8;
pub(super) const HOP_BY_HOP: u8 = 0;
pub(super) const ROUTING: u8 = 43;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const DESTINATION_OPTIONS: u8 = 60;
