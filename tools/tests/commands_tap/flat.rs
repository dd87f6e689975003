//! Memory stays flat however much is moved. Long; run with
//!
//! ```text
//! cargo test --release -p urnic-tools --test commands_tap -- --ignored flat
//! ```

use std::fs;
use std::thread;
use std::time::Duration;

use crate::commands_tap::scene::{Server, join, json, urnic};
use urnic_testkit::isolate::netns_tests;

/// Bytes that a process may grow by, however much data it moves.
const GROWTH_MAX: u64 = 4 << 20;
/// After this time all buffers have their final size.
const WARM_UP: Duration = Duration::from_secs(2);
/// Largest number of sessions; a slow machine needs more of them.
const SESSIONS_MAX: usize = 12;

/// Returns the resident memory of a process in bytes.
fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Resources of a process: the first sample after the warm-up, and the largest until its end.
#[derive(Debug, Default)]
struct Samples {
    first: u64,
    last: u64,
    max: u64,
}

impl Samples {
    fn take(&mut self, pid: u32) {
        if let Some(now) = resident(pid).filter(|&now| now > 0) {
            if self.first == 0 {
                self.first = now;
            }
            self.last = now;
            self.max = self.max.max(now);
        }
    }
}

/// Moves this number of bytes in messages of `size`, and samples both processes meanwhile.
fn stays_flat(what: &str, op: &str, size: u64, octets: u64) {
    join(&["tap-s", "tap-c"]);
    let server = Server::start("--dev tap:tap-s,ip=10.7.0.2/24");
    let (mut moved, mut served) = (0, Samples::default());
    for session in 0.. {
        assert!(session < SESSIONS_MAX, "{what}: {moved} of {octets} bytes in that many sessions");
        let device = "--dev tap:tap-c,ip=10.7.0.3/24";
        let options = format!("--op {op} --size {size} --seconds 12 --json {device}");
        let mut client = urnic(&format!("bw ADDRESS {options}")).spawn().unwrap();
        thread::sleep(WARM_UP);
        let mut own = Samples::default();
        while client.try_wait().unwrap().is_none() {
            own.take(client.id());
            served.take(server.pid());
            thread::sleep(Duration::from_millis(100));
        }
        let output = client.wait_with_output().unwrap();
        let result = json(&output);
        moved += result["bytes"].as_u64().unwrap();
        let (gbps, rate) = (&result["gbps"], &result["messages_per_second"]);
        eprintln!(
            "measured {what}, session {session}: {moved} bytes so far, {gbps} Gbit/s, {rate} \
             messages/s; resident bytes: client {own:?}, server {served:?}"
        );
        for samples in [&own, &served] {
            assert!(samples.first > 0, "looked at");
            assert!(samples.max <= samples.first + GROWTH_MAX, "{what}: {samples:?}");
        }
        if moved >= octets {
            break;
        }
    }
    server.stop();
}

netns_tests! {
    with ["/dev/net/tun"];

    #[ignore = "12 seconds and more"]
    fn a_million_small_sends_leave_memory_flat() {
        stays_flat("a million Sends of 64 bytes", "send", 64, 64_000_000);
    }

    #[ignore = "12 seconds and more"]
    fn a_million_small_writes_leave_memory_flat() {
        stays_flat("a million Writes of 64 bytes", "write", 64, 64_000_000);
    }

    #[ignore = "12 seconds and more"]
    fn writes_of_20_gb_leave_memory_flat() {
        stays_flat("20 GB of Writes", "write", 65_536, 20_000_000_000);
    }
}
