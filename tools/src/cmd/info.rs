//! `urnic info`.

use std::process::ExitCode;

use anyhow::bail;
use urnic::device::Kind;

use crate::device::DeviceSpec;
use crate::ib::Port;
use crate::info;
use crate::report;

/// Show which devices can be used here, and how to make the others usable
///
/// Looks at the devices of the kernel, the interfaces of this network namespace, and the
/// processor's instructions for checksums. Changes nothing.
///
/// With --dev, opens that port of InfiniBand instead and shows its link, and the address that a
/// DHCP server gives it if 'dhcp' is asked for; then leaves the link again and gives the address
/// back.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show this port of InfiniBand: 'ib:sim=NAME,node=NODE,ip=ADDRESS/LENGTH', or ',dhcp' in the
    /// place of ',ip='
    #[arg(long, value_name = "DEVICE")]
    dev: Option<DeviceSpec>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 whichever devices can be used, 2 if the port of --dev cannot be opened.

Examples:
  urnic info
  urnic info --dev ib:sim=fabric,node=Hca2,dhcp
      Link and lease; waits for each at most 15 s.
  urnic info --json | jq '.devices[] | select(.usable) | .device'";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(dev) = &args.dev {
        let Kind::Ib(port) = dev.kind() else {
            bail!("--dev {dev}: only ports of InfiniBand are opened: ib:sim=NAME,node=NODE,ip=…");
        };
        let port = Port::look(port)?;
        if args.json {
            report::print_json(&port)?;
        } else {
            report::print(&port.text())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let found = info::look();
    if args.json {
        report::print_json(&found)?;
    } else {
        report::print(&found.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
