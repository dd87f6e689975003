//! Resources that some peers use up do not affect others (RFC 5042 §6.4; RFC 5044 §7.1.2).

use std::net::Ipv4Addr;

use urnic_engine::limits::{OUT_OF_ORDER_RANGES_MAX, PIECE_BLOCK_LEN, PIECES_IDLE_NS};
use urnic_engine::mpa::pieces::NEAR_PAGES;
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::ListenParams;
use urnic_engine::time::Duration;
use urnic_engine::verbs::{Qp, QpState};
use urnic_netdev::memory::LinkConfig;

use crate::hostile::scene::{LISTEN_PORT, MOMENT, PEER, Scene};
use urnic_testkit::octets::{CRC, REQUEST_KEY, WRITE, empty_write, fpdu, startup, tagged};

/// Connects another peer in full operation, which has sent one FPDU.
fn join(scene: &mut Scene, port: u16) -> Qp {
    scene.open_as((Ipv4Addr::new(10, 0, 0, 66), port));
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    let qp = scene.accept_another();
    scene.send(&empty_write());
    qp
}

/// Connects the honest peer, in full operation.
fn join_honestly(scene: &mut Scene) {
    scene.open_as((PEER, 50_000));
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    scene.accept();
    scene.send(&empty_write());
}

/// Sends an FPDU of the honest peer in segments of 300 bytes, and asserts that it is placed.
fn split_fpdu_arrives(scene: &mut Scene, len: usize) {
    let write = tagged(WRITE, scene.tags.writable.stag().0, 0, &vec![7; len]);
    let octets = scene.fpdu(&write);
    scene.peer.send_cut(scene.now.as_nanos(), &octets, 300);
    scene.run(MOMENT);
    assert_eq!(scene.peer.acknowledged, scene.peer.sent);
    let mut placed = vec![0; len];
    scene.tags.writable.copy_out(0, &mut placed);
    assert_eq!(placed, vec![7; len]);
}

fn ready_with_markers() -> Scene {
    let mut scene = Scene::started(StartupConfig { markers: true, ..StartupConfig::default() });
    scene.send(&empty_write());
    scene
}

/// Sends `count` single bytes from `from` on, `apart` bytes apart.
fn fill_range_table(scene: &mut Scene, from: u64, count: usize, apart: u64) {
    for n in 0..count as u64 {
        scene.peer.send_at(scene.now.as_nanos(), from + apart * n, &[0x55]);
        scene.run(Duration::from_micros(10));
    }
}

#[test]
fn full_range_table_refuses_segments_that_may_need_an_entry() {
    let mut scene = ready_with_markers();
    let at = scene.origin + 512;
    fill_range_table(&mut scene, at + 28, OUT_OF_ORDER_RANGES_MAX, 2);
    // A good FPDU to which a marker leads, and 4 bytes that are no length: the whole would touch
    // the first of those bytes, but only the FPDU is kept.
    let mut segment = fpdu(&empty_write(), at - scene.origin, true);
    assert_eq!(segment.len(), 24);
    segment.extend([0; 4]);
    let before = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
    scene.peer.send_at(scene.now.as_nanos(), at, &segment);
    scene.run(MOMENT);
    let after = scene.victim.port.counters(scene.connection.unwrap()).unwrap();
    assert_eq!(scene.qp.state(), QpState::Rts);
    assert_eq!(after.mpa.fpdus, before.mpa.fpdus);
    assert_eq!(after.tcp.refused, before.tcp.refused + 1);
}

#[test]
fn a_full_range_table_and_a_piece_store_that_ends_in_mid_segment() {
    let mut scene = Scene::with_port(
        StartupConfig::default(),
        LinkConfig { mtu: 9000, ..LinkConfig::default() },
        |config| config.piece_blocks = 1,
    );
    scene.peer.scales = true;
    join_honestly(&mut scene);
    let near_end = (NEAR_PAGES * PIECE_BLOCK_LEN) as u64;
    // Nothing far may be held besides the one page of this byte.
    let far = near_end + PIECE_BLOCK_LEN as u64 + 5;
    fill_range_table(&mut scene, far, 1, 2);
    let next = scene.peer.sent;
    fill_range_table(&mut scene, next + 100, OUT_OF_ORDER_RANGES_MAX - 1, 60);
    let held = scene.victim.port.bytes_held();
    assert_eq!(held, OUT_OF_ORDER_RANGES_MAX as u64);
    let start = near_end - 1000;
    scene.peer.send_at(scene.now.as_nanos(), start, &vec![0x77; (far - start) as usize]);
    scene.run(MOMENT);
    assert_eq!((scene.qp.state(), scene.victim.port.bytes_held()), (QpState::Rts, held));
}

// spec: SEC-R-19
#[test]
fn unfinished_fpdus_of_peers_cost_other_streams_nothing() {
    let mut scene = Scene::new();
    let mut qps = Vec::new();
    for n in 0..140 {
        qps.push(join(&mut scene, 20_000 + n));
        // The length field of the longest FPDU, then silence.
        let at = scene.peer.sent;
        scene.peer.send_at(scene.now.as_nanos(), at, &[0xFC, 0xFC, 0xC1]);
        scene.run(MOMENT);
        assert_eq!(scene.peer.acknowledged, at + 3);
    }
    join_honestly(&mut scene);
    split_fpdu_arrives(&mut scene, 1200);
    scene.run(Duration::from_secs(3600));
    split_fpdu_arrives(&mut scene, 600);
    assert!(qps.iter().all(|qp| qp.state() == QpState::Rts), "nobody was ended for it");
}

