//! `urnic ping`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;
use urnic::driver::monotonic_now;
use urnic::mem::Access;
use urnic::types::WrId;
use urnic::verbs::{Mr, SendWr};

use crate::client::{Client, Depths, Happened};
use crate::device::DEVICES;
use crate::host::{Host, SPIN, StackOptions};
use crate::protocol::{Hello, Session};
use crate::report;
use crate::{size, units};

/// Send messages to a server and see how long they take to come back
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Where 'urnic serve' listens
    #[arg(value_name = "IP:PORT")]
    peer: SocketAddr,

    /// Messages to send
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Time from one message to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    interval: Duration,

    /// Octets of a message
    #[arg(long, value_name = "SIZE", default_value = "56", value_parser = size::parse)]
    size: u64,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    stack: StackOptions,
}

const EXAMPLES: &str = "\
Each message is a Send; the server sends it back, and every octet is compared. Times are of the
whole round trip. The interval must be shorter than the server's --timeout.

Exit status: 0 when all came back, 2 when not.

Examples:
  urnic ping 192.0.2.1:7174
  urnic ping 192.0.2.1:7174 --size 64K --count 100 --interval 10ms";

/// What came of it.
#[derive(Serialize)]
struct Pinged {
    peer: SocketAddr,
    size: u64,
    count: u32,
    min_us: f64,
    mean_us: f64,
    max_us: f64,
}

/// Runs the command.
///
/// # Errors
/// When a message does not come back.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = Host::open(&args.stack, SPIN)?;
    let hello = Hello { session: Session::Echo, len: args.size, depth: 1 };
    let len = usize::try_from(args.size)?;
    let depths = Depths { send: 2, recv: 1, recv_len: len };
    let mut client = Client::connect(&host, args.peer, &hello, depths)?;
    let source = host.pd.reg_mr(len, Access::empty())?;
    let mut times = Vec::new();
    for number in 0..args.count {
        if number > 0 {
            host.endpoint.run_for(args.interval)?;
        }
        let us = round_trip(&mut client, &source, number)?;
        times.push(us);
        if !args.json {
            let (size, peer) = (args.size, args.peer);
            report::print(&format!("{size} octets from {peer}: number {number}, {us:.1} µs"))?;
        }
    }
    client.close()?;
    let mean_us = times.iter().sum::<f64>() / f64::from(args.count);
    let min_us = times.iter().copied().fold(f64::INFINITY, f64::min);
    let max_us = times.iter().copied().fold(0.0, f64::max);
    let (peer, size, count) = (args.peer, args.size, args.count);
    let pinged = Pinged { peer, size, count, min_us, mean_us, max_us };
    if args.json {
        report::print_json(&pinged)?;
    } else {
        report::print(&format!(
            "{count} messages came back: min {min_us:.1} µs, mean {mean_us:.1} µs, max {max_us:.1} µs"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends a message and waits for it; the time that took in microseconds.
fn round_trip(client: &mut Client<'_>, source: &Mr, number: u32) -> anyhow::Result<f64> {
    let [salt, ..] = number.to_le_bytes();
    let octets: Vec<u8> = (0..source.len()).map(|i| i.to_le_bytes()[0] ^ salt).collect();
    source.copy_in(0, &octets);
    let started = monotonic_now();
    client.post(SendWr::send(WrId(0), [source.sge(0..source.len())]))?;
    let (mut came_back, mut sent) = (None, false);
    while came_back.is_none() || !sent {
        match client.wait()? {
            Happened::Payload(wc) => {
                let us = (monotonic_now() - started).as_secs_f64() * 1e6;
                ensure!(client.read_payload(&wc)? == octets, "the message came back changed");
                client.release(&wc)?;
                came_back = Some(us);
            }
            Happened::Done(_) => sent = true,
            Happened::Control(other) => return Err(client.unexpected(&other)),
        }
    }
    Ok(came_back.unwrap_or_default())
}
