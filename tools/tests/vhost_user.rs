//! `urnic serve` and its clients over memory that the two processes share: both roles, peers that are
//! killed and come back. No privilege is needed.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::commands_tap::scene::{PATIENCE, Server, client, complaint, json, urnic, wait_until};

/// A folder for a socket and for files, which goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        // The path of a socket is short.
        let root = std::env::temp_dir().join(format!("urnic-vu-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("served")).unwrap();
        Self(root)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _best_effort = fs::remove_dir_all(&self.0);
    }
}

/// Every kind of command, by clients on `device`.
fn commands_work(server: &Server, folder: &Folder, device: &str) {
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
    fs::write(folder.path("sent"), &octets).unwrap();
    for command in [
        format!("put {} ADDRESS/it --force {device}", folder.path("sent")),
        format!("get ADDRESS/it {} --force {device}", folder.path("back")),
    ] {
        let output = client(&command);
        assert!(output.status.success(), "{command}: {}", complaint(&output));
    }
    assert!(fs::read(folder.path("back")).unwrap() == octets, "{device}");
    assert!(server.complaints().is_empty(), "the server has nothing to complain about");
}

/// A server with `serving` and clients with `using`; `PATH` stands for the socket.
fn over(name: &str, serving: &str, using: &str) {
    let folder = Folder::new(name);
    let socket = folder.path("s");
    let server = Server::start(&format!(
        "--dev {} --allow-overwrite --dir {}",
        serving.replace("PATH", &socket),
        folder.path("served")
    ));
    let device = format!("--dev {}", using.replace("PATH", &socket));
    commands_work(&server, &folder, &device);
    server.stop();
    assert!(!fs::exists(&socket).unwrap(), "the socket goes with its server");
}

#[test]
fn a_backend_serves_frontends() {
    over("bf", "vhost-user:PATH,ip=10.7.0.2/24", "virtio-user:PATH,ip=10.7.0.3/24");
}

#[test]
fn a_frontend_serves_backends() {
    over("fb", "virtio-user:PATH,ip=10.7.0.2/24,listen", "vhost-user:PATH,ip=10.7.0.3/24,connect");
}

#[test]
fn plain_frames_and_a_large_mtu_will_do() {
    over(
        "plain",
        "vhost-user:PATH,ip=10.7.0.2/24,vnet=off,mtu=9000,sealed",
        "virtio-user:PATH,ip=10.7.0.3/24,mtu=9000",
    );
}

#[test]
fn two_queues_carry_streams() {
    let folder = Folder::new("queues");
    let socket = folder.path("s");
    let server = Server::start(&format!("--dev vhost-user:{socket},ip=10.7.0.2/24,queues=2"));
    let device = format!("--dev virtio-user:{socket},ip=10.7.0.3/24");
    for options in ["--connections 4", "--connections 4 --op read"] {
        let bw = format!("bw ADDRESS --seconds 0.2 --json {options} {device},queues=2");
        let bw = json(&client(&bw));
        assert!(bw["bytes"].as_u64().unwrap() > 0, "{bw}");
    }
    let output = client(&format!("ping ADDRESS --count 1 {device},queues=3"));
    assert!(complaint(&output).contains("it has 2 pairs"), "{}", complaint(&output));
    let output = client(&format!("ping ADDRESS --count 1 {device}"));
    assert!(output.status.success(), "fewer will do: {}", complaint(&output));
    server.stop();
}

#[test]
fn a_peer_that_is_killed_is_followed_by_another() {
    let folder = Folder::new("killed");
    let socket = folder.path("s");
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
    // The other way: the server goes, and another comes while the client still asks.
    let waiting = urnic(&format!("ping ADDRESS --count 1000 --interval 1ms {device}"));
    let waiting = { waiting }.spawn().unwrap();
    thread::sleep(Duration::from_millis(200));
    server.kill();
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
    // What it left is taken over.
    assert!(fs::exists(&socket).unwrap());
    let server = Server::start(&backend);
    let next = client(&ping);
    assert!(next.status.success(), "{}", complaint(&next));
    // Two at one path cannot be.
    let mut second = urnic(&format!("serve --listen 10.7.0.2:7175 {backend}")).spawn().unwrap();
    wait_until("a refusal", PATIENCE, || second.try_wait().unwrap().is_some());
    let output = second.wait_with_output().unwrap();
    assert!(complaint(&output).contains("use another path"), "{}", complaint(&output));
    server.stop();
    let output = client(&ping);
    assert!(complaint(&output).contains("start the backend first"), "{}", complaint(&output));
}
