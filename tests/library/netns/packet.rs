//! Engines on packet sockets, over veth between two namespaces.

use std::net::IpAddr;

use urnic_engine::poll::Poller;
use urnic_engine::time::Duration;
use urnic_netdev::packet::{LINK_CHECK_INTERVAL_NS, PacketConfig, PacketSocket};
use urnic_netdev::{
    Device, OpenError, RxChecksum, SharedSlice, TransmitError, TxChecksum, TxFrame,
};

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::pair::{A, B, v6};
use urnic_testkit::programs::is_there;
use urnic_testkit::skip;

use crate::netns::scene::{Scene, Setup};
use crate::netns::tap::Both;
use urnic_testkit::network::{Namespace, command, ip, veth};

const LEN: usize = 8 << 20;

/// Ethernet addresses of the engines.
pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 10, 0, 0, 1], [2, 0, 10, 0, 0, 2]];

pub(crate) fn with_config<R>(name: &str, test: impl FnOnce(PacketConfig<'_>) -> R) -> R {
    let which = usize::from(name == "veth-b");
    let address = [A, B][which];
    let addresses = [IpAddr::V4(address), IpAddr::V6(v6(address))];
    let mac = Some(MACS[which]);
    test(PacketConfig { mac, ..PacketConfig::new(name.parse().unwrap(), &addresses) })
}

pub(crate) fn open(name: &str, super_frames: bool) -> PacketSocket {
    with_config(name, |config| {
        PacketSocket::open(&PacketConfig { super_frames, ..config }).unwrap()
    })
}

/// Returns a veth pair with a packet socket on each end.
fn pair(mtu: usize, super_frames: [bool; 2], peer: &Namespace) -> (PacketSocket, PacketSocket) {
    veth(mtu, peer);
    (open("veth-a", super_frames[0]), peer.run(|| open("veth-b", super_frames[1])))
}

/// Moves data with every combination of addresses and markers.
fn exchange(mtu: usize, super_frames: [bool; 2]) {
    let peer = Namespace::new();
    let (mut a, mut b) = pair(mtu, super_frames, &peer);
    for setup in Setup::matrix() {
        let what = format!("MTU {mtu}, super-frames {super_frames:?}, {setup:?}");
        let mut scene = Scene::connect(&mut a, &mut b, &setup);
        scene.exchange(LEN, &what);
        for counters in [scene.a.counters(), scene.b.counters()] {
            let alignment = counters.alignment;
            assert_eq!(counters.mpa.crc_bad, 0, "{what}");
            assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
            if counters.tcp.retransmissions == 0 {
                assert_eq!(alignment.segments_aligned, alignment.segments, "{what}");
            }
            if super_frames == [true; 2] {
                assert!(alignment.frames * 2 < alignment.segments, "super: {alignment:?}");
            }
        }
    }
    assert_eq!((a.frames_cut(), b.frames_cut()), (0, 0));
}

/// Returns an IPv4 and a TCP header from one engine to the other in an Ethernet frame, without
/// checksums.
fn head(port: u16) -> Vec<u8> {
    let mut head = [MACS[1], MACS[0]].concat();
    head.extend([0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    head.extend(A.octets());
    head.extend(B.octets());
    head.extend(port.to_be_bytes());
    head.extend([0; 18]);
    head
}

fn send(device: &mut impl Device, head: &[u8]) -> Result<(), TransmitError> {
    let payload =
        [SharedSlice::from_bytes(b"twenty octets, by my "), SharedSlice::from_bytes(b"count")];
    let checksum = TxChecksum::Complete;
    device.transmit(
        0,
        &TxFrame { head, payload: &payload, checksum, segment_size: None, digests: None },
    )?;
    device.flush(0);
    Ok(())
}

/// Sends a frame from the second engine to the first.
pub(crate) fn send_to_a(device: &mut impl Device) {
    let mut head = head(1);
    head[..6].copy_from_slice(&MACS[0]);
    head[26..30].copy_from_slice(&B.octets());
    head[30..34].copy_from_slice(&A.octets());
    send(device, &head).unwrap();
}

/// Returns the frames that a device receives within some time.
pub(crate) fn received(device: &mut impl Device, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..200 {
        device.receive(0, 1024, &mut |frame| frames.push(frame.head.to_vec()));
        if frames.len() >= count {
            break;
        }
        pause();
    }
    frames
}

fn pause() {
    command("sleep", "0.005");
}

netns_tests! {
    fn plain_frames_of_1500_move_every_octet() {
        exchange(1500, [false, false]);
    }

    fn plain_frames_of_9000_move_every_octet() {
        exchange(9000, [false, false]);
    }

    fn super_frames_of_1500_move_every_octet() {
        exchange(1500, [true, true]);
    }

    fn super_frames_of_9000_move_every_octet() {
        exchange(9000, [true, true]);
    }

    /// The longer frames do not fit the ring's slots.
    fn super_frames_meet_a_device_that_sends_none() {
        exchange(1500, [true, false]);
    }

    /// The kernel cuts and merges frames in between.
    fn frames_that_the_kernel_cut_and_merged_move_every_octet() {
        if !is_there("ethtool") {
            return skip("frames cut and merged", "`ethtool` is missing");
        }
        let peer = Namespace::new();
        veth(1500, &peer);
        command("ethtool", "-K veth-a tso off gso off tx off");
        peer.run(|| command("ethtool", "-K veth-b gro on"));
        let (a, b) = (open("veth-a", true), peer.run(|| open("veth-b", true)));
        let mut scene = Scene::connect(a, b, &Setup::default());
        scene.exchange(LEN, "cut and merged");
    }

    fn frames_arrive_once_whole_and_the_sender_does_not_see_them() {
        let peer = Namespace::new();
        let (mut a, mut b) = pair(1500, [true, true], &peer);
        for port in 0..10 {
            send(&mut a, &head(port)).unwrap();
        }
        let frames = received(&mut b, 10);
        assert_eq!(frames.len(), 10);
        for (port, frame) in (0u16..).zip(frames) {
            assert_eq!(frame[..54], head(port));
            assert_eq!(&frame[54..], b"twenty octets, by my count");
        }
        assert!(received(&mut b, 1).is_empty(), "once");
        assert!(received(&mut a, 1).is_empty(), "not by their sender");
    }

    fn frames_for_others_are_left_to_the_kernel() {
        let peer = Namespace::new();
        let (mut a, mut b) = pair(1500, [true, true], &peer);
        let mut other_address = head(1);
        other_address[33] = 77;
        let mut other_mac = head(2);
        other_mac[5] = 77;
        let mut other_protocol = head(3);
        other_protocol[12] = 0x77;
        for head in [other_address, other_mac, other_protocol, head(4)] {
            send(&mut a, &head).unwrap();
        }
        let frames = received(&mut b, 2);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0][..54], head(4));
    }

    fn a_vlan_tag_arrives() {
        let peer = Namespace::new();
        let (mut a, mut b) = pair(1500, [true, true], &peer);
        let mut tagged = head(5);
        tagged.splice(12..12, [0x81, 0x00, 0x20, 0x07]);
        send(&mut a, &tagged).unwrap();
        let frames = received(&mut b, 1);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0][..58], tagged);
        assert_eq!(&frames[0][58..], b"twenty octets, by my count");
    }

    fn a_partial_checksum_stays_partial_in_this_machine() {
        let peer = Namespace::new();
        let (mut a, mut b) = pair(1500, [true, true], &peer);
        let head = head(6);
        let checksum = TxChecksum::Partial { start: 34, offset: 16 };
        let frame = TxFrame { head: &head, payload: &[], checksum, segment_size: None, digests: None };
        a.transmit(0, &frame).unwrap();
        let mut checksums = Vec::new();
        for _ in 0..200 {
            b.receive(0, 8, &mut |frame| checksums.push(frame.checksum));
            if !checksums.is_empty() {
                break;
            }
            pause();
        }
        assert_eq!(checksums, [RxChecksum::Valid]);
    }

    fn a_flow_stays_in_its_queue_and_queues_share_the_flows() {
        const FLOWS: u16 = 64;
        let peer = Namespace::new();
        veth(1500, &peer);
        let mut a = open("veth-a", true);
        let open_two = || with_config("veth-b", |config| PacketSocket::open_queues(&config, 2));
        let mut queues = peer.run(open_two).unwrap();
        for round in 0..3 {
            for port in 0..FLOWS {
                send(&mut a, &head(port)).unwrap();
            }
            pause();
            let ports = |device: &mut PacketSocket| {
                let frames = received(device, usize::from(FLOWS));
                frames.iter().map(|f| u16::from_be_bytes([f[34], f[35]])).collect::<Vec<_>>()
            };
            let [first, second] = [ports(&mut queues[0]), ports(&mut queues[1])];
            assert_eq!(first.len() + second.len(), usize::from(FLOWS), "in round {round}");
            assert!(first.iter().all(|port| !second.contains(port)), "each in one queue");
            assert!(first.len() > 8 && second.len() > 8, "{first:?} {second:?}");
        }
        let second = queues.pop().unwrap();
        let both = Both(queues.pop().unwrap(), second);
        let mut scene = Scene::connect(a, both, &Setup::default());
        scene.exchange(LEN, "two queues");
    }

    fn frames_may_go_around_the_queueing_discipline() {
        let peer = Namespace::new();
        veth(1500, &peer);
        let a = with_config("veth-a", |config| {
            PacketSocket::open(&PacketConfig { qdisc_bypass: true, ..config }).unwrap()
        });
        let mut scene = Scene::connect(a, peer.run(|| open("veth-b", true)), &Setup::default());
        scene.exchange(LEN, "bypass");
    }

    fn a_transfer_outlives_an_interface_taken_down_and_up() {
        let peer = Namespace::new();
        let (a, b) = pair(1500, [true, true], &peer);
        let mut scene = Scene::connect(a, b, &Setup::default());
        scene.exchange(1 << 20, "before");
        scene.post_writes(64);
        ip("link set veth-a down");
        assert!(scene.run_for(Duration::from_secs(5), |scene| !up(&scene.a.poller)), "noticed");
        let frame = head(1);
        let refused = send(&mut scene.a.poller.device, &frame);
        assert_eq!(refused, Err(TransmitError::LinkDown));
        ip("link set veth-a up");
        assert!(scene.run_for(Duration::from_secs(5), |scene| up(&scene.a.poller)), "back");
        assert!(scene.completes(64), "what was posted before: {:?}", scene.a.counters());
        scene.exchange(1 << 20, "after");
    }

    fn a_transfer_outlives_an_interface_deleted_and_made_again() {
        let peer = Namespace::new();
        let (a, b) = pair(1500, [true, true], &peer);
        let mut scene = Scene::connect(a, b, &Setup::default());
        scene.exchange(1 << 20, "before");
        scene.post_writes(64);
        ip("link del veth-a");
        assert!(scene.run_for(Duration::from_secs(5), |scene| {
            !up(&scene.a.poller) && !up(&scene.b.poller)
        }), "noticed by both");
        veth(1500, &peer);
        assert!(scene.completes(64), "what was posted before: {:?}", scene.a.counters());
        scene.exchange(1 << 20, "after");
    }

    /// Without this setting a card drops frames that are neither for its own address nor for
    /// groups.
    fn an_interface_receives_as_much_after_it_was_made_again() {
        let peer = Namespace::new();
        for (own_mac, wanted) in [(false, "promiscuity 1"), (true, "allmulti 1")] {
            veth(1500, &peer);
            let shown = || command("ip", "-d link show veth-a");
            assert!(!shown().contains(wanted), "{}", shown());
            let mut device = with_config("veth-a", |config| {
                let mac = config.mac.filter(|_| !own_mac);
                PacketSocket::open(&PacketConfig { mac, ..config }).unwrap()
            });
            assert!(shown().contains(wanted), "{}", shown());
            ip("link del veth-a");
            let mut now_ns = 0;
            let mut look = |wanted| {
                now_ns += LINK_CHECK_INTERVAL_NS;
                device.receive(now_ns, 64, &mut |_| {});
                assert_eq!(device.link_up(), wanted);
            };
            look(false);
            veth(1500, &peer);
            look(true);
            assert!(shown().contains(wanted), "{}", shown());
            drop(device);
            ip("link del veth-a");
        }
    }

    fn packet_socket_errors_name_a_remedy() {
        let error = PacketSocket::open(&PacketConfig::new("nope".parse().unwrap(), &[]));
        let error = error.unwrap_err();
        assert!(matches!(error, OpenError::UnknownInterface { .. }), "{error}");
        assert!(error.to_string().contains("there are: lo"), "{error}");
        let peer = Namespace::new();
        veth(1500, &peer);
        ip("addr add 10.0.0.1/24 dev lo");
        let error = with_config("veth-a", |config| PacketSocket::open(&config)).unwrap_err();
        let wanted = "10.0.0.1 is already answered by the kernel (it is set on lo)";
        assert!(error.to_string().contains(wanted), "{error}");
        let name = "veth-a".parse().unwrap();
        let config = PacketConfig { ring_frames: 1, ..PacketConfig::new(name, &[]) };
        let error = PacketSocket::open(&config).unwrap_err();
        assert!(matches!(error, OpenError::OutOfRange { .. }), "{error}");
    }
}

fn up<D: Device>(poller: &Poller<D>) -> bool {
    poller.device.link_up()
}
