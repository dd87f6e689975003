//! `urnic impair`.

use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use urnic::monotonic_now;
use urnic_netdev::Device;
use urnic_netdev::interface::Name;
use urnic_netdev::tap::{Tap, TapConfig};

use crate::impair::{BURST, Bridge, Options, Summary};
use crate::interrupt::CHECK_NS;
use crate::{report, units};

/// Join two TAP interfaces by a bad link
///
/// Frames that the kernel, or any stack, sends on one interface arrive at the other after the
/// impairments chosen here, in user space: any two stacks can be tested with the same faults.
/// Interfaces that do not exist are made, and removed when the command ends. Losses are losses of
/// packets: the super-frames of a kernel are first cut into packets, as for a wire.
///
/// Runs until it is interrupted, then prints the counts of frames.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// One interface
    #[arg(value_name = "TAP_A")]
    a: Name,

    /// The other one
    #[arg(value_name = "TAP_B")]
    b: Name,

    #[command(flatten)]
    options: Options,

    /// Largest IP datagram of both interfaces, in bytes; without it existing interfaces keep
    /// theirs, and new ones have 1500
    #[arg(long, value_name = "SIZE")]
    mtu: Option<usize>,

    /// Hand packets that follow each other in one flow to the receiving kernel as one super-frame,
    /// as network cards do; costs less time, and lets it acknowledge less often
    #[arg(long)]
    offload: bool,

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
Exit status: 0 when stopped, 2 if an interface cannot be opened or the options contradict each
other.

Example, a path of 1 Gbit/s with a round trip of 20 ms and 1 % loss, between two namespaces:
  urnic impair tapa tapb --rate 1G --delay 10ms --loss 1 &
  ip netns add a; ip link set tapa netns a
  ip netns add b; ip link set tapb netns b
  ip -n a addr add 10.9.0.1/24 dev tapa
  ip -n b addr add 10.9.0.2/24 dev tapb
  ip -n a link set tapa up; ip -n b link set tapb up
  ip netns exec b iperf3 -s & ip netns exec a iperf3 -c 10.9.0.2";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.options.check()?;
    if args.a == args.b {
        anyhow::bail!("the two interfaces are the same one");
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    let open = |name| {
        let config = TapConfig { mtu: args.mtu, vnet_header: true, ..TapConfig::new(name) };
        Tap::open(&config).with_context(|| format!("opening {name}"))
    };
    let devices = [open(args.a)?, open(args.b)?];
    let configs = args.options.configs(false);
    let mut bridge = Bridge::new(devices, configs, args.options.seed, args.offload);
    precise_timers();
    if !args.json && !args.quiet {
        report::print(&format!("{} and {} are joined", args.a, args.b))?;
    }
    let start_ns = monotonic_now().as_nanos();
    carry(&mut bridge, args, start_ns, &stop)?;
    let elapsed = Duration::from_nanos(monotonic_now().as_nanos() - start_ns);
    let summary = Summary::of(&bridge, &args.options, elapsed.as_secs_f64());
    if args.json {
        report::print_json(&summary)?;
    } else if !args.quiet {
        report::print(&summary.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn carry(
    bridge: &mut Bridge<Tap>,
    args: &Args,
    start_ns: u64,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let end_ns = args.duration.map_or(u64::MAX, |time| start_ns.saturating_add(nanos(time)));
    let outage = args.options.outage();
    let mut is_out = false;
    while !stop.load(Ordering::Relaxed) {
        let now_ns = monotonic_now().as_nanos();
        if now_ns >= end_ns {
            break;
        }
        let mut until_ns = end_ns.min(now_ns + CHECK_NS);
        if let Some(outage) = outage {
            let (is_out_now, for_ns) = outage.at(now_ns - start_ns);
            until_ns = until_ns.min(now_ns + for_ns);
            if is_out_now != is_out {
                is_out = is_out_now;
                bridge.set_config(args.options.configs(is_out));
            }
        }
        let grain_end_ns = now_ns + args.options.grain_ns();
        match bridge.turn(|| monotonic_now().as_nanos()) {
            0 => {
                let release_ns = bridge.next_release_ns().unwrap_or(u64::MAX);
                wait(&bridge.devices(), until_ns.min(release_ns.max(grain_end_ns)))?;
            }
            // More frames are waiting.
            BURST.. => {}
            _ => wait(&[], until_ns.min(grain_end_ns))?,
        }
    }
    Ok(())
}

fn wait(devices: &[&Tap], until_ns: u64) -> anyhow::Result<()> {
    let left_ns = until_ns.saturating_sub(monotonic_now().as_nanos());
    if left_ns == 0 {
        return Ok(());
    }
    let timeout = Timespec {
        tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(left_ns % 1_000_000_000).unwrap_or(0),
    };
    let descriptors: Vec<BorrowedFd<'_>> =
        devices.iter().filter_map(|device| device.readiness()).collect();
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for frames"),
    }
}

/// Lets this thread wake up at the requested time, not up to 50 microseconds later.
fn precise_timers() {
    let slack_ns = std::num::NonZeroU64::new(1);
    // Without it, delays are slightly longer.
    let _longer = rustix::thread::set_current_timer_slack(slack_ns);
}
