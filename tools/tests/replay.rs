//! `urnic replay` on the captures of `pcaps/`, against an independent reading of them.
//!
//! `expected/NAME.json` was made from `pcaps/NAME` by a program that shares no code with this one.
//! It lacks what depends on how a receiver works (what was found by markers, placed out of order or
//! held). Where FPDUs overwrite each other and the capture shuffles them, two hashes are right.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "what is measured is time, and other processes")]

mod captures;
mod memory;
mod pipes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn pcaps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps")
}

fn urnic(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_urnic")).arg("replay").args(args).output().unwrap()
}

/// The report on one file.
fn replayed(path: &Path) -> Value {
    let output = urnic(&["--json", path.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["files"][0].clone()
}

/// What differs, if anything. Zero and absent are the same.
fn difference(at: &str, expected: &Value, actual: &Value) -> Option<String> {
    let differs = || Some(format!("{at}: expected {expected}, found {actual}"));
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(string) => string.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match (expected, actual) {
        (Value::Array(either), Value::String(_)) if at.ends_with("sha256") => {
            if either.contains(actual) { None } else { differs() }
        }
        (Value::Object(expected), Value::Object(actual)) => {
            let counts = at.ends_with("fpdus_by_opcode") || at.ends_with("messages");
            let extra = actual.keys().filter(|key| counts && !expected.contains_key(*key));
            expected.keys().chain(extra).find_map(|key| {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(Value::Null)
                };
                difference(&format!("{at}.{key}"), &of(expected), &of(actual))
            })
        }
        (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
            let (mut expected, mut actual) = (expected.clone(), actual.clone());
            if at.ends_with("buffers") {
                expected.sort_by_key(|one| one["stag"].to_string());
                actual.sort_by_key(|one| one["stag"].to_string());
            }
            let pairs = expected.iter().zip(&actual).enumerate();
            pairs.into_iter().find_map(|(index, (expected, actual))| {
                difference(&format!("{at}[{index}]"), expected, actual)
            })
        }
        _ if expected == actual || is_nothing(expected) && is_nothing(actual) => None,
        _ => differs(),
    }
}

#[test]
fn every_capture_agrees_with_the_independent_reading() {
    let mut compared = 0;
    for folder in [pcaps(), pcaps().join("derived")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let expected = format!("{}/tests/expected/{name}.json", env!("CARGO_MANIFEST_DIR"));
            let Ok(expected) = fs::read(&expected) else { continue };
            let expected: Value = serde_json::from_slice(&expected).unwrap();
            let mut actual = replayed(&path);
            let connections = actual["connections"].as_array_mut().unwrap();
            connections.retain(|connection| !connection["mpa"].is_null());
            assert_eq!(difference(name, &expected, &actual), None);
            compared += 1;
        }
    }
    let expected = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/expected")).unwrap();
    assert_eq!(compared, expected.count());
}

#[test]
fn healthy_sessions_between_stock_programs_raise_neither_errors_nor_warnings() {
    for name in ["rping-crc", "rping", "send-loss-crc", "write-crc", "write-mtu9000-crc"] {
        let file = replayed(&pcaps().join(format!("siw-{name}.pcap")));
        assert_eq!(file["findings"], Value::Array(Vec::new()), "{name}");
        for connection in file["connections"].as_array().unwrap() {
            for finding in connection["findings"].as_array().unwrap() {
                assert_eq!(finding["severity"], "note", "{name}: {finding}");
            }
        }
    }
}

#[test]
fn with_markers_octets_of_a_reordered_stream_are_placed_ahead() {
    for (name, is_ahead) in
        [("markers-reorder", true), ("markers-resegment", true), ("resegment", false)]
    {
        let file = replayed(&pcaps().join(format!("demo-{name}.pcapng")));
        for direction in file["connections"][0]["directions"].as_array().unwrap() {
            for counter in ["fpdus_by_marker", "fpdus_out_of_order", "bytes_placed_out_of_order"] {
                assert_eq!(direction[counter].as_u64().unwrap() > 0, is_ahead, "{name}: {counter}");
            }
            assert!(direction["bytes_held_peak"].as_u64().unwrap() < 64 << 10, "{name}");
        }
    }
}

