use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::SharedSlice;

/// Sends and flushes one frame.
fn send(device: &mut MemoryDevice, now_ns: u64, bytes: &[u8]) -> Result<(), TransmitError> {
    let result = device.transmit(now_ns, &TxFrame::whole(bytes));
    device.flush(now_ns);
    result
}

fn received(device: &mut MemoryDevice, now_ns: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let count = device.receive(now_ns, usize::MAX, &mut |frame| frames.push(frame.head.to_vec()));
    assert_eq!(count, frames.len());
    frames
}

fn config() -> LinkConfig {
    LinkConfig::default()
}

#[test]
fn a_frame_arrives_at_the_other_end_only() {
    let (mut a, mut b) = pair(config());
    send(&mut a, 0, &[1; 60]).unwrap();
    assert!(received(&mut a, 0).is_empty());
    assert_eq!(received(&mut b, 0), [vec![1; 60]]);
    assert!(received(&mut b, 0).is_empty());
}

#[test]
fn a_frame_waits_for_flush() {
    let (mut a, mut b) = pair(config());
    a.transmit(0, &TxFrame::whole(&[1; 60])).unwrap();
    assert_eq!(b.next_arrival_ns(), None);
    assert!(received(&mut b, 0).is_empty());
    a.flush(0);
    assert_eq!(received(&mut b, 0).len(), 1);
}

#[test]
fn a_frame_arrives_after_serialisation_and_latency() {
    let rate_bits_per_second = Some(1_000_000_000);
    let (mut a, mut b) = pair(LinkConfig { latency_ns: 5_000, rate_bits_per_second, ..config() });
    send(&mut a, 100, &[0; 125]).unwrap();
    send(&mut a, 100, &[0; 1250]).unwrap();
    // 125 bytes take 1 us at 1 Gbit/s, and the second frame waits for the first.
    assert_eq!(b.next_arrival_ns(), Some(100 + 1_000 + 5_000));
    assert!(received(&mut b, 6_099).is_empty());
    assert_eq!(received(&mut b, 6_100).len(), 1);
    assert_eq!(b.next_arrival_ns(), Some(100 + 1_000 + 10_000 + 5_000));
    assert_eq!(received(&mut b, 16_100).len(), 1);
    // An idle link starts sending when the frame is offered.
    send(&mut a, 1_000_000, &[0; 125]).unwrap();
    assert_eq!(b.next_arrival_ns(), Some(1_006_000));
}

#[test]
fn a_super_frame_takes_the_time_of_its_segments_with_their_headers() {
    let super_frame_len_max = NonZeroUsize::new(60_000);
    let rate_bits_per_second = Some(8_000_000_000);
    let config = LinkConfig { super_frame_len_max, rate_bits_per_second, ..config() };
    let (mut a, b) = pair(config);
    let payload = vec![7; 2500];
    let frame = TxFrame {
        head: &[1; 54],
        payload: &[SharedSlice::from_bytes(&payload)],
        checksum: TxChecksum::Complete,
        segment_size: NonZeroU16::new(1000),
        digests: None,
    };
    a.transmit(0, &frame).unwrap();
    a.flush(0);
    assert_eq!(b.next_arrival_ns(), Some(2500 + 3 * 54));
}

#[test]
fn a_link_without_rate_delivers_nothing() {
    let (mut a, mut b) = pair(LinkConfig { rate_bits_per_second: Some(0), ..config() });
    send(&mut a, 0, &[0; 60]).unwrap();
    assert!(received(&mut b, u64::MAX - 1).is_empty());
}

#[test]
fn serialisation_rounds_up_and_saturates() {
    assert_eq!(sending_ns(1, 3_000_000_000), 3);
    assert_eq!(sending_ns(usize::MAX, 1), u64::MAX);
    assert_eq!(sending_ns(0, 1), 0);
    let rate = NonZeroU64::MAX.get();
    assert_eq!(sending_ns(1500, rate), 1);
}

