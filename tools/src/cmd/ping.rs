//! `urnic ping`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;
use urnic::{Access, Mr, SendWr, WrId, monotonic_now};

use crate::address::HostPort;
use crate::client::{Client, Depths, Happened};
use crate::host::{ClientOptions, Host, SPIN};
use crate::info::DEVICES;
use crate::interrupt::{self, Interrupt, Interrupted};
use crate::measure::{Samples, Times, Timing};
use crate::protocol::{Hello, Session};
use crate::{figure, report, size, units};

/// Send messages to a server and measure their round trips
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Address of 'urnic serve'; the default port is 7174
    #[arg(value_name = "HOST[:PORT]")]
    peer: HostPort,

    /// Messages to send
    #[arg(short, long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Time from one message to the next, in seconds or with a unit
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    interval: Duration,

    /// Bytes of a message
    #[arg(short, long, value_name = "SIZE", default_value = "56", value_parser = size::parse)]
    size: u64,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    client: ClientOptions,
}

const EXAMPLES: &str = "\
Each message is a Send; the server sends it back, and every byte is compared. Times are of the
whole round trip. A percentile that needs more messages is a dash.

Exit status: 0 if all messages were answered, or all before an interrupt (Ctrl-C); 2 if not.

Examples:
  urnic ping server
  urnic ping 192.0.2.1:7174 -s 64K -c 100 -i 0.01";

/// The result. `docs/json.md` defines each field.
#[derive(Serialize)]
struct Pinged {
    peer: SocketAddr,
    size_bytes: u64,
    count: u64,
    interrupted: bool,
    timing: Timing,
    #[serde(flatten)]
    times: Times,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let remotes = args.peer.resolve(&args.client.stack.dev)?;
    let host = Host::client(&args.client, SPIN)?;
    let hello = Hello { session: Session::Echo, len: args.size, depth: 1 };
    let len = usize::try_from(args.size)?;
    let depths = Depths { send: 2, recv: 1, recv_len: len };
    let mut client = Client::connect(&host, &remotes, &hello, depths)?;
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    client.end_on(&interrupt);
    let source = host.pd.reg_mr(len, Access::empty())?;
    let mut times = Samples::new()?;
    let ended = messages(args, &mut client, &source, &mut times);
    let peer = client.remote();
    let interrupted = ended.as_ref().is_err_and(|error| error.is::<Interrupted>());
    let closed = match ended {
        Ok(()) => client.close(),
        Err(_) if interrupted => client.close(),
        failed => failed,
    };
    if !times.is_empty() {
        let (size_bytes, count) = (args.size, times.len());
        let spread = Times::of(&times, Timing::RoundTrip);
        if !args.json {
            report::print(&format!("{}: {spread}", came_back(count)))?;
        } else if closed.is_ok() {
            let (timing, times) = (Timing::RoundTrip, spread);
            let pinged = Pinged { peer, size_bytes, count, interrupted, timing, times };
            report::print_json(&pinged)?;
        }
    }
    closed?;
    Ok(match interrupted && times.is_empty() {
        true => ExitCode::from(interrupt::STATUS),
        false => ExitCode::SUCCESS,
    })
}

fn came_back(count: u64) -> String {
    format!("{} came back", figure::counted(count, "message"))
}

fn messages(
    args: &Args,
    client: &mut Client<'_>,
    source: &Mr,
    times: &mut Samples,
) -> anyhow::Result<()> {
    for number in 0..args.count {
        if number > 0 {
            client.rest(args.interval)?;
        }
        let ns = round_trip(client, source, number)?;
        times.record(ns);
        if !args.json {
            let (size, peer) = (args.size, client.remote());
            let time = figure::seconds(Duration::from_nanos(ns).as_secs_f64());
            report::print(&format!("{size} bytes from {peer}: number {number}, {time}"))?;
        }
    }
    Ok(())
}

/// Returns the time in nanoseconds.
fn round_trip(client: &mut Client<'_>, source: &Mr, number: u32) -> anyhow::Result<u64> {
    let [salt, ..] = number.to_le_bytes();
    let octets: Vec<u8> = (0..source.len()).map(|i| i.to_le_bytes()[0] ^ salt).collect();
    source.copy_in(0, &octets);
    let started = monotonic_now();
    client.post(SendWr::send(WrId(0), [source.sge(0..source.len())]))?;
    let (mut came_back, mut sent) = (None, false);
    while came_back.is_none() || !sent {
        match client.wait()? {
            Happened::Payload(wc) => {
                let ns = monotonic_now().nanos_since(started);
                ensure!(client.read_payload(&wc)? == octets, "the message came back changed");
                client.release(&wc)?;
                came_back = Some(ns);
            }
            Happened::Done(_) => sent = true,
            Happened::Control(other) => return Err(client.unexpected(&other)),
        }
    }
    Ok(came_back.unwrap_or_default())
}
