use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::limits::KEPT_BLOCKS_MAX;
use crate::stream::tx::frame::{Fragments, Scratch};

fn at(offset: usize) -> StreamOffset {
    StreamOffset(offset as u64)
}

/// The byte of the stream at an offset, in these tests.
fn octet(offset: usize) -> u8 {
    (offset * 7 + (offset >> 8) + (offset >> 14)).to_le_bytes()[0] | 1
}

fn octets(start: usize, len: usize) -> Vec<u8> {
    (start..start + len).map(octet).collect()
}

fn keep(kept: &mut Kept, start: usize, len: usize) {
    kept.begin(at(start));
    kept.append(&octets(start, len));
}

/// The kept bytes of a range, 0 elsewhere; and the number of fragments.
fn gathered(kept: &Kept, start: usize, end: usize) -> (Vec<u8>, usize) {
    let mut scratch = Scratch::default();
    let mut fragments = Fragments::new();
    let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
    kept.gather(at(start)..at(end), &mut frame, |gap, frame| {
        assert!(gap.start < gap.end);
        frame.push_inline(&vec![0; gap.end.index_from(gap.start)]);
    });
    assert_eq!(frame.finish().len, end - start);
    let mut all = Vec::new();
    for fragment in &fragments {
        let from = all.len();
        all.resize(from + fragment.len(), 0);
        fragment.copy_out(0, &mut all[from..]);
    }
    (all, fragments.len())
}

#[test]
fn empty_store_uses_no_block() {
    let pool = Arc::new(BlockPool::default());
    let mut kept = Kept::new(Arc::clone(&pool));
    assert_eq!(pool.taken(), 0);
    keep(&mut kept, 100, 30);
    assert_eq!(pool.taken(), 1);
    kept.release(at(129));
    assert_eq!(pool.taken(), 1);
    kept.release(at(130));
    assert_eq!(pool.taken(), 0);
    keep(&mut kept, 200, 2 * KEPT_BLOCK_LEN + 1);
    assert_eq!(pool.taken(), 3);
    kept.release(at(200 + KEPT_BLOCK_LEN));
    assert_eq!(pool.taken(), 2);
    drop(kept);
    assert_eq!(pool.taken(), 0);
}

#[test]
fn octets_that_follow_each_other_are_one_fragment_for_each_block() {
    let mut kept = Kept::new(Arc::default());
    for start in (0..40_000).step_by(1000) {
        keep(&mut kept, start, 1000);
    }
    let (all, fragments) = gathered(&kept, 0, 40_000);
    assert!(all == octets(0, 40_000));
    assert_eq!(fragments, 3);
    assert_eq!(gathered(&kept, 500, 1500).1, 1);
    assert!(fragments <= super::fragments(40_000));
    assert_eq!(super::fragments(KEPT_BLOCK_LEN), 2, "it may begin inside a block");
}

#[test]
fn a_stream_without_octets_has_room_for_an_fpdu_even_in_an_exhausted_pool() {
    let pool = Arc::new(BlockPool::default());
    let greedy: Vec<Block> = (0..KEPT_BLOCKS_MAX / 2 + 4).map(|_| pool.take()).collect();
    let mut kept = Kept::new(Arc::clone(&pool));
    assert_eq!(kept.room(), (KEPT_BLOCKS_MAX / 2 - 4) / 2 * KEPT_BLOCK_LEN);
    keep(&mut kept, 0, 10);
    // One block of its own, and one fewer for all.
    let blocks = (KEPT_BLOCKS_MAX / 2 - 4 - 2) / 2;
    assert_eq!(kept.room(), KEPT_BLOCK_LEN - 10 + blocks * KEPT_BLOCK_LEN);
    let rest: Vec<Block> = (0..KEPT_BLOCKS_MAX / 2 - 5).map(|_| pool.take()).collect();
    assert_eq!(kept.room(), KEPT_BLOCK_LEN - 10, "only what it has");
    kept.release(at(10));
    assert_eq!(kept.room(), BLOCKS_PER_FPDU * KEPT_BLOCK_LEN);
    assert!(kept.room() >= FRAME_PAYLOAD_MAX);
    for block in greedy.into_iter().chain(rest) {
        pool.give_back(block);
    }
}

#[test]
fn shared_octets_are_kept_with_their_digest() {
    let bytes = octets(0, 3 * KEPT_BLOCK_LEN);
    let mut kept = Kept::new(Arc::default());
    kept.begin(at(5));
    kept.append(b"head!");
    let mut crc = Crc32c::new();
    kept.append_shared(SharedSlice::from_bytes(&bytes), Some(&mut crc));
    kept.append_shared(SharedSlice::from_bytes(b"tail"), None);
    assert_eq!(crc.finish(), ::crc32c::crc32c(&bytes));
    let (all, _) = gathered(&kept, 5, 10 + bytes.len() + 4);
    assert!(all == [b"head!", &bytes[..], b"tail"].concat());
}

#[derive(Clone, Debug)]
enum Step {
    /// Keep this many bytes at the end, after a gap.
    Append(usize, usize),
    /// Keep the bytes of the gap with this index.
    Fill(prop::sample::Index),
    /// Acknowledge this part of the kept bytes.
    Release(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 1..30_000_usize).prop_map(|(gap, len)| Step::Append(gap * 700, len)),
        2 => any::<prop::sample::Index>().prop_map(Step::Fill),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn kept_octets_can_be_gathered_until_their_release(
        steps in proptest::collection::vec(step(), 1..30),
    ) {
        let pool = Arc::new(BlockPool::default());
        let mut kept = Kept::new(Arc::clone(&pool));
        let (mut una, mut end) = (0, 0);
        let mut gaps: BTreeMap<usize, usize> = BTreeMap::new();
        let mut live = BTreeMap::new();
        for step in steps {
            match step {
                Step::Append(gap, len) => {
                    if gap > 0 {
                        gaps.insert(end, gap);
                    }
                    keep(&mut kept, end + gap, len);
                    live.insert(end + gap, len);
                    end += gap + len;
                }
                Step::Fill(index) => {
                    if gaps.is_empty() {
                        continue;
                    }
                    let start = *gaps.keys().nth(index.index(gaps.len())).unwrap();
                    let len = gaps.remove(&start).unwrap();
                    keep(&mut kept, start, len);
                    live.insert(start, len);
                }
                Step::Release(index) => {
                    una += index.index(end - una + 1);
                    kept.release(at(una));
                    gaps.retain(|start, _| *start >= una);
                    live.retain(|start, len| *start + *len > una);
                }
            }
            let mut expected = vec![0; end - una];
            for (&start, &len) in &live {
                for offset in start.max(una)..start + len {
                    expected[offset - una] = octet(offset);
                }
            }
            for chunk in (una..end).step_by(40_000) {
                let chunk_end = end.min(chunk + 40_000);
                let (all, _) = gathered(&kept, chunk, chunk_end);
                prop_assert!(all == expected[chunk - una..chunk_end - una]);
            }
            for offset in [una, una + 1, end / 2, end.saturating_sub(1), end] {
                if offset >= una {
                    let there = expected.get(offset - una).is_some_and(|octet| *octet != 0);
                    prop_assert_eq!(kept.holds(at(offset)), there, "{}", offset);
                }
            }
            let octets: usize = live.iter().map(|(start, len)| (start + len).max(una) - una.max(*start)).sum();
            prop_assert!(pool.taken() * KEPT_BLOCK_LEN >= octets);
            prop_assert_eq!(pool.taken() == 0, octets == 0);
        }
        kept.release(at(end));
        prop_assert_eq!(pool.taken(), 0);
    }
}
