//! Memory and time of a replay are bounded for any capture; and an honest connection is reported in
//! the same way with and without an attack in the capture.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::replay::captures::{ACK, CLIENT, Capture, End, SERVER, SYN, write};

/// Memory and time that a replay used.
struct Cost {
    peak_mib: u64,
    /// Processor time: unlike wall time, it does not depend on other load of the machine.
    seconds: f64,
    report: Value,
}

/// Replays a capture, and samples its peak memory and its processor time meanwhile.
fn measured(path: &Path) -> Cost {
    let begin = Instant::now();
    let output = path.with_extension("json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_urnic"))
        .args(["replay", "--json", path.to_str().unwrap()])
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = format!("/proc/{}", child.id());
    let about = |what| std::fs::read_to_string(format!("{process}/{what}"));
    let (mut peak_kib, mut ticks) = (0, 0);
    let ended = loop {
        // The peak is a high-water mark: of frequent samples, the last one counts.
        if let Ok(text) = about("status")
            && let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))
        {
            peak_kib = line.trim().trim_end_matches(" kB").parse().unwrap();
        }
        // After the name in parentheses: the 12th and 13th field, in hundredths of a second.
        if let Ok(text) = about("stat") {
            let fields: Vec<_> = text.rsplit(')').next().unwrap().split_whitespace().collect();
            ticks = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
        }
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "no end of {}", path.display());
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(ended.code(), Some(0), "{}", path.display());
    let seconds = f64::from(ticks) / 100.0;
    let report: Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    Cost { peak_mib: peak_kib >> 10, seconds, report: report["files"][0].clone() }
}

/// The client of the honest connection.
const HONEST: End = ([10, 9, 9, 9], 4000);

/// An honest connection during an attack: one Write of 32 bytes for each call.
struct Honest {
    seq: u32,
    writes: u32,
}

impl Honest {
    fn start(capture: &mut Capture) -> Self {
        Self { seq: capture.start(HONEST), writes: 0 }
    }

    fn go_on(&mut self, capture: &mut Capture) {
        let octets = write(0x00c0_ffee, 32 * u64::from(self.writes), &[7; 32]);
        capture.segment([HONEST, SERVER], self.seq, ACK, &octets);
        self.seq += u32::try_from(octets.len()).unwrap();
        self.writes += 1;
    }

    /// Asserts that this connection is reported completely, whatever else is in the capture.
    fn is_whole(&self, report: &Value) {
        let connections = report["connections"].as_array().unwrap();
        let initiator =
            format!("{}.{}.{}.{}:{}", HONEST.0[0], HONEST.0[1], HONEST.0[2], HONEST.0[3], HONEST.1);
        let own: Vec<_> = connections.iter().filter(|one| one["initiator"] == *initiator).collect();
        assert_eq!(own.len(), 1, "one report of the honest connection");
        let sent = &own[0]["directions"][0];
        assert_eq!(sent["fpdus"], self.writes);
        assert_eq!(sent["bytes_placed"], 32 * self.writes);
        assert_eq!(sent["buffers"][0]["bytes"], 32 * self.writes);
        assert_eq!(own[0]["findings"].as_array().unwrap().len(), 0, "{}", own[0]["findings"]);
    }
}

/// Returns the texts of the file's findings.
fn told(report: &Value) -> String {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|one| format!("{}\n", one["text"])).collect()
}

/// Returns another client for each number.
fn client(number: u32) -> End {
    ((0x0b00_0000 + number).to_be_bytes(), 1000)
}

#[test]
fn half_a_million_bare_syns_take_little_and_push_out_no_connection_in_use() {
    if urnic_testkit::is_too_long(
        "half_a_million_bare_syns_take_little_and_push_out_no_connection_in_use",
    ) {
        return;
    }
    let mut capture = Capture::new("syns.pcap");
    let mut honest = Honest::start(&mut capture);
    for number in 0..500_000 {
        capture.segment([client(number), SERVER], 1, SYN, &[]);
        if number % 50_000 == 0 {
            honest.go_on(&mut capture);
        }
    }
    let cost = measured(&capture.finish());
    assert!(cost.peak_mib < 100, "{} MiB", cost.peak_mib);
    assert!(cost.seconds < 60.0, "{} s", cost.seconds);
    honest.is_whole(&cost.report);
    let listed = cost.report["connections"].as_array().unwrap().len() as u64;
    let unlisted = cost.report["connections_unlisted"].as_u64().unwrap();
    assert_eq!(listed + unlisted, 500_001, "each is counted");
    let told = told(&cost.report);
    assert!(told.contains("495905 connections were evicted for others"), "{told}");
}

