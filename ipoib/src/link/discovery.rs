//! IPv6 neighbour discovery on an IPoIB link (RFC 4861, RFC 4391 §9.3): solicitations and
//! advertisements as whole datagrams.

use std::net::Ipv6Addr;

use crate::wire::address::LinkAddress;
use crate::wire::ndisc::{self, OPTION_LEN, OptionKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Asks for the holder of the target.
    Solicitation { source: Ipv6Addr, target: Ipv6Addr, from: Option<LinkAddress> },
    /// Announces the holder of the target.
    Advertisement { target: Ipv6Addr, at: Option<LinkAddress> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invalid;

const HEADER_LEN: usize = 40;
const BODY_LEN: usize = 24;
/// Length with one option, for the IPv6 header.
const MESSAGE_LEN: u8 = 24 + 24;
pub(super) const LEN: usize = HEADER_LEN + BODY_LEN + OPTION_LEN;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flag of an advertisement that answers a solicitation (RFC 4861 §4.4).
const SOLICITED: u8 = 1 << 6;
/// Flag of an advertisement that replaces a known address (RFC 4861 §4.4).
const OVERRIDE: u8 = 1 << 5;

/// RFC 4291 §2.7.1.
pub(super) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// `None` if it is no solicitation or advertisement.
pub(super) fn parse(datagram: &[u8]) -> Result<Option<Message>, Invalid> {
    let Some((header, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let is_discovery = header[0] >> 4 == 6
        && header[6] == ICMPV6
        && rest.first().is_some_and(|kind| matches!(*kind, SOLICITATION | ADVERTISEMENT));
    if !is_discovery {
        return Ok(None);
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let message = rest.get(..len).ok_or(Invalid)?;
    let (body, mut options) = message.split_first_chunk::<BODY_LEN>().ok_or(Invalid)?;
    // RFC 4861 §7.1: hop limit (not forwarded), checksum, code, no group as a target.
    let source = address(&header[8..24])?;
    let target = address(&body[8..24])?;
    let is_right = header[7] == 255
        && body[1] == 0
        && checksum(header, message) == 0
        && !target.is_multicast()
        && !source.is_multicast();
    if !is_right {
        return Err(Invalid);
    }
    let (mut from, mut at) = (None, None);
    while let [_, words, ..] = *options {
        match ndisc::parse(options) {
            Ok(Some((OptionKind::Source, address))) => from = from.or(Some(address)),
            Ok(Some((OptionKind::Target, address))) => at = at.or(Some(address)),
            Ok(None) => {}
            Err(_) => return Err(Invalid),
        }
        // RFC 4861 §4.6: an option of length zero makes the whole message invalid.
        let len = usize::from(words) * 8;
        options = options.get(len..).filter(|_| len > 0).ok_or(Invalid)?;
    }
    if body[0] == ADVERTISEMENT {
        return Ok(Some(Message::Advertisement { target, at }));
    }
    // RFC 4861 §7.1.1: a host without an address must not include a link-layer address.
    if source.is_unspecified() && from.is_some() {
        return Err(Invalid);
    }
    Ok(Some(Message::Solicitation { source, target, from }))
}

/// `to` is the target's solicited-node group or the target.
pub(super) fn solicitation(
    source: Ipv6Addr,
    to: Ipv6Addr,
    target: Ipv6Addr,
    own: LinkAddress,
) -> [u8; LEN] {
    message(SOLICITATION, 0, source, to, target, ndisc::to_bytes(OptionKind::Source, own))
}

/// Unsolicited if `to` is a group.
pub(super) fn advertisement(target: Ipv6Addr, to: Ipv6Addr, own: LinkAddress) -> [u8; LEN] {
    let flags = if to.is_multicast() { OVERRIDE } else { OVERRIDE | SOLICITED };
    message(ADVERTISEMENT, flags, target, to, target, ndisc::to_bytes(OptionKind::Target, own))
}

fn message(
    kind: u8,
    flags: u8,
    source: Ipv6Addr,
    to: Ipv6Addr,
    target: Ipv6Addr,
    option: [u8; OPTION_LEN],
) -> [u8; LEN] {
    let mut datagram = [0; LEN];
    let parts: [&[u8]; 8] = [
        &[6 << 4, 0, 0, 0],
        &[0, MESSAGE_LEN, ICMPV6, 255],
        &source.octets(),
        &to.octets(),
        &[kind, 0, 0, 0],
        &[flags, 0, 0, 0],
        &target.octets(),
        &option,
    ];
    for (octet, value) in datagram.iter_mut().zip(parts.into_iter().flatten()) {
        *octet = *value;
    }
    let (header, message) = datagram.split_at(HEADER_LEN);
    let header: &[u8; HEADER_LEN] = header.try_into().expect("a header's length");
    let [a, b] = checksum(header, message).to_be_bytes();
    datagram[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&[a, b]);
    datagram
}

fn address(octets: &[u8]) -> Result<Ipv6Addr, Invalid> {
    octets.try_into().map(Ipv6Addr::from_octets).map_err(|_| Invalid)
}

/// RFC 4443 §2.3; 0 if the message contains a correct one.
fn checksum(header: &[u8; HEADER_LEN], message: &[u8]) -> u16 {
    let words = |octets: &[u8]| -> u64 {
        let pairs = octets.chunks(2);
        pairs.map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| b.into())).sum()
    };
    let mut sum = words(&header[8..]) + message.len() as u64 + u64::from(ICMPV6) + words(message);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::address::{Gid, Guid, Qpn};

    fn own() -> LinkAddress {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_0004));
        LinkAddress { qpn: Qpn::from_bits(0x48), gid }
    }

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let (source, target) = (ip("fe80::1"), ip("fe80::2"));
        let asked = solicitation(source, solicited_node(target), target, own());
        assert_eq!(
            parse(&asked),
            Ok(Some(Message::Solicitation { source, target, from: Some(own()) }))
        );
        assert_eq!(&asked[24..40], ip("ff02::1:ff00:2").octets());
        let told = advertisement(target, source, own());
        assert_eq!(parse(&told), Ok(Some(Message::Advertisement { target, at: Some(own()) })));
        assert_eq!(told[44], SOLICITED | OVERRIDE);
        assert_eq!(advertisement(target, ip("ff02::1"), own())[44], OVERRIDE);
    }

    /// RFC 4861 §7.1.
    #[test]
    fn malformed_messages_are_refused() {
        let target = ip("fe80::2");
        let good = solicitation(ip("fe80::1"), target, target, own());
        for at in [7, 41, 42, 50, 60, 65, 70] {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(parse(&bad), Err(Invalid), "octet {at}");
        }
        for len in 41..good.len() {
            assert_eq!(parse(&good[..len]), Err(Invalid), "{len}");
        }
        let unspecified = solicitation(Ipv6Addr::UNSPECIFIED, target, target, own());
        assert_eq!(parse(&unspecified), Err(Invalid));
        let mut other = good;
        other[6] = 17;
        assert_eq!(parse(&other), Ok(None), "UDP");
    }

    /// RFC 4861 §7.1.1: each rule holds for messages with a right checksum.
    #[test]
    fn wrong_fields_are_refused_with_a_right_checksum() {
        let target = ip("fe80::2");
        let good = solicitation(ip("fe80::1"), target, target, own());
        let cases = [(8, 0xfe), (7, 254), (41, 1), (8, 0xff), (48, 0xff), (65, 0)];
        let expected = [true, false, false, false, false, false];
        let is_read = |(at, value): (usize, u8)| {
            let mut octets = good;
            octets[at] = value;
            octets[42..44].fill(0);
            let (header, message) = octets.split_at(HEADER_LEN);
            let sum = checksum(header.try_into().unwrap(), message).to_be_bytes();
            octets[42..44].copy_from_slice(&sum);
            parse(&octets).is_ok_and(|message| message.is_some())
        };
        assert_eq!(cases.map(is_read), expected);
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_octets_never_panics(
            mut octets in prop::collection::vec(any::<u8>(), 0..120),
            kind in 135_u8..137,
        ) {
            let _any = parse(&octets);
            if let Some(header) = octets.get_mut(..41) {
                (header[0], header[6], header[40]) = (0x60, 58, kind);
            }
            let _any = parse(&octets);
        }
    }
}
