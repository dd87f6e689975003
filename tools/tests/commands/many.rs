//! Many connections, long times, large numbers: commands at their extremes over the kernel's TCP.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use urnic::{ConnectOptions, Endpoint, EndpointConfig, QpConfig, Rnic, RnicConfig, random_seed};
use urnic_testkit::programs::{missing, program};
use urnic_testkit::skip;

use crate::commands::scene::{Server, complaint, json, urnic, wait_until};

/// Bytes that a thousand connections may use on each side.
const MEMORY_MAX: u64 = 1 << 30;

#[test]
fn a_thousand_connections_are_opened_used_and_closed_at_once() {
    let server = Server::start("");
    let started = Instant::now();
    let command = "bw ADDRESS --connections 1000 --seconds 0.2 --size 4K --json";
    let result = json(&server.client(command));
    assert!(result["bytes"].as_u64().unwrap() > 0);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(server.memory_max() < MEMORY_MAX / 2, "{}", server.memory_max());
    let result = json(&server.client("bw ADDRESS --connections 1024 --seconds 0.1 --json"));
    assert!(result["bytes"].as_u64().unwrap() > 0);
    assert!(server.memory_max() < MEMORY_MAX, "{}", server.memory_max());
    assert_eq!(server.stop_and_tell(), "");
}

/// A shell gives its programs a lower limit of descriptors than they may request.
#[test]
fn more_connections_than_the_first_limit_of_descriptors_are_opened() {
    if let Some(reason) = missing(["sh"]) {
        return skip("more connections than the first limit of descriptors", &reason);
    }
    let server = Server::start("");
    let limited = "ulimit -S -n 100 && exec \"$0\" \"$@\"";
    let bw = ["bw", server.address(), "--connections", "200", "--seconds", "0.05"];
    let output =
        program("sh").args(["-c", limited, env!("CARGO_BIN_EXE_urnic")]).args(bw).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    server.stop();
}

#[test]
fn a_thousand_connections_send_too() {
    let server = Server::start("");
    let command = "bw ADDRESS --op send --connections 1000 --seconds 0.1 --size 4K --json";
    assert!(json(&server.client(command))["bytes"].as_u64().unwrap() > 0);
    assert!(server.memory_max() < MEMORY_MAX, "{}", server.memory_max());
    server.stop();
}

#[test]
fn the_greatest_depth_works_for_every_operation() {
    let server = Server::start("");
    for op in ["write", "read", "send"] {
        let command = format!("bw ADDRESS --op {op} --depth 4096 --size 64 --seconds 0.1 --json");
        assert!(json(&server.client(&command))["bytes"].as_u64().unwrap() > 0, "{op}");
    }
    server.stop();
}

#[test]
fn the_greatest_number_of_iterations_is_begun() {
    let server = Server::start("");
    let mut client = server.spawn("lat ADDRESS --iterations 4294967295");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(client.try_wait().unwrap(), None, "it measures");
    client.kill().unwrap();
    client.wait().unwrap();
    server.stop();
}

#[test]
fn messages_as_long_as_a_peer_may_have_them_come_back() {
    let server = Server::start("--size 4M");
    for command in
        ["ping ADDRESS --count 2 --interval 0 --size 1M", "lat ADDRESS --size 2M --iterations 3"]
    {
        let output = server.client(command);
        assert!(output.status.success(), "{command}: {}", complaint(&output));
    }
    let said = complaint(&server.client("ping ADDRESS --size 2M"));
    assert!(said.contains("3 receive buffers of 2M, which are 6M together"), "{said}");
    assert!(said.contains("a peer gets 4M"), "{said}");
    let said = complaint(&server.client("bw ADDRESS --size 1G"));
    assert!(said.contains("a region of 1G and a peer gets 4M"), "{said}");
    server.stop();
}

#[test]
fn an_interval_longer_than_the_servers_patience_is_bridged() {
    let server = Server::start("--timeout 1s");
    let output = server.client("ping ADDRESS --count 2 --interval 1500ms");
    assert!(output.status.success(), "{}", complaint(&output));
    assert_eq!(server.stop_and_tell(), "");
}

#[test]
fn a_rate_that_leaves_a_session_without_work_for_long_keeps_it_open() {
    let folder = crate::commands::files::Folder::new("slow");
    let server = folder.serve("--timeout 1s");
    let file = folder.own("file");
    // Two pieces: the second may go two seconds after the first.
    fs::write(&file, crate::commands::files::pattern(300 << 10)).unwrap();
    json(&server.client(&format!("put {} ADDRESS --rate 1M --json", file.display())));
    let back = folder.own("back");
    json(&server.client(&format!("get ADDRESS/file {} --rate 1M --json", back.display())));
    assert_eq!(fs::read(back).unwrap(), fs::read(file).unwrap());
    assert_eq!(server.stop_and_tell(), "");
}

/// The session stays open while a slow output takes the data, although all data has arrived.
#[test]
fn a_slow_output_keeps_its_session_open() {
    let folder = crate::commands::files::Folder::new("slow-output");
    let server = folder.serve("--timeout 1s");
    let octets = crate::commands::files::pattern(1 << 20);
    fs::write(folder.served("file"), &octets).unwrap();
    let mut client = server.spawn("get ADDRESS/file -");
    let mut output = client.stdout.take().unwrap();
    let mut first = [0; 1];
    // From here on the client waits for space in the pipe.
    output.read_exact(&mut first).unwrap();
    thread::sleep(Duration::from_millis(2500));
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    assert!(rest[..] == octets[1..]);
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    assert_eq!(server.stop_and_tell(), "");
}

