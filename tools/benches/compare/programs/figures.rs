//! The figures that each program prints for one size.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use urnic_engine::time::Duration;

use crate::network::{Far, VETH};
use crate::programs::DEPTH;

/// Columns of perftest's line: bytes, iterations; then for times least, greatest, typical (the
/// median), mean, deviation, 99 %, 99.9 %; for rates the peak, the mean (with two decimals only),
/// and the mean of messages, in millions per second.
pub(super) const MEDIAN: usize = 4;
pub(super) const P99: usize = 7;
pub(super) const P99_9: usize = 8;
pub(super) const RATE: usize = 4;

/// The link between two processes of urnic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Link {
    /// The kernel's TCP, between two namespaces.
    Kernel,
    /// Memory that they share, at MTU 65000: the server is the backend.
    VhostUser,
}

/// The provider that libfabric sends by.
#[derive(Clone, Copy, Debug)]
pub(super) enum FiProvider {
    Tcp,
    /// Memory that both processes share.
    Memory,
}

/// A figure of perftest between two processes under `urnic run`.
pub(super) fn by_perftest(
    far: &Far,
    program: &str,
    len: usize,
    count: usize,
    column: usize,
) -> Result<f64> {
    let (len_text, count) = (len.to_string(), count.to_string());
    let mut line = vec!["run", "--", program, "-R", "-F", "--report_gbits", "-n", &count];
    // An atomic has a fixed length.
    if !program.starts_with("ib_atomic") {
        line.extend(["-s", &len_text]);
    }
    let _server = Server::start(far.command(URNIC).args(&line))?;
    let printed = output(Command::new(URNIC).args(&line).arg(VETH[1].to_string()))?;
    let is_figures = |line: &&str| {
        line.split_whitespace().next().and_then(|first| first.parse().ok()) == Some(len)
    };
    let figures = printed.lines().find(is_figures).context("perftest prints no figures")?;
    let field =
        figures.split_whitespace().nth(column).context("a column of perftest is missing")?;
    let figure: f64 = field.parse()?;
    // Gbit/s, from messages per second.
    Ok(if program.ends_with("_bw") { figure * bits_of(len) / 1e3 } else { figure })
}

#[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
const fn bits_of(len: usize) -> f64 {
    len as f64 * 8.0
}

/// A figure of `urnic lat` or `urnic bw`.
pub(super) fn by_urnic(
    far: &Far,
    (program, op, link): (&str, &str, Link),
    (len, count): (usize, usize),
    key: &str,
    time: Duration,
) -> Result<f64> {
    // Folder for the socket of the two, because its path must be short.
    let folder = TempDir::new()?;
    let socket = folder.path().join("s");
    let (at, devices) = match link {
        Link::Kernel => (VETH[1].to_string(), ["kernel", "kernel"].map(str::to_owned)),
        Link::VhostUser => {
            let device = |role, host| {
                format!("{role}-user:{},ip=10.77.1.{host}/24,mtu=65000", socket.display())
            };
            ("10.77.1.2".to_owned(), [device("vhost", 2), device("virtio", 1)])
        }
    };
    let listen = format!("{at}:7174");
    let _server = Server::start(far.command(URNIC).args([
        "serve",
        "--listen",
        &listen,
        "--dev",
        &devices[0],
    ]))?;
    let mut client = Command::new(URNIC);
    client.args([
        program,
        &listen,
        "--dev",
        &devices[1],
        "--op",
        op,
        "--json",
        "--size",
        &len.to_string(),
    ]);
    if program == "lat" {
        client.args(["--iterations", &count.to_string()]);
    } else {
        let seconds = time.as_secs_f64().to_string();
        client.args(["--seconds", &seconds, "--depth", &DEPTH.to_string()]);
    }
    let printed: Value = serde_json::from_str(&output(&mut client)?)?;
    printed[key].as_f64().with_context(|| format!("urnic {program} has no {key}: {printed}"))
}

/// Returns half a round trip of libfabric in µs: the mean, its only figure.
pub(super) fn by_fabric(far: &Far, provider: FiProvider, len: usize, count: usize) -> Result<f64> {
    let (provider, endpoint) = match provider {
        FiProvider::Tcp => ("tcp", "msg"),
        FiProvider::Memory => ("shm", "rdm"),
    };
    let line = ["-p", provider, "-e", endpoint, "-S", &len.to_string(), "-I", &count.to_string()]
        .map(str::to_owned);
    let _server = Server::start(far.command("fi_pingpong").args(&line))?;
    let printed = output(Command::new("fi_pingpong").args(&line).arg(VETH[1].to_string()))?;
    let figures = printed.lines().last().context("fi_pingpong prints nothing")?;
    let field = figures.split_whitespace().nth(6).context("a column of fi_pingpong is missing")?;
    Ok(field.parse()?)
}

pub(crate) const URNIC: &str = env!("CARGO_BIN_EXE_urnic");

/// Returns the output of a client, or an error unless it succeeds.
pub(crate) fn output(client: &mut Command) -> Result<String> {
    let output = client.output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{client:?}: {printed}{said}");
    Ok(printed.into_owned())
}

/// A server that ends with its measurement.
pub(crate) struct Server(Child);

impl Server {
    #[expect(clippy::disallowed_methods, reason = "the servers do not say when they listen")]
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let server = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        sleep(Duration::from_secs(1));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}
