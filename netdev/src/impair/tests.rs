mod bounds;
mod super_frames;

use std::num::{NonZeroU16, NonZeroUsize};

use super::*;
use crate::memory::{LinkConfig, MemoryDevice, pair};
use crate::segment::tests::{Segment, read};
use crate::{Medium, RxChecksum};

/// An impaired end, the other end, and received frames.
struct Link {
    a: Impair<MemoryDevice>,
    b: MemoryDevice,
}

impl Link {
    fn new(config: ImpairConfig, seed: u64) -> Self {
        let link = LinkConfig { queue_frames: 65_536, mtu: 9000, ..LinkConfig::default() };
        let (a, b) = pair(link);
        Self { a: Impair::new(a, config, seed), b }
    }

    fn send(&mut self, now_ns: u64, bytes: &[u8]) {
        self.a.transmit(now_ns, &TxFrame::whole(bytes)).unwrap();
    }

    fn received(&mut self, now_ns: u64) -> Vec<Vec<u8>> {
        self.a.flush(now_ns);
        let mut frames = Vec::new();
        self.b.receive(now_ns, usize::MAX, &mut |frame| {
            assert_eq!(frame.checksum, RxChecksum::Unverified);
            frames.push(frame.head.to_vec());
        });
        frames
    }

    /// Sends numbered frames, one per microsecond. Returns the arrived ones, in order.
    fn run(&mut self, frames: u32) -> Vec<u32> {
        for k in 0..frames {
            let mut frame = [0; 64];
            frame[60..].copy_from_slice(&k.to_be_bytes());
            self.send(u64::from(k) * 1000, &frame);
        }
        let arrived = self.received(u64::MAX);
        arrived.iter().map(|frame| u32::from_be_bytes(frame[60..64].try_into().unwrap())).collect()
    }
}

/// Returns true if a count is within 6 deviations of the expected one.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn is_likely(count: u64, frames: u32, probability: f64) -> bool {
    let expected = f64::from(frames) * probability;
    let deviation = (expected * (1.0 - probability)).sqrt();
    (count as f64 - expected).abs() <= 6.0 * deviation
}

const FRAMES: u32 = 20_000;

#[test]
fn the_default_changes_nothing() {
    let mut link = Link::new(ImpairConfig::default(), 1);
    assert_eq!(link.run(500), (0..500).collect::<Vec<_>>());
    let counters = ImpairCounters { frames: 500, bytes: 500 * 64, ..ImpairCounters::default() };
    assert_eq!(*link.a.counters(), counters);
}

#[test]
fn losses_are_as_frequent_as_configured() {
    let mut link = Link::new(ImpairConfig { loss: 0.1, ..ImpairConfig::default() }, 2);
    let arrived = link.run(FRAMES);
    let dropped = link.a.counters().dropped;
    assert_eq!(arrived.len() as u64 + dropped, u64::from(FRAMES));
    assert!(is_likely(dropped, FRAMES, 0.1), "{dropped} dropped");
    assert!(arrived.is_sorted());
}

#[test]
fn burst_losses_come_in_runs() {
    let burst = BurstLoss { enter: 0.01, leave: 0.2, loss: 1.0 };
    let mut link = Link::new(ImpairConfig { burst, ..ImpairConfig::default() }, 3);
    let arrived = link.run(FRAMES);
    let runs = arrived.windows(2).filter(|pair| pair[1] - pair[0] > 1).count() as u64;
    let dropped = link.a.counters().dropped;
    // One run per entry, of 1 / leave = 5 frames on average.
    assert!(dropped > 3 * runs && dropped < 7 * runs, "{dropped} dropped in {runs} runs");
}

#[test]
fn duplicates_arrive_next_to_each_other() {
    let mut link = Link::new(ImpairConfig { duplicate: 0.2, ..ImpairConfig::default() }, 4);
    let arrived = link.run(FRAMES);
    let duplicated = link.a.counters().duplicated;
    assert!(is_likely(duplicated, FRAMES, 0.2), "{duplicated} duplicated");
    assert_eq!(arrived.len() as u64, u64::from(FRAMES) + duplicated);
    assert!(arrived.is_sorted());
}

