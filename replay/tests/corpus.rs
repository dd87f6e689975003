//! The corpus of the fuzz targets, replayed as they do it.

use std::path::Path;

use urnic_replay::{Report, compare, page, replay_pictured, text};

#[path = "../fuzz/src/session.rs"]
#[allow(unreachable_pub, reason = "a module of the fuzz package")]
mod session;

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(folder).unwrap();
    let inputs: Vec<_> = entries.map(|one| std::fs::read(one.unwrap().path()).unwrap()).collect();
    assert!(inputs.len() >= 10, "{target} has a corpus");
    inputs
}

/// Returns how many FPDUs were found.
fn everything(capture: &[u8]) -> u64 {
    let pictured = [replay_pictured("fuzz", || Ok(capture))];
    let written = page::of(&pictured);
    assert!(written.ends_with("</html>\n") && !written.contains("NaN"));
    assert!(page::pictures(&pictured).iter().all(|(_, svg)| svg.ends_with("</svg>\n")));
    // Without an iWARP connection there is nothing to compare.
    let _is_compared = compare::of(&pictured);
    let [file] = pictured;
    let report = Report { files: vec![file.into_report()] };
    serde_json::to_string(&report).unwrap();
    assert!(text::of(&report).starts_with("fuzz: "));
    let connections = report.files.iter().flat_map(|file| &file.connections);
    connections.flat_map(|one| &one.directions).map(|one| one.fpdus).sum()
}

#[test]
fn captures_of_the_corpus_are_survived() {
    inputs("capture").iter().for_each(|input| {
        everything(input);
    });
}

/// The scripts reach what they are made for: FPDUs.
#[test]
fn sessions_of_the_corpus_are_survived() {
    let fpdus: u64 =
        inputs("session").iter().map(|input| everything(&session::capture(input))).sum();
    assert!(fpdus > 50, "{fpdus}");
}
