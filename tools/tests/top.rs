//! `urnic top`, with servers and clients that it shows.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::commands::scene::{complaint, urnic, wait_until};

/// A user's folder for sockets of endpoints.
struct Runtime(TempDir);

impl Runtime {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn urnic(&self, arguments: &str) -> Command {
        let mut command = urnic(arguments);
        command.env("XDG_RUNTIME_DIR", self.0.path());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.urnic(arguments).output().unwrap()
    }

    /// Returns the lines of `top --json` as values.
    fn top(&self, arguments: &str) -> Vec<Value> {
        let output = self.run(&format!("top --json {arguments}"));
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn sockets(&self) -> PathBuf {
        self.0.path().join("urnic")
    }

    /// Returns the names of existing sockets.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sockets()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A server on loopback that can be shown.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(runtime: &Runtime, options: &str) -> Self {
        let line = format!("serve --listen 127.0.0.1:0 {options}");
        let mut child = runtime.urnic(&line).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.find("127.0.0.1:").unwrap_or_else(|| panic!("listens: {line:?}"));
        let address = line[at..].split([' ', '"']).next().unwrap().to_owned();
        Self { child, address }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns the endpoint of a process, if it is in a line.
fn endpoint(line: &Value, pid: u32) -> Option<&Value> {
    line["endpoints"].as_array().unwrap().iter().find(|one| one["pid"] == pid)
}

#[test]
fn a_server_and_its_client_are_seen_with_the_same_rates() {
    let runtime = Runtime::new();
    let server = Server::start(&runtime, "--top");
    let bw = format!("bw {} --seconds 30 --size 64K --json", server.address);
    let mut client = runtime.urnic(&bw).env("URNIC_TOP", "1").spawn().unwrap();
    let mut seen = Value::Null;
    wait_until("both are seen while they move data", || {
        seen = runtime.top("--interval 200ms --count 1").remove(0);
        let open = |pid| endpoint(&seen, pid).is_some_and(|one| one["connections_open"] == 1);
        // The two rates are sampled one after the other, under load: they are similar, not equal. A
        // slow endpoint is shown with its previous values.
        let rate =
            |pid, of: &str| endpoint(&seen, pid).map_or(0.0, |one| one[of].as_f64().unwrap());
        let out = rate(client.id(), "bits_per_second_out");
        let ratio = out / rate(server.pid(), "bits_per_second_in");
        open(server.pid()) && open(client.id()) && out > 1e6 && (0.2..5.0).contains(&ratio)
    });
    let (near, far) =
        (endpoint(&seen, client.id()).unwrap(), endpoint(&seen, server.pid()).unwrap());
    assert_eq!((&near["command"], &far["command"]), (&"urnic bw".into(), &"urnic serve".into()));
    assert_eq!(near["open"][0]["remote"], server.address.as_str());
    assert_eq!((near["is_new"].as_bool(), near["connections"].as_u64()), (Some(true), Some(1)));
    let total = &far["total"];
    assert!(total["fpdus_received"].as_u64() > Some(100), "{total}");
    assert!(total["bytes_placed"].as_u64() <= total["bytes_received"].as_u64(), "{total}");
    assert_eq!(far["open"][0]["total"]["crc_bad"], 0);

    assert_eq!(far["connections_rejected"], 0);
    let ping = format!("ping {} --size 1G", server.address);
    assert_eq!(runtime.urnic(&ping).output().unwrap().status.code(), Some(2), "too long");
    let line = runtime.top("--once").remove(0);
    assert_eq!(endpoint(&line, server.pid()).unwrap()["connections_rejected"], 1);
    let text = runtime.run(&format!("top --once {}", server.pid()));
    let text = String::from_utf8(text.stdout).unwrap();
    let mut figures = text.lines().next().unwrap().split("  ");
    assert!(figures.any(|figure| figure == "rejected 1"), "{text}");
    assert!(!text.contains("accesses refused"), "{text}");

    let text = runtime.run(&format!("top --once {}", client.id()));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("urnic bw  1 of 1 connections open  in "), "{text}");
    assert!(text.contains("aligned –") && text.contains(&server.address), "{text}");
    let text = runtime.run("top --count 1 --interval 10ms --connections 0");
    let text = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text.lines().count(), 2, "a line of each, and no table: {text}");

    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(0));
    // Closed connections still count.
    let mut line = Value::Null;
    wait_until("the server has closed, too", || {
        line = runtime.top("--once").remove(0);
        endpoint(&line, server.pid()).is_some_and(|far| far["connections_open"] == 0)
    });
    assert!(endpoint(&line, client.id()).is_none(), "a command that ends is shown no more");
    let far = endpoint(&line, server.pid()).unwrap();
    assert_eq!(far["connections"], 2);
    assert!(far["total"]["fpdus_received"].as_u64() >= total["fpdus_received"].as_u64(), "{far}");
    server.signal(Signal::INT);
    wait_until("the socket goes with the server", || runtime.names().is_empty());
}

