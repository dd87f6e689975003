//! `urnic ibgate`: the kernel's own programs and ports of a real subnet reach each other.

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{Namespace, ip};
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

use super::scene::{NEEDS, Process, Recorded, fabric, wait_until};
use super::{dev, json, output, serve};

const GATE_NEEDS: [&str; 5] = [NEEDS[0], NEEDS[1], NEEDS[2], "/dev/net/tun", "ping"];
/// A gate at the third node, in front of the kernel.
const GATE: &str = "--dev ib:sim=sim,node=Hca3,ip=10.9.0.9/24,ip6=fd00::9/64";
/// Device keys of ports behind a gate.
const BEHIND: &str = ",gw=10.9.0.9,gw6=fd00::9";

/// Starts a gate, waits until it is up, and gives the kernel a route to the link.
fn gate() -> Process {
    gate_with("")
}

/// Starts a gate with further options.
fn gate_with(options: &str) -> Process {
    let gate = Process::start(&format!("ibgate {GATE} --json {options}"));
    wait_until("the gate's link is up", || has_carrier("ibgate"));
    // The kit has disabled IPv6 on the kernel's interfaces.
    fs::write("/proc/sys/net/ipv6/conf/ibgate/disable_ipv6", "0").unwrap();
    // Without `nodad` the kernel does not use an IPv6 address as source until its worker has
    // checked it.
    ip("addr add 10.8.0.1 dev ibgate");
    ip("addr add fd08::1 dev ibgate nodad");
    for (address, network) in [("10.8.0.1", "10.9.0.0/24"), ("fd08::1", "fd00::/64")] {
        ip(&format!("route add {network} dev ibgate src {address}"));
    }
    gate
}

fn has_carrier(interface: &str) -> bool {
    let shown = program("ip").args(["link", "show", interface]).output().unwrap();
    String::from_utf8_lossy(&shown.stdout).contains("LOWER_UP")
}

