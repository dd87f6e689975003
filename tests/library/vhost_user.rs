//! Two endpoints' engines on the two ends of a vhost-user device: RDMA with each setting.

use std::cell::RefCell;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::thread;

use urnic::Region;
use urnic_netdev::published::Publisher;
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use urnic_netdev::{Device, SharedSlice, TxChecksum, TxFrame};

use crate::netns::scene::{Scene, Setup};
use urnic_testkit::counting::Census;
use urnic_testkit::pair::End;

const LEN: usize = 4 << 20;

/// Both ends of a device, connected.
fn both(name: &str, mtu: usize, offloads: [bool; 2]) -> (VhostUser, VirtioUser) {
    both_with(name, mtu, offloads, None)
}

/// Does the same; if there is a publisher, its memory is shared.
fn both_with(
    name: &str,
    mtu: usize,
    offloads: [bool; 2],
    publisher: Option<&Publisher>,
) -> (VhostUser, VirtioUser) {
    let path: PathBuf = std::env::temp_dir().join(format!("urnic-{name}-{}", std::process::id()));
    let [of_backend, of_frontend] = offloads;
    let config =
        VhostUserConfig { mtu, offloads: of_backend, ..VhostUserConfig::backend(path.clone()) };
    let mut backend = VhostUser::open(&config).unwrap();
    let config = VhostUserConfig { mtu, offloads: of_frontend, ..VhostUserConfig::frontend(path) };
    let publisher = publisher.cloned();
    let opening = thread::spawn(move || {
        let queues = match publisher {
            Some(publisher) => VirtioUser::open_sharing(&config, 1, &publisher),
            None => VirtioUser::open_queues(&config, 1),
        };
        queues.unwrap().pop().unwrap()
    });
    let mut now_ns = 0;
    while !(opening.is_finished() && backend.link_up()) {
        // At the interval at which it checks its socket.
        now_ns += 10_000_000;
        backend.receive(now_ns, 1, &mut |_| ());
        thread::yield_now();
    }
    (backend, opening.join().unwrap())
}

/// Lets both ends exchange all announcements of published memory.
fn settle(frontend: &mut VirtioUser, backend: &mut VhostUser) {
    for now_ns in (1..5).map(|i| i << 30) {
        frontend.receive(now_ns, 1, &mut |_| ());
        backend.receive(now_ns, 1, &mut |_| ());
    }
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

#[test]
fn memory_that_is_shared_is_sent_from_where_it_is() {
    for (mtu, setup) in
        [1500, 65_000].into_iter().flat_map(|mtu| Setup::matrix().map(move |it| (mtu, it)))
    {
        let what = format!("MTU {mtu}, {setup:?}");
        let ends = [End::new(1), End::new(2)];
        let publisher = ends[1].rnic.publisher().clone();
        let regions = RefCell::new(Vec::new());
        regions.borrow_mut().extend((0..8).map(|_| Region::published(&publisher, LEN).unwrap()));
        let (mut backend, mut frontend) =
            both_with("vu-sharing", mtu, [true, true], Some(&publisher));
        settle(&mut frontend, &mut backend);
        let own = |len| Region::anonymous(len).unwrap();
        let published = |len| {
            let region = regions.borrow_mut().pop().expect("as many as are needed");
            assert_eq!(region.len(), len);
            region
        };
        let mut scene = Scene::connect_ends(ends, &mut backend, &mut frontend, &setup);
        scene.exchange_in(LEN, &what, [&own, &published]);
        let bad = [scene.a.counters(), scene.b.counters()].map(|counters| counters.mpa.crc_bad);
        assert_eq!(bad, [0, 0], "{what}");
        drop(scene);
        let (sent, came) = (frontend.counters(), backend.counters());
        // Writes and Sends. Read Responses are in blocks that are published when they are first
        // needed; until the backend has mapped those, they are copied. With markers, Writes and
        // Sends are copied too.
        let expected = if setup.startup.markers { 0 } else { 2 } * LEN as u64;
        assert!(sent.referred_tx_bytes >= expected * 8 / 10, "{what}: {sent:?}");
        let all = sent.referred_tx_bytes + sent.copied_tx_bytes;
        assert!(all <= 4 * LEN as u64, "{what}: {sent:?}");
        assert_eq!(came.referred_tx_bytes, 0, "none of a backend's memory is shared");
        for counters in [sent, came] {
            let refused = counters.chains_refused + counters.frames_refused;
            assert_eq!((refused, counters.queues_ended), (0, 0), "{what}: {counters:?}");
        }
    }
}

/// Sends frames from the first of these devices to the second, some of them super-frames.
fn flow(from: &mut dyn Device, to: &mut dyn Device, octets: &[u8]) -> usize {
    let payload: Vec<SharedSlice<'_>> =
        octets[54..].chunks(800).map(SharedSlice::from_bytes).collect();
    flow_of(from, to, &octets[..54], &payload)
}

fn flow_of(
    from: &mut dyn Device,
    to: &mut dyn Device,
    head: &[u8],
    payload: &[SharedSlice<'_>],
) -> usize {
    let frame = TxFrame {
        head,
        payload,
        checksum: TxChecksum::Partial { start: 34, offset: 16 },
        segment_size: NonZeroU16::new(1400),
        digests: None,
    };
    let len = frame.len();
    let census = Census::begin();
    let mut came = 0;
    for _ in 0..500 {
        let room = from.transmit_room().min(8);
        for _ in 0..room {
            from.transmit(0, &frame).unwrap();
        }
        from.flush(0);
        came += to.receive(0, 64, &mut |frame| assert_eq!(frame.len(), len));
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
    // Shared, in memory that the backend has mapped.
    let publisher = Publisher::new();
    let memory = Region::published(&publisher, octets.len()).unwrap();
    memory.write(0, &octets).unwrap();
    let (mut backend, mut frontend) =
        both_with("vu-count-sharing", 1500, [true, true], Some(&publisher));
    settle(&mut frontend, &mut backend);
    let slice = memory.slice(0, octets.len()).unwrap();
    let payload: Vec<_> =
        (54..octets.len() - 799).step_by(800).map(|at| slice.part(at, 800)).collect();
    let came = flow_of(&mut frontend, &mut backend, &octets[..54], &payload);
    assert!(came > 1000);
    let referred = frontend.counters().referred_tx_bytes;
    assert_eq!(referred, frontend.counters().frames_tx * 800 * payload.len() as u64);
}
