//! ibsim, OpenSM and commands on their fabric; all of them end with the test.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

/// What the tests need.
pub(crate) const NEEDS: [&str; 3] = ["ibsim", "opensm", UMAD];
/// What brings OpenSM to ibsim instead of the kernel.
const UMAD: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// Two switches, three hosts at one, one at the other.
const NET: &str = r#"Switch	8 "Switch1"
[1]	"Hca1"[1]
[2]	"Hca2"[1]
[3]	"Hca3"[1]
[4]	"Switch2"[4]

Switch	8 "Switch2"
[1]	"Hca4"[1]
[4]	"Switch1"[4]

Hca	2 "Hca1"
[1]	"Switch1"[1]

Hca	2 "Hca2"
[1]	"Switch1"[2]

Hca	2 "Hca3"
[1]	"Switch1"[3]

Hca	2 "Hca4"
[1]	"Switch2"[1]
"#;

/// All hosts in the default partition; in another one two full members and a limited one.
const PARTITIONS: &str = "\
Default=0x7fff,ipoib,mtu=4,rate=3,scope=2,Q_Key=0x80010b1b : ALL=full;
blue=0x8001,ipoib,mtu=4,rate=3,Q_Key=0x80020b1b :
	0x100004=full, 0x10000a=full, 0x100007=limited;
";

const PATIENCE: Duration = Duration::from_secs(30);

/// A fabric with its subnet manager.
pub(crate) struct Fabric {
    folder: PathBuf,
    simulator: Child,
    manager: Child,
}

impl Fabric {
    /// Starts one for the test of this name.
    pub(crate) fn start(name: &str) -> Self {
        Self::with(name, PARTITIONS)
    }

    /// Starts one with these partitions.
    pub(crate) fn with(name: &str, partitions: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("urnic-ib-{name}"));
        let _left_over = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("net"), NET).unwrap();
        fs::write(folder.join("parts.conf"), partitions).unwrap();
        let mut ibsim = program("ibsim");
        ibsim.args(["-s", "net"]).current_dir(&folder).env("IBSIM_SOCKNAME", "sim");
        ibsim.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let simulator = ibsim.spawn().unwrap();
        wait_until("ibsim listens", || {
            fs::read_to_string("/proc/net/unix").unwrap().contains("@sim:ctl")
        });
        let manager = manager(&folder);
        let fabric = Self { folder, simulator, manager };
        fabric.wait_for_manager();
        fabric
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Types a command into ibsim.
    pub(crate) fn command(&mut self, command: &str) {
        let input = self.simulator.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        input.flush().unwrap();
    }

    pub(crate) fn restart_manager(&mut self) {
        self.manager.kill().unwrap();
        self.manager.wait().unwrap();
        fs::remove_file(self.path("osm.log")).unwrap();
        self.manager = manager(&self.folder);
        self.wait_for_manager();
    }

    fn wait_for_manager(&self) {
        let log = self.path("osm.log");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let deadline = Instant::now() + PATIENCE;
        while !said().contains("SUBNET UP") {
            assert!(Instant::now() < deadline, "OpenSM does not set the subnet up: {}", said());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn manager(folder: &Path) -> Child {
    let mut opensm = program("opensm");
    // "-d 2": what it logs is written at once.
    opensm.args(["-f", "osm.log", "-d", "2", "-s", "2", "-P", "parts.conf"]).current_dir(folder);
    opensm.env("IBSIM_SOCKNAME", "sim").env("SIM_HOST", "Hca1").env("LD_PRELOAD", UMAD);
    opensm.env("OSM_TMP_DIR", folder).env("OSM_CACHE_DIR", folder);
    opensm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    opensm.spawn().unwrap()
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for child in [&mut self.manager, &mut self.simulator] {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        let _best_effort = fs::remove_dir_all(&self.folder);
    }
}

/// Reads a capture with tshark, which finds nothing malformed in it; skipped where it is missing.
pub(crate) fn wrong_packets(capture: &Path) {
    if !is_there("tshark") {
        return skip("what tshark says of packets of InfiniBand", "no tshark");
    }
    let wrong = "_ws.malformed || _ws.expert.severity == error";
    assert_eq!(packets(capture, wrong), 0, "malformed packets");
    assert!(packets(capture, "infiniband") > 0, "packets");
}

/// How many packets of a capture tshark finds by a filter.
pub(crate) fn packets(capture: &Path, filter: &str) -> usize {
    let output = program("tshark").arg("-r").arg(capture).args(["-Y", filter]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().count()
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// `urnic` with these arguments, separated by spaces.
pub(crate) fn urnic(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A command that goes on.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(arguments: &str) -> Self {
        Self(urnic(arguments).spawn().unwrap())
    }

    /// A server, once it listens.
    pub(crate) fn serving(arguments: &str) -> Self {
        let mut process = Self::start(arguments);
        let mut line = String::new();
        let output = process.0.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening at "), "{line:?} {}", process.complaint());
        process
    }

    /// The switch, once it carries data.
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

    /// Ends it by SIGINT, or waits for its end if it does not go on; what it said.
    pub(crate) fn json(mut self) -> Value {
        // A command that ends by itself has said all then.
        wait_until("the end of a command", || {
            let _interrupted = self.goes_on().then(|| self.interrupt());
            self.0.try_wait().unwrap().is_some()
        });
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text} {}", self.complaint()))
    }

    /// Whether it is a command that ends when it is interrupted.
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
