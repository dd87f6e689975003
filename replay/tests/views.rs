//! One capture in all views: JSON, text, comparison, page and live figures have the same counts.

use std::fs::File;
use std::path::Path;

use serde_json::Value;
use urnic_netdev::capture::{CaptureReader, LinkType};
use urnic_replay::figures::{count, share};
use urnic_replay::live::{Live, LiveFrame, Wanted};
use urnic_replay::{PicturedFile, Report, compare, page, replay, replay_pictured, text};

use crate::{pcaps, replayed};

fn pictured(path: &Path) -> PicturedFile {
    replay_pictured("capture", || File::open(path))
}

/// Aligned segments, judged segments, and all segments.
type Counts = (u64, u64, u64);

/// Returns the counts of each direction of each connection.
fn counts(report: &Value) -> Vec<[Counts; 2]> {
    let of = |direction: &Value| {
        let [aligned, judged, all] = ["segments_aligned", "segments_judged", "segments"]
            .map(|name| direction[name].as_u64().unwrap());
        (aligned, judged, all)
    };
    let connections = report["connections"].as_array().unwrap();
    let connections = connections.iter().filter(|one| !one["mpa"].is_null());
    connections.map(|one| [0, 1].map(|side| of(&one["directions"][side]))).collect()
}

/// Returns the counts of `urnic capture` for an Ethernet capture.
fn live(path: &Path) -> Option<(u64, u64)> {
    let mut live = Live::new(Wanted::Iwarp);
    for frame in CaptureReader::open(File::open(path).unwrap()).unwrap() {
        let frame = frame.unwrap();
        if frame.link != LinkType::Ethernet {
            return None;
        }
        let frame = LiveFrame {
            at_ns: frame.timestamp_ns,
            is_outbound: false,
            original_len: frame.original_len,
            bytes: frame.bytes,
        };
        live.handle(frame, &mut |_, _| {});
    }
    let figures = live.figures();
    Some((figures.segments_aligned, figures.segments_aligned + figures.segments_unaligned))
}

