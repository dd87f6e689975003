use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BLOCK: u64 = PIECE_BLOCK_LEN as u64;

fn at(offset: u64) -> StreamOffset {
    StreamOffset(offset)
}

fn hold(list: &mut PieceList, offset: u64, octets: &[u8], store: &mut PieceStore) -> usize {
    list.hold(at(offset), octets, Purpose::Ahead, store)
}

/// Reads `from..to`, all of it held.
fn read(list: &PieceList, from: u64, to: u64, store: &PieceStore) -> Vec<u8> {
    let mut octets = Vec::new();
    while from + (octets.len() as u64) < to {
        let run = list.run(at(from + octets.len() as u64), store);
        assert!(!run.is_empty());
        octets.extend_from_slice(run);
    }
    octets.truncate(usize::try_from(to - from).unwrap());
    octets
}

#[test]
fn adjacent_pieces_become_one() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    hold(&mut list, 100, &[1; 10], &mut store);
    hold(&mut list, 120, &[3; 10], &mut store);
    assert_eq!(list.pieces().len(), 2);
    hold(&mut list, 110, &[2; 10], &mut store);
    assert_eq!(list.pieces().len(), 1);
    assert_eq!(read(&list, 100, 130, &store), [[1; 10], [2; 10], [3; 10]].concat());
    assert_eq!(list.piece_ending_at(at(130)), list.piece_at(at(100)));
    assert_eq!(list.piece_at(at(130)), None);
}

#[test]
fn many_tiny_pieces_share_a_block() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    for n in 0..BLOCK / 4 {
        assert_eq!(hold(&mut list, 4 * n, &[7], &mut store), 1);
    }
    assert_eq!((store.blocks_used(), store.octets_held()), (1, BLOCK / 4));
}

#[test]
fn separate_pieces_have_a_limit() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    for n in 0..PIECE_RANGES_MAX as u64 {
        assert_eq!(hold(&mut list, 4 * n, &[7], &mut store), 1);
    }
    let beyond = 4 * PIECE_RANGES_MAX as u64;
    assert_eq!(hold(&mut list, beyond, &[7], &mut store), 0);
    assert_eq!(hold(&mut list, beyond - 3, &[7], &mut store), 1, "joins one that exists");
    assert_eq!(list.hold(at(beyond), &[7], Purpose::InOrder, &mut store), 1);
}

#[test]
fn blocks_are_recycled_and_never_grow_beyond_need() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    for n in 0..1000 {
        let offset = n * 5000;
        assert_eq!(hold(&mut list, offset, &[7; 5000], &mut store), 5000);
        list.remove(at(offset), at(offset + 5000), &mut store);
        assert!(list.is_empty());
        assert_eq!((store.blocks_used(), store.octets_held()), (0, 0));
    }
    assert!(store.blocks.len() <= 4);
    assert_eq!(store.octets_held_peak(), 5000);
}

#[test]
fn what_lies_ahead_leaves_a_share_for_what_is_in_order() {
    let mut store = PieceStore::new(0);
    let (mut ahead, mut in_order) = (PieceList::new(), PieceList::new());
    let room = store.room_ahead();
    let kept = hold(&mut ahead, BLOCK - 1, &vec![1; 4 << 20], &mut store);
    assert!(kept >= room && kept < 4 << 20);
    assert_eq!(store.room_ahead(), 0);
    assert!(in_order.reserve(at(10), at(10 + 65535), &mut store));
    for n in 0..65535 {
        assert_eq!(in_order.hold(at(10 + n), &[2], Purpose::InOrder, &mut store), 1);
    }
    assert_eq!(in_order.reserved, 0);
}

#[test]
fn a_reservation_that_cannot_be_kept_is_refused_whole() {
    let mut store = PieceStore::new(0);
    let mut lists: Vec<PieceList> = (0..4).map(|_| PieceList::new()).collect();
    let granted = lists
        .iter_mut()
        .map(|list| list.reserve(at(1), at(65536), &mut store))
        .collect::<Vec<bool>>();
    assert_eq!(granted, [true, true, false, false]);
    assert!(lists[0].reserve(at(1), at(65536), &mut store), "again for the same octets");
    lists[0].unreserve(&mut store);
    assert!(lists[2].reserve(at(1), at(65536), &mut store));
    for list in &mut lists {
        list.clear(&mut store);
    }
    assert_eq!(store.blocks_used(), 0);
}

#[test]
fn a_location_goes_with_its_octets() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    hold(&mut list, 100, &[1; 100], &mut store);
    list.set_located(at(150));
    hold(&mut list, 50, &[1; 50], &mut store);
    assert_eq!(list.piece_at(at(60)).unwrap().located, Some(at(150)));
    list.remove(at(90), at(110), &mut store);
    assert_eq!(list.piece_at(at(60)).unwrap().located, None);
    assert_eq!(list.piece_at(at(120)).unwrap().located, Some(at(150)));
    list.clear_located(at(151));
    assert_eq!(list.piece_at(at(120)).unwrap().located, Some(at(150)));
    list.clear_located(at(150));
    assert_eq!(list.piece_at(at(120)).unwrap().located, None);
}