#[test]
fn octets_parked_beyond_gaps_are_given_up_to_one_that_makes_progress() {
    let mut scene = Scene::with_port(StartupConfig::default(), LinkConfig::default(), |config| {
        config.piece_blocks = 6;
    });
    scene.peer.scales = true;
    let far = (NEAR_PAGES * PIECE_BLOCK_LEN) as u64 + 500;
    let parks = |scene: &mut Scene| {
        for n in 0..6 {
            scene.peer.send_at(scene.now.as_nanos(), far + n * PIECE_BLOCK_LEN as u64, &[0; 2]);
            scene.run(Duration::from_millis(1));
        }
    };
    let reclaimed = |scene: &Scene| scene.victim.port.port_counters().pieces_reclaimed;
    let held = |scene: &Scene, id| scene.victim.port.counters(id).unwrap().mpa.bytes_held;
    let mut qps = vec![];
    let mut parked = vec![];
    for n in 0..2 {
        qps.push(join(&mut scene, 20_000 + n));
        parks(&mut scene);
        parked.push((scene.connection.unwrap(), scene.peer.park()));
    }
    let (first, first_peer) = parked.remove(0);
    assert_eq!([held(&scene, first), held(&scene, parked[0].0)], [8, 4], "all that there is");
    join_honestly(&mut scene);
    // TCP retransmits bytes beyond a gap that were not kept.
    let honest = scene.connection.unwrap();
    scene.peer.send_at(scene.now.as_nanos(), far, &[0; 1000]);
    scene.run(MOMENT);
    assert_eq!((held(&scene, honest), reclaimed(&scene)), (0, 0), "those came on just now");
    scene.run(Duration::from_nanos(PIECES_IDLE_NS));
    for _ in 0..2 {
        scene.peer.send_at(scene.now.as_nanos(), far, &[0; 1000]);
        scene.run(MOMENT);
    }
    assert_eq!((held(&scene, honest), reclaimed(&scene)), (1000, 1));
    // Dropped bytes count as never received, and are accepted when they come again.
    scene.peer.resume(first_peer);
    scene.peer.send_at(scene.now.as_nanos(), far, &[0; 2]);
    scene.run(MOMENT);
    assert_eq!(held(&scene, first), 10);
    assert!(qps.iter().all(|qp| qp.state() == QpState::Rts), "nobody was ended for it");
}

#[test]
fn streaming_window_is_limited_by_the_free_room() {
    let mut scene = Scene::new();
    let delayed = ListenParams { delayed: true, ..ListenParams::default() };
    scene.victim.port.unlisten(LISTEN_PORT);
    scene.victim.port.listen(LISTEN_PORT, delayed).unwrap();
    scene.peer.scales = true;
    scene.open();
    let room = urnic_engine::limits::STREAMING_BYTES_MAX as u64;
    // Here the window field is in units of 128 bytes; that of a SYN has 16 bits.
    let near = |offered: u64, expected: u64| offered <= expected && offered + 128 > expected;
    assert!(near(scene.peer.offered, room), "{}", scene.peer.offered);
    scene.send_octets(&[7; 60_000]);
    assert!(near(scene.peer.offered, room - 60_000), "{}", scene.peer.offered);
    scene.send_octets(&[7; 5536]);
    assert_eq!((scene.peer.offered, scene.peer.acknowledged), (0, room));
    let id = scene.connection.unwrap();
    let mut octets = vec![0; 50_000];
    assert_eq!(scene.victim.port.receive_streaming(id, &mut octets), Ok(50_000));
    scene.run(MOMENT);
    assert!(near(scene.peer.offered, 50_000), "the peer hears of it: {}", scene.peer.offered);
    let mut rest = vec![0; 50_000];
    assert_eq!(scene.victim.port.receive_streaming(id, &mut rest), Ok(15_536));
    scene.victim.port.start_responder(scene.now, id, &StartupConfig::default(), b"").unwrap();
    scene.run(MOMENT);
    let window = u64::from(urnic_engine::limits::RECEIVE_WINDOW_BYTES);
    assert!(near(scene.peer.offered, window), "{}", scene.peer.offered);
}

#[test]
fn a_peer_that_sends_more_than_streaming_mode_offers_is_not_acknowledged() {
    let mut scene = Scene::new();
    let delayed = ListenParams { delayed: true, ..ListenParams::default() };
    scene.victim.port.unlisten(LISTEN_PORT);
    scene.victim.port.listen(LISTEN_PORT, delayed).unwrap();
    scene.peer.scales = true;
    scene.open();
    scene.send_octets(&[7; 70_000]);
    assert_eq!(scene.peer.acknowledged, urnic_engine::limits::STREAMING_BYTES_MAX as u64);
    let tcp = scene.victim.port.counters(scene.connection.unwrap()).unwrap().tcp;
    assert_eq!(tcp.refused, 0, "TCP's window has said so before");
}

#[test]
fn streaming_window_is_limited_on_an_outgoing_connection() {
    let mut scene = Scene::new();
    let remote = std::net::SocketAddr::from((PEER, 40_000));
    let lower_layer = urnic_engine::port::LowerLayer::Optimized;
    let id = scene.victim.port.open(scene.now, remote, lower_layer).unwrap();
    scene.connection = Some(id);
    scene.run(MOMENT);
    scene.send_octets(&[7; 1000]);
    assert_eq!(scene.peer.offered, urnic_engine::limits::STREAMING_BYTES_MAX as u64 - 1000);
}
