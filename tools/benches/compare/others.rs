//! Alternatives that people use today: iperf3, and UCX over the kernel's TCP.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::thread::sleep;

use anyhow::{Context, Result, bail, ensure};
use urnic_engine::time::Duration;

use crate::network::{Far, VETH};
use crate::writes::MESSAGE_LEN;

/// Gbit/s of one TCP connection by iperf3 over the veth pair.
pub(crate) fn iperf3(far: &Far, offloads: bool, time: Duration) -> Result<f64> {
    far.offloads(offloads)?;
    let rate = iperf3_to(far, VETH[1], time);
    far.offloads(true)?;
    rate
}

/// Gbit/s of one TCP connection with CUBIC, by iperf3, to an address of the far namespace.
pub(crate) fn iperf3_to(far: &Far, address: IpAddr, time: Duration) -> Result<f64> {
    let mut server = far.command("iperf3").args(["-s", "-1"]).stdout(Stdio::null()).spawn()?;
    start_up();
    let seconds = time.as_secs().max(1).to_string();
    let output = Command::new("iperf3")
        .args(["-c", &address.to_string(), "-C", "cubic", "-t", &seconds, "-O", "1", "-J"])
        .output()?;
    let _ended = server.kill();
    server.wait()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let rate = report.pointer("/end/sum_received/bits_per_second");
    let rate = rate.and_then(serde_json::Value::as_f64).context("iperf3 reports no rate")?;
    Ok(rate / 1e9)
}

/// Gbit/s of UCX `ucp_put_bw` with the engine's message length.
pub(crate) fn ucx_put_rate(far: &Far) -> Result<f64> {
    ucx_figure(far, Transport::Tcp, "ucp_put_bw", MESSAGE_LEN, 20_000, Ucx::Rate)
}

/// Half a round trip of UCX `ucp_put_lat` with 8 bytes, in µs: the median.
pub(crate) fn ucx_put_latency(far: &Far) -> Result<f64> {
    ucx_figure(far, Transport::Tcp, "ucp_put_lat", 8, 20_000, Ucx::Median)
}

/// The transport of UCX.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Tcp,
    /// Memory that both processes share.
    Memory,
}

/// The result of a test of UCX.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ucx {
    /// Half a round trip in µs.
    Median,
    /// 99th percentile of that.
    P99,
    /// 99.9th percentile of that.
    P99_9,
    /// Gbit/s over the whole run.
    Rate,
}

/// A figure of one test of `ucx_perftest`.
pub(crate) fn ucx_figure(
    far: &Far,
    transport: Transport,
    test: &str,
    len: usize,
    iterations: usize,
    what: Ucx,
) -> Result<f64> {
    let rank = match what {
        Ucx::P99 => "99",
        Ucx::P99_9 => "99.9",
        Ucx::Median | Ucx::Rate => "50",
    };
    let line = ucx(far, transport, test, (len, iterations), rank)?;
    match what {
        Ucx::Median | Ucx::P99 | Ucx::P99_9 => column(&line, UCX_PERCENTILE),
        // MB/s of 2^20 bytes.
        Ucx::Rate => Ok(column(&line, UCX_OVERALL_RATE)? * f64::from(1 << 20) * 8.0 / 1e9),
    }
}

/// Runs one test of `ucx_perftest` and returns its line of figures.
fn ucx(
    far: &Far,
    transport: Transport,
    test: &str,
    (len, iterations): (usize, usize),
    rank: &str,
) -> Result<String> {
    let set = |command: &mut Command, device: &str| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        match transport {
            Transport::Tcp => command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", device),
            Transport::Memory => command.env("UCX_TLS", "sm,self"),
        };
        command.env("UCX_WARN_UNUSED_ENV_VARS", "n");
    };
    let mut server = far.command("ucx_perftest");
    set(&mut server, "veth-b");
    let mut server = server.spawn()?;
    start_up();
    let mut client = Command::new("timeout");
    set(&mut client, "veth-a");
    let (len, iterations) = (len.to_string(), iterations.to_string());
    client.args(["30", "ucx_perftest", &VETH[1].to_string(), "-t", test, "-f", "-v"]);
    let output = client.args(["-s", &len, "-n", &iterations, "-R", rank]).output()?;
    let _ended = server.kill();
    server.wait()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "ucx_perftest: {printed}");
    // Short numbers are padded to the left.
    let figures = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    match printed.lines().rfind(figures) {
        Some(line) => Ok(line.to_owned()),
        None => bail!("ucx_perftest prints no figures: {printed}"),
    }
}

/// Columns of its comma-separated line: iterations, the requested percentile, average, overall
/// latency, average and overall rate, average and overall messages.
const UCX_PERCENTILE: usize = 1;
const UCX_OVERALL_RATE: usize = 5;

fn column(line: &str, index: usize) -> Result<f64> {
    let field = line.split(',').nth(index).context("a column of ucx_perftest is missing")?;
    Ok(field.trim().parse()?)
}

/// Time for a server to listen.
#[expect(clippy::disallowed_methods, reason = "the servers do not say when they listen")]
fn start_up() {
    sleep(Duration::from_secs(1));
}
