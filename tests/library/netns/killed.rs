//! Processes that are killed, and links that go down, under endpoints on TAPs.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use urnic::{
    Access, ConnectOptions, ConnectionEvent, Endpoint, EndpointConfig, EndpointEvent, ListenParams,
    Offer, RemoteBuffer, SendWr, WcStatus, WrId,
};
use urnic_engine::time::Duration;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::pair::{A, B, all_access};

use crate::netns::scene::Clock;
use crate::netns::stations::{PATIENCE, Station, give_kernel};
use urnic_testkit::network::{bridge, ip, tap};

/// Environment variable that makes a child serve until it is killed.
const SERVER: &str = "URNIC_SERVER";
/// User timeout of the survivor's connections.
const USER_TIMEOUT: Duration = Duration::from_secs(2);
const LEN: usize = 4 << 20;

/// A process that serves one connection with memory for Writes and Reads.
struct Server {
    process: Child,
}

impl Server {
    /// Runs `test` again, as the server, and waits until it listens.
    fn start(test: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SERVER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = process.stdout.as_mut().unwrap();
        let mut told = String::new();
        while !told.contains("listening") {
            let mut octet = [0];
            assert_eq!(output.read(&mut octet).unwrap(), 1, "it ended early: {told}");
            told.push(char::from(octet[0]));
        }
        Self { process }
    }

