//! What the fuzz targets do with an input; the tests of replay do the same with the corpus.

pub mod session;

use urnic_replay::{Report, compare, page, replay_pictured, text};

/// Replays any octets as a capture, and writes all that can be written about it. Returns how many FPDUs
/// were found.
///
/// # Panics
/// When what comes out is not what its format asks for.
pub fn everything(capture: &[u8]) -> u64 {
    let pictured = [replay_pictured("fuzz", || Ok(capture))];
    let written = page::of(&pictured);
    assert!(written.ends_with("</html>\n") && !written.contains("NaN"));
    assert!(page::pictures(&pictured).iter().all(|(_, svg)| svg.ends_with("</svg>\n")));
    // Without an iWARP connection there is nothing to compare.
    let _is_compared = compare::of(&pictured);
    let [file] = pictured;
    let report = Report { files: vec![file.into_report()] };
    serde_json::to_string(&report).expect("a report has a form in JSON");
    assert!(text::of(&report).starts_with("fuzz: "));
    let connections = report.files.iter().flat_map(|file| &file.connections);
    connections.flat_map(|one| &one.directions).map(|one| one.fpdus).sum()
}