#[test]
fn a_full_queue_refuses_until_frames_are_received() {
    let (mut a, mut b) = pair(LinkConfig { queue_frames: 3, ..config() });
    for k in 0..3 {
        send(&mut a, 0, &[k; 60]).unwrap();
    }
    assert_eq!(send(&mut a, 0, &[3; 60]), Err(TransmitError::Full));
    assert_eq!(received(&mut b, 0).len(), 3);
    send(&mut a, 0, &[4; 60]).unwrap();
    assert_eq!(received(&mut b, 0), [vec![4; 60]]);
}

#[test]
fn the_room_is_what_can_be_transmitted() {
    let (mut a, mut b) = pair(LinkConfig { queue_frames: 80, ..config() });
    for taken in [0, 1, 5, 80, 80, 3] {
        let room = a.transmit_room();
        assert!(room <= 80);
        let mut sent = 0;
        while sent < room {
            send(&mut a, 0, &[0; 60]).unwrap();
            sent += 1;
        }
        while send(&mut a, 0, &[0; 60]).is_ok() {}
        assert_eq!(a.transmit_room(), 0);
        b.receive(0, taken, &mut |_| {});
        // Returns the kept buffers of the burst.
        b.receive(0, 0, &mut |_| {});
        assert_eq!(a.transmit_room(), taken);
    }
}

#[test]
fn buffers_are_recycled_and_do_not_grow_in_number() {
    let (mut a, mut b) = pair(config());
    for now_ns in 0..10_000 {
        for k in 0..8 {
            send(&mut a, now_ns, &[k; 200]).unwrap();
        }
        assert_eq!(received(&mut b, now_ns).len(), 8);
    }
    assert!(a.buffers <= 64, "{} buffers", a.buffers);
}

