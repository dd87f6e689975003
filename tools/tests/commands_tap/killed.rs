//! One end is killed in the middle of a transfer: nothing is left behind, and the other end reports
//! it in time.

use std::time::{Duration, Instant};

use crate::commands_tap::scene::{
    PATIENCE, Server, bytes_from, client, complaint, join, json, urnic, wait_until,
};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::ip;

/// Timeout of the end that is not killed.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Delay that a busy machine may add.
const LATE: Duration = Duration::from_secs(3);
/// Bytes after which a transfer counts as in flight.
const UNDER_WAY: u64 = 4 << 20;

netns_tests! {
    with ["/dev/net/tun"];

    fn a_killed_client_leaves_nothing_and_the_server_says_so_and_goes_on() {
        join(&["tap-s"]);
        for header in ["on", "off"] {
            let server = Server::start(&format!(
                "--dev tap:tap-s,ip=10.7.0.2/24,vnet={header} --timeout 2s"
            ));
            // The client makes its interface itself.
            let device = format!("--dev tap:tap-c,ip=10.7.0.3/24,vnet={header}");
            let mut killed = urnic(&format!("bw ADDRESS --seconds 60 {device}")).spawn().unwrap();
            wait_until("an interface", PATIENCE, || ip("link").contains("tap-c"));
            ip("link set tap-c master bridge0");
            wait_until("a transfer", PATIENCE, || bytes_from("tap-c") > UNDER_WAY);
            killed.kill().unwrap();
            let at = Instant::now();
            killed.wait().unwrap();
            assert!(!ip("link").contains("tap-c"), "the interface went with its process");
            let said = server.complaint(TIMEOUT + LATE).expect("the server says that it is gone");
            assert!(said.contains("10.7.0.3"), "{said}");
            assert!(at.elapsed() < TIMEOUT + LATE, "{:?}", at.elapsed());
            ip("tuntap add dev tap-c mode tap");
            ip("link set tap-c up master bridge0");
            let next = json(&client(&format!("bw ADDRESS --seconds 0.1 --json {device}")));
            assert!(next["bytes"].as_u64().unwrap() > 0, "another one is served: {next}");
            ip("link del tap-c");
            server.stop();
        }
    }

    fn a_killed_server_leaves_nothing_and_its_client_says_so() {
        join(&["tap-c"]);
        for (header, op) in [("on", "write"), ("off", "read"), ("on", "send")] {
            // The server makes its interface itself.
            let server = Server::start(&format!("--dev tap:tap-s,ip=10.7.0.2/24,vnet={header}"));
            ip("link set tap-s master bridge0");
            let from = [bytes_from("tap-s"), bytes_from("tap-c")];
            let device = format!("--dev tap:tap-c,ip=10.7.0.3/24,vnet={header} --timeout 2s");
            let waiting = urnic(&format!("bw ADDRESS --op {op} --seconds 60 {device}")).spawn().unwrap();
            wait_until("a transfer", PATIENCE, || {
                let now = [bytes_from("tap-s"), bytes_from("tap-c")];
                now.iter().zip(from).any(|(now, from)| now - from > UNDER_WAY)
            });
            server.kill();
            let at = Instant::now();
            assert!(!ip("link").contains("tap-s"), "the interface went with its process");
            let output = waiting.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{op}: {}", complaint(&output));
            assert!(at.elapsed() < TIMEOUT + LATE, "{op}: {:?}", at.elapsed());
            let said = complaint(&output);
            assert!(said.contains("10.7.0.2:7174"), "{op}: {said}");
        }
    }
}