/// RFC 5044 §7.1.2 (10): the server does not wait forever for a peer that connects and does not
/// start MPA.
#[test]
fn silent_connection_is_closed_after_the_timeout_option() {
    let server = Server::start("--timeout 1s");
    let honest = server.spawn("ping ADDRESS --count 30 --interval 50ms");
    let mut silent = TcpStream::connect(server.address()).unwrap();
    let started = Instant::now();
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let ended = silent.read(&mut [0]);
    assert!(
        !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "{ended:?}"
    );
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let output = honest.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    server.stop();
}

#[test]
fn server_for_one_client_ends_with_its_last_connection() {
    for connections in [1, 2, 50] {
        let server = Server::start("--once");
        let command = format!("bw ADDRESS --connections {connections} --seconds 0.1 --json");
        assert!(json(&server.client(&command))["bytes"].as_u64().unwrap() > 0);
        assert_eq!(server.wait(), Some(0), "{connections} connections");
    }
}

#[test]
fn server_for_one_that_refuses_it_ends_with_an_error() {
    let server = Server::start("--once --size 1M");
    let said = complaint(&server.client("ping ADDRESS --size 5M"));
    assert!(said.contains("rejected"), "the reason arrives: {said}");
    assert_eq!(server.wait(), Some(1));
}

#[test]
fn refusals_beyond_a_limit_name_its_option() {
    for (options, part) in [
        ("--peers 3", "--peers"),
        ("--peers-per-address 3", "--peers-per-address"),
        ("--size 1M --total-size 6400K", "--total-size"),
    ] {
        let server = Server::start(options);
        let works = server.client("bw ADDRESS --connections 3 --size 1M --seconds 0.05 --json");
        json(&works);
        wait_until("room", || {
            let output = server.client("bw ADDRESS --connections 3 --size 1M --seconds 0.05");
            output.status.success()
        });
        let said = complaint(&server.client("bw ADDRESS --connections 4 --size 1M --seconds 0.05"));
        assert!(said.contains("rejected") && said.contains(part), "{options}: {said}");
        server.stop();
    }
}

/// Resources of a process, from `/proc`.
#[derive(Debug)]
struct Use {
    descriptors: usize,
    threads: usize,
    /// Bytes of private memory.
    memory: u64,
    /// Processor time so far, in ticks of 10 ms.
    ticks: u64,
}

impl Use {
    fn of(server: &Server) -> Self {
        let process = |name: &str| format!("/proc/{}/{name}", server.pid());
        let stat = fs::read_to_string(process("stat")).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
        let status = fs::read_to_string(process("status")).unwrap();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        Self {
            descriptors: fs::read_dir(process("fd")).unwrap().count(),
            threads: server.threads(),
            memory: anonymous.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10,
            ticks: fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap(),
        }
    }
}

/// A server that runs for months serves very many sessions, most of them one after the other.
#[test]
fn server_is_unchanged_after_twenty_thousand_sessions() {
    const ROUNDS: usize = 20;
    const SESSIONS: usize = 1000;
    let mut command = urnic("serve --listen 127.0.0.1:0");
    // It prints a line for each session that was reset.
    command.stderr(Stdio::null());
    let server = Server::of(command);
    let remote: SocketAddr = server.address().parse().unwrap();
    let rnic = Rnic::new(RnicConfig { seed: random_seed().unwrap() });
    let config = EndpointConfig { own_thread: false, ..EndpointConfig::default() };
    let endpoint = Endpoint::kernel(&rnic, &config).unwrap();
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16).unwrap());
    // A region of 64 bytes, as `tools/src/protocol.rs` defines it.
    let hello = [&b"urnc\0\x03\0"[..], &64_u64.to_be_bytes(), &0_u32.to_be_bytes()].concat();
    let options = ConnectOptions { private_data: hello, ..ConnectOptions::default() };
    let mut seen = vec![Use::of(&server)];
    for _ in 0..ROUNDS {
        for number in 0..SESSIONS {
            let depths = QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(&cq) };
            let qp = pd.create_qp(depths).unwrap();
            let connecting = endpoint.connect(remote, &qp, &options).unwrap();
            // A reset leaves no socket in TIME-WAIT.
            connecting
                .wait(Duration::from_secs(30))
                .unwrap_or_else(|error| panic!("{}: {number}: {error}", seen.len()))
                .abort();
            while cq.poll().is_some() {}
        }
        endpoint.turn(Duration::ZERO).unwrap();
        wait_until("the end of all sessions", || {
            Use::of(&server).descriptors <= seen[0].descriptors
        });
        seen.push(Use::of(&server));
    }
    let (first, second, last) = (&seen[0], &seen[1], &seen[ROUNDS]);
    assert_eq!((last.descriptors, last.threads), (first.descriptors, first.threads), "{seen:?}");
    assert!(last.memory < second.memory + (4 << 20), "{seen:?}");
    let ticks = |round: usize| seen[round + 1].ticks - seen[round].ticks;
    let (early, late) = (ticks(1) + ticks(2) + ticks(3), ticks(17) + ticks(18) + ticks(19));
    assert!(late <= 2 * early + 30, "processor time {early}, then {late}: {seen:?}");
    server.kill();
}
