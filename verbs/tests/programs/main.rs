//! Programs of rdma-core, as the distribution ships them, on this library over the loopback
//! interface.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

mod cm;
mod compiled;
mod devices;
mod ending;
mod matrix;
mod robust;
mod rsockets;
mod ucx;

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use urnic_testkit::ports::free_port;
use urnic_testkit::programs;

const LIMIT: Duration = Duration::from_secs(60);

/// A folder in which the library has the names that programs look for.
struct Libraries(TempDir);

impl Libraries {
    fn new() -> Self {
        let test = std::env::current_exe().unwrap();
        let library = test.parent().unwrap().join("liburnic_rdma.so");
        let folder = TempDir::new().unwrap();
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            symlink(&library, folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// Starts a program on the library. Its output goes to a file.
    fn start(&self, line: &str, iwarp: bool) -> Program {
        self.start_with(line, iwarp, &[])
    }

    fn start_with(&self, line: &str, iwarp: bool, variables: &[(&str, &str)]) -> Program {
        let personality = if iwarp { "iwarp" } else { "ib" };
        let variables = [variables, &[("URNIC_PERSONALITY", personality)]].concat();
        self.start_fed(line, &variables, Stdio::null())
    }

    /// Starts a program with this input.
    fn start_fed(&self, line: &str, variables: &[(&str, &str)], input: Stdio) -> Program {
        let mut words = line.split_whitespace();
        let log = self.0.path().join(format!("log-{:?}", Instant::now()));
        let output = fs::File::create(&log).unwrap();
        let child = programs::program(words.next().unwrap())
            .args(words)
            .env("LD_LIBRARY_PATH", self.0.path())
            .envs(variables.iter().copied())
            .stdin(input)
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .spawn()
            .unwrap();
        Program { child, log, line: line.to_owned() }
    }

    fn run(&self, line: &str, iwarp: bool) -> String {
        self.start(line, iwarp).finish()
    }

    /// Does the same as [`run`](Self::run), with a longer limit.
    fn run_for(&self, line: &str, limit: Duration) -> String {
        let mut program = self.start(line, false);
        let is_well = program.ends_within(limit);
        assert!(is_well, "{line} ends with an error: {}", program.said());
        program.said()
    }
}

struct Program {
    child: Child,
    log: PathBuf,
    line: String,
}

impl Program {
    fn said(&self) -> String {
        let mut said = Vec::new();
        fs::File::open(&self.log).unwrap().read_to_end(&mut said).unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Waits for its end. Returns true if it exited with success.
    fn ends(&mut self) -> bool {
        self.ends_within(LIMIT)
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(began.elapsed() < limit, "{} does not end: {}", self.line, self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, which must be a success. Returns its output.
    fn finish(mut self) -> String {
        let is_well = self.ends();
        assert!(is_well, "{} ends with an error: {}", self.line, self.said());
        self.said()
    }

    /// Does the same as [`finish`](Self::finish), for one that may wait for the end of its input.
    fn finish_fed(mut self) -> String {
        drop(self.child.stdin.take());
        self.finish()
    }

    /// Waits until `holds` returns true, which must happen before the program ends. `what`
    /// describes it for the panic message.
    fn goes_on_until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} ends with {ended:?}: {}", self.line, self.said());
            assert!(began.elapsed() < LIMIT, "{} never {what}: {}", self.line, self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it prints such a line.
    fn says(mut self, is_it: impl Fn(&str) -> bool) -> Self {
        self.goes_on_until("says it", |program| program.said().lines().any(&is_it));
        self
    }

    /// Waits until something listens at the port.
    fn listens(mut self, port: u16) -> Self {
        let listener = format!(":{port:04X} ");
        // State 0A is LISTEN; a host without IPv6 has no second table.
        let is_listener = |line: &str| line.contains(&listener) && line.contains(":0000 0A ");
        let listens = || {
            ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
                fs::read_to_string(table).is_ok_and(|text| text.lines().any(is_listener))
            })
        };
        self.goes_on_until("listens", |_| listens());
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended, or is killed here.
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            urnic_testkit::show(&format!("{} wrote: {}\n", self.line, self.said()));
        }
    }
}

/// Returns true if the programs are installed. Skips the test by name if not.
fn has(test: &str, needs: &[&str]) -> bool {
    let missing = programs::missing(needs.iter().copied());
    if let Some(reason) = &missing {
        urnic_testkit::skip(test, reason);
    }
    missing.is_none()
}

#[test]
fn devices_are_listed_and_described() {
    if !has("devices_are_listed_and_described", &["ibv_devices", "ibv_devinfo"]) {
        return;
    }
    let libraries = Libraries::new();
    let listed = libraries.run("ibv_devices", false);
    assert!(listed.contains("urnic0"), "{listed}");
    for (iwarp, transport) in [(false, "InfiniBand (0)"), (true, "iWARP (1)")] {
        let described = libraries.run("ibv_devinfo -v", iwarp);
        assert!(described.contains("PORT_ACTIVE"), "{described}");
        assert!(described.contains(transport), "{described}");
        assert!(described.contains("GID[  0]"), "{described}");
    }
}

#[test]
fn rping_pings() {
    if !has("rping_pings", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    for (iwarp, options) in [(false, "-C 100 -vV"), (true, "-C 100 -vV -S 65535")] {
        let port = free_port();
        let server = libraries.start(&format!("rping -s -a 127.0.0.1 -p {port} {options}"), iwarp);
        let server = server.listens(port);
        let client = libraries.run(&format!("rping -c -a 127.0.0.1 -p {port} {options}"), iwarp);
        assert!(client.contains("rdma-ping-99"), "{client}");
        let server = server.finish();
        assert!(server.contains("rdma-ping-99"), "{server}");
    }
}

#[test]
fn client_without_a_server_gets_a_rejection() {
    if !has("client_without_a_server_gets_a_rejection", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    let mut client = libraries.start(&format!("rping -c -a 127.0.0.1 -p {}", free_port()), false);
    let status = client.child.wait().unwrap();
    assert!(
        !status.success() && client.said().contains("RDMA_CM_EVENT_REJECTED"),
        "{}",
        client.said()
    );
}

#[test]
fn endpoints_without_channels_exchange_a_message() {
    if !has("endpoints_without_channels_exchange_a_message", &["rdma_server", "rdma_client"]) {
        return;
    }
    let libraries = Libraries::new();
    let port = free_port();
    let server = libraries.start(&format!("rdma_server -p {port}"), false).listens(port);
    let client = libraries.run(&format!("rdma_client -s 127.0.0.1 -p {port}"), false);
    assert!(client.contains("end 0"), "{client}");
    let server = server.finish();
    assert!(server.contains("end 0"), "{server}");
}

#[test]
fn ten_connections_transfer_and_migrate() {
    if !has("ten_connections_transfer_and_migrate", &["ucmatose"]) {
        return;
    }
    let libraries = Libraries::new();
    for options in ["-c 10 -C 100", "-c 10 -C 100 -m"] {
        let port = free_port();
        let server = libraries.start(&format!("ucmatose -b 127.0.0.1 -p {port} {options}"), false);
        let server = server.listens(port);
        let client = libraries.run(&format!("ucmatose -s 127.0.0.1 -p {port} {options}"), false);
        assert!(client.contains("return status 0"), "{client}");
        let server = server.finish();
        assert!(server.contains("return status 0"), "{server}");
    }
}

/// Shared receive queues, and messages that arrive before their receives, in a C program.
#[test]
fn connections_share_receives() {
    // It waits for the completion of a Send before the peer posts a receive.
    compiled::run("connections_share_receives", "shared_receives", &[("URNIC_ACK", "local")]);
}

/// `URNIC_FAIL`: programs meet the requested faults, and end as their authors intended.
#[test]
fn configured_faults_are_injected() {
    if !has("configured_faults_are_injected", &["rping", "ibv_rc_pingpong"]) {
        return;
    }
    let libraries = Libraries::new();
    for (fault, line, said) in [
        ("create_cq:1", "ibv_rc_pingpong", "Couldn't create CQ"),
        ("reg_mr:1:EPERM", "ibv_rc_pingpong", "Couldn't register MR"),
        ("create_qp:1", "ibv_rc_pingpong", "Couldn't create QP"),
        ("modify_qp:1", "ibv_rc_pingpong", "Failed to modify QP to INIT"),
        ("post_recv:1", "ibv_rc_pingpong", "Couldn't post receive"),
        ("connect:1:reject", "rping -c -a 127.0.0.1 -p 9", "RDMA_CM_EVENT_REJECTED"),
        ("resolve_addr:1", "rping -c -a 127.0.0.1 -p 9", "rdma_resolve_addr"),
        ("nothing:1", "ibv_rc_pingpong -g 99", "no call is named \"nothing\""),
    ] {
        let mut program = libraries.start_with(line, false, &[("URNIC_FAIL", fault)]);
        let status = program.child.wait().unwrap();
        let told = program.said();
        assert!(!status.success() && told.contains(said), "{fault}: {told}");
    }
}

/// Killed clients do no harm to a server: the 21st client is served like the first.
#[test]
fn a_server_outlives_clients_that_are_killed() {
    if !has("a_server_outlives_clients_that_are_killed", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    let port = free_port();
    let server =
        libraries.start(&format!("rping -s -P -a 127.0.0.1 -p {port}"), false).listens(port);
    for pause in 0..20 {
        let line = format!("rping -c -a 127.0.0.1 -p {port} -C 100000");
        let mut client = libraries.start(&line, false);
        thread::sleep(Duration::from_millis(3 * pause));
        client.child.kill().unwrap();
        client.child.wait().unwrap();
        // This program mistakes the second of two simultaneous Requests for both.
        server.holdings_at_rest();
    }
    libraries.run(&format!("rping -c -a 127.0.0.1 -p {port} -C 10 -V"), false);
    drop::<Program>(server);
}

/// `urnic top` shows programs whose environment asks for it. If that is impossible, they go on.
#[test]
fn a_program_is_shown_if_its_environment_asks() {
    if !has("a_program_is_shown_if_its_environment_asks", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    let runtime = TempDir::new().unwrap();
    let place = runtime.path().to_str().unwrap();
    for (asked, is_shown) in [("1", true), ("0", false), ("", false)] {
        let port = free_port();
        let variables =
            [("URNIC_PERSONALITY", "ib"), ("XDG_RUNTIME_DIR", place), ("URNIC_TOP", asked)];
        let line = format!("rping -s -a 127.0.0.1 -p {port} -C 10");
        let server = libraries.start_fed(&line, &variables, Stdio::null()).listens(port);
        let socket = runtime.path().join("urnic").join(server.child.id().to_string());
        let answer = UnixStream::connect(&socket).map(|mut stream| {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        assert_eq!(answer.is_ok(), is_shown, "{asked:?}");
        if let Ok(text) = answer {
            assert!(text.contains("\"connections_open\":0,") && text.ends_with('\n'), "{text}");
        }
        libraries.run(&format!("rping -c -a 127.0.0.1 -p {port} -C 10"), false);
        server.finish();
    }
    let none = runtime.path().join("none");
    let variables = [("XDG_RUNTIME_DIR", none.to_str().unwrap()), ("URNIC_TOP", "1")];
    let port = free_port();
    let line = format!("rping -s -a 127.0.0.1 -p {port} -C 10");
    let server = libraries.start_fed(&line, &variables, Stdio::null()).listens(port);
    libraries.run(&format!("rping -c -a 127.0.0.1 -p {port} -C 10"), false);
    let said = server.finish();
    assert!(said.contains("URNIC_TOP: showing the endpoint in "), "{said}");
}