    /// Kills the process by SIGKILL.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed test leaves no process either.
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

/// Serves one connection, whose Private Data names the memory.
fn serve_until_killed() -> ! {
    let station = Station::engine(A, tap("tap-a", 1500, true));
    let listener = station.endpoint.listen(station.at(false), ListenParams::default()).unwrap();
    std::fs::write("/dev/fd/1", "listening\n").unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("the peer asks");
    let memory = station.end.pd.reg_mr(LEN, all_access()).unwrap();
    let stag = memory.remote(0).stag.0.to_be_bytes();
    let offer = Offer { private_data: &stag, ird: 8, ord: 8 };
    let connection = request.accept(&station.end.qp, &offer).unwrap();
    let _connection = connection.wait(PATIENCE).unwrap();
    // Both directions are busy when the process is killed.
    loop {
        std::thread::park();
    }
}

/// Keeps Writes and Reads of the survivor in flight, or Reads alone, and kills the server in their
/// midst.
fn survives_a_kill(survivor: &Station, writes: bool, test: &str) {
    let server = Server::start(test);
    bridge_to_server();
    let end = &survivor.end;
    let remote = (A, urnic_testkit::pair::TCP_PORT).into();
    let options = ConnectOptions::default();
    let connecting = survivor.endpoint.connect(remote, &end.qp, &options).unwrap();
    let connection = connecting.wait(PATIENCE).unwrap();
    let stag = connection.terms().private_data[..].try_into().map(u32::from_be_bytes).unwrap();
    let memory = RemoteBuffer {
        stag: urnic_engine::types::Stag(stag),
        to: urnic_engine::types::TaggedOffset(0),
    };
    let source = end.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let copy = end.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    for id in 0..100 {
        if writes {
            end.qp.post_send(SendWr::write(WrId(id), memory, [source.sge(0..LEN)])).unwrap();
        }
        end.qp.post_send(SendWr::read(WrId(id), memory, copy.sge(0..LEN))).unwrap();
    }
    for _ in 0..10 {
        let wc = survivor.endpoint.wait(&end.cq, PATIENCE).unwrap().expect("the transfer runs");
        assert_eq!(wc.status, WcStatus::Success);
    }
    server.kill();
    let clock = Clock::start();
    let mut failed = 0;
    for _ in 10..if writes { 200 } else { 100 } {
        let wc = survivor.endpoint.wait(&end.cq, PATIENCE).unwrap().expect("each is reported");
        failed += u32::from(wc.status != WcStatus::Success);
    }
    assert!(failed > 0, "they were under way");
    loop {
        match connection.next_event(PATIENCE).unwrap().expect("it ends") {
            ConnectionEvent::Closed(_) => break,
            ConnectionEvent::PeerClosed => panic!("a killed process says nothing"),
            _earlier => {}
        }
    }
    let took = clock.now().as_nanos();
    let limit = u64::try_from(USER_TIMEOUT.as_nanos()).unwrap() * 5 / 2;
    assert!(took < limit, "told after {took} ns");
    assert!(!ip("link").contains("tap-a"), "no interface is left");
}

/// Runs `test` with an engine as the survivor. In the process that it starts, `test` runs as the
/// server.
fn an_engine_survives(writes: bool, test: &str) {
    if std::env::var_os(SERVER).is_some() {
        serve_until_killed();
    }
    let survivor = Station::engine_with(B, tap("tap-b", 1500, true), USER_TIMEOUT);
    bridge("bridge0", &["tap-b"]);
    survives_a_kill(&survivor, writes, test);
}

/// Does the same with the kernel's TCP. It gives up after the endpoint's user timeout, not after
/// its own, which is long.
fn the_kernels_tcp_survives(writes: bool, test: &str) {
    if std::env::var_os(SERVER).is_some() {
        serve_until_killed();
    }
    bridge("bridge0", &[]);
    give_kernel(B, "bridge0");
    survives_a_kill(&Station::kernel_with(B, USER_TIMEOUT), writes, test);
}

fn bridge_to_server() {
    ip("link set tap-a master bridge0");
}

/// Waits for the interface's next event. Returns the waiting time in nanoseconds.
fn expect_event(endpoint: &Endpoint, expected: &EndpointEvent) -> u64 {
    let clock = Clock::start();
    let event = endpoint.next_event(PATIENCE).unwrap();
    assert_eq!(event.as_ref(), Some(expected));
    clock.now().as_nanos()
}

netns_tests! {
    with ["/dev/net/tun"];

    fn an_engine_survives_a_peer_that_is_killed_amid_a_transfer() {
        an_engine_survives(
            true,
            "netns::killed::an_engine_survives_a_peer_that_is_killed_amid_a_transfer",
        );
    }

    fn an_engine_survives_a_peer_that_is_killed_that_owes_responses() {
        an_engine_survives(
            false,
            "netns::killed::an_engine_survives_a_peer_that_is_killed_that_owes_responses",
        );
    }

    fn the_kernels_tcp_survives_a_peer_that_is_killed_amid_a_transfer() {
        the_kernels_tcp_survives(
            true,
            "netns::killed::the_kernels_tcp_survives_a_peer_that_is_killed_amid_a_transfer",
        );
    }

    fn the_kernels_tcp_survives_a_peer_that_is_killed_that_owes_responses() {
        the_kernels_tcp_survives(
            false,
            "netns::killed::the_kernels_tcp_survives_a_peer_that_is_killed_that_owes_responses",
        );
    }

    /// The worker of an idle endpoint that sleeps still checks the link, but nothing else.
    fn a_link_that_goes_down_while_idle_is_noticed() {
        for own_thread in [true, false] {
            let end = urnic_testkit::pair::End::new(1);
            let device = tap("tap-a", 1500, true);
            let config = crate::netns::stations::identity(B, PATIENCE);
            let settings = EndpointConfig { own_thread, ..EndpointConfig::default() };
            let endpoint = Endpoint::on_device(&end.rnic, device, config, &settings).unwrap();
            assert_eq!(endpoint.next_event(Duration::from_millis(300)).unwrap(), None, "idle");
            // A busy machine may delay one event, not all.
            let mut fastest = [u64::MAX; 2];
            for _ in 0..5 {
                ip("link set tap-a down");
                fastest[0] = fastest[0].min(expect_event(&endpoint, &EndpointEvent::LinkDown));
                ip("link set tap-a up");
                fastest[1] = fastest[1].min(expect_event(&endpoint, &EndpointEvent::LinkUp));
            }
            assert!(fastest.iter().all(|took| *took < 200_000_000), "noticed after {fastest:?} ns");
        }
    }
}
