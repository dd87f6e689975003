//! Packets that are dropped: each reason has its counter, and nothing else changes.

use super::*;
use crate::wire::write_u16;

fn inbound(pair: &mut Pair, packet: &[u8]) -> Inbound {
    let before: u64 = pair.receiver.counters().drops().map(|(_, count)| count).sum();
    let result = pair.receiver.inbound(0, packet, &mut pair.room);
    if let Inbound::Dropped(_) = result {
        let after: u64 = pair.receiver.counters().drops().map(|(_, count)| count).sum();
        assert_eq!(after, before + 1);
    }
    result
}

const fn dropped(reason: DropReason) -> Inbound {
    Inbound::Dropped(reason)
}

/// Protected traffic in clear is dropped, a RST as well.
#[test]
fn cleartext_of_protected_traffic_is_dropped() {
    let mut pair = Pair::with(&transport());
    assert_eq!(inbound(&mut pair, &tcp(20)), dropped(DropReason::Cleartext));
    let mut later = tcp(20);
    write_u16(&mut later, 6, 5);
    assert_eq!(inbound(&mut pair, &later), dropped(DropReason::Cleartext), "a later fragment");
    assert_eq!(inbound(&mut pair, &packet(false, 17, 20)), dropped(DropReason::Policy));
    let udp = policy(Direction::In, 17, Action::Bypass);
    pair.receiver.add_policy(udp).unwrap();
    assert_eq!(inbound(&mut pair, &packet(false, 17, 20)), Inbound::Clear);
    assert_eq!(pair.receiver.counters().bypassed_in, 1);
}

/// An ICMP error to the sender about a packet that it sent.
fn icmp_error(kind: u8, code: u8, rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let [to, _] = hosts(false);
    let mut packet = vec![0; 20];
    packet.extend([kind, code, 0, 0]);
    packet.extend(rest);
    packet.extend(quoted);
    ip::write_outer(&mut packet, ([10, 0, 0, 9].into(), to), 1, 0);
    packet
}

#[test]
fn icmp_errors_in_clear_tell_only_of_esp() {
    let mut pair = Pair::with(&transport());
    pair.sender.add_policy(policy(Direction::In, 1, Action::Bypass)).unwrap();
    let sealed = pair.seal(0, &tcp(1000));
    let purpose = transport().purpose();
    let mut inbound = |packet: &[u8]| pair.sender.inbound(0, packet, &mut pair.room);
    let too_big = |quoted: &[u8]| icmp_error(3, 4, [0, 0, 5, 0], quoted);
    let report = Inbound::TooBig { purpose, mtu: 1280 };
    assert_eq!(inbound(&too_big(&sealed[..28])), report);
    assert_eq!(inbound(&too_big(&sealed)), report);
    assert_eq!(inbound(&too_big(&sealed[..27])), Inbound::Clear, "it does not show the number");
    let mut forged = sealed.clone();
    forged[27] = 2;
    assert_eq!(inbound(&too_big(&forged)), Inbound::Clear, "a number that was not used");
    forged[23] = 2;
    assert_eq!(inbound(&too_big(&forged)), Inbound::Clear, "an unknown SPI");
    // About the packet inside, which no router has seen.
    for (kind, code) in [(3, 4), (3, 1), (11, 0), (12, 0)] {
        let error = icmp_error(kind, code, [0, 0, 5, 0], &tcp(8));
        assert_eq!(inbound(&error), dropped(DropReason::Cleartext), "{kind}");
    }
    assert_eq!(inbound(&icmp_error(3, 1, [0; 4], &packet(false, 17, 8))), Inbound::Clear);
    assert_eq!(inbound(&icmp_error(8, 0, [0; 4], &tcp(8))), Inbound::Clear, "an echo request");
}

#[test]
fn esp_without_an_association_is_dropped() {
    let mut pair = Pair::with(&transport());
    let sealed = pair.seal(0, &tcp(20));
    let mut other = sealed.clone();
    other[23] ^= 1;
    assert_eq!(inbound(&mut pair, &other), dropped(DropReason::NoAssociation));
    pair.receiver.reserve_spi(0x1000).unwrap();
    assert_eq!(inbound(&mut pair, &other), dropped(DropReason::NoAssociation), "only reserved");
    let mut fragment = sealed.clone();
    write_u16(&mut fragment, 6, 0x2000);
    assert_eq!(inbound(&mut pair, &fragment), dropped(DropReason::Fragment));
    let mut elsewhere = sealed.clone();
    elsewhere[19] = 3;
    assert_eq!(inbound(&mut pair, &elsewhere), dropped(DropReason::WrongForm));
    elsewhere.clone_from(&sealed);
    elsewhere[15] = 3;
    assert_eq!(inbound(&mut pair, &elsewhere), dropped(DropReason::WrongForm));
    assert_eq!(inbound(&mut pair, &sealed), Inbound::Opened(40));
}

#[test]
fn lengths_that_cannot_be_are_malformed() {
    let mut pair = Pair::with(&transport());
    let sealed = pair.seal(0, &tcp(20));
    for len in 20..sealed.len() {
        let mut cut = sealed[..len].to_vec();
        write_u16(&mut cut, 2, u16::try_from(len).unwrap());
        // The lengths are right, the contents are not.
        let is_possible = len >= 20 + 8 + 8 + 4 + 16 && len % 4 == 0;
        let reason = if is_possible { DropReason::BadIcv } else { DropReason::Malformed };
        assert_eq!(inbound(&mut pair, &cut), dropped(reason), "{len}");
    }
}

