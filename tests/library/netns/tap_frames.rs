//! Frames across TAPs, byte by byte: input, output, and the kernel's changes.

use std::num::NonZeroU16;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::wire::{
    EthernetFrame, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, pretty_print::PrettyPrinter,
};
use urnic_netdev::tap::{LINK_CHECK_INTERVAL_NS, Tap};
use urnic_netdev::{Device, RxChecksum, SharedSlice, TransmitError, TxChecksum, TxFrame};

use urnic_testkit::counting::Census;
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{bridged_taps, ip};

/// Positions of the headers in a frame.
#[derive(Clone, Copy, Debug)]
struct Layout {
    ipv6: bool,
    vlan: bool,
}

impl Layout {
    const ALL: [Self; 4] = [
        Self { ipv6: false, vlan: false },
        Self { ipv6: true, vlan: false },
        Self { ipv6: false, vlan: true },
        Self { ipv6: true, vlan: true },
    ];

    const fn network_at(self) -> usize {
        if self.vlan { 18 } else { 14 }
    }

    const fn transport_at(self) -> usize {
        self.network_at() + if self.ipv6 { 40 } else { 20 }
    }

    /// Returns the headers of a TCP segment with this payload; its checksum is partial or complete.
    fn head(self, payload: &[u8], partial: bool) -> Vec<u8> {
        let mut head = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if self.vlan {
            head.extend([0x81, 0x00, 0x00, 0x07]);
        }
        let tcp_len = 20 + payload.len() as u16;
        if self.ipv6 {
            head.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            head.extend(tcp_len.to_be_bytes());
            head.extend([6, 64]);
            for last in [1, 2] {
                head.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
            }
        } else {
            head.extend([0x08, 0x00, 0x45, 0]);
            head.extend((tcp_len + 20).to_be_bytes());
            head.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            Ipv4Packet::new_unchecked(&mut head[self.network_at()..]).fill_checksum();
        }
        // Ports 7174 to 7175, some numbers, PSH and ACK.
        head.extend([0x1c, 6, 0x1c, 7, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        let (source, destination) = self.addresses();
        let mut segment = [&head[self.transport_at()..], payload].concat();
        let mut tcp = TcpPacket::new_unchecked(&mut segment);
        tcp.fill_checksum(&source, &destination);
        let complete = tcp.checksum();
        let checksum = if partial {
            // The checksum of the segment without its bytes: the pseudo-header's sum.
            let mut sum = 0_u32;
            tcp.set_checksum(0);
            for word in segment.chunks(2) {
                let low = word.get(1).copied().unwrap_or(0);
                sum += u32::from(u16::from_be_bytes([word[0], low]));
            }
            // !complete = pseudo + segment, so pseudo = !complete - segment.
            let segment_sum = fold(sum);
            fold(u32::from(!complete) + u32::from(!segment_sum))
        } else {
            complete
        };
        let at = self.transport_at() + 16;
        head[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        head
    }

    fn addresses(self) -> (IpAddress, IpAddress) {
        if self.ipv6 {
            (IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2))
        } else {
            (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2))
        }
    }

    /// Checks the headers of a received frame of one segment, and returns sequence number and
    /// payload.
    fn parse(self, frame: &[u8]) -> (u32, Vec<u8>) {
        let shown = || PrettyPrinter::<EthernetFrame<&[u8]>>::new("", &frame).to_string();
        let packet = &frame[self.network_at()..];
        let segment = if self.ipv6 {
            Ipv6Packet::new_checked(packet).unwrap().payload()
        } else {
            let packet = Ipv4Packet::new_checked(packet).unwrap();
            assert!(packet.verify_checksum(), "IPv4 checksum of {}", shown());
            packet.payload()
        };
        let tcp = TcpPacket::new_checked(segment).unwrap();
        let (source, destination) = self.addresses();
        assert!(tcp.verify_checksum(&source, &destination), "TCP checksum of {}", shown());
        (tcp.seq_number().0.cast_unsigned(), tcp.payload().to_vec())
    }
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A received frame, owned.
struct Received {
    bytes: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

/// Waits until there is a frame, for at most `limit_ms`.
fn readable(tap: &Tap, limit_ms: i64) -> bool {
    let fd = tap.readiness().unwrap();
    let limit = Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Takes `count` frames of the test from the device, ignoring the kernel's own frames.
fn take(tap: &mut Tap, count: usize) -> Vec<Received> {
    let mut frames = Vec::new();
    while frames.len() < count && readable(tap, 2000) {
        tap.receive(0, 1, &mut |frame| {
            if frame.head[..6] == [2, 0, 0, 0, 0, 2] {
                let (checksum, segment_size) = (frame.checksum, frame.segment_size);
                frames.push(Received { bytes: frame.head.to_vec(), checksum, segment_size });
            }
        });
    }
    assert_eq!(frames.len(), count, "frames arrived in time");
    assert!(!readable(tap, 20), "no frame more");
    frames
}

fn octets(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8)) as u8).collect()
}

/// Waits until the bridge forwards: it drops frames before its ports are ready.
fn ready_taps(mtu: usize, vnet_header: [bool; 2]) -> (Tap, Tap) {
    let (mut a, mut b) = bridged_taps(mtu, vnet_header);
    await_forwarding(&mut a, &mut b);
    (a, b)
}

fn await_forwarding(a: &mut Tap, b: &mut Tap) {
    // To the broadcast address, from the address of the tests, of an experimental type.
    let mut probe = [0; 60];
    probe[..14]
        .copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    for _ in 0..100 {
        let frame = TxFrame::whole(&probe);
        a.transmit(0, &frame).unwrap();
        if readable(b, 50) {
            while b.receive(0, 1, &mut |_| ()) > 0 {}
            return;
        }
    }
    panic!("the bridge does not forward");
}

netns_tests! {
    with ["/dev/net/tun"];

    fn a_frame_arrives_as_it_was_sent_and_makes_the_descriptor_ready() {
        for vnet_header in [[false, false], [true, true], [true, false], [false, true]] {
            let (mut a, mut b) = ready_taps(1500, vnet_header);
            for layout in Layout::ALL {
                let payload = octets(1001);
                let head = layout.head(&payload, false);
                let (first, rest) = payload.split_at(333);
                let fragments = [SharedSlice::from_bytes(first), SharedSlice::from_bytes(rest)];
                let checksum = TxChecksum::Complete;
                let frame =
                    TxFrame { head: &head, payload: &fragments, checksum, segment_size: None, digests: None };
                assert!(!readable(&b, 0), "nothing there yet");
                a.transmit(0, &frame).unwrap();
                let [received] = take(&mut b, 1).try_into().ok().unwrap();
                assert_eq!(received.bytes, [head, payload].concat(), "{layout:?}");
                assert_eq!(received.segment_size, None);
                assert_eq!(received.checksum, RxChecksum::Unverified);
            }
            drop((a, b));
            ip("link del bridge0");
        }
    }

    fn a_super_frame_arrives_whole() {
        let (mut a, mut b) = ready_taps(1500, [true, true]);
        let most = a.capabilities().segmentation_len_max.unwrap().get();
        for layout in Layout::ALL {
            for len in [1401, 14_000, most] {
                let payload = octets(len);
                let head = layout.head(&payload, true);
                let fragments: Vec<_> =
                    payload.chunks(len.div_ceil(1000)).map(SharedSlice::from_bytes).collect();
                let start = layout.transport_at() as u16;
                let checksum = TxChecksum::Partial { start, offset: 16 };
                let segment_size = NonZeroU16::new(1400);
                let frame = TxFrame { head: &head, payload: &fragments, checksum, segment_size, digests: None };
                a.transmit(0, &frame).unwrap();
                let [received] = take(&mut b, 1).try_into().ok().unwrap();
                assert!(received.bytes == [head, payload].concat(), "{layout:?} {len}");
                assert_eq!(received.segment_size, segment_size, "{layout:?} {len}");
                assert_eq!(received.checksum, RxChecksum::Valid, "{layout:?} {len}");
            }
        }
    }

    /// The kernel cuts super-frames for an interface until its user announces that it takes them,
    /// and a new interface has a new user.
    fn a_super_frame_arrives_whole_at_an_interface_made_again() {
        let (mut a, mut b) = ready_taps(1500, [true, true]);
        ip("link del tap-b");
        let mut now_ns = 0;
        let mut look = |tap: &mut Tap, wanted| {
            now_ns += LINK_CHECK_INTERVAL_NS;
            tap.receive(now_ns, 64, &mut |_| {});
            assert_eq!(tap.link_up(), wanted);
        };
        look(&mut b, false);
        ip("tuntap add dev tap-b mode tap vnet_hdr");
        ip("link set tap-b master bridge0");
        ip("link set tap-b up");
        look(&mut b, true);
        await_forwarding(&mut a, &mut b);
        let layout = Layout::ALL[0];
        let payload = octets(14_000);
        let head = layout.head(&payload, true);
        let fragments = [SharedSlice::from_bytes(&payload)];
        let start = layout.transport_at() as u16;
        let checksum = TxChecksum::Partial { start, offset: 16 };
        let segment_size = NonZeroU16::new(1400);
        let frame = TxFrame { head: &head, payload: &fragments, checksum, segment_size, digests: None };
        a.transmit(0, &frame).unwrap();
        let [received] = take(&mut b, 1).try_into().ok().unwrap();
        assert_eq!(received.segment_size, segment_size);
        assert_eq!(received.checksum, RxChecksum::Valid);
        assert!(received.bytes == [head, payload].concat());
    }

    fn the_kernel_cuts_a_super_frame_for_a_device_without() {
        let (mut a, mut b) = ready_taps(1500, [true, false]);
        for layout in Layout::ALL {
            for (len, partial) in [(1401, true), (14_000, true), (50_001, true), (14_000, false)] {
                let payload = octets(len);
                let head = layout.head(&payload, partial);
                let start = layout.transport_at() as u16;
                let checksum = if partial {
                    TxChecksum::Partial { start, offset: 16 }
                } else {
                    TxChecksum::Complete
                };
                let fragments = [SharedSlice::from_bytes(&payload)];
                let segment_size = NonZeroU16::new(1400);
                let frame = TxFrame { head: &head, payload: &fragments, checksum, segment_size, digests: None };
                a.transmit(0, &frame).unwrap();
                let mut next = 0x100;
                let mut all = Vec::new();
                for received in take(&mut b, len.div_ceil(1400)) {
                    let (seq, part) = layout.parse(&received.bytes);
                    assert_eq!(seq, next, "{layout:?} {len}");
                    next += part.len() as u32;
                    all.extend(part);
                }
                assert!(all == payload, "{layout:?} {len} {partial}");
            }
        }
    }

    fn a_partial_checksum_is_completed_for_a_device_without() {
        let (mut a, mut b) = ready_taps(1500, [true, false]);
        for layout in Layout::ALL {
            for len in [0, 1, 777, 1400] {
                let payload = octets(len);
                let head = layout.head(&payload, true);
                let start = layout.transport_at() as u16;
                let checksum = TxChecksum::Partial { start, offset: 16 };
                let fragments = [SharedSlice::from_bytes(&payload)];
                let frame =
                    TxFrame { head: &head, payload: &fragments, checksum, segment_size: None, digests: None };
                a.transmit(0, &frame).unwrap();
                let [received] = take(&mut b, 1).try_into().ok().unwrap();
                assert_eq!(layout.parse(&received.bytes).1, payload, "{layout:?} {len}");
            }
        }
    }

    fn no_frame_is_allocated_for() {
        for vnet_header in [[false, false], [true, true]] {
            let (mut a, mut b) = ready_taps(1500, vnet_header);
            let layout = Layout { ipv6: false, vlan: false };
            let super_frames = vnet_header[0];
            let payload = octets(if super_frames { 62_780 } else { 1460 });
            let head = layout.head(&payload, super_frames);
            let fragments: Vec<_> = payload.chunks(500).map(SharedSlice::from_bytes).collect();
            let checksum = if super_frames {
                TxChecksum::Partial { start: 34, offset: 16 }
            } else {
                TxChecksum::Complete
            };
            let segment_size = NonZeroU16::new(1460).filter(|_| super_frames);
            let frame = TxFrame { head: &head, payload: &fragments, checksum, segment_size, digests: None };
            let census = Census::begin();
            let mut received = 0;
            for _ in 0..500 {
                a.transmit(0, &frame).unwrap();
                a.flush(0);
                b.receive(0, 64, &mut |frame| received += frame.head.len());
            }
            let allocated = census.end();
            assert!(received >= 490 * (head.len() + payload.len()), "frames arrived: {received}");
            assert_eq!(allocated, 0, "allocations for 500 frames each way");
            drop((a, b));
            ip("link del bridge0");
        }
    }

    fn frames_beyond_the_capabilities_of_the_device_are_refused() {
        let (mut a, _b) = ready_taps(1500, [true, true]);
        let layout = Layout { ipv6: false, vlan: false };
        let payload = octets(70_000);
        let head = layout.head(&payload[..1400], true);
        let checksum = TxChecksum::Partial { start: 34, offset: 16 };
        let most = a.capabilities().segmentation_len_max.unwrap().get();
        let mut transmit = |len: usize, size: u16, fragments: usize| {
            let payload: Vec<_> =
                payload[..len].chunks(len.div_ceil(fragments)).map(SharedSlice::from_bytes).collect();
            let segment_size = NonZeroU16::new(size);
            a.transmit(0, &TxFrame { head: &head, payload: &payload, checksum, segment_size, digests: None })
        };
        assert_eq!(transmit(1460, 0, 1), Ok(()));
        assert_eq!(transmit(1461, 0, 1), Err(TransmitError::TooLong));
        assert_eq!(transmit(14_000, 1461, 1), Err(TransmitError::TooLong));
        assert_eq!(transmit(most, 1460, 1), Ok(()));
        assert_eq!(transmit(most + 1, 1460, 1), Err(TransmitError::TooLong));
        assert_eq!(transmit(10_220, 1460, 1022), Ok(()));
        assert_eq!(transmit(10_230, 1460, 1023), Err(TransmitError::TooLong));
        ip("link set tap-a down");
        let mut transmit = || {
            let payload = [SharedSlice::from_bytes(&payload[..100])];
            a.transmit(0, &TxFrame { head: &head, payload: &payload, checksum, segment_size: None, digests: None })
        };
        assert_eq!(transmit(), Err(TransmitError::LinkDown), "found by trying");
        assert_eq!(transmit(), Err(TransmitError::LinkDown), "known");
    }
}