/// What each end of a demo counted is what an onlooker counts.
#[test]
fn a_recorded_demo_is_replayed_to_the_same_counters() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo.pcapng");
    let link = "--markers on --loss 3 --reorder 10 --duplicate 3 --corrupt 1 --bytes 200K";
    for seed in ["1", "2"] {
        let demo = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["demo", "--json", "--seed", seed, "--record", path.to_str().unwrap()])
            .args(link.split(' '))
            .output()
            .unwrap();
        let demo: Value = serde_json::from_slice(&demo.stdout).unwrap();
        let replay = replayed(&path);
        for direction in 0..2 {
            let demo = &demo["directions"][direction];
            let replay = &replay["connections"][0]["directions"][direction];
            for counter in [
                "fpdus",
                "fpdus_by_opcode",
                "messages",
                "crc_good",
                "crc_bad",
                "markers",
                "fpdus_by_marker",
                "fpdus_out_of_order",
                "bytes_placed",
                "bytes_placed_out_of_order",
                "bytes_held_peak",
            ] {
                let found = difference(counter, &demo[counter], &replay[counter]);
                assert_eq!(found, None, "seed {seed}, direction {direction}");
            }
        }
    }
}

#[test]
fn strict_fails_on_errors_only() {
    let status = |strict: &[&str], name: &str| {
        let path = pcaps().join(name);
        urnic(&[strict, &[path.to_str().unwrap()]].concat()).status.code()
    };
    assert_eq!(status(&[], "derived/crc-wrong.pcap"), Some(0));
    assert_eq!(status(&["--strict"], "derived/crc-wrong.pcap"), Some(1));
    assert_eq!(status(&["--strict", "--json"], "derived/marker-wrong.pcap"), Some(1));
    // A Terminate, a capture that cuts frames and one that lacks its start are warnings.
    for name in
        ["siw-terminate-bounds.pcap", "derived/snap-length.pcap", "derived/mid-connection.pcap"]
    {
        assert_eq!(status(&["--strict"], name), Some(0), "{name}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named_and_the_others_reported() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let garbage = folder.join("garbage.pcap");
    fs::write(&garbage, b"this is no capture").unwrap();
    let missing = folder.join("missing.pcap");
    let good = pcaps().join("siw-rping.pcap");
    let names = [&garbage, &missing, &good].map(|path| path.to_str().unwrap());
    let output = urnic(&[&["--json"], &names[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(complaints.contains("garbage.pcap: neither pcap nor pcapng"), "{complaints}");
    assert!(complaints.contains("missing.pcap: reading the capture failed"), "{complaints}");
    let text = urnic(&names);
    let told = String::from_utf8(text.stdout).unwrap();
    assert!(!told.contains("reading the capture failed"), "said once, on standard error:\n{told}");
    assert!(String::from_utf8(text.stderr).unwrap().contains("reading the capture failed"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["files"].as_array().unwrap().len(), 3);
    assert_eq!(report["files"][2]["frames"], 80);
    // No file at all is wrong usage.
    assert_eq!(urnic(&[]).status.code(), Some(2));
}

#[test]
fn a_capture_cut_short_is_reported_as_far_as_it_goes() {
    let whole = fs::read(pcaps().join("siw-rping-crc.pcap")).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short.pcap");
    fs::write(&path, &whole[..20_000]).unwrap();
    let output = urnic(&["--strict", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("warning") && text.contains("the capture is cut off"), "{text}");
}

/// Names are not always the user's own: a complaint holds nothing that a terminal would obey.
#[test]
fn a_complaint_cannot_steer_the_terminal() {
    let output = urnic(&["none\u{1b}[2J\u{202e}.pcap"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("none\u{fffd}[2J\u{fffd}.pcap: reading"), "{complaint:?}");
    assert!(!complaint.contains(['\u{1b}', '\u{202e}']), "{complaint:?}");
}

/// The first frame or a later one: what is there is read, and a header that is cut is no capture.
#[test]
fn where_a_capture_is_cut_it_ends() {
    let whole = fs::read(pcaps().join("siw-rping-crc.pcap")).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cut.pcap");
    for (len, status, warned) in [(10, 2, false), (23, 2, false), (30, 0, true), (60, 0, true)] {
        fs::write(&path, &whole[..len]).unwrap();
        let output = urnic(&["--json", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(status), "{len}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let file = &report["files"][0];
        assert_eq!(file["error"].is_null(), status == 0, "{len}: {file}");
        assert_eq!(!file["findings"].as_array().unwrap().is_empty(), warned, "{len}: {file}");
        assert_eq!(output.stderr.is_empty(), status == 0, "{len}");
    }
}

#[test]
fn the_summary_names_what_matters() {
    let path = pcaps().join("derived/markers-cut-shuffled.pcap");
    let output = urnic(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["MPA revision 2", "markers both ways", "found by a marker", "rdma_write", "0x"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}
