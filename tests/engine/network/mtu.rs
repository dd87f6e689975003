//! Paths with a smaller MTU than the device, or a changing one (RFC 1191, RFC 8201, RFC 4821).

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use urnic_engine::port::{LowerLayer, PortConfig};
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::SendWr;
use urnic_netdev::memory::LinkConfig;

use crate::network::frames::{datagram_len, icmp_about, is_tcp};
use crate::network::scene::{A6, B6, LINK, Scene, config};
use crate::network::wire::Verdict;
use urnic_testkit::pair::{A, B, all_access};

const BOTH: [IpAddr; 2] = [IpAddr::V4(B), IpAddr::V6(B6)];
const WHILE: Duration = Duration::from_secs(20);

/// Inserts a router whose next links have this `mtu`. It sends ICMP if `talks`.
fn router(scene: &mut Scene, mtu: &Rc<Cell<usize>>, talks: bool) {
    let mtu = Rc::clone(mtu);
    scene.behind_a(move |frame| {
        if datagram_len(frame) <= mtu.get() {
            return Verdict::Pass;
        }
        let (kind, code) = if frame[12] == 0x08 { (3, 4) } else { (2, 0) };
        let named = u32::try_from(mtu.get()).unwrap();
        if talks { Verdict::Answer(icmp_about(frame, kind, code, named)) } else { Verdict::Lose }
    });
}

fn path_mtu(scene: &Scene) -> usize {
    scene.link.a.port.path_mtu(scene.id()).unwrap()
}

/// Writes once more, and asserts that every segment starts with an FPDU and holds whole ones.
fn is_aligned(scene: &mut Scene) {
    is_aligned_within(scene, 100);
}

/// Writes once more, and asserts that all of more than `segments_min` segments are aligned.
// spec: TCP-A.1-1
fn is_aligned_within(scene: &mut Scene, segments_min: u64) {
    let alignment = |scene: &Scene| scene.link.a.port.counters(scene.id()).unwrap().alignment;
    let before = alignment(scene);
    assert!(scene.write_within(200_000, WHILE));
    let after = alignment(scene);
    let (all, aligned) =
        (after.segments - before.segments, after.segments_aligned - before.segments_aligned);
    assert!(all > segments_min && all == aligned, "{aligned} of {all}");
}

// spec: DDP-3-1, MPA-4.5-6, MPA-5.1-1, MPA-5.1-2, TCP-A.1-3, TCP-A.1-8, TCP-PMTU-1, TCP-PMTU-4
#[test]
fn reported_router_mtu_is_used_at_once() {
    for address in BOTH {
        let mut scene = Scene::new();
        let mtu = Rc::new(Cell::new(1400));
        router(&mut scene, &mtu, true);
        scene.connect(address);
        assert!(scene.write_within(1 << 20, WHILE));
        assert_eq!(path_mtu(&scene), 1400);
        let counters = scene.link.a.port.counters(scene.id()).unwrap();
        assert_eq!(counters.tcp.rtos, 0, "no timeout was needed");
        assert_eq!(scene.link.a.port.port_counters().icmp_heeded, 1);
        is_aligned(&mut scene);
    }
}

// spec: TCP-PMTU-6
#[test]
fn silent_router_mtu_is_discovered() {
    for address in BOTH {
        let mut scene = Scene::new();
        let mtu = Rc::new(Cell::new(1400));
        router(&mut scene, &mtu, false);
        scene.connect(address);
        assert!(scene.write_within(1 << 20, WHILE), "{address}");
        // It rises again in steps, to the path MTU and one probe beyond.
        for _ in 0..40 {
            assert!(scene.write_within(20_000, WHILE), "{address}");
            scene.run_for(Duration::from_millis(200), |_| false);
        }
        assert_eq!(path_mtu(&scene), 1400, "{address}");
        is_aligned(&mut scene);
    }
}

#[test]
fn outage_sets_no_lasting_mtu_limit() {
    let mut scene = Scene::new();
    let mtu = Rc::new(Cell::new(1500));
    router(&mut scene, &mtu, false);
    scene.connect(IpAddr::V4(B));
    let (end, path) = (scene.now() + Duration::from_secs(2), Rc::clone(&mtu));
    mtu.set(0);
    assert!(scene.write_while(1 << 20, WHILE, |scene| {
        if scene.now() >= end {
            path.set(1500);
        }
    }));
    for _ in 0..60 {
        assert!(scene.write_within(20_000, WHILE));
        scene.run_for(Duration::from_millis(200), |_| false);
    }
    assert_eq!(path_mtu(&scene), 1500);
    is_aligned(&mut scene);
}

/// Nothing is lost in a pause of the host or of the link. The sender undoes the conclusions from
/// its timers at the first acknowledgment (RFC 8899 §4.3, RFC 4821 §7.7).
#[test]
fn a_pause_does_not_cost_the_segment_size() {
    for timestamps in [true, false] {
        for mtu in [1500, 9000] {
            for pause_ms in [10, 30, 60, 100, 300, 900, 1300, 1600, 2000] {
                pause(timestamps, mtu, Duration::from_millis(pause_ms));
            }
        }
    }
}

