//! The page with pictures: complete, self-contained, and with the figures of the report.

use std::fs::{self, File};
use std::path::Path;

use urnic_replay::figures::{count, plural};
use urnic_replay::report::{ConnectionReport, Finding, MarkersReport, MpaReport, Severity};
use urnic_replay::{FileReport, PicturedFile, compare, page, replay, replay_pictured};

use crate::pcaps;

fn pictured(path: &Path) -> PicturedFile {
    replay_pictured("a <capture>", || File::open(path))
}

/// Checks that elements are opened and closed in order. Attributes of this project contain no `>`.
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
            let [mut of_page, alone] =
                [&file.report, &plain].map(|report| serde_json::to_value(report).unwrap());
            assert_eq!(
                without_times(&mut of_page),
                file.pictured(),
                "{name}: directions with times"
            );
            assert_eq!(of_page, alone, "{name}: pictures change no figure");
            let all = [file];
            let page = page::of(&all);
            assert_is_balanced(&page, &name);
            assert!(page.len() < 1_000_000, "{name}: {} bytes", page.len());
            for absent in [
                "<script",
                "src=",
                "href=\"h",
                "url(",
                "var(",
                "{$",
                ":$",
                "@import",
                "NaN",
                "inf ",
                "<capture>",
            ] {
                assert!(!page.contains(absent), "{name} has {absent}");
            }
            assert_eq!(page.matches("<figure>").count(), page.matches("How to read").count());
            for connection in plain.connections.iter().filter(|one| one.mpa.is_some()) {
                assert!(page.contains(&connection.initiator));
                for direction in connection.directions.iter().filter(|one| one.fpdus > 0) {
                    let told = format!("{}. ", plural(direction.fpdus, "FPDU"));
                    assert!(page.contains(&told), "{name}: {told}");
                }
                for finding in connection.findings.iter().filter(|one| one.frame > 0) {
                    let told = match &finding.frames[..] {
                        [] => format!("frame.number == {}<", finding.frame),
                        [first, second, ..] => format!("frame.number in {{{first}, {second}"),
                        [_] => unreachable!("the first frame is noted with the second"),
                    };
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

/// The gain of markers is shown as the difference from the same frames without them.
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

/// Each marker is in the picture, also if its mark covers several.
#[test]
fn markers_are_in_the_picture() {
    let file = pictured(&pcaps().join("demo-markers-reorder.pcapng"));
    let directions = &file.report.connections[0].directions;
    let told: Vec<_> =
        directions.iter().map(|one| format!("◇ marker: {}<", count(one.markers))).collect();
    assert!(directions.iter().all(|one| one.markers > 0));
    let all = [file];
    let page = page::of(&all);
    for told in &told {
        assert!(page.contains(told), "{told}");
    }
    assert!(page.contains("<path class=\"marker\" d=\"M"));
    let without = page::of(&[pictured(&pcaps().join("demo-resegment.pcapng"))]);
    assert!(!without.contains("◇ marker:") && !without.contains("class=\"marker\""));
}

/// The rows of messages have their own texts where other pictures name pauses.
#[test]
fn pauses_are_not_named_across_the_texts_of_messages() {
    let all = [pictured(&pcaps().join("demo-markers-reorder.pcapng"))];
    let mut named = 0;
    for (name, svg) in page::pictures(&all) {
        let names_pauses = svg.contains(">pause of ");
        assert!(svg.contains("class=\"pause\"") || !names_pauses, "{name}");
        assert!(!names_pauses || !name.contains("-messages"), "{name}");
        named += u64::from(names_pauses);
    }
    assert!(named > 0);
}

/// Removes the times from a report; returns the number of connections that had them.
fn without_times(report: &mut serde_json::Value) -> usize {
    let mut connections = 0;
    for connection in report["connections"].as_array_mut().unwrap() {
        let directions = connection["directions"].as_array_mut().unwrap();
        let taken = directions.iter_mut().filter_map(|one| one.as_object_mut()?.remove("times"));
        connections += usize::from(taken.count() == 2);
    }
    connections
}

#[test]
fn times_are_in_the_report_too() {
    let of = |name: &str| serde_json::to_value(pictured(&pcaps().join(name)).report).unwrap();
    let times = |report: &serde_json::Value, side: usize, name: &str| {
        report["connections"][0]["directions"][side]["times"][name].clone()
    };
    let report = of("siw-rping-crc.pcap");
    let reads = [0, 1].map(|side| times(&report, side, "reads")["count"].as_u64().unwrap());
    assert!(reads.iter().sum::<u64>() > 0, "{reads:?}");
    for side in [0, 1] {
        let placement = times(&report, side, "placement");
        let fpdus = &report["connections"][0]["directions"][side]["fpdus"];
        assert_eq!(&placement["count"], fpdus, "each FPDU is placed once");
        let [p50, p99, max] = ["p50_ns", "p99_ns", "max_ns"].map(|name| placement[name].as_u64());
        assert!(p50 <= p99 && p99 <= max);
    }
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

/// If the startup of a connection is missing, this is its only finding.
#[test]
fn findings_of_connections_without_a_startup_are_on_the_page() {
    let file = pictured(&pcaps().join("derived/mid-connection.pcap"));
    let [connection] = &file.report.connections[..] else { panic!("one connection") };
    assert!(connection.mpa.is_none());
    let text = connection.findings[0].text.clone();
    let initiator = connection.initiator.clone();
    let page = page::of(&[file]);
    assert!(page.contains(&text) && page.contains(&initiator));
}

/// Builds a connection between invented ends, with this number of findings.
fn plain(name: &str, has_startup: bool, findings: usize) -> ConnectionReport {
    let finding = Finding {
        severity: Severity::Warning,
        rule: "rule",
        frame: 1,
        count: 1,
        frames: Vec::new(),
        text: format!("of {name}"),
        should: "",
        costs: "",
    };
    let mpa = has_startup.then(|| MpaReport {
        revision: 1,
        crc: true,
        accepted: Some(true),
        markers: MarkersReport::default(),
        initiator_private_data: String::new(),
        responder_private_data: String::new(),
        private_texts: [None, None],
        ird: None,
        ord: None,
        responder_ird: None,
        responder_ord: None,
        peer_to_peer: false,
    });
    ConnectionReport {
        initiator: name.to_owned(),
        responder: "responder".to_owned(),
        first_ns: None,
        span_ns: 0,
        handshake_ns: None,
        mpa,
        directions: Vec::new(),
        findings: vec![finding; findings],
    }
}

#[test]
fn connections_beyond_the_room_of_the_page_are_counted() {
    let startups = (0..250).map(|_| plain("iwarp", true, 2));
    let others = (0..230).map(|_| plain("other", false, 1));
    let silent = (0..40).map(|_| plain("silent", false, 0));
    let report = FileReport {
        connections: startups.chain(others).chain(silent).collect(),
        connections_unlisted: 1234,
        ..FileReport::default()
    };
    let page = page::of(&[report.into()]);
    let told = format!(
        "250 iWARP connections, 270 other TCP connections, {} more of either that are not listed.",
        count(1234)
    );
    assert!(page.contains(&told));
    assert_eq!(page.matches("<h2>iwarp ").count(), 200);
    assert_eq!(page.matches("<h2>other ").count(), 200);
    assert!(!page.contains("silent"));
    assert!(page.contains("50 more iWARP connections, with 100 findings, are in the JSON."));
    assert!(page.contains("30 more other TCP connections, with 30 findings, are in the JSON."));
}

/// Returns the cells of a row, in each of the two tables.
fn row<'a>(tables: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let lines = tables.lines().filter(|line| line.contains(name));
    lines.map(|line| line.split(['│', '┆']).map(str::trim).skip(2).take(2).collect()).collect()
}

#[test]
fn a_capture_is_compared_with_itself_placed_in_order_and_with_another() {
    let reordered = || pictured(&pcaps().join("demo-markers-reorder.pcapng"));
    let files = [reordered()];
    let alone = compare::text(&compare::of(&files).unwrap());
    assert_eq!(row(&alone, "held at most"), [["56 B", "33.1 kB"], ["0 B", "61.1 kB"]]);
    assert_eq!(row(&alone, "placed ahead of a gap")[1][1], "0.0 %");
    let other = pictured(&pcaps().join("demo-resegment.pcapng"));
    let files = [reordered(), other];
    let both = compare::text(&compare::of(&files).unwrap());
    assert_eq!(row(&both, "data segments"), [["154", "265"], ["150", "263"]]);
    assert_eq!(row(&both, "aligned with FPDUs")[0], ["100.0 %", "13.7 %"]);
    assert!(compare::of(&[reordered(), reordered(), reordered()]).is_err());
    // Its FPDUs are found by their CRCs.
    assert!(compare::of(&[pictured(&pcaps().join("derived/mid-connection.pcap"))]).is_ok());
    let nothing = PicturedFile::from(FileReport::default());
    let refused = compare::of(&[nothing]).unwrap_err();
    assert!(refused.contains("no iWARP connection"), "{refused}");
}

/// All values of JSON by name, in order.
fn values(json: &serde_json::Value, name: &str) -> Vec<u64> {
    let directions = |one: &serde_json::Value| one["directions"].as_array().unwrap().clone();
    let both = json["compared"].as_array().unwrap().iter();
    both.flat_map(directions).map(|one| one[name].as_u64().unwrap()).collect()
}

#[test]
fn the_page_of_a_comparison_is_whole_and_has_the_figures_of_its_json() {
    let reordered = || pictured(&pcaps().join("demo-markers-reorder.pcapng"));
    let other = || pictured(&pcaps().join("demo-resegment.pcapng"));
    for (files, names) in [
        (vec![reordered()], ["placed as it comes", "placed in order"]),
        (vec![reordered(), other()], ["a &lt;capture&gt;", "a &lt;capture&gt;"]),
        (vec![other(), pictured(&pcaps().join("siw-rping-crc.pcap"))], ["a &lt;capture&gt;"; 2]),
    ] {
        let comparison = compare::of(&files).unwrap();
        let (page, json) = (compare::page(&comparison), serde_json::to_value(&comparison).unwrap());
        assert_is_balanced(&page, "a comparison");
        assert!(page.len() < 2_000_000, "{}", page.len());
        for absent in ["<script", "src=", "href", "url(", "@import", "NaN", "<capture>", "{$"] {
            assert!(!page.contains(absent), "{absent}");
        }
        let [a, b] = names;
        assert!(page.contains(&format!("<h1>{a} beside {b}</h1>")), "{}", &page[..400]);
        // Row by row, for both senders: the left column, then the right.
        let cells = |name: &str| -> Vec<String> {
            let rows = page.split("<tr><td>").filter(|row| row.starts_with(name));
            let cells = |row: &str| -> Vec<String> {
                let cell = |rest: &str| rest.split("</td>").next().unwrap().to_owned();
                row.split("<td>").skip(1).take(2).map(cell).collect()
            };
            let [one, two] = &rows.map(cells).collect::<Vec<_>>()[..] else { panic!("{name}") };
            vec![one[0].clone(), two[0].clone(), one[1].clone(), two[1].clone()]
        };
        for (name, field) in [("data segments", "segments"), ("FPDUs", "fpdus")] {
            let told: Vec<_> = values(&json, field).into_iter().map(count).collect();
            assert_eq!(cells(name), told, "{name}");
            let table = compare::text(&comparison);
            assert_eq!(row(&table, name).len(), 2 + usize::from(name == "FPDUs") * 2);
        }
        let held = values(&json, "bytes_held_peak");
        assert_eq!(held.len(), 4);
        assert_eq!(
            page.matches("<div class=\"pair\">").count(),
            page.matches("How to read").count()
        );
        assert!(page.matches("<svg").count() >= 12, "{}", page.matches("<svg").count());
    }
    let files = [reordered()];
    let comparison = compare::of(&files).unwrap();
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(values(&json, "bytes_held_peak"), [56, 0, 33_064, 61_112]);
}
