//! Other people's programs on urnic's verbs (`urnic run`), next to urnic's own commands, UCX and
//! libfabric with the same work: over the kernel's TCP between two namespaces, or through memory
//! that both processes share.

mod figures;

use crate::case::{Case, Ratio, Unit, case};
use crate::others::{self, Transport, Ucx};
use figures::{FiProvider, Link, by_fabric, by_perftest, by_urnic};
use figures::{MEDIAN, P99, P99_9, RATE};
pub(crate) use figures::{Server, URNIC, output};

/// Lengths of messages.
const SIZES: [usize; 7] = [8, 64, 512, 4096, 65_536, 1 << 20, 8 << 20];
/// Operations in flight when a rate is measured: perftest's own default.
const DEPTH: usize = 128;
/// Bytes to move for a rate, and bounds for the number of messages.
const MOVED_LEN: usize = 1 << 30;
const MESSAGES: std::ops::RangeInclusive<usize> = 200..=200_000;

/// Largest length for which times are reported up to the 99.9th percentile.
const SHORT_MAX: usize = 4096;

/// Returns cases for every size and program.
pub(crate) fn cases() -> Vec<Case> {
    SIZES.into_iter().flat_map(of_size).collect()
}

fn of_size(len: usize) -> Vec<Case> {
    let mut cases = latencies(len);
    if len <= SHORT_MAX {
        let (label, times) = (", 99.9th percentile", iterations(len).min(5_000));
        cases.extend([
            perftest(len, "ib_write_lat", label, (P99_9, Unit::Latency), times),
            urnic(len, "lat", label, "p99_9_us", Link::Kernel),
            urnic(len, "lat", ", vhost-user, 99.9th percentile", "p99_9_us", Link::VhostUser),
            ucx(len, "put_lat", label, (Transport::Tcp, Ucx::P99_9), times),
            ucx(
                len,
                "put_lat",
                ", memory, 99.9th percentile",
                (Transport::Memory, Ucx::P99_9),
                times,
            ),
        ]);
    }
    cases.extend(rates(len));
    cases.extend(operations(len));
    cases
}

/// All operations except Write, which other cases measure, by perftest and by urnic's own commands.
const OPERATIONS: [Operation; 3] = [
    Operation { op: "send", lat: "ib_send_lat", bw: "ib_send_bw" },
    Operation { op: "read", lat: "ib_read_lat", bw: "ib_read_bw" },
    Operation { op: "fetch-add", lat: "ib_atomic_lat", bw: "ib_atomic_bw" },
];
/// Lengths at which operations are compared.
const OPERATION_SIZES: [usize; 2] = [8, 65_536];

/// An operation as `urnic lat` and `urnic bw` call it, and the programs of perftest that measure it.
#[derive(Clone, Copy, Debug)]
struct Operation {
    op: &'static str,
    lat: &'static str,
    bw: &'static str,
}

impl Operation {
    /// Operations that have messages of `len` bytes.
    fn of(len: usize) -> impl Iterator<Item = Self> {
        let is_compared = OPERATION_SIZES.contains(&len);
        let has_len = move |one: &Self| is_compared && (len == 8 || one.op != "fetch-add");
        OPERATIONS.into_iter().filter(has_len)
    }
}

fn operations(len: usize) -> Vec<Case> {
    let (lat_times, times) = (iterations(len).min(5_000), iterations(len));
    let of = |Operation { op, lat, bw }| {
        let own = |program, key| urnic_op(len, (program, op), key);
        let mut cases = vec![
            perftest(len, lat, "", (MEDIAN, Unit::Latency), lat_times),
            own("lat", "p50_us"),
            own("bw", "gbps"),
        ];
        // Reads are measured at every length.
        if op != "read" {
            cases.push(perftest(len, bw, "", (RATE, Unit::Rate), times));
        }
        cases
    };
    Operation::of(len).flat_map(of).collect()
}

fn latencies(len: usize) -> Vec<Case> {
    let (p99, times) = (", 99th percentile", iterations(len).min(5_000));
    vec![
        perftest(len, "ib_write_lat", "", (MEDIAN, Unit::Latency), times),
        perftest(len, "ib_write_lat", p99, (P99, Unit::Latency), times),
        urnic(len, "lat", "", "p50_us", Link::Kernel),
        urnic(len, "lat", p99, "p99_us", Link::Kernel),
        urnic(len, "lat", ", vhost-user", "p50_us", Link::VhostUser),
        urnic(len, "lat", ", vhost-user, 99th percentile", "p99_us", Link::VhostUser),
        ucx(len, "put_lat", "", (Transport::Tcp, Ucx::Median), times),
        ucx(len, "put_lat", p99, (Transport::Tcp, Ucx::P99), times),
        ucx(len, "put_lat", ", memory", (Transport::Memory, Ucx::Median), times),
        ucx(len, "put_lat", ", memory, 99th percentile", (Transport::Memory, Ucx::P99), times),
        fabric(len, "", FiProvider::Tcp, times),
        fabric(len, ", memory", FiProvider::Memory, times),
    ]
}

