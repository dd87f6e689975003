//! Programs on devices: the matrix of two TAP interfaces and the kernel's TCP, other devices, and
//! the error for a process whose interface is taken.
#![allow(clippy::print_stderr, reason = "the table of the matrix is what a reader wants to see")]

use std::fs;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{Namespace, bridge, ip, xdp_refusal};
use urnic_testkit::skip;

use super::compiled::compile_cm;
use super::{Libraries, Program, free_port};

/// Addresses of the interfaces: two of urnic's own, and the kernel's on the bridge between them.
const A: (&str, &str) = ("tap:ta,ip=10.7.0.1/24", "10.7.0.1");
const B: (&str, &str) = ("tap:tb,ip=10.7.0.2/24", "10.7.0.2");
const KERNEL: (&str, &str) = ("kernel", "10.7.0.254");

/// Command lines of a server and a client. `ADDR` is the server's address for RDMA, `PORT` a free
/// port. A client that exchanges numbers over an ordinary socket reaches the server at `SOCKET`.
struct Row {
    server: &'static str,
    client: &'static str,
    /// Text that the client prints on success.
    says: &'static str,
    /// Connects by rdma_cm, so it also works with the iWARP personality.
    is_cm: bool,
}

const fn row(server: &'static str, client: &'static str, says: &'static str, is_cm: bool) -> Row {
    Row { server, client, says, is_cm }
}

const ROWS: [Row; 14] = [
    row(
        "rping -s -a ADDR -p PORT -C 20 -V",
        "rping -c -a ADDR -p PORT -C 20 -vV",
        "rdma-ping-19",
        true,
    ),
    row(
        "ucmatose -b ADDR -p PORT -c 4 -C 20",
        "ucmatose -s ADDR -p PORT -c 4 -C 20",
        "return status 0",
        true,
    ),
    row(
        "rstream -p PORT -T b -T v -S 300000 -C 3 -I 2",
        "rstream -s ADDR -p PORT -T b -T v -S 300000 -C 3 -I 2",
        "custom",
        true,
    ),
    row("rdma_server -p PORT", "rdma_client -s ADDR -p PORT", "end 0", true),
    row("ib_write_bw -F -R -p PORT -n 50", "ib_write_bw -F -R -p PORT -n 50 ADDR", " 65536 ", true),
    row("ib_send_bw -F -R -p PORT -n 50", "ib_send_bw -F -R -p PORT -n 50 ADDR", " 65536 ", true),
    row("ib_read_lat -F -R -p PORT -n 50", "ib_read_lat -F -R -p PORT -n 50 ADDR", " 50 ", true),
    row(
        "ibv_rc_pingpong -p PORT -g 0 -n 100 -c",
        "ibv_rc_pingpong -p PORT -g 0 -n 100 -c SOCKET",
        "100 iters in",
        false,
    ),
    row(
        "ibv_rc_pingpong -p PORT -n 100 -e",
        "ibv_rc_pingpong -p PORT -n 100 -e SOCKET",
        "100 iters in",
        false,
    ),
    row("ib_write_bw -F -p PORT -n 50", "ib_write_bw -F -p PORT -n 50 SOCKET", " 65536 ", false),
    row("ib_send_bw -F -p PORT -n 50", "ib_send_bw -F -p PORT -n 50 SOCKET", " 65536 ", false),
    row("ib_read_lat -F -p PORT -n 50", "ib_read_lat -F -p PORT -n 50 SOCKET", " 50 ", false),
    row(
        "ibv_srq_pingpong -p PORT -g 0 -q 8 -n 100",
        "ibv_srq_pingpong -p PORT -g 0 -q 8 -n 100 SOCKET",
        "100 iters in",
        false,
    ),
    row(
        "qperf -lp PORT",
        "qperf SOCKET -lp PORT -t 1 rc_lat rc_rdma_write_poll_lat ver_rc_fetch_add quit",
        "quit:",
        false,
    ),
];

const PROGRAMS: [&str; 12] = [
    "/dev/net/tun",
    "rping",
    "ucmatose",
    "rdma_server",
    "rdma_client",
    "rstream",
    "ibv_rc_pingpong",
    "ib_write_bw",
    "ib_send_bw",
    "ib_read_lat",
    "ibv_srq_pingpong",
    "qperf",
];

