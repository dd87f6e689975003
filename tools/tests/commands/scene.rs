//! A server and the clients of a test. Every process ends with the test, within a time limit.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns `urnic` with these arguments, separated by spaces.
pub(crate) fn urnic(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
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

/// `urnic serve` on loopback.
pub(crate) struct Server {
    child: Child,
    line: String,
    address: String,
}

impl Server {
    /// Starts a server, and waits until it listens.
    pub(crate) fn start(options: &str) -> Self {
        Self::start_at("127.0.0.1:0", options)
    }

    pub(crate) fn start_at(address: &str, options: &str) -> Self {
        Self::of(urnic(&format!("serve --listen {address} {options}")))
    }

    /// Starts `command`, which is a server.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self::listening(child, output).0
    }

    /// Starts `command`, which is a server; also returns a thread that reads all its lines.
    pub(crate) fn of_all_lines(mut command: Command) -> (Self, JoinHandle<Vec<String>>) {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (server, output) = Self::listening(child, output);
        (server, thread::spawn(move || output.lines().map_while(Result::ok).collect()))
    }

    fn listening(
        child: Child,
        mut output: BufReader<ChildStdout>,
    ) -> (Self, BufReader<ChildStdout>) {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let at = line.find("127.0.0.1:").unwrap_or_else(|| panic!("listens: {line:?}"));
        let address = line[at..].split([' ', '"']).next().unwrap().to_owned();
        (Self { child, line, address }, output)
    }

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Starts a client; `ADDRESS` is replaced by the server's.
    pub(crate) fn spawn(&self, command: &str) -> Child {
        urnic(&command.replace("ADDRESS", &self.address)).spawn().unwrap()
    }

    /// Runs a client.
    pub(crate) fn client(&self, command: &str) -> Output {
        self.spawn(command).wait_with_output().unwrap()
    }

    /// Sends SIGINT; the server must end with success.
    pub(crate) fn stop(self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        assert_eq!(self.wait(), Some(0), "SIGINT ends a server well");
    }

    /// As [`stop`](Self::stop); returns its standard error.
    pub(crate) fn stop_and_tell(mut self) -> String {
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        let reader = thread::spawn(move || {
            errors.read_to_string(&mut said).unwrap();
            said
        });
        self.stop();
        reader.join().unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of its threads.
    pub(crate) fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().count()
    }

    /// Returns its peak memory in bytes.
    pub(crate) fn memory_max(&self) -> u64 {
        memory_max(self.pid())
    }

    /// Kills it, as in a crash.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end; returns its status.
    pub(crate) fn wait(mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already if the test went well.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns the peak memory of a process in bytes.
pub(crate) fn memory_max(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