fn rates(len: usize) -> Vec<Case> {
    let times = iterations(len);
    vec![
        perftest(len, "ib_write_bw", "", (RATE, Unit::Rate), times),
        perftest(len, "ib_read_bw", "", (RATE, Unit::Rate), times),
        urnic(len, "bw", "", "gbps", Link::Kernel),
        urnic(len, "bw", ", vhost-user", "gbps", Link::VhostUser),
        ucx(len, "put_bw", "", (Transport::Tcp, Ucx::Rate), times),
        ucx(len, "put_bw", ", memory", (Transport::Memory, Ucx::Rate), times),
    ]
}

/// A case of messages of `len` bytes, by a program of a Debian package.
fn of(len: usize, name: &str, package: Option<(&'static str, &'static str)>, case: Case) -> Case {
    Case { name: format!("{len} B: {name}"), needs: package, ..case }
}

fn perftest(
    len: usize,
    program: &'static str,
    label: &str,
    (column, unit): (usize, Unit),
    count: usize,
) -> Case {
    let case = case("", unit, move |far, _| by_perftest(far, program, len, count, column));
    of(len, &format!("{program}{label}"), Some(("ib_write_lat", "perftest")), case)
}

/// `urnic lat` or `urnic bw` of another operation, over the kernel's TCP.
fn urnic_op(len: usize, (program, op): (&'static str, &'static str), key: &'static str) -> Case {
    let unit = if program == "lat" { Unit::Latency } else { Unit::Rate };
    let times = iterations(len).min(5_000);
    let run =
        move |far: &_, time| by_urnic(far, (program, op, Link::Kernel), (len, times), key, time);
    of(len, &format!("urnic {program} --op {op}"), None, case("", unit, run))
}

fn urnic(len: usize, program: &'static str, label: &str, key: &'static str, link: Link) -> Case {
    let unit = if program == "lat" { Unit::Latency } else { Unit::Rate };
    let times = iterations(len).min(5_000);
    let run = move |far: &_, time| by_urnic(far, (program, "write", link), (len, times), key, time);
    of(len, &format!("urnic {program}{label}"), None, case("", unit, run))
}

fn ucx(
    len: usize,
    test: &'static str,
    label: &str,
    (transport, what): (Transport, Ucx),
    count: usize,
) -> Case {
    let unit = if matches!(what, Ucx::Rate) { Unit::Rate } else { Unit::Latency };
    let case = case("", unit, move |far, _| {
        others::ucx_figure(far, transport, &format!("ucp_{test}"), len, count, what)
    });
    of(len, &format!("UCX {test}{label}"), Some(("ucx_perftest", "ucx-utils")), case)
}

/// It prints only the mean.
fn fabric(len: usize, label: &str, provider: FiProvider, count: usize) -> Case {
    let case = case("", Unit::Latency, move |far, _| by_fabric(far, provider, len, count));
    of(len, &format!("fi_pingpong{label}"), Some(("fi_pingpong", "libfabric-bin")), case)
}

/// Ratios that the project aims at, size by size.
pub(crate) fn ratios() -> Vec<Ratio> {
    let of = |len: usize| {
        let ratio = |what: &str, over: &str, under: &str, aim| {
            let [over, under] = [over, under].map(|name| format!("{len} B: {name}"));
            Ratio::new(&format!("{len} B: {what}"), (&over, &under), aim)
        };
        let of_operations = Operation::of(len).flat_map(|Operation { op, lat, bw }| {
            [("latency", lat, "lat", 1.1), ("rate", bw, "bw", 0.9)].map(|(what, over, own, aim)| {
                let what = format!("{what} of {op}, to urnic {own}");
                ratio(&what, over, &format!("urnic {own} --op {op}"), aim)
            })
        });
        let of_operations: Vec<_> = of_operations.collect();
        let all = [
            ratio("latency, to urnic lat", "ib_write_lat", "urnic lat", 1.1),
            ratio("latency, to UCX", "ib_write_lat", "UCX put_lat", 1.0),
            ratio(
                "99th percentile, to UCX",
                "ib_write_lat, 99th percentile",
                "UCX put_lat, 99th percentile",
                1.0,
            ),
            ratio("latency, to libfabric", "ib_write_lat", "fi_pingpong", 1.0),
            ratio(
                "latency, vhost-user, to UCX in memory",
                "urnic lat, vhost-user",
                "UCX put_lat, memory",
                1.0,
            ),
            ratio(
                "latency, vhost-user, to libfabric in memory",
                "urnic lat, vhost-user",
                "fi_pingpong, memory",
                1.0,
            ),
            ratio(
                "rate, vhost-user, to UCX in memory",
                "urnic bw, vhost-user",
                "UCX put_bw, memory",
                1.0,
            ),
            ratio("rate, to urnic bw", "ib_write_bw", "urnic bw", 0.9),
            ratio("rate, to UCX", "ib_write_bw", "UCX put_bw", 1.0),
        ];
        all.into_iter().chain(of_operations).collect::<Vec<_>>()
    };
    SIZES.into_iter().flat_map(of).collect()
}

fn iterations(len: usize) -> usize {
    (MOVED_LEN / len).clamp(*MESSAGES.start(), *MESSAGES.end())
}
