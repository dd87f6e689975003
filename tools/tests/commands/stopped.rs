//! A server that is stopped, a client that was stopped for a while, and readers that stop reading.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use urnic_testkit::programs::{missing, program};
use urnic_testkit::skip;

use crate::commands::files::{Folder, get, has_progress, pattern, put};
use crate::commands::scene::{Server, complaint, json, urnic, wait_until};

/// Clients report that it was no crash; a measurement reports its result so far.
#[test]
fn a_server_that_is_stopped_tells_its_clients() {
    let server = Server::start("");
    let mut bw = server.spawn("bw ADDRESS -t 1000 -i 0.1");
    let mut ping = server.spawn("ping ADDRESS -c 1000000 -i 0.01");
    let mut lines = BufReader::new(bw.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        lines.next().unwrap().unwrap();
    }
    // It continues its output as long as a process reads it.
    let mut answers = BufReader::new(ping.stdout.take().unwrap()).lines();
    answers.next().unwrap().unwrap();
    server.signal(Signal::TERM);
    let output = bw.wait_with_output().unwrap();
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("says: the server was stopped; until then "), "{said}");
    assert!(said.contains(" messages in ") && said.contains("Gbit/s"), "{said}");
    let said = complaint(&ping.wait_with_output().unwrap());
    assert!(said.contains("says: the server was stopped"), "{said}");
    assert_eq!(server.stop_and_tell().matches("the server was stopped").count(), 2);
}

/// The error has the reason first, then the part that is kept.
#[test]
fn transfer_to_a_stopped_server_reports_the_reason_and_the_kept_part() {
    let folder = Folder::new("server-stopped");
    let (file, back) = (folder.own("file"), folder.own("back"));
    fs::write(&file, pattern(40 << 20)).unwrap();
    fs::copy(&file, folder.served("there")).unwrap();
    for (command, journal) in [
        (put(&file, ""), folder.served(".file.urnic-journal")),
        (get("/there", &back), folder.own(".back.urnic-journal")),
    ] {
        let server = folder.serve("");
        let client = server.spawn(&format!("{command} --rate 100M"));
        wait_until("progress", || has_progress(&journal));
        server.stop();
        let output = client.wait_with_output().unwrap();
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let (reason, kept) = (said.find("says: the server was stopped"), said.find("are kept"));
        assert!(reason.is_some() && reason < kept, "{said}");
    }
}

/// A client does not count the time in which it was stopped as silence of the server.
#[test]
fn a_client_that_was_stopped_itself_goes_on() {
    let server = Server::start("--timeout 60s");
    let mut ping = server.spawn("ping ADDRESS -c 300 -i 0.01 --timeout 1s");
    let mut first = [0];
    ping.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    for _ in 0..3 {
        kill_process(Pid::from_child(&ping), Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        kill_process(Pid::from_child(&ping), Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = ping.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    server.stop();
}

/// A server gives up a client that was stopped for too long; the client reports the cause.
#[test]
fn a_client_that_was_stopped_for_too_long_says_so() {
    let server = Server::start("--timeout 1s");
    let mut bw = server.spawn("bw ADDRESS -t 1000 -i 0.1");
    let mut lines = BufReader::new(bw.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    kill_process(Pid::from_child(&bw), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    kill_process(Pid::from_child(&bw), Signal::CONT).unwrap();
    let output = bw.wait_with_output().unwrap();
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("this process was stopped for "), "{said}");
    assert!(said.contains("; until then "), "{said}");
    server.stop();
}

/// A server does not count the time in which it was stopped as silence of its peers.
#[test]
fn a_server_that_was_stopped_itself_keeps_its_sessions() {
    let server = Server::start("--timeout 1s");
    let mut ping = server.spawn("ping ADDRESS -c 300 -i 0.01 --timeout 60s");
    let mut first = [0];
    ping.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    server.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(2500));
    server.signal(Signal::CONT);
    let output = ping.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    assert_eq!(server.stop_and_tell(), "");
}

/// The kernel's TCP accepts the connection, and the process speaks no MPA.
#[test]
fn silent_service_is_reported_as_no_rdma_service() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let output = urnic(&format!("ping {address} --timeout 1s")).output().unwrap();
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("accepts TCP connections") && said.contains("no RDMA service"), "{said}");
}

#[test]
fn failed_write_of_a_report_is_named() {
    let server = Server::start("");
    for options in ["", "--json"] {
        let command = format!("bw {} -n 10 {options}", server.address());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = urnic(&command).stdout(full).output().unwrap();
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("writing to standard output: No space left"), "{said}");
        // A reader that stops early, as `head -1` does, is no error.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = urnic(&command).stdout(Stdio::from(writer)).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        assert_eq!(complaint(&output), "");
    }
    server.stop();
}

/// A limit of the address space refuses sessions; a failed allocation would end the process.
#[test]
fn a_server_with_little_address_space_refuses_and_lives() {
    if let Some(reason) = missing(["sh"]) {
        return skip("a limit of the address space", &reason);
    }
    let mut command = program("sh");
    let limited = "ulimit -v 60000 && exec \"$0\" serve --listen 127.0.0.1:0";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_urnic")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let server = Server::of(command);
    for connections in [1024, 1024] {
        let output = server.client(&format!(
            "bw ADDRESS --connections {connections} --op send --depth 64 --size 8K --seconds 0.1"
        ));
        let said = complaint(&output);
        assert!(said.contains("rejected") && said.contains("--total-size"), "{said}");
    }
    let mut honest = None;
    wait_until("room", || {
        let output = server.client("ping ADDRESS --count 1 --json");
        honest = output.status.success().then(|| json(&output));
        honest.is_some()
    });
    assert!(server.stop_and_tell().contains("ulimit -v"));
}
