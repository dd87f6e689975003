//! A gate between two memory links: forwarded datagrams, and ICMP messages to senders.

mod groups;
mod relay;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, Ipv4Packet, Ipv6Packet};
use urnic_netdev::memory::{LinkConfig, MemoryDevice, pair};
use urnic_netdev::{SharedSlice, TxChecksum, TxFrame};

use super::icmp::wrap;
use super::limits::{ICMP_BURST, ICMP_PER_SECOND};
use super::*;

const KERNEL: [&str; 2] = ["10.8.0.1", "fd08::1"];
const PORT: [&str; 2] = ["10.9.0.3", "fd00::3"];
const GATE: [&str; 2] = ["10.9.0.9", "fd00::9"];
const MTU: usize = 2044;
const DHCP_SERVER: &str = "10.8.0.67";

struct Scene {
    gate: Gate<MemoryDevice, MemoryDevice>,
    /// The far ends of the TUN interface and of the link.
    kernel: MemoryDevice,
    port: MemoryDevice,
    now_ns: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with(LinkConfig::default())
    }

    fn with(link: LinkConfig) -> Self {
        let (link, port) = pair(LinkConfig { medium: Medium::Ip, mtu: MTU, ..link });
        let tun = LinkConfig { medium: Medium::Ip, mtu: 9000, ..LinkConfig::default() };
        let (tun, kernel) = pair(tun);
        let rules = Rules {
            ipv4: Some((GATE[0].parse().unwrap(), 24)),
            ipv6: Some((GATE[1].parse().unwrap(), 64)),
            groups: ["239.1.2.3".parse().unwrap()].into(),
            dhcp_server: Some(DHCP_SERVER.parse().unwrap()),
        };
        Self { gate: Gate::new(link, tun, rules), kernel, port, now_ns: 1 }
    }

    /// Sends a datagram to the gate; returns the frames to the kernel and to the port.
    fn send(&mut self, from: Side, datagram: &[u8]) -> [Vec<Vec<u8>>; 2] {
        self.put(from, datagram);
        self.gate.turn(self.now_ns);
        let now_ns = self.now_ns;
        [&mut self.kernel, &mut self.port].map(|device| take(now_ns, device))
    }

    fn put(&mut self, from: Side, datagram: &[u8]) {
        let device = match from {
            Side::Kernel => &mut self.kernel,
            Side::Link => &mut self.port,
        };
        let payload: [SharedSlice<'_>; 0] = [];
        let checksum = TxChecksum::Complete;
        let frame = TxFrame {
            head: datagram,
            payload: &payload,
            checksum,
            segment_size: None,
            digests: None,
        };
        device.transmit(self.now_ns, &frame).unwrap();
        device.flush(self.now_ns);
    }
}

fn take(now_ns: u64, device: &mut MemoryDevice) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while device.receive(now_ns, 64, &mut |frame| frames.push(frame.head.to_vec())) > 0 {}
    frames
}

/// Builds a UDP datagram with `len` bytes after the IP header.
fn datagram(source: &str, to: &str, hops: u8, len: usize) -> Vec<u8> {
    let upper: Vec<u8> = (0..=255).cycle().take(len).collect();
    let mut octets =
        wrap(source.parse().unwrap(), to.parse().unwrap(), packet::UDP, &upper).unwrap();
    let at = if source.contains(':') { 7 } else { 8 };
    octets[at] = hops;
    if at == 8 {
        packet::write_checksum(&mut octets[..20]);
    }
    octets
}

/// Returns type, code and the quoted bytes of a message, after a check of its checksums.
fn message(octets: &[u8]) -> (u8, u8, Vec<u8>) {
    let capabilities = ChecksumCapabilities::default();
    if octets[0] >> 4 == 4 {
        let ip = Ipv4Packet::new_checked(octets).unwrap();
        assert!(ip.verify_checksum());
        let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
        Icmpv4Repr::parse(&icmp, &capabilities).expect("a message with a right checksum");
        return (icmp.msg_type().into(), icmp.msg_code(), ip.payload()[8..].to_vec());
    }
    let ip = Ipv6Packet::new_checked(octets).unwrap();
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &capabilities)
        .expect("a message with a right checksum");
    (icmp.msg_type().into(), icmp.msg_code(), ip.payload()[8..].to_vec())
}

