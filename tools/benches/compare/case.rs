//! The cases to measure, and the figures that are compared with each other.

use anyhow::Result;
use urnic_engine::port::LowerLayer;
use urnic_engine::stream::SendPath;
use urnic_engine::time::Duration;

use crate::network::{Far, Link};
use crate::writes::Spec;
use crate::{others, raw, sockets, testpmd, writes};

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Payload, in Gbit/s.
    Rate,
    /// Payload, in Mbit/s.
    Goodput,
    /// Time of a message in µs: half a round trip; for Reads and Atomics from post to completion.
    Latency,
    /// Messages, in millions per second.
    Messages,
    /// Share of the payload of all flows together, in percent.
    Share,
    /// Jain's index of fairness: 1 if all flows have the same rate.
    Fairness,
}

impl Unit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "Gbit/s",
            Self::Goodput => "Mbit/s",
            Self::Latency => "µs",
            Self::Messages => "M/s",
            Self::Share => "%",
            Self::Fairness => "Jain",
        }
    }
}

/// Measures one figure.
type Run = Box<dyn Fn(&Far, Duration) -> Result<f64>>;

/// One figure of each round.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// The program that it needs, and the Debian package of that program.
    pub(crate) needs: Option<(&'static str, &'static str)>,
    pub(crate) run: Run,
}

/// Two figures, and the aim for their ratio.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    pub(crate) name: String,
    pub(crate) numerator: String,
    pub(crate) denominator: String,
    /// Minimum for rates, maximum for latencies.
    pub(crate) aim: f64,
}

const SUPER: Link = Link::Taps { mtu: 1500, vnet: true };
const SUPER_9000: Link = Link::Taps { mtu: 9000, vnet: true };
/// The most that one IP datagram carries: one FPDU is a frame.
const SUPER_65000: Link = Link::Taps { mtu: 65_000, vnet: true };
const PLAIN: Link = Link::Taps { mtu: 1500, vnet: false };
const PLAIN_9000: Link = Link::Taps { mtu: 9000, vnet: false };

const PACKET_SUPER: Link = Link::Packet { mtu: 1500, vnet: true };
const PACKET: Link = Link::Packet { mtu: 1500, vnet: false };

const SHARED: Link = Link::Shared { mtu: 1500, turned: false };
const SHARED_TURNED: Link = Link::Shared { mtu: 1500, turned: true };
const SHARING: Link = Link::Sharing { mtu: 1500 };
const PUBLISHED: Link = Link::Published { mtu: 1500 };
const SHARED_65000: Link = Link::Shared { mtu: 65_000, turned: false };

/// Returns all cases in the order of their runs: figures to compare are measured close together.
pub(crate) fn cases() -> Vec<Case> {
    let groups = [
        super_frames(),
        shared_memory(),
        long_super_frames(),
        plain_frames(),
        sockets_of_interfaces(),
        kernel_tcp(),
        latencies(),
    ];
    groups.into_iter().flatten().collect()
}

/// TAP interfaces with super-frames, MTU 1500.
fn super_frames() -> Vec<Case> {
    vec![
        raw("raw TAP, super-frames", SUPER),
        case("raw TAP, super-frames, gathered", Unit::Rate, |far, time| {
            raw::gathered_rate(far, SUPER, time)
        }),
        case("raw TAP, super-frames, checked", Unit::Rate, |far, time| {
            raw::checked_rate(far, SUPER, time)
        }),
        write("urnic TAP, super-frames", on(SUPER)),
        write("urnic TAP, super-frames, gathered", gathered(on(SUPER))),
        write("urnic TAP, super-frames, staged", staged(on(SUPER))),
        write("urnic TAP, super-frames, no CRC", unchecked(SUPER)),
        write("urnic TAP, super-frames, markers", marked(SUPER)),
        write("urnic TAP, super-frames, markers, gathered", gathered(marked(SUPER))),
        write("urnic TAP, super-frames, markers, staged", staged(marked(SUPER))),
        write("urnic TAP, super-frames, layered", layered(SUPER)),
    ]
}

