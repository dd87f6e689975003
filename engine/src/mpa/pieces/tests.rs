use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::limits::PIECE_BLOCKS_MAX;

const BLOCK: u64 = PIECE_BLOCK_LEN as u64;

fn at(offset: u64) -> StreamOffset {
    StreamOffset(offset)
}

fn hold(list: &mut PieceList, offset: u64, octets: &[u8], store: &mut PieceStore) -> usize {
    list.hold(at(offset), octets, store)
}

/// The first byte that is far from the in-order point 0.
const FAR: u64 = NEAR_PAGES as u64 * BLOCK;

/// Reads `from..to`; all of it must be held.
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
fn adjacent_pieces_are_merged() {
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
    assert_eq!((store.blocks_used(), store.bytes_held()), (1, BLOCK / 4));
}

#[test]
fn number_of_separate_pieces_is_limited() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    for n in 0..PIECE_RANGES_MAX as u64 {
        assert_eq!(hold(&mut list, 4 * n, &[7], &mut store), 1);
    }
    let beyond = 4 * PIECE_RANGES_MAX as u64;
    assert_eq!(hold(&mut list, beyond, &[7], &mut store), 0);
    assert_eq!(hold(&mut list, beyond - 3, &[7], &mut store), 1, "continues one that exists");
    // A part that ends before the start of another piece does not touch it.
    assert_eq!(hold(&mut list, beyond - 5, &[7], &mut store), 0);
    list.advance(at(beyond), &mut store);
    assert_eq!(hold(&mut list, beyond, &[7], &mut store), 1, "in order");
}

#[test]
fn blocks_are_recycled_and_never_grow_beyond_need() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    for n in 0..1000 {
        let offset = n * 5000;
        assert_eq!(hold(&mut list, offset, &[7; 5000], &mut store), 5000);
        list.remove(at(offset), at(offset + 5000), &mut store);
        assert!(list.is_empty());
        assert_eq!((store.blocks_used(), store.bytes_held()), (0, 0));
    }
    assert!(store.blocks.len() <= 4);
    assert_eq!(store.bytes_held_peak(), 5000);
}

// spec: TCP-A.5.2-1
#[test]
fn near_pages_are_granted_independently_of_other_streams() {
    let mut store = PieceStore::new(0);
    for _ in 0..10 {
        let mut list = PieceList::new();
        list.advance(at(10), &mut store);
        let near = usize::try_from(FAR - 10).unwrap();
        assert_eq!(hold(&mut list, 10, &vec![1; near + 5000], &mut store), near);
        assert_eq!((list.far, store.take_refused()), (0, true));
        assert_eq!(list.stalled_since(), None, "nothing to give up");
    }
    assert_eq!(store.blocks_used(), 10 * NEAR_PAGES);
}

#[test]
fn near_pages_cover_the_largest_fpdu_at_any_start() {
    for start in [0, 1, BLOCK - 1, 7 * BLOCK + 3] {
        let (mut store, mut list) = (PieceStore::new(0), PieceList::new());
        list.advance(at(start), &mut store);
        assert_eq!(hold(&mut list, start, &[1; FRAME_PAYLOAD_MAX], &mut store), FRAME_PAYLOAD_MAX);
    }
}

#[test]
fn far_pages_are_shared_with_a_reserve_for_new_streams() {
    let blocks = 30;
    let mut store = PieceStore::new(blocks);
    let all = vec![1; blocks * PIECE_BLOCK_LEN];
    let mut shares = Vec::new();
    let mut lists: Vec<PieceList> = (0..8).map(|_| PieceList::new()).collect();
    for list in &mut lists {
        shares.push(hold(list, FAR, &all, &mut store) / PIECE_BLOCK_LEN);
        assert!(store.take_refused());
        assert_eq!(list.far, *shares.last().unwrap());
    }
    // A list takes another page while it has fewer than twice as many as are free: 20 of 30, 7 of
    // 10, 2 of 3, 1 of 1.
    assert_eq!(shares, [20, 7, 2, 1, 0, 0, 0, 0]);
    assert_eq!(store.blocks_used(), blocks);
    for list in &mut lists {
        list.clear(&mut store);
    }
    assert_eq!((store.far, store.blocks_used()), (0, 0));
}

#[test]
fn far_pages_become_near_as_the_stream_advances() {
    let mut store = PieceStore::new(6);
    let mut list = PieceList::new();
    let octets = vec![1; 3 * PIECE_BLOCK_LEN];
    assert_eq!(hold(&mut list, FAR, &octets, &mut store), octets.len());
    assert_eq!((list.far, store.far), (3, 3));
    list.advance(at(BLOCK - 1), &mut store);
    assert_eq!((list.far, store.far), (3, 3));
    list.advance(at(BLOCK), &mut store);
    assert_eq!((list.far, store.far), (2, 2));
    list.remove(at(FAR + BLOCK), at(FAR + 2 * BLOCK), &mut store);
    assert_eq!((list.far, store.far), (1, 1), "a far page was emptied");
    list.remove(at(FAR), at(FAR + BLOCK), &mut store);
    assert_eq!((list.far, store.far), (1, 1), "a near one");
    list.clear(&mut store);
    assert_eq!((list.far, store.far, store.blocks_used()), (0, 0, 0));
}