#[test]
fn reordered_frames_are_overtaken_by_the_configured_number() {
    let config = ImpairConfig {
        reorder: 0.05,
        reorder_frames_max: 4,
        reorder_delay_ns: 1_000_000,
        ..ImpairConfig::default()
    };
    let mut link = Link::new(config, 5);
    let arrived = link.run(FRAMES);
    assert!(is_likely(link.a.counters().reordered, FRAMES, 0.05));
    assert_eq!(arrived.len(), FRAMES as usize, "none lost");
    assert!(!arrived.is_sorted());
    let mut seen_max = 0;
    for (position, &number) in arrived.iter().enumerate() {
        seen_max = seen_max.max(number);
        // Late by the frames that overtook it, and early by late ones before it.
        assert!(position.abs_diff(number as usize) <= 8, "frame {number} at {position}");
        assert!(seen_max - number <= 8, "frame {number} behind {seen_max}");
    }
}

#[test]
fn a_reordered_frame_without_followers_is_released_in_time() {
    let config = ImpairConfig { reorder: 1.0, reorder_delay_ns: 500, ..ImpairConfig::default() };
    let mut link = Link::new(config, 6);
    link.send(100, &[1; 60]);
    assert!(link.received(100).is_empty());
    assert_eq!(link.a.next_arrival_ns(), Some(600));
    assert_eq!(link.a.receive(600, 1, &mut |_| {}), 0);
    assert_eq!(link.a.next_arrival_ns(), None);
    assert_eq!(link.received(600).len(), 1);
}

#[test]
fn jitter_delays_and_keeps_the_order() {
    let config = ImpairConfig { jitter: 0.5, jitter_ns_max: 20_000, ..ImpairConfig::default() };
    let mut link = Link::new(config, 7);
    assert_eq!(link.run(2000), (0..2000).collect::<Vec<_>>());

    let mut link = Link::new(ImpairConfig { jitter: 1.0, ..config }, 7);
    link.send(0, &[1; 60]);
    let release_ns = link.a.next_arrival_ns().unwrap();
    assert!((1..=20_000).contains(&release_ns));
    assert!(link.received(release_ns - 1).is_empty());
    assert_eq!(link.received(release_ns).len(), 1);
}

#[test]
fn corruption_flips_bits_behind_the_link_header_only() {
    let config = ImpairConfig { corrupt: 1.0, corrupt_bits_max: 3, ..ImpairConfig::default() };
    let mut link = Link::new(config, 8);
    for len in [15, 16, 60, 1500] {
        for _ in 0..200 {
            link.send(0, &vec![0; len]);
        }
        for frame in link.received(0) {
            assert_eq!(frame[..14], [0; 14]);
            let bits: u32 = frame[14..].iter().map(|octet| octet.count_ones()).sum();
            assert!((1..=3).contains(&bits), "{bits} bits in {len} octets");
        }
    }
    assert_eq!(link.a.counters().corrupted, 800);
    // These frames have no bytes to corrupt.
    link.send(0, &[0; 14]);
    link.send(0, &[]);
    assert_eq!(link.received(0), [vec![0; 14], vec![]]);
}

#[test]
fn equal_seeds_give_equal_decisions() {
    let config = ImpairConfig {
        loss: 0.1,
        burst: BurstLoss { enter: 0.01, ..BurstLoss::default() },
        duplicate: 0.1,
        corrupt: 0.1,
        corrupt_bits_max: 9,
        reorder: 0.1,
        jitter: 0.1,
        resegment: 0.5,
        coalesce: 0.3,
        ..ImpairConfig::default()
    };
    let run = |seed| {
        let mut link = Link::new(config, seed);
        let mut arrived = Vec::new();
        for k in 0..500 {
            let segment = Segment::new(k * 50, &[1; 50]).frame();
            link.send(u64::from(k) * 1000, &segment);
            arrived.push(link.received(u64::from(k) * 1000));
        }
        (arrived, *link.a.counters())
    };
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}

#[test]
fn one_impairment_does_not_change_the_decisions_of_another() {
    let loss = ImpairConfig { loss: 0.2, ..ImpairConfig::default() };
    let both = ImpairConfig { duplicate: 0.5, jitter: 0.5, jitter_ns_max: 9_000, ..loss };
    let alone = Link::new(loss, 11).run(1000);
    let mut with_others = Link::new(both, 11).run(1000);
    with_others.dedup();
    assert_eq!(alone, with_others);
}

