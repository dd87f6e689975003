//! `urnic serve` and its clients on devices with urnic's own TCP, each test in a network namespace
//! of its own: TAPs and a raw socket on one bridge.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]
#![allow(clippy::print_stderr, reason = "measurements are part of what the tests are for")]

mod capture;
mod flat;
mod killed;
mod lease;
mod many;
pub(crate) mod scene;
mod state;

use std::fs;

use scene::{Server, client, complaint, folder, join, json};
use tempfile::TempDir;
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{command, ip, xdp_refusal};
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

/// Payload is copied to be sent, or not, as `--send-path` requests, and the counters show it.
fn sent_as_told(device: &str) {
    for (path, copies) in [("gather", 0), ("stage", 1)] {
        for options in ["--op write", "--op write --markers --no-crc", "--op send --size 100"] {
            let options = format!("{options} --send-path {path} --count 2000 --json {device}");
            let bw = json(&client(&format!("bw ADDRESS {options}")));
            let (bytes, copied) = (bw["bytes"].as_u64().unwrap(), staged(&bw["local"]));
            // Retransmitted payload is copied again; besides the payload there are some control
            // messages.
            let most = copies * (bytes + bytes / 2 + 4096);
            assert!((copies * bytes..=most).contains(&copied), "{options}: {bw}");
        }
    }
}

/// Returns the bytes of payload that were copied to be sent, except those of Read Responses and of
/// FPDUs that were cut.
fn staged(end: &serde_json::Value) -> u64 {
    let count = |key: &str| end[key].as_u64().unwrap();
    let kept = count("payload_bytes_snapshot") + count("payload_bytes_kept");
    count("payload_bytes_copied_tx") - kept
}

