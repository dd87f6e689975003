use std::num::{NonZeroU16, NonZeroUsize};

use proptest::prelude::*;

use super::*;
use crate::memory::{LinkConfig, MemoryDevice, pair};
use crate::segment::tests::{Segment, read};
use crate::segment::{CWR, FIN, PSH};
use crate::{Medium, SharedSlice, TxChecksum};

/// Offsets of the TCP header and its checksum field in an untagged frame over IPv4.
const TCP_AT: u16 = 34;
const CHECKSUM_OFFSET: u16 = 16;
const HEAD_LEN: usize = 54;

/// Returns a device of packets on a link of super-frames, and the far end of the link.
fn link(merges: bool) -> (Packets<MemoryDevice>, MemoryDevice) {
    let (a, b) = pair(LinkConfig {
        super_frame_len_max: NonZeroUsize::new(65_000),
        tx_checksum: true,
        ..LinkConfig::default()
    });
    (Packets::new(a, merges), b)
}

/// Returns segments of one flow with these payloads and consecutive identifications.
fn flow(seq: u32, payloads: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut seq = seq;
    let mut packets = Vec::new();
    for (index, payload) in (0..).zip(payloads) {
        packets.push(Segment { id: 0xfffe_u16.wrapping_add(index), ..Segment::new(seq, payload) });
        seq = seq.wrapping_add(u32::try_from(payload.len()).unwrap());
    }
    packets.iter().map(Segment::frame).collect()
}

/// Bytes and segment size of a frame.
type Arrived = (Vec<u8>, Option<u16>);

/// Returns the arrived frames.
fn received(device: &mut impl Device) -> Vec<Arrived> {
    let mut frames = Vec::new();
    while device.receive(0, 7, &mut |frame| {
        frames.push((frame.head.to_vec(), frame.segment_size.map(NonZeroU16::get)));
    }) > 0
    {}
    frames
}

/// Transmits packets in one burst. Returns the arrived frames, and the packets that cutting them
/// gives.
fn cross(packets: &[Vec<u8>]) -> (Vec<Arrived>, Vec<Vec<u8>>) {
    let (mut a, mut b) = link(true);
    for packet in packets {
        a.transmit(0, &TxFrame::whole(packet)).unwrap();
    }
    a.flush(0);
    let frames = received(&mut b);
    for (bytes, segment_size) in &frames {
        send(&mut b, bytes, *segment_size);
    }
    let cut = received(&mut a);
    assert!(cut.iter().all(|(_, segment_size)| segment_size.is_none()));
    (frames, cut.into_iter().map(|(bytes, _)| bytes).collect())
}

/// Transmits a frame, with a partial checksum if it is a super-frame.
fn send(device: &mut MemoryDevice, bytes: &[u8], segment_size: Option<u16>) {
    let Some(size) = segment_size else {
        device.transmit(0, &TxFrame::whole(bytes)).unwrap();
        return device.flush(0);
    };
    let (head, payload) = bytes.split_at(HEAD_LEN);
    let checksum = TxChecksum::Partial { start: TCP_AT, offset: CHECKSUM_OFFSET };
    let payload = [SharedSlice::from_bytes(payload)];
    let frame = TxFrame {
        head,
        payload: &payload,
        checksum,
        segment_size: NonZeroU16::new(size),
        digests: None,
    };
    device.transmit(0, &frame).unwrap();
    device.flush(0);
}

#[test]
fn super_frame_is_cut_into_its_packets() {
    let (mut a, mut b) = link(false);
    let payload: Vec<u8> = (0..=255).cycle().take(3500).collect();
    let flags = 0x10 | PSH | FIN | CWR;
    let segment = Segment { id: 0xffff, flags, ..Segment::new(u32::MAX - 999, &payload) };
    send(&mut b, &segment.frame(), Some(1000));
    let expected = [
        Segment { flags: 0x10 | CWR, ..Segment::new(u32::MAX - 999, &payload[..1000]) },
        Segment { flags: 0x10, ..Segment::new(0, &payload[1000..2000]) },
        Segment { flags: 0x10, ..Segment::new(1000, &payload[2000..3000]) },
        Segment { flags: 0x10 | PSH | FIN, ..Segment::new(2000, &payload[3000..]) },
    ];
    let expected = (0..).zip(expected).map(|(index, segment)| {
        (Segment { id: 0xffff_u16.wrapping_add(index), ..segment }.frame(), None)
    });
    assert_eq!(received(&mut a), expected.collect::<Vec<_>>());
}

