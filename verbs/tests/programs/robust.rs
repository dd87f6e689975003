//! Killed and hostile peers must not harm programs, and valgrind must find no error in the library.
//!
//! `URNIC_KILLS=100 cargo test -p urnic-verbs --test programs killed ` kills a hundred clients; the
//! default is [`KILLS`].

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use urnic_testkit::octets::{
    CRC, ENHANCED, READ_RESPONSE, REPLY_KEY, REQUEST_KEY, SEND, TERMINATE, WRITE, atomic_request,
    fpdu, fpdu_with_length, read_request, send, startup, tagged, untagged,
};

use super::{LIMIT, Libraries, Program, compiled, free_port, has};

/// Number of killed clients, unless `URNIC_KILLS` sets another one.
const KILLS: u64 = 20;
/// Time limit for thousands of connections.
const LONG: Duration = Duration::from_secs(600);
/// Growth of a server's resident memory that is allowed, in KiB: allocators keep some.
const RESIDENT_MORE_MAX: u64 = 4096;

/// Resources of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holdings {
    descriptors: usize,
    threads: usize,
}

impl Program {
    fn folder(&self, name: &str) -> usize {
        let path = format!("/proc/{}/{name}", self.child.id());
        fs::read_dir(path).unwrap().count()
    }

    fn holdings(&self) -> Holdings {
        Holdings { descriptors: self.folder("fd"), threads: self.folder("task") }
    }

