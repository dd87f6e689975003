//! The corpus of the fuzz targets, replayed as they do it.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::path::Path;

use urnic_netdev::vhost_user::RingCounters;

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "of the fuzz package, which is a workspace of its own")]
mod fuzz;

/// Runs all scripts of a target; returns what the devices have counted together.
fn replayed(target: &str, run: fn(&[u8]) -> RingCounters) -> RingCounters {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(folder).unwrap();
    let scripts: Vec<_> = entries.map(|one| std::fs::read(one.unwrap().path()).unwrap()).collect();
    assert!(scripts.len() >= 10, "{target} has a corpus");
    let mut sum = RingCounters::default();
    for script in scripts {
        let counted = run(&script);
        sum.frames_rx += counted.frames_rx;
        sum.frames_tx += counted.frames_tx;
        sum.chains_refused += counted.chains_refused;
        sum.frames_refused += counted.frames_refused;
        sum.queues_ended += counted.queues_ended;
        sum.sessions_ended += counted.sessions_ended;
    }
    sum
}

/// One test, since descriptors of the whole process are counted.
#[test]
fn peers_of_the_corpus_are_survived() {
    // The scripts reach what they are made for.
    let backend = replayed("frontend", fuzz::frontend::against_backend);
    let frontend = replayed("backend", fuzz::backend::against_frontend);
    for sum in [backend, frontend] {
        assert!(sum.frames_rx > 0 && sum.frames_tx > 0, "{sum:?}");
        assert!(sum.queues_ended > 0 && sum.sessions_ended > 0, "{sum:?}");
    }
    assert!(backend.chains_refused > 0, "{backend:?}");
}