#[test]
fn receive_returns_at_most_a_burst() {
    let (mut a, mut b) = link(false);
    let payload: Vec<u8> = (0..=255).cycle().take(1000).collect();
    send(&mut b, &Segment::new(0, &payload).frame(), Some(100));
    send(&mut b, &Segment::new(1000, &[7; 5]).frame(), None);
    let mut stream = Vec::new();
    let mut counts = Vec::new();
    loop {
        let count = a.receive(0, 4, &mut |frame| {
            let (seq, _, payload) = read(frame.head, Medium::Ethernet);
            assert_eq!(seq as usize, stream.len());
            stream.extend(payload);
        });
        if count == 0 {
            break;
        }
        counts.push(count);
        // A caller must not wait for packets that are available.
        assert_eq!(a.next_arrival_ns().is_some(), counts.len() < 3, "{counts:?}");
    }
    assert_eq!(counts, [4, 4, 3]);
    assert_eq!(stream[..1000], payload);
    assert_eq!(stream[1000..], [7; 5]);
}

#[test]
fn a_partial_checksum_is_completed() {
    let (mut a, mut b) = link(false);
    let whole_frame = Segment::new(5, &[1; 101]).frame();
    let mut partial = whole_frame.clone();
    partial[50..52].copy_from_slice(&[0x12, 0x34]);
    let checksum = TxChecksum::Partial { start: TCP_AT, offset: CHECKSUM_OFFSET };
    b.transmit(0, &TxFrame { checksum, ..TxFrame::whole(&partial) }).unwrap();
    b.flush(0);
    assert_eq!(received(&mut a), [(whole_frame, None)]);
}

/// Returns a UDP datagram over IPv4 with this checksum field and payload.
fn udp(checksum: u16, payload: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 30, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 1, 0, 2, 0, 10]);
    frame.extend(checksum.to_be_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn a_datagram_without_a_checksum_keeps_none_and_a_computed_zero_is_all_ones() {
    // Pseudo-header and header: 0a00 0001 0a00 0002 0011 000a, 0001 0002 000a.
    let sum: u16 = 0x1400 + 3 + 0x11 + 0xa + 3 + 0xa;
    for (field, payload, completed) in
        [(0, [1, 2], 0), (0x1234, [0, 0], !sum), (0x1234, (!sum).to_be_bytes(), 0xffff)]
    {
        let (mut a, mut b) = link(false);
        let checksum = TxChecksum::Partial { start: TCP_AT, offset: 6 };
        b.transmit(0, &TxFrame { checksum, ..TxFrame::whole(&udp(field, payload)) }).unwrap();
        b.flush(0);
        assert_eq!(received(&mut a), [(udp(completed, payload), None)]);
    }
}

#[test]
fn packets_of_one_flow_leave_as_one_frame_that_is_cut_to_the_same_packets() {
    let packets = flow(u32::MAX - 150, &[&[1; 100], &[2; 100], &[3; 100], &[4; 7]]);
    let (frames, cut) = cross(&packets);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].1, Some(100));
    assert_eq!(cut, packets);
}

#[test]
fn without_merging_each_packet_leaves_as_it_is() {
    let packets = flow(0, &[&[1; 100], &[2; 100]]);
    let (mut a, mut b) = link(false);
    for packet in &packets {
        a.transmit(0, &TxFrame::whole(packet)).unwrap();
    }
    a.flush(0);
    let expected: Vec<_> = packets.into_iter().map(|packet| (packet, None)).collect();
    assert_eq!(received(&mut b), expected);
}

