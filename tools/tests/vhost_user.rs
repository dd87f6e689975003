//! `urnic serve` and its clients over memory that the two processes share: both roles, peers that
//! are killed and restarted. No privilege is needed.
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

/// Runs every kind of command, by clients on `device`.
fn commands_work(server: &Server, folder: &TempDir, device: &str) {
    let ping = json(&client(&format!("ping ADDRESS --count 3 --interval 1ms --json {device}")));
    assert_eq!(ping["count"], 3, "{device}");
    for op in ["write", "read", "send"] {
        let options = format!("--op {op} --seconds 0.1 --json {device}");
        let bw = json(&client(&format!("bw ADDRESS {options}")));
        assert!(bw["bytes"].as_u64().unwrap() > 0, "{options}: {bw}");
        for end in ["local", "peer"] {
            let count = |key: &str| bw[end][key].as_u64().unwrap();
            assert_eq!(count("segments_aligned"), count("segments_sent"), "{options}: {bw}");
            assert_eq!(count("crc_bad"), 0, "{options}: {bw}");
        }
        let source = if op == "read" { "peer" } else { "local" };
        let copied = bw[source]["payload_bytes_copied_tx"].as_u64().unwrap();
        assert!(copied >= bw["bytes"].as_u64().unwrap(), "into the shared memory: {bw}");
    }
    let octets: Vec<u8> =
        (0..3_000_001_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    fs::write(path(folder, "sent"), &octets).unwrap();
    for command in [
        format!("put {} ADDRESS/it --force {device}", path(folder, "sent")),
        format!("get ADDRESS/it {} --force {device}", path(folder, "back")),
    ] {
        let output = client(&command);
        assert!(output.status.success(), "{command}: {}", complaint(&output));
    }
    assert!(fs::read(path(folder, "back")).unwrap() == octets, "{device}");
    assert!(server.complaints().is_empty(), "the server has nothing to complain about");
}

/// Runs a server with `serving` and clients with `using`; `PATH` is replaced by the socket.
fn over(serving: &str, using: &str) {
    let folder = folder();
    let socket = path(&folder, "s");
    let server = Server::start(&format!(
        "--dev {} --allow-overwrite --dir {}",
        serving.replace("PATH", &socket),
        path(&folder, "served")
    ));
    let device = format!("--dev {}", using.replace("PATH", &socket));
    commands_work(&server, &folder, &device);
    server.stop();
    assert!(!fs::exists(&socket).unwrap(), "the socket goes with its server");
}

#[test]
fn a_backend_serves_frontends() {
    over("vhost-user:PATH,ip=10.7.0.2/24", "virtio-user:PATH,ip=10.7.0.3/24");
}

#[test]
fn a_frontend_serves_backends() {
    for share in ["", ",share"] {
        let serving = format!("virtio-user:PATH,ip=10.7.0.2/24,listen{share}");
        over(&serving, "vhost-user:PATH,ip=10.7.0.3/24,connect");
    }
}

#[test]
fn plain_frames_and_a_large_mtu_will_do() {
    over(
        "vhost-user:PATH,ip=10.7.0.2/24,vnet=off,mtu=9000,sealed",
        "virtio-user:PATH,ip=10.7.0.3/24,mtu=9000",
    );
}

#[test]
fn memory_is_shared_by_choice_and_not_copied_to_be_sent() {
    let folder = folder();
    let socket = path(&folder, "s");
    let server = Server::start(&format!("--dev vhost-user:{socket},ip=10.7.0.2/24,queues=2"));
    // Payload sent before the backend has mapped the memory is copied, and the counters do not show
    // it separately.
    for options in ["", "--connections 3 --queues"] {
        let (connections, queues) = options.split_once(" --queues").unwrap_or((options, ""));
        let queues = if connections == options { queues } else { ",queues=2" };
        let device = format!("--dev virtio-user:{socket},ip=10.7.0.3/24,share{queues}");
        for op in ["write", "read", "send"] {
            let bw = format!("bw ADDRESS --op {op} --seconds 0.2 --json {connections} {device}");
            let bw = json(&client(&bw));
            for end in ["local", "peer"] {
                let count = |key: &str| bw[end][key].as_u64().unwrap();
                assert_eq!(count("segments_aligned"), count("segments_sent"), "{options}: {bw}");
                assert_eq!(count("crc_bad"), 0, "{options}: {bw}");
            }
            let bytes = bw["bytes"].as_u64().unwrap();
            // The server is the backend, whose memory is not shared: it copies to answer a Read,
            // after a snapshot.
            let (source, copies) = if op == "read" { ("peer", 2) } else { ("local", 0) };
            let copied = bw[source]["payload_bytes_copied_tx"].as_u64().unwrap();
            assert!(bytes > 0 && copied.abs_diff(copies * bytes) <= bytes / 4, "{options}: {bw}");
        }
    }
    let output = client(&format!(
        "lat ADDRESS --size 8 --iterations 1000 --dev virtio-user:{socket},ip=10.7.0.3/24,share"
    ));
    assert!(output.status.success(), "{}", complaint(&output));
    server.stop();
}

#[test]
fn two_queues_carry_streams() {
    let folder = folder();
    let socket = path(&folder, "s");
    let server = Server::start(&format!("--dev vhost-user:{socket},ip=10.7.0.2/24,queues=2"));
    let device = format!("--dev virtio-user:{socket},ip=10.7.0.3/24");
    for options in ["--connections 4", "--connections 4 --op read"] {
        let bw = format!("bw ADDRESS --seconds 0.2 --json {options} {device},queues=2");
        let bw = json(&client(&bw));
        assert!(bw["bytes"].as_u64().unwrap() > 0, "{bw}");
    }
    let output = client(&format!("ping ADDRESS --count 1 {device},queues=3"));
    let said = complaint(&output);
    assert!(said.contains("it has 2 queue pairs") && said.contains("queues=N"), "{said}");
    let output = client(&format!("ping ADDRESS --count 1 {device}"));
    assert!(output.status.success(), "fewer will do: {}", complaint(&output));
    server.stop();
}

#[test]
fn a_peer_that_is_killed_is_followed_by_another() {
    let folder = folder();
    let socket = path(&folder, "s");
    let backend = format!("--dev vhost-user:{socket},ip=10.7.0.2/24 --timeout 2s");
    let device = format!("--dev virtio-user:{socket},ip=10.7.0.3/24 --timeout 2s");
    let ping = format!("ping ADDRESS --count 1 {device}");
    let server = Server::start(&backend);
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
    // The next server takes the old socket over.
    assert!(fs::exists(&socket).unwrap());
    let server = Server::start(&backend);
    let next = client(&ping);
    assert!(next.status.success(), "{}", complaint(&next));
    // Two servers at one path are refused.
    let mut second = urnic(&format!("serve --listen 10.7.0.2:7175 {backend}")).spawn().unwrap();
    wait_until("a refusal", PATIENCE, || second.try_wait().unwrap().is_some());
    let output = second.wait_with_output().unwrap();
    assert!(complaint(&output).contains("use another path"), "{}", complaint(&output));
    server.stop();
    let output = client(&ping);
    assert!(complaint(&output).contains("start the backend first"), "{}", complaint(&output));
}
