//! What is measured, and which figures are held against each other.

use anyhow::Result;
use urnic::port::LowerLayer;
use urnic::time::Duration;

use crate::network::{Far, Link};
use crate::writes::Spec;
use crate::{others, raw, sockets, writes};

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Payload, in Gbit/s.
    Rate,
    /// Half a round trip, in µs.
    Latency,
}

impl Unit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "Gbit/s",
            Self::Latency => "µs",
        }
    }
}

/// Measures one figure.
type Run = Box<dyn Fn(&Far, Duration) -> Result<f64>>;

/// One figure of each round.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// The program it needs, and the Debian package that has it.
    pub(crate) needs: Option<(&'static str, &'static str)>,
    pub(crate) run: Run,
}

/// Two figures and what their ratio is to be.
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    pub(crate) numerator: &'static str,
    pub(crate) denominator: &'static str,
    /// At least (rates), at most (latencies).
    pub(crate) aim: f64,
}

const SUPER: Link = Link::Taps { mtu: 1500, vnet: true };
const SUPER_9000: Link = Link::Taps { mtu: 9000, vnet: true };
const PLAIN: Link = Link::Taps { mtu: 1500, vnet: false };
const PLAIN_9000: Link = Link::Taps { mtu: 9000, vnet: false };

const PACKET_SUPER: Link = Link::Packet { mtu: 1500, vnet: true };
const PACKET: Link = Link::Packet { mtu: 1500, vnet: false };

/// All cases, in the order they run.
pub(crate) fn cases() -> Vec<Case> {
    let on = Spec::on;
    let layered = |link| Spec { lower_layer: LowerLayer::Layered, ..on(link) };
    let unchecked = |link| Spec { crc: false, ..on(link) };
    let marked = |link| Spec { markers: true, ..on(link) };
    vec![
        raw("raw TAP, super-frames", SUPER),
        write("urnic TAP, super-frames", on(SUPER)),
        write("urnic TAP, super-frames, no CRC", unchecked(SUPER)),
        write("urnic TAP, super-frames, markers", marked(SUPER)),
        write("urnic TAP, super-frames, layered", layered(SUPER)),
        raw("raw TAP, super-frames, MTU 9000", SUPER_9000),
        write("urnic TAP, super-frames, MTU 9000", on(SUPER_9000)),
        write("urnic TAP, super-frames, MTU 9000, markers", marked(SUPER_9000)),
        raw("raw TAP, MTU 1500", PLAIN),
        write("urnic TAP, MTU 1500", on(PLAIN)),
        write("urnic TAP, MTU 1500, no CRC", unchecked(PLAIN)),
        write("urnic TAP, MTU 1500, markers", marked(PLAIN)),
        write("urnic TAP, MTU 1500, layered", layered(PLAIN)),
        smoltcp("smoltcp TAP, MTU 1500", PLAIN),
        raw("raw TAP, MTU 9000", PLAIN_9000),
        write("urnic TAP, MTU 9000", on(PLAIN_9000)),
        smoltcp("smoltcp TAP, MTU 9000", PLAIN_9000),
        raw("raw AF_PACKET, super-frames", PACKET_SUPER),
        write("urnic AF_PACKET, super-frames", on(PACKET_SUPER)),
        raw("raw AF_PACKET, MTU 1500", PACKET),
        write("urnic AF_PACKET, MTU 1500", on(PACKET)),
        raw("raw AF_XDP, MTU 1500", Link::Xdp),
        write("urnic AF_XDP, MTU 1500", on(Link::Xdp)),
        write("urnic kernel TCP, veth", on(Link::Kernel)),
        write("urnic kernel TCP, veth, no CRC", unchecked(Link::Kernel)),
        iperf3("iperf3 veth", true),
        iperf3("iperf3 veth, offloads off", false),
        ucx("UCX put, 64 KB, veth", Unit::Rate, |far, _| others::ucx_put_rate(far)),
        latency("urnic Write, 8 B, TAP", on(PLAIN), |(median, _)| median),
        latency("urnic Write, 8 B, TAP, 99th percentile", on(PLAIN), |(_, p99)| p99),
        latency("urnic Write, 8 B, kernel TCP", on(Link::Kernel), |(median, _)| median),
        ucx("UCX put, 8 B, veth", Unit::Latency, |far, _| others::ucx_put_latency(far)),
    ]
}

