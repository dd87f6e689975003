use hex_literal::hex;

use super::*;

fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; IPV4_LEN];
    packet.extend(payload);
    let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    write_outer(&mut packet, ends, protocol, 0);
    write_u16(&mut packet, 6, fragment);
    packet
}

fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; IPV6_LEN];
    packet.extend(payload);
    let ends = ["fd00::1", "fd00::2"].map(|address| address.parse::<IpAddr>().unwrap());
    write_outer(&mut packet, (ends[0], ends[1]), next_header, 0xab);
    packet
}

const PORTS: [u8; 4] = [0, 80, 1, 0];

#[test]
fn ports_are_read_where_they_are() {
    let ports = |packet: &[u8]| Header::parse(packet).unwrap().flow.ports;
    assert_eq!(ports(&ipv4(6, 0, &PORTS)), Some((80, 256)));
    assert_eq!(ports(&ipv4(6, 0, &PORTS[..3])), None);
    assert_eq!(ports(&ipv4(1, 0, &PORTS)), None);
    // The first fragment has ports, a later one has none.
    assert_eq!(ports(&ipv4(6, 0x2000, &PORTS)), Some((80, 256)));
    assert_eq!(ports(&ipv4(6, 1, &PORTS)), None);
    assert_eq!(ports(&ipv6(17, &PORTS)), Some((80, 256)));
    let first = [[6, 0, 0, 1, 0, 0, 0, 0].as_slice(), &PORTS].concat();
    assert_eq!(ports(&ipv6(44, &first)), Some((80, 256)));
    let later = [[6, 0, 0, 8, 0, 0, 0, 0].as_slice(), &PORTS].concat();
    assert_eq!(ports(&ipv6(44, &later)), None);
}

#[test]
fn esp_is_behind_the_headers_for_each_hop() {
    let extensions =
        hex!("2b 00 00 00 00 00 00 00  3c 00 00 00 00 00 00 00  06 00 00 00 00 00 00 00");
    let packet = ipv6(0, &[&extensions[..], &PORTS].concat());
    let header = Header::parse(&packet).unwrap();
    assert_eq!((header.payload_at, header.next_header, header.next_header_at), (56, 60, 48));
    assert_eq!((header.flow.protocol, header.flow.ports), (6, Some((80, 256))));
    assert!(!header.is_fragment);
}

#[test]
fn damaged_headers_are_refused() {
    let good = ipv4(6, 0, &PORTS);
    assert!(Header::parse(&good).is_some());
    let cut = |len| Header::parse(&good[..len]);
    assert!((0..good.len()).all(|len| cut(len).is_none()));
    for (at, byte) in [(0, 0x44), (0, 0x4f), (0, 0x55), (3, 19), (3, 25)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(Header::parse(&bad), None, "{at} {byte}");
    }
    let good = ipv6(60, &hex!("06 00 00 00 00 00 00 00"));
    assert!(Header::parse(&good).is_some());
    let cut = |len| Header::parse(&good[..len]);
    assert!((0..good.len()).all(|len| cut(len).is_none()));
    let mut bad = good.clone();
    bad[41] = 1;
    assert_eq!(Header::parse(&bad), None, "its extension header is too long");
}

#[test]
fn padding_of_the_link_is_not_of_the_packet() {
    let mut packet = ipv4(6, 0, &PORTS);
    packet.extend([0; 22]);
    assert_eq!(Header::parse(&packet).unwrap().len, 24);
}

#[test]
fn outer_headers_are_complete() {
    let packet = ipv4(50, 0x4000, &[1, 2, 3]);
    assert_eq!(packet[..12], hex!("45 00 00 17 00 00 40 00 40 32 26 b3"));
    assert_eq!(checksum(&[&packet[..20]]), 0);
    let packet = ipv6(50, &[1, 2, 3]);
    assert_eq!(packet[..8], hex!("6a b0 00 00 00 03 32 40"));
    assert_eq!(traffic_class(&packet), 0xab);
}

/// RFC 6040 §4.2: the table of decapsulation, as far as it changes anything.
#[test]
fn congestion_is_transferred_to_the_packet_inside() {
    for (inner_ecn, outer_ecn, expected) in [
        (0, 0, Some(0)),
        (0, 1, Some(0)),
        (0, 2, Some(0)),
        (0, 3, None),
        (1, 3, Some(3)),
        (2, 3, Some(3)),
        (3, 3, Some(3)),
        (2, 0, Some(2)),
        (3, 0, Some(3)),
    ] {
        let mut inner = [ipv4(6, 0x4000, &PORTS), ipv6(6, &PORTS)];
        for packet in &mut inner {
            let at_v6 = packet[0] >> 4 == 6;
            packet[1] = if at_v6 { packet[1] & 0xcf | inner_ecn << 4 } else { inner_ecn };
            let header = Header::parse(packet).unwrap();
            if !at_v6 {
                write_ipv4_checksum(&mut packet[..20]);
            }
            let passes = transfer_congestion(0xf0 | outer_ecn, packet, &header);
            assert_eq!(passes, expected.is_some(), "{inner_ecn} {outer_ecn}");
            if let Some(expected) = expected {
                assert_eq!(traffic_class(packet) & 3, expected);
                assert!(at_v6 || checksum(&[&packet[..20]]) == 0);
            }
        }
    }
}