#[test]
fn a_packet_that_does_not_fit_the_train_ends_it() {
    let first = Segment { id: 1, ..Segment::new(0, &[1; 100]) };
    let next = Segment { id: 2, ..Segment::new(100, &[2; 100]) };
    let alone = |second: &[u8], why: &str| {
        let packets = [first.frame(), second.to_vec()];
        let (frames, cut) = cross(&packets);
        assert_eq!(frames.len(), 2, "{why}");
        assert_eq!(cut, packets, "{why}");
    };
    alone(&Segment { seq: 101, ..next.clone() }.frame(), "a gap");
    alone(&Segment { seq: 0, ..next.clone() }.frame(), "a repetition");
    alone(&Segment { id: 1, ..next.clone() }.frame(), "the same identification");
    alone(&Segment { payload: vec![2; 101], ..next.clone() }.frame(), "longer");
    alone(&Segment { payload: vec![], ..next.clone() }.frame(), "no data");
    alone(&Segment { flags: 0x50, ..next.clone() }.frame(), "ECE");
    alone(&Segment { flags: 0x10 | CWR, ..next.clone() }.frame(), "CWR");
    alone(&Segment { options: vec![1; 4], ..next.clone() }.frame(), "options");
    alone(&Segment { is_v6: true, ..next.clone() }.frame(), "another version");
    alone(&[9; 60], "not IP");
    for at in 14..next.frame().len() {
        let mut damaged = next.frame();
        damaged[at] ^= 0x10;
        alone(&damaged, &format!("bits of octet {at}"));
    }
    assert_eq!(cross(&[first.frame(), next.frame()]).0.len(), 1, "the packet itself fits");
}

#[test]
fn a_short_packet_a_push_and_a_fin_are_the_last_of_a_train() {
    let payloads: [&[u8]; 3] = [&[1; 100], &[2; 99], &[3; 99]];
    let packets = flow(0, &payloads);
    let (frames, cut) = cross(&packets);
    assert_eq!(frames.len(), 2);
    assert_eq!(cut, packets);
    for flag in [PSH, FIN] {
        let packets: Vec<Vec<u8>> = (0..3_u16)
            .map(|index| {
                let flags = if index == 1 { 0x10 | flag } else { 0x10 };
                let seq = u32::from(index) * 100;
                Segment { id: index, flags, ..Segment::new(seq, &[1; 100]) }.frame()
            })
            .collect();
        let (frames, cut) = cross(&packets);
        assert_eq!(frames.len(), 2, "flag {flag}");
        assert_eq!(cut, packets, "flag {flag}");
    }
}

#[test]
fn a_train_is_no_longer_than_the_device_takes() {
    let payloads = [[7_u8; 1400]; 60];
    let payloads: Vec<&[u8]> = payloads.iter().map(<[u8; 1400]>::as_slice).collect();
    let packets = flow(0, &payloads);
    let (frames, cut) = cross(&packets);
    assert_eq!(frames.len(), 2);
    assert!(frames[0].0.len() > 60_000);
    assert_eq!(cut, packets);
}

#[test]
fn a_device_without_offloads_gets_packets() {
    let (a, mut b) = pair(LinkConfig::default());
    let mut a = Packets::new(a, true);
    for packet in flow(0, &[&[1; 100], &[2; 100]]) {
        a.transmit(0, &TxFrame::whole(&packet)).unwrap();
    }
    a.flush(0);
    assert_eq!(received(&mut b).len(), 2);
}

#[test]
fn packets_that_are_refused_together_are_counted() {
    let (mut a, b) = link(true);
    for packet in flow(0, &[&[1; 100], &[2; 100], &[3; 100]]) {
        a.transmit(0, &TxFrame::whole(&packet)).unwrap();
    }
    b.set_link_up(false);
    a.flush(0);
    assert_eq!(a.lost(), 3);
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 60])), Err(TransmitError::LinkDown));
    b.set_link_up(true);
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 2000])), Err(TransmitError::TooLong));
}