#[test]
fn resegmentation_keeps_the_stream() {
    for is_v6 in [false, true] {
        let config =
            ImpairConfig { resegment: 1.0, resegment_pieces_max: 16, ..ImpairConfig::default() };
        let mut link = Link::new(config, 12);
        let mut sent = Vec::new();
        let mut single_octets = 0;
        let mut arrived = Vec::new();
        for k in 0_u32..200 {
            let payload: Vec<u8> =
                (0..=255).cycle().skip(k as usize).take(1 + k as usize).collect();
            let seq = u32::try_from(sent.len()).unwrap();
            link.send(0, &Segment { is_v6, ..Segment::new(seq, &payload) }.frame());
            sent.extend(payload);
            for frame in link.received(0) {
                let (seq, _, payload) = read(&frame, Medium::Ethernet);
                assert_eq!(seq as usize, arrived.len());
                single_octets += usize::from(payload.len() == 1);
                arrived.extend(payload);
            }
        }
        assert_eq!(arrived, sent);
        // All except the segment of a single byte.
        assert_eq!(link.a.counters().resegmented, 199);
        assert!(single_octets > 100, "{single_octets} pieces of one octet");
    }
}

#[test]
fn coalescing_keeps_the_stream() {
    let config = ImpairConfig { coalesce: 0.7, ..ImpairConfig::default() };
    let mut link = Link::new(config, 13);
    for k in 0_u8..100 {
        link.send(0, &Segment::new(u32::from(k) * 100, &[k; 100]).frame());
    }
    let frames = link.received(0);
    let coalesced = usize::try_from(link.a.counters().coalesced).unwrap();
    assert_eq!(frames.len(), 100 - coalesced);
    assert!(is_likely(coalesced as u64, 100, 0.7), "{coalesced} merged");
    let stream: Vec<u8> = frames.iter().flat_map(|frame| read(frame, Medium::Ethernet).2).collect();
    assert_eq!(stream, (0..100).flat_map(|k| [k; 100]).collect::<Vec<u8>>());
}

#[test]
fn a_lower_mtu_can_be_reported_to_leave_room_for_merging() {
    let config = ImpairConfig { mtu: Some(1500), coalesce: 1.0, ..ImpairConfig::default() };
    let mut link = Link::new(config, 14);
    assert_eq!(link.a.capabilities().mtu, 1500);
    for k in 0..2 {
        link.send(0, &Segment::new(k * 1460, &[1; 1460]).frame());
    }
    assert_eq!(link.received(0).len(), 1);
    assert_eq!(link.a.transmit(0, &TxFrame::whole(&[0; 1515])), Err(TransmitError::TooLong));
}

#[test]
fn offloads_are_hidden_while_octets_may_change() {
    let link = LinkConfig {
        super_frame_len_max: NonZeroUsize::new(60_000),
        tx_checksum: true,
        ..LinkConfig::default()
    };
    let offers = |config| Impair::new(pair(link).0, config, 0).capabilities();
    let lossy = offers(ImpairConfig { loss: 0.5, ..ImpairConfig::default() });
    assert!(lossy.tx_checksum && lossy.segmentation_len_max.is_some());
    for config in [
        ImpairConfig { corrupt: 0.1, ..ImpairConfig::default() },
        ImpairConfig { resegment: 0.1, ..ImpairConfig::default() },
        ImpairConfig { coalesce: 0.1, ..ImpairConfig::default() },
    ] {
        let rewriting = offers(config);
        assert!(!rewriting.tx_checksum && rewriting.segmentation_len_max.is_none());
    }
}

#[test]
fn a_partial_checksum_is_completed_before_octets_change() {
    let (a, mut b) = pair(LinkConfig { tx_checksum: true, ..LinkConfig::default() });
    let mut a = Impair::new(a, ImpairConfig { resegment: 1.0, ..ImpairConfig::default() }, 15);
    let mut segment = Segment::new(5, &[1; 100]).frame();
    let complete = segment[50..52].to_vec();
    // The pseudo-header's sum: addresses, protocol and length of the segment.
    let sum = (0x0a00_u16 + 1) + (0x0a00 + 2) + 6 + 120;
    segment[50..52].copy_from_slice(&sum.to_be_bytes());
    let mut completed = segment.clone();
    checksum::complete(&mut completed, 34, 16);
    assert_eq!(completed[50..52], complete);
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    a.transmit(0, &TxFrame { checksum, ..TxFrame::whole(&segment) }).unwrap();
    a.flush(0);
    let mut stream = Vec::new();
    b.receive(0, 99, &mut |frame| {
        assert_eq!(frame.checksum, RxChecksum::Unverified);
        stream.extend(read(frame.head, Medium::Ethernet).2);
    });
    assert_eq!(stream, [1; 100]);
}

