//! Engines on AF_XDP sockets, over veth between two namespaces.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use urnic_engine::time::Duration;
use urnic_netdev::xdp::{MTU_MAX, XdpConfig, XdpSocket};
use urnic_netdev::{Device, OpenError};

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::pair::{A, B, v6};
use urnic_testkit::programs::is_there;
use urnic_testkit::skip;

use crate::netns::packet::{self, MACS};
use crate::netns::scene::{Scene, Setup};
use urnic_testkit::network::{Namespace, command, ip, veth, xdp_refusal};

const LEN: usize = 8 << 20;
/// Environment variable that makes a child hold an XDP program until it is killed.
const HOLDER: &str = "URNIC_NETNS_XDP_HOLDER";

fn with_config<R>(name: &str, test: impl FnOnce(XdpConfig<'_>) -> R) -> R {
    let which = usize::from(name == "veth-b");
    let address = [A, B][which];
    let addresses = [IpAddr::V4(address), IpAddr::V6(v6(address))];
    let mac = Some(MACS[which]);
    test(XdpConfig { mac, ..XdpConfig::new(name.parse().unwrap(), &addresses) })
}

fn open(name: &str, native: bool) -> XdpSocket {
    with_config(name, |config| XdpSocket::open(&XdpConfig { native, ..config }).unwrap())
}

/// Returns a veth pair with an XDP socket on each end.
fn pair(mtu: usize, native: bool, peer: &Namespace) -> (XdpSocket, XdpSocket) {
    veth(mtu, peer);
    (open("veth-a", native), peer.run(|| open("veth-b", native)))
}

/// Moves data with every combination of addresses and markers.
fn exchange(mtu: usize, native: bool) {
    let peer = Namespace::new();
    let (mut a, mut b) = pair(mtu, native, &peer);
    assert_eq!(a.mode().native, native, "{:?}", a.mode());
    for setup in Setup::matrix() {
        let what = format!("MTU {mtu}, native {native}, {setup:?}");
        let mut scene = Scene::connect(&mut a, &mut b, &setup);
        scene.exchange(LEN, &what);
        for counters in [scene.a.counters(), scene.b.counters()] {
            let alignment = counters.alignment;
            assert_eq!(counters.mpa.crc_bad, 0, "{what}");
            assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
            if counters.tcp.retransmissions == 0 {
                assert_eq!(alignment.segments_aligned, alignment.segments, "{what}");
            }
        }
    }
    assert_eq!((a.bad_entries(), b.bad_entries()), (0, 0));
}

fn has_program(interface: &str) -> bool {
    ip(&format!("-d link show {interface}")).contains("prog/xdp")
}

/// Defines tests that need the right to load programs, which a user namespace does not give.
macro_rules! xdp_tests {
    ($($(#[$doc:meta])* fn $name:ident() $body:block)*) => {
        netns_tests! {$(
            $(#[$doc])*
            fn $name() {
                if let Some(reason) = xdp_refusal() {
                    return skip(stringify!($name), &reason);
                }
                $body
            }
        )*}
    };
}

xdp_tests! {
    fn frames_of_1500_move_every_octet() {
        exchange(1500, true);
    }

    fn frames_of_3000_move_every_octet() {
        exchange(3000, true);
    }

    fn generic_mode_moves_every_octet_too() {
        exchange(1500, false);
    }

    fn generic_mode_moves_every_octet_of_frames_of_3000() {
        exchange(3000, false);
    }

    fn a_packet_socket_is_a_peer_like_any_other() {
        let peer = Namespace::new();
        veth(1500, &peer);
        let (a, b) = (open("veth-a", true), peer.run(|| packet::open("veth-b", false)));
        let mut scene = Scene::connect(a, b, &Setup::default());
        scene.exchange(LEN, "XDP to packet socket");
    }

    /// The peer leaves cutting and checksums to its interface, whose offloads are on.
    fn a_peer_with_offloads_switched_off_is_understood() {
        if !is_there("ethtool") {
            return skip("a peer with offloads switched off", "`ethtool` is missing");
        }
        let peer = Namespace::new();
        veth(1500, &peer);
        let a = open("veth-a", true);
        let b = peer.run(|| {
            command("ethtool", "-K veth-b tx off");
            packet::open("veth-b", true)
        });
        let mut scene = Scene::connect(a, b, &Setup::default());
        scene.exchange(LEN, "XDP to packet socket with super-frames");
    }

    fn a_driver_without_zero_copy_is_used_with_copies_and_says_why() {
        let peer = Namespace::new();
        veth(1500, &peer);
        let a = with_config("veth-a", |config| {
            XdpSocket::open(&XdpConfig { zero_copy: true, ..config }).unwrap()
        });
        let mode = a.mode();
        assert!(mode.native && !mode.zero_copy, "{mode:?}");
        assert!(mode.fallbacks[0].contains("veth-a has no zero-copy mode: "), "{mode:?}");
        let b = peer.run(|| open("veth-b", true));
        Scene::connect(a, b, &Setup::default()).exchange(LEN, "after the fallback");
    }

    fn a_driver_without_xdp_is_used_from_behind_and_says_why() {
        urnic_testkit::network::bridge("bridge0", &[]);
        let socket = with_config("bridge0", |config| XdpSocket::open(&config)).unwrap();
        let mode = socket.mode();
        assert!(!mode.native && !mode.zero_copy, "{mode:?}");
        assert!(mode.fallbacks[0].contains("bridge0 takes no XDP program"), "{mode:?}");
    }

    fn a_transfer_outlives_an_interface_taken_down_and_up() {
        let peer = Namespace::new();
        let (a, b) = pair(1500, true, &peer);
        let mut scene = Scene::connect(a, b, &Setup::default());
        scene.exchange(1 << 20, "before");
        scene.post_writes(64);
        ip("link set veth-a down");
        let noticed =
            scene.run_for(Duration::from_secs(5), |scene| !scene.a.poller.device.link_up());
        assert!(noticed, "the link is down");
        ip("link set veth-a up");
        assert!(scene.completes(64), "what was posted before: {:?}", scene.a.counters());
        scene.exchange(1 << 20, "after");
    }

    fn an_interface_deleted_and_made_again_is_opened_again() {
        let peer = Namespace::new();
        let (mut a, b) = pair(1500, true, &peer);
        drop(b);
        ip("link del veth-a");
        a.receive(1 << 40, 1, &mut |_| ());
        assert!(!a.link_up() && a.readiness().is_none(), "gone");
        veth(1500, &peer);
        a.receive(2 << 40, 1, &mut |_| ());
        assert!(a.link_up() && has_program("veth-a"), "back");
        let b = peer.run(|| open("veth-b", true));
        Scene::connect(a, b, &Setup::default()).exchange(1 << 20, "after");
    }

    fn the_program_goes_with_the_socket() {
        let peer = Namespace::new();
        veth(1500, &peer);
        let socket = open("veth-a", true);
        assert!(has_program("veth-a"), "{}", ip("-d link show veth-a"));
        drop(socket);
        assert!(!has_program("veth-a"), "{}", ip("-d link show veth-a"));
    }

    fn the_program_goes_with_a_killed_process() {
        if std::env::var_os(HOLDER).is_some() {
            let _held = open("veth-a", true);
            std::fs::write("/dev/fd/1", "attached\n").unwrap();
            loop {
                std::thread::park();
            }
        }
        let peer = Namespace::new();
        veth(1500, &peer);
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "netns::xdp::the_program_goes_with_a_killed_process", "--nocapture"])
            .env(HOLDER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        let output = holder.stdout.as_mut().unwrap();
        while !told.contains("attached") {
            let mut octet = [0];
            assert_eq!(output.read(&mut octet).unwrap(), 1, "it ended early: {told}");
            told.push(char::from(octet[0]));
        }
        assert!(has_program("veth-a"), "held");
        // SIGKILL ends the process at once.
        holder.kill().unwrap();
        holder.wait().unwrap();
        let gone = (0..100).any(|_| {
            command("sleep", "0.01");
            !has_program("veth-a")
        });
        assert!(gone, "{}", ip("-d link show veth-a"));
    }

    fn frames_of_other_queues_are_left_to_the_kernel() {
        ip("link add veth-a numrxqueues 2 numtxqueues 2 type veth \
            peer name veth-b numrxqueues 1 numtxqueues 1");
        ip("link set veth-a up");
        ip("link set veth-b up");
        let second = with_config("veth-a", |config| {
            XdpSocket::open(&XdpConfig { queue: 1, ..config })
        });
        let mut second = second.unwrap();
        let mut seen = packet::open("veth-a", true);
        let mut peer = packet::open("veth-b", true);
        // The peer has one queue, so everything it sends arrives on queue 0.
        packet::send_to_a(&mut peer);
        assert_eq!(packet::received(&mut seen, 1).len(), 1, "by the kernel's stack");
        assert_eq!(second.receive(0, 8, &mut |_| ()), 0, "not by the socket");
    }

    fn xdp_socket_errors_name_a_remedy() {
        let name = "nope".parse().unwrap();
        let error = XdpSocket::open(&XdpConfig::new(name, &[])).unwrap_err();
        assert!(error.to_string().contains("there are: lo"), "{error}");
        let peer = Namespace::new();
        veth(1500, &peer);
        let open_with = |change: fn(&mut XdpConfig<'_>)| {
            with_config("veth-a", |mut config| {
                change(&mut config);
                XdpSocket::open(&config).unwrap_err()
            })
        };
        let error = open_with(|config| config.queue = 7);
        assert_eq!(error.to_string(), "interface queue 7 is outside 0 to 0");
        let held = open("veth-a", true);
        let error = open_with(|_| ());
        assert!(matches!(error, OpenError::Busy { .. }), "{error}");
        assert!(error.to_string().contains("xdp off"), "{error}");
        drop(held);
        ip("addr add 10.0.0.1/24 dev veth-a");
        let error = open_with(|_| ()).to_string();
        let wanted = "10.0.0.1 is already answered by the kernel (it is set on veth-a)";
        assert!(error.contains(wanted), "{error}");
        ip("addr del 10.0.0.1/24 dev veth-a");
        ip("link set veth-a mtu 9000");
        let error = open_with(|_| ()).to_string();
        let wanted = format!("its MTU is 9000, the largest {MTU_MAX}");
        assert!(error.contains(&wanted), "{error}");
    }
}