/// Connections that carry data are evicted too, the longest idle ones first, and a finding reports
/// it.
#[test]
fn connections_in_use_make_room_in_the_order_of_their_idleness() {
    let mut capture = Capture::new("in-use.pcap");
    let mut honest = Honest::start(&mut capture);
    let first = capture.start(client(0));
    for number in 1..=4100 {
        capture.start(client(number));
        honest.go_on(&mut capture);
    }
    // The connection was evicted: its next segments are no MPA connection.
    capture.segment([client(0), SERVER], first, ACK, &write(1, 0, b"x"));
    let cost = measured(&capture.finish());
    honest.is_whole(&cost.report);
    let connections = cost.report["connections"].as_array().unwrap();
    let of_first: Vec<_> =
        connections.iter().filter(|one| one["initiator"] == "11.0.0.0:1000").collect();
    assert_eq!(of_first.len(), 2, "before it was let go and after");
    let findings = of_first[0]["findings"].to_string();
    assert!(findings.contains("it was evicted for another"), "{findings}");
    assert!(of_first[1]["mpa"].is_null());
    let told = told(&cost.report);
    assert!(told.contains("7 connections were evicted"), "{told}");
}

/// 15 MB of Writes of one byte, as far apart as possible.
#[test]
fn writes_of_one_octet_to_distinct_pages_and_tags_take_little() {
    if urnic_testkit::is_too_long("writes_of_one_octet_to_distinct_pages_and_tags_take_little") {
        return;
    }
    type Place = fn(u32) -> (u32, u64);
    let places: [(&str, Place); 4] = [
        ("pages", |number| (5, u64::from(number) << 12)),
        ("tags", |number| (number + 1, 0)),
        ("ends-of-pages", |number| {
            (5, (u64::from(number / 2) << 12) + 4095 * u64::from(number % 2))
        }),
        ("holes", |number| (number / 2 + 1, ((1 << 30) - 2) * u64::from(number % 2))),
    ];
    for (name, place) in places {
        let mut capture = Capture::new(&format!("{name}.pcap"));
        let mut honest = Honest::start(&mut capture);
        let mut seq = capture.start(CLIENT);
        for number in (0..600_000).step_by(50) {
            let fpdus = (number..number + 50).flat_map(|number| {
                let (stag, to) = place(number);
                write(stag, to, b"x")
            });
            let octets: Vec<u8> = fpdus.collect();
            capture.segment([CLIENT, SERVER], seq, ACK, &octets);
            seq += u32::try_from(octets.len()).unwrap();
            if number < 10_000 {
                honest.go_on(&mut capture);
            }
        }
        let cost = measured(&capture.finish());
        assert!(cost.peak_mib < 200, "{name}: {} MiB", cost.peak_mib);
        assert!(cost.seconds < 60.0, "{name}: {} s", cost.seconds);
        honest.is_whole(&cost.report);
        let attack = &cost.report["connections"][1]["directions"][0];
        assert_eq!(attack["fpdus"], 600_000, "{name}");
    }
}

/// Gaps: between segments of one byte, one byte is missing, so that ranges never join.
#[test]
fn a_stream_of_gaps_takes_little() {
    if urnic_testkit::is_too_long("a_stream_of_gaps_takes_little") {
        return;
    }
    let mut capture = Capture::new("gaps.pcap");
    let mut honest = Honest::start(&mut capture);
    for connection in 0..4 {
        let seq = capture.start(client(connection));
        for number in 1..150_000 {
            capture.segment([client(connection), SERVER], seq + 2 * number, ACK, b"x");
        }
        honest.go_on(&mut capture);
    }
    let cost = measured(&capture.finish());
    assert!(cost.peak_mib < 200, "{} MiB", cost.peak_mib);
    // Four seconds here; a search through all data kept for each segment would take a minute.
    assert!(cost.seconds < 20.0, "{} s", cost.seconds);
    honest.is_whole(&cost.report);
}

/// Read Requests without an answer, and FPDUs that are as short as possible.
#[test]
fn unanswered_requests_take_little_memory() {
    let mut capture = Capture::new("unanswered.pcap");
    let mut honest = Honest::start(&mut capture);
    let mut seq = capture.start(CLIENT);
    let mut request = vec![0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1];
    for number in 0_u32..300_000 {
        request.truncate(12);
        request.extend((number + 1).to_be_bytes());
        request.resize(2 + 46 + 4, 0);
        capture.segment([CLIENT, SERVER], seq, ACK, &request);
        seq += 52;
        if number % 50_000 == 0 {
            honest.go_on(&mut capture);
        }
    }
    let cost = measured(&capture.finish());
    assert!(cost.peak_mib < 100, "{} MiB", cost.peak_mib);
    honest.is_whole(&cost.report);
    assert_eq!(cost.report["connections"][1]["directions"][0]["messages"]["read_request"], 300_000);
}
