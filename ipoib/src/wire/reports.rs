//! Reports of IGMP (RFC 1112, RFC 2236, RFC 3376) and MLD (RFC 2710, RFC 3810): the IP groups that
//! a host joins and leaves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{head, take};

/// Change of a host's membership in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The host receives the group, from some sources at least.
    Joins(IpAddr),
    /// The host stops receiving the group.
    Leaves(IpAddr),
}

const IGMP: u8 = 2;
const HOP_BY_HOP: u8 = 0;
const ICMPV6: u8 = 58;

/// Returns true if a datagram that begins with these bytes may be a report.
#[must_use]
pub fn may_be_report(start: &[u8]) -> bool {
    match start {
        [version, _, _, _, _, _, _, _, _, protocol, ..] if version >> 4 == 4 => *protocol == IGMP,
        // RFC 2710 §3: with a Router Alert option.
        [version, _, _, _, _, _, next, ..] if version >> 4 == 6 => *next == HOP_BY_HOP,
        _ => false,
    }
}

/// Returns the source of a datagram.
#[must_use]
pub fn source(datagram: &[u8]) -> Option<IpAddr> {
    match datagram.first()? >> 4 {
        4 => {
            let [.., a, b, c, d, _, _, _, _] = *datagram.first_chunk::<20>()?;
            Some(Ipv4Addr::new(a, b, c, d).into())
        }
        6 => {
            let source: [u8; 16] = *datagram.get(8..)?.first_chunk()?;
            Some(Ipv6Addr::from(source).into())
        }
        _ => None,
    }
}

/// Hands the changes that a datagram reports to `each`, up to the end of a truncated report.
pub fn changes(datagram: &[u8], each: &mut dyn FnMut(Change)) {
    match datagram.first().map(|octet| octet >> 4) {
        Some(4) => igmp(datagram, each),
        Some(6) => mld(datagram, each),
        _ => {}
    }
}

fn igmp(datagram: &[u8], each: &mut dyn FnMut(Change)) {
    let Ok(header) = head::<20>(datagram) else { return };
    let [first, _, _, _, _, _, _, _, _, protocol, ..] = *header;
    let Some(message) = datagram.get(usize::from(first & 15).saturating_mul(4)..) else { return };
    let Ok([kind, _, _, _, a, b, c, d]) = head::<8>(message).copied() else { return };
    if protocol != IGMP {
        return;
    }
    let group = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    match kind {
        // Reports of versions 1 and 2.
        0x12 | 0x16 => each(Change::Joins(group)),
        0x17 => each(Change::Leaves(group)),
        0x22 => {
            let records = u16::from_be_bytes([c, d]);
            let address = |octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets));
            self::records(message, records, address, each);
        }
        _ => {}
    }
}

fn mld(datagram: &[u8], each: &mut dyn FnMut(Change)) {
    let Some((header, rest)) = datagram.split_first_chunk::<40>() else { return };
    let Ok([next, len, ..]) = head::<8>(rest).copied() else { return };
    let [_, _, _, _, _, _, first, ..] = *header;
    if first != HOP_BY_HOP || next != ICMPV6 {
        return;
    }
    let extension_len = usize::from(len).saturating_add(1).saturating_mul(8);
    let Some(message) = rest.get(extension_len..) else { return };
    let Ok([kind, _, _, _, _, _, c, d]) = head::<8>(message).copied() else { return };
    let address = |octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets));
    let mut body = message.get(8..).unwrap_or_default();
    match kind {
        131 => take(&mut body).map_or((), |group| each(Change::Joins(address(group)))),
        132 => take(&mut body).map_or((), |group| each(Change::Leaves(address(group)))),
        143 => records(message, u16::from_be_bytes([c, d]), address, each),
        _ => {}
    }
}

