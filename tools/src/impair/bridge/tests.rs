use std::num::{NonZeroU16, NonZeroUsize};

use urnic_netdev::SharedSlice;
use urnic_netdev::memory::{LinkConfig, MemoryDevice, pair};

use super::*;

/// Creates a bridge between links without offloads, and their far ends.
fn bridge(configs: [ImpairConfig; 2]) -> (Bridge<MemoryDevice>, [MemoryDevice; 2]) {
    joined(LinkConfig { queue_frames: 4096, ..LinkConfig::default() }, configs, false)
}

/// Creates a bridge between links with super-frames, and their far ends.
fn bridge_of_super_frames(
    config: ImpairConfig,
    merges: bool,
) -> (Bridge<MemoryDevice>, [MemoryDevice; 2]) {
    let link = LinkConfig {
        super_frame_len_max: NonZeroUsize::new(65_000),
        tx_checksum: true,
        queue_frames: 8192,
        ..LinkConfig::default()
    };
    joined(link, [config; 2], merges)
}

fn joined(
    link: LinkConfig,
    configs: [ImpairConfig; 2],
    merges: bool,
) -> (Bridge<MemoryDevice>, [MemoryDevice; 2]) {
    let ((far_a, a), (far_b, b)) = (pair(link), pair(link));
    (Bridge::new([a, b], configs, 7, merges), [far_a, far_b])
}

fn send(device: &mut MemoryDevice, octets: &[u8]) {
    let frame = TxFrame::whole(octets);
    device.transmit(0, &frame).unwrap();
    device.flush(0);
}

fn received(device: &mut MemoryDevice, now_ns: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    device.receive(now_ns, 4096, &mut |frame| frames.push(frame.head.to_vec()));
    frames
}

#[test]
fn frames_cross_in_both_directions_after_their_delay() {
    let delayed = |delay_ns| ImpairConfig { delay_ns, ..ImpairConfig::default() };
    let (mut bridge, [mut a, mut b]) = bridge([delayed(1_000), delayed(3_000)]);
    send(&mut a, &[1; 60]);
    send(&mut b, &[2; 60]);
    assert_eq!(bridge.turn(|| 0), 2);
    assert_eq!(bridge.next_release_ns(), Some(1_000));
    bridge.turn(|| 999);
    assert!(received(&mut b, 999).is_empty());
    bridge.turn(|| 1_000);
    assert_eq!(received(&mut b, 1_000), [[1; 60]]);
    assert_eq!(bridge.next_release_ns(), Some(3_000));
    bridge.turn(|| 3_000);
    assert_eq!(received(&mut a, 3_000), [[2; 60]]);
    let [to_b, to_a] = bridge.counters();
    assert_eq!((to_b.frames, to_a.frames), (1, 1));
}

#[test]
fn each_direction_has_its_own_faults() {
    let lossy = ImpairConfig { loss: 1.0, ..ImpairConfig::default() };
    let (mut bridge, [mut a, mut b]) = bridge([lossy, ImpairConfig::default()]);
    for _ in 0..10 {
        send(&mut a, &[1; 60]);
        send(&mut b, &[2; 60]);
    }
    bridge.turn(|| 0);
    assert!(received(&mut b, 0).is_empty());
    assert_eq!(received(&mut a, 0).len(), 10);
    bridge.set_config([ImpairConfig::default(); 2]);
    send(&mut a, &[1; 60]);
    bridge.turn(|| 0);
    assert_eq!(received(&mut b, 0).len(), 1);
}

#[test]
fn a_frame_too_long_for_the_other_device_is_counted() {
    let (mut bridge, [mut a, _b]) = bridge([ImpairConfig::default(); 2]);
    bridge.devices()[1].set_mtu(500);
    send(&mut a, &[1; 1000]);
    bridge.turn(|| 0);
    assert_eq!(bridge.refused(), [1, 0]);
}

/// Bytes of payload in each packet of a super-frame.
const SEGMENT_LEN: usize = 1000;
const HEAD_LEN: usize = 54;

