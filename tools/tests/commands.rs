//! `urnic serve` and its clients, run as by their users, over the kernel's TCP on loopback.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]
#![allow(clippy::cast_precision_loss, reason = "rates are compared roughly")]

mod files;
mod hostile_server;
mod interrupted;
pub(crate) mod json;
mod keys;
mod liar;
mod many;
mod posting;
mod refusals;
pub(crate) mod scene;
mod shortened;
mod stopped;
mod streams;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::{Duration, Instant};

use scene::{Server, complaint, json, urnic};

const COUNTERS: [&str; 19] = [
    "payload_bytes_copied_tx",
    "payload_bytes_snapshot",
    "payload_bytes_kept",
    "payload_bytes_copied_rx",
    "bytes_placed",
    "bytes_placed_out_of_order",
    "bytes_held",
    "fpdus_sent",
    "fpdus_received",
    "crc_bad",
    "markers_received",
    "segments_sent",
    "segments_aligned",
    "segments_received",
    "segments_out_of_order",
    "retransmissions",
    "rtos",
    "frames_sent",
    "super_frames_sent",
];

/// RFC 5044 §4.3: a marker of 4 bytes at every 512.
const BYTES_BETWEEN_MARKERS: u64 = 508;

#[test]
fn ping_tells_times_of_the_round_trip() {
    let server = Server::start("");
    let result = json(&server.client("ping ADDRESS --count 3 --interval 1ms --size 5K --json"));
    assert_eq!((result["count"].as_u64(), result["size_bytes"].as_u64()), (Some(3), Some(5 << 10)));
    assert_eq!(result["timing"], "round-trip");
    let times = ["min_us", "p50_us", "max_us"].map(|key| result[key].as_f64().unwrap());
    let mean = result["mean_us"].as_f64().unwrap();
    assert!(0.0 < times[0] && times.is_sorted(), "{times:?}");
    assert!(times[0] <= mean && mean <= times[2], "{mean} of {times:?}");
    for key in ["p90_us", "p99_us", "p99_9_us"] {
        assert!(result[key].is_null(), "three samples have no {key}");
    }
    let one = json(&server.client("ping ADDRESS --count 1 --json"));
    for key in ["mean_us", "p50_us", "max_us"] {
        assert_eq!(one[key], one["min_us"], "{key} of one sample");
    }
    assert!(one["stddev_us"].is_null(), "{one}");
    let empty = server.client("ping ADDRESS --count 1 --size 0");
    assert!(empty.status.success(), "{}", complaint(&empty));
    server.stop();
}

#[test]
fn bw_reports_exactly_its_documented_fields() {
    let server = Server::start("--markers --no-crc");
    for (op, options) in [("write", ""), ("read", "--markers"), ("send", "--no-crc")] {
        let command = format!("bw ADDRESS --op {op} --size 8K --seconds 0.1 --json {options}");
        let result = json(&server.client(&command));
        assert_eq!(
            (result["op"].as_str(), result["size_bytes"].as_u64()),
            (Some(op), Some(8 << 10))
        );
        assert_eq!(
            (result["device"].as_str(), result["stack"].as_str()),
            (Some("kernel"), Some("layered"))
        );
        assert_eq!(result["markers"], true, "{op}: each direction has its markers");
        assert_eq!(result["crc"], op != "send", "off only when both ends say so");
        let bytes = result["bytes"].as_u64().unwrap();
        assert!(bytes > 0 && bytes.is_multiple_of(8 << 10));
        let gbps = bytes as f64 * 8e-9 / result["seconds"].as_f64().unwrap();
        assert!((gbps / result["gbps"].as_f64().unwrap() - 1.0).abs() < 1e-9);
        for end in ["local", "peer"] {
            let counters = result[end].as_object().unwrap();
            assert_eq!(counters.len(), COUNTERS.len());
            let (known, of_tcp) = COUNTERS.split_at(11);
            assert!(known.iter().all(|key| counters[*key].is_u64()), "{counters:?}");
            assert!(
                of_tcp.iter().all(|key| counters[*key].is_null()),
                "the kernel's: {counters:?}"
            );
            let count = |key: &str| counters[key].as_u64().unwrap();
            // Besides payload that the kernel has cut, these are copied: Read Responses, by the
            // responder, and FPDUs that markers cut, if they have a CRC: FPDUs longer than the
            // space between two markers.
            let (copied, snapshot) =
                (count("payload_bytes_copied_tx"), count("payload_bytes_snapshot"));
            let staged = copied - snapshot - count("payload_bytes_kept");
            let is_staged = op == "write" && end == "local";
            let short = count("fpdus_sent") * BYTES_BETWEEN_MARKERS;
            assert!(
                if is_staged { copied + short >= bytes } else { staged < 10_000 },
                "{op}, {end}: {copied} copied, of it {staged} staged, of {bytes}"
            );
            let is_source = op == "read" && end == "peer";
            assert!(if is_source { snapshot >= bytes } else { snapshot == 0 }, "{op}: {snapshot}");
        }
        let sink = if op == "read" { "local" } else { "peer" };
        let placed = result[sink]["bytes_placed"].as_u64().unwrap();
        // Besides the payload there are some control messages.
        assert!((bytes..bytes + bytes / 8 + 1000).contains(&placed), "{op}: {placed} of {bytes}");
    }
    server.stop();
}

