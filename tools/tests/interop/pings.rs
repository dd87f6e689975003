//! `rping` against `urnic rping`, in both roles, over a good network and over bad ones.

use std::time::Duration;

use anyhow::ensure;

use crate::lab::{Device, GUEST, Lab};
use crate::process::last_line;
use crate::table::Outcome::Passed;
use crate::table::{Outcome, Table};

/// Rounds of a case.
const ROUNDS: u32 = 200;
/// Rounds of a case through a bad network.
const IMPAIRED_ROUNDS: u32 = 50;
/// Stock rping takes at most one byte less than 64 KiB.
const SIZES: [u32; 3] = [64, 4096, 65535];
const LIMIT: Duration = Duration::from_secs(90);

/// One session.
#[derive(Clone, Copy, Debug)]
struct Ping {
    device: Device,
    size: u32,
    rounds: u32,
    crc: bool,
}

impl Ping {
    const fn new(device: Device, size: u32) -> Self {
        Self { device, size, rounds: ROUNDS, crc: true }
    }

    fn options(self) -> String {
        let crc = if self.crc { "" } else { "--no-crc" };
        format!("--timeout 20s {crc}")
    }

    fn said(self) -> Outcome {
        Passed(format!("{} rounds of {} bytes", self.rounds, self.size))
    }
}

/// Runs these cases. They restore MTU, module and network.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    for mtu in [1500, 9000] {
        lab.set_mtu(mtu)?;
        for device in Device::ALL {
            for size in SIZES {
                both(lab, table, &format!("MTU {mtu}"), Ping::new(device, size))?;
            }
        }
    }
    lab.set_mtu(1500)?;
    for device in Device::ALL {
        both(lab, table, "no CRC", Ping { crc: false, ..Ping::new(device, 4096) })?;
    }
    // If one side requests CRCs, both use them (RFC 5044 §7.1.1).
    lab.load_siw(true)?;
    for device in Device::ALL {
        both(lab, table, "CRC asked by siw", Ping { crc: false, ..Ping::new(device, 4096) })?;
    }
    lab.load_siw(false)?;
    for (what, netem) in [
        ("loss 2 %", "loss 2%"),
        ("reorder 25 %", "delay 2ms reorder 25% 50%"),
        ("duplicate 1 %", "duplicate 1%"),
        ("all of it", "delay 2ms loss 2% duplicate 1% reorder 25% 50%"),
    ] {
        lab.impair(Some(netem))?;
        for device in Device::ALL {
            let ping = Ping { rounds: IMPAIRED_ROUNDS, ..Ping::new(device, 65535) };
            both(lab, table, what, ping)?;
        }
        lab.impair(None)?;
    }
    Ok(())
}

fn both(lab: &mut Lab, table: &mut Table, what: &str, ping: Ping) -> anyhow::Result<()> {
    let Ping { device, size, .. } = ping;
    table.case(lab, &format!("rping -s, urnic client, {device}, {size}, {what}"), |lab| {
        to_guest(lab, ping)
    })?;
    table.case(lab, &format!("rping -c, urnic server, {device}, {size}, {what}"), |lab| {
        from_guest(lab, ping)
    })
}

/// The guest is the server.
fn to_guest(lab: &mut Lab, ping: Ping) -> anyhow::Result<Outcome> {
    let port = lab.port();
    let Ping { size, rounds, .. } = ping;
    let server =
        lab.guest.start(&format!("timeout 100 rping -s -a {GUEST} -p {port} -S {size}"))?;
    lab.guest.listening(port)?;
    let options = ping.options();
    let arguments = format!("-c -a {GUEST} -p {port} -C {rounds} -S {size} -V {options}");
    let client = Lab::urnic(ping.device, &arguments)?.finish(LIMIT)?;
    lab.guest.run("killall -q rping || true")?;
    let server = lab.guest.finish(server, LIMIT)?;
    let said = last_line(&server.output);
    ensure!(client.code == Some(0), "urnic: {client:?}; rping: {} {said}", server.status);
    Ok(ping.said())
}

/// The engine is the server.
fn from_guest(lab: &mut Lab, ping: Ping) -> anyhow::Result<Outcome> {
    let port = lab.port();
    let server = Lab::serve(ping.device, port, &ping.options())?;
    let (address, Ping { size, rounds, .. }) = (ping.device.address(), ping);
    let client = lab
        .guest
        .start(&format!("timeout 90 rping -c -a {address} -p {port} -C {rounds} -S {size} -V"))?;
    let client = lab.guest.finish(client, LIMIT + Duration::from_secs(5))?;
    let server = server.finish(Duration::from_secs(10))?;
    let said = last_line(&client.output);
    ensure!(client.status == 0, "rping: {} {said}; urnic: {server:?}", client.status);
    ensure!(server.code == Some(0), "urnic: {server:?}");
    Ok(ping.said())
}