/// Returns true if `ping` was answered, and its output.
fn ping(arguments: &str) -> (bool, String) {
    let mut ping = program("ping");
    let output = ping.args(["-n", "-i", "0.2"]).args(arguments.split_whitespace()).output();
    let output = output.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn answered(arguments: &str) {
    let (is_answered, said) = ping(arguments);
    assert!(is_answered, "ping {arguments}: {said}");
}

fn told(arguments: &str, what: &str) {
    let (is_answered, said) = ping(arguments);
    assert!(!is_answered && said.contains(what), "ping {arguments}: {said}");
}

netns_tests! {
    with GATE_NEEDS;

    /// Pings, the kernel's TCP and a router's ICMP; no packet is malformed, and the gate does not
    /// ask the administrator for each datagram.
    fn the_kernel_and_ports_reach_each_other_through_a_gate() {
        let fabric = fabric("gate");
        let switch = Recorded::start(&fabric);
        let gate = gate();
        let server = serve(4, BEHIND);
        for to in ["10.9.0.4", "fd00::4", "10.9.0.9", "fd00::9"] {
            answered(&format!("-c 3 -W 5 {to}"));
        }
        // 2044 bytes pass; one byte more is refused by the kernel itself.
        answered("-c 1 -W 5 -M do -s 2016 10.9.0.4");
        told("-c 1 -W 1 -M do -s 2017 10.9.0.4", "mtu");
        told("-c 1 -W 5 -t 1 10.9.0.4", "Time to live exceeded");
        told("-c 1 -W 5 -t 1 fd00::4", "Hop limit");
        told("-c 2 -W 8 10.9.0.77", "Destination Host Unreachable");
        ip("route add 10.66.0.0/24 dev ibgate");
        told("-c 1 -W 5 10.66.0.1", "Destination Net Unreachable");
        // The kernel's TCP to urnic's, and urnic's to the kernel's.
        for to in ["10.9.0.4", "[fd00::4]"] {
            json(&format!("ping {to} --count 3 --interval 1ms"));
        }
        for op in ["write", "send", "read"] {
            json(&format!("bw 10.9.0.4 --op {op} --size 64K -n 20"));
        }
        drop(server);
        let kernel = Process::serving("serve --listen [::] --dev kernel");
        for to in ["10.8.0.1", "[fd08::1]"] {
            let from = dev(2, BEHIND);
            json(&format!("ping {to} --dev {from} --count 3 --interval 1ms"));
            json(&format!("bw {to} --dev {from} --op write --size 64K -n 20"));
        }
        drop(kernel);
        assert!(ip("link").contains("ibgate"), "made by the command");
        let carried = gate.json();
        assert!(!ip("link").contains("ibgate"), "gone with the command");
        switch.end();
        let link = &carried["link"];
        assert_eq!((&link["up"], &link["mtu"], &link["link_ups"]), (&true.into(), &2044.into(), &1.into()));
        for none in ["malformed_packets", "p_key_mismatches", "q_key_mismatches", "bad_datagrams"] {
            assert_eq!(link[none], 0, "{none}: {carried}");
        }
        let forwarded = |direction: &str| carried[direction]["forwarded"].as_u64().unwrap();
        let datagrams = forwarded("to_link") + forwarded("to_kernel");
        let requests = link["sa_requests"].as_u64().unwrap();
        assert!(datagrams > 2000 && requests < 100, "{requests} for {datagrams}: {carried}");
        for way in ["to_link", "to_kernel"] {
            for none in ["malformed", "martians", "too_big", "lost"] {
                assert_eq!(carried[way][none], 0, "{way} {none}: {carried}");
            }
        }
        assert!(carried["icmp"]["echoes"].as_u64() >= Some(6), "{carried}");
    }

    /// The interface has a carrier while the port is in the broadcast group.
    fn a_gates_interface_follows_the_link() {
        let mut fabric = fabric("follows");
        let switch = Recorded::start(&fabric);
        let gate = gate();
        let _server = serve(4, BEHIND);
        answered("-c 1 -W 5 10.9.0.4");
        fabric.command("Unlink \"Hca3\"[1]");
        wait_until("the carrier is lost", || !has_carrier("ibgate"));
        fabric.command("Relink \"Hca3\"[1]");
        wait_until("the carrier is back", || has_carrier("ibgate"));
        answered("-c 3 -W 5 10.9.0.4");
        // The deletion of the interface affects nothing else.
        ip("link del ibgate");
        thread::sleep(Duration::from_millis(200));
        let carried = gate.json();
        assert!(carried["link"]["link_ups"].as_u64() >= Some(2), "{carried}");
        switch.end();
    }

    /// Two kernels with a fabric between them: the datagrams of dnsmasq, and groups.
    fn two_kernels_talk_through_two_gates() {
        let fabric = fabric("kernels");
        let switch = Recorded::start(&fabric);
        let near = Process::start(
            "ibgate --dev ib:sim=sim,node=Hca3,ip=10.9.0.9/24,gw=10.9.0.8 --json",
        );
        let far = Process::start(
            "ibgate --dev ib:sim=sim,node=Hca4,ip=10.9.0.8/24,gw=10.9.0.9 --tun far \
             --group 239.1.2.3 --json",
        );
        wait_until("both are up", || has_carrier("ibgate") && has_carrier("far"));
        let other = Namespace::new();
        ip(&format!("link set far netns {}", other.id()));
        ip("addr add 10.8.0.1 dev ibgate");
        for network in ["10.9.0.0/24", "10.7.0.0/24", "239.0.0.0/8"] {
            ip(&format!("route add {network} dev ibgate src 10.8.0.1"));
        }
        other.run(|| {
            ip("link set far up");
            ip("addr add 10.7.0.1 dev far");
            ip("route add default dev far src 10.7.0.1");
        });
        answered("-c 2 -W 8 10.7.0.1");
        // The kernel's TCP at both ends.
        let server = other.run(|| Process::serving("serve --listen 10.7.0.1 --dev kernel"));
        json("bw 10.7.0.1 --op write --size 64K -n 50");
        drop(server);
        let group = other.run(|| {
            // One group that the command names, and one that the kernel reports to it.
            let socket = UdpSocket::bind("0.0.0.0:5000").unwrap();
            for group in [[239, 1, 2, 3], [239, 1, 2, 4]] {
                socket.join_multicast_v4(&group.into(), &[10, 7, 0, 1].into()).unwrap();
            }
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            socket
        });
        let sender = UdpSocket::bind("10.8.0.1:0").unwrap();
        sender.set_multicast_ttl_v4(8).unwrap();
        for to in ["239.1.2.3:5000", "239.1.2.4:5000"] {
            let mut octets = [0; 32];
            wait_until("a datagram of the group comes", || {
                sender.send_to(to.as_bytes(), to).unwrap();
                group.recv(&mut octets).is_ok_and(|len| &octets[..len] == to.as_bytes())
            });
        }
        name_is_found(&other);
        for gate in [near, far] {
            let carried = gate.json();
            assert!(carried["to_link"]["forwarded"].as_u64() > Some(50), "{carried}");
        }
        switch.end();
    }

    /// RFC 4390: a port without an address gets one from a real server behind the gate, which
    /// relays.
    fn a_port_gets_its_address_of_dnsmasq_behind_a_gate() {
        let fabric = fabric("dnsmasq");
        let switch = Recorded::start(&fabric);
        let gate = gate_with("--dhcp-relay 10.8.0.1");
        let mut dnsmasq = program("dnsmasq");
        // In this mode it stays root: a user namespace has no other user.
        dnsmasq.args(["--no-daemon", "--conf-file=/dev/null", "--port=0", "--no-ping"]);
        dnsmasq.args(["--dhcp-range=10.9.0.50,10.9.0.50,255.255.255.0,1h"]);
        dnsmasq.args(["--dhcp-option=option:router,10.9.0.9", "--dhcp-leasefile=/dev/null"]);
        dnsmasq.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _dnsmasq = Process::of(dnsmasq.spawn().unwrap());
        let leased = "ib:sim=sim,node=Hca4,dhcp";
        // `info` reports the link and the lease, and gives the lease back.
        let shown = json(&format!("info --dev {leased}"));
        assert_eq!(shown["up"], true, "{shown}");
        assert_eq!((&shown["mtu"], &shown["q_key"]), (&2044.into(), &"0x80010b1b".into()));
        let dhcp = &shown["dhcp"];
        assert_eq!(dhcp["address"], "10.9.0.50/24", "{shown}");
        assert_eq!((&dhcp["router"], &dhcp["server"]), (&"10.9.0.9".into(), &"10.8.0.1".into()));
        assert!((3590..=3600).contains(&dhcp["end_seconds"].as_u64().unwrap()), "{dhcp}");
        let shown = output(&format!("info --dev {leased}"));
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("10.9.0.50/24, router 10.9.0.9, from 10.8.0.1"), "{shown}");
        // The kernel's TCP to the port, through the router of the lease.
        let server = Process::serving(&format!("serve --listen 0.0.0.0 --dev {leased}"));
        answered("-c 2 -W 8 10.9.0.50");
        json("bw 10.9.0.50 --op write --size 64K -n 20");
        drop(server);
        let carried = gate.json();
        assert!(carried["dhcp"]["relayed"].as_u64() >= Some(12), "{carried}");
        assert_eq!(carried["dhcp"]["dropped"], 0, "{carried}");
        switch.end();
    }

    /// Command lines that the gate refuses.
    fn impossible_gate_is_refused_with_the_reason() {
        let _fabric = fabric("refused");
        ip("tuntap add dev tap0 mode tap");
        for (arguments, why) in [
            ("--dev ib:sim=none,node=Hca3,ip=10.9.0.9/24", "no ibsim by the name 'none'"),
            ("--dev ib:sim=sim,node=Hca9,ip=10.9.0.9/24", "no place at node 'Hca9'"),
            ("--dev ib:sim=sim,node=Hca3,ip=10.9.0.9/24 --tun tap0", "a TUN interface"),
            ("--dev ib:sim=sim,node=Hca3,ip=10.9.0.9/24 --tun lo", "a TUN interface"),
        ] {
            let refused = output(&format!("ibgate {arguments} --duration 1s"));
            let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{arguments}: {complaint}");
            assert!(complaint.contains(why), "{arguments}: {complaint}");
        }
        // The refused commands took nothing from others. Without a switch the link is up, and the
        // end after `--duration` is a success.
        let ended = output(&format!("ibgate {GATE} --duration 3s"));
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert!(said.contains("ibgate: the link is up, with datagrams of 2044 bytes"), "{said}");
    }
}

