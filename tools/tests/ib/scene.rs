//! Commands on a fabric of ibsim with OpenSM; all of them end with the test.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
pub(crate) use urnic_testkit::fabric::{Fabric, NEEDS, PARTITIONS, wait_until};
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

/// Starts a fabric for the test of this name.
pub(crate) fn fabric(name: &str) -> Fabric {
    fabric_with(name, PARTITIONS)
}

/// Starts a fabric with these partitions.
pub(crate) fn fabric_with(name: &str, partitions: &str) -> Fabric {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("urnic-ib-{name}"));
    Fabric::start(&folder, partitions)
}

/// Reads a capture with tshark, which must find nothing malformed in it; skipped if tshark is
/// missing.
fn wrong_packets(capture: &Path) {
    if !is_there("tshark") {
        return skip("what tshark says of packets of InfiniBand", "no tshark");
    }
    let wrong = "_ws.malformed || _ws.expert.severity == error";
    assert_eq!(packets(capture, wrong), 0, "malformed packets");
    assert!(packets(capture, "infiniband") > 0, "packets");
}

/// The switch of a fabric, with a capture of the packets that it carries.
pub(crate) struct Recorded {
    switch: Process,
    capture: PathBuf,
}

impl Recorded {
    pub(crate) fn start(fabric: &Fabric) -> Self {
        let capture = fabric.path("packets.pcap");
        let switch = Process::switch(&format!("--pcap {}", capture.display()));
        Self { switch, capture }
    }

    /// Ends the switch and checks its capture: nothing in it is malformed. Returns the switch's
    /// counters, and the capture.
    pub(crate) fn end(self) -> (Value, PathBuf) {
        let carried: Value = self.switch.json();
        for none in ["malformed", "too_long"] {
            assert_eq!(carried[none], 0, "{none}: {carried}");
        }
        wrong_packets(&self.capture);
        (carried, self.capture)
    }
}

/// Returns the number of packets of a capture that match a filter of tshark.
pub(crate) fn packets(capture: &Path, filter: &str) -> usize {
    let output = program("tshark").arg("-r").arg(capture).args(["-Y", filter]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().count()
}

/// Returns `urnic` with these arguments, separated by spaces.
pub(crate) fn urnic(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running command.
pub(crate) struct Process(Child);

impl Process {
    /// Wraps another program, which then ends with the test.
    pub(crate) const fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn start(arguments: &str) -> Self {
        Self(urnic(arguments).spawn().unwrap())
    }

    /// Starts a server, and waits until it listens.
    pub(crate) fn serving(arguments: &str) -> Self {
        let mut process = Self::start(arguments);
        let mut line = String::new();
        let output = process.0.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening at "), "{line:?} {}", process.complaint());
        process
    }

    /// Starts the switch, and waits until it carries data.
    pub(crate) fn switch(arguments: &str) -> Self {
        let process = Self::start(&format!("ibswitch --sim sim --node Hca1 --json {arguments}"));
        wait_until("the switch is there", || {
            fs::read_to_string("/proc/net/unix").unwrap().contains("@sim:urnic-switch")
        });
        process
    }

    fn complaint(&mut self) -> String {
        let _ended = self.0.kill();
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Ends it by SIGINT, or waits for its end if it ends by itself; returns its output.
    pub(crate) fn json(mut self) -> Value {
        // A command that ends by itself has printed everything then. One that is interrupted twice
        // prints nothing more.
        let mut is_interrupted = false;
        wait_until("the end of a command", || {
            if !is_interrupted && self.goes_on() {
                self.interrupt();
                is_interrupted = true;
            }
            self.0.try_wait().unwrap().is_some()
        });
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text} {}", self.complaint()))
    }

    /// Returns true for a command that runs until it is interrupted.
    fn goes_on(&self) -> bool {
        let line = fs::read(format!("/proc/{}/cmdline", self.0.id())).unwrap_or_default();
        line.split(|octet| *octet == 0).any(|word| word == b"ibswitch" || word == b"ibgate")
    }

    fn interrupt(&self) {
        // It may have ended meanwhile.
        let _gone = kill_process(Pid::from_child(&self.0), Signal::INT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A command on a device leaves its groups when it ends well.
        self.interrupt();
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.0.try_wait().unwrap().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