#[test]
fn datagrams_go_through_with_one_hop_less() {
    let mut scene = Scene::new();
    for family in [0, 1] {
        for len in [0, 1, 7, 1000] {
            let out = datagram(KERNEL[family], PORT[family], 64, len);
            let expected = datagram(KERNEL[family], PORT[family], 63, len);
            assert_eq!(scene.send(Side::Kernel, &out), [vec![], vec![expected]]);
            let back = datagram(PORT[family], KERNEL[family], 2, len);
            let expected = datagram(PORT[family], KERNEL[family], 1, len);
            assert_eq!(scene.send(Side::Link, &back), [vec![expected], vec![]]);
        }
    }
    let [to_link, to_kernel] = scene.gate.directions();
    assert_eq!((to_link.forwarded, to_kernel.forwarded), (8, 8));
    assert_eq!(to_link.received_bytes, 4 * 20 + 4 * 40 + 2 * 1008);
}

#[test]
fn hop_limit_exceeded_is_reported_to_the_sender() {
    let mut scene = Scene::new();
    for (family, expected) in [(0, (11, 0)), (1, (3, 0))] {
        for hops in [0, 1] {
            let late = datagram(KERNEL[family], PORT[family], hops, 100);
            let [told, gone_on] = scene.send(Side::Kernel, &late);
            assert_eq!(gone_on, Vec::<Vec<u8>>::new());
            let (kind, code, quoted) = message(&told[0]);
            assert_eq!((kind, code), expected);
            assert_eq!(quoted, late);
            let back = datagram(PORT[family], KERNEL[family], hops, 100);
            let [_, told] = scene.send(Side::Link, &back);
            assert_eq!(message(&told[0]).0, expected.0, "the other way, too");
        }
    }
    assert_eq!(scene.gate.icmp().reports, 8);
}

#[test]
fn long_datagrams_are_fragmented_or_reported_as_too_big() {
    let mut scene = Scene::new();
    // 2044 whole, 2045 not.
    let whole = datagram(KERNEL[0], PORT[0], 9, MTU - 20);
    assert_eq!(scene.send(Side::Kernel, &whole)[1].len(), 1);
    let long = datagram(KERNEL[0], PORT[0], 9, MTU - 19);
    let [told, _] = scene.send(Side::Kernel, &long);
    assert_eq!(told[0].len(), 576, "RFC 1812 §4.3.2.3");
    let next_hop_mtu = u16::from_be_bytes([told[0][26], told[0][27]]);
    assert_eq!((told[0][20], told[0][21], next_hop_mtu), (3, 4, 2044));
    let long = datagram(KERNEL[1], PORT[1], 9, MTU - 39);
    let [told, _] = scene.send(Side::Kernel, &long);
    assert_eq!(told[0].len(), 1280, "RFC 4443 §2.4");
    assert_eq!((message(&told[0]).0, &told[0][44..48]), (2, &2044_u32.to_be_bytes()[..]));
    assert_eq!(scene.gate.directions()[0].too_big, 2);
    for len in [MTU - 19, 4 * 2024, 8000] {
        let mut long = datagram(KERNEL[0], PORT[0], 9, len);
        long[6] = 0;
        packet::write_checksum(&mut long[..20]);
        let [told, pieces] = scene.send(Side::Kernel, &long);
        assert!(told.is_empty());
        assert_eq!(pieces.len(), len.div_ceil(2024), "2024 is a multiple of 8");
        let mut payload = Vec::<u8>::new();
        for (at, piece) in pieces.iter().enumerate() {
            let ip = Ipv4Packet::new_checked(&piece[..]).unwrap();
            assert!(ip.verify_checksum() && ip.hop_limit() == 8 && piece.len() <= MTU);
            assert_eq!(usize::from(ip.frag_offset()), payload.len());
            assert_eq!(ip.more_frags(), at + 1 < pieces.len());
            payload.extend(ip.payload());
        }
        assert_eq!(payload, long[20..]);
    }
    assert_eq!(scene.gate.directions()[0].cut, 3);
}

/// RFC 791 §3.1: options with the copied flag are in every fragment.
#[test]
fn fragments_carry_options_with_the_copied_flag() {
    // Router alert (copied), no operation, record route with one entry (not copied), end.
    let options = [148, 4, 0, 0, 1, 7, 7, 4, 0, 0, 0, 0];
    let mut header = datagram(KERNEL[0], PORT[0], 9, 0);
    header.extend(options);
    header[0] = 0x48;
    header[6..8].copy_from_slice(&[0x20, 5]);
    let mut pieces = Vec::new();
    let cut = fragment::cut(&header, &[1; 100], 88, |header, piece| {
        pieces.push((header.to_vec(), piece.len()));
    });
    assert!(cut);
    let (first, second) = (&pieces[0].0, &pieces[1].0);
    assert_eq!((first.len(), second.len(), second[0]), (32, 24, 0x46));
    assert_eq!(second[20..], [148, 4, 0, 0]);
    assert_eq!(first[6..8], [0x20, 5]);
    assert_eq!(second[6..8], [0x20, 5 + 7], "a fragment of a fragment that was not the last");
    assert!(!fragment::cut(&header, &[1; 100], 39, |_, _| {}), "no room for eight bytes");
}

