//! Received frame in runs of the shared memory: copies the head out, and passes the payload in
//! place.

use arrayvec::ArrayVec;

use crate::vhost_user::RingCounters;
use crate::vhost_user::offload::{self, HEADER_LEN};
use crate::virtqueue::{MemoryTable, Run};
use crate::{RxFrame, SharedSlice};

/// Hands a frame of `len` bytes, header included, in `runs` to `sink`. Copies go to `stage`, where
/// the peer cannot change them. Panics if `len` is not the length of the runs, is at most a header,
/// or exceeds `stage`.
pub(super) fn hand_over(
    table: &MemoryTable,
    runs: &[Run],
    len: usize,
    stage: &mut [u8],
    counters: &mut RingCounters,
    sink: &mut dyn FnMut(RxFrame<'_>),
) {
    counters.frames_rx += 1;
    if len > IN_PLACE_LEN_MIN && runs.len() < FRAGMENTS_MAX {
        let mut payload = ArrayVec::<SharedSlice<'_>, FRAGMENTS_MAX>::new();
        let mut at = 0;
        let mut runs = runs.iter();
        for run in runs.by_ref() {
            let copied = (FRONT_LEN - at).min(run.len);
            table.copy_out(*run, &mut stage[at..at + copied]);
            at += copied;
            if copied < run.len {
                payload.push(table.slice(run.part(copied, run.len - copied)));
                break;
            }
        }
        for run in runs {
            payload.push(table.slice(*run));
        }
        if let Some((header, head)) = stage[..FRONT_LEN].split_first_chunk()
            && let Some(frame) = offload::decode_scattered(*header, head, &payload)
        {
            counters.copied_rx_bytes += FRONT_LEN as u64;
            counters.in_place_rx_bytes += (len - FRONT_LEN) as u64;
            return sink(frame);
        }
    }
    let mut at = 0;
    for run in runs {
        table.copy_out(*run, &mut stage[at..at + run.len]);
        at += run.len;
    }
    assert!(at == len, "as many bytes as the runs have");
    counters.copied_rx_bytes += len as u64;
    let (header, bytes) = stage[..len].split_first_chunk_mut().expect("longer than a header");
    sink(offload::decode(*header, bytes));
}

/// Bytes copied from each frame that is handed over in place: the header in front, and all protocol
/// headers.
const FRONT_LEN: usize = (HEADER_LEN + RxFrame::HEAD_LEN_MIN).next_multiple_of(64);
/// Length up to which frames are copied whole: handing over a head and a payload would cost more.
const IN_PLACE_LEN_MIN: usize = 1024;
/// Fragments of a frame that is handed over in place. A Linux guest sends a super-frame in 45
/// buffers or in 17 pages. A urnic frontend that shares memory sends one in 89 runs at an MTU of
/// 1500.
const FRAGMENTS_MAX: usize = 128;

const _: () =
    assert!(FRONT_LEN >= HEADER_LEN + RxFrame::HEAD_LEN_MIN && FRONT_LEN < IN_PLACE_LEN_MIN);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::RxChecksum;
    use crate::sys::shared_mapping::sealed_memory;
    use crate::vhost_user::FRAME_LEN_MAX;

    const MEMORY_LEN: usize = 1 << 20;
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
    const NEEDS_CSUM: u8 = 1;
    const DATA_VALID: u8 = 2;

    /// Builds a header and a TCP frame of `len` bytes, whose partial checksum is at `start`.
    fn octets(flags: u8, start: u8, len: usize) -> Vec<u8> {
        let mut octets = vec![flags, 0, 0, 0, 0, 0, start, 0, 16, 0, 1, 0];
        octets.extend([2; 12]);
        octets.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6]);
        octets.extend((0..len - 24).map(|i| u8::try_from(i * 11 % 251).unwrap()));
        octets
    }

    /// Returns the result of a frame whose runs have these lengths; the last run is the rest.
    fn received(octets: &[u8], run_lens: &[usize]) -> (Vec<u8>, RxChecksum, usize, RingCounters) {
        let file = sealed_memory(c"test", MEMORY_LEN).unwrap();
        let mut table = MemoryTable::default();
        table.add([0x1000, 0x1000, MEMORY_LEN as u64, 0], file.as_fd()).unwrap();
        let (mut runs, mut rest, mut at) = (Vec::new(), octets, 0x1000);
        for len in run_lens.iter().copied().chain([usize::MAX]) {
            let (run, behind) = rest.split_at(len.min(rest.len()));
            if !run.is_empty() {
                // Leave a gap between runs.
                let place = table.user_run(at, run.len()).unwrap();
                table.copy_in(place, run);
                runs.push(place);
                at += run.len() as u64 + 3;
            }
            rest = behind;
        }
        let (mut counters, mut stage) = (RingCounters::default(), vec![0; FRAME_LEN_MAX]);
        let mut seen = None;
        hand_over(&table, &runs, octets.len(), &mut stage, &mut counters, &mut |frame| {
            let whole = frame.gathered(&mut Vec::new()).head.to_vec();
            seen = Some((whole, frame.checksum, frame.payload.len()));
        });
        let (whole, checksum, fragments) = seen.unwrap();
        (whole, checksum, fragments, counters)
    }

    #[test]
    fn payload_of_long_frames_stays_where_it_is() {
        let octets = octets(NEEDS_CSUM, 34, 5000);
        for run_lens in
            [&[][..], &[1], &[12], &[100, 1], &[12, 54, 1000], &[2000; 2], &[30; 126], &[FRONT_LEN]]
        {
            let (whole, checksum, fragments, counters) = received(&octets, run_lens);
            assert!(whole == octets[HEADER_LEN..], "{run_lens:?}");
            assert!(checksum == RxChecksum::Valid && fragments > 0, "{run_lens:?}");
            let in_place = (octets.len() - FRONT_LEN) as u64;
            assert_eq!(counters.in_place_rx_bytes, in_place, "{run_lens:?}");
            assert_eq!(counters.copied_rx_bytes, FRONT_LEN as u64, "{run_lens:?}");
        }
    }

    #[test]
    fn a_frame_that_is_short_in_many_runs_or_not_verified_is_copied_whole() {
        let many = [8; FRAGMENTS_MAX + 1];
        let long = |flags, start| octets(flags, start, 4000);
        let cases: [(Vec<u8>, &[usize], RxChecksum); 5] = [
            (octets(DATA_VALID, 0, IN_PLACE_LEN_MIN - HEADER_LEN), &[70], RxChecksum::Valid),
            (long(DATA_VALID, 0), &many, RxChecksum::Valid),
            (long(0, 0), &[70], RxChecksum::Unverified),
            // Checksum of a header inside and outside of the frame.
            (long(NEEDS_CSUM, 84), &[70], RxChecksum::Unverified),
            (long(NEEDS_CSUM, 255), &[], RxChecksum::Unverified),
        ];
        for (octets, run_lens, expected) in cases {
            let (whole, checksum, fragments, counters) = received(&octets, run_lens);
            assert_eq!((checksum, fragments), (expected, 0));
            assert_eq!(whole.len(), octets.len() - HEADER_LEN);
            // Except for a completed checksum.
            let differ = whole.iter().zip(&octets[HEADER_LEN..]).filter(|(a, b)| a != b).count();
            assert!(differ <= 2, "{differ}");
            assert_eq!(counters.copied_rx_bytes, octets.len() as u64);
            assert_eq!(counters.in_place_rx_bytes, 0);
        }
    }
}
