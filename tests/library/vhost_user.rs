//! Two endpoints' engines on the two ends of a vhost-user device: RDMA with each setting.

use std::path::PathBuf;
use std::thread;

use urnic_netdev::Device;
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};

use crate::netns::scene::{Scene, Setup};

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
