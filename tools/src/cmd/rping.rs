//! `urnic rping`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::EXIT_UNVERIFIED;
use crate::address::{DEFAULT_PORT, HostName};
use crate::host::{Host, SPIN, StackOptions};
use crate::info::DEVICES;
use crate::report::complain;
use crate::rping::{Client, SIZE_MAX, SIZE_MIN, Server, Session};

/// Ping-pong with rdma-core's rping: RDMA Read, RDMA Write and Send, each way
///
/// The server reads the client's source buffer and writes it back to its sink; with -V the client
/// compares. Works with the stock program on either side.
#[derive(clap::Args, Debug)]
#[command(disable_version_flag = true, after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
#[command(group(clap::ArgGroup::new("side").required(true).args(["server", "client"])))]
pub(crate) struct Args {
    /// Be the server
    #[arg(short = 's', long)]
    server: bool,

    /// Be the client
    #[arg(short = 'c', long)]
    client: bool,

    /// Address of the server; for a server, where to listen (default: all addresses)
    #[arg(short = 'a', long, value_name = "HOST")]
    address: Option<HostName>,

    /// TCP port of the server
    #[arg(short = 'p', long, default_value_t = DEFAULT_PORT)]
    port: u16,

    /// Number of pings; without it a client never stops; a server that receives fewer fails
    #[arg(short = 'C', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Bytes of a ping; 64 by default
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size)]
    size: Option<usize>,

    /// Print every ping
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Compare what comes back with what was sent
    #[arg(short = 'V', long)]
    validate: bool,

    /// Serve one client after the other, many at once, until killed
    #[arg(short = 'P', long)]
    persistent: bool,

    #[command(flatten)]
    stack: StackOptions,
}

const EXAMPLES: &str = "\
Exit status: 0 if all pings came back right; 1 if not, or if the other end does not answer; 2 if the
options contradict each other.

Examples:
  urnic rping -s -a 127.0.0.1 -C 10 -v
      Serve one client: the next line, in another terminal.
  urnic rping -c -a 127.0.0.1 -C 10 -v
  urnic rping -s -P
      Serve any number of clients, of the stock program, too.";

fn size(text: &str) -> Result<usize, String> {
    let size = crate::size::parse(text)?;
    match usize::try_from(size) {
        Ok(size) if (SIZE_MIN..=SIZE_MAX).contains(&size) => Ok(size),
        _ => Err(format!("a ping has {SIZE_MIN} to {SIZE_MAX} bytes")),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.server || args.address.is_some(), "a client needs the server's address: -a HOST");
    let host = Host::open(&args.stack, SPIN)?;
    args.without_effect().iter().for_each(|line| complain(line));
    let outcome = if args.server { serve(args, &host) } else { ping(args, &host) };
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(EXIT_UNVERIFIED)
        }
    })
}

impl Args {
    /// Options without effect at this end; scripts give all options to both ends.
    fn without_effect(&self) -> Vec<&'static str> {
        [
            (self.server && self.validate, "-V: the client compares, not a server"),
            (self.server && self.size.is_some(), "-S: the client says how long a ping is"),
            (self.client && self.persistent, "-P: a client has one server"),
            (self.persistent && self.count.is_some(), "-C: a server that goes on counts no pings"),
        ]
        .into_iter()
        .filter_map(|(is_so, line)| is_so.then_some(line))
        .collect()
    }
}

fn ping(args: &Args, host: &Host) -> anyhow::Result<()> {
    let host_name = args.address.as_ref().context("no address")?;
    let address = first_address(host_name, &args.stack)?;
    let server = SocketAddr::new(address, args.port);
    let client = Client::new(&host.pd, args.size.unwrap_or(SIZE), args.verbose, args.validate)?;
    let session = session(args, host)?;
    let options = args.stack.connect_options(Vec::new());
    client.run(session, host, server, options, args.count)
}

fn first_address(name: &HostName, stack: &StackOptions) -> anyhow::Result<IpAddr> {
    name.resolve(&stack.dev)?.first().copied().context("no address")
}

fn session<'a>(args: &Args, host: &'a Host) -> anyhow::Result<Session<'a>> {
    Session::new(&host.endpoint, &host.rnic, &host.pd, args.stack.timeout)
}

fn serve(args: &Args, host: &Host) -> anyhow::Result<()> {
    let address = match &args.address {
        Some(address) => first_address(address, &args.stack)?,
        None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let local = SocketAddr::new(address, args.port);
    let listener = host
        .endpoint
        .listen(local, args.stack.listen_params())
        .with_context(|| format!("cannot listen at {local}"))?;
    std::thread::scope(|scope| {
        loop {
            let Some(request) = listener.next_request(LISTEN_TURN)? else { continue };
            let remote = request.remote();
            let server = Server::new(&host.pd, args.verbose)?;
            let session = session(args, host)?;
            let serve = move || server.run(session, request).with_context(|| remote.to_string());
            if !args.persistent {
                let (pings, count) = (serve()?, args.count.unwrap_or_default());
                // A killed client closes like one that has finished.
                ensure!(pings >= count, "{remote}: closed after {pings} of {count} pings");
                return Ok(());
            }
            scope.spawn(move || {
                if let Err(error) = serve() {
                    complain(&format!("{error:#}"));
                }
            });
        }
    })
}

/// Bytes of a ping, as in rdma-core's program.
const SIZE: usize = 64;
/// The wait is repeated.
const LISTEN_TURN: Duration = Duration::from_secs(3600);
