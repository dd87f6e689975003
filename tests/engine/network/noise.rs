//! Frames that no stack would send.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use urnic_engine::time::Duration;
use urnic_netdev::{RxChecksum, RxFrame};

use crate::network::frames::{checksum, datagram_len, fragments_of, icmp_about};
use crate::network::scene::{B6, Scene};
use crate::network::wire::Verdict;
use urnic_testkit::pair::B;

const ROUNDS: usize = 100_000;

/// Returns frames of all kinds that `b` may receive, as patterns.
fn patterns() -> Vec<Vec<u8>> {
    let kept = Rc::new(RefCell::new(Vec::new()));
    for address in [IpAddr::V4(B), IpAddr::V6(B6)] {
        let mut scene = Scene::new();
        let keep = Rc::clone(&kept);
        scene.behind_a(move |frame| {
            let mut kept = keep.borrow_mut();
            if kept.len() < 500 {
                kept.push(frame.to_vec());
                if datagram_len(frame) > 500 {
                    kept.extend(fragments_of(frame, 512, 7));
                    let too_big = if frame[12] == 8 { (3, 4) } else { (2, 0) };
                    kept.push(icmp_about(frame, too_big.0, too_big.1, 1300));
                }
                let mut tagged = frame.to_vec();
                tagged.splice(12..12, [0x81, 0, 0, 0]);
                kept.push(tagged);
            }
            Verdict::Pass
        });
        scene.connect(address);
        assert!(scene.write_within(20_000, Duration::from_secs(5)));
        let datagram = [1; 700];
        let socket = scene.link.a.port.host_mut().udp_bind(9, 4000).unwrap();
        let remote = std::net::SocketAddr::new(address, 9);
        scene.link.a.port.host_mut().udp(socket).send_slice(&datagram, remote).unwrap();
        scene.run_for(Duration::from_millis(100), |_| false);
    }
    let patterns = kept.borrow().clone();
    assert!(patterns.len() > 100);
    patterns
}

/// Changes a frame, and often corrects its IPv4 checksum, so that it passes more checks.
fn spoil(rng: &mut ChaCha8Rng, frame: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..frame.len());
        // Changes in headers have the most effect.
        let at = if rng.random() { at } else { at % 80.min(frame.len()) };
        frame[at] =
            if rng.random() { rng.random() } else { frame[at] ^ 1 << rng.random_range(0..8) };
    }
    if rng.random_range(0..8) == 0 {
        frame.truncate(rng.random_range(0..frame.len()));
    }
    if frame.len() >= 34 && frame[12] == 8 && rng.random_range(0..4) != 0 {
        let header_len = usize::from(frame[14] & 15) * 4;
        if (12..=frame.len() - 14).contains(&header_len) {
            frame[24..26].fill(0);
            let sum = checksum(&frame[14..14 + header_len]);
            frame[24..26].copy_from_slice(&sum);
        }
    }
}

#[test]
fn a_port_survives_every_kind_of_noise_and_still_serves() {
    let patterns = patterns();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut scene = Scene::new();
    let quiet = Duration::from_micros(50);
    for round in 0..ROUNDS {
        let mut frame = patterns[rng.random_range(0..patterns.len())].clone();
        spoil(&mut rng, &mut frame);
        let checksum =
            if rng.next_u32() & 1 == 0 { RxChecksum::Valid } else { RxChecksum::Unverified };
        let frame = RxFrame::whole(&frame, checksum, None);
        let now = scene.now();
        scene.link.b.port.handle_frame(now, &frame);
        if round % 16 == 0 {
            scene.run_for(quiet, |_| false);
        }
    }
    let counters = scene.link.b.port.port_counters();
    assert!(counters.reassembled > 0 && counters.drops.fragments > 0, "{counters:?}");
    scene.run_for(Duration::from_secs(60), |_| false);
    scene.connect(IpAddr::V4(B));
    assert!(scene.write_within(300_000, Duration::from_secs(5)));
}