#[test]
fn a_held_super_frame_keeps_its_offloads() {
    let link = LinkConfig {
        super_frame_len_max: NonZeroUsize::new(60_000),
        tx_checksum: true,
        ..LinkConfig::default()
    };
    let (a, mut b) = pair(link);
    let mut a = Impair::new(a, ImpairConfig { reorder: 1.0, ..ImpairConfig::default() }, 16);
    let payload = [SharedSlice::from_bytes(&[7; 5000])];
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    let segment_size = NonZeroU16::new(1000);
    let frame =
        TxFrame { head: &[1; 54], payload: &payload, checksum, segment_size, digests: None };
    a.transmit(0, &frame).unwrap();
    a.flush(1_000_000);
    let count = b.receive(1_000_000, 9, &mut |frame| {
        assert_eq!((frame.head.len(), frame.segment_size), (5054, segment_size));
        assert_eq!(frame.checksum, RxChecksum::Valid);
    });
    assert_eq!(count, 1);
}

#[test]
fn held_frames_are_bounded() {
    let config = ImpairConfig { jitter: 1.0, held_max: 10, ..ImpairConfig::default() };
    let mut link = Link::new(config, 17);
    for k in 0..25 {
        link.send(0, &[k; 60]);
    }
    assert_eq!(link.received(u64::MAX).len(), 10);
    assert_eq!(link.a.counters().dropped, 15);
    assert!(link.a.pool.len() <= 11, "{} buffers", link.a.pool.len());
}

#[test]
fn buffers_are_recycled() {
    let config = ImpairConfig {
        corrupt: 0.5,
        reorder: 0.3,
        jitter: 0.3,
        resegment: 0.3,
        coalesce: 0.3,
        ..ImpairConfig::default()
    };
    let mut link = Link::new(config, 18);
    let mut buffers = Vec::new();
    for k in 0_u32..4000 {
        link.send(u64::from(k) * 100_000, &Segment::new(k * 10, &[1; 10]).frame());
        link.received(u64::from(k) * 100_000);
        if k % 1000 == 999 {
            link.received(u64::from(k) * 100_000 + 50_000_000);
            buffers.push(link.a.pool.len());
        }
    }
    assert!(buffers[3] < 200, "{buffers:?}");
}

#[test]
fn errors_of_the_inner_device_reach_the_caller() {
    let (a, _b) = pair(LinkConfig { queue_frames: 1, ..LinkConfig::default() });
    let link = a.link();
    let mut a = Impair::new(a, ImpairConfig { duplicate: 1.0, ..ImpairConfig::default() }, 19);
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 2000])), Err(TransmitError::TooLong));
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 60])), Ok(()));
    // There was no room for the copy.
    assert_eq!((a.counters().duplicated, a.counters().dropped), (1, 1));
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 60])), Err(TransmitError::Full));
    link.set_link_up(false);
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 60])), Err(TransmitError::LinkDown));
    assert!(!a.link_up());
}

#[test]
fn faults_can_be_switched_off() {
    let faults = ImpairConfig { loss: 1.0, coalesce: 1.0, ..ImpairConfig::default() };
    let mut link = Link::new(faults, 20);
    link.send(0, &Segment::new(0, &[1; 10]).frame());
    link.a.set_config(ImpairConfig::default());
    link.send(0, &Segment::new(10, &[1; 10]).frame());
    // The waiting segment is sent first, unmerged.
    assert_eq!(link.received(0).len(), 2);
}

/// Returns arrival times, in nanoseconds, of `count` frames of 1000 bytes offered at once.
fn arrivals(config: ImpairConfig, count: u32) -> (Vec<u64>, ImpairCounters) {
    let mut link = Link::new(config, 23);
    for _ in 0..count {
        link.send(0, &[0; 1000]);
    }
    let mut arrivals = Vec::new();
    while let Some(now_ns) = link.a.next_arrival_ns() {
        link.a.receive(now_ns, 64, &mut |_| {});
        arrivals.extend(link.received(now_ns).iter().map(|_| now_ns));
    }
    arrivals.extend(link.received(u64::MAX).iter().map(|_| 0));
    (arrivals, *link.a.counters())
}