/// vhost-user.
fn shared_memory() -> Vec<Case> {
    vec![
        raw("raw vhost-user, super-frames", SHARED),
        case("raw vhost-user, super-frames, checked", Unit::Rate, |far, time| {
            raw::checked_rate(far, SHARED, time)
        }),
        Case {
            needs: Some(("dpdk-testpmd", "dpdk-dev")),
            ..case("testpmd vhost-user, MTU 1500", Unit::Rate, |_, time| testpmd::rate(time))
        },
        write("urnic vhost-user, frontend", on(SHARED)),
        write("urnic vhost-user, frontend, staged", staged(on(SHARED))),
        write("urnic vhost-user, frontend, no CRC", unchecked(SHARED)),
        write("urnic vhost-user, frontend, markers", marked(SHARED)),
        write("urnic vhost-user, frontend shares", on(SHARING)),
        write("urnic vhost-user, backend", on(SHARED_TURNED)),
        write("urnic vhost-user, frontend, MTU 65000", on(SHARED_65000)),
        case("raw shm, super-frames, checked", Unit::Rate, |far, time| {
            raw::checked_rate(far, PUBLISHED, time)
        }),
        write("urnic shm", on(PUBLISHED)),
        write("urnic shm, no CRC", unchecked(PUBLISHED)),
        write("urnic shm, markers", marked(PUBLISHED)),
        write("urnic shm, MTU 65000", on(Link::Published { mtu: 65_000 })),
    ]
}

/// TAP interfaces with super-frames, larger MTU.
fn long_super_frames() -> Vec<Case> {
    vec![
        raw("raw TAP, super-frames, MTU 9000", SUPER_9000),
        write("urnic TAP, super-frames, MTU 9000", on(SUPER_9000)),
        write("urnic TAP, super-frames, MTU 9000, gathered", gathered(on(SUPER_9000))),
        write("urnic TAP, super-frames, MTU 9000, staged", staged(on(SUPER_9000))),
        write("urnic TAP, super-frames, MTU 9000, markers", marked(SUPER_9000)),
        raw("raw TAP, MTU 65000", SUPER_65000),
        write("urnic TAP, MTU 65000", on(SUPER_65000)),
        write("urnic TAP, MTU 65000, staged", staged(on(SUPER_65000))),
    ]
}

/// TAP interfaces without super-frames.
fn plain_frames() -> Vec<Case> {
    vec![
        raw("raw TAP, MTU 1500", PLAIN),
        write("urnic TAP, MTU 1500", on(PLAIN)),
        write("urnic TAP, MTU 1500, gathered", gathered(on(PLAIN))),
        write("urnic TAP, MTU 1500, staged", staged(on(PLAIN))),
        write("urnic TAP, MTU 1500, no CRC", unchecked(PLAIN)),
        write("urnic TAP, MTU 1500, markers", marked(PLAIN)),
        write("urnic TAP, MTU 1500, layered", layered(PLAIN)),
        smoltcp("smoltcp TAP, MTU 1500", PLAIN),
        raw("raw TAP, MTU 9000", PLAIN_9000),
        write("urnic TAP, MTU 9000", on(PLAIN_9000)),
        smoltcp("smoltcp TAP, MTU 9000", PLAIN_9000),
    ]
}

/// Packet sockets and AF_XDP.
fn sockets_of_interfaces() -> Vec<Case> {
    vec![
        raw("raw AF_PACKET, super-frames", PACKET_SUPER),
        write("urnic AF_PACKET, super-frames", on(PACKET_SUPER)),
        write("urnic AF_PACKET, super-frames, gathered", gathered(on(PACKET_SUPER))),
        write("urnic AF_PACKET, super-frames, staged", staged(on(PACKET_SUPER))),
        raw("raw AF_PACKET, MTU 1500", PACKET),
        write("urnic AF_PACKET, MTU 1500", on(PACKET)),
        raw("raw AF_XDP, MTU 1500", Link::Xdp),
        write("urnic AF_XDP, MTU 1500", on(Link::Xdp)),
    ]
}

