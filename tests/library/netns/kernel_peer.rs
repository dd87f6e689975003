//! Engines against the layered stack over the kernel's TCP, which cuts and merges segments
//! arbitrarily.

use urnic::StartupConfig;
use urnic_netdev::Device;

use crate::netns::packet::open;
use crate::netns::stations::{Station, close, connect, exchange, give_kernel};
use urnic_testkit::isolate::{in_user_namespace, netns_tests};
use urnic_testkit::network::{Namespace, command, tap, veth};
use urnic_testkit::pair::{A, B};
use urnic_testkit::programs::program;
use urnic_testkit::skip;

/// Bytes that each side writes, sends and reads.
const LEN: usize = 8 << 20;

/// Returns the settings that a side requests.
fn asking(markers: bool) -> StartupConfig {
    StartupConfig { markers, ..StartupConfig::default() }
}

/// Moves data with either side connecting, over IPv4 with every choice of markers, and over IPv6.
fn both_roles(engine: &mut Station, kernel: &mut Station, super_frames: bool, what: &str) {
    let choices = [
        (false, [false, false]),
        (false, [false, true]),
        (false, [true, false]),
        (false, [true, true]),
        (true, [true, false]),
    ];
    for (ipv6, [by_engine, by_kernel]) in choices {
        for engine_connects in [true, false] {
            let what = format!(
                "{what}, IPv6 {ipv6}, markers asked by the engine {by_engine}, by the kernel's \
                 side {by_kernel}, engine connects {engine_connects}"
            );
            let asked = [asking(by_engine), asking(by_kernel)];
            let [of_engine, of_kernel] = if engine_connects {
                connect(engine, kernel, ipv6, asked)
            } else {
                let [first, second] = connect(kernel, engine, ipv6, [asked[1], asked[0]]);
                [second, first]
            };
            exchange(engine, kernel, LEN, &what);
            let counters = of_engine.counters().unwrap();
            assert_eq!(counters.mpa.crc_bad, 0, "{what}");
            assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
            let alignment = counters.alignment;
            if counters.tcp.retransmissions == 0 {
                assert_eq!(alignment.segments_aligned, alignment.segments, "{what}");
            }
            if super_frames {
                assert!(alignment.frames * 2 < alignment.segments, "{what}: {alignment:?}");
            }
            let counters = of_kernel.counters().unwrap();
            assert_eq!(counters.mpa.crc_bad, 0, "{what}");
            assert!(counters.rdma.bytes_placed >= 3 * LEN as u64, "{what}: {counters:?}");
            close([of_engine, of_kernel]);
        }
    }
}

/// Connects an engine on a TAP with the kernel that owns the interface.
fn on_a_tap(mtu: usize, vnet_header: bool) {
    let device = tap("tap-a", mtu, vnet_header);
    give_kernel(A, "tap-a");
    let (mut engine, mut kernel) = (Station::engine(B, device), Station::kernel(A));
    let what = format!("MTU {mtu}, virtio_net_hdr {vnet_header}");
    both_roles(&mut engine, &mut kernel, vnet_header, &what);
}

/// Returns the number of segments that the kernel's TCP has received in the calling thread's
/// namespace; merged ones count once.
fn segments_received() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut columns = names.split(' ').zip(values.split(' '));
    columns.find(|(name, _)| *name == "InSegs").unwrap().1.parse().unwrap()
}

/// Turns GRO on, and makes received frames wait for others to merge with, because a veth would
/// handle each one alone. The settings are in the `/sys` of the calling thread's namespace.
fn merge_on_veth_b() {
    command("ethtool", "-K veth-b gro on tso off");
    let script = "mount -t sysfs sysfs /sys && cd /sys/class/net/veth-b && \
                  echo 100 >napi_defer_hard_irqs && echo 200000 >gro_flush_timeout";
    let set = program("unshare").args(["--mount", "--", "sh", "-c", script]).output().unwrap();
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
}

/// Transfers over veth to the kernel of another namespace, which merges received segments and cuts
/// sent ones in software.
fn cut_and_merged<D: Device + Send + 'static>(device: D, far: &Namespace, what: &str) {
    // The packet socket's engine has the first of the two addresses.
    let mut engine = Station::engine(A, device);
    let mut kernel = far.run(|| {
        give_kernel(B, "veth-b");
        Station::kernel(B)
    });
    for markers in [false, true] {
        let before = far.run(segments_received);
        let asked = [asking(markers); 2];
        let connections = connect(&mut engine, &mut kernel, false, asked);
        exchange(&engine, &kernel, LEN, what);
        let counters = connections[0].counters().unwrap();
        let merged = far.run(segments_received) - before;
        let sent = counters.alignment.segments;
        assert!(sent > 16 << 10, "{what}: {sent} segments of 1500 carry three times 8 MiB");
        assert!(merged * 2 < sent, "{what}: {sent} segments sent, {merged} came to TCP");
        assert_eq!(counters.mpa.crc_bad, 0, "{what}");
        close(connections);
    }
}

netns_tests! {
    with ["/dev/net/tun"];

    fn plain_frames_of_1500_move_every_octet() {
        on_a_tap(1500, false);
    }

    fn plain_frames_of_9000_move_every_octet() {
        on_a_tap(9000, false);
    }

    fn super_frames_of_1500_move_every_octet() {
        on_a_tap(1500, true);
    }

    fn super_frames_of_9000_move_every_octet() {
        on_a_tap(9000, true);
    }
}

mod merging {
    use super::*;

    /// The kernel requires the capability in its first user namespace.
    const NO_TIMERS: &str = "no right to set the timers of GRO in a user namespace";

    netns_tests! {
        with ["ethtool"];

        /// Each frame of the engine is a segment; the kernel's GRO merges them before its TCP sees
        /// them.
        fn frames_merged_by_the_kernel_move_every_octet() {
            if in_user_namespace() {
                return skip("frames merged by the kernel", NO_TIMERS);
            }
            let far = Namespace::new();
            veth(1500, &far);
            // A veth merges nothing from an end that could cut super-frames.
            command("ethtool", "-K veth-a tso off");
            far.run(merge_on_veth_b);
            cut_and_merged(open("veth-a", false), &far, "plain frames");
        }

        /// The kernel's GSO cuts the engine's super-frames, and its GRO merges the pieces
        /// differently.
        fn super_frames_cut_and_merged_by_the_kernel_move_every_octet() {
            if in_user_namespace() {
                return skip("super-frames cut and merged by the kernel", NO_TIMERS);
            }
            let far = Namespace::new();
            veth(1500, &far);
            command("ethtool", "-K veth-a tso off");
            far.run(merge_on_veth_b);
            cut_and_merged(open("veth-a", true), &far, "super-frames");
        }
    }
}