/// Offsets have thirteen bits: a fragment that would end after the longest datagram is not cut,
/// because its last piece would look like the first one of another datagram.
#[test]
fn a_fragment_behind_the_longest_datagram_is_not_cut() {
    for (offset, len, is_cut) in [(0x1fff, 2800, false), (7839, 2804, false), (7839, 2803, true)] {
        let mut scene = Scene::new();
        let mut fragment = datagram(KERNEL[0], PORT[0], 9, len);
        fragment[6..8].copy_from_slice(&u16::to_be_bytes(offset));
        packet::write_checksum(&mut fragment[..20]);
        let [told, gone_on] = scene.send(Side::Kernel, &fragment);
        assert!(told.is_empty(), "{offset}");
        assert_eq!(gone_on.len(), if is_cut { 2 } else { 0 }, "{offset} {len}");
        let counters = scene.gate.directions()[0];
        assert_eq!((counters.malformed, counters.cut), (u64::from(!is_cut), u64::from(is_cut)));
    }
}

#[test]
fn each_rule_has_its_counter() {
    type Read = fn(&Direction) -> u64;
    let read: [(&str, Read); 5] = [
        ("forwarded", |d| d.forwarded),
        ("own", |d| d.own),
        ("stayed", |d| d.stayed),
        ("martians", |d| d.martians),
        ("unreachable", |d| d.unreachable),
    ];
    let (kernel, link) = (Side::Kernel, Side::Link);
    for (from, source, to, expected) in [
        (kernel, "10.8.0.1", "10.9.0.3", "forwarded"),
        (kernel, "10.8.0.1", "239.9.9.9", "forwarded"),
        (kernel, "fd08::1", "ff15::9", "forwarded"),
        (link, "10.9.0.3", "239.1.2.3", "forwarded"),
        (link, "10.9.0.3", "239.9.9.9", "stayed"),
        (kernel, "10.8.0.1", "224.0.0.251", "stayed"),
        (kernel, "fe80::1", "ff02::2", "stayed"),
        (kernel, "::", "ff02::16", "stayed"),
        (link, "10.9.0.3", "10.9.0.255", "stayed"),
        (kernel, "10.8.0.1", "10.9.0.255", "stayed"),
        (link, "0.0.0.0", "255.255.255.255", "stayed"),
        (kernel, "169.254.1.1", "10.9.0.3", "stayed"),
        (link, "10.9.0.3", "10.9.0.9", "own"),
        (kernel, "fd08::1", "fd00::9", "own"),
        (link, "10.9.0.9", "10.8.0.1", "martians"),
        (link, "127.0.0.1", "10.8.0.1", "martians"),
        (link, "239.1.1.1", "10.8.0.1", "martians"),
        (link, "255.255.255.255", "10.8.0.1", "martians"),
        (kernel, "10.8.0.1", "127.0.0.1", "martians"),
        (kernel, "10.8.0.1", "240.0.0.1", "martians"),
        (kernel, "::1", "fd00::3", "martians"),
        (link, "10.9.0.3", "10.9.0.4", "unreachable"),
        (link, "fd00::3", "fd00::4", "unreachable"),
        (kernel, "fe80::1", "fd00::3", "unreachable"),
    ] {
        let mut scene = Scene::new();
        scene.send(from, &datagram(source, to, 64, 100));
        let [to_link, to_kernel] = scene.gate.directions();
        let counters = if from == kernel { to_link } else { to_kernel };
        for (name, read) in read {
            let wanted = u64::from(name == expected);
            assert_eq!(read(&counters), wanted, "{name}: {source} to {to} of {from:?}");
        }
    }
}