#[test]
fn top_without_an_endpoint_names_a_remedy() {
    let runtime = Runtime::new();
    for (arguments, said) in [
        ("top", "no urnic endpoint of yours is shown: start the command with --top"),
        ("top --once", "URNIC_TOP=1"),
        ("top 2147483647", "no process has the number 2147483647"),
        ("top 1", "process 1 shows no endpoint"),
    ] {
        let output = runtime.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(complaint(&output).contains(said), "{arguments}: {}", complaint(&output));
    }
    // A server without `--top`.
    let server = Server::start(&runtime, "");
    let output = runtime.run(&format!("top {}", server.pid()));
    assert!(complaint(&output).contains("shows no endpoint"), "{}", complaint(&output));
    assert!(!runtime.sockets().exists(), "showing is asked for");
}

#[test]
fn the_socket_is_its_users_alone() {
    let runtime = Runtime::new();
    let server = Server::start(&runtime, "--top");
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(runtime.sockets()), 0o700);
    assert_eq!(mode(runtime.sockets().join(server.pid().to_string())), 0o600);
    // A folder that others may enter is used neither by `top` nor by endpoints: `top` fails, and a
    // server runs without.
    fs::set_permissions(runtime.sockets(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = runtime.run("top --once");
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("only you can enter"), "{}", complaint(&output));
    let second = Server::start(&runtime, "--top");
    assert!(!runtime.sockets().join(second.pid().to_string()).exists());
}

#[test]
fn sockets_of_processes_that_have_ended_are_removed() {
    let runtime = Runtime::new();
    let mut killed = Server::start(&runtime, "--top");
    let kept = Server::start(&runtime, "--top");
    killed.signal(Signal::KILL);
    killed.child.wait().unwrap();
    assert_eq!(runtime.names().len(), 2, "a kill leaves the socket");
    let line = runtime.top("--once").remove(0);
    assert!(endpoint(&line, kept.pid()).is_some() && endpoint(&line, killed.pid()).is_none());
    assert_eq!(runtime.names(), [kept.pid().to_string()]);
}

/// A name is not enough: the kernel reports which process listens.
#[test]
fn a_socket_with_the_number_of_another_process_is_not_trusted() {
    let runtime = Runtime::new();
    let kept = Server::start(&runtime, "--top");
    let _liar = UnixListener::bind(runtime.sockets().join("1")).unwrap();
    let line = runtime.top("--once").remove(0);
    assert_eq!(line["endpoints"].as_array().unwrap().len(), 1, "{line}");
    let unanswered = &line["unanswered"][0];
    assert_eq!(unanswered["pid"], 1, "{line}");
    let reason = unanswered["reason"].as_str().unwrap();
    assert!(reason.contains("another process"), "{reason}");
    assert!(endpoint(&line, kept.pid()).is_some());
}

/// A listener of this process that never accepts.
#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let runtime = Runtime::new();
    let kept = Server::start(&runtime, "--top");
    let path = runtime.sockets().join(std::process::id().to_string());
    let _mute = UnixListener::bind(path).unwrap();
    let line = runtime.top("--once").remove(0);
    assert!(endpoint(&line, kept.pid()).is_some(), "{line}");
    let reason = line["unanswered"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("in time"), "{reason}");
}

#[test]
fn programs_that_do_not_read_hold_nothing_up() {
    let runtime = Runtime::new();
    let server = Server::start(&runtime, "--top");
    let path = runtime.sockets().join(server.pid().to_string());
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let ping = format!("ping {} --count 3 --interval 1ms", server.address);
    assert_eq!(runtime.run(&ping).status.code(), Some(0));
    // For a moment an endpoint repeats its last answer.
    wait_until("the connection is counted", || {
        let line = runtime.top("--once").remove(0);
        endpoint(&line, server.pid()).is_some_and(|one| one["connections"] == 1)
    });
    let descriptors = format!("/proc/{}/fd", server.pid());
    wait_until("the server lets them go", || fs::read_dir(&descriptors).unwrap().count() < 40);
    drop(silent);
}

/// A stopped process does not turn its endpoint: `top` lists it as unanswered.
#[test]
fn a_process_that_was_stopped_is_given_up_and_seen_again() {
    let runtime = Runtime::new();
    let server = Server::start(&runtime, "--top");
    server.signal(Signal::STOP);
    let line = runtime.top("--once").remove(0);
    server.signal(Signal::CONT);
    assert_eq!(line["unanswered"][0]["pid"], server.pid(), "{line}");
    let line = runtime.top("--once").remove(0);
    assert!(endpoint(&line, server.pid()).is_some(), "{line}");
}

#[test]
fn top_ends_with_the_named_processes_or_an_interrupt() {
    let runtime = Runtime::new();
    let server = Server::start(&runtime, "--top");
    let line = format!("top --interval 20ms --json {}", server.pid());
    let mut named = runtime.urnic(&line).spawn().unwrap();
    let mut all = runtime.urnic("top --interval 20ms --json").spawn().unwrap();
    // Each has started when it prints.
    for top in [&mut named, &mut all] {
        let mut first = String::new();
        let mut lines = BufReader::new(top.stdout.take().unwrap());
        lines.read_line(&mut first).unwrap();
        assert!(first.contains("\"endpoints\":[{"), "{first}");
        std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
    }
    server.signal(Signal::INT);
    assert_eq!(named.wait().unwrap().code(), Some(0));
    assert!(all.try_wait().unwrap().is_none(), "others may come");
    kill_process(Pid::from_child(&all), Signal::INT).unwrap();
    assert_eq!(all.wait().unwrap().code(), Some(0));
}
