//! Captures that begin in the middle of a connection.

use std::fs;

use serde_json::Value;
use urnic_replay::replay;

use crate::pcaps;

/// A capture without its first frames.
fn without_first(file: &[u8], frames: usize) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let is_ng = file.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]);
    let (mut at, mut number) = (if is_ng { 0 } else { 24 }, 0);
    let mut out = file[..at].to_vec();
    while at < file.len() {
        let len = if is_ng { u32_at(at + 4) } else { 16 + u32_at(at + 8) };
        let is_frame = !is_ng || u32_at(at) == 6;
        number += usize::from(is_frame);
        if !is_frame || number > frames {
            out.extend(&file[at..at + len]);
        }
        at += len;
    }
    out
}

fn replayed(file: &[u8]) -> Value {
    serde_json::to_value(replay("", || Ok(file))).unwrap()
}

fn sum(file: &Value, counter: &str) -> u64 {
    let connections = file["connections"].as_array().unwrap().iter();
    let directions = connections.flat_map(|one| one["directions"].as_array().unwrap());
    directions.map(|one| one[counter].as_u64().unwrap()).sum()
}

fn texts(file: &Value) -> String {
    let connections = file["connections"].as_array().unwrap().iter();
    connections.map(|one| one["findings"].to_string()).collect()
}

#[test]
fn fpdus_are_found_again_by_markers_and_by_crcs() {
    for (name, by) in [
        ("demo-markers-reorder.pcapng", "markers and CRCs"),
        ("demo-markers-resegment.pcapng", "markers and CRCs"),
        ("demo-resegment.pcapng", "CRCs; it has no markers"),
        ("siw-write-crc.pcap", "CRCs; it has no markers"),
    ] {
        let file = fs::read(pcaps().join(name)).unwrap();
        let whole = replayed(&file);
        let frames = usize::try_from(whole["frames"].as_u64().unwrap()).unwrap();
        for cut in [frames / 10, frames / 4, frames / 2] {
            let rest = replayed(&without_first(&file, cut));
            let told = texts(&rest);
            assert!(told.contains(by), "{name} without {cut} frames: {told}");
            assert!(!told.contains("\"error\""), "{name} without {cut} frames: {told}");
            let (found, all) = (sum(&rest, "fpdus"), sum(&whole, "fpdus"));
            let left = (frames - cut) as f64 / frames as f64;
            assert!(
                found as f64 > all as f64 * left * 0.6 && found < all,
                "{name}: {found} of {all}"
            );
            assert_eq!(sum(&rest, "crc_bad") + sum(&rest, "marker_errors"), 0, "{name}: {cut}");
        }
    }
}

#[test]
fn without_markers_and_crcs_it_is_said_that_nothing_can_be_known() {
    let file = fs::read(pcaps().join("siw-rping.pcap")).unwrap();
    let rest = replayed(&without_first(&file, 30));
    assert_eq!(sum(&rest, "fpdus"), 0);
    assert!(texts(&rest).contains("too few FPDUs in a row"), "{}", texts(&rest));
}
