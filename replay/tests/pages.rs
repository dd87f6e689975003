//! The page with pictures: whole, by itself, and of the same figures as the report.

use std::fs::{self, File};
use std::path::Path;

use urnic_replay::figures::count;
use urnic_replay::{PicturedFile, page, replay, replay_pictured};

use crate::pcaps;

fn pictured(path: &Path) -> PicturedFile {
    replay_pictured("a <capture>", || File::open(path))
}

/// Opens and closes of elements, in order. Attributes of ours hold no `>`.
fn assert_is_balanced(markup: &str, name: &str) {
    let mut open = Vec::new();
    for tag in markup.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
        let word = tag.split([' ', '/']).next().unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "{name}");
        } else if !tag.ends_with('/') && !tag.starts_with('!') && word != "meta" {
            open.push(word);
        }
    }
    assert_eq!(open, [""; 0], "{name}");
}

#[test]
fn a_page_is_whole_and_needs_nothing_else() {
    let mut seen = 0;
    for folder in [pcaps(), pcaps().join("derived")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if !path.extension().is_some_and(|end| end == "pcap" || end == "pcapng") {
                continue;
            }
            let name = path.display().to_string();
            let file = pictured(&path);
            let plain = replay("a <capture>", || File::open(&path));
            let [of_page, alone] =
                [&file.report, &plain].map(|report| serde_json::to_value(report).unwrap());
            assert_eq!(of_page, alone, "{name}: pictures change no figure");
            let all = [file];
            let page = page::of(&all);
            assert_is_balanced(&page, &name);
            assert!(page.len() < 1_000_000, "{name}: {} octets", page.len());
            for absent in ["<script", "src=", "href", "url(", "@import", "NaN", "inf ", "<capture>"]
            {
                assert!(!page.contains(absent), "{name} has {absent}");
            }
            assert_eq!(page.matches("<figure>").count(), page.matches("How to read").count());
            for connection in plain.connections.iter().filter(|one| one.mpa.is_some()) {
                assert!(page.contains(&connection.initiator));
                for direction in connection.directions.iter().filter(|one| one.fpdus > 0) {
                    let told = format!("{} FPDUs. ", count(direction.fpdus));
                    assert!(page.contains(&told), "{name}: {told}");
                }
                for finding in connection.findings.iter().filter(|one| one.frame > 0) {
                    let told = format!("frame.number == {}<", finding.frame);
                    assert!(page.contains(&told), "{name}: {told}");
                }
            }
            for (picture, svg) in page::pictures(&all) {
                assert_is_balanced(&svg, &picture);
                assert!(svg.contains("xmlns=") && svg.contains("prefers-color-scheme:dark"));
            }
            seen += 1;
        }
    }
    assert!(seen > 15);
}

/// What markers save is told as the difference to the same frames without them.
#[test]
fn a_page_tells_what_would_have_been_held_without_markers() {
    let of = |name: &str| page::of(&[pictured(&pcaps().join(name))]);
    let page = of("demo-markers-reorder.pcapng");
    assert!(page.contains("At most 0 B waited at one time; without markers"));
    assert!(page.contains("it would have been <b>61.1 kB</b>"));
    assert!(page.contains("placed ahead of a gap: 68"));
    let page = of("demo-resegment.pcapng");
    assert!(page.contains("would have held as much"));
    assert!(!page.contains("it would have been"), "there were none");
}

#[test]
fn terminates_and_wrong_fpdus_are_in_the_picture() {
    let of = |name: &str| page::of(&[pictured(&pcaps().join(name))]);
    let page = of("siw-terminate-bounds.pcap");
    assert!(page.contains("× Terminate: 1"));
    assert!(page.contains("It ended the stream with Terminate 1/1/01 in frame 13"));
    let page = of("derived/crc-wrong.pcap");
    assert!(page.contains("× wrong FPDU: 1"));
}
