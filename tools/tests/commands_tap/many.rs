//! A thousand connections on every device; commands that end as soon as they can.

use std::time::{Duration, Instant};

use crate::commands_tap::scene::{Server, client, complaint, join, json};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{command, ip, xdp_refusal};
use urnic_testkit::programs::is_there;
use urnic_testkit::skip;

/// Bytes that a server may use for a thousand connections.
const MEMORY_MAX: u64 = 1 << 30;

/// Returns the peak memory of a process in bytes.
fn memory_max(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Opens a thousand connections from `device` to a server with default options.
fn a_thousand(device: &str) {
    let server = Server::start("--dev tap:tap-s,ip=10.7.0.2/24");
    for connections in [12, 1000] {
        let options = format!("--connections {connections} --size 4K --seconds 0.1 --json");
        let bw = json(&client(&format!("bw ADDRESS {options} --dev {device}")));
        assert!(bw["bytes"].as_u64().unwrap() >= 4096 * connections, "{device}: {bw}");
    }
    assert_eq!(server.complaints(), Vec::<String>::new(), "{device}");
    let memory = memory_max(server.pid());
    assert!(memory < MEMORY_MAX, "{device}: {memory} bytes");
    let output = client(&format!("ping ADDRESS --count 1 --dev {device}"));
    assert!(output.status.success(), "{device}: {}", complaint(&output));
    server.stop();
}

/// Makes a veth of the bridge, for sockets of interfaces.
fn veth() {
    ip("link add veth-b type veth peer name veth-c");
    ip("link set veth-b up master bridge0");
    ip("link set veth-c up");
}

netns_tests! {
    with ["/dev/net/tun"];

    fn a_thousand_connections_over_taps() {
        join(&["tap-s", "tap-c"]);
        a_thousand("tap:tap-c,ip=10.7.0.3/24");
    }

    fn a_thousand_connections_over_plain_taps() {
        join(&["tap-s", "tap-c"]);
        a_thousand("tap:tap-c,ip=10.7.0.3/24,vnet=off");
    }

    fn a_thousand_connections_on_a_raw_socket() {
        join(&["tap-s"]);
        veth();
        a_thousand("packet:veth-c,ip=10.7.0.4/24");
    }

    fn a_thousand_connections_on_an_xdp_socket() {
        const NAME: &str = "a thousand connections on an AF_XDP socket";
        if !is_there("ethtool") {
            return skip(NAME, "`ethtool` is missing");
        }
        if let Some(reason) = xdp_refusal() {
            return skip(NAME, &reason);
        }
        join(&["tap-s", "tap-c"]);
        veth();
        command("ethtool", "-K veth-b tx off");
        a_thousand("xdp:veth-c,ip=10.7.0.5/24");
    }

    /// Commands do not wait for TIME-WAIT, and do not close connections one by one.
    fn commands_end_right_after_their_last_result() {
        join(&["tap-s", "tap-c"]);
        let server = Server::start("--dev tap:tap-s,ip=10.7.0.2/24");
        let device = "--dev tap:tap-c,ip=10.7.0.3/24";
        for arguments in [
            "ping ADDRESS --count 1",
            "lat ADDRESS --iterations 1",
            "bw ADDRESS --seconds 0.01",
            "bw ADDRESS --seconds 0.01 --connections 40",
        ] {
            // A busy machine may be late once.
            let fastest = (0..5).map(|_| {
                let started = Instant::now();
                let output = client(&format!("{arguments} {device}"));
                assert!(output.status.success(), "{arguments}: {}", complaint(&output));
                started.elapsed()
            });
            let fastest = fastest.min().unwrap();
            assert!(fastest < Duration::from_millis(800), "{arguments}: {fastest:?}");
        }
        assert_eq!(server.complaints(), Vec::<String>::new());
        server.stop();
    }

    /// The port is free, and another one each time.
    fn port_zero_chooses_another_free_port_each_time() {
        join(&["tap-s", "tap-c"]);
        let mut ports = Vec::new();
        for _ in 0..4 {
            let server = Server::start_at("10.7.0.2:0", "--dev tap:tap-s,ip=10.7.0.2/24");
            let port = server.port();
            assert!(port >= 49_152, "{port}");
            let output = client(&format!(
                "ping 10.7.0.2:{port} --count 1 --dev tap:tap-c,ip=10.7.0.3/24"
            ));
            assert!(output.status.success(), "{}", complaint(&output));
            ports.push(port);
            server.stop();
        }
        ports.dedup();
        assert!(ports.len() > 1, "{ports:?}");
    }
}
