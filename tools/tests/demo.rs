//! `urnic demo`, run as by its users.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use urnic_netdev::capture::CaptureReader;

/// Runs `urnic demo` with these arguments, separated by spaces.
fn demo(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_urnic"))
        .arg("demo")
        .args(arguments.split_whitespace())
        .output()
        .expect("the command runs")
}

/// Returns the JSON of a run that must verify.
fn verified(arguments: &str) -> Value {
    let output = demo(&format!("{arguments} --json"));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {complaint}");
    assert_eq!(complaint, "", "{arguments}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["verified"], true, "{arguments}");
    result
}

/// Returns a counter of both directions.
fn both(result: &Value, key: &str) -> [u64; 2] {
    [0, 1].map(|index| result["directions"][index][key].as_u64().expect("a counter"))
}

/// Returns a result without values that depend on the machine.
fn timeless(mut result: Value) -> Value {
    for key in ["gbps", "seconds"] {
        assert!(result[key].is_f64());
        result[key] = Value::Null;
    }
    result
}

const BAD_LINK: &str = "--loss 1 --reorder 5 --duplicate 1 --corrupt 0.1";

#[test]
fn bad_link_verifies_for_every_seed() {
    for seed in 0..8 {
        let result = verified(&format!("{BAD_LINK} --markers on --bytes 4M --seed {seed}"));
        assert_eq!(both(&result, "bytes_verified"), [4 << 20; 2]);
        for direction in 0..2 {
            let of = |key| both(&result, key)[direction];
            assert!(of("bytes_placed_out_of_order") > 0, "seed {seed}");
            assert!(of("fpdus_by_marker") > 0, "seed {seed}");
            assert!(of("bytes_held_peak") < 64 << 10, "seed {seed}: {}", of("bytes_held_peak"));
            assert!(of("retransmissions") > 0, "seed {seed}");
            assert_eq!(of("segments"), of("segments_aligned"), "seed {seed}");
            assert_eq!(of("bytes_placed"), 4 << 20, "seed {seed}: each byte once");
        }
    }
}

#[test]
fn markers_shorten_the_time_to_placement() {
    let mean_ns = |markers: &str| {
        let result = verified(&format!("--loss 1 --bytes 4M --seed 3 --markers {markers}"));
        [0, 1].map(|from| result["directions"][from]["placement_ns_mean"].as_f64().unwrap())
    };
    let (with, without) = (mean_ns("on"), mean_ns("off"));
    for from in 0..2 {
        assert!(10.0 * with[from] < without[from], "{with:?} {without:?} ns");
    }
}

#[test]
fn every_extreme_verifies() {
    for arguments in [
        // Of a hundred seeds, eight or nine are given up while they close, because the peer does
        // not answer.
        "--loss 30 --seed 2",
        "--resegment 100 --markers on",
        "--resegment 100 --loss 3 --reorder 20",
        "--mtu 576 --loss 2 --markers on",
        "--mtu 256 --reorder 10",
        "--mtu 65535 --loss 5 --markers on",
        "--crc off --loss 2 --corrupt 5",
        "--stack layered --loss 2 --markers on --resegment 50",
        "--super-frames on --loss 2 --markers on",
        "--super-frames 4K --mtu 9000",
        "--latency 5ms --rate 1G --loss 1",
        "--message 1 --loss 2",
        "--reorder 100 --duplicate 100 --resegment 100 --markers on",
    ] {
        let bytes = if arguments.contains("--message") { "2K" } else { "512K" };
        verified(&format!("{arguments} --bytes {bytes}"));
    }
}

#[test]
fn a_run_without_payload_does_one_of_each_kind() {
    for bytes in [0, 1] {
        let result = verified(&format!("--bytes {bytes}"));
        assert_eq!(both(&result, "bytes_verified"), [bytes; 2]);
        for direction in 0..2 {
            let messages = result["directions"][direction]["messages"].as_object().unwrap();
            for (opcode, count) in messages {
                let expected = opcode != "terminate";
                assert_eq!(count.as_u64().unwrap() > 0, expected, "{opcode} with {bytes} bytes");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let arguments = format!("{BAD_LINK} --markers on --resegment 5 --bytes 2M");
    let run = |seed| timeless(verified(&format!("{arguments} --seed {seed}")));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7)["directions"], run(8)["directions"]);
}

#[test]
fn json_has_the_options_and_the_counters() {
    let result = verified("--bytes 64K --markers on --crc off --seed 9");
    assert_eq!(result["seed"], 9);
    assert_eq!(result["options"]["bytes"], 65_536);
    assert_eq!(result["options"]["markers"], true);
    assert_eq!(result["options"]["crc"], false);
    assert_eq!(result["options"]["stack"], "optimized");
    assert!(result["virtual_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(result["directions"].as_array().unwrap().len(), 2);
    for (index, from) in ["initiator", "responder"].into_iter().enumerate() {
        let direction = &result["directions"][index];
        assert_eq!(direction["from"], from);
        for key in [
            "segments",
            "segments_aligned",
            "segments_out_of_order",
            "segments_retransmitted",
            "retransmissions",
            "fpdus",
            "markers",
            "marker_errors",
            "fpdus_by_marker",
            "fpdus_out_of_order",
            "bytes_placed",
            "bytes_placed_out_of_order",
            "bytes_held_peak",
            "placement_ns_max",
        ] {
            assert!(direction[key].is_u64(), "{key}");
        }
        assert!(direction["markers"].as_u64().unwrap() > 0);
        assert!(
            ["crc_good", "crc_bad"].iter().all(|key| direction[*key].is_null()),
            "no CRC is checked"
        );
        // Read Responses are copied once, and no other payload is.
        let copies = direction["copies_per_byte_tx"].as_f64().unwrap();
        assert!(copies > 0.0 && copies < 0.5, "{copies}");
        assert_eq!(direction["copies_per_byte_rx"], 1.0, "aligned and in order: one copy");
        assert_eq!(direction["placement_ns_mean"], 0.0, "nothing waits");
        let by_opcode = direction["fpdus_by_opcode"].as_object().unwrap();
        let total: u64 = by_opcode.values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(direction["fpdus"], total);
    }
}

#[test]
fn wrong_usage_exits_with_status_2() {
    for arguments in [
        "--loss 101",
        "--loss -1",
        "--loss NaN",
        "--bytes 1e6",
        "--bytes 64KB",
        "--mtu 255",
        "--mtu 64K",
        "--message 0",
        "--markers maybe",
        "--latency 10",
        "--rate 0",
        "--super-frames 64K",
        "--stack kernel",
        "--json --quiet",
        "--record /nonexistent/folder/file.pcapng",
        "unexpected",
    ] {
        let output = demo(&format!("{arguments} --bytes 1"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(!output.stderr.is_empty(), "{arguments}: says why");
    }
}

#[test]
fn a_run_that_gets_nowhere_exits_with_status_1() {
    let output = demo("--loss 100 --bytes 1K --json");
    assert_eq!(output.status.code(), Some(1));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["verified"], false);
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("no connection"), "{error}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(error));
}

#[test]
fn quiet_prints_nothing_and_text_names_the_seed() {
    let quiet = demo("--bytes 1K --quiet");
    assert_eq!((quiet.status.code(), quiet.stdout.len(), quiet.stderr.len()), (Some(0), 0, 0));
    let text = demo("--bytes 1K --seed 77");
    let shown = String::from_utf8(text.stdout).unwrap();
    assert!(shown.contains("All verified") && shown.contains("seed 77"), "{shown}");
    assert!(shown.contains("bytes placed"), "{shown}");
    assert!(shown.contains("Senders copied ") && shown.contains("of Read Responses"), "{shown}");
}

#[test]
fn help_explains_every_option() {
    let output = demo("--help");
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    for option in [
        "--bytes",
        "--mtu",
        "--loss",
        "--reorder",
        "--duplicate",
        "--corrupt",
        "--resegment",
        "--markers",
        "--crc",
        "--stack",
        "--seed",
        "--record",
        "--json",
        "--latency",
        "--rate",
        "--super-frames",
        "--message",
        "--quiet",
        "Examples:",
        "Exit status",
    ] {
        assert!(help.contains(option), "{option}");
    }
}

#[test]
fn recorded_frames_are_those_after_the_bad_link_in_time_order() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("demo.pcapng");
    let arguments = format!("{BAD_LINK} --markers on --bytes 256K --record {}", path.display());
    let result = verified(&arguments);
    let (mut frames, mut before) = (0, 0);
    for frame in CaptureReader::open(File::open(&path).unwrap()).unwrap() {
        let frame = frame.unwrap();
        assert!(frame.timestamp_ns >= before, "time runs forward");
        before = frame.timestamp_ns;
        frames += 1;
    }
    let [sent, lost, twice] =
        ["frames", "frames_lost", "frames_duplicated"].map(|key| both(&result, key));
    let expected: u64 = (0..2).map(|index| sent[index] - lost[index] + twice[index]).sum();
    assert_eq!(frames, expected);
}

#[test]
fn replay_counts_the_recorded_frames_like_the_demo() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replayed.pcapng");
    for arguments in [
        "--markers on",
        "--loss 1 --reorder 5 --duplicate 1 --corrupt 0.1 --markers on",
        "--resegment 100 --loss 2",
        "--stack layered --crc off --loss 2",
    ] {
        let demo = verified(&format!("{arguments} --bytes 256K --record {}", path.display()));
        let output = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["replay", "--json", "--strict"])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments}: no finding is an error");
        let replay: Value = serde_json::from_slice(&output.stdout).unwrap();
        let connection = &replay["files"][0]["connections"][0];
        for (counted, replayed) in demo["directions"]
            .as_array()
            .unwrap()
            .iter()
            .zip(connection["directions"].as_array().unwrap())
        {
            for (key, value) in replayed.as_object().unwrap() {
                // The replay counts segments as they crossed the link, including startup and
                // copies.
                let same = !matches!(key.as_str(), "segments" | "segments_aligned");
                // Without CRCs the demo counts none.
                let counted = counted.get(key).filter(|counted| !counted.is_null());
                if let (true, Some(counted)) = (same, counted) {
                    assert_eq!(nonzero(counted), nonzero(value), "{key} with {arguments}");
                }
            }
        }
    }
}

#[test]
fn resegment_takes_a_percentage_or_none() {
    let halves = verified("--bytes 256K --markers on --resegment");
    let all = verified("--bytes 256K --markers on --resegment 100");
    for run in [&halves, &all] {
        assert!(both(run, "segments_aligned")[0] > 0);
        assert_eq!(both(run, "segments_aligned"), both(run, "segments"), "counted as sent");
    }
}

/// Compares means and ratios with their bounds: pieces of FPDUs are copied twice at most, and no
/// byte waits longer than the maximum.
#[test]
fn means_and_ratios_are_within_their_bounds() {
    for arguments in ["--resegment 100 --loss 1", "--stack layered --loss 2"] {
        let run = verified(&format!("--bytes 1M {arguments}"));
        for direction in run["directions"].as_array().unwrap() {
            let of = |key: &str| direction[key].as_f64().unwrap();
            assert!(of("bytes_held_peak") > 0.0, "{arguments}");
            let copies = of("copies_per_byte_rx");
            assert!(copies > 1.0 && copies <= 2.0, "{arguments}: {copies}");
            let (mean, most) = (of("placement_ns_mean"), of("placement_ns_max"));
            assert!(0.0 < mean && mean < most, "{arguments}: {mean} {most}");
        }
        let bits: f64 = both(&run, "bytes_verified").iter().sum::<u64>() as f64 * 8.0;
        let (gbps, seconds) = (run["gbps"].as_f64().unwrap(), run["seconds"].as_f64().unwrap());
        assert!((gbps * 1e9 * seconds / bits - 1.0).abs() < 1e-9);
    }
}

/// Returns a counter, or a table of counters without the zero ones.
fn nonzero(value: &Value) -> Value {
    let Some(table) = value.as_object() else { return value.clone() };
    table.iter().filter(|(_, count)| **count != 0).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// A long run shows its progress, also without a terminal for a bar.
#[test]
fn a_long_run_shows_a_sign_of_life() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_urnic"))
        .args(["demo", "--bytes", "1000T"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut line = String::new();
    let said = BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut line);
    child.kill().expect("it runs still");
    child.wait().expect("it is a child");
    assert!(said.is_ok());
    assert!(line.starts_with("urnic: ") && line.contains("of 2.20 PB after "), "{line:?}");
}