#[test]
fn all_views_of_a_capture_agree_on_its_alignment() {
    let mut seen_live = 0;
    for (name, aligned_percent) in [
        ("siw-terminate-bounds.pcap", Some(100)),
        ("siw-rping-crc.pcap", None),
        ("siw-write-crc.pcap", None),
        ("siw-send-loss-crc.pcap", None),
        ("demo-resegment.pcapng", None),
        ("demo-markers-reorder.pcapng", Some(100)),
        ("derived/markers-cut-shuffled.pcap", None),
    ] {
        let path = pcaps().join(name);
        let of_json = counts(&replayed(&path));
        for (aligned, judged, all) in of_json.iter().flatten().copied() {
            assert!(aligned <= judged && judged < all, "{name}: the startup is not judged");
            if let Some(percent) = aligned_percent {
                assert_eq!(aligned * 100, judged * percent, "{name}");
            }
        }
        let report = Report { files: vec![replay("capture", || File::open(&path))] };
        let text = text::of(&report);
        let told: Vec<String> = of_json
            .iter()
            .map(|sides| {
                let cell = |(aligned, judged, _): Counts| match aligned {
                    0 => "0".to_owned(),
                    _ => format!("{} ({})", count(aligned), share(aligned, judged)),
                };
                sides.map(cell).join(" ")
            })
            .collect();
        let lines = text.lines().filter(|line| line.contains("aligned with FPDUs"));
        let cells = lines.map(|line| {
            let cells = line.split(['│', '┆']).map(str::trim).filter(|cell| !cell.is_empty());
            cells.skip(1).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(cells.collect::<Vec<_>>(), told, "{name}");
        let files = [pictured(&path)];
        let page = page::of(&files);
        for (aligned, judged, _) in of_json.iter().flatten().copied().filter(|one| one.1 > 0) {
            let told = format!(
                "{} of its segments in full operation are aligned with FPDUs",
                share(aligned, judged)
            );
            assert!(page.contains(&told), "{name}: {told}");
        }
        let compared = serde_json::to_value(compare::of(&files).unwrap()).unwrap();
        let longest: Vec<_> =
            [0, 1].map(|side| &compared["compared"][0]["directions"][side]).into();
        let longest = longest.into_iter().map(|one| {
            let [aligned, judged] =
                ["segments_aligned", "segments_judged"].map(|name| one[name].as_u64().unwrap());
            (aligned, judged)
        });
        let longest: Vec<_> = longest.collect();
        assert!(
            of_json.iter().any(|sides| sides.map(|(a, j, _)| (a, j)).to_vec() == longest),
            "{name}: {longest:?} is of no connection"
        );
        // A shuffled capture acknowledges bytes before it has them: in a live capture those count
        // as lost.
        if let Some(live) = live(&path).filter(|_| !name.contains("shuffled")) {
            let sum =
                of_json.iter().flatten().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            assert_eq!(live, sum, "{name}");
            seen_live += 1;
        }
    }
    assert!(seen_live >= 4);
}

#[test]
fn the_report_has_times_mss_and_windows_without_pictures() {
    let path = pcaps().join("siw-write-crc.pcap");
    let report = replayed(&path);
    let connection = &report["connections"][0];
    let number = |value: &Value| value.as_u64().unwrap();
    let first = number(&report["first_ns"]);
    assert!(number(&connection["first_ns"]) >= first && first > 1_600_000_000_000_000_000);
    let span = number(&connection["span_ns"]);
    assert!(span > 0 && span <= number(&report["span_ns"]));
    assert!((1..1_000_000_000).contains(&number(&connection["handshake_ns"])));
    for side in [0, 1] {
        let direction = &connection["directions"][side];
        assert_eq!(direction["mss"], 1460);
        assert!(number(&direction["window_max"]) > 60_000, "{direction}");
        assert!(number(&direction["bytes_sent"]) >= number(&direction["bytes_placed"]));
    }
    let connections = report["connections"].as_array().unwrap();
    let windows = connections.iter().map(|one| number(&one["directions"][0]["window_max"]));
    assert!(windows.max() > Some(65_535), "windows are scaled");
    let text = text::of(&Report { files: vec![replay("capture", || File::open(&path))] });
    for part in ["handshake ", "data for ", "rate on average", "1 460", "bit/s", " frames, "] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn a_name_that_turns_text_round_is_made_fit_for_terminal_and_page() {
    let path = pcaps().join("siw-rping-crc.pcap");
    let name = "a\u{1b}[31m\u{202e}<b>";
    let of = || replay_pictured(name, || File::open(&path));
    let report = Report { files: vec![of().into_report()] };
    let files = [of()];
    let other = [of(), of()];
    let compared = compare::of(&other).unwrap();
    for shown in
        [text::of(&report), page::of(&files), compare::text(&compared), compare::page(&compared)]
    {
        assert!(shown.contains("a\u{fffd}[31m\u{fffd}"), "{}", &shown[..200]);
        assert!(!shown.contains(['\u{1b}', '\u{202e}']));
    }
    for page in [page::of(&files), compare::page(&compared)] {
        assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none';"));
        assert!(!page.contains("<b><"));
    }
}

/// `siw-terminate-bounds.pcap` ends with a Terminate about the data of its last Write.
#[test]
fn writes_refused_by_a_terminate_are_not_reported_as_placed() {
    let path = pcaps().join("siw-terminate-bounds.pcap");
    let text = text::of(&Report { files: vec![replay("capture", || File::open(&path))] });
    assert!(text.contains("had all their memory been registered"), "{text}");
    let page = page::of(&[pictured(&path)]);
    assert!(page.contains("were placed, or would have been, had all their memory been registered"));
    // The findings of the connection are below the heading of the file.
    assert!(page.contains("Terminate 1/1/01") && !page.contains("No findings."), "{page}");
    let page = page::of(&[pictured(&pcaps().join("siw-write-crc.pcap"))]);
    assert!(page.contains("were placed") && !page.contains("would have been,"));
}

/// The longest connections and those with errors come first, and links lead to them.
#[test]
fn a_page_of_several_connections_has_contents() {
    let files = [pictured(&pcaps().join("siw-send-loss-crc.pcap"))];
    let page = page::of(&files);
    let links: Vec<_> = page.split("<a href=\"#").skip(1).collect();
    let targets = links.iter().map(|link| link.split('"').next().unwrap());
    for target in targets {
        assert_eq!(page.matches(&format!(" id=\"{target}\"")).count(), 1, "{target}");
    }
    let sent = |connection: &urnic_replay::report::ConnectionReport| -> u64 {
        connection.directions.iter().map(|one| one.bytes_sent).sum()
    };
    let connections = &files[0].report.connections;
    let longest = connections.iter().max_by_key(|one| sent(one)).unwrap();
    let heading = format!("{} → {}", longest.initiator, longest.responder);
    assert!(links.len() > 2 && links[1].contains(&heading), "{}", links[1]);
}
