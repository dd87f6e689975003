//! Many connections: at the same time, and one after the other.

use std::time::Duration;

use anyhow::ensure;

use crate::lab::{Device, GUEST, Lab};
use crate::table::Outcome::Passed;
use crate::table::{Outcome, Table};

/// Connections at once.
const AT_ONCE: usize = 50;
/// Connections one after the other.
const IN_TURN: u32 = 500;
const LIMIT: Duration = Duration::from_secs(300);

/// Runs these cases.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    let name = format!("{AT_ONCE} at once, rping -s, urnic clients, kernel");
    table.case(lab, &name, at_once_to_guest)?;
    for device in Device::ALL {
        let name = format!("{AT_ONCE} at once, rping -c, urnic server, {device}");
        table.case(lab, &name, |lab| at_once_from_guest(lab, device))?;
    }
    let name = format!("{IN_TURN} in turn, rping -s, urnic clients, kernel");
    table.case(lab, &name, in_turn_to_guest)?;
    let name = format!("{IN_TURN} in turn, rping -c, urnic server, tap");
    table.case(lab, &name, in_turn_from_guest)
}

/// Each client has a server of its own: stock rping queues three clients, and siw drops the others.
fn at_once_to_guest(lab: &mut Lab) -> anyhow::Result<Outcome> {
    let ports: Vec<u16> = (0..AT_ONCE).map(|_| lab.port()).collect();
    let mut clients = Vec::new();
    for port in &ports {
        lab.guest.start(&format!("timeout 250 rping -s -a {GUEST} -p {port} -S 4096"))?;
    }
    for port in &ports {
        lab.guest.listening(*port)?;
    }
    for port in &ports {
        let arguments = format!("-c -a {GUEST} -p {port} -C 20 -S 4096 -V --timeout 60s");
        clients.push(Lab::urnic(Device::Kernel, &arguments)?);
    }
    for client in clients {
        let client = client.finish(LIMIT)?;
        ensure!(client.code == Some(0), "{client:?}");
    }
    lab.guest.run("killall -q -9 rping || true")?;
    Ok(Passed(format!("{AT_ONCE} processes, 20 rounds of 4096 bytes each")))
}

fn at_once_from_guest(lab: &mut Lab, device: Device) -> anyhow::Result<Outcome> {
    let (port, address) = (lab.port(), device.address());
    let mut server = Lab::serve(device, port, "-P --timeout 60s")?;
    // After all its pings, stock rping sometimes closes its event channel while its own thread uses
    // it: that end also counts as good.
    let job = lab.guest.start(&format!(
        "rm -f /tmp/good; for i in $(seq {AT_ONCE}); do {{ \
         told=$(timeout 100 rping -c -a {address} -p {port} -C 20 -S 4096 -V 2>&1); status=$?; \
         echo \"$told\"; if [ $status = 0 ] || echo \"$told\" | \
         grep -q 'rdma_get_cm_event: Bad file descriptor'; then echo >>/tmp/good; fi; }} & done; \
         wait; [ $(wc -l </tmp/good) = {AT_ONCE} ]"
    ))?;
    let answer = lab.guest.finish(job, LIMIT)?;
    server.end()?;
    ensure!(answer.status == 0, "{}", answer.output);
    Ok(Passed(format!("{AT_ONCE} processes, 20 rounds of 4096 bytes each")))
}

fn in_turn_to_guest(lab: &mut Lab) -> anyhow::Result<Outcome> {
    let port = lab.port();
    lab.guest.start(&format!("timeout 200 rping -s -P -a {GUEST} -p {port} -S 64"))?;
    lab.guest.listening(port)?;
    let arguments = format!("-c -a {GUEST} -p {port} -C 1 -S 64 -V");
    for number in 0..IN_TURN {
        let client = Lab::urnic(Device::Kernel, &arguments)?.finish(LIMIT)?;
        ensure!(client.code == Some(0), "number {number}: {client:?}");
    }
    lab.guest.run("killall -9 rping")?;
    Ok(Passed(format!("connect, transfer, disconnect {IN_TURN} times")))
}

fn in_turn_from_guest(lab: &mut Lab) -> anyhow::Result<Outcome> {
    let device = Device::Tap;
    let (port, address) = (lab.port(), device.address());
    let mut server = Lab::serve(device, port, "-P")?;
    // As above: after its ping, stock rping may close its event channel while its own thread uses
    // it.
    let job = lab.guest.start(&format!(
        "for i in $(seq {IN_TURN}); do \
         told=$(timeout 20 rping -c -a {address} -p {port} -C 1 -S 64 -V 2>&1) || \
         echo \"$told\" | grep -q 'rdma_get_cm_event: Bad file descriptor' || \
         {{ echo \"$told\"; echo number $i; exit 1; }}; done"
    ))?;
    let answer = lab.guest.finish(job, LIMIT)?;
    server.end()?;
    ensure!(answer.status == 0, "{}", answer.output);
    Ok(Passed(format!("connect, transfer, disconnect {IN_TURN} times")))
}
