//! A process without free descriptors.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use super::{Host, LOOPBACK, PATIENCE};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};
use urnic::ListenParams;
use urnic_engine::time::Duration;

/// Environment variable that names the test for the child.
const CHILD: &str = "URNIC_ENDPOINT_CHILD";

/// Returns the processor time of the process.
fn processor_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap())
}

/// The limit belongs to a process, so the test has its own process.
#[test]
fn a_peer_for_whom_there_is_no_descriptor_waits_and_costs_nothing() {
    const NAME: &str =
        "endpoint::descriptors::a_peer_for_whom_there_is_no_descriptor_waits_and_costs_nothing";
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, NAME)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && told.contains("1 passed"), "{child:?}");
        return;
    }
    for own_thread in [true, false] {
        let host = Host::new(own_thread, 1);
        let listener =
            host.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
        let mut peer = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let before = getrlimit(Resource::Nofile);
        let lowered = Rlimit { current: Some(64), maximum: before.maximum };
        setrlimit(Resource::Nofile, lowered).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(!held.is_empty());
        peer.connect(&listener.local().into()).unwrap();
        peer.write_all(b"MPA ID Req Frame\x40\x01\x00\x00").unwrap();
        let used = processor_time();
        let wait = Duration::from_millis(600);
        assert!(listener.next_request(wait).unwrap().is_none(), "there is no descriptor");
        let used = processor_time() - used;
        assert!(used < wait / 4, "{used:?} of {wait:?}, own thread {own_thread}");
        // Other parts of the process free descriptors without a notice.
        drop(held);
        assert!(listener.next_request(PATIENCE).unwrap().is_some(), "own thread {own_thread}");
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