fn pause(timestamps: bool, mtu: usize, length: Duration) {
    let link = LinkConfig { mtu, ..LINK };
    let mut of_a = config(A, A6);
    of_a.tcp.timestamps = timestamps;
    let mut scene = Scene::with(link, of_a, config(B, B6));
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(200_000, WHILE));
    let what = format!("{length:?}, MTU {mtu}, timestamps {timestamps}");
    let (begin, mut sizes) = (scene.now() + Duration::from_millis(1), Vec::new());
    let (mut end, mut paused) = (begin + length, false);
    let written = scene.write_while(2 << 20, WHILE, |scene| {
        let now = scene.now();
        let is_pause = begin <= now && now < end;
        if is_pause && !paused {
            scene.link.a.device.pause();
        } else if paused && !is_pause {
            scene.link.a.device.resume(now.as_nanos());
            end = now;
        }
        paused = is_pause;
        if now >= end + Duration::from_millis(5) {
            sizes.push(path_mtu(scene));
        }
    });
    assert!(written, "{what}");
    let least = sizes.iter().min().copied();
    assert_eq!(least, Some(mtu), "{what}");
    is_aligned_within(&mut scene, 1);
    assert_eq!(path_mtu(&scene), mtu, "{what}");
}

/// Segments sent in an outage are lost: the size is tried once more when the peer answers again.
#[test]
fn an_outage_does_not_cost_the_segment_size() {
    for length in [100, 1300, 2000, 5000].map(Duration::from_millis) {
        let mut scene = Scene::new();
        let mtu = Rc::new(Cell::new(1500));
        router(&mut scene, &mtu, false);
        scene.connect(IpAddr::V4(B));
        let (end, path) = (scene.now() + length, Rc::clone(&mtu));
        mtu.set(0);
        assert!(scene.write_while(1 << 20, WHILE, |scene| {
            if scene.now() >= end {
                path.set(1500);
            }
        }));
        assert_eq!(path_mtu(&scene), 1500, "{length:?}");
    }
}

/// In the middle of a transfer, and within seconds.
// spec: TCP-A.5.2-2
#[test]
fn shrunk_path_mtu_without_icmp_is_detected_within_seconds() {
    for address in BOTH {
        for timestamps in [true, false] {
            for size in [1400, 1280, 1000] {
                if address.is_ipv6() && size < 1280 {
                    continue;
                }
                let mut of_a = config(A, A6);
                of_a.tcp.timestamps = timestamps;
                let mut scene = Scene::with(LINK, of_a, config(B, B6));
                let mtu = Rc::new(Cell::new(1500));
                router(&mut scene, &mtu, false);
                scene.connect(address);
                assert!(scene.write_within(200_000, WHILE));
                mtu.set(size);
                let start = scene.now();
                assert!(scene.write_within(1 << 20, WHILE));
                let took = scene.now() - start;
                assert!(took < Duration::from_secs(8), "{address} {timestamps} {size}: {took:?}");
            }
        }
    }
}

/// The short segment that was at the front when the router named its limit does not affect later
/// doubts about the size.
#[test]
fn path_mtu_that_shrinks_again_without_icmp_is_detected() {
    let mut scene = Scene::new();
    let (mtu, talks) = (Rc::new(Cell::new(1500)), Rc::new(Cell::new(true)));
    let (limit, says) = (Rc::clone(&mtu), Rc::clone(&talks));
    scene.behind_a(move |frame| {
        let limit = limit.get();
        if datagram_len(frame) <= limit {
            Verdict::Pass
        } else if says.get() {
            Verdict::Answer(icmp_about(frame, 3, 4, u32::try_from(limit).unwrap()))
        } else {
            Verdict::Lose
        }
    });
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(200_000, WHILE));
    let source = scene.a.pd.reg_mr(100, all_access()).unwrap();
    let target = scene.b.pd.reg_mr(100, all_access()).unwrap();
    let short = SendWr::write(WrId(9), target.remote(0), [source.sge(0..100)]).unsignaled();
    scene.a.qp.post_send(short).unwrap();
    scene.run_for(Duration::from_micros(10), |_| false);
    mtu.set(1400);
    assert!(scene.write_within(1 << 20, WHILE));
    assert_eq!(path_mtu(&scene), 1400);
    talks.set(false);
    mtu.set(1280);
    let start = scene.now();
    assert!(scene.write_within(1 << 20, WHILE));
    let took = scene.now() - start;
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// Segments that fit in the base size of 1280 bytes may still be too long for the path.
#[test]
fn a_path_that_shrinks_below_the_base_size_is_found_by_short_messages() {
    let mut scene = Scene::new();
    let mtu = Rc::new(Cell::new(1500));
    router(&mut scene, &mtu, false);
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(200_000, WHILE));
    mtu.set(1000);
    for _ in 0..3 {
        assert!(scene.write_within(1100, WHILE));
    }
    assert!(scene.write_within(20_000, WHILE));
}

