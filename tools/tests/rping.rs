//! `urnic rping` with itself, over the kernel's TCP. Stock peers are in the interoperability tests.
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]
#![allow(clippy::unwrap_used, reason = "what cannot be run fails its test")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use urnic_testkit::ports::free_port;

const URNIC: &str = env!("CARGO_BIN_EXE_urnic");

fn client(port: &str, arguments: &[&str]) -> Output {
    // The server may not listen yet.
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let output = Command::new(URNIC)
            .args(["rping", "-c", "-a", "127.0.0.1", "-p", port])
            .args(arguments)
            .output()
            .unwrap();
        let refused = String::from_utf8_lossy(&output.stderr).contains("refused");
        if !refused {
            return output;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the server never listened");
}

#[test]
fn client_and_server_ping_each_other_verified() {
    // The output must fit into a pipe that is not read yet.
    for (size, verbose) in [("23", true), ("64", true), ("4096", true), ("65536", false)] {
        let verbosity: &[&str] = if verbose { &["-v"] } else { &[] };
        let port = free_port().to_string();
        let server = Command::new(URNIC)
            .args(["rping", "-s", "-a", "127.0.0.1", "-p", &port])
            .args(verbosity)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = client(&port, &[&["-C", "5", "-S", size, "-V"], verbosity].concat());
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(said.matches("ping data: rdma-ping-").count(), if verbose { 5 } else { 0 });
        let server = server.wait_with_output().unwrap();
        assert!(server.status.success(), "{server:?}");
        let said = String::from_utf8_lossy(&server.stdout);
        assert_eq!(said.contains("server ping data: rdma-ping-4: "), verbose, "{said}");
    }
}

#[test]
fn a_persistent_server_serves_many_at_once() {
    let port = free_port().to_string();
    let mut server = Command::new(URNIC)
        .args(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", &port])
        .spawn()
        .unwrap();
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..8).map(|_| scope.spawn(|| client(&port, &["-C", "20", "-V"]))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    server.kill().unwrap();
    server.wait().unwrap();
    for output in outputs {
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn refused_connections_and_invalid_options_are_reported() {
    let nobody = Command::new(URNIC)
        .args(["rping", "-c", "-a", "127.0.0.1", "-p", &free_port().to_string(), "-C", "1"])
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("connection refused"));
    for arguments in [&["rping"][..], &["rping", "-s", "-c"], &["rping", "-s", "-S", "22"]] {
        let output = Command::new(URNIC).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
