//! A capture on the bridge shows a lossless run as it was.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::commands_tap::scene::{Server, client, folder, join, json, urnic};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::programs::program;

/// A capture on the bridge, into a file.
struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    fn start(file: &str) -> Self {
        let arguments = ["-q", "-i", "bridge0", "-f", "tcp", "-B", "256", "-w", file];
        let mut child = program("dumpcap").args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let begun = errors.by_ref().map_while(Result::ok).any(|line| line.starts_with("File: "));
        assert!(begun, "dumpcap captures");
        // Its further output must not block it.
        thread::spawn(move || errors.for_each(drop));
        Self { child, file: file.into() }
    }

    /// Ends it when all has been written: frames that the kernel has not yet passed on are lost.
    fn stop(mut self) {
        let len = || fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        let (mut before, mut quiet_since) = (len(), Instant::now());
        while quiet_since.elapsed() < SETTLE_TIME {
            thread::sleep(Duration::from_millis(20));
            if len() != before {
                (before, quiet_since) = (len(), Instant::now());
            }
        }
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Several times as long as frames stay in the kernel.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// RFC 5044 Appendix A: every segment starts with an FPDU and holds only whole FPDUs, as a passive
/// reader sees on the wire.
fn every_segment_is_aligned(header: &str) {
    let folder = folder();
    join(&["tap-s", "tap-c"]);
    for (op, size, count) in [("write", "64K", 30), ("send", "64", 2000), ("read", "64K", 30)] {
        let server = Server::start(&format!("--dev tap:tap-s,ip=10.7.0.2/24,vnet={header}"));
        let file = folder.path().join(format!("{op}.pcapng"));
        let file = file.to_str().unwrap();
        let capture = Capture::start(file);
        let device = format!("--dev tap:tap-c,ip=10.7.0.3/24,vnet={header}");
        let options = format!("--op {op} --size {size} --count {count} --json {device}");
        let measured = json(&client(&format!("bw ADDRESS {options}")));
        server.stop();
        capture.stop();
        let report = json(&urnic(&format!("replay --json {file}")).output().unwrap());
        let seen = &report["files"][0];
        assert_eq!(seen["frames_corrupt"], 0, "{op}: {seen}");
        let connections = seen["connections"].as_array().unwrap();
        assert_eq!(connections.len(), 1, "{op}: {seen}");
        // On a busy machine a retransmission begins where the peer misses data.
        let mut directions = connections[0]["directions"].as_array().unwrap().iter();
        let repeats = directions.any(|one| one["segments_retransmitted"] != 0);
        let told = seen.to_string();
        assert!(repeats || !told.contains("do not hold whole FPDUs"), "{op}: {told}");
        for direction in connections[0]["directions"].as_array().unwrap() {
            let count = |key: &str| direction[key].as_u64().unwrap();
            assert!(count("segments") > 1, "{op}: {direction}");
            // The Request and the Reply of MPA's startup are no FPDUs; a timeout sends them twice.
            let others = count("segments") - count("segments_aligned");
            assert!(others <= 1 + count("segments_retransmitted"), "{op}: {direction}");
            assert_eq!(count("crc_good"), count("fpdus"), "{op}: {direction}");
            assert_eq!(count("bytes_held_peak"), 0, "{op}: {direction}");
        }
        let directions = connections[0]["directions"].as_array().unwrap();
        let segments = directions.iter().map(|one| one["segments"].as_u64().unwrap());
        assert!(segments.clone().sum::<u64>() > 16, "{op}: {seen}");
        let (bytes, segments) = (&measured["bytes"], segments.collect::<Vec<_>>());
        eprintln!("measured vnet={header} {op}: {bytes} bytes, segments {segments:?}, all aligned");
    }
}

netns_tests! {
    with ["/dev/net/tun", "dumpcap"];

    fn on_the_bridge_every_plain_segment_is_aligned() {
        every_segment_is_aligned("off");
    }

    fn on_the_bridge_every_super_frame_is_aligned() {
        every_segment_is_aligned("on");
    }
}
