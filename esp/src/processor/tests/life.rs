//! The life of associations: asked for, added, rekeyed, ended, removed.

use super::*;
use crate::lifetime::Limit;
use crate::limits::{ACQUIRE_NS, WAITING_MAX};

fn outbound(pair: &mut Pair, now_ns: u64, packet: &[u8]) -> Outbound {
    let (mut buffer, at) = buffer(packet);
    pair.sender.outbound(now_ns, &mut buffer, at)
}

/// Packets wait for the association that they ask for.
#[test]
fn packets_wait_for_their_association() {
    let mut pair = Pair::new(Mode::Transport, false, Config::default());
    let packets: Vec<_> = (4..10).map(tcp).collect();
    for packet in &packets {
        assert_eq!(outbound(&mut pair, 0, packet), Outbound::Waits);
    }
    let events = events(&mut pair.sender);
    let [Event::Acquire { purpose, flow, selector }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*purpose, transport().purpose());
    assert_eq!((flow.ports, selector.protocol), (Some((1, 515)), Some(TCP)));
    assert_eq!(poll(&mut pair.sender, 0), None);
    pair.add(1, &transport());
    for packet in &packets {
        let sealed = poll(&mut pair.sender, 1).unwrap();
        assert_eq!(pair.open(1, &sealed).as_ref(), Ok(packet));
    }
    assert_eq!(poll(&mut pair.sender, 1), None);
    assert_eq!(pair.sender.counters().waited, 6);
}

#[test]
fn packets_do_not_wait_for_ever() {
    let mut pair = Pair::new(Mode::Tunnel, false, Config::default());
    for _ in 0..=WAITING_MAX {
        assert_eq!(outbound(&mut pair, 5, &tcp(4)), Outbound::Waits);
    }
    let dropped = |pair: &Pair, reason| pair.sender.counters().dropped(reason);
    assert_eq!(dropped(&pair, DropReason::WaitingFull), 1);
    assert_eq!(events(&mut pair.sender).len(), 1);
    assert_eq!(pair.sender.poll_timeout(), Some(5 + ACQUIRE_NS));
    pair.sender.handle_timeout(4 + ACQUIRE_NS);
    assert_eq!(dropped(&pair, DropReason::NoAssociation), 0);
    pair.sender.handle_timeout(5 + ACQUIRE_NS);
    assert_eq!(dropped(&pair, DropReason::NoAssociation), WAITING_MAX as u64);
    assert_eq!(pair.sender.poll_timeout(), None);
    assert_eq!(outbound(&mut pair, 5 + ACQUIRE_NS, &tcp(4)), Outbound::Waits);
    assert_eq!(events(&mut pair.sender).len(), 1, "it is asked for again");
}

/// During a rekeying packets under both associations pass; the newest one is used.
#[test]
fn rekeying_loses_nothing() {
    let mut pair = Pair::with(&transport());
    let mut in_flight = Vec::new();
    for round in 1..20 {
        in_flight.extend((0..10).map(|_| pair.seal(round, &tcp(30))));
        let next = Association { spi: SPI + u32::try_from(round).unwrap(), ..transport() };
        // The receiver adds its association first (RFC 7296 §2.8).
        pair.receiver.add_inbound(round, &next).unwrap();
        in_flight.extend((0..10).map(|_| pair.seal(round, &tcp(30))));
        pair.sender.add_outbound(round, &next).unwrap();
        in_flight.push(pair.seal(round, &tcp(30)));
        assert_eq!(in_flight[in_flight.len() - 1][20..24], next.spi.to_be_bytes());
        assert!(pair.sender.remove_outbound(next.spi - 1, hosts(false)[1]));
        in_flight.drain(..).rev().for_each(|sealed| drop(pair.open(round, &sealed).unwrap()));
        assert!(pair.receiver.remove_inbound(next.spi - 1));
    }
    assert_eq!(pair.receiver.status(Direction::In).len(), 1);
}

#[test]
fn a_deleted_association_is_acquired_again() {
    let mut pair = Pair::with(&transport());
    let sealed = pair.seal(0, &tcp(4));
    assert!(!pair.sender.remove_outbound(SPI, hosts(false)[0]));
    assert!(pair.sender.remove_outbound(SPI, hosts(false)[1]));
    assert_eq!(outbound(&mut pair, 0, &tcp(5)), Outbound::Waits);
    assert!(matches!(events(&mut pair.sender)[..], [Event::Acquire { .. }]));
    assert!(pair.open(0, &sealed).is_ok(), "the receiver's end still exists");
    pair.receiver.remove_inbound(SPI);
    assert_eq!(pair.open(0, &sealed), Err(DropReason::NoAssociation));
    pair.add(0, &transport());
    let sealed = poll(&mut pair.sender, 0).unwrap();
    assert_eq!(pair.open(0, &sealed), Ok(tcp(5)));
}