/// IGMPv3 (RFC 3376 §4.2) or MLDv2 (RFC 3810 §5.2), whose addresses have `N` bytes.
fn records<const N: usize>(
    message: &[u8],
    count: u16,
    address: impl Fn([u8; N]) -> IpAddr,
    each: &mut dyn FnMut(Change),
) {
    let mut rest = message.get(8..).unwrap_or_default();
    for _ in 0..count {
        let Ok([kind, auxiliary, a, b]) = take::<4>(&mut rest) else { return };
        let Ok(group) = take::<N>(&mut rest) else { return };
        let sources = usize::from(u16::from_be_bytes([a, b]));
        let skipped = sources.saturating_mul(N).saturating_add(usize::from(auxiliary) * 4);
        let Some(next) = rest.get(skipped..) else { return };
        rest = next;
        match (kind, sources) {
            // Including no source means leaving.
            (1 | 3, 0) => each(Change::Leaves(address(group))),
            // Including some sources, excluding some, or allowing new ones.
            (1..=5, _) => each(Change::Joins(address(group))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;
    use proptest::prelude::*;

    use super::*;

    fn read(datagram: &[u8]) -> Vec<Change> {
        let mut all = Vec::new();
        changes(datagram, &mut |change| all.push(change));
        all
    }

    fn igmp_of(message: &[u8]) -> Vec<u8> {
        let head = hex!("46c00020 00004000 01020000 0a000001 e0000016 94040000");
        [&head[..], message].concat()
    }

    fn mld_of(message: &[u8]) -> Vec<u8> {
        let mut head = vec![0x60, 0, 0, 0, 0, 0, HOP_BY_HOP, 1];
        head.resize(40, 0);
        [&head[..], &hex!("3a00050200000100"), message].concat()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn reports_of_all_versions_tell_what_is_joined_and_left() {
        let group = ip("239.1.2.3");
        for (message, change) in [
            (&hex!("12000000ef010203")[..], Some(Change::Joins(group))),
            (&hex!("16000000ef010203"), Some(Change::Joins(group))),
            (&hex!("17000000ef010203"), Some(Change::Leaves(group))),
            (&hex!("11640000ef010203"), None),
            (&hex!("2200000000000001 04000000ef010203"), Some(Change::Joins(group))),
            (&hex!("2200000000000001 03000000ef010203"), Some(Change::Leaves(group))),
            (&hex!("2200000000000001 03000001ef0102030a000001"), Some(Change::Joins(group))),
            (&hex!("2200000000000001 06000001ef0102030a000001"), None),
            (&hex!("2200000000000001 06000001ef010203"), None),
        ] {
            assert!(may_be_report(&igmp_of(message)));
            assert_eq!(read(&igmp_of(message)), Vec::from_iter(change), "{message:02x?}");
        }
        let group = ip("ff15::1:3");
        let octets = hex!("ff150000000000000000000000010003");
        for (head, change) in [
            (&hex!("8300000000000000")[..], Some(Change::Joins(group))),
            (&hex!("8400000000000000"), Some(Change::Leaves(group))),
            (&hex!("8200000000000000"), None),
            (&hex!("8f00000000000001 04000000"), Some(Change::Joins(group))),
            (&hex!("8f00000000000001 03000000"), Some(Change::Leaves(group))),
        ] {
            let message = [head, &octets].concat();
            assert!(may_be_report(&mld_of(&message)));
            assert_eq!(read(&mld_of(&message)), Vec::from_iter(change), "{message:02x?}");
        }
    }

    #[test]
    fn several_records_are_read_past_their_sources_and_auxiliary_data() {
        let message = hex!(
            "2200000000000002" "01010001ef0102030a000001ffffffff" "03000000ef010204");
        let expected = [Change::Joins(ip("239.1.2.3")), Change::Leaves(ip("239.1.2.4"))];
        assert_eq!(read(&igmp_of(&message)), expected);
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_octets_never_panics(
            octets in prop::collection::vec(any::<u8>(), 0..120),
            kind in prop::sample::select(vec![0x12_u8, 0x16, 0x17, 0x22, 131, 132, 143]),
        ) {
            let _any = read(&octets);
            for mut datagram in [igmp_of(&octets), mld_of(&octets)] {
                let at = if datagram[0] >> 4 == 4 { 24 } else { 48 };
                if let Some(octet) = datagram.get_mut(at) {
                    *octet = kind;
                }
                let _any = read(&datagram);
                datagram[0] ^= 0x0f;
                let _any = read(&datagram);
            }
        }
    }
}
