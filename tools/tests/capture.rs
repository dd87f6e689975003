//! `urnic capture`, beside connections of our own commands, each test in a namespace of its own.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::ip;
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

use crate::commands::json::compare;
use crate::commands_tap::scene::{Server, client, folder, join, json, urnic, wait_until};

/// A capture that has begun.
struct Capture {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Capture {
    /// Starts a capture, and waits until it says that it captures: with `--json`, by its first
    /// line.
    fn start(arguments: &str) -> Self {
        let mut child = urnic(&format!("capture {arguments}")).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{arguments}: it begins");
        Self { child, lines }
    }

    /// Interrupts it; returns the rest of its output.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.ended()
    }

    fn ended(&mut self) -> String {
        let mut said = String::new();
        self.lines.read_to_string(&mut said).unwrap();
        wait_until("the end of the capture", Duration::from_secs(20), || {
            self.child.try_wait().unwrap().is_some()
        });
        let mut complaint = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{complaint}");
        assert_eq!(complaint, "");
        said
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns the comments of a file as tshark shows them, by frame; `None` without tshark.
fn comments(file: &str) -> Option<String> {
    if !is_there("tshark") {
        skip("comments of a capture as tshark shows them", "`tshark` is missing");
        return None;
    }
    let arguments = ["-r", file, "-T", "fields", "-e", "frame.number", "-e", "frame.comment"];
    let output = program("tshark").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn replayed(file: &str) -> Value {
    json(&urnic(&format!("replay --json {file}")).output().unwrap())["files"][0].clone()
}

/// Returns the JSON of each line, the first line included.
fn lines(said: &str) -> Vec<Value> {
    let begun = serde_json::json!({"schema": 3, "interface": "tap-s"});
    let others = said.lines().map(|line| serde_json::from_str(line).unwrap());
    std::iter::once(begun).chain(others).collect()
}

/// Returns the JSON of the last line.
fn total(said: &str) -> Value {
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

netns_tests! {
    with ["/dev/net/tun"];

    fn connections_of_iwarp_are_written_and_no_others() {
        let folder = folder();
        join(&["tap-s", "tap-c"]);
        let server = Server::start("--dev tap:tap-s,ip=10.7.0.2/24");
        let path = folder.path().join("iwarp.pcapng");
        let file = path.to_str().unwrap();
        let capture = Capture::start(&format!("--interface tap-s --write {file} --json"));
        let device = "--dev tap:tap-c,ip=10.7.0.3/24";
        // In all less than the interface buffers for a capture that is not scheduled.
        let limits = "--op write --size 4K --seconds 1.5 --rate 40M";
        let options = format!("{limits} --json {device}");
        let measured = json(&client(&format!("bw ADDRESS {options}")));
        assert!(measured["bytes"].as_u64().unwrap() > 0);
        // Ordinary TCP through the same interface: the kernel's, to a port that is closed or not.
        ip("addr add 10.7.0.9/24 dev bridge0");
        let _refused = TcpStream::connect_timeout(&"10.7.0.2:1".parse().unwrap(), Duration::from_secs(1));
        let said = capture.stop();
        server.stop();
        let seen = replayed(file);
        let connections = seen["connections"].as_array().unwrap();
        assert_eq!(connections.len(), 1, "no other: {seen}");
        assert_eq!(seen["findings"].as_array().unwrap().len(), 0, "{seen}");
        compare("urnic capture", &lines(&said));
        let total = total(&said);
        assert_eq!(total["total"]["connections"], 1, "{total}");
        assert_eq!(total["frames"], seen["frames"], "{total}");
        assert_eq!(total["frames_lost"], 0, "{total}");
        let directions = connections[0]["directions"].as_array().unwrap();
        for key in ["segments", "segments_aligned", "segments_out_of_order", "segments_retransmitted"] {
            let counted: u64 = directions.iter().map(|one| one[key].as_u64().unwrap()).sum();
            assert_eq!(total["total"][key], counted, "{key}: {total}");
        }
        if let Some(comments) = comments(file) {
            assert!(comments.contains("MPA Request, revision "), "{comments}");
            assert!(comments.contains("aligned with FPDUs\\nRDMA Write to STag "), "{comments}");
        }
    }

    fn each_limit_ends_a_capture() {
        ip("link set lo up");
        let folder = folder();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let path = folder.path().join("limited.pcapng");
        let file = path.to_str().unwrap();
        for (limit, is_over) in [
            ("--all --count 3", (|len, frames| len > 0 && frames == 3) as fn(u64, u64) -> bool),
            ("--all --max-size 1K", |len, frames| (512..=1024).contains(&len) && frames > 1),
            ("--all --duration 2s", |_, frames| frames >= 3),
        ] {
            let mut capture = Capture::start(&format!("--interface lo --write {file} {limit}"));
            // A frame waits a second for its comment: more frames have to pass after that.
            let is_timed = limit.contains("duration");
            while capture.child.try_wait().unwrap().is_none() {
                drop(TcpStream::connect(address).unwrap());
                std::thread::sleep(Duration::from_millis(if is_timed { 20 } else { 100 }));
            }
            let said = capture.ended();
            assert!(said.contains(" frames to "), "{said}");
            let frames = replayed(file)["frames"].as_u64().unwrap();
            let len = fs::metadata(&path).unwrap().len();
            assert!(is_over(len, frames), "{limit}: {len} bytes, {frames} frames");
        }
    }

    fn capture_goes_on_when_nobody_reads_its_lines() {
        ip("link set lo up");
        let folder = folder();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let path = folder.path().join("unread.pcapng");
        let file = path.to_str().unwrap();
        for form in ["--json", ""] {
            let limits = "--all --duration 2500ms";
            let arguments = format!("--interface lo --write {file} {limits} {form}");
            let mut child = urnic(&format!("capture {arguments}")).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("lo"), "{line}");
            let mut made = 0;
            while child.try_wait().unwrap().is_none() {
                drop(TcpStream::connect(address).unwrap());
                made += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            let mut complaint = String::new();
            child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
            assert_eq!((child.wait().unwrap().code(), &complaint[..]), (Some(0), ""), "{form}");
            // Frames from the beginning or the end of the capture may be missing.
            let frames = replayed(file)["frames"].as_u64().unwrap();
            assert!(made > 10 && frames >= 3 * (made - 5), "{form} {made}: {frames}");
        }
    }

    fn link_down_is_reported_and_deletion_of_the_interface_ends_a_capture() {
        ip("link add veth-a type veth peer name veth-b");
        ip("link set veth-a up");
        let folder = folder();
        let path = folder.path().join("deleted.pcapng");
        let file = path.to_str().unwrap();
        let mut capture = Capture::start(&format!("--interface veth-a --all --write {file} --json"));
        let line = |capture: &mut Capture| {
            let mut line = String::new();
            capture.lines.read_line(&mut line).unwrap();
            serde_json::from_str::<Value>(&line).unwrap()
        };
        assert_eq!(line(&mut capture)["link_up"], true);
        ip("link set veth-a down");
        let down = (0..3).any(|_| line(&mut capture)["link_up"] == false);
        assert!(down, "it says so");
        ip("link set veth-a up");
        assert!((0..3).any(|_| line(&mut capture)["link_up"] == true), "and that it is up again");
        ip("link del veth-a");
        let mut child = std::mem::replace(&mut capture.child, urnic("--version").spawn().unwrap());
        wait_until("the end of the capture", Duration::from_secs(20), || {
            child.try_wait().unwrap().is_some()
        });
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(2), "{complaint}");
        assert!(complaint.contains("the interface was deleted"), "{complaint}");
        assert!(replayed(file)["error"].is_null(), "the file is whole");
    }

    fn a_full_file_is_followed_by_another() {
        ip("link set lo up");
        let folder = folder();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ring = folder.path().join("ring");
        fs::create_dir(&ring).unwrap();
        let path = ring.join("of.pcapng");
        let limits = "--all --max-size 2K --files 2";
        let arguments = format!("--interface lo --write {} {limits}", path.display());
        let capture = Capture::start(&arguments);
        for _ in 0..40 {
            drop(TcpStream::connect(address).unwrap());
        }
        std::thread::sleep(Duration::from_millis(100));
        let said = capture.stop();
        assert!(said.contains(" and the 1 before it"), "{said}");
        let kept: Vec<_> = fs::read_dir(&ring).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        for entry in kept {
            assert!(entry.metadata().unwrap().len() <= 2048);
            let path = entry.path();
            assert!(replayed(path.to_str().unwrap())["frames"].as_u64().unwrap() > 0);
        }
    }

    fn a_port_is_written_whatever_it_carries() {
        ip("link set lo up");
        let folder = folder();
        let path = folder.path().join("port.pcapng");
        let file = path.to_str().unwrap();
        let [wanted, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = wanted.local_addr().unwrap().port();
        let capture = Capture::start(&format!("--interface lo --port {port} --write {file}"));
        for listener in [&wanted, &other] {
            drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        }
        let said = capture.stop();
        assert!(said.contains(" 0 iWARP connections"), "{said}");
        let seen = replayed(file);
        // On the loopback each frame passes twice, and is written once.
        let frames = seen["frames"].as_u64().unwrap();
        assert!((3..=6).contains(&frames), "{seen}");
        assert_eq!(seen["connections"].as_array().unwrap().len(), 1, "{seen}");
    }
}