/// The kernel's TCP, ours over it and others'.
fn kernel_tcp() -> Vec<Case> {
    vec![
        write("urnic kernel TCP, veth", on(Link::Kernel)),
        write("urnic kernel TCP, veth, gathered", gathered(on(Link::Kernel))),
        write("urnic kernel TCP, veth, staged", staged(on(Link::Kernel))),
        write("urnic kernel TCP, veth, no CRC", unchecked(Link::Kernel)),
        iperf3("iperf3 veth", true),
        iperf3("iperf3 veth, offloads off", false),
        ucx("UCX put, 64 KB, veth", Unit::Rate, |far, _| others::ucx_put_rate(far)),
    ]
}

/// Cases of latency: half a round trip.
fn latencies() -> Vec<Case> {
    vec![
        latency("urnic Write, 8 B, TAP", on(PLAIN), |(median, _)| median),
        latency("urnic Write, 8 B, TAP, super-frames", on(SUPER), |(median, _)| median),
        latency("urnic Write, 8 B, TAP, 99th percentile", on(PLAIN), |(_, p99)| p99),
        latency("urnic Write, 8 B, vhost-user", on(SHARED), |(median, _)| median),
        latency("urnic Write, 8 B, vhost-user, 99th percentile", on(SHARED), |(_, p99)| p99),
        latency("urnic Write, 8 B, shm", on(PUBLISHED), |(median, _)| median),
        latency("urnic Write, 8 B, shm, 99th percentile", on(PUBLISHED), |(_, p99)| p99),
        latency("urnic Write, 8 B, kernel TCP", on(Link::Kernel), |(median, _)| median),
        ucx("UCX put, 8 B, veth", Unit::Latency, |far, _| others::ucx_put_latency(far)),
    ]
}

const fn on(link: Link) -> Spec {
    Spec::on(link)
}

const fn layered(link: Link) -> Spec {
    Spec { lower_layer: LowerLayer::Layered, ..on(link) }
}

const fn unchecked(link: Link) -> Spec {
    Spec { crc: false, ..on(link) }
}

const fn marked(link: Link) -> Spec {
    Spec { markers: true, ..on(link) }
}

const fn gathered(spec: Spec) -> Spec {
    Spec { send_path: SendPath::Gather, ..spec }
}

const fn staged(spec: Spec) -> Spec {
    Spec { send_path: SendPath::Stage, ..spec }
}

fn raw(name: &str, link: Link) -> Case {
    case(name, Unit::Rate, move |far, time| raw::rate(far, link, time))
}

fn write(name: &str, spec: Spec) -> Case {
    case(name, Unit::Rate, move |far, time| writes::write_rate(far, &spec, time))
}

fn smoltcp(name: &str, link: Link) -> Case {
    case(name, Unit::Rate, move |far, time| sockets::rate(far, link, time))
}

fn latency(name: &str, spec: Spec, of: fn((f64, f64)) -> f64) -> Case {
    case(name, Unit::Latency, move |far, _| {
        Ok(of(writes::write_latency(far, &spec, LATENCY_ROUNDS)?))
    })
}

fn iperf3(name: &str, offloads: bool) -> Case {
    let run = move |far: &Far, time| others::iperf3(far, offloads, time);
    Case { needs: Some(("iperf3", "iperf3")), ..case(name, Unit::Rate, run) }
}

fn ucx(name: &str, unit: Unit, run: fn(&Far, Duration) -> Result<f64>) -> Case {
    Case { needs: Some(("ucx_perftest", "ucx-utils")), ..case(name, unit, run) }
}

pub(crate) fn case(
    name: &str,
    unit: Unit,
    run: impl Fn(&Far, Duration) -> Result<f64> + 'static,
) -> Case {
    Case { name: name.to_owned(), unit, needs: None, run: Box::new(run) }
}

/// Ratios that the project aims at.
pub(crate) fn ratios() -> Vec<Ratio> {
    [ratios_of_interfaces(), ratios_of_shared_memory()].into_iter().flatten().collect()
}