#[test]
fn bw_runs_over_several_connections_at_any_depth() {
    let server = Server::start("");
    for options in ["--connections 5 --depth 1", "--connections 2 --depth 100 --size 1"] {
        for op in ["write", "read", "send"] {
            let command = format!("bw ADDRESS --op {op} --seconds 0.05 --json {options}");
            assert!(json(&server.client(&command))["bytes"].as_u64().unwrap() > 0, "{command}");
        }
    }
    server.stop();
}

/// Compares the times that one end reports for its Reads with the wall clock: if `lat` reported
/// half a round trip, as for operations with equal work at both ends, the sum would be half of it.
#[test]
fn the_time_of_a_read_is_the_whole() {
    let server = Server::start("");
    for op in ["read", "fetch-add"] {
        let result =
            json(&server.client(&format!("lat ADDRESS --op {op} -n 20000 -i 10ms --json")));
        let intervals = result["intervals"].as_array().unwrap();
        let (mut inside, mut wall) = (0.0, 0.0);
        for interval in intervals {
            let of = |key: &str| interval[key].as_f64().unwrap();
            inside += of("mean_us") * of("iterations") / 1e6;
            wall += of("to_seconds") - of("from_seconds");
        }
        // One request at a time: all the time except the gaps between requests belongs to requests.
        assert!(inside > 0.6 * wall && inside <= wall, "{op}: {inside} s of {wall} s");
    }
    server.stop();
}

/// Compares intervals, messages and rates with each other and with the server's counters.
#[test]
fn figures_of_bw_agree_with_each_other() {
    let server = Server::start("");
    for options in ["-n 300 -s 10K", "-t 0.2 -s 3000 -P 2", "-t 0.1 --bidir", "-n 900 --op read"] {
        let result = json(&server.client(&format!("bw ADDRESS {options} -i 10ms --json")));
        let of = |value: &serde_json::Value, key: &str| value[key].as_f64().unwrap();
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1e-9);
        let (size, seconds) = (of(&result, "size_bytes"), of(&result, "seconds"));
        assert!(near(of(&result, "bytes"), of(&result, "messages") * size), "{options}");
        assert!(near(of(&result, "gbps") * 1e9 * seconds, of(&result, "bytes") * 8.0), "{options}");
        assert!(near(of(&result, "messages_per_second") * seconds, of(&result, "messages")));
        let own = of(&result, "bytes") - of(&result, "bytes_of_server");
        let (mut bytes, mut end) = (0.0, 0.0);
        for interval in result["intervals"].as_array().unwrap() {
            let time = of(interval, "to_seconds") - of(interval, "from_seconds");
            assert!(near(of(interval, "from_seconds"), end), "{options}: no gap");
            assert!((of(interval, "gbps") * 1e9 * time - of(interval, "bytes") * 8.0).abs() < 1.0);
            (bytes, end) = (bytes + of(interval, "bytes"), of(interval, "to_seconds"));
        }
        assert_eq!(bytes, own, "{options}: intervals are all of it");
        assert!(end <= seconds, "{options}: {end} {seconds}");
        let is_read = options.contains("read");
        let placed = of(&result[if is_read { "local" } else { "peer" }], "bytes_placed");
        assert!(placed >= own, "{options}: {placed} of {own}");
        for end in ["local", "server"] {
            let time = of(&result["processor"], &format!("{end}_seconds"));
            let per_gb = of(&result["processor"], &format!("{end}_seconds_per_gb"));
            assert!(near(per_gb * of(&result, "bytes"), time * 1e9), "{options}: {end}");
        }
    }
    server.stop();
}

