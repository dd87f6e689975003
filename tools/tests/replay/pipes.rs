//! Captures that can be read only once: standard input and FIFOs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::replay::pcaps;

/// Replays `capture` from standard input, in pieces of `piece` bytes.
fn piped(name: &str, capture: &[u8], piece: usize) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_urnic"))
        .args(["replay", "--json", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for piece in capture.chunks(piece) {
        // Input that is no capture is not read to its end.
        if input.write_all(piece).is_err() {
            break;
        }
    }
    drop(input);
    child.wait_with_output().unwrap()
}

/// Returns the report without the name of the file.
fn report(output: &Output) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut file = report["files"][0].clone();
    file["file"] = Value::Null;
    file
}

fn direct(path: &Path) -> Value {
    report(&crate::replay::urnic(&["--json", path.to_str().unwrap()]))
}

fn make_fifo(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn a_pipe_is_replayed_like_the_file() {
    for name in ["siw-rping-crc.pcap", "demo-markers-reorder.pcapng", "derived/big-endian.pcapng"] {
        let path = pcaps().join(name);
        let Ok(capture) = fs::read(&path) else { panic!("{name} is missing") };
        let expected = direct(&path);
        assert!(expected["frames"].as_u64().unwrap() > 0, "{name}");
        for (input, piece) in [("-", 100_000), ("/dev/stdin", 777)] {
            let output = piped(input, &capture, piece);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{name} {input}: {complaint}");
            assert_eq!(report(&output), expected, "{name} as {input}");
        }
    }
}

#[test]
fn a_file_as_standard_input_is_replayed() {
    let path = pcaps().join("siw-rping-crc.pcap");
    for name in ["-", "/dev/stdin"] {
        let output = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["replay", "--json", name])
            .stdin(File::open(&path).unwrap())
            .output()
            .unwrap();
        assert_eq!(report(&output), direct(&path), "{name}");
    }
}

#[test]
fn a_fifo_is_replayed_like_the_file() {
    let fifo = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capture.fifo");
    let _left_over = fs::remove_file(&fifo);
    make_fifo(&fifo);
    let path = pcaps().join("siw-write-crc.pcap");
    let capture = fs::read(&path).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_urnic"))
        .args(["replay", "--json", fifo.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    fs::OpenOptions::new().write(true).open(&fifo).unwrap().write_all(&capture).unwrap();
    assert_eq!(report(&child.wait_with_output().unwrap()), direct(&path));
}

/// Input that is no capture is refused at its first bytes, however much follows.
#[test]
fn an_endless_pipe_that_is_no_capture_is_refused_at_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_urnic"))
        .args(["replay", "/dev/zero"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("neither pcap nor pcapng"));
    let output = piped("-", b"", 1);
    assert_eq!(output.status.code(), Some(2));
    let mut complaint = String::new();
    (&output.stderr[..]).read_to_string(&mut complaint).unwrap();
    assert!(complaint.contains("-: the capture is empty"), "{complaint}");
}