fn ratios_of_shared_memory() -> Vec<Ratio> {
    let ratio = Ratio::new;
    vec![
        ratio(
            "vhost-user, to super-frames over TAP",
            ("urnic vhost-user, frontend", "urnic TAP, super-frames"),
            2.5,
        ),
        ratio(
            "vhost-user, to UCX put",
            ("urnic vhost-user, frontend", "UCX put, 64 KB, veth"),
            8.0,
        ),
        ratio(
            "vhost-user, of the raw rate with CRC and copy",
            ("urnic vhost-user, frontend", "raw vhost-user, super-frames, checked"),
            0.8,
        ),
        ratio(
            "vhost-user, markers, of none",
            ("urnic vhost-user, frontend, markers", "urnic vhost-user, frontend"),
            0.85,
        ),
        ratio(
            "vhost-user, shared, to copied",
            ("urnic vhost-user, frontend shares", "urnic vhost-user, frontend"),
            1.0,
        ),
        ratio("shm, to vhost-user", ("urnic shm", "urnic vhost-user, frontend"), 1.0),
        ratio(
            "shm, of the raw rate with CRC and copy",
            ("urnic shm", "raw shm, super-frames, checked"),
            0.8,
        ),
        ratio("shm, to UCX put", ("urnic shm", "UCX put, 64 KB, veth"), 8.0),
        ratio(
            "latency over vhost-user, to TAP",
            ("urnic Write, 8 B, vhost-user", "urnic Write, 8 B, TAP"),
            0.5,
        ),
        ratio(
            "99th percentile over vhost-user, to the median",
            ("urnic Write, 8 B, vhost-user, 99th percentile", "urnic Write, 8 B, vhost-user"),
            3.0,
        ),
    ]
}

fn ratios_of_interfaces() -> Vec<Ratio> {
    let ratio = Ratio::new;
    vec![
        ratio(
            "super-frames, of the raw rate",
            ("urnic TAP, super-frames", "raw TAP, super-frames"),
            0.65,
        ),
        ratio(
            "super-frames, of the raw rate gathered",
            ("urnic TAP, super-frames", "raw TAP, super-frames, gathered"),
            0.8,
        ),
        ratio(
            "super-frames at MTU 9000, of the raw rate",
            ("urnic TAP, super-frames, MTU 9000", "raw TAP, super-frames, MTU 9000"),
            0.65,
        ),
        ratio("MTU 65000, of the raw rate", ("urnic TAP, MTU 65000", "raw TAP, MTU 65000"), 0.65),
        ratio("super-frames, to iperf3", ("urnic TAP, super-frames", "iperf3 veth"), 2.0),
        ratio("super-frames, to UCX put", ("urnic TAP, super-frames", "UCX put, 64 KB, veth"), 5.0),
        ratio("MTU 65000, to iperf3", ("urnic TAP, MTU 65000", "iperf3 veth"), 2.0),
        ratio("MTU 65000, to UCX put", ("urnic TAP, MTU 65000", "UCX put, 64 KB, veth"), 5.0),
        ratio(
            "markers, of none",
            ("urnic TAP, super-frames, markers", "urnic TAP, super-frames"),
            0.85,
        ),
        ratio("plain frames, of the raw rate", ("urnic TAP, MTU 1500", "raw TAP, MTU 1500"), 0.85),
        ratio("plain frames, to smoltcp", ("urnic TAP, MTU 1500", "smoltcp TAP, MTU 1500"), 1.0),
        ratio("kernel TCP, of iperf3", ("urnic kernel TCP, veth", "iperf3 veth"), 0.8),
        ratio("latency, to UCX", ("urnic Write, 8 B, TAP", "UCX put, 8 B, veth"), 1.0),
        ratio(
            "99th percentile, to the median",
            ("urnic Write, 8 B, TAP, 99th percentile", "urnic Write, 8 B, TAP"),
            3.0,
        ),
    ]
}

impl Ratio {
    pub(crate) fn new(name: &str, (over, under): (&str, &str), aim: f64) -> Self {
        let [name, numerator, denominator] = [name, over, under].map(str::to_owned);
        Self { name, numerator, denominator, aim }
    }
}

const LATENCY_ROUNDS: usize = 10_000;
