//! Two endpoints' engines on the two ends of an `shm` device: RDMA with each setting.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::thread;

use urnic::Region;
use urnic_netdev::published::Publisher;
use urnic_netdev::shm::{Shm, ShmConfig};
use urnic_netdev::{Device, SharedSlice, TxChecksum, TxFrame};

use crate::netns::scene::{Scene, Setup};
use urnic_testkit::counting::Census;
use urnic_testkit::pair::End;

const LEN: usize = 4 << 20;

/// Both ends of a device, connected.
fn both(name: &str, mtu: usize, publishers: [&Publisher; 2]) -> (Shm, Shm) {
    let path: PathBuf = std::env::temp_dir().join(format!("urnic-{name}-{}", std::process::id()));
    let config = ShmConfig { path, listens: true, mtu, peer: None };
    let mut a = Shm::open(&config, publishers[0]).unwrap();
    let (config, publisher) = (ShmConfig { listens: false, ..config }, publishers[1].clone());
    let opening = thread::spawn(move || Shm::open(&config, &publisher).unwrap());
    let mut now_ns = 0;
    while !(opening.is_finished() && a.link_up()) {
        // At the interval at which it checks its socket.
        now_ns += 10_000_000;
        a.receive(now_ns, 1, &mut |_| ());
        thread::yield_now();
    }
    (a, opening.join().unwrap())
}

#[test]
fn private_memory_moves_every_octet() {
    for mtu in [1500, 9000] {
        let (mut a, mut b) = both("shm-private", mtu, [&Publisher::new(), &Publisher::new()]);
        for setup in Setup::matrix() {
            let what = format!("MTU {mtu}, {setup:?}");
            let mut scene = Scene::connect(&mut a, &mut b, &setup);
            scene.exchange(LEN, &what);
            for counters in [scene.a.counters(), scene.b.counters()] {
                let alignment = counters.alignment;
                assert_eq!(counters.mpa.crc_bad, 0, "{what}");
                assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
                assert_eq!(alignment.segments_aligned, alignment.segments, "{what}");
            }
        }
        for counters in [a.counters(), b.counters()] {
            assert_eq!((counters.frames_refused, counters.tx_bytes_referred), (0, 0));
        }
    }
}

#[test]
fn published_memory_is_sent_from_where_it_is() {
    for (mtu, setup) in
        [1500, 65_000].into_iter().flat_map(|mtu| Setup::matrix().map(move |it| (mtu, it)))
    {
        let what = format!("MTU {mtu}, {setup:?}");
        let ends = [End::new(1), End::new(2)];
        let publishers = ends.each_ref().map(|end| end.rnic.publisher().clone());
        let (mut a, mut b) = both("shm-published", mtu, publishers.each_ref());
        let [of_a, of_b] = publishers
            .each_ref()
            .map(|publisher| move |len| Region::published(publisher, len).unwrap());
        let mut scene = Scene::connect_ends(ends, &mut a, &mut b, &setup);
        scene.exchange_in(LEN, &what, [&of_a, &of_b]);
        let bad = [scene.a.counters(), scene.b.counters()].map(|counters| counters.mpa.crc_bad);
        assert_eq!(bad, [0, 0], "{what}");
        drop(scene);
        for counters in [a.counters(), b.counters()] {
            // Writes, Sends and Read Responses, which are in published blocks. With markers, Writes
            // and Sends are copied.
            let expected = if setup.startup.markers { 1 } else { 3 } * LEN as u64;
            let referred = counters.tx_bytes_referred;
            assert!(referred >= expected * 8 / 10, "{what}: {counters:?}");
            assert!(counters.tx_bytes_copied <= 4 * LEN as u64 - expected, "{what}: {counters:?}");
            assert_eq!(counters.frames_refused, 0, "{what}");
        }
    }
}

#[test]
fn no_frame_allocates() {
    let publisher = Publisher::new();
    let memory = publisher.allocate(60_000).unwrap();
    let region = Region::published(&publisher, 60_000).unwrap();
    drop(memory);
    let (mut a, mut b) = both("shm-count", 1500, [&publisher, &Publisher::new()]);
    // TCP over IPv4.
    let mut head = vec![7; 54];
    head[12..14].copy_from_slice(&[8, 0]);
    head[14] = 0x45;
    head[20..22].fill(0);
    head[23] = 6;
    let runs: Vec<SharedSlice<'_>> = (0..40)
        .flat_map(|i| {
            let header = SharedSlice::from_bytes(b"the header of one of them");
            [header, region.slice(i * 1420, 1420).unwrap()]
        })
        .collect();
    let frame = TxFrame {
        head: &head,
        payload: &runs,
        checksum: TxChecksum::Partial { start: 34, offset: 16 },
        segment_size: NonZeroU16::new(1400),
        digests: None,
    };
    let send = |a: &mut Shm, b: &mut Shm| {
        let mut came = 0;
        for _ in 0..500 {
            for _ in 0..a.transmit_room().min(8) {
                a.transmit(0, &frame).unwrap();
            }
            a.flush(0);
            came += b.receive(0, 64, &mut |got| assert_eq!(got.len(), frame.len()));
            // Consumed frames are noticed in a poll, as a port does before it sleeps.
            a.receive(0, 64, &mut |_| ());
            let _descriptors = (a.readiness(), b.readiness());
        }
        came
    };
    // Published memory is announced first.
    a.receive(1 << 40, 1, &mut |_| ());
    let came = send(&mut a, &mut b);
    assert!(came > 1000, "{came}: {:?} {:?}", a.counters(), b.counters());
    let before = a.counters();
    let census = Census::begin();
    let came = send(&mut a, &mut b);
    assert_eq!(census.end(), 0, "allocations for {came} frames");
    let after = a.counters();
    let referred = after.tx_bytes_referred - before.tx_bytes_referred;
    assert_eq!(referred, came as u64 * 40 * 1420, "payload stays where it is");
    let copied = after.tx_bytes_copied - before.tx_bytes_copied;
    assert_eq!(copied, came as u64 * (54 + 40 * 25), "headers are copied");
}
