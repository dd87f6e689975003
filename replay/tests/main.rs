//! Replay of the captures of `pcaps/`, compared with independent results.
//!
//! `expected/NAME.json` was made from `pcaps/NAME` by a program that shares no code with this one.
//! It lacks results that depend on the receiver (FPDUs found by markers, placed out of order or
//! held). If FPDUs overwrite each other and the capture shuffles them, two hashes are right.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod corpus;
mod pages;
mod resumed;
mod views;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;
use urnic_replay::{Report, replay, text};

fn pcaps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps")
}

/// Returns the report on one file.
fn replayed(path: &Path) -> Value {
    serde_json::to_value(replay("", || File::open(path))).unwrap()
}

/// Returns the first difference. Zero and absent are equal.
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

#[test]
fn the_summary_names_what_matters() {
    let path = pcaps().join("derived/markers-cut-shuffled.pcap");
    let text = text::of(&Report { files: vec![replay("capture", || File::open(&path))] });
    for part in ["MPA revision 2", "markers both ways", "found by a marker", "rdma_write", "0x"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}