/// Makes two TAP interfaces on a bridge, on which the kernel has an address too.
fn taps() {
    for name in ["ta", "tb"] {
        ip(&format!("tuntap add {name} mode tap vnet_hdr"));
        ip(&format!("link set {name} up"));
    }
    bridge("br0", &["ta", "tb"]);
    ip("addr add 10.7.0.254/24 dev br0");
}

impl Libraries {
    /// Starts a program on a device.
    pub(crate) fn start_on(&self, dev: &str, line: &str, iwarp: bool) -> Program {
        self.start_with(line, iwarp, &[("URNIC_DEV", dev), ("URNIC_LOG", "urnic=debug")])
    }
}

impl Program {
    /// Waits until it listens by rdma_cm, according to the log of the library.
    pub(crate) fn listens_by_cm(self, port: u16) -> Self {
        let at = format!(":{port}");
        self.says(|line| line.contains("listening") && line.ends_with(&at))
    }
}

type On = (&'static str, &'static str);

/// Runs the rows, and prints the result of each. Returns true if all succeeded.
fn run_rows(rows: &[Row], server_on: On, client_on: On, iwarp: bool) -> bool {
    run_rows_from(None, rows, server_on, client_on, iwarp)
}

/// Does the same as [`run_rows`], with the clients in another namespace, to which the kernel here
/// has an address.
fn run_rows_from(
    elsewhere: Option<(&Namespace, &str)>,
    rows: &[Row],
    server_on: On,
    client_on: On,
    iwarp: bool,
) -> bool {
    let socket = elsewhere.map_or("127.0.0.1", |(_, address)| address);
    let libraries = Libraries::new();
    let mut is_well = true;
    for Row { server, client, says, is_cm } in rows {
        if iwarp && !is_cm {
            continue;
        }
        let port = free_port();
        let fill = |line: &str| {
            let line = line.replace("PORT", &port.to_string()).replace("SOCKET", socket);
            line.replace("ADDR", server_on.1)
        };
        let server = libraries.start_on(server_on.0, &fill(server), iwarp);
        let server = if *is_cm { server.listens_by_cm(port) } else { server.listens(port) };
        let start = || libraries.start_on(client_on.0, &fill(client), iwarp);
        let mut client = elsewhere.map_or_else(start, |(namespace, _)| namespace.run(start));
        let (client_ended, mut server) = (client.ends(), server);
        let server_ended = server.ends();
        let said = client.said();
        let is_row_well = client_ended && server_ended && said.contains(says);
        is_well &= is_row_well;
        let name = client.line.split(' ').next().unwrap_or_default();
        let by = if *is_cm { "rdma_cm" } else { "number" };
        let personality = if iwarp { "iwarp" } else { "ib" };
        let between = if elsewhere.is_some() { "namespaces" } else { "interfaces" };
        let kind = |on: On| on.0.split(':').next().unwrap_or_default().to_owned();
        let result = if is_row_well { "pass" } else { "FAIL" };
        let (from, to) = (kind(client_on), kind(server_on));
        eprintln!(
            "measured {name:<16} by {by:<8} {from:>6} -> {to:<6} between {between} as {personality:<6} {result}"
        );
        if !is_row_well {
            eprintln!("{}\n{said}\n{}\n{}", client.line, server.line, server.said());
        }
    }
    is_well
}

