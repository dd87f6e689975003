//! `urnic replay`: its options, its exit status, and its cost. The findings are tested with its
//! library.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "what is measured is time, and other processes")]

mod captures;
mod memory;
mod pipes;
mod write;

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

/// Returns the report on one file.
fn replayed(path: &Path) -> Value {
    let output = urnic(&["--json", path.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["files"][0].clone()
}

/// Returns counts by name without the zeros: one of the two reports lists them.
fn present(counts: &Value) -> Value {
    let mut counts = counts.clone();
    if let Some(counts) = counts.as_object_mut() {
        counts.retain(|_, count| *count != 0);
    }
    counts
}

/// The counters of both ends of a demo equal the counts that a replay makes of the recording.
#[test]
fn a_recorded_demo_is_replayed_to_the_same_counters() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replayed-demo.pcapng");
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
                let what = format!("seed {seed}, direction {direction}: {counter}");
                assert_eq!(present(&replay[counter]), present(&demo[counter]), "{what}");
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
fn unreadable_files_are_named_and_the_others_reported() {
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
    // A command line without a file is wrong.
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

/// Others may have chosen the names: an error message has no character that a terminal obeys.
#[test]
fn a_complaint_cannot_steer_the_terminal() {
    let output = urnic(&["none\u{1b}[2J\u{202e}.pcap"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("none\u{fffd}[2J\u{fffd}.pcap: reading"), "{complaint:?}");
    assert!(!complaint.contains(['\u{1b}', '\u{202e}']), "{complaint:?}");
}

/// The first frame or a later one may be cut: complete frames are read, and a cut header is no
/// capture.
#[test]
fn truncated_capture_is_read_up_to_its_last_whole_frame() {
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