/// Builds the headers of a TCP segment over IPv4 with `payload_len` bytes from `seq` on; the device
/// must complete its checksum.
fn head(seq: u32, id: u16, payload_len: usize) -> Vec<u8> {
    let mut head = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let mut ip = vec![0x45, 0];
    ip.extend(u16::try_from(40 + payload_len).unwrap().to_be_bytes());
    ip.extend(id.to_be_bytes());
    ip.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let words = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    head.extend(ip);
    head.extend([0, 1, 0, 2]);
    head.extend(seq.to_be_bytes());
    head.extend([0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    head
}

/// Sends `packets` packets as one super-frame, the payload of each made of its number.
fn send_super_frame(device: &mut MemoryDevice, now_ns: u64, first: u32, packets: u32) {
    let payload: Vec<u8> =
        (first..first + packets).flat_map(|number| number.to_be_bytes().repeat(250)).collect();
    let seq = first * u32::try_from(SEGMENT_LEN).unwrap();
    let head = head(seq, u16::try_from(first & 0xffff).unwrap(), payload.len());
    let frame = TxFrame {
        head: &head,
        payload: &[SharedSlice::from_bytes(&payload)],
        checksum: TxChecksum::Partial { start: 34, offset: 16 },
        segment_size: NonZeroU16::new(u16::try_from(SEGMENT_LEN).unwrap()),
        digests: None,
    };
    device.transmit(now_ns, &frame).unwrap();
    device.flush(now_ns);
}

/// Returns the numbers of the received packets, in order, and the number of frames.
fn numbers(device: &mut MemoryDevice, now_ns: u64) -> (Vec<u32>, usize) {
    let frames = received(device, now_ns);
    let mut numbers = Vec::new();
    for frame in &frames {
        let mut seq = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        for payload in frame[HEAD_LEN..].chunks(SEGMENT_LEN) {
            let number = u32::from_be_bytes(payload[..4].try_into().unwrap());
            assert_eq!(payload, number.to_be_bytes().repeat(250), "of one packet");
            assert_eq!(seq, number * u32::try_from(SEGMENT_LEN).unwrap(), "in its place");
            seq += u32::try_from(SEGMENT_LEN).unwrap();
            numbers.push(number);
        }
    }
    (numbers, frames.len())
}

#[test]
fn every_packet_of_a_super_frame_meets_its_own_fate() {
    for merges in [false, true] {
        let lossy = ImpairConfig { loss: 0.5, ..ImpairConfig::default() };
        let (mut bridge, [mut a, mut b]) = bridge_of_super_frames(lossy, merges);
        for round in 0..20 {
            send_super_frame(&mut a, 0, round * 50, 50);
        }
        while bridge.turn(|| 0) > 0 {}
        let (arrived, _) = numbers(&mut b, 0);
        let [to_b, _] = bridge.counters();
        assert_eq!(to_b.frames, 1000);
        assert_eq!(arrived.len() as u64, 1000 - to_b.dropped);
        assert!((400..600).contains(&arrived.len()), "{} arrived", arrived.len());
        assert!(arrived.is_sorted());
    }
}

/// Sends super-frames in both directions over a path and turns the bridge as the command does: at
/// its next release, or `grain_ns` after the previous turn. Returns the packets and frames at B and
/// at A.
fn carry(config: ImpairConfig, merges: bool, grain_ns: u64) -> [(Vec<u32>, usize); 2] {
    const ROUNDS: u32 = 40;
    let (mut bridge, [mut a, mut b]) = bridge_of_super_frames(config, merges);
    let mut arrived = [(Vec::new(), 0), (Vec::new(), 0)];
    let (mut now_ns, mut round) = (0, 0);
    loop {
        if round < ROUNDS && now_ns >= u64::from(round) * 300_000 {
            // From time to time a single packet.
            let packets = if round % 7 == 0 { 1 } else { 40 };
            send_super_frame(&mut a, now_ns, round * 40, packets);
            send_super_frame(&mut b, now_ns, round * 40, packets);
            round += 1;
        }
        let moved = bridge.turn(|| now_ns);
        for (device, (all, frames)) in [&mut b, &mut a].into_iter().zip(&mut arrived) {
            let (numbers, count) = numbers(device, now_ns);
            all.extend(numbers);
            *frames += count;
        }
        let next_ns = match bridge.next_release_ns() {
            None if round == ROUNDS && moved == 0 => return arrived,
            release_ns => release_ns.unwrap_or(now_ns + 300_000).min(now_ns + 300_000),
        };
        now_ns = next_ns.max(now_ns + grain_ns);
    }
}

#[test]
fn bridge_loses_and_reorders_nothing_by_default() {
    let expected: Vec<u32> = (0..40_u32)
        .flat_map(|round| round * 40..round * 40 + if round % 7 == 0 { 1 } else { 40 })
        .collect();
    let path = ImpairConfig { delay_ns: 10_000_000, held_max: 8192, ..ImpairConfig::default() };
    let bottleneck =
        ImpairConfig { rate_bits_per_second: Some(1_000_000_000), queue_frames_max: 8192, ..path };
    let jitter = ImpairConfig { jitter: 1.0, jitter_ns_max: 2_000_000, ..path };
    for config in [ImpairConfig::default(), path, bottleneck, jitter] {
        for (merges, grain_ns) in [(false, 1), (true, 1), (true, 50_000)] {
            for (arrived, frames) in carry(config, merges, grain_ns) {
                assert_eq!(arrived, expected, "{config:?} {merges}");
                assert!(merges || frames == expected.len(), "{frames} frames");
            }
        }
    }
    // At 1 Gbit/s five packets pass in a grain.
    let [(_, frames), _] = carry(bottleneck, true, 50_000);
    assert!(frames * 3 < expected.len(), "{frames} frames");
}

#[test]
fn a_turn_that_is_interrupted_sends_nothing_on_too_early() {
    let delayed = ImpairConfig { delay_ns: 1_000, ..ImpairConfig::default() };
    let (mut bridge, [mut a, _b]) = bridge([delayed; 2]);
    send(&mut a, &[1; 60]);
    // The clock of a process that is delayed after its first look.
    let looks = std::cell::Cell::new(0);
    bridge.turn(|| looks.replace(7_000));
    assert_eq!(bridge.next_release_ns(), Some(8_000));
}