/// RFC 4301 §5.2, step 4: an association is only for the packets of its selector and its policy.
// spec: SEC-I-3
#[test]
fn a_packet_of_another_selector_is_dropped() {
    let narrow = Selector {
        destination_ports: Some(515..=515),
        ..policy(Direction::In, TCP, Action::Discard).selector
    };
    let mut pair = Pair::new(Mode::Transport, false, Config::default());
    pair.sender.add_outbound(0, &transport()).unwrap();
    let association = Association { selector: Some(narrow), ..transport() };
    pair.receiver.add_inbound(0, &association).unwrap();
    let right = [&tcp(0)[..], &[0, 1, 2, 3, 4]].concat();
    for (payload_at_port, reason) in [(false, Some(DropReason::WrongSelector)), (true, None)] {
        let mut packet = tcp(5);
        if payload_at_port {
            packet = right.clone();
            write_u16(&mut packet, 2, 25);
        }
        packet[22..24].copy_from_slice(if payload_at_port { &[2, 3] } else { &[9, 9] });
        let sealed = pair.seal(0, &packet);
        assert_eq!(pair.open(0, &sealed).err(), reason);
    }
    // A policy with another number.
    let mut pair = Pair::new(Mode::Transport, false, Config::default());
    pair.sender.add_outbound(0, &transport()).unwrap();
    pair.receiver.add_inbound(0, &Association { request: 8, ..transport() }).unwrap();
    let sealed = pair.seal(0, &tcp(20));
    assert_eq!(pair.open(0, &sealed), Err(DropReason::WrongSelector));
}

/// Seals a text as it is, as a peer might.
fn seal_raw(association: &Association, plain: &[u8], class: u8) -> Vec<u8> {
    let overhead = association.overhead();
    let mut packet = vec![0; 20 + 16 + plain.len() + overhead.lengths.icv];
    packet[36..36 + plain.len()].copy_from_slice(plain);
    crate::wire::esp::write_header(&mut packet[20..], association.spi, 1);
    let mut transform = association.keying.transform().unwrap();
    let sequence = crate::crypto::Sequence { number: 1, is_extended: true };
    transform.seal(sequence, &mut packet[20..]).unwrap();
    ip::write_outer(&mut packet, (association.source, association.destination), 50, class);
    packet
}

#[test]
fn a_peer_that_seals_nonsense_is_refused() {
    let tunnel = association(Mode::Tunnel, gcm());
    let inner = tcp(18);
    let with = |trailer: &[u8]| [&inner[..], trailer].concat();
    let open = |association: &Association, plain: &[u8], class: u8| {
        let sealed = seal_raw(association, plain, class);
        Pair::with(association).open(0, &sealed)
    };
    assert_eq!(open(&tunnel, &with(&[0, 4]), 0), Ok(inner.clone()));
    // Padding of traffic-flow confidentiality (RFC 4303 §2.7).
    assert_eq!(open(&tunnel, &with(&[9, 9, 9, 9, 0, 4]), 0), Ok(inner.clone()));
    for (trailer, reason) in [
        (&[7, 7, 7, 1, 2, 4][..], DropReason::BadTrailer),
        (&[0, 41], DropReason::BadTrailer),
        (&[0, 6], DropReason::BadTrailer),
        (&[255, 4], DropReason::BadTrailer),
        (&[0, 59], DropReason::Dummy),
    ] {
        assert_eq!(open(&tunnel, &with(trailer), 0), Err(reason), "{trailer:?}");
    }
    assert_eq!(open(&tunnel, &[&inner[..18], &[0, 4]].concat(), 0), Err(DropReason::BadTrailer));
    // Congestion, but the packet inside is not ECN-capable (RFC 6040 §4.2).
    assert_eq!(open(&tunnel, &with(&[0, 4]), 3), Err(DropReason::Congestion));
    assert_eq!(open(&transport(), &[0, 1, 0, 59], 0), Err(DropReason::Dummy));
    assert!(open(&transport(), &[0, 1, 0, 6], 0).is_ok());
}

#[test]
fn packets_to_send_follow_the_policies() {
    let mut pair = Pair::with(&transport());
    let mut outbound = |packet: &[u8]| {
        let (mut buffer, at) = buffer(packet);
        pair.sender.outbound(0, &mut buffer, at)
    };
    assert_eq!(outbound(&packet(false, 17, 20)), Outbound::Dropped(DropReason::Policy));
    let mut fragment = tcp(20);
    write_u16(&mut fragment, 6, 0x2000);
    assert_eq!(outbound(&fragment), Outbound::Dropped(DropReason::Fragment));
    let mut damaged = tcp(20);
    damaged[0] = 0x44;
    assert_eq!(outbound(&damaged), Outbound::Dropped(DropReason::Malformed));
    pair.sender.add_policy(policy(Direction::Out, 17, Action::Bypass)).unwrap();
    let (mut buffer, at) = buffer(&packet(false, 17, 20));
    assert_eq!(pair.sender.outbound(0, &mut buffer, at), Outbound::Clear);
    assert_eq!(pair.sender.counters().bypassed_out, 1);
}