/// dnsmasq answers a query that went through both gates (RFC 1035 §4.1).
fn name_is_found(other: &Namespace) {
    if !is_there("dnsmasq") {
        return skip("names of dnsmasq through gates", "no dnsmasq");
    }
    let mut dnsmasq: Command = program("dnsmasq");
    dnsmasq.args(["--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"]);
    dnsmasq.args(["--listen-address=10.7.0.1", "--bind-interfaces", "--port=5353"]);
    dnsmasq.arg("--address=/port.example/10.9.0.4");
    dnsmasq.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _dnsmasq = Process::of(other.run(|| dnsmasq.spawn().unwrap()));
    let question =
        [&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x04port\x07example\0", &[0, 1, 0, 1]]
            .concat();
    let socket = UdpSocket::bind("10.8.0.1:0").unwrap();
    socket.connect("10.7.0.1:5353").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut octets = [0; 512];
    let len = loop {
        assert!(Instant::now() < deadline, "dnsmasq does not answer");
        // Until dnsmasq listens, the far kernel refuses the query.
        match socket.send(&question).and_then(|_| socket.recv(&mut octets)) {
            Ok(len) => break len,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                thread::sleep(Duration::from_millis(50));
            }
            Err(_) => {}
        }
    };
    assert_eq!(octets[..2], question[..2]);
    assert_eq!(octets[len - 4..len], [10, 9, 0, 4], "{:x?}", &octets[..len]);
}
