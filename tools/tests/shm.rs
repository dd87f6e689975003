//! `urnic serve` and its clients over memory that each lets the other read: every command, peers
//! that are killed and restarted. No privilege is needed.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::fs;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::commands_tap::scene::{
    PATIENCE, Server, client, complaint, folder, json, urnic, wait_until,
};

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

#[test]
fn every_command_works_and_payload_is_copied_once() {
    let folder = folder();
    let socket = path(&folder, "s");
    let serving = format!("--dev shm:{socket},ip=10.7.0.2/24,listen,mtu=9000");
    let server = Server::start(&format!("{serving} --dir {}", path(&folder, "served")));
    let device = format!("--dev shm:{socket},ip=10.7.0.3/24,mtu=9000");
    let ping = json(&client(&format!("ping ADDRESS --count 3 --interval 1ms --json {device}")));
    assert_eq!(ping["count"], 3);
    for op in ["write", "read", "send"] {
        let bw = json(&client(&format!("bw ADDRESS --op {op} --seconds 0.1 --json {device}")));
        for end in ["local", "peer"] {
            let count = |key: &str| bw[end][key].as_u64().unwrap();
            assert_eq!(count("segments_aligned"), count("segments_sent"), "{op}: {bw}");
            assert_eq!(count("crc_bad"), 0, "{op}: {bw}");
        }
        // A Read Response is a snapshot of the memory at the time of the Request.
        let (source, copies) = if op == "read" { ("peer", 1) } else { ("local", 0) };
        let copied = bw[source]["payload_bytes_copied_tx"].as_u64().unwrap();
        let bytes = bw["bytes"].as_u64().unwrap();
        assert!(bytes > 0 && copied.abs_diff(copies * bytes) <= bytes / 8, "{op}: {bw}");
    }
    let lat = json(&client(&format!("lat ADDRESS --size 8 --iterations 1000 --json {device}")));
    assert!(lat["p50_us"].as_f64().unwrap() > 0.0, "{lat}");
    let octets: Vec<u8> =
        (0..3_000_001_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    fs::write(path(&folder, "sent"), &octets).unwrap();
    for command in [
        format!("put {} ADDRESS/it {device}", path(&folder, "sent")),
        format!("get ADDRESS/it {} {device}", path(&folder, "back")),
    ] {
        let output = client(&command);
        assert!(output.status.success(), "{command}: {}", complaint(&output));
    }
    assert!(fs::read(path(&folder, "back")).unwrap() == octets);
    assert!(server.complaints().is_empty(), "the server has nothing to complain about");
    server.stop();
    assert!(!fs::exists(&socket).unwrap(), "the socket goes with its server");
}

#[test]
fn a_server_that_connects_serves_a_client_that_listens() {
    let folder = folder();
    let socket = path(&folder, "s");
    // The listening side must start first: a client that waits for a server.
    let listening = format!("--dev shm:{socket},ip=10.7.0.3/24,listen --timeout 20s");
    let waiting = urnic(&format!("ping 10.7.0.2:7174 --count 2 {listening}")).spawn().unwrap();
    wait_until("the client listens", PATIENCE, || fs::exists(&socket).unwrap());
    let server = Server::start(&format!("--dev shm:{socket},ip=10.7.0.2/24"));
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    server.stop();
}

#[test]
fn more_connections_than_memory_can_be_published_for_are_served() {
    let folder = folder();
    let socket = path(&folder, "s");
    let server = Server::start(&format!("--dev shm:{socket},ip=10.7.0.2/24,listen"));
    let device = format!("--dev shm:{socket},ip=10.7.0.3/24");
    let bw = format!("bw ADDRESS --connections 600 --size 4K --seconds 0.3 --json {device}");
    let bw = json(&client(&bw));
    assert!(bw["bytes"].as_u64().unwrap() > 0, "{bw}");
    server.stop();
}

#[test]
fn a_peer_that_is_killed_is_followed_by_another() {
    let folder = folder();
    let socket = path(&folder, "s");
    let serving = format!("--dev shm:{socket},ip=10.7.0.2/24,listen --timeout 2s");
    let device = format!("--dev shm:{socket},ip=10.7.0.3/24 --timeout 2s");
    let ping = format!("ping ADDRESS --count 1 {device}");
    let server = Server::start(&serving);
    for _ in 0..3 {
        let mut killed = urnic(&format!("bw ADDRESS --seconds 60 {device}")).spawn().unwrap();
        thread::sleep(Duration::from_millis(150));
        killed.kill().unwrap();
        killed.wait().unwrap();
        let next = client(&ping);
        assert!(next.status.success(), "{}", complaint(&next));
    }
    // The other order: the server ends, and another one starts while the client still asks.
    let waiting = urnic(&format!("ping ADDRESS --count 1000 --interval 1ms {device}"));
    let waiting = { waiting }.spawn().unwrap();
    thread::sleep(Duration::from_millis(200));
    server.kill();
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
    let server = Server::start(&serving);
    let next = client(&ping);
    assert!(next.status.success(), "{}", complaint(&next));
    // An end with another MTU is refused.
    let output =
        client(&format!("ping ADDRESS --count 1 --dev shm:{socket},ip=10.7.0.3/24,mtu=9000"));
    assert!(complaint(&output).contains("MTU"), "{}", complaint(&output));
    server.stop();
    let output = client(&ping);
    assert!(complaint(&output).contains("first"), "says what to start: {}", complaint(&output));
}