#[test]
fn limits_of_bytes_and_packets_end_an_association() {
    let limit = |soft, hard| Limit { soft, hard };
    let by_packets = Lifetime { packets: limit(3, 5), ..Lifetime::default() };
    let by_bytes = Lifetime { bytes: limit(300, 500), ..Lifetime::default() };
    for lifetime in [by_packets, by_bytes] {
        let association = Association { lifetime, ..transport() };
        let purpose = association.purpose();
        let mut pair = Pair::with(&association);
        for number in 1..=5 {
            pair.seal(0, &tcp(80));
            assert_eq!(events(&mut pair.sender).len(), usize::from(number == 3));
        }
        assert_eq!(outbound(&mut pair, 0, &tcp(80)), Outbound::Waits);
        let hard = Event::Expire { direction: Direction::Out, spi: SPI, purpose, hard: true };
        assert_eq!(events(&mut pair.sender)[0], hard);
    }
    // The receiver's end: another sender goes on.
    let limited = Association { lifetime: by_packets, ..transport() };
    let mut pair = Pair::new(Mode::Transport, false, Config::default());
    pair.sender.add_outbound(0, &transport()).unwrap();
    pair.receiver.add_inbound(0, &limited).unwrap();
    let results: Vec<_> = (0..7)
        .map(|_| {
            let sealed = pair.seal(0, &tcp(80));
            pair.open(0, &sealed).err()
        })
        .collect();
    assert_eq!(results[..5], [None; 5]);
    let ended = [DropReason::LifetimeEnded, DropReason::NoAssociation].map(Some);
    assert_eq!(results[5..], ended);
    let hard: Vec<_> = events(&mut pair.receiver)
        .into_iter()
        .map(|event| matches!(event, Event::Expire { hard: true, .. }))
        .collect();
    assert_eq!(hard, [false, true]);
}

/// A limit counts authenticated packets only: a forged one, however long, ends nothing.
#[test]
fn a_forged_packet_does_not_end_an_association() {
    let lifetime = Lifetime { bytes: Limit { soft: u64::MAX, hard: 2000 }, ..Lifetime::default() };
    let mut pair = Pair::with(&Association { lifetime, ..transport() });
    let mut forged = pair.seal(0, &tcp(1500));
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let sealed = pair.seal(0, &tcp(100));
    assert!(pair.open(0, &sealed).is_ok());
    for _ in 0..10 {
        assert_eq!(pair.open(0, &forged), Err(DropReason::BadIcv));
    }
    pair.receiver.add_inbound(0, &Association { spi: SPI + 1, lifetime, ..transport() }).unwrap();
    let long = Association { spi: SPI + 1, ..transport() };
    let mut other = Pair::with(&long);
    let mut forged = other.seal(0, &tcp(3000));
    forged[40] ^= 1;
    assert_eq!(pair.open(0, &forged), Err(DropReason::BadIcv));
    let sealed = other.seal(0, &tcp(100));
    assert!(pair.open(0, &sealed).is_ok());
    assert_eq!(pair.receiver.status(Direction::In).len(), 2);
}

#[test]
fn a_limit_of_time_is_a_timer() {
    let time_ns = Limit { soft: 100, hard: 150 };
    let lifetime = Lifetime { time_ns, ..Lifetime::default() };
    let mut pair = Pair::with(&Association { lifetime, ..transport() });
    for esp in [&mut pair.sender, &mut pair.receiver] {
        assert_eq!(esp.poll_timeout(), Some(100));
        esp.handle_timeout(99);
        assert_eq!(events(esp), []);
        esp.handle_timeout(100);
        assert!(matches!(events(esp)[..], [Event::Expire { hard: false, .. }]));
        assert_eq!(esp.poll_timeout(), Some(150));
        esp.handle_timeout(120);
        assert_eq!(events(esp), []);
    }
    let sealed = pair.seal(149, &tcp(4));
    assert!(pair.open(149, &sealed).is_ok());
    for esp in [&mut pair.sender, &mut pair.receiver] {
        esp.handle_timeout(150);
        assert!(matches!(events(esp)[..], [Event::Expire { hard: true, .. }]));
        assert_eq!(esp.poll_timeout(), None);
        assert!(esp.status(Direction::In).is_empty() && esp.status(Direction::Out).is_empty());
    }
    // Also without a timer no packet is sent too late.
    let mut pair = Pair::with(&Association { lifetime, ..transport() });
    assert_eq!(outbound(&mut pair, 150, &tcp(4)), Outbound::Waits);
}

/// An older association is used for what the newest is not for.
#[test]
fn an_association_is_used_only_for_its_selector() {
    let any = policy(Direction::Out, TCP, Action::Discard).selector;
    let narrow = Selector { destination_ports: Some(1..=2), ..any };
    let mut pair = Pair::with(&transport());
    let newer = Association { spi: SPI + 1, selector: Some(narrow), ..transport() };
    pair.add(0, &newer);
    let mut packet = tcp(4);
    assert_eq!(pair.seal(0, &packet)[20..24], SPI.to_be_bytes());
    packet[22..24].copy_from_slice(&[0, 1]);
    assert_eq!(pair.seal(0, &packet)[20..24], newer.spi.to_be_bytes());
}