#[test]
fn intervals_of_lat_are_all_messages() {
    let server = Server::start("");
    let result = json(&server.client("lat ADDRESS -n 3000 -i 2ms --histogram --json"));
    let sum = |key: &str, of: &str| {
        let all = result[key].as_array().unwrap();
        all.iter().map(|one| one[of].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum("intervals", "iterations"), 3000);
    assert_eq!(sum("histogram", "count"), 3000);
    let extreme = |key: &str| {
        let all = result["intervals"].as_array().unwrap();
        all.iter().map(|one| one[key].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let least = extreme("min_us").into_iter().fold(f64::INFINITY, f64::min);
    let most = extreme("max_us").into_iter().fold(0.0, f64::max);
    assert_eq!((result["min_us"].as_f64(), result["max_us"].as_f64()), (Some(least), Some(most)));
    server.stop();
}

#[test]
fn a_locale_without_utf_8_gets_ascii() {
    let server = Server::start("");
    for command in ["lat ADDRESS -n 20 --histogram", "bw ADDRESS -n 20", "ping ADDRESS -c 1"] {
        let line = command.replace("ADDRESS", server.address());
        for (name, value) in [("LC_ALL", "C"), ("LC_CTYPE", "POSIX")] {
            let output = urnic(&line).env_remove("LC_ALL").env(name, value).output().unwrap();
            assert!(output.stdout.is_ascii(), "{}", String::from_utf8_lossy(&output.stdout));
        }
        let output = urnic(&line).env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(!output.stdout.is_ascii() || command.starts_with("bw"), "{command}");
    }
    server.stop();
}

#[test]
fn bw_reports_the_depth_that_it_used() {
    let server = Server::start("");
    let of = |options: &str| json(&server.client(&format!("bw ADDRESS {options} --json")));
    let read = of("--op read --depth 64 -n 100");
    assert_eq!((&read["depth"], &read["depth_used"]), (&64.into(), &16.into()));
    let large = of("-s 1M --depth 100 -P 2 -n 64");
    assert_eq!((&large["depth"], &large["depth_used"]), (&100.into(), &64.into()));
    let few = of("--depth 64 -n 4");
    assert_eq!((&few["depth"], &few["depth_used"]), (&64.into(), &4.into()));
    let write = of("--depth 64 -n 100");
    assert_eq!((&write["depth"], &write["depth_used"]), (&64.into(), &64.into()));
    let said = server.client("bw ADDRESS --op read --depth 64 -n 100");
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("16 messages in flight (--depth 64: the peer's limit on Reads"),
        "{said}"
    );
    server.stop();
}

#[test]
fn a_rate_is_at_most_that_from_the_first_message_on() {
    let server = Server::start("");
    let output = server.client("bw ADDRESS --rate 1000 -t 2");
    assert_eq!(output.status.code(), Some(2));
    let said = complaint(&output);
    assert!(said.contains("a message of 64K takes 524 s at 1.00 kbit/s"), "{said}");
    // Eight messages of 8 KiB in the time: the command does not end at once, and sends no ninth
    // message.
    let result = json(&server.client("bw ADDRESS --rate 1M -s 8K -t 0.53 --json"));
    let (bytes, seconds) = (result["bytes"].as_f64().unwrap(), result["seconds"].as_f64().unwrap());
    assert!(bytes * 8.0 <= 1e6 * seconds, "{bytes} bytes in {seconds} s");
    assert!(bytes >= 8192.0, "{bytes}");
    server.stop();
}

#[test]
fn lat_warms_up_before_it_measures() {
    let server = Server::start("");
    // Long enough for the scheduler to give both ends a core of their own.
    let begin = Instant::now();
    let result = json(&server.client("lat ADDRESS --iterations 1 --json"));
    assert_eq!(result["iterations"], 1);
    assert!(begin.elapsed() >= Duration::from_millis(100), "{:?}", begin.elapsed());
    server.stop();
}

#[test]
fn lat_reports_exactly_its_documented_fields() {
    let server = Server::start("");
    for (op, timing) in [
        ("write", "half-round-trip"),
        ("send", "half-round-trip"),
        ("immediate", "half-round-trip"),
        ("read", "post-to-completion"),
        ("fetch-add", "post-to-completion"),
    ] {
        let command = format!("lat ADDRESS --op {op} --iterations 300 --json");
        let result = json(&server.client(&command));
        assert_eq!((result["op"].as_str(), result["timing"].as_str()), (Some(op), Some(timing)));
        assert_eq!(
            (result["size_bytes"].as_u64(), result["iterations"].as_u64()),
            (Some(8), Some(300))
        );
        let keys = ["min_us", "p50_us", "p90_us", "p99_us", "max_us"];
        let times = keys.map(|key| result[key].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
        assert!(result["p99_9_us"].is_null() && result["stddev_us"].is_f64(), "{result}");
        let said = |options: &str| {
            let shown = server.client(&format!("lat ADDRESS --op {op} {options}"));
            String::from_utf8(shown.stdout).unwrap()
        };
        let text = timing.replace('-', " ").replace("half round", "half of the round");
        assert!(said("-n 20").contains(&text), "{op}: {text}");
        // All sizes take two seconds: once for each kind of time.
        let has_all_sizes = ["write", "read"].contains(&op);
        assert!(!has_all_sizes || said("-n 1 -a").contains(&text), "{op}: {text}");
    }
    let shown = server.client("lat ADDRESS --size 9K --iterations 100 --histogram");
    assert!(String::from_utf8_lossy(&shown.stdout).contains('█'), "{}", complaint(&shown));
    server.stop();
}

#[test]
fn command_prints_its_version_help_and_manual() {
    let said = |arguments: &str| {
        let output = urnic(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let version = said("--version");
    let built_from = ["(development build)\n", "(of an unknown commit)\n"];
    let is_known =
        version.contains(" (commit ") || built_from.iter().any(|it| version.ends_with(it));
    assert!(version.starts_with("urnic 0.") && is_known, "{version}");
    let help = said("--help");
    assert!(help.contains("\nExamples:\n") && help.contains("7174"), "{help}");
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    said(&format!("man {}", folder.display()));
    let page = std::fs::read_to_string(folder.join("urnic-bw.1")).unwrap();
    assert!(page.contains("all\\-sizes") && folder.join("urnic.1").exists(), "{page}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn info_tells_of_the_kernel_device_and_the_loopback_interface() {
    let result = json(&urnic("info --json").output().unwrap());
    assert_eq!(result["devices"][0]["device"], "kernel");
    assert_eq!(result["devices"][0]["usable"], true);
    for device in result["devices"].as_array().unwrap() {
        let mended = device["missing"].is_null() == device["remedy"].is_null();
        assert!(mended, "what is missing has a remedy: {device}");
    }
    let interfaces = result["interfaces"].as_array().unwrap();
    assert!(interfaces.iter().any(|interface| interface["name"] == "lo"));
    assert!(urnic("info").output().unwrap().status.success());
}

/// A device that an ordinary user cannot create is usable only if it exists already.
#[test]
fn info_tells_an_ordinary_user_what_he_may_use() {
    let folder = std::env::temp_dir().join(format!("urnic-info-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("urnic");
    std::fs::copy(env!("CARGO_BIN_EXE_urnic"), &copy).unwrap();
    let mut command = std::process::Command::new(&copy);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command.args(["info", "--json"]).current_dir("/");
    let output = loop {
        match command.output() {
            // A process that another test starts just now has the copy open until it runs.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            result => break result.unwrap(),
        }
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let devices = json(&output)["devices"].clone();
    let tap = devices.as_array().unwrap().iter().find(|one| one["device"] == "tap").unwrap();
    let missing = tap["missing"].as_str().unwrap();
    assert_eq!(tap["usable"], missing.contains("; you may use"), "{tap}");
}

/// Root of a user namespace has all rights except loading BPF programs.
#[test]
fn info_is_true_for_root_of_a_user_namespace() {
    const WORDS: [&str; 3] = ["--user", "--map-root-user", "--net"];
    const NAME: &str = "urnic info in a user namespace";
    let unshare = || urnic_testkit::programs::program("unshare");
    if let Some(reason) = urnic_testkit::programs::missing(["unshare", "true"]) {
        return urnic_testkit::skip(NAME, &reason);
    }
    if !unshare().args(WORDS).arg("true").output().unwrap().status.success() {
        return urnic_testkit::skip(NAME, "no right to make user namespaces");
    }
    let info = |unshare: &mut std::process::Command| {
        let output = unshare.arg(env!("CARGO_BIN_EXE_urnic")).args(["info", "--json"]).output();
        let devices = json(&output.unwrap())["devices"].clone();
        move |name: &str| {
            let mut devices = devices.as_array().unwrap().iter();
            devices.find(|one| one["device"] == name).unwrap().clone()
        }
    };
    let device = info(unshare().args(WORDS));
    assert_eq!(device("packet")["usable"], true);
    let node = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
    assert_eq!(device("tap")["usable"], node.is_ok(), "{}", device("tap"));
    let remedy = |device: serde_json::Value| device["remedy"].as_str().unwrap().to_owned();
    assert_eq!(device("xdp")["usable"], false);
    let to_root = remedy(device("xdp"));
    assert!(to_root.contains("root of the machine") && !to_root.contains("sudo"), "{to_root}");
    // The network namespace is that of the test, and belongs to another user namespace.
    let device = info(unshare().args(&WORDS[..2]));
    for name in ["packet", "tap"] {
        assert_eq!(device(name)["usable"], false, "{}", device(name));
    }
    let to_root = remedy(device("packet"));
    assert!(to_root.contains("unshare --user --map-root-user --net"), "{to_root}");
}

#[test]
fn once_ends_with_the_first_peer() {
    let server = Server::start("--once");
    assert!(server.client("ping ADDRESS --count 1").status.success());
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn json_server_prints_a_listening_event() {
    let server = Server::start("--json");
    let line: serde_json::Value = serde_json::from_str(server.line()).unwrap();
    assert_eq!((&line["event"], &line["device"]), (&"listening".into(), &"kernel".into()));
    server.stop();
}

#[test]
fn twenty_clients_at_once_are_served() {
    let server = Server::start("");
    let clients: Vec<_> = (0..20)
        .map(|i| server.spawn(&format!("ping ADDRESS --count 20 --interval 1ms --size {i}K")))
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
    }
    server.stop();
}

#[test]
fn more_than_a_peer_gets_is_refused_with_the_reason() {
    let server = Server::start("--size 1M --peers 1");
    let output = server.client("bw ADDRESS --size 2M --seconds 0.1");
    assert_eq!(output.status.code(), Some(2));
    let said = complaint(&output);
    assert!(said.contains("rejected") && said.contains("--size"), "{said}");
    let said = complaint(&server.client("bw ADDRESS --seconds 0.1 --connections 2"));
    assert!(said.contains("which is the limit") && said.contains("--peers"), "{said}");
    let said = complaint(&server.client("get ADDRESS/x /tmp/never-made"));
    assert!(said.contains("--dir"), "{said}");
    server.stop();
}

#[test]
fn refused_connection_names_the_command_to_start() {
    // Nothing listens on this port: it is below the range of ephemeral ports.
    let output = urnic("ping 127.0.0.1:1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = complaint(&output);
    assert!(said.contains("refused") && said.contains("urnic serve --listen"), "{said}");
}

#[test]
fn peer_without_mpa_is_reported_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _reset = stream.read_to_end(&mut Vec::new());
    });
    let output = urnic(&format!("ping {address}")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("does not speak MPA"), "{}", complaint(&output));
    peer.join().unwrap();
}

#[test]
fn a_silent_peer_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let output = urnic(&format!("ping {address} --timeout 200ms")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("did not answer within 200ms"), "{}", complaint(&output));
}

#[test]
fn listen_failures_name_their_cause() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for (options, part) in [
        (format!("--listen {}", taken.local_addr().unwrap()), "taken by another program"),
        ("--listen 192.0.2.77:7174".into(), "no address of this machine"),
        ("--listen 127.0.0.1:0 --stack optimized".into(), "--stack optimized needs"),
        ("--listen 127.0.0.1:0 --dir /no/such/folder".into(), "/no/such/folder"),
        ("--listen 127.0.0.1:0 --dev tap:t,ip=127.0.0.1/8".into(), "not an address a host"),
    ] {
        let output = urnic(&format!("serve {options}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options}");
        assert!(complaint(&output).contains(part), "{options}: {}", complaint(&output));
    }
}

#[test]
fn a_foreign_client_does_not_disturb_the_server() {
    let server = Server::start("");
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    assert!(answer.is_empty());
    assert!(server.client("ping ADDRESS --count 1").status.success());
    server.stop();
}
