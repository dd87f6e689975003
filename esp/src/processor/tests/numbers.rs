//! Sequence numbers: replays, order, the cycle of 2^32, and the end of the counter.

use proptest::prelude::*;

use super::*;

/// Numbers after which the tests begin.
fn skip_to(pair: &mut Pair, number: u64) {
    pair.sender.outbound.values_mut().flatten().for_each(|sealer| sealer.skip_to(number));
    pair.receiver.inbound.values_mut().for_each(|opener| opener.skip_to(number));
}

// spec: SEC-I-3
#[test]
fn a_replay_is_dropped_and_a_late_packet_is_not() {
    for extended_numbers in [false, true] {
        let association = Association { extended_numbers, ..transport() };
        let mut pair = Pair::with(&association);
        let sealed: Vec<_> = (0..1500).map(|len| pair.seal(0, &tcp(len % 50))).collect();
        assert!(pair.open(0, &sealed[400]).is_ok());
        assert_eq!(pair.open(0, &sealed[400]), Err(DropReason::Replay));
        assert!(pair.open(0, &sealed[1424]).is_ok());
        // Left of the window. With extended numbers it seems to be of the next cycle.
        let left = if extended_numbers { DropReason::BadIcv } else { DropReason::Replay };
        assert_eq!(pair.open(0, &sealed[400]), Err(left));
        assert!(pair.open(0, &sealed[401]).is_ok(), "the last place of the window");
        assert_eq!(pair.open(0, &sealed[401]), Err(DropReason::Replay));
        assert!(pair.open(0, &sealed[1499]).is_ok());
        let status = pair.receiver.status(Direction::In)[0];
        assert_eq!((status.number, status.packets), (1500, 4));
        assert_eq!(status.replays, pair.dropped(DropReason::Replay));
        assert_eq!(status.bad_icv, pair.dropped(DropReason::BadIcv));
    }
}

#[test]
fn a_damaged_packet_does_not_move_the_window() {
    let mut pair = Pair::with(&transport());
    let sealed = pair.seal(0, &tcp(100));
    for at in 20..sealed.len() {
        let mut bad = sealed.clone();
        bad[at] ^= 1;
        let reason = pair.open(0, &bad).unwrap_err();
        let expected = if at < 24 { DropReason::NoAssociation } else { DropReason::BadIcv };
        // A lower number of the first packet is zero, or left of the first cycle.
        assert!(reason == expected || (24..28).contains(&at), "{at}: {reason:?}");
    }
    assert_eq!(pair.receiver.status(Direction::In)[0].number, 0);
    assert!(pair.open(0, &sealed).is_ok());
}

/// RFC 4303 §3.3.3: the number never repeats. The stream waits for a new association.
// spec: SEC-I-3
#[test]
fn the_counter_stops_before_it_repeats() {
    for (extended_numbers, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX)] {
        let association = Association { extended_numbers, ..transport() };
        let mut pair = Pair::with(&association);
        skip_to(&mut pair, last - 2);
        let sealed: Vec<_> = (0..2).map(|_| pair.seal(0, &tcp(10))).collect();
        assert!(sealed.iter().all(|sealed| pair.open(0, sealed).is_ok()));
        let purpose = association.purpose();
        let expire = |hard| Event::Expire { direction: Direction::Out, spi: SPI, purpose, hard };
        assert_eq!(events(&mut pair.sender), [expire(false)]);
        let (mut buffer, at) = buffer(&tcp(10));
        assert_eq!(pair.sender.outbound(0, &mut buffer, at), Outbound::Waits);
        let events = events(&mut pair.sender);
        assert_eq!(events[0], expire(true));
        assert!(matches!(events[1], Event::Acquire { .. }));
        pair.add(0, &Association { spi: SPI + 1, ..association });
        let sealed = poll(&mut pair.sender, 0).unwrap();
        assert_eq!(pair.open(0, &sealed), Ok(tcp(10)));
    }
}

#[test]
fn without_extended_numbers_a_new_association_is_due_before_the_end() {
    let mut pair = Pair::with(&Association { extended_numbers: false, ..transport() });
    skip_to(&mut pair, u64::from(u32::MAX) / 8 * 7 - 2);
    pair.seal(0, &tcp(0));
    assert_eq!(events(&mut pair.sender), []);
    (0..10).for_each(|_| drop(pair.seal(0, &tcp(0))));
    assert_eq!(events(&mut pair.sender).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Across 2^32, with loss, reordering and duplicates within the window: each packet is accepted
    /// exactly once.
    // spec: SEC-I-13
    #[test]
    fn extended_numbers_continue_across_a_cycle(
        before in 0..600_u64,
        fates in proptest::collection::vec((0..500_usize, 0..10_u8), 600..1200),
    ) {
        let mut pair = Pair::with(&transport());
        skip_to(&mut pair, (1 << 32) - 1 - before);
        // A packet arrives behind its delay, one of ten is lost, one of ten arrives twice.
        let mut arrivals: Vec<(usize, Vec<u8>, bool)> = Vec::new();
        for (index, (delay, fate)) in fates.into_iter().enumerate() {
            let sealed = pair.seal(0, &tcp(index % 40));
            if fate > 0 {
                arrivals.push((index + delay, sealed.clone(), true));
            }
            if fate == 1 {
                arrivals.push((index + delay, sealed, false));
            }
        }
        arrivals.sort_by_key(|(at, ..)| *at);
        let expected = arrivals.iter().filter(|(_, _, is_first)| *is_first).count();
        let mut opened = 0;
        for (_, sealed, is_first) in &arrivals {
            let result = pair.open(0, sealed);
            opened += usize::from(result.is_ok());
            prop_assert_eq!(result.err(), (!is_first).then_some(DropReason::Replay));
        }
        prop_assert_eq!(opened, expected);
        prop_assert!(pair.receiver.status(Direction::In)[0].number > (1 << 32) - 1);
    }
}