/// One packet of a mixed load: flow, whether the packet before is left out, length, flags.
fn step() -> impl Strategy<Value = (bool, bool, usize, u8)> {
    let flags = prop_oneof![8 => Just(0x10), 1 => Just(0x10 | PSH), 1 => Just(0x10 | CWR)];
    let len = prop_oneof![4 => Just(100_usize), 1 => 0..140_usize];
    (prop::bool::weighted(0.2), prop::bool::weighted(0.1), len, flags)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_packets_keep_their_stream_and_order(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut flows = [(1_u32, 1_u16), (u32::MAX - 500, 0xfff0)];
        let mut packets = Vec::new();
        for (second, gap, len, flags) in steps {
            let (seq, id) = &mut flows[usize::from(second)];
            if gap {
                *seq = seq.wrapping_add(100);
            }
            let segment = Segment { id: *id, flags, ..Segment::new(*seq, &vec![id.to_be_bytes()[1]; len]) };
            *seq = seq.wrapping_add(u32::try_from(len).unwrap());
            *id = id.wrapping_add(1);
            packets.push(segment.frame());
        }
        let (frames, cut) = cross(&packets);
        prop_assert!(frames.len() <= packets.len());
        prop_assert_eq!(cut, packets);
    }

    #[test]
    fn splitting_and_merging_arbitrary_octets_never_panics(bytes in prop::collection::vec(any::<u8>(), 14..120), size in 1_u16..200) {
        let (mut a, mut b) = link(true);
        b.transmit(0, &TxFrame::whole(&bytes)).unwrap();
        let checksum = TxChecksum::Partial { start: TCP_AT, offset: CHECKSUM_OFFSET };
        b.transmit(0, &TxFrame { checksum, ..TxFrame::whole(&bytes) }).unwrap();
        let segment_size = NonZeroU16::new(size);
        b.transmit(0, &TxFrame { checksum, segment_size, ..TxFrame::whole(&bytes) }).unwrap();
        b.flush(0);
        let frames = received(&mut a);
        prop_assert!(frames.len() >= 3);
        prop_assert_eq!(&frames[0].0, &bytes);
        a.transmit(0, &TxFrame::whole(&bytes)).unwrap();
        a.flush(0);
        prop_assert_eq!(received(&mut b), [(bytes, None)]);
    }
}

/// IPv4 says the length of a datagram in 16 bits, whatever a device can cut.
#[test]
fn merged_frame_is_no_longer_than_an_ipv4_datagram() {
    let (a, mut b) = pair(LinkConfig {
        mtu: 9000,
        super_frame_len_max: NonZeroUsize::new(100_000),
        tx_checksum: true,
        ..LinkConfig::default()
    });
    let mut a = Packets::new(a, true);
    let payload = [3; 8000];
    for packet in flow(0, &[&payload[..]; 12]) {
        a.transmit(0, &TxFrame::whole(&packet)).unwrap();
    }
    a.flush(0);
    let lens: Vec<_> = received(&mut b).iter().map(|(bytes, _)| bytes.len() - HEAD_LEN).collect();
    assert_eq!(lens, [64_000, 32_000]);
}

/// RFC 1624: a checksum of 0xffff is as good as one of 0, and no computation gives it: what is cut again would differ.
#[test]
fn a_packet_whose_checksum_was_not_computed_goes_as_it_is() {
    // The payload that makes the checksum zero.
    let bare = Segment::new(1000, &[0; 100]).frame();
    let mut payload = [0; 100];
    payload[..2].copy_from_slice(&bare[50..52]);
    let mut second = Segment { id: 0x1235, ..Segment::new(1000, &payload) }.frame();
    assert_eq!(second[50..52], [0, 0]);
    second[50..52].fill(0xff);
    let first = Segment::new(900, &[0; 100]).frame();
    let (frames, cut) = cross(&[first.clone(), second.clone()]);
    assert_eq!(frames.len(), 2, "no train");
    assert_eq!(cut, [first, second]);
}
