//! A flow of the engine and one of the kernel's CUBIC through one bottleneck: `urnic impair` between
//! two namespaces, `urnic bw` and a kernel socket on the interfaces that it makes.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::kernel_flow::KernelFlow;
use urnic_testkit::network::{Namespace, await_up, ip};

/// A bottleneck so slow that processors do not matter, with a queue of 60 ms that does not overflow
/// when the link waits for a processor. Windows stay so small that CUBIC loses and recovers many
/// times a minute: on a long fast path, chance decides the shares of two flows in 18 s. `cargo
/// bench --bench compare -- --fairness` measures such a path.
const BOTTLENECK: &str = "--rate 10M --delay 5ms --queue 50 --duration 120s --quiet";
/// The kernel's flow fills the queue before the engine starts.
const HEAD_START: Duration = Duration::from_secs(2);

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn start(arguments: &str) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self(command.unwrap())
    }

    /// Returns the first line that it prints.
    fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn join(interface: &str, host: u8) {
    ip(&format!("addr add 10.0.0.{host}/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
}

netns_tests! {
    alone with ["/dev/net/tun"];

    fn the_engine_and_a_kernel_flow_share_a_bottleneck() {
        let _bottleneck = Running::start(&format!("impair tap-a tap-b {BOTTLENECK}"));
        let far = Namespace::new();
        await_up(&["tap-a", "tap-b"]);
        ip(&format!("link set tap-b netns {}", far.id()));
        join("tap-a", 1);
        far.run(|| join("tap-b", 2));
        let server = "serve --listen 10.0.0.4:7174 --dev packet:tap-b,ip=10.0.0.4/24";
        let mut server = far.run(|| Running::start(server));
        assert!(server.first_line().contains("10.0.0.4:7174"));

        let listener = far.run(|| TcpListener::bind("10.0.0.2:0").unwrap());
        let kernel = KernelFlow::start(&listener).unwrap();
        std::thread::sleep(HEAD_START);
        let (start, before) = (Instant::now(), kernel.received());
        let bw = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["bw", "10.0.0.4:7174", "--dev", "packet:tap-a,ip=10.0.0.3/24"])
            .args(["--seconds", "18", "--depth", "4", "--json"])
            .output()
            .unwrap();
        let (took, after) = (start.elapsed(), kernel.received());
        assert!(bw.status.success(), "{bw:?}");
        let bw: Value = serde_json::from_slice(&bw.stdout).unwrap();
        let engine = 1e3 * bw["gbps"].as_f64().unwrap();
        let octets = u32::try_from(after - before).unwrap();
        let kernel = f64::from(octets) * 8e-6 / took.as_secs_f64();
        assert!(engine + kernel > 6.0, "{engine:.1} and {kernel:.1} Mbit/s fill the bottleneck");
        let share = engine / (engine + kernel);
        // Over minutes the share is between a third and two thirds.
        let range = 0.2..=0.8;
        assert!(range.contains(&share), "{engine:.1} and {kernel:.1} Mbit/s: {share:.2}");
    }
}