/// Runs every command, by a client on `device`; `name` is the test's.
fn every_command(server: &Server, folder: &TempDir, device: &str) {
    let ping = json(&client(&format!("ping ADDRESS --count 3 --interval 1ms --json {device}")));
    assert_eq!(ping["count"], 3, "{device}");
    for op in ["write", "read", "send"] {
        for depth in [1, 16] {
            let options = format!("--op {op} --depth {depth} --seconds 0.1 --json {device}");
            let bw = json(&client(&format!("bw ADDRESS {options}")));
            assert!(bw["bytes"].as_u64().unwrap() > 0, "{options}: {bw}");
            for end in ["local", "peer"] {
                let count = |key: &str| bw[end][key].as_u64().unwrap();
                assert_eq!(count("segments_aligned"), count("segments_sent"), "{options}: {bw}");
                assert_eq!(count("crc_bad"), 0, "{options}: {bw}");
                let responds = op == "read" && end == "peer";
                assert_eq!(count("payload_bytes_snapshot") > 0, responds, "{options}: {bw}");
                if op != "read" && end == "local" {
                    // FPDUs of 1500 bytes are too short to be gathered.
                    assert!(staged(&bw[end]) >= bw["bytes"].as_u64().unwrap(), "{options}: {bw}");
                }
            }
        }
    }
    sent_as_told(device);
    let lat = json(&client(&format!("lat ADDRESS --iterations 100 --json {device}")));
    assert_eq!(lat["iterations"], 100, "{device}");
    let octets: Vec<u8> =
        (0..3_000_001_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let [sent, back] = ["sent", "back"].map(|name| folder.path().join(name));
    fs::write(&sent, &octets).unwrap();
    let put = format!("put {} ADDRESS/it --force {device}", sent.display());
    let output = client(&put);
    assert!(output.status.success(), "{put}: {}", complaint(&output));
    assert!(fs::read(folder.path().join("served/it")).unwrap() == octets, "{put}");
    let _left_over = fs::remove_file(&back);
    let get = format!("get ADDRESS/it {} {device}", back.display());
    let output = client(&get);
    assert!(output.status.success(), "{get}: {}", complaint(&output));
    assert!(fs::read(&back).unwrap() == octets, "{get}");
    assert!(server.complaints().is_empty(), "the server has nothing to complain about");
}

/// A server on a TAP, clients on another.
fn over_taps(server_header: &str, client_header: &str) {
    let folder = folder();
    join(&["tap-s", "tap-c"]);
    let served = folder.path().join("served");
    let server = Server::start_at(
        "[::]:7174",
        &format!(
            "--dev tap:tap-s,ip=10.7.0.2/24,ip6=fd07::2/64,vnet={server_header} --allow-overwrite --dir {}",
            served.display()
        ),
    );
    let device = format!("--dev tap:tap-c,ip=10.7.0.3/24,vnet={client_header}");
    every_command(&server, &folder, &device);
    let device = format!("--dev tap:tap-c,ip6=fd07::3/64,vnet={client_header}");
    let output = client(&format!("ping [fd07::2]:7174 --count 1 {device}"));
    assert!(output.status.success(), "IPv6: {}", complaint(&output));
    server.stop();
}

netns_tests! {
    with ["/dev/net/tun"];

    fn every_command_works_over_taps_with_super_frames() {
        over_taps("on", "on");
    }

    fn every_command_works_over_plain_taps() {
        over_taps("off", "off");
    }

    fn a_plain_tap_serves_one_with_super_frames() {
        over_taps("off", "on");
    }

    fn a_tap_with_super_frames_serves_a_plain_one() {
        over_taps("on", "off");
    }

    /// If the kernel has no address yet, it lets a socket bind to any: such an address is not its
    /// own.
    fn a_new_namespace_has_room_for_any_address() {
        let urnic = env!("CARGO_BIN_EXE_urnic");
        let output = program("timeout")
            .args(["--signal=INT", "2", "unshare", "--net", urnic, "serve", "--once"])
            .args(["--dev", "tap:tap-n,ip=10.7.0.2/24", "--listen", "10.7.0.2:7174"])
            .output()
            .unwrap();
        let listens = String::from_utf8_lossy(&output.stdout).contains("listening");
        assert!(listens, "{}", complaint(&output));
    }

    /// The interface was used with super-frames before, and is persistent.
    fn payload_of_long_frames_is_gathered() {
        join(&["tap-s", "tap-c"]);
        // Markers cut the payload into short runs; the receiver requests them.
        for (markers, least) in [("", 0), ("--markers", 1)] {
            let server = Server::start(&format!("--dev tap:tap-s,ip=10.7.0.2/24,mtu=9000 {markers}"));
            let options = "--count 200 --json --dev tap:tap-c,ip=10.7.0.3/24,mtu=9000";
            let bw = json(&client(&format!("bw ADDRESS {options}")));
            server.stop();
            let bytes = bw["bytes"].as_u64().unwrap();
            // A message's last FPDU is short.
            let copied = least * bytes..=least * bytes + bytes / 8;
            assert!(copied.contains(&staged(&bw["local"])), "{markers}: {bw}");
        }
    }

    fn client_may_switch_super_frames_on_and_off() {
        join(&["tap-s", "tap-c"]);
        let server = Server::start("--dev tap:tap-s,ip=10.7.0.2/24");
        for header in ["on", "off", "on", "off"] {
            let device = format!("--dev tap:tap-c,ip=10.7.0.3/24,vnet={header}");
            let bw = json(&client(&format!("bw ADDRESS --seconds 0.1 --json {device}")));
            assert!(bw["bytes"].as_u64().unwrap() > 0, "{header}: {bw}");
        }
        server.stop();
    }

    fn every_command_works_on_a_raw_socket() {
        let folder = folder();
        join(&["tap-s"]);
        ip("link add veth-b type veth peer name veth-c");
        ip("link set veth-b up master bridge0");
        ip("link set veth-c up");
        let served = folder.path().join("served");
        let server = Server::start(&format!(
            "--dev tap:tap-s,ip=10.7.0.2/24 --allow-overwrite --dir {}", served.display()
        ));
        for header in ["on", "off"] {
            let device = format!("--dev packet:veth-c,ip=10.7.0.4/24,vnet={header}");
            every_command(&server, &folder, &device);
        }
        server.stop();
    }

    /// The bridge's end of the veth leaves checksums to a card that does not exist.
    fn xdp_socket_with_incomplete_checksums_names_a_remedy() {
        if !is_there("ethtool") {
            return skip("checksums that nothing finishes", "`ethtool` is missing");
        }
        if let Some(reason) = xdp_refusal() {
            return skip("checksums that nothing finishes", &reason);
        }
        join(&["tap-s"]);
        ip("link add veth-b type veth peer name veth-c");
        ip("link set veth-b up master bridge0");
        ip("link set veth-c up");
        let server = Server::start("--dev tap:tap-s,ip=10.7.0.2/24 --send-path gather");
        let device = "--dev xdp:veth-c,ip=10.7.0.4/24 --timeout 2s";
        let output = client(&format!("ping ADDRESS --count 1 {device}"));
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("ethtool -K") && said.contains("tx off"), "{said}");
        command("ethtool", "-K veth-b tx off");
        let output = client(&format!("bw ADDRESS --seconds 0.1 --json {device}"));
        let bw = json(&output);
        let octets = bw["bytes"].as_u64().unwrap();
        assert!(octets > 0, "after what it said was done: {bw}");
        let copied = bw["local"]["payload_bytes_copied_tx"].as_u64().unwrap();
        assert!(copied > octets, "into the packet memory of the socket: {bw}");
        assert_eq!(bw["peer"]["payload_bytes_copied_tx"], 0, "the TAP gathers: {bw}");
        server.stop();
        command("ethtool", "-K veth-b tx on");
        // The same frames, received by a server.
        ip("tuntap add dev tap-x mode tap");
        ip("link set tap-x up master bridge0");
        let server = Server::start_at("10.7.0.4:7174", "--dev xdp:veth-c,ip=10.7.0.4/24");
        let output = client("ping 10.7.0.4:7174 --dev tap:tap-x,ip=10.7.0.5/24 --timeout 1s");
        assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
        let said = server.complaint(scene::PATIENCE).expect("the server says what is wrong");
        assert!(said.contains("ethtool -K") && said.contains("tx off"), "{said}");
        server.stop();
    }
}