netns_tests! {
    with PROGRAMS;

    fn programs_meet_on_two_taps() {
        taps();
        let (ib, iwarp) = (run_rows(&ROWS, A, B, false), run_rows(&ROWS, A, B, true));
        assert!(ib && iwarp);
    }

    /// As on two hosts, neither end sees the other's interface or its kernel's ports.
    fn programs_meet_between_two_namespaces() {
        if urnic_testkit::is_too_long("programs_meet_between_two_namespaces") {
            return;
        }
        let other = Namespace::new();
        ip(&format!("link add va type veth peer name vb netns {}", other.id()));
        let lay = |tap: &str, veth: &str, address: &str| {
            ip(&format!("tuntap add {tap} mode tap vnet_hdr"));
            for name in [tap, veth] {
                ip(&format!("link set {name} up"));
            }
            bridge("br0", &[tap, veth]);
            ip(&format!("addr add {address}/24 dev br0"));
        };
        lay("ta", "va", "10.8.0.1");
        other.run(|| lay("tb", "vb", "10.8.0.2"));
        let elsewhere = Some((&other, "10.8.0.1"));
        let (ib, iwarp) =
            (run_rows_from(elsewhere, &ROWS, A, B, false), run_rows_from(elsewhere, &ROWS, A, B, true));
        assert!(ib && iwarp);
        // The kernel's TCP at both ends.
        let kernel = |address| ("kernel", address);
        let (here, there) = (kernel("10.8.0.1"), kernel("10.8.0.2"));
        let (ib, iwarp) =
            (run_rows_from(elsewhere, &ROWS, here, there, false), run_rows_from(elsewhere, &ROWS, here, there, true));
        assert!(ib && iwarp);
    }

    fn programs_on_a_tap_serve_the_kernels() {
        if urnic_testkit::is_too_long("programs_on_a_tap_serve_the_kernels") {
            return;
        }
        taps();
        let (ib, iwarp) = (run_rows(&ROWS, A, KERNEL, false), run_rows(&ROWS, A, KERNEL, true));
        assert!(ib && iwarp);
    }

    fn programs_on_a_tap_are_served_by_the_kernels() {
        if urnic_testkit::is_too_long("programs_on_a_tap_are_served_by_the_kernels") {
            return;
        }
        taps();
        let (ib, iwarp) = (run_rows(&ROWS, KERNEL, B, false), run_rows(&ROWS, KERNEL, B, true));
        assert!(ib && iwarp);
    }

    fn programs_meet_on_packet_and_xdp_sockets() {
        let refusal = xdp_refusal();
        // Both ends of the link are here, and the kernel has no address on it.
        ip("link add va type veth peer name vb");
        for name in ["va", "vb"] {
            ip(&format!("link set {name} up"));
        }
        let rows = || ROWS.iter().filter(|row| ["rping", "ib_write_bw"].iter().any(|name| row.server.starts_with(name)));
        for row in rows() {
            let one = std::slice::from_ref(row);
            let packet = (("packet:va,ip=10.7.0.1/24", "10.7.0.1"), ("packet:vb,ip=10.7.0.2/24", "10.7.0.2"));
            let xdp = (("xdp:va,ip=10.7.0.1/24", "10.7.0.1"), ("xdp:vb,ip=10.7.0.2/24", "10.7.0.2"));
            assert!(run_rows(one, packet.0, packet.1, false));
            assert!(refusal.is_some() || run_rows(one, xdp.0, xdp.1, false));
        }
        if let Some(reason) = refusal {
            skip("programs on XDP sockets", &reason);
        }
    }

    /// One process has an interface; another one gets an error that says so.
    fn second_process_gets_the_error_that_the_interface_is_taken() {
        taps();
        ip("link add va type veth peer name vb");
        let libraries = Libraries::new();
        for dev in [A.0, "packet:va,ip=10.8.0.1/24"] {
            let port = free_port();
            let first = libraries.start_on(dev, &format!("rping -s -p {port}"), false);
            let first = first.listens_by_cm(port);
            let mut second = libraries.start_on(dev, "ibv_devinfo", false);
            let (ended, said) = (second.ends(), second.said());
            assert!(!ended && said.contains("is in use by another process"), "{dev}: {said}");
            drop::<Program>(first);
            // The interface is free again once the process has ended in any way.
            let mut third = libraries.start_on(dev, "ibv_devinfo -v", false);
            let (ended, said) = (third.ends(), third.said());
            assert!(ended && said.contains("::ffff:10."), "{dev}: {said}");
        }
        for (dev, problem) in [
            ("tap:ta", "needs an address"),
            ("ether:ta,ip=10.0.0.1/8", "unknown kind of device"),
            ("tap:ta,ip=10.7.0.254/24", "the kernel of this machine has the address"),
            ("packet:absent,ip=10.0.0.1/8", "no interface absent"),
        ] {
            let mut program = libraries.start_on(dev, "ibv_devinfo", false);
            let (ended, said) = (program.ends(), program.said());
            assert!(!ended && said.contains(problem), "{dev}: {said}");
        }
        let leftover = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!leftover.contains("urnic/verbs"), "{leftover}");
    }

    /// Both ends of a connection are in one process, at the address of its interface.
    fn both_ends_are_in_one_process_on_a_tap() {
        taps();
        let libraries = Libraries::new();
        let Some(program) = compile_cm("both_ends_are_in_one_process_on_a_tap", &libraries, "shared_receives") else {
            return;
        };
        let line = format!("{} {} {}", program.display(), free_port(), A.1);
        // It waits for the completion of a Send before the peer posts a receive.
        let variables = [("URNIC_DEV", A.0), ("URNIC_ACK", "local")];
        let said = libraries.start_with(&line, false, &variables).finish();
        assert!(said.contains("all is well"), "{said}");
    }
}
