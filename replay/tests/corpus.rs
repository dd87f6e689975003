//! The corpus of the fuzz targets, replayed as the targets do it.

use std::path::Path;

#[path = "../fuzz/src/lib.rs"]
#[allow(
    unreachable_pub,
    reason = "the library of the fuzz package, which is a workspace of its own"
)]
mod fuzz;

use fuzz::{everything, session};

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(folder).unwrap();
    let inputs: Vec<_> = entries.map(|one| std::fs::read(one.unwrap().path()).unwrap()).collect();
    assert!(inputs.len() >= 10, "{target} has a corpus");
    inputs
}

#[test]
fn captures_of_the_corpus_are_survived() {
    inputs("capture").iter().for_each(|input| {
        everything(input);
    });
}

/// The scripts produce FPDUs, as intended.
#[test]
fn sessions_of_the_corpus_are_survived() {
    let fpdus: u64 =
        inputs("session").iter().map(|input| everything(&session::capture(input))).sum();
    assert!(fpdus > 50, "{fpdus}");
}
