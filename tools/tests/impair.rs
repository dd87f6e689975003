//! `urnic impair` between two kernels: TAPs in network namespaces that the tests make.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{Namespace, await_up, ip};
use urnic_testkit::programs::program;

const PATIENCE: Duration = Duration::from_secs(20);
/// Echo requests of one `ping`.
const PINGS: u64 = 20;

/// Two namespaces, this one and another, with only the command between them.
struct Path {
    command: Child,
    far: Namespace,
}

impl Path {
    fn start(options: &str) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["impair", "tap-a", "tap-b", "--json", "--duration", "60s"])
            .args(options.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let far = Namespace::new();
        await_up(&["tap-a", "tap-b"]);
        ip(&format!("link set tap-b netns {}", far.id()));
        join("tap-a", 1, 2);
        far.run(|| join("tap-b", 2, 1));
        Self { command, far }
    }

    /// Sends SIGTERM; the command must end with success, and remove its interfaces. Returns its
    /// output.
    fn stop(mut self) -> Value {
        kill_process(Pid::from_child(&self.command), Signal::TERM).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while self.command.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the command does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.command.wait().unwrap();
        let told = std::io::read_to_string(self.command.stdout.take().unwrap()).unwrap();
        let complaint = std::io::read_to_string(self.command.stderr.take().unwrap()).unwrap();
        assert_eq!((status.code(), complaint.as_str()), (Some(0), ""));
        assert!(!ip("link show").contains("tap-"), "{}", ip("link show"));
        serde_json::from_str(&told).unwrap()
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // It has ended already if the test went well.
        let _ended = self.command.kill();
        let _reaped = self.command.wait();
    }
}

/// Gives an interface its address, and a static ARP entry for its peer, so that no ARP request is
/// sent: all frames are echoes. Ethernet addresses are derived from IP addresses.
fn join(interface: &str, own: u8, peer: u8) {
    ip(&format!("link set {interface} address 02:00:00:00:00:0{own}"));
    ip(&format!("addr add 10.0.0.{own}/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
    ip(&format!("neigh add 10.0.0.{peer} lladdr 02:00:00:00:00:0{peer} dev {interface}"));
}

/// Pings the other kernel through the command; returns the number of answers, and the shortest
/// round trip in milliseconds. `wait` are options of `ping` for its end.
fn ping(wait: [&str; 2]) -> (u64, Option<f64>) {
    let count = PINGS.to_string();
    let output = program("ping")
        .args(["-n", "-q", "-c", &count, "-i", "0.02"])
        .args(wait)
        .arg("10.0.0.2")
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let summary = told.lines().find(|line| line.contains("packets transmitted")).unwrap();
    let answers = summary.split(", ").find_map(|part| part.strip_suffix(" received")).unwrap();
    let shortest = told.lines().find_map(|line| {
        let (_, times) = line.strip_prefix("rtt ")?.split_once(" = ")?;
        times.split('/').next()?.parse().ok()
    });
    (answers.parse().unwrap(), shortest)
}

/// Bytes of one transfer, in each direction.
const TRANSFER_LEN: usize = 4 << 20;

/// Returns bytes that differ from every shifted copy of themselves.
fn pattern(side: u32) -> Vec<u8> {
    let words = 0..u32::try_from(TRANSFER_LEN / 4).unwrap();
    words.flat_map(|word| (word.wrapping_mul(0x9e37_79b1) ^ side).to_be_bytes()).collect()
}

/// Sends a pattern and receives the other side's, at the same time.
fn exchange(stream: &TcpStream, side: u32) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(&pattern(side)).unwrap());
        let mut received = vec![0; TRANSFER_LEN];
        (&*stream).read_exact(&mut received).unwrap();
        assert!(received == pattern(1 - side), "what arrived is what was sent");
    });
}

/// Sends a few megabytes by TCP from each kernel to the other.
fn transfer(path: &Path) {
    let listener = path.far.run(|| TcpListener::bind(("10.0.0.2", 7000)).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&listener.accept().unwrap().0, 1));
        exchange(&TcpStream::connect(("10.0.0.2", 7000)).unwrap(), 0);
    });
}

/// Returns a count of one direction.
fn count(result: &Value, direction: &str, what: &str) -> u64 {
    result[direction][what].as_u64().unwrap_or_else(|| panic!("{direction} {what}: {result}"))
}

netns_tests! {
    with ["/dev/net/tun", "ping"];

    fn a_round_trip_takes_the_delay_of_both_directions() {
        let path = Path::start("--delay 15ms");
        // Until this number of answers has arrived, however late: `ping` continues to ask.
        let (answers, shortest) = ping(["-w", "20"]);
        let shortest = shortest.unwrap();
        assert!((30.0..200.0).contains(&shortest), "{shortest} ms");
        assert!(answers >= PINGS, "{answers}");
        let result = path.stop();
        assert_eq!(result["options"]["delay_ns"], 15_000_000);
        for direction in ["a_to_b", "b_to_a"] {
            assert!(count(&result, direction, "frames") >= PINGS, "{result}");
            assert_eq!(count(&result, direction, "lost"), 0, "{result}");
        }
    }

    fn one_direction_may_lose_everything() {
        let path = Path::start("--loss 100 --direction b-to-a");
        assert_eq!(ping(["-W", "1"]), (0, None));
        let result = path.stop();
        assert!(count(&result, "a_to_b", "frames") >= PINGS, "{result}");
        assert_eq!(count(&result, "a_to_b", "lost"), 0, "{result}");
        // The other kernel has answered.
        assert!(count(&result, "b_to_a", "frames") >= PINGS, "{result}");
        assert_eq!(count(&result, "b_to_a", "lost"), count(&result, "b_to_a", "frames"));
    }

    fn two_kernels_exchange_data_packet_by_packet_or_by_super_frames() {
        for options in ["", "--delay 2ms --rate 1G --queue 8000", "--offload --delay 2ms --rate 1G --queue 8000"] {
            let path = Path::start(options);
            transfer(&path);
            let result = path.stop();
            for direction in ["a_to_b", "b_to_a"] {
                // The kernel may have passed super-frames, but these are counts of packets.
                let packets_min = TRANSFER_LEN as u64 / 1460;
                assert!(count(&result, direction, "frames") > packets_min, "{options}: {result}");
                for fault in ["lost", "refused", "duplicated", "reordered"] {
                    assert_eq!(count(&result, direction, fault), 0, "{options}: {result}");
                }
            }
        }
    }

    fn faults_of_packets_change_nothing_about_the_data() {
        for options in ["", "--offload"] {
            let faults = "--loss 0.5 --corrupt 0.5 --resegment 5 --coalesce 5 --reorder 1 --duplicate 1";
            let path = Path::start(&format!("{faults} {options}"));
            transfer(&path);
            let result = path.stop();
            for direction in ["a_to_b", "b_to_a"] {
                for fault in ["lost", "corrupted", "cut", "reordered", "duplicated"] {
                    assert!(count(&result, direction, fault) > 0, "{options} {fault}: {result}");
                }
            }
        }
    }
}
