//! The corpus of the fuzz targets, replayed as they do it.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "the time that a call of a device takes is bounded")]

use std::path::Path;

use urnic_netdev::shm::ShmCounters;
use urnic_netdev::vhost_user::RingCounters;

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "of the fuzz package, which is a workspace of its own")]
mod fuzz;

/// Returns all scripts of a target.
fn scripts(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(folder).unwrap();
    let scripts: Vec<_> = entries.map(|one| std::fs::read(one.unwrap().path()).unwrap()).collect();
    assert!(scripts.len() >= 10, "{target} has a corpus");
    scripts
}

/// Runs all scripts of a target. Returns the sum of the devices' counters.
fn replayed(target: &str, run: fn(&[u8]) -> RingCounters) -> RingCounters {
    let mut sum = RingCounters::default();
    for script in scripts(target) {
        let counted = run(&script);
        sum.frames_rx += counted.frames_rx;
        sum.frames_tx += counted.frames_tx;
        sum.referred_tx_bytes += counted.referred_tx_bytes;
        sum.chains_refused += counted.chains_refused;
        sum.frames_refused += counted.frames_refused;
        sum.regions_refused += counted.regions_refused;
        sum.queues_ended += counted.queues_ended;
        sum.sessions_ended += counted.sessions_ended;
    }
    sum
}

/// Like [`replayed`], for an `shm` link.
fn replayed_shm() -> ShmCounters {
    let mut sum = ShmCounters::default();
    for script in scripts("shm") {
        let counted = fuzz::shm::against_shm(&script);
        sum.frames_rx += counted.frames_rx;
        sum.rx_bytes_in_place += counted.rx_bytes_in_place;
        sum.frames_tx += counted.frames_tx;
        sum.frames_refused += counted.frames_refused;
        sum.regions_refused += counted.regions_refused;
        sum.sessions_ended += counted.sessions_ended;
    }
    sum
}

/// A single test, since descriptors of the whole process are counted.
#[test]
fn peers_of_the_corpus_are_survived() {
    // The scripts reach their goals.
    let backend = replayed("frontend", fuzz::frontend::against_backend);
    let frontend = replayed("backend", fuzz::backend::against_frontend);
    for sum in [backend, frontend] {
        assert!(sum.frames_rx > 0 && sum.frames_tx > 0, "{sum:?}");
        assert!(sum.queues_ended > 0 && sum.sessions_ended > 0, "{sum:?}");
    }
    assert!(backend.chains_refused > 0 && backend.regions_refused > 0, "{backend:?}");
    assert!(frontend.referred_tx_bytes > 0, "{frontend:?}");
    let shm = replayed_shm();
    assert!(shm.frames_rx > 0 && shm.rx_bytes_in_place > 0 && shm.frames_tx > 0, "{shm:?}");
    assert!(shm.frames_refused > 0 && shm.regions_refused > 0, "{shm:?}");
    assert!(shm.sessions_ended > 0, "{shm:?}");
}
