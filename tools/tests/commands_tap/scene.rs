//! A server and its clients in a namespace. Every process ends with the test, within a time limit.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use urnic_testkit::network::{self, ip};

/// Address of servers.
pub(crate) const ADDRESS: &str = "10.7.0.2:7174";

/// Makes TAPs of these names, up and on a new bridge; they are persistent.
pub(crate) fn join(taps: &[&str]) {
    for tap in taps {
        ip(&format!("tuntap add dev {tap} mode tap"));
        ip(&format!("link set {tap} up"));
    }
    network::bridge("bridge0", taps);
}

/// Makes a folder for files and for a socket, whose path is short, with a folder `served` in it.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("served")).unwrap();
    folder
}

/// Returns `urnic` with these arguments, separated by spaces; `ADDRESS` is replaced by the
/// server's.
pub(crate) fn urnic(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    command.args(arguments.replace("ADDRESS", ADDRESS).split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a client to its end.
pub(crate) fn client(arguments: &str) -> Output {
    urnic(arguments).output().unwrap()
}

/// Returns a command's standard error.
pub(crate) fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the JSON of a command that must succeed.
pub(crate) fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", complaint(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the bytes that the user of a TAP has sent.
pub(crate) fn bytes_from(tap: &str) -> u64 {
    let shown: Value = serde_json::from_str(&ip(&format!("-s -j link show dev {tap}"))).unwrap();
    shown[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen in {limit:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// `urnic serve`.
pub(crate) struct Server {
    child: Child,
    line: String,
    complaints: Receiver<String>,
}

impl Server {
    /// Starts a server at [`ADDRESS`], and waits until it listens.
    pub(crate) fn start(options: &str) -> Self {
        Self::start_at(ADDRESS, options)
    }

    pub(crate) fn start_at(address: &str, options: &str) -> Self {
        let mut child = urnic(&format!("serve --listen {address} {options}")).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, complaints) = channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let server = Self { child, line, complaints };
        let line = server.line();
        assert!(line.starts_with("listening at "), "{line:?} {:?}", server.complaint(PATIENCE));
        server
    }

    /// Returns the line with its address.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Returns its TCP port.
    pub(crate) fn port(&self) -> u16 {
        let address = self.line.split(' ').nth(2).unwrap();
        address.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Returns the lines of its standard error since the last call.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.try_iter().collect()
    }

    /// Returns the next line of its standard error, if it comes in time.
    pub(crate) fn complaint(&self, limit: Duration) -> Option<String> {
        self.complaints.recv_timeout(limit).ok()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGINT; the server must end with success.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        wait_until("the end of the server", PATIENCE, || self.child.try_wait().unwrap().is_some());
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "SIGINT ends a server well");
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already if the test went well.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Time limit for the end of a process.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
