//! A side that dies, or a cable that is unplugged, in the middle of a transfer.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::lab::{Device, GUEST, Lab};
use crate::process::{Ended, Process, last_line};
use crate::table::Outcome::{Passed, Skipped};
use crate::table::{Outcome, Table};

/// Time limit for the end of `urnic rping --timeout 5s`: it may wait once more, for the reason.
const ENDS_WITHIN: Duration = Duration::from_secs(25);
/// Time until the transfer is in its middle.
const MIDDLE: Duration = Duration::from_millis(1500);
const SIZE: u32 = 65535;

/// The way in which the guest's side disappears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Unplugged,
}

/// Runs these cases.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    for device in Device::ALL {
        for end in [End::Killed, End::Unplugged] {
            table.case(lab, &format!("rping -s {end:?}, urnic client, {device}"), |lab| {
                server_goes(lab, device, end)
            })?;
            lab.plug()?;
            table.case(lab, &format!("rping -c {end:?}, urnic server, {device}"), |lab| {
                client_goes(lab, device, end)
            })?;
            lab.plug()?;
        }
        table.case(lab, &format!("urnic client Killed, rping -s, {device}"), |lab| {
            we_go(lab, device, true)
        })?;
        table.case(lab, &format!("urnic server Killed, rping -c, {device}"), |lab| {
            we_go(lab, device, false)
        })?;
    }
    Ok(())
}

fn go(lab: &mut Lab, port: u16, end: End) -> anyhow::Result<()> {
    lab.guest.connected(port)?;
    std::thread::sleep(MIDDLE);
    let command = match end {
        End::Killed => "killall -9 rping",
        End::Unplugged => "ip link set eth0 down",
    };
    lab.guest.run(command).map(drop)
}

fn ended(process: Process) -> anyhow::Result<Outcome> {
    let Ended { code, output, after } = process.finish(ENDS_WITHIN)?;
    ensure!(code.is_some(), "it has not ended for {after:?}");
    ensure!(code != Some(0), "it ended as if all were well");
    Ok(Passed(format!("after {:.1} s: {output}", after.as_secs_f64())))
}

fn server_goes(lab: &mut Lab, device: Device, end: End) -> anyhow::Result<Outcome> {
    let port = lab.port();
    lab.guest.start(&format!("timeout 60 rping -s -a {GUEST} -p {port} -S {SIZE}"))?;
    lab.guest.listening(port)?;
    let arguments = format!("-c -a {GUEST} -p {port} -S {SIZE} -V --timeout 5s");
    let client = Lab::urnic(device, &arguments)?;
    go(lab, port, end)?;
    ended(client)
}

fn client_goes(lab: &mut Lab, device: Device, end: End) -> anyhow::Result<Outcome> {
    let port = lab.port();
    // More pings than it ever receives: siw closes in the same way for a killed process and for a
    // finished one.
    let server = Lab::serve(device, port, "--timeout 5s -C 1000000")?;
    let address = device.address();
    lab.guest.start(&format!("timeout 60 rping -c -a {address} -p {port} -S {SIZE} -V"))?;
    go(lab, port, end)?;
    ended(server)
}

/// Stock rping keeps one state for its queue pair and its connection. A message that is handled
/// after the disconnect overwrites the latter, and rping waits forever: sometimes, with any peer.
const TRIES: usize = 3;

fn we_go(lab: &mut Lab, device: Device, client: bool) -> anyhow::Result<Outcome> {
    if device == Device::Tap {
        return Ok(Skipped(
            "the whole TCP dies with the process: nobody is left to tell the peer, and stock rping \
             has no timeout"
                .to_owned(),
        ));
    }
    let mut last = None;
    for _ in 0..TRIES {
        match we_are_killed(lab, device, client) {
            Ok(said) => return Ok(Passed(format!("rping: {said}"))),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("at least one try")?)
}

/// Returns how stock rping ends when ours is killed.
fn we_are_killed(lab: &mut Lab, device: Device, client: bool) -> anyhow::Result<String> {
    let (port, address) = (lab.port(), device.address());
    let (mut process, job) = if client {
        let job =
            lab.guest.start(&format!("timeout 30 rping -s -a {GUEST} -p {port} -S {SIZE}"))?;
        lab.guest.listening(port)?;
        (Lab::urnic(device, &format!("-c -a {GUEST} -p {port} -S {SIZE} -V"))?, job)
    } else {
        let process = Lab::serve(device, port, "")?;
        let command = format!("timeout 30 rping -c -a {address} -p {port} -S {SIZE} -V");
        (process, lab.guest.start(&command)?)
    };
    lab.guest.connected(port)?;
    std::thread::sleep(MIDDLE);
    process.end()?;
    // It ends by itself, not by its `timeout`. Its exit status has no meaning.
    let limit = Duration::from_secs(10);
    let answer = lab.guest.finish(job, limit).context("stock rping goes on")?;
    Ok(last_line(&answer.output).to_owned())
}
