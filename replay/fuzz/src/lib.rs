//! Work of the fuzz targets on an input; the tests of replay do the same with the corpus.

pub mod session;

use urnic_replay::{
    Options, Report, Written, compare, page, replay_commented, replay_pictured, text,
};

/// Replays any bytes as a capture, and writes every form of output about it. Returns the number of
/// FPDUs found.
///
/// # Panics
/// If an output violates its format.
pub fn everything(capture: &[u8]) -> u64 {
    let pictured = [replay_pictured("fuzz", || Ok(capture))];
    let written = page::of(&pictured);
    assert!(written.ends_with("</html>\n") && !written.contains("NaN"));
    assert!(page::pictures(&pictured).iter().all(|(_, svg)| svg.ends_with("</svg>\n")));
    // Without an iWARP connection nothing is compared.
    if let Ok(compared) = compare::of(&pictured) {
        assert!(!compare::text(&compared).is_empty());
        assert!(compare::page(&compared).ends_with("</body></html>\n"));
        serde_json::to_string(&compared).expect("a comparison has a form in JSON");
    }
    write_commented(capture);
    let [file] = pictured;
    let report = Report { files: vec![file.into_report()] };
    serde_json::to_string(&report).expect("a report has a form in JSON");
    assert!(text::of(&report).starts_with("fuzz: "));
    let connections = report.files.iter().flat_map(|file| &file.connections);
    connections.flat_map(|one| &one.directions).map(|one| one.fpdus).sum()
}

/// Writes it with comments, and reads and writes the result again: this program must read its own
/// output, and copy it completely.
fn write_commented(capture: &[u8]) {
    let Some((first, octets)) = commented(capture).filter(|(first, _)| first.frames > 0) else {
        return;
    };
    let (second, _) = commented(&octets).expect("what was written is a capture");
    assert_eq!((second.frames, second.cut), (first.frames, None));
}

/// Returns the capture with comments; `None` if it is no capture.
fn commented(capture: &[u8]) -> Option<(Written, Vec<u8>)> {
    let comments = replay_commented(Options::default(), "fuzz", || Ok(capture));
    let (_, comments) = comments.expect("temporary files");
    let mut octets = Vec::new();
    let written = comments.write(capture, &mut octets).ok()?;
    Some((written, octets))
}