    /// Returns true if all its threads sleep.
    fn sleeps(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // Behind the name, which may contain any character.
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
        })
    }

    /// Returns its resources when it waits for a peer. A program that reports serving or listening
    /// may not yet have made the objects at which it sleeps.
    pub(super) fn holdings_at_rest(&self) -> Holdings {
        let began = Instant::now();
        let look = || {
            thread::sleep(Duration::from_millis(20));
            self.sleeps().then(|| self.holdings())
        };
        loop {
            if let Some(holdings) = look()
                && look().as_ref() == Some(&holdings)
            {
                return holdings;
            }
            assert!(began.elapsed() < LIMIT, "{} does not rest: {}", self.line, self.said());
        }
    }

    fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until it has exactly the resources that it had before.
    pub(super) fn is_back_at(&self, before: &Holdings) {
        let began = Instant::now();
        while self.holdings() != *before {
            let now = self.holdings();
            assert!(began.elapsed() < LIMIT, "{now:?}, and {before:?} before: {}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts an `rping` that serves one client after the other. Returns it with its port.
fn persistent(libraries: &Libraries) -> (Program, u16) {
    let port = free_port();
    let line = format!("rping -s -P -a 127.0.0.1 -p {port}");
    (libraries.start(&line, false).listens(port), port)
}

/// Clients are killed at any point. The next client is served like the first, and the server keeps
/// no resources of them.
#[test]
fn server_is_unchanged_after_killed_clients() {
    if !has("server_is_unchanged_after_killed_clients", &["rping"]) {
        return;
    }
    let kills = std::env::var("URNIC_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let libraries = Libraries::new();
    let (server, port) = persistent(&libraries);
    let client = |count: u32| format!("rping -c -a 127.0.0.1 -p {port} -C {count}");
    let before = {
        // Threads and buffers that stay exist after the first few clients.
        let idle = server.holdings_at_rest();
        for _ in 0..3 {
            libraries.run(&client(10), false);
        }
        (idle, server.resident_kib())
    };
    for turn in 0..kills {
        let mut client = libraries.start(&client(100_000), false);
        // From before it has connected until the middle of its transfers.
        thread::sleep(Duration::from_millis(turn * 37 % 60));
        client.child.kill().unwrap();
        client.child.wait().unwrap();
        // This program mistakes the second of two simultaneous Requests for both.
        server.holdings_at_rest();
    }
    libraries.run(&client(10), false);
    server.is_back_at(&before.0);
    let (resident, was) = (server.resident_kib(), before.1);
    assert!(resident < was + RESIDENT_MORE_MAX, "{resident} KiB, and {was} before");
}

/// Messages of a raw peer after RDMA has started.
fn hostile_streams() -> Vec<(&'static str, Vec<u8>)> {
    let sent = |ulpdu: &[u8]| fpdu(ulpdu, 0, false);
    let mut wrong_crc = sent(&send(1, b"octets"));
    *wrong_crc.last_mut().unwrap() ^= 1;
    let mut wrong_version = send(1, b"octets");
    wrong_version[0] ^= 2;
    vec![
        ("nothing, and goes", Vec::new()),
        ("octets that are nothing", vec![0xa5; 3000]),
        ("a wrong CRC", wrong_crc),
        ("a length of nothing", fpdu_with_length([0, 0], &[0; 2], 0, false)),
        ("a length beyond all segments", fpdu_with_length([0xff, 0xff], &[0x41; 4000], 0, false)),
        ("half an FPDU", sent(&send(1, &[7; 900]))[..300].to_vec()),
        ("a wrong DDP version", sent(&wrong_version)),
        ("no such queue", sent(&untagged(SEND, 9, 1, 0, b"octets"))),
        ("a message number that is not next", sent(&send(7, b"octets"))),
        ("an offset beyond the message", sent(&untagged(SEND, 0, 1, 1 << 30, b"octets"))),
        ("a Send that is too long", sent(&send(1, &[7; 1400]))),
        ("a Write to a tag that is none", sent(&tagged(WRITE, 0xdead_beef, 0, b"octets"))),
        ("a Read Response that was not asked for", sent(&tagged(READ_RESPONSE, 1, 0, b"octets"))),
        ("a Read of a tag that is none", sent(&read_request(1, (1, 0), 64, (0xdead_beef, 0)))),
        ("a Read of four gigabytes", sent(&read_request(1, (1, 0), u32::MAX, (1, 0)))),
        ("an Atomic on a tag that is none", sent(&atomic_request(1, 0, (0xdead_beef, 1), [1; 4]))),
        ("a Terminate", sent(&untagged(TERMINATE, 2, 1, 0, &[0x02, 0x01, 0, 0]))),
        ("an opcode that is none", sent(&untagged([0x41, 0x4f], 0, 1, 0, b"octets"))),
    ]
}

/// Messages of a raw peer instead of a startup frame.
fn hostile_startups(key: [u8; 16]) -> Vec<(&'static str, Vec<u8>)> {
    let mut longer = startup(key, CRC, 1, &[]);
    longer[18..20].copy_from_slice(&[0xff, 0xff]);
    vec![
        ("octets that are no frame", vec![0x5a; 600]),
        ("half a frame", startup(key, CRC, 1, b"octets")[..11].to_vec()),
        ("too much private data", longer),
        ("an unknown revision", startup(key, CRC, 9, &[])),
        ("enhanced without its word", startup(key, CRC | ENHANCED, 2, &[])),
        (
            "the other frame's key",
            startup(if key == REPLY_KEY { REQUEST_KEY } else { REPLY_KEY }, CRC, 1, &[]),
        ),
    ]
}

/// Reads and discards data until the peer closes, or until the time is over.
pub(super) fn drain(stream: &mut TcpStream, time: Duration) {
    stream.set_read_timeout(Some(time)).unwrap();
    let mut octets = [0; 4096];
    while stream.read(&mut octets).is_ok_and(|len| len > 0) {}
}

#[test]
fn a_server_outlives_hostile_clients() {
    if !has("a_server_outlives_hostile_clients", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    let (mut server, port) = persistent(&libraries);
    let idle = server.holdings_at_rest();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    for (_, octets) in hostile_startups(REQUEST_KEY) {
        let mut stream = connect();
        stream.write_all(&octets).unwrap();
        drain(&mut stream, Duration::from_millis(50));
    }
    for (what, octets) in hostile_streams() {
        let mut stream = connect();
        stream.write_all(&startup(REQUEST_KEY, CRC, 1, &[])).unwrap();
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..16], REPLY_KEY, "{what}");
        stream.write_all(&octets).unwrap();
        drain(&mut stream, Duration::from_millis(50));
        drop(stream);
        assert_eq!(server.child.try_wait().unwrap(), None, "{what}: {}", server.said());
    }
    libraries.run(&format!("rping -c -a 127.0.0.1 -p {port} -C 10 -V"), false);
    server.is_back_at(&idle);
}

/// A server's thread for a client that left before it was accepted notices by its completions: the
/// receives are flushed.
#[test]
fn a_server_has_nothing_left_of_clients_that_ask_and_go() {
    if !has("a_server_has_nothing_left_of_clients_that_ask_and_go", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    let (mut server, port) = persistent(&libraries);
    let idle = server.holdings_at_rest();
    for clients in 1..=20 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(&startup(REQUEST_KEY, CRC, 1, &[])).unwrap();
        drop(stream);
        // This program mistakes the second of two simultaneous Requests for both. It prints this
        // once for each client that it has accepted.
        let gone = |said: &str| said.matches("server DISCONNECT EVENT...").count();
        server.goes_on_until("tells of its end", |server| gone(&server.said()) >= clients);
    }
    libraries.run(&format!("rping -c -a 127.0.0.1 -p {port} -C 10 -V"), false);
    server.is_back_at(&idle);
    assert_eq!(server.child.try_wait().unwrap(), None, "{}", server.said());
}

#[test]
fn a_client_of_a_hostile_server_ends_with_an_error() {
    if !has("a_client_of_a_hostile_server_ends_with_an_error", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    let started: Vec<_> = hostile_streams()
        .into_iter()
        .map(|(what, octets)| (what, [startup(REPLY_KEY, CRC, 1, &[]), octets].concat()))
        .chain(hostile_startups(REPLY_KEY))
        .map(|(what, octets)| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let line = format!("rping -c -a 127.0.0.1 -p {port} -C 10");
            let mut client = libraries.start(&line, false);
            // A client may repeat a failed startup with fewer features.
            listener.set_nonblocking(true).unwrap();
            let began = Instant::now();
            let status = loop {
                if let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nonblocking(false).unwrap();
                    drain_request(&mut stream);
                    let _closed_already = stream.write_all(&octets);
                    drain(&mut stream, Duration::from_millis(50));
                }
                if let Some(status) = client.child.try_wait().unwrap() {
                    break status;
                }
                assert!(began.elapsed() < LIMIT, "{what}: {}", client.said());
                thread::sleep(Duration::from_millis(2));
            };
            // It noticed the error, and has ended by itself.
            assert!(
                !status.success() && status.code().is_some(),
                "{what}: {status}, {}",
                client.said()
            );
            what
        })
        .collect();
    assert_eq!(started.len(), 24);
}

/// Reads the Request.
fn drain_request(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut octets = [0; 512];
    let _closed_already = stream.read(&mut octets);
}

/// The library makes no memory errors.
#[test]
fn valgrind_finds_nothing() {
    if urnic_testkit::is_too_long("valgrind_finds_nothing") {
        return;
    }
    if !has("valgrind_finds_nothing", &["valgrind", "ibv_rc_pingpong", "rping", "ucmatose"]) {
        return;
    }
    let libraries = Libraries::new();
    let suppressions = libraries.0.path().join("suppressions");
    fs::write(&suppressions, octets_of_programs()).unwrap();
    for (server, client) in [
        (
            "ibv_rc_pingpong -p PORT -g 0 -n 20 -e",
            "ibv_rc_pingpong -p PORT -g 0 -n 20 -e 127.0.0.1",
        ),
        ("rping -s -a 127.0.0.1 -p PORT -C 5", "rping -c -a 127.0.0.1 -p PORT -C 5"),
        ("ucmatose -b 127.0.0.1 -p PORT -c 3 -C 5", "ucmatose -s 127.0.0.1 -p PORT -c 3 -C 5"),
    ] {
        let port = free_port();
        let fill = |line: &str| {
            let line = line.replace("PORT", &port.to_string());
            let file = suppressions.display();
            format!("valgrind -q --error-exitcode=97 --num-callers=40 --suppressions={file} {line}")
        };
        let server = libraries.start(&fill(server), false).listens(port);
        let mut client = libraries.start(&fill(client), false);
        let mut server = server;
        let ended = [client.ends(), server.ends()];
        assert_eq!(ended, [true; 2], "{}\n{}", client.said(), server.said());
    }
}

/// Suppressions for uninitialized memory that programs send, and for the CRCs over it. Any other
/// uninitialized memory is an error of the library.
fn octets_of_programs() -> String {
    let of_fragment = |fragment: usize| {
        format!(
            "{{\n octets\n Memcheck:Param\n sendmsg(msg.msg_iov[{fragment}])\n ...\n \
             fun:*send_fragments*\n}}\n"
        )
    };
    (0..64).map(of_fragment).collect()
}

/// Runs one listener that accepts thousands of connections in sequence; `URNIC_CONNECTIONS=20000`
/// for many more.
fn serves_one_by_one(test: &str, by: &str) {
    const CONNECTIONS: &str = "3000";
    let libraries = Libraries::new();
    let Some(program) = compiled::compile_cm(test, &libraries, "one_by_one") else { return };
    let count = std::env::var("URNIC_CONNECTIONS").unwrap_or_else(|_| CONNECTIONS.to_owned());
    let line = format!("{} {by} {} {count}", program.display(), free_port());
    let said = libraries.run_for(&line, LONG);
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn many_connections_to_an_rsocket_have_constant_cost() {
    if urnic_testkit::is_too_long("many_connections_to_an_rsocket_have_constant_cost") {
        return;
    }
    serves_one_by_one("many_connections_to_an_rsocket_have_constant_cost", "rsocket");
}

#[test]
fn many_connections_to_an_id_have_constant_cost() {
    if urnic_testkit::is_too_long("many_connections_to_an_id_have_constant_cost") {
        return;
    }
    serves_one_by_one("many_connections_to_an_id_have_constant_cost", "id");
}
