//! Two endpoints' engines on the two ends of a vhost-user device: RDMA with each setting.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::thread;

use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use urnic_netdev::{Device, Fragment, TxChecksum, TxFrame};

use crate::netns::scene::{Scene, Setup};
use urnic_testkit::counting::Census;

const LEN: usize = 4 << 20;

/// Both ends of a device, connected.
fn both(name: &str, mtu: usize, offloads: [bool; 2]) -> (VhostUser, VirtioUser) {
    let path: PathBuf = std::env::temp_dir().join(format!("urnic-{name}-{}", std::process::id()));
    let [of_backend, of_frontend] = offloads;
    let config =
        VhostUserConfig { mtu, offloads: of_backend, ..VhostUserConfig::backend(path.clone()) };
    let mut backend = VhostUser::open(&config).unwrap();
    let config = VhostUserConfig { mtu, offloads: of_frontend, ..VhostUserConfig::frontend(path) };
    let opening = thread::spawn(move || VirtioUser::open(&config).unwrap());
    let mut now_ns = 0;
    while !(opening.is_finished() && backend.link_up()) {
        // As often as it looks at its socket.
        now_ns += 10_000_000;
        backend.receive(now_ns, 1, &mut |_| ());
        thread::yield_now();
    }
    (backend, opening.join().unwrap())
}

fn exchange(name: &str, mtu: usize, offloads: [bool; 2]) {
    let (mut backend, mut frontend) = both(name, mtu, offloads);
    for setup in Setup::matrix() {
        let what = format!("MTU {mtu}, {offloads:?}, {setup:?}");
        let mut scene = Scene::connect(&mut backend, &mut frontend, &setup);
        scene.exchange(LEN, &what);
        for counters in [scene.a.counters(), scene.b.counters()] {
            let alignment = counters.alignment;
            assert_eq!(counters.mpa.crc_bad, 0, "{what}");
            assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
            assert_eq!(alignment.segments_aligned, alignment.segments, "{what}");
        }
    }
    for counters in [backend.counters(), frontend.counters()] {
        let refused = counters.chains_refused + counters.frames_refused + counters.queues_ended;
        assert_eq!(refused, 0, "{counters:?}");
    }
}

#[test]
fn super_frames_move_every_octet() {
    exchange("vu-super", 1500, [true, true]);
}

#[test]
fn plain_frames_move_every_octet() {
    exchange("vu-plain", 1500, [true, false]);
    exchange("vu-large", 9000, [false, true]);
}

/// Frames from the first of these devices to the second, some of them super-frames.
fn flow(from: &mut dyn Device, to: &mut dyn Device, octets: &[u8]) -> usize {
    let payload: Vec<Fragment<'_>> = octets[54..].chunks(800).map(Fragment::from_slice).collect();
    let frame = TxFrame {
        head: &octets[..54],
        payload: &payload,
        checksum: TxChecksum::Partial { start: 34, offset: 16 },
        segment_size: NonZeroU16::new(1400),
        digests: None,
    };
    let census = Census::begin();
    let mut came = 0;
    for _ in 0..500 {
        let room = from.transmit_room().min(8);
        for _ in 0..room {
            from.transmit(0, &frame).unwrap();
        }
        from.flush(0);
        came += to.receive(0, 64, &mut |frame| assert_eq!(frame.len(), octets.len()));
        // As a port does before it sleeps.
        let _descriptors = (from.readiness(), to.readiness());
    }
    assert_eq!(census.end(), 0, "allocations for {came} frames");
    came
}

#[test]
fn no_frame_allocates() {
    let (mut backend, mut frontend) = both("vu-count", 1500, [true, true]);
    // TCP over IPv4.
    let mut octets = vec![7; 50_054];
    octets[12..14].copy_from_slice(&[8, 0]);
    octets[14] = 0x45;
    octets[20..22].fill(0);
    octets[23] = 6;
    assert!(flow(&mut frontend, &mut backend, &octets) > 1000);
    assert!(flow(&mut backend, &mut frontend, &octets) > 1000);
}
