//! Programs that exit, or fork, with open connections: completed messages arrive, and the peer sees
//! the end.

use std::process::Stdio;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{bridge, ip};

use super::compiled::{self, compile_cm};
use super::{Libraries, free_port};

const ALL_CAME: &str = "32 messages came";

/// Runs the client in this mode; `devices` are those of server and client.
fn run(test: &str, mode: &str, devices: [&str; 2], address: &str) {
    let libraries = Libraries::new();
    let Some(program) = compile_cm(test, &libraries, "leaves") else { return };
    let (program, port) = (program.display().to_string(), free_port());
    let server = format!("{program} server {address} {port}");
    let server = libraries.start_on(devices[0], &server, false).listens_by_cm(port);
    let client = format!("{program} {mode} {address} {port}");
    let variables = [("URNIC_DEV", devices[1]), ("URNIC_LOG", "urnic=debug")];
    // Children that live on do so until their input ends, together with the client's.
    let client = libraries.start_fed(&client, &variables, Stdio::piped());
    let said = server.finish();
    assert!(said.contains(ALL_CAME), "{mode}, {devices:?}: {said}");
    client.finish_fed();
}

#[test]
fn completed_requests_arrive_after_the_process_ended() {
    let test = "completed_requests_arrive_after_the_process_ended";
    for mode in ["exit", "drain"] {
        run(test, mode, ["kernel"; 2], "127.0.0.1");
    }
}

/// Requests to the peer behind the last message do not need the process for their answer.
#[test]
fn messages_received_before_the_process_ended_are_placed() {
    let test = "messages_received_before_the_process_ended_are_placed";
    let libraries = Libraries::new();
    let Some(program) = compile_cm(test, &libraries, "leaves") else { return };
    let program = program.display().to_string();
    for _ in 0..10 {
        let port = free_port();
        let server = format!("{program} taker 127.0.0.1 {port}");
        let server = libraries.start_on("kernel", &server, false).listens_by_cm(port);
        libraries.run(&format!("{program} exit 127.0.0.1 {port}"), false);
        assert!(server.finish().contains(ALL_CAME));
    }
}

/// The kernel resets a connection without a process when data arrives, and drops unsent data.
#[test]
fn completed_requests_arrive_at_a_slow_peer_after_exit() {
    let test = "completed_requests_arrive_at_a_slow_peer_after_exit";
    let libraries = Libraries::new();
    let Some(program) = compile_cm(test, &libraries, "leaves") else { return };
    let program = program.display().to_string();
    for iwarp in [false, true].repeat(5) {
        let port = free_port();
        let server = format!("{program} sleeper 127.0.0.1 {port}");
        let server = libraries.start_on("kernel", &server, iwarp).listens_by_cm(port);
        libraries.run(&format!("{program} exit 127.0.0.1 {port}"), iwarp);
        assert!(server.finish().contains(ALL_CAME));
    }
}

#[test]
fn disconnect_is_reported_though_a_child_lives() {
    for mode in ["fork", "abort"] {
        run("disconnect_is_reported_though_a_child_lives", mode, ["kernel"; 2], "127.0.0.1");
    }
}

#[test]
fn a_child_opens_the_device_anew() {
    run("a_child_opens_the_device_anew", "anew", ["kernel"; 2], "127.0.0.1");
}

/// The child does not need the locks that a thread of its parent holds while it writes to the log.
#[test]
fn a_child_opens_the_device_while_the_log_of_its_parent_waits() {
    let test = "a_child_opens_the_device_while_the_log_of_its_parent_waits";
    compiled::run(test, "fork_inside", &[("URNIC_LOG", "urnic=debug")]);
}

/// As in `rping`, whose thread is sometimes between two waits.
#[test]
fn process_ends_though_threads_wait_on_destroyed_objects() {
    compiled::run("process_ends_though_threads_wait_on_destroyed_objects", "gone", &[]);
}

netns_tests! {
    with ["/dev/net/tun", "cc"];

    fn completed_requests_on_a_tap_arrive_after_the_process_ended() {
        for name in ["ta", "tb"] {
            ip(&format!("tuntap add {name} mode tap vnet_hdr"));
            ip(&format!("link set {name} up"));
        }
        bridge("br0", &["ta", "tb"]);
        ip("addr add 10.7.0.254/24 dev br0");
        let [a, b] = ["tap:ta,ip=10.7.0.1/24", "tap:tb,ip=10.7.0.2/24"];
        for (devices, address) in
            [([a, b], "10.7.0.1"), (["kernel", b], "10.7.0.254"), ([a, "kernel"], "10.7.0.1")]
        {
            for mode in ["exit", "fork", "abort"] {
                let test = "completed_requests_on_a_tap_arrive_after_the_process_ended";
                run(test, mode, devices, address);
            }
        }
    }
}

/// The program calls `exit` in a signal handler.
fn ends_with_7(libraries: &Libraries, line: &str) {
    let mut program = libraries.start(line, false);
    program.ends();
    let status = program.child.wait().unwrap();
    assert_eq!(status.code(), Some(7), "{line}: {}", program.said());
}

/// C forbids it, and programs do it: a signal handler calls `exit` in the middle of an allocation.
#[test]
fn exit_in_the_middle_of_an_allocation_ends_the_process() {
    let test = "exit_in_the_middle_of_an_allocation_ends_the_process";
    let libraries = Libraries::new();
    let header = "/usr/include/rdma/rdma_cma.h";
    let linked = ["-libverbs", "-lpthread"];
    let program = compiled::compile(test, &libraries, "exit_inside", header, &linked);
    let Some(program) = program else { return };
    ends_with_7(&libraries, &program.display().to_string());
}

/// Exits at many points of the library's calls, with a fixed number of runs; `URNIC_EXITS` sets
/// another number.
#[test]
fn exit_in_a_handler_at_any_time_ends_the_process() {
    const EXITS: u64 = 20;
    let test = "exit_in_a_handler_at_any_time_ends_the_process";
    let libraries = Libraries::new();
    let Some(program) = compile_cm(test, &libraries, "exit_any_time") else { return };
    let exits = std::env::var("URNIC_EXITS").map_or(EXITS, |exits| exits.parse().unwrap());
    for number in 0..exits {
        // Steps that share no divisor with the range: each run hits another point.
        let after = 1000 + number * 7919 % 30_000;
        ends_with_7(&libraries, &format!("{} {after}", program.display()));
    }
}
