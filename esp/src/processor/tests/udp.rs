//! ESP in UDP (RFC 3948).

use super::*;
use crate::limits::KEEPALIVE_NS;
use crate::wire::udp::{PORT, Ports};

const PORTS: Ports = Ports { source: 4500, destination: PORT };

fn in_udp(mode: Mode, is_ipv6: bool) -> (Association, Pair) {
    let [source, destination] = hosts(is_ipv6);
    let association = association(mode, gcm());
    let association = Association { source, destination, udp: Some(PORTS), ..association };
    let config = Config { udp_port: Some(PORT), ..Config::default() };
    let mut pair = Pair::new(mode, is_ipv6, config);
    pair.add(0, &association);
    (association, pair)
}

#[test]
fn esp_passes_in_udp_in_each_form() {
    for mode in [Mode::Transport, Mode::Tunnel] {
        for is_ipv6 in [false, true] {
            let (association, mut pair) = in_udp(mode, is_ipv6);
            for len in (0..100).chain(1400..1450) {
                let packet = packet(is_ipv6, TCP, len);
                let sealed = pair.seal(0, &packet);
                let header_len = packet.len() - len;
                let expected = association.overhead().sealed_len(packet.len(), header_len);
                assert_eq!(sealed.len(), expected);
                let header = Header::parse(&sealed).unwrap();
                assert_eq!((header.next_header, header.flow.ports), (17, Some((4500, 4500))));
                assert_eq!(pair.open(0, &sealed), Ok(packet));
            }
        }
    }
}

#[test]
fn over_ipv6_the_udp_checksum_is_right() {
    let (_, mut pair) = in_udp(Mode::Transport, true);
    let sealed = pair.seal(0, &packet(true, TCP, 33));
    let datagram = &sealed[40..];
    let len = u16::try_from(datagram.len()).unwrap().to_be_bytes();
    assert_ne!(datagram[6..8], [0, 0]);
    assert_eq!(crate::wire::checksum(&[&sealed[8..40], &[0, 17], &len, datagram]), 0);
}

#[test]
fn an_association_takes_esp_only_in_its_form() {
    let (association, mut pair) = in_udp(Mode::Transport, false);
    let sealed = pair.seal(0, &tcp(20));
    pair.receiver.remove_inbound(SPI);
    pair.receiver.add_inbound(0, &Association { udp: None, ..association.clone() }).unwrap();
    assert_eq!(pair.open(0, &sealed), Err(DropReason::WrongForm));
    let (_, mut pair) = in_udp(Mode::Transport, false);
    let plain = Association { udp: None, ..association };
    let mut other = Pair::with(&plain);
    let sealed = other.seal(0, &tcp(20));
    assert_eq!(pair.open(0, &sealed), Err(DropReason::WrongForm));
}

#[test]
fn a_source_that_a_nat_changes_is_accepted() {
    let (_, mut pair) = in_udp(Mode::Tunnel, false);
    let mut sealed = pair.seal(0, &tcp(20));
    sealed[12..16].copy_from_slice(&[192, 0, 2, 1]);
    sealed[20..22].copy_from_slice(&[77, 77]);
    assert_eq!(pair.open(0, &sealed), Ok(tcp(20)));
}

#[test]
fn ike_is_distinguished_by_its_marker() {
    let (_, mut pair) = in_udp(Mode::Transport, false);
    let mut datagram = packet(false, 17, 40);
    datagram[20..28].copy_from_slice(&[1, 2, 17, 148, 0, 40, 0, 0]);
    datagram[28..32].fill(0);
    let mut inbound = |packet: &[u8]| pair.receiver.inbound(0, packet, &mut pair.room);
    assert_eq!(inbound(&datagram), Inbound::Ike);
    datagram[31] = 9;
    assert_eq!(inbound(&datagram), Inbound::Dropped(DropReason::NoAssociation));
    datagram[25] = 41;
    assert_eq!(inbound(&datagram), Inbound::Dropped(DropReason::Malformed));
    datagram[25] = 40;
    datagram[23] = 0;
    assert_eq!(inbound(&datagram), Inbound::Dropped(DropReason::Policy), "another port");
}

/// RFC 3948 §4: a keepalive is sent if nothing else was.
#[test]
fn keepalives_are_sent_in_silence() {
    for is_ipv6 in [false, true] {
        let (_, mut pair) = in_udp(Mode::Transport, is_ipv6);
        assert_eq!(pair.sender.poll_timeout(), Some(KEEPALIVE_NS));
        pair.seal(5, &packet(is_ipv6, TCP, 4));
        pair.sender.handle_timeout(KEEPALIVE_NS);
        assert_eq!(poll(&mut pair.sender, KEEPALIVE_NS), None);
        let mut now_ns = KEEPALIVE_NS + 5;
        for _ in 0..3 {
            assert_eq!(pair.sender.poll_timeout(), Some(now_ns));
            pair.sender.handle_timeout(now_ns);
            let keepalive = poll(&mut pair.sender, now_ns).unwrap();
            assert_eq!(keepalive.len(), if is_ipv6 { 49 } else { 29 });
            assert_eq!(poll(&mut pair.sender, now_ns), None);
            let result = pair.receiver.inbound(now_ns, &keepalive, &mut pair.room);
            assert_eq!(result, Inbound::KeepAlive);
            now_ns += KEEPALIVE_NS;
        }
        assert_eq!(pair.receiver.counters().keepalives, 3);
        assert_eq!(pair.sender.counters().sealed.packets, 1);
    }
}