#[test]
fn octets_count_the_time_they_wait() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    store.set_time(Instant::from_nanos(1000));
    hold(&mut list, 100, &[1; 10], &mut store);
    store.set_time(Instant::from_nanos(1500));
    hold(&mut list, 3 * BLOCK, &[1; 3], &mut store);
    assert_eq!((list.octet_ns(), list.held_ns_max()), (5000, 0), "nothing has left");
    store.set_time(Instant::from_nanos(1700));
    list.remove(at(100), at(104), &mut store);
    assert_eq!((list.octet_ns(), list.held_ns_max()), (5000 + 13 * 200, 700));
    store.set_time(Instant::from_nanos(2000));
    list.remove(at(104), at(4 * BLOCK), &mut store);
    let waits = 4 * 700 + 6 * 1000 + 3 * 500;
    assert_eq!((list.octet_ns(), list.held_ns_max()), (waits, 1000));
    store.set_time(Instant::from_nanos(9000));
    hold(&mut list, 100, &[1; 2], &mut store);
    assert_eq!(list.octet_ns(), waits, "no time passes for nothing");
    store.set_time(Instant::from_nanos(11_000));
    list.clear(&mut store);
    assert_eq!((list.octet_ns(), list.held_ns_max()), (waits + 2 * 2000, 2000));
}

#[test]
#[should_panic(expected = "octets held twice")]
fn octets_given_twice_are_a_callers_bug() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    hold(&mut list, 100, &[1; 100], &mut store);
    hold(&mut list, 199, &[1; 10], &mut store);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn two_lists_on_one_store_behave_like_maps_of_octets(
        actions in prop::collection::vec((0usize..2, any::<bool>(), 0u64..9000, 1u64..3000), 1..60),
    ) {
        let mut store = PieceStore::new(0);
        let mut lists = [PieceList::new(), PieceList::new()];
        let mut models = [BTreeMap::new(), BTreeMap::new()];
        let mut came_ns = [BTreeMap::new(), BTreeMap::new()];
        let (mut waits_ns, mut longest_ns, mut now_ns) = ([0, 0], [0, 0], 0);
        for (step, (which, add, from, len)) in (0_u64..).zip(actions) {
            now_ns = step * step;
            store.set_time(Instant::from_nanos(now_ns));
            let (list, model) = (&mut lists[which], &mut models[which]);
            if add {
                // Only what is not held: the gaps of the range.
                let mut from = from;
                let end = from + len;
                while from < end {
                    let to = (from..end).find(|o| model.contains_key(o)).unwrap_or(end);
                    let octets: Vec<u8> = (from..to).map(|o| (o * 31 + step).to_le_bytes()[0]).collect();
                    let kept = hold(list, from, &octets, &mut store) as u64;
                    model.extend((from..from + kept).zip(octets));
                    came_ns[which].extend((from..from + kept).map(|o| (o, now_ns)));
                    from = to + 1;
                }
            } else {
                list.remove(at(from), at(from + len), &mut store);
                model.retain(|o, _| !(from..from + len).contains(o));
                for (_, came_ns) in came_ns[which].extract_if(from..from + len, |_, _| true) {
                    waits_ns[which] += u128::from(now_ns - came_ns);
                    longest_ns[which] = longest_ns[which].max(now_ns - came_ns);
                }
            }
            prop_assert_eq!(list.octets_held(), model.len() as u64);
            prop_assert!(list.pieces().zip(list.pieces().skip(1)).all(|(a, b)| a.end < b.start));
        }
        for (list, model) in lists.iter_mut().zip(&models) {
            let mut expected = model.iter();
            for piece in list.pieces() {
                let octets = read(list, piece.start.0, piece.end.0, &store);
                for (offset, octet) in (piece.start.0..).zip(&octets) {
                    prop_assert_eq!(expected.next(), Some((&offset, octet)));
                }
            }
            prop_assert!(expected.next().is_none());
        }
        prop_assert_eq!(store.octets_held(), models.iter().map(|m| m.len() as u64).sum::<u64>());
        for (which, list) in lists.iter_mut().enumerate() {
            list.clear(&mut store);
            for came_ns in came_ns[which].values() {
                waits_ns[which] += u128::from(now_ns - came_ns);
                longest_ns[which] = longest_ns[which].max(now_ns - came_ns);
            }
            prop_assert_eq!(list.octet_ns(), waits_ns[which]);
            prop_assert!(list.held_ns_max() >= longest_ns[which]);
        }
        prop_assert_eq!((store.blocks_used(), store.octets_held()), (0, 0));
    }
}