#[test]
fn malformed_datagrams_are_counted_without_an_icmp_message() {
    let mut scene = Scene::new();
    let good = datagram(KERNEL[0], PORT[0], 64, 100);
    let mut wrong_sum = good.clone();
    wrong_sum[10] ^= 1;
    let mut short_header = good.clone();
    short_header[0] = 0x44;
    let cut_off = &good[..119];
    for octets in [&wrong_sum[..], &short_header, cut_off, &good[..19], &[0x50; 40], &[0x60; 39]] {
        assert_eq!(scene.send(Side::Kernel, octets), [Vec::<Vec<u8>>::new(), vec![]]);
    }
    assert_eq!(scene.gate.directions()[0].malformed, 6);
    // Bytes after the length in the header do not belong to the datagram.
    let longer = [&good[..], &[9, 9, 9]].concat();
    assert_eq!(scene.send(Side::Kernel, &longer)[1][0].len(), good.len());
}

#[test]
fn no_icmp_message_about_errors_groups_and_later_fragments() {
    let mut scene = Scene::new();
    let late = |protocol: u8, first: u8, source: &str, to: &str| {
        let mut octets =
            wrap(source.parse().unwrap(), to.parse().unwrap(), protocol, &[first; 64]).unwrap();
        octets[if source.contains(':') { 7 } else { 8 }] = 1;
        octets
    };
    let summed = |mut octets: Vec<u8>| {
        packet::write_checksum(&mut octets[..20]);
        octets
    };
    for (octets, is_told) in [
        (summed(late(1, 8, KERNEL[0], PORT[0])), true),
        (summed(late(1, 3, KERNEL[0], PORT[0])), false),
        (summed(late(1, 5, KERNEL[0], PORT[0])), false),
        (summed(late(1, 11, KERNEL[0], PORT[0])), false),
        (summed(late(17, 0, KERNEL[0], "239.9.9.9")), false),
        (late(58, 128, KERNEL[1], PORT[1]), true),
        (late(58, 1, KERNEL[1], PORT[1]), false),
        (late(58, 137, KERNEL[1], PORT[1]), false),
    ] {
        let [told, gone_on] = scene.send(Side::Kernel, &octets);
        assert!(gone_on.is_empty());
        assert_eq!(told.len(), usize::from(is_told), "{octets:x?}");
    }
    let mut fragment = datagram(KERNEL[0], PORT[0], 1, 100);
    fragment[6..8].copy_from_slice(&[0, 7]);
    packet::write_checksum(&mut fragment[..20]);
    assert!(scene.send(Side::Kernel, &fragment)[0].is_empty(), "not the first");
    assert_eq!(scene.gate.icmp().reports_withheld, 6);
    // RFC 4443 §2.4 (e.1): a later fragment of ICMP, or of an unknown protocol, may belong to an
    // error message.
    for (named, offset, is_told) in
        [(6, 1, true), (17, 1, true), (58, 1, false), (60, 1, false), (58, 0, true), (17, 0, true)]
    {
        let upper = [&[named, 0, 0, offset << 3, 0, 0, 0, 1][..], &[128; 32]].concat();
        let [from, to] = [KERNEL[1], PORT[1]].map(|address| address.parse().unwrap());
        let mut fragment = wrap(from, to, 44, &upper).unwrap();
        fragment[7] = 1;
        let told = scene.send(Side::Kernel, &fragment)[0].len();
        assert_eq!(told, usize::from(is_told), "{named} at {offset}");
    }
}

#[test]
fn messages_have_a_rate() {
    let mut scene = Scene::new();
    let late = datagram(KERNEL[0], PORT[0], 1, 100);
    let told = |scene: &mut Scene, sent: u64| {
        (0..sent).map(|_| scene.send(Side::Kernel, &late)[0].len() as u64).sum::<u64>()
    };
    assert_eq!(told(&mut scene, 2 * ICMP_BURST), ICMP_BURST);
    scene.now_ns += 1_000_000_000 / ICMP_PER_SECOND;
    assert_eq!(told(&mut scene, 3), 1);
    scene.now_ns += 1_000_000_000;
    assert_eq!(told(&mut scene, 2 * ICMP_BURST), ICMP_BURST, "no more are saved up");
    assert_eq!(scene.gate.icmp().rate_limited, 2 * ICMP_BURST + 2);
}