#[test]
fn a_bottleneck_passes_frames_at_its_rate_and_drops_the_tail_of_its_queue() {
    let config = ImpairConfig {
        rate_bits_per_second: Some(1_000_000),
        queue_frames_max: 3,
        delay_ns: 500,
        ..ImpairConfig::default()
    };
    let (times, counters) = arrivals(config, 5);
    assert_eq!(times, [8_000_500, 16_000_500, 24_000_500]);
    assert_eq!((counters.dropped, counters.overflowed), (2, 2));
    assert_eq!((counters.frames, counters.bytes, counters.held_peak), (5, 5000, 3));
}

#[test]
fn an_outage_loses_everything() {
    let (times, counters) = arrivals(ImpairConfig { outage: true, ..ImpairConfig::default() }, 5);
    assert!(times.is_empty());
    assert_eq!(counters.dropped, 5);
}

#[test]
fn a_burst_ends_when_bursts_are_switched_off() {
    let burst = BurstLoss { enter: 1.0, leave: 0.0, loss: 1.0 };
    let mut link = Link::new(ImpairConfig { burst, ..ImpairConfig::default() }, 26);
    link.send(0, &[0; 60]);
    assert!(link.received(0).is_empty());
    link.a.set_config(ImpairConfig::default());
    link.send(0, &[0; 60]);
    assert_eq!(link.received(0).len(), 1);
}

#[test]
fn a_datagram_longer_than_the_path_takes_is_lost() {
    let config = ImpairConfig { path_mtu: Some(140), ..ImpairConfig::default() };
    let mut link = Link::new(config, 27);
    let segment = |payload_len: usize| Segment::new(1, &vec![7; payload_len]).frame();
    for payload_len in [100, 101] {
        link.send(0, &segment(payload_len));
    }
    assert_eq!(link.received(0), [segment(100)]);
}

#[test]
fn only_acknowledgments_are_lost_where_only_they_should_be() {
    let config = ImpairConfig { ack_loss: 1.0, ..ImpairConfig::default() };
    let mut link = Link::new(config, 25);
    let segment = |payload_len: usize| Segment::new(1, &vec![7; payload_len]).frame();
    for len in [100, 0, 1, 0] {
        link.send(0, &segment(len));
    }
    assert_eq!(link.received(0), [segment(100), segment(1)]);
    assert_eq!(link.a.counters().dropped, 2);
}

#[test]
fn a_reordered_frame_is_late_in_a_long_line_too() {
    let config = ImpairConfig {
        reorder: 0.2,
        delay_ns: 1_000_000,
        jitter: 1.0,
        jitter_ns_max: 1_000,
        ..ImpairConfig::default()
    };
    let mut link = Link::new(config, 24);
    let mut arrived = Vec::new();
    for index in 0..200_u64 {
        let now_ns = index * 10_000;
        link.a.receive(now_ns, 64, &mut |_| {});
        link.send(now_ns, &index.to_be_bytes());
        arrived.extend(link.received(now_ns));
    }
    arrived.extend(link.received(u64::MAX));
    assert_eq!(arrived.len(), 200);
    let indices = arrived.iter().map(|octets| u64::from_be_bytes(octets[..8].try_into().unwrap()));
    let furthest = indices.zip(0..).map(|(index, at): (u64, u64)| at.abs_diff(index)).max();
    // Up to three frames overtake a late one, and a few of these are late themselves.
    assert!(furthest.is_some_and(|places| (1..=8).contains(&places)), "{furthest:?}");
    assert!(link.a.counters().reordered > 20);
}

#[test]
fn a_frame_that_nobody_fetched_in_time_counts_as_late() {
    let config = ImpairConfig { delay_ns: 500, ..ImpairConfig::default() };
    let mut link = Link::new(config, 28);
    link.send(0, &[1; 60]);
    assert_eq!(link.received(500 + LATE_NS).len(), 1);
    let counters = *link.a.counters();
    assert_eq!((counters.late, counters.late_ns_max), (0, LATE_NS));
    link.send(1_000_000, &[1; 60]);
    assert_eq!(link.received(1_000_501 + LATE_NS).len(), 1);
    let counters = *link.a.counters();
    assert_eq!((counters.late, counters.late_ns_max), (1, LATE_NS + 1));
}