#[test]
fn at_most_a_burst_is_received_at_once() {
    let (mut a, mut b) = pair(config());
    for k in 0..5 {
        send(&mut a, 0, &[k; 60]).unwrap();
    }
    let mut seen = Vec::new();
    assert_eq!(b.receive(0, 2, &mut |frame| seen.push(frame.head[0])), 2);
    assert_eq!(b.receive(0, 0, &mut |_| panic!("burst of none")), 0);
    assert_eq!(b.receive(0, 9, &mut |frame| seen.push(frame.head[0])), 3);
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn the_sink_may_use_the_other_end() {
    let (mut a, mut b) = pair(config());
    send(&mut a, 0, &[1; 60]).unwrap();
    b.receive(0, 1, &mut |frame| {
        send(&mut a, 0, frame.head).unwrap();
        assert_eq!(a.next_arrival_ns(), None);
    });
    assert_eq!(received(&mut b, 0).len(), 1);
}

#[test]
fn only_a_partial_checksum_arrives_as_valid() {
    let (mut a, mut b) = pair(LinkConfig { tx_checksum: true, ..config() });
    let partial = TxChecksum::Partial { start: 34, offset: 16 };
    a.transmit(0, &TxFrame { checksum: partial, ..TxFrame::whole(&[0; 60]) }).unwrap();
    a.transmit(0, &TxFrame::whole(&[0; 60])).unwrap();
    a.flush(0);
    let mut seen = Vec::new();
    b.receive(0, 2, &mut |frame| seen.push(frame.checksum));
    assert_eq!(seen, [RxChecksum::Valid, RxChecksum::Unverified]);
}

#[test]
fn super_frames_cross_whole() {
    let super_frame_len_max = NonZeroUsize::new(64_000);
    let (mut a, mut b) = pair(LinkConfig { super_frame_len_max, ..config() });
    let payload: Vec<u8> = (0..=255).cycle().take(64_000).collect();
    let segment_size = NonZeroU16::new(1400);
    let payload = SharedSlice::from_bytes(&payload);
    let fragments = [payload.part(0, 10), payload.part(10, 63_990)];
    let frame = TxFrame { payload: &fragments, segment_size, ..TxFrame::whole(&[9; 54]) };
    a.transmit(0, &frame).unwrap();
    a.flush(0);
    let count = b.receive(0, 9, &mut |got| {
        assert_eq!(got.head.len(), 64_054);
        assert_eq!(got.segment_size, segment_size);
        assert_eq!(got.head[..54], [9; 54]);
        assert!(got.head[54..].iter().zip((0..=255).cycle()).all(|(&got, want)| got == want));
    });
    assert_eq!(count, 1);
}

#[test]
fn frames_that_are_too_long_are_refused() {
    let (mut a, _b) = pair(config());
    assert_eq!(send(&mut a, 0, &[0; 1514]), Ok(()));
    assert_eq!(send(&mut a, 0, &[0; 1515]), Err(TransmitError::TooLong));
    let mut tagged = [0; 1518];
    tagged[12] = 0x81;
    assert_eq!(send(&mut a, 0, &tagged), Ok(()));
    let segment_size = NonZeroU16::new(1000);
    let frame = TxFrame { segment_size, ..TxFrame::whole(&[0; 54]) };
    let payload = [SharedSlice::from_bytes(&[0; 10])];
    let super_frame = TxFrame { payload: &payload, ..frame };
    assert_eq!(a.transmit(0, &super_frame), Err(TransmitError::TooLong));

    let (mut a, _b) = pair(LinkConfig { super_frame_len_max: NonZeroUsize::new(5000), ..config() });
    let long = [0; 5001];
    let cases = [(5000, 1460, true), (5001, 1460, false), (5000, 1461, false)];
    for (len, size, fits) in cases {
        let payload = [SharedSlice::from_bytes(&long[..len])];
        let segment_size = NonZeroU16::new(size);
        let result = a.transmit(0, &TxFrame { payload: &payload, segment_size, ..frame });
        assert_eq!(result.is_ok(), fits, "{len} octets by {size}");
    }
}

#[test]
fn a_raised_mtu_makes_room_for_longer_frames() {
    let (mut a, mut b) = pair(config());
    send(&mut a, 0, &[0; 1514]).unwrap();
    assert_eq!(received(&mut b, 0).len(), 1);
    b.set_mtu(9000);
    assert_eq!(a.capabilities().mtu, 9000);
    send(&mut a, 0, &[1; 9014]).unwrap();
    assert_eq!(received(&mut b, 0), [vec![1; 9014]]);
    a.set_mtu(100);
    assert_eq!(send(&mut a, 0, &[0; 1000]), Err(TransmitError::TooLong));
    a.set_mtu(usize::MAX);
    assert_eq!(send(&mut a, 0, &[2; 1000]), Ok(()));
}

#[test]
fn link_down_loses_frames_in_flight() {
    let (mut a, mut b) = pair(LinkConfig { queue_frames: 2, ..config() });
    let link = a.link();
    send(&mut a, 0, &[0; 60]).unwrap();
    a.transmit(0, &TxFrame::whole(&[0; 60])).unwrap();
    link.set_link_up(false);
    a.flush(0);
    assert!(!a.link_up() && !b.link_up());
    assert_eq!(send(&mut a, 0, &[0; 60]), Err(TransmitError::LinkDown));
    assert!(received(&mut b, 9).is_empty());
    link.set_link_up(true);
    assert!(received(&mut b, 9).is_empty());
    // Lost frames have returned their buffers.
    for k in 0..2 {
        send(&mut a, 10, &[k; 60]).unwrap();
    }
    assert_eq!(received(&mut b, 10).len(), 2);
}

#[test]
fn a_lowered_latency_does_not_reorder() {
    let (mut a, mut b) = pair(LinkConfig { latency_ns: 1000, ..config() });
    send(&mut a, 0, &[1; 60]).unwrap();
    a.set_latency(10);
    send(&mut a, 0, &[2; 60]).unwrap();
    assert!(received(&mut b, 999).is_empty());
    assert_eq!(received(&mut b, 1000), [vec![1; 60], vec![2; 60]]);
}

#[test]
fn the_ends_work_on_two_threads() {
    const FRAMES: u32 = 20_000;
    let (mut a, mut b) = pair(LinkConfig { queue_frames: 64, ..config() });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for k in 0..FRAMES {
                let mut frame = [0; 64];
                frame[..4].copy_from_slice(&k.to_be_bytes());
                while send(&mut a, 0, &frame) == Err(TransmitError::Full) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0_u32;
        while next < FRAMES {
            let count = b.receive(0, 32, &mut |frame| {
                assert_eq!(frame.head[..4], next.to_be_bytes());
                next += 1;
            });
            if count == 0 {
                std::thread::yield_now();
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_frame_arrives_whole_in_order_and_not_too_early(
        frames in prop::collection::vec((0_usize..1500, 0_u64..5_000, any::<u8>()), 1..60),
        latency_ns in 0_u64..100_000,
        rate in prop::option::of(1_000_000_u64..100_000_000_000),
    ) {
        let (mut a, mut b) =
            pair(LinkConfig { latency_ns, rate_bits_per_second: rate, ..config() });
        let mut now_ns = 0;
        let mut sent = Vec::new();
        for (len, pause_ns, fill) in frames {
            now_ns += pause_ns;
            let bytes = vec![fill; len];
            let split = len / 3;
            let fragments = [SharedSlice::from_bytes(&bytes[split..])];
            let frame = TxFrame { payload: &fragments, ..TxFrame::whole(&bytes[..split]) };
            a.transmit(now_ns, &frame).unwrap();
            a.flush(now_ns);
            sent.push((now_ns, bytes));
        }
        for (sent_ns, bytes) in sent {
            let arrival_ns = b.next_arrival_ns().unwrap();
            let least_ns = latency_ns + rate.map_or(0, |rate| sending_ns(bytes.len(), rate));
            prop_assert!(arrival_ns >= sent_ns + least_ns);
            let mut got = Vec::new();
            prop_assert_eq!(b.receive(arrival_ns, 1, &mut |frame| got = frame.head.to_vec()), 1);
            prop_assert_eq!(got, bytes);
        }
        prop_assert_eq!(b.next_arrival_ns(), None);
    }
}

/// Not a test: prints the cost of a frame besides its copy.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement")]
fn measure() {
    for (len, burst) in [(0, 1), (0, 8), (0, 32), (1460, 1), (1460, 32)] {
        let (mut a, mut b) = pair(config());
        let payload = vec![1; len];
        let fragments = [SharedSlice::from_bytes(&payload)];
        let frame = TxFrame { payload: &fragments, ..TxFrame::whole(&[0; 54]) };
        let rounds = 400_000 / burst;
        let mut octets = 0;
        let mut round = || {
            for _ in 0..burst {
                a.transmit(0, &frame).unwrap();
            }
            a.flush(0);
            b.receive(0, 64, &mut |frame| octets += frame.head.len());
        };
        // The best of several: other processes may be running.
        let best = (0..8).map(|_| {
            let start = std::time::Instant::now();
            (0..rounds).for_each(|_| round());
            start.elapsed()
        });
        let best = best.min().unwrap();
        let frames = f64::from(rounds * burst);
        let ns = best.as_secs_f64() * 1e9 / frames;
        println!("{len:5} octets, bursts of {burst:2}: {ns:6.1} ns per frame ({octets} octets)");
    }
}

#[test]
fn frame_written_into_the_device_buffer_arrives_like_any_other() {
    let rate_bits_per_second = Some(1_000_000_000);
    let (mut a, mut b) = pair(LinkConfig { latency_ns: 500, rate_bits_per_second, ..config() });
    let write = |buffer: &mut [u8]| {
        buffer.fill(9);
        buffer.len()
    };
    assert_eq!(a.transmit_in_place(0, 125, RxChecksum::Unverified, write), Ok(125));
    assert_eq!(b.next_arrival_ns(), None, "it waits for flush");
    a.flush(0);
    assert_eq!(b.next_arrival_ns(), Some(1_500));
    assert_eq!(received(&mut b, 1_500), [vec![9; 125]]);
}

#[test]
fn frame_refused_before_it_is_written_is_never_written() {
    let (mut a, _b) = pair(LinkConfig { queue_frames: 1, ..config() });
    let refused = |device: &mut MemoryDevice, len| {
        device.transmit_in_place(0, len, RxChecksum::Valid, |_| panic!("written")).unwrap_err()
    };
    assert_eq!(refused(&mut a, 1515), TransmitError::TooLong);
    a.transmit_in_place(0, 1514, RxChecksum::Valid, |_| ()).unwrap();
    assert_eq!(refused(&mut a, 60), TransmitError::Full);
    a.set_link_up(false);
    assert_eq!(refused(&mut a, 60), TransmitError::LinkDown);
}