#[test]
fn pings_of_the_gate_are_answered() {
    let mut scene = Scene::new();
    let capabilities = ChecksumCapabilities::default();
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: b"four octets of it" };
    let mut upper = vec![0; request.buffer_len()];
    request.emit(&mut Icmpv4Packet::new_unchecked(&mut upper), &capabilities);
    let ping = wrap(PORT[0].parse().unwrap(), GATE[0].parse().unwrap(), 1, &upper).unwrap();
    let [_, answers] = scene.send(Side::Link, &ping);
    assert_eq!(message(&answers[0]), (0, 0, b"four octets of it".to_vec()));

    let [from, to] = [KERNEL[1], GATE[1]].map(|address| address.parse().unwrap());
    let request = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: b"six" };
    let mut upper = vec![0; request.buffer_len()];
    request.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(&mut upper), &capabilities);
    let ping = wrap(from.into(), to.into(), 58, &upper).unwrap();
    let [answers, _] = scene.send(Side::Kernel, &ping);
    assert_eq!(message(&answers[0]), (129, 0, b"six".to_vec()));
    let mut damaged = ping;
    damaged[50] ^= 1;
    assert!(scene.send(Side::Kernel, &damaged)[0].is_empty());
    assert_eq!(scene.gate.icmp().echoes, 2);
}

#[test]
fn protocols_without_a_listener_are_reported_as_unreachable() {
    let mut scene = Scene::new();
    for (family, protocol, expected) in
        [(0, 17, (3, 3)), (0, 6, (3, 2)), (1, 17, (1, 4)), (1, 6, (4, 1))]
    {
        let [from, to] = [PORT[family], GATE[family]].map(|address| address.parse().unwrap());
        let octets = wrap(from, to, protocol, &[0; 20]).unwrap();
        let [_, told] = scene.send(Side::Link, &octets);
        assert_eq!((told[0].len() > 48, message_kind(&told[0])), (true, expected));
    }
}

/// Without parsing the rest: smoltcp does not know messages of this kind.
fn message_kind(octets: &[u8]) -> (u8, u8) {
    let at = if octets[0] >> 4 == 4 { 20 } else { 40 };
    (octets[at], octets[at + 1])
}

#[test]
fn link_down_and_silent_neighbours_are_reported_as_unreachable() {
    let mut scene = Scene::new();
    scene.port.set_link_up(false);
    for (family, expected) in [(0, (3, 0)), (1, (1, 0))] {
        let octets = datagram(KERNEL[family], PORT[family], 64, 100);
        let [told, _] = scene.send(Side::Kernel, &octets);
        assert_eq!(message_kind(&told[0]), expected);
    }
    scene.port.set_link_up(true);
    for (family, expected) in [(0, (3, 1)), (1, (1, 3))] {
        let octets = datagram(KERNEL[family], PORT[family], 64, 100);
        scene.gate.tell_undeliverable(scene.now_ns, &octets);
        let told = take(scene.now_ns, &mut scene.kernel);
        assert_eq!(message_kind(&told[0]), expected);
        // The gate's own answer to a port that has left.
        let own = datagram(GATE[family], PORT[family], 64, 100);
        scene.gate.tell_undeliverable(scene.now_ns, &own);
        assert!(take(scene.now_ns, &mut scene.kernel).is_empty());
    }
    let to_link = scene.gate.directions()[0];
    // Datagrams that an active link accepted count as forwarded, not as refused.
    assert_eq!((to_link.unreachable, to_link.undelivered), (2, 2));
}

#[test]
fn datagrams_beyond_the_room_of_the_link_wait_in_the_kernel() {
    let mut scene = Scene::with(LinkConfig { queue_frames: 8, ..LinkConfig::default() });
    for _ in 0..200 {
        scene.put(Side::Kernel, &datagram(KERNEL[0], PORT[0], 64, 100));
    }
    let mut arrived = 0;
    for _ in 0..100 {
        scene.gate.turn(scene.now_ns);
        arrived += take(scene.now_ns, &mut scene.port).len();
    }
    let lost = scene.gate.directions()[0].lost;
    assert_eq!((arrived as u64 + lost, lost), (200, 0));
}

proptest! {
    /// For any bytes: no forwarded datagram is longer than it was, or invalid.
    #[test]
    fn forwarding_arbitrary_octets_keeps_datagrams_valid(
        octets in prop::collection::vec(any::<u8>(), 0..200),
        version in 0..4_usize,
        from_link in any::<bool>(),
    ) {
        let mut scene = Scene::new();
        let good = datagram(KERNEL[version % 2], PORT[version % 2], 64, 100);
        // Half of the datagrams begin like a valid one.
        let kept = if version > 1 { octets.len().min(24) } else { 0 };
        let mixed = [&good[..kept], &octets[kept.min(octets.len())..]].concat();
        let side = if from_link { Side::Link } else { Side::Kernel };
        if mixed.is_empty() {
            return Ok(());
        }
        let [to_kernel, to_link] = scene.send(side, &mixed);
        for told in to_kernel.iter().chain(&to_link) {
            prop_assert!(packet::Datagram::parse(told).is_some());
        }
    }
}
