//! siw's `rping` and a node of InfiniBand, with a gate and the host's kernel between them as routers.
//!
//! ```text
//!   guest (siw)        host kernel              urnic ibgate         fabric of ibsim      urnic rping
//!   10.77.0.2          10.77.0.1   10.8.0.1     10.9.0.9             under OpenSM         10.9.0.4
//!      tapg ────────────── br0       ibgate ────── Hca3 ─────────── urnic ibswitch ────────── Hca4
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use urnic_testkit::fabric::{Fabric, NEEDS, PARTITIONS, wait_until};
use urnic_testkit::programs;

use crate::lab::{GUEST, Lab, ip};
use crate::process::{Process, last_line};
use crate::table::Outcome::{Missing, Passed};
use crate::table::{Outcome, Table};

/// The node's address, and the device of the command there.
const NODE: &str = "10.9.0.4";
const DEVICE: &str = "--dev ib:sim=sim,node=Hca4,ip=10.9.0.4/24,gw=10.9.0.9";
const ROUNDS: u32 = 50;
const SIZES: [u32; 3] = [64, 4096, 65535];
const LIMIT: Duration = Duration::from_secs(60);

/// Runs these cases.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    table.case(lab, "rping -c, gate, urnic server on InfiniBand", |lab| {
        on_subnet(lab, from_guest)
    })?;
    table.case(lab, "rping -s, gate, urnic client on InfiniBand", |lab| on_subnet(lab, to_guest))
}

/// The processes that carry datagrams between the kernel and the fabric. They end in this order.
struct Subnet {
    _gate: Process,
    _switch: Process,
    _fabric: Fabric,
}

impl Subnet {
    fn start(lab: &mut Lab) -> anyhow::Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("urnic-ib-interop");
        let fabric = Fabric::start(&folder, PARTITIONS);
        let switch = Lab::command("ibswitch --sim sim --node Hca1 --quiet")?;
        let gate = Lab::command("ibgate --dev ib:sim=sim,node=Hca3,ip=10.9.0.9/24 --quiet")?;
        wait_until("the gate's link is up", || {
            ip("-brief link show").is_ok_and(|shown| {
                shown.lines().any(|line| line.starts_with("ibgate") && line.contains("LOWER_UP"))
            })
        });
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        ip("addr add 10.8.0.1 dev ibgate")?;
        ip("route add 10.9.0.0/24 dev ibgate src 10.8.0.1")?;
        lab.guest.run("ip route replace 10.9.0.0/24 via 10.77.0.1")?;
        Ok(Self { _gate: gate, _switch: switch, _fabric: fabric })
    }
}

fn on_subnet(
    lab: &mut Lab,
    talk: fn(&mut Lab, u32) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    if let Some(missing) = programs::missing(NEEDS) {
        return Ok(Missing(format!("{missing}: apt-get install ibsim-utils libumad2sim0 opensm")));
    }
    let _subnet = Subnet::start(lab)?;
    for size in SIZES {
        talk(lab, size)?;
    }
    Ok(Passed(format!("{ROUNDS} rounds of 64, 4096 and 65535 bytes, three processes")))
}

/// The node is the server. Each size has a process of its own, with a queue pair of its own.
fn from_guest(lab: &mut Lab, size: u32) -> anyhow::Result<()> {
    let port = lab.port();
    let server = Lab::command(&format!("rping -s -p {port} --timeout 30s {DEVICE}"))?;
    lab.guest.run(&format!(
        "for i in $(seq 20); do ping -c 1 -w 1 {NODE} >/dev/null && exit 0; done; exit 1"
    ))?;
    let line = format!("timeout 50 rping -c -a {NODE} -p {port} -C {ROUNDS} -S {size} -V");
    let client = lab.guest.start(&line)?;
    let client = lab.guest.finish(client, LIMIT)?;
    let server = server.finish(Duration::from_secs(10))?;
    let said = last_line(&client.output);
    ensure!(client.status == 0, "{size}: rping: {} {said}; urnic: {server:?}", client.status);
    ensure!(server.code == Some(0), "{size}: urnic: {server:?}");
    Ok(())
}

/// The guest is the server.
fn to_guest(lab: &mut Lab, size: u32) -> anyhow::Result<()> {
    let port = lab.port();
    let server = lab.guest.start(&format!("timeout 60 rping -s -a {GUEST} -p {port} -S {size}"))?;
    lab.guest.listening(port)?;
    let line =
        format!("rping -c -a {GUEST} -p {port} -C {ROUNDS} -S {size} -V --timeout 30s {DEVICE}");
    let client = Lab::command(&line)?.finish(LIMIT)?;
    lab.guest.run("killall -q rping || true")?;
    let server = lab.guest.finish(server, LIMIT)?;
    let said = last_line(&server.output);
    ensure!(client.code == Some(0), "{size}: urnic: {client:?}; rping: {} {said}", server.status);
    Ok(())
}
