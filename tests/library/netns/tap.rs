//! Engines on TAPs of one bridge.

use std::process::Stdio;

use urnic_engine::time::Duration;
use urnic_netdev::Device;

use crate::netns::scene::{Scene, Setup};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{self, bridged_taps, command, ip};
use urnic_testkit::programs::program;

const LEN: usize = 8 << 20;

/// Moves data with every combination of addresses and markers.
fn exchange(mtu: usize, vnet_header: [bool; 2]) {
    let (mut tap_a, mut tap_b) = bridged_taps(mtu, vnet_header);
    for setup in Setup::matrix() {
        let what = format!("MTU {mtu}, virtio_net_hdr {vnet_header:?}, {setup:?}");
        let mut scene = Scene::connect(&mut tap_a, &mut tap_b, &setup);
        scene.exchange(LEN, &what);
        for counters in [scene.a.counters(), scene.b.counters()] {
            let alignment = counters.alignment;
            assert_eq!(counters.mpa.crc_bad, 0, "{what}");
            assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
            assert_eq!(alignment.segments_aligned, alignment.segments, "{what}");
        }
    }
}

netns_tests! {
    with ["/dev/net/tun", "ping"];

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

    /// The kernel cuts the super-frames of one side and completes their checksums.
    fn super_frames_meet_a_device_without() {
        exchange(1500, [true, false]);
        exchange_again_after(|| exchange(9000, [false, true]));
    }

    /// An interface that stays remembers the frame formats of its last user.
    fn plain_frames_work_on_an_interface_that_had_super_frames() {
        ip("tuntap add dev tap-a mode tap");
        ip("link set tap-a up");
        drop(network::tap("tap-a", 1500, true));
        let (tap_a, tap_b) = bridged_taps(1500, [false, true]);
        let mut scene = Scene::connect(tap_a, tap_b, &Setup::default());
        scene.exchange(LEN, "plain after super-frames");
    }

    /// RFC 5044 Appendix A: on a lossless path every segment starts with an FPDU and holds only
    /// whole FPDUs.
    fn transfer_loses_nothing_and_every_segment_is_aligned() {
        for vnet_header in [false, true] {
            let (tap_a, tap_b) = bridged_taps(1500, [vnet_header; 2]);
            let mut scene = Scene::connect(tap_a, tap_b, &Setup::default());
            scene.exchange(LEN, "lossless");
            for counters in [scene.a.counters(), scene.b.counters()] {
                // A timer may fire on a busy machine; on a lossless path nothing is missing.
                assert_eq!(counters.tcp.out_of_order, 0, "{counters:?}");
                assert_eq!(counters.mpa.bytes_held, 0, "pieces of FPDUs");
                let alignment = counters.alignment;
                assert!(alignment.segments > 5000, "{alignment:?}");
                assert_eq!(alignment.segments_aligned, alignment.segments);
                if vnet_header {
                    assert!(alignment.frames * 8 < alignment.segments, "super: {alignment:?}");
                } else {
                    // The frame with the startup of MPA adds one.
                    assert!(alignment.frames >= alignment.segments, "{alignment:?}");
                }
            }
            drop(scene);
            ip("link del bridge0");
        }
    }

    fn the_hosts_ping_is_answered_during_a_transfer() {
        let (tap_a, tap_b) = bridged_taps(1500, [true, true]);
        ip("addr add 10.0.0.100/24 dev bridge0");
        let mut scene = Scene::connect(tap_a, tap_b, &Setup::default());
        let mut ping = program("ping")
            .args(["-c", "20", "-i", "0.01", "-w", "20", "10.0.0.2"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut transfers = 0;
        while ping.try_wait().unwrap().is_none() {
            scene.exchange(LEN, "during ping");
            transfers += 1;
        }
        let output = ping.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        // It continues until twenty are answered, and may have sent and received more by then.
        for sequence in 1..=20 {
            assert!(told.contains(&format!("icmp_seq={sequence} ")), "{told}");
        }
        assert!(transfers > 0, "a transfer ran meanwhile");
    }

    fn a_deleted_tap_is_a_link_down_and_the_peer_gives_up() {
        for vnet_header in [false, true] {
            let (tap_a, tap_b) = bridged_taps(1500, [vnet_header; 2]);
            let user_timeout = Duration::from_secs(2);
            let setup = Setup { user_timeout, ..Setup::default() };
            let mut scene = Scene::connect(tap_a, tap_b, &setup);
            scene.exchange(1 << 20, "before");
            scene.post_writes(200);
            let mut deleted = false;
            let over = scene.run_for(Duration::from_secs(20), |scene| {
                if !deleted {
                    ip("link del tap-a");
                    deleted = true;
                }
                scene.a.closed.is_some() && scene.b.closed.is_some()
            });
            assert!(over, "{:?} {:?}", scene.a.end.events, scene.b.end.events);
            assert!(!scene.a.poller.device.link_up(), "the deleted TAP's link is down");
            assert_eq!(scene.a.links, [false], "the port told of it");
            assert!(scene.a.poller.device.readiness().is_none(), "nothing to wait for");
            assert!(scene.b.poller.device.link_up(), "the other's is up");
            drop(scene);
            ip("link del bridge0");
        }
    }

    fn a_transfer_outlives_an_interface_taken_down_and_up() {
        let (tap_a, tap_b) = bridged_taps(1500, [true, true]);
        let mut scene = Scene::connect(tap_a, tap_b, &Setup::default());
        scene.exchange(1 << 20, "before");
        scene.post_writes(64);
        ip("link set tap-a down");
        // The port checks the link once per poll: if it is up again before, the change is missed.
        let told = scene.run_for(Duration::from_secs(5), |scene| scene.a.links == [false]);
        assert!(told, "the port told that the link is down");
        assert!(!scene.a.poller.device.link_up());
        ip("link set tap-a up");
        let told = scene.run_for(Duration::from_secs(5), |scene| scene.a.links == [false, true]);
        assert!(told, "the port told that it is up again: {:?}", scene.a.links);
        assert!(scene.a.poller.device.link_up());
        assert!(scene.completes(64), "what was posted before: {:?}", scene.a.counters());
        scene.exchange(1 << 20, "after");
    }

    fn a_transfer_outlives_an_interface_deleted_and_made_again() {
        let make = || {
            ip("tuntap add dev tap-a mode tap vnet_hdr");
            ip("link set tap-a up");
        };
        make();
        let (tap_a, tap_b) = bridged_taps(1500, [true, true]);
        let mut scene = Scene::connect(tap_a, tap_b, &Setup::default());
        scene.exchange(1 << 20, "before");
        scene.post_writes(64);
        ip("link del tap-a");
        let noticed = scene.run_for(Duration::from_secs(5), |scene| {
            !scene.a.poller.device.link_up()
        });
        assert!(noticed, "the link is down");
        make();
        ip("link set tap-a master bridge0");
        assert!(scene.completes(64), "what was posted before: {:?}", scene.a.counters());
        assert!(scene.a.poller.device.link_up(), "the link is up again");
        scene.exchange(1 << 20, "after");
    }

    fn queues_of_one_interface_carry_a_connection() {
        use urnic_netdev::tap::{Tap, TapConfig};
        let name = "tap-a".parse().unwrap();
        let config = TapConfig { vnet_header: true, ..TapConfig::new(name) };
        let mut queues = Tap::open_queues(&config, 2).unwrap();
        let tap_b = network::tap("tap-b", 1500, true);
        network::bridge("bridge0", &["tap-a", "tap-b"]);
        let (second, first) = (queues.pop().unwrap(), queues.pop().unwrap());
        let mut scene = Scene::connect(Both(first, second), tap_b, &Setup::default());
        scene.exchange(LEN, "two queues");
        assert!(command("ip", "-d link show tap-a").contains("multi_queue"), "two queues");
    }
}

/// Removes the bridge of an exchange before the next.
fn exchange_again_after(next: impl FnOnce()) {
    ip("link del bridge0");
    next();
}

/// Two queues polled as one device: frames are received from both, and sent by the first.
#[derive(Debug)]
pub(crate) struct Both<D>(pub(crate) D, pub(crate) D);

impl<D: Device> Device for Both<D> {
    fn capabilities(&self) -> urnic_netdev::Capabilities {
        self.0.capabilities()
    }

    fn receive(
        &mut self,
        now_ns: u64,
        burst: usize,
        sink: &mut dyn FnMut(urnic_netdev::RxFrame<'_>),
    ) -> usize {
        self.0.receive(now_ns, burst, sink) + self.1.receive(now_ns, burst, sink)
    }

    fn transmit(
        &mut self,
        now_ns: u64,
        frame: &urnic_netdev::TxFrame<'_>,
    ) -> Result<(), urnic_netdev::TransmitError> {
        self.0.transmit(now_ns, frame)
    }
}