/// RFC 1191 §6.3, RFC 8201 §5.2: the limit that one connection has learned is kept by destination,
/// for ten minutes.
#[test]
fn the_next_connection_begins_with_the_limit_that_was_learned() {
    for (address, talks) in BOTH.into_iter().flat_map(|address| [(address, true), (address, false)])
    {
        let mut scene = Scene::new();
        let mtu = Rc::new(Cell::new(1400));
        router(&mut scene, &mtu, talks);
        scene.connect(address);
        let next = |scene: &mut Scene, address| {
            let (now, lower_layer) = (scene.now(), LowerLayer::Optimized);
            let port = &mut scene.link.a.port;
            let id = port.open(now, SocketAddr::new(address, 9), lower_layer).unwrap();
            port.path_mtu(id).unwrap()
        };
        // Without a message from the router, the limit is known when a step up has failed.
        let is_learned = (0..if talks { 1 } else { 40 }).any(|_| {
            assert!(scene.write_within(20_000, WHILE));
            let is_known = next(&mut scene, address) == 1400;
            assert!(is_known || !talks);
            is_known || scene.run_for(Duration::from_millis(200), |_| false)
        });
        assert!(is_learned, "{address} {talks}");
        assert_eq!(path_mtu(&scene), 1400, "{address} {talks}");
        let other = if address.is_ipv6() { IpAddr::V4(B) } else { IpAddr::V6(B6) };
        assert_eq!(next(&mut scene, other), 1500, "another host");
        scene.run_for(Duration::from_secs(601), |_| false);
        assert_eq!(next(&mut scene, address), 1500, "{address} {talks}: too old");
    }
}

// spec: TCP-PMTU-5, SEC-T-7
#[test]
fn forged_icmp_mtu_is_ignored() {
    let mut scene = Scene::new();
    let forged = Rc::new(Cell::new(0));
    let count = Rc::clone(&forged);
    scene.behind_a(move |frame| {
        // With a sequence number that is far from the data in flight.
        if is_tcp(frame) && datagram_len(frame) > 1000 && count.get() < 5 {
            count.set(count.get() + 1);
            let mut quoted = frame.to_vec();
            quoted[38] ^= 0x40;
            return Verdict::PassAndAnswer(icmp_about(&quoted, 3, 4, 600));
        }
        Verdict::Pass
    });
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(1 << 20, WHILE));
    assert_eq!((path_mtu(&scene), forged.get()), (1500, 5));
    let counters = scene.link.a.port.port_counters();
    assert_eq!((counters.icmp_heeded, counters.drops.icmp), (0, 5));
}

#[test]
fn the_device_is_followed_down_and_up_in_the_middle_of_a_transfer() {
    for address in BOTH {
        let link = LinkConfig { mtu: 9000, ..LINK };
        let mut scene = Scene::with(link, config(A, A6), config(B, B6));
        scene.connect(address);
        assert_eq!(path_mtu(&scene), 9000);
        let (start, wire) = (scene.now(), scene.wire.clone());
        let sizes = [9000, 1500, 4000, 1300, 9000];
        assert!(scene.write_while(4 << 20, WHILE, |scene| {
            let at = (scene.now() - start).as_millis() as usize / 6;
            wire.set_mtu(sizes[at.min(sizes.len() - 1)]);
        }));
        assert_eq!(path_mtu(&scene), 9000, "the transfer took long enough for all of them");
        wire.set_mtu(1500);
        is_aligned(&mut scene);
        assert_eq!(path_mtu(&scene), 1500);
    }
}

#[test]
fn ordinary_sockets_follow_the_device_too() {
    let mut scene = Scene::new();
    let there = scene.link.b.port.host_mut().tcp_listen(80, 60_000).unwrap();
    let here = scene.link.a.port.host_mut().tcp_connect((B, 80).into(), 60_000).unwrap();
    scene.run_for(Duration::from_secs(1), |_| false);
    scene.wire.set_mtu(900);
    scene.run_for(Duration::from_millis(10), |_| false);
    let sent = scene.link.a.port.host_mut().tcp(here).send_slice(&[3; 40_000]).unwrap();
    let mut received = 0;
    assert!(scene.run_for(WHILE, |scene| {
        let socket = scene.link.b.port.host_mut().tcp(there);
        received += socket.recv(|octets| (octets.len(), octets.len())).unwrap_or(0);
        received == sent
    }));
}

// spec: MPA-4.5-7
#[test]
fn a_link_that_takes_hardly_more_than_headers_works() {
    // RFC 5044 §A.5.2: room for an FPDU of the smallest MULPDU, on any MTU.
    let link = LinkConfig { mtu: 100, ..LINK };
    let mut scene = Scene::with(link, PortConfig::for_ipv4(A), PortConfig::for_ipv4(B));
    scene.connect(IpAddr::V4(B));
    // No segment holds the smallest FPDU, so none is aligned.
    assert!(scene.write_within(50_000, WHILE));
}
