//! `urnic ibswitch`.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use urnic::monotonic_now;
use urnic_ipoib::ibsim::{IbsimError, Switch, SwitchCounters};

use crate::ib::ErfCapture;
use crate::{device, report, units};

/// Carry the data of a simulated InfiniBand fabric
///
/// ibsim simulates a fabric for a subnet manager, and carries management datagrams only. This
/// command carries packets between the nodes, from and to devices 'ib:…' of urnic. It forwards them
/// by the tables that the subnet manager (OpenSM) has programmed into the switches of ibsim, and
/// drops packets without a route. Partitions and lengths are checked at the edge.
///
/// Runs until it is interrupted, then prints the counts of packets.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The name of ibsim's sockets: the value of IBSIM_SOCKNAME when ibsim was started
    #[arg(long, value_name = "SIMULATOR", default_value = "sim", value_parser = NonEmptyStringValueParser::new())]
    sim: String,

    /// The node from which the fabric is read; any will do
    #[arg(long, value_name = "NODE", value_parser = NonEmptyStringValueParser::new())]
    node: String,

    /// Number of a user whose ibsim and ports are served, besides the own user and root
    #[arg(long, value_name = "UID")]
    peer: Option<u32>,

    /// How long to wait for ibsim, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::seconds)]
    timeout: Duration,

    /// Record the packets that nodes send, as ERF in a pcap file (for tshark and 'urnic replay')
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,

    /// Print the result as JSON
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,

    /// Print nothing
    #[arg(long, help_heading = crate::demo::OUTPUT, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 when stopped, 2 when there is no such simulator or node.

Example, a ping between two nodes of the fabric that the file 'net' describes:
  export IBSIM_SOCKNAME=fabric
  L=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so
  ibsim -s -n net & SIM_HOST=Hca1 LD_PRELOAD=$L opensm -s 5 &
  urnic ibswitch --sim fabric --node Hca1 &
  urnic serve --dev ib:sim=fabric,node=Hca2,ip=10.9.0.2/24 --listen 10.9.0.2 &
  urnic ping 10.9.0.2 --dev ib:sim=fabric,node=Hca3,ip=10.9.0.3/24";

/// The switch then checks the fabric.
const LOOK_NS: i64 = 100_000_000;
/// The queue of a port was full.
const PRESSED_NS: i64 = 100_000;

#[derive(Debug, Serialize)]
struct Summary {
    seconds: f64,
    ports: usize,
    switches: usize,
    received: u64,
    delivered: u64,
    malformed: u64,
    unroutable: u64,
    p_key_violations: u64,
    too_long: u64,
    foreign: u64,
    lost: u64,
}

impl Summary {
    fn of(switch: &Switch, seconds: f64) -> Self {
        let SwitchCounters {
            received,
            delivered,
            malformed,
            unroutable,
            p_key_violations,
            too_long,
            foreign,
            lost,
        } = *switch.counters();
        let survey = switch.survey();
        Self {
            seconds,
            ports: survey.ports.len(),
            switches: survey.switches.len(),
            received,
            delivered,
            malformed,
            unroutable,
            p_key_violations,
            too_long,
            foreign,
            lost,
        }
    }

    fn text(&self) -> String {
        let Self { seconds, ports, switches, received, delivered, .. } = *self;
        let Self { malformed, unroutable, p_key_violations, too_long, foreign, lost, .. } = *self;
        format!(
            "{received} packets in {seconds:.1} s, {delivered} delivered, by {switches} switches \
             between {ports} ports\nnot delivered: {unroutable} not routed, {p_key_violations} of \
             another partition, {too_long} too long, {malformed} malformed, {foreign} of other \
             users, {lost} lost"
        )
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    let mut capture = match &args.pcap {
        None => None,
        Some(path) => {
            let file = File::create(path).with_context(|| format!("--pcap {}", path.display()))?;
            Some(ErfCapture::new(BufWriter::new(file)).context("--pcap")?)
        }
    };
    let patience = args.duration.map_or(args.timeout, |duration| duration.min(args.timeout));
    let mut switch = device::awaited(
        patience,
        |error| matches!(error, IbsimError::NoSimulator { .. }),
        || stop.load(Ordering::Relaxed),
        || Switch::open(&args.sim, &args.node, args.peer),
    )?;
    if !args.json && !args.quiet {
        let (ports, switches) = (switch.survey().ports.len(), switch.survey().switches.len());
        report::print(&format!("carrying data between {ports} ports of {switches} switches"))?;
    }
    let start_ns = monotonic_now().as_nanos();
    let end_ns = args.duration.map_or(u64::MAX, |time| {
        start_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    });
    while !stop.load(Ordering::Relaxed) {
        let now_ns = monotonic_now().as_nanos();
        if now_ns >= end_ns {
            break;
        }
        let taken = switch.turn(now_ns, &mut |packet| {
            if let Some(capture) = &mut capture {
                capture.write(packet);
            }
        })?;
        if let Some(capture) = &mut capture {
            capture.flush_now_and_then(now_ns);
        }
        if taken == 0 {
            wait(&switch, end_ns - now_ns)?;
        }
    }
    let elapsed = Duration::from_nanos(monotonic_now().as_nanos() - start_ns);
    if let Some(capture) = capture {
        capture.finish().context("--pcap")?;
    }
    let summary = Summary::of(&switch, elapsed.as_secs_f64());
    if args.json {
        report::print_json(&summary)?;
    } else if !args.quiet {
        report::print(&summary.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wait(switch: &Switch, left_ns: u64) -> anyhow::Result<()> {
    let longest = if switch.is_pressed() { PRESSED_NS } else { LOOK_NS };
    let tv_nsec = i64::try_from(left_ns).unwrap_or(i64::MAX).min(longest);
    let timeout = Timespec { tv_sec: 0, tv_nsec };
    let readiness = switch.readiness();
    let mut packets = [PollFd::new(&readiness, PollFlags::IN)];
    // Packets that may not be received are no reason to wake up.
    let awaited = if switch.is_held() { &mut [][..] } else { &mut packets[..] };
    match poll(awaited, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for packets"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures_page;

    #[test]
    fn each_figure_of_a_switch_has_a_definition_and_its_field() {
        let summary = Summary {
            seconds: 1.5,
            ports: 1,
            switches: 2,
            received: 3,
            delivered: 4,
            malformed: 5,
            unroutable: 6,
            p_key_violations: 7,
            too_long: 8,
            foreign: 9,
            lost: 10,
        };
        let text = summary.text();
        assert_eq!(
            text,
            "3 packets in 1.5 s, 4 delivered, by 2 switches between 1 ports\nnot delivered: 6 not \
             routed, 7 of another partition, 8 too long, 5 malformed, 9 of other users, 10 lost"
        );
        figures_page::compare("ibswitch", figures_page::sentences(&text));
        figures_page::compare_json("ibswitch", &[summary]);
    }
}
