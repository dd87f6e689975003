//! A fabric of InfiniBand from real programs: ibsim simulates it, OpenSM is its subnet manager and
//! administrator. Both end with the test.
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::program;

/// Programs and libraries that a fabric needs.
pub const NEEDS: [&str; 3] = ["ibsim", "opensm", UMAD];
/// Library that connects OpenSM to ibsim instead of the kernel.
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

/// All hosts are in the default partition; another one has two full members and a limited one.
pub const PARTITIONS: &str = "\
Default=0x7fff,ipoib,mtu=4,rate=3,scope=2,Q_Key=0x80010b1b : ALL=full;
blue=0x8001,ipoib,mtu=4,rate=3,Q_Key=0x80020b1b :
	0x100004=full, 0x10000a=full, 0x100007=limited;
";

const PATIENCE: Duration = Duration::from_secs(30);

/// A fabric with its subnet manager.
pub struct Fabric {
    folder: PathBuf,
    simulator: Child,
    manager: Child,
}

impl Fabric {
    /// Starts a fabric with these partitions. Its programs write to `folder`, which is removed with
    /// the fabric.
    ///
    /// # Panics
    /// If the subnet is not set up in time.
    pub fn start(folder: &Path, partitions: &str) -> Self {
        let folder = folder.to_owned();
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

    /// Returns the path of a file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Types a command into ibsim.
    ///
    /// # Panics
    /// If ibsim has ended.
    pub fn command(&mut self, command: &str) {
        let input = self.simulator.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        input.flush().unwrap();
    }

    /// Ends the subnet manager, and starts another.
    ///
    /// # Panics
    /// If the new one does not set the subnet up in time.
    pub fn restart_manager(&mut self) {
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
    // "-d 2" makes OpenSM write its log at once.
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

/// Waits for a condition, with a limit.
///
/// # Panics
/// If the limit is exceeded.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