fn raw(name: &'static str, link: Link) -> Case {
    case(name, Unit::Rate, move |_, time| raw::rate(link, time))
}

fn write(name: &'static str, spec: Spec) -> Case {
    case(name, Unit::Rate, move |far, time| writes::write_rate(far, &spec, time))
}

fn smoltcp(name: &'static str, link: Link) -> Case {
    case(name, Unit::Rate, move |_, time| sockets::rate(link, time))
}

fn latency(name: &'static str, spec: Spec, of: fn((f64, f64)) -> f64) -> Case {
    case(name, Unit::Latency, move |far, _| {
        Ok(of(writes::write_latency(far, &spec, LATENCY_ROUNDS)?))
    })
}

fn iperf3(name: &'static str, offloads: bool) -> Case {
    let run = move |far: &Far, time| others::iperf3(far, offloads, time);
    Case { needs: Some(("iperf3", "iperf3")), ..case(name, Unit::Rate, run) }
}

fn ucx(name: &'static str, unit: Unit, run: fn(&Far, Duration) -> Result<f64>) -> Case {
    Case { needs: Some(("ucx_perftest", "ucx-utils")), ..case(name, unit, run) }
}

fn case(
    name: &'static str,
    unit: Unit,
    run: impl Fn(&Far, Duration) -> Result<f64> + 'static,
) -> Case {
    Case { name, unit, needs: None, run: Box::new(run) }
}

/// What the project aims at.
pub(crate) const RATIOS: &[Ratio] = &[
    Ratio {
        name: "super-frames, of the raw rate",
        numerator: "urnic TAP, super-frames",
        denominator: "raw TAP, super-frames",
        aim: 0.65,
    },
    Ratio {
        name: "super-frames at MTU 9000, of the raw rate",
        numerator: "urnic TAP, super-frames, MTU 9000",
        denominator: "raw TAP, super-frames, MTU 9000",
        aim: 0.65,
    },
    Ratio {
        name: "super-frames, to iperf3",
        numerator: "urnic TAP, super-frames",
        denominator: "iperf3 veth",
        aim: 2.0,
    },
    Ratio {
        name: "super-frames, to UCX put",
        numerator: "urnic TAP, super-frames",
        denominator: "UCX put, 64 KB, veth",
        aim: 5.0,
    },
    Ratio {
        name: "markers, of none",
        numerator: "urnic TAP, super-frames, markers",
        denominator: "urnic TAP, super-frames",
        aim: 0.8,
    },
    Ratio {
        name: "plain frames, of the raw rate",
        numerator: "urnic TAP, MTU 1500",
        denominator: "raw TAP, MTU 1500",
        aim: 0.85,
    },
    Ratio {
        name: "plain frames, to smoltcp",
        numerator: "urnic TAP, MTU 1500",
        denominator: "smoltcp TAP, MTU 1500",
        aim: 1.0,
    },
    Ratio {
        name: "kernel TCP, of iperf3",
        numerator: "urnic kernel TCP, veth",
        denominator: "iperf3 veth",
        aim: 0.8,
    },
    Ratio {
        name: "latency, to UCX",
        numerator: "urnic Write, 8 B, TAP",
        denominator: "UCX put, 8 B, veth",
        aim: 1.0,
    },
    Ratio {
        name: "99th percentile, to the median",
        numerator: "urnic Write, 8 B, TAP, 99th percentile",
        denominator: "urnic Write, 8 B, TAP",
        aim: 3.0,
    },
];

const LATENCY_ROUNDS: usize = 10_000;