#[test]
fn stream_without_progress_releases_its_far_pages() {
    let mut store = PieceStore::new(6);
    let mut list = PieceList::new();
    store.note_time(Instant::from_nanos(1000));
    hold(&mut list, 100, &[1; 10], &mut store);
    assert_eq!(list.stalled_since(), None);
    store.note_time(Instant::from_nanos(2000));
    // One piece spans both kinds of pages.
    assert_eq!(hold(&mut list, FAR - 10, &[2; 20], &mut store), 20);
    assert_eq!(hold(&mut list, FAR + 100, &[3; 10], &mut store), 10);
    assert_eq!(list.stalled_since(), Some(Instant::from_nanos(2000)));
    store.note_time(Instant::from_nanos(3000));
    hold(&mut list, FAR + 200, &[3; 10], &mut store);
    assert_eq!(list.stalled_since(), Some(Instant::from_nanos(2000)), "no progress");
    list.advance(at(1), &mut store);
    assert_eq!(list.stalled_since(), Some(Instant::from_nanos(3000)));
    let mut forgotten = Vec::new();
    list.give_up_far(&mut store, |range| forgotten.push((range.start.0, range.end.0)));
    assert_eq!(forgotten, [(FAR, FAR + 10), (FAR + 100, FAR + 110), (FAR + 200, FAR + 210)]);
    assert_eq!((list.bytes_held(), list.far, store.far), (20, 0, 0));
    assert_eq!(list.stalled_since(), None);
    assert_eq!(read(&list, FAR - 10, FAR, &store), [2; 10]);
}

#[test]
fn idle_store_frees_blocks_above_its_limit() {
    let mut store = PieceStore::new(0);
    let near = vec![1; NEAR_PAGES * PIECE_BLOCK_LEN];
    let mut lists: Vec<PieceList> = (0..150).map(|_| PieceList::new()).collect();
    for list in &mut lists {
        assert_eq!(hold(list, 0, &near, &mut store), near.len());
    }
    assert_eq!(store.allocated, 150 * NEAR_PAGES);
    for list in &mut lists {
        list.clear(&mut store);
    }
    assert_eq!((store.allocated, store.blocks_used()), (PIECE_BLOCKS_MAX, 0));
    // Blocks that are taken again have their memory.
    for list in &mut lists {
        assert_eq!(hold(list, 0, &near, &mut store), near.len());
        assert_eq!(read(list, 0, BLOCK, &store), vec![1; PIECE_BLOCK_LEN]);
    }
}

#[test]
fn pieces_keep_the_location_of_their_octets() {
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
fn piece_store_measures_the_hold_time_of_octets() {
    let (mut store, mut list) = (PieceStore::default(), PieceList::new());
    store.note_time(Instant::from_nanos(1000));
    hold(&mut list, 100, &[1; 10], &mut store);
    store.note_time(Instant::from_nanos(1500));
    hold(&mut list, 3 * BLOCK, &[1; 3], &mut store);
    assert_eq!((list.octet_ns(), list.held_ns_max()), (5000, 0), "nothing has left");
    store.note_time(Instant::from_nanos(1700));
    list.remove(at(100), at(104), &mut store);
    assert_eq!((list.octet_ns(), list.held_ns_max()), (5000 + 13 * 200, 700));
    store.note_time(Instant::from_nanos(2000));
    list.remove(at(104), at(4 * BLOCK), &mut store);
    let waits = 4 * 700 + 6 * 1000 + 3 * 500;
    assert_eq!((list.octet_ns(), list.held_ns_max()), (waits, 1000));
    store.note_time(Instant::from_nanos(9000));
    hold(&mut list, 100, &[1; 2], &mut store);
    assert_eq!(list.octet_ns(), waits, "no time passes for nothing");
    store.note_time(Instant::from_nanos(11_000));
    list.clear(&mut store);
    assert_eq!((list.octet_ns(), list.held_ns_max()), (waits + 2 * 2000, 2000));
}

#[test]
#[should_panic(expected = "bytes held twice")]
fn inserting_held_octets_again_panics() {
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
            store.note_time(Instant::from_nanos(now_ns));
            let (list, model) = (&mut lists[which], &mut models[which]);
            if add {
                // Only the gaps of the range, which are not held.
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
            prop_assert_eq!(list.bytes_held(), model.len() as u64);
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
        prop_assert_eq!(store.bytes_held(), models.iter().map(|m| m.len() as u64).sum::<u64>());
        for (which, list) in lists.iter_mut().enumerate() {
            list.clear(&mut store);
            for came_ns in came_ns[which].values() {
                waits_ns[which] += u128::from(now_ns - came_ns);
                longest_ns[which] = longest_ns[which].max(now_ns - came_ns);
            }
            prop_assert_eq!(list.octet_ns(), waits_ns[which]);
            prop_assert!(list.held_ns_max() >= longest_ns[which]);
        }
        prop_assert_eq!((store.blocks_used(), store.bytes_held()), (0, 0));
    }
}
