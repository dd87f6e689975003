//! Other people's programs on urnic's verbs (`urnic run`), next to urnic's own commands, UCX and
//! libfabric, which do the same work: all over the kernel's TCP, between two namespaces.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urnic_engine::time::Duration;

use crate::case::{Case, Ratio, Unit, case};
use crate::network::{Far, VETH};
use crate::others;

/// Lengths of messages.
const SIZES: [usize; 7] = [8, 64, 512, 4096, 65_536, 1 << 20, 8 << 20];
/// What a rate is measured with, outstanding at a time: perftest's own default.
const DEPTH: usize = 128;
/// Octets that are moved to measure a rate, and messages that are at least.
const MOVED_LEN: usize = 1 << 30;
const MESSAGES: std::ops::RangeInclusive<usize> = 200..=200_000;

/// Every size by every program.
pub(crate) fn cases() -> Vec<Case> {
    SIZES.into_iter().flat_map(of_size).collect()
}

fn of_size(len: usize) -> Vec<Case> {
    let name = |program: &str| format!("{len} B: {program}");
    let perftest = |case| Case { needs: Some(("ib_write_lat", "perftest")), ..case };
    let ucx = |case| Case { needs: Some(("ucx_perftest", "ucx-utils")), ..case };
    let fabric = |case| Case { needs: Some(("fi_pingpong", "libfabric-bin")), ..case };
    let (rate, latency) = (Unit::Rate, Unit::Latency);
    let times = iterations(len).min(5_000);
    let perftest_case = |program: &'static str, column: usize, unit, count: usize| {
        let label = if column == P99 { ", 99th percentile" } else { "" };
        perftest(case(&name(&format!("{program}{label}")), unit, move |far, _| {
            by_perftest(far, program, len, count, column)
        }))
    };
    let own = |program: &'static str, key: &'static str, label: &str, unit| {
        case(&name(&format!("urnic {program}{label}")), unit, move |far, time| {
            by_urnic(far, program, len, times, key, time)
        })
    };
    let by_ucx = |label: &str, test: &'static str, what: others::Ucx, unit, count: usize| {
        ucx(case(&name(label), unit, move |far, _| others::ucx_figure(far, test, len, count, what)))
    };
    vec![
        perftest_case("ib_write_lat", MEDIAN, latency, times),
        perftest_case("ib_write_lat", P99, latency, times),
        own("lat", "p50_us", "", latency),
        own("lat", "p99_us", ", 99th percentile", latency),
        by_ucx("UCX put_lat", "ucp_put_lat", others::Ucx::Median, latency, times),
        by_ucx("UCX put_lat, 99th percentile", "ucp_put_lat", others::Ucx::P99, latency, times),
        // It prints the mean only.
        fabric(case(&name("fi_pingpong"), latency, move |far, _| by_fabric(far, len, times))),
        perftest_case("ib_write_bw", RATE, rate, iterations(len)),
        perftest_case("ib_read_bw", RATE, rate, iterations(len)),
        own("bw", "gbps", "", rate),
        by_ucx("UCX put_bw", "ucp_put_bw", others::Ucx::Rate, rate, iterations(len)),
    ]
}

/// What the project aims at, size by size.
pub(crate) fn ratios() -> Vec<Ratio> {
    let of = |len: usize| {
        let ratio = |what: &str, over: &str, under: &str, aim| {
            let [over, under] = [over, under].map(|name| format!("{len} B: {name}"));
            Ratio::new(&format!("{len} B: {what}"), (&over, &under), aim)
        };
        [
            ratio("latency, to urnic lat", "ib_write_lat", "urnic lat", 1.1),
            ratio("latency, to UCX", "ib_write_lat", "UCX put_lat", 1.0),
            ratio(
                "99th percentile, to UCX",
                "ib_write_lat, 99th percentile",
                "UCX put_lat, 99th percentile",
                1.0,
            ),
            ratio("latency, to libfabric", "ib_write_lat", "fi_pingpong", 1.0),
            ratio("rate, to urnic bw", "ib_write_bw", "urnic bw", 0.9),
            ratio("rate, to UCX", "ib_write_bw", "UCX put_bw", 1.0),
        ]
    };
    SIZES.into_iter().flat_map(of).collect()
}

fn iterations(len: usize) -> usize {
    (MOVED_LEN / len).clamp(*MESSAGES.start(), *MESSAGES.end())
}

/// Columns of perftest's line: octets, iterations, then for times least, greatest, typical (the median),
/// mean, deviation, 99 %; for rates the peak and the mean.
const MEDIAN: usize = 4;
const P99: usize = 7;
const RATE: usize = 3;

/// A figure of perftest between two processes under `urnic run`.
fn by_perftest(far: &Far, program: &str, len: usize, count: usize, column: usize) -> Result<f64> {
    let line = ["run", "--", program, "-R", "-F", "--report_gbits", "-s"].map(str::to_owned);
    let line = [&line[..], &[len.to_string(), "-n".to_owned(), count.to_string()]].concat();
    let _server = Server::start(far.command(URNIC).args(&line))?;
    let told = output(Command::new(URNIC).args(&line).arg(VETH[1].to_string()))?;
    let is_figures = |line: &&str| {
        line.split_whitespace().next().and_then(|first| first.parse().ok()) == Some(len)
    };
    let figures = told.lines().find(is_figures).context("perftest prints no figures")?;
    let field =
        figures.split_whitespace().nth(column).context("a column of perftest is missing")?;
    Ok(field.parse()?)
}

/// A figure of `urnic lat` or `urnic bw`.
fn by_urnic(
    far: &Far,
    program: &str,
    len: usize,
    count: usize,
    key: &str,
    time: Duration,
) -> Result<f64> {
    let listen = format!("{}:7174", VETH[1]);
    let _server = Server::start(far.command(URNIC).args(["serve", "--listen", &listen]))?;
    let mut client = Command::new(URNIC);
    client.args([program, &listen, "--op", "write", "--json", "--size", &len.to_string()]);
    if program == "lat" {
        client.args(["--iterations", &count.to_string()]);
    } else {
        let seconds = time.as_secs_f64().to_string();
        client.args(["--seconds", &seconds, "--depth", &DEPTH.to_string()]);
    }
    let told: Value = serde_json::from_str(&output(&mut client)?)?;
    told[key].as_f64().with_context(|| format!("urnic {program} has no {key}: {told}"))
}

/// Half a round trip of libfabric's `tcp` provider in µs: the mean, which is all that it prints.
fn by_fabric(far: &Far, len: usize, count: usize) -> Result<f64> {
    let line = ["-p", "tcp", "-e", "msg", "-S", &len.to_string(), "-I", &count.to_string()]
        .map(str::to_owned);
    let _server = Server::start(far.command("fi_pingpong").args(&line))?;
    let told = output(Command::new("fi_pingpong").args(&line).arg(VETH[1].to_string()))?;
    let figures = told.lines().last().context("fi_pingpong prints nothing")?;
    let field = figures.split_whitespace().nth(6).context("a column of fi_pingpong is missing")?;
    Ok(field.parse()?)
}

pub(crate) const URNIC: &str = env!("CARGO_BIN_EXE_urnic");

/// What a client says that ends well.
pub(crate) fn output(client: &mut Command) -> Result<String> {
    let output = client.output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{client:?}: {told}{said}");
    Ok(told.into_owned())
}

/// A server that is ended with its measurement.
pub(crate) struct Server(Child);

impl Server {
    #[expect(clippy::disallowed_methods, reason = "the servers do not say when they listen")]
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let server = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        sleep(Duration::from_millis(400));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}
