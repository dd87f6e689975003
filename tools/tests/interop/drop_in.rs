//! The stock `rping` and `rstream` of this host on urnic's libibverbs and librdmacm, against those of the guest
//! on siw.

use std::time::Duration;

use anyhow::ensure;

use crate::lab::{Device, GUEST, Lab};
use crate::process::last_line;
use crate::table::Outcome::Passed;
use crate::table::{Outcome, Table};

const ROUNDS: u32 = 200;
const SIZES: [u32; 2] = [64, 65535];
const LIMIT: Duration = Duration::from_secs(90);

/// Runs these cases.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    for size in SIZES {
        table.case(lab, &format!("rping -s, rping -c on urnic's libraries, {size}"), |lab| {
            to_guest(lab, size)
        })?;
        table.case(lab, &format!("rping -c, rping -s on urnic's libraries, {size}"), |lab| {
            from_guest(lab, size)
        })?;
    }
    for (size, of_guest, of_host) in STREAMS {
        table.case(lab, &format!("rstream, guest serves, {size}"), |lab| {
            stream_to_guest(lab, &format!("-T b -T v -S {size} {of_guest}"))
        })?;
        table.case(lab, &format!("rstream, host serves, {size}"), |lab| {
            stream_from_guest(lab, &format!("-T b -T v -S {size} {of_host}"))
        })?;
    }
    Ok(())
}

/// Small transfers, and large ones, which are longer than the rings if the host is the server. The
/// server closes after its last message; a connection of siw was then reset before all data had
/// arrived, because credits came for it. A guest as server sends too little for that: less than
/// half a ring.
const STREAMS: [(u32, &str, &str); 2] =
    [(100, "-C 50 -I 1", "-C 50 -I 20"), (200_000, "-C 2 -I 1", "-C 10 -I 2")];

/// rsockets of the guest are the server.
fn stream_to_guest(lab: &mut Lab, options: &str) -> anyhow::Result<Outcome> {
    let port = lab.port();
    let server = lab.guest.start(&format!("timeout 60 rstream -p {port} {options}"))?;
    lab.guest.listening(port)?;
    let client = Lab::stock(&format!("rstream -s {GUEST} -p {port} {options}"))?.finish(LIMIT)?;
    let server = lab.guest.finish(server, LIMIT)?;
    let said = last_line(&server.output);
    ensure!(client.code == Some(0), "here: {client:?}; guest: {} {said}", server.status);
    ensure!(server.status == 0, "guest: {} {said}; here: {client:?}", server.status);
    Ok(Passed(said.to_owned()))
}

/// rsockets of the host are the server.
fn stream_from_guest(lab: &mut Lab, options: &str) -> anyhow::Result<Outcome> {
    let (port, address) = (lab.port(), Device::Kernel.address());
    let server = Lab::stock(&format!("rstream -p {port} {options}"))?;
    Lab::listens(Device::Kernel, port)?;
    let command = format!("timeout 60 rstream -s {address} -p {port} {options}");
    let client = lab.guest.start(&command)?;
    let client = lab.guest.finish(client, LIMIT)?;
    let server = server.finish(Duration::from_secs(10))?;
    let said = last_line(&client.output);
    ensure!(client.status == 0, "guest: {} {said}; here: {server:?}", client.status);
    ensure!(server.code == Some(0), "here: {server:?}; guest: {said}");
    Ok(Passed(said.to_owned()))
}

/// The guest is the server.
fn to_guest(lab: &mut Lab, size: u32) -> anyhow::Result<Outcome> {
    let port = lab.port();
    let server =
        lab.guest.start(&format!("timeout 100 rping -s -a {GUEST} -p {port} -S {size}"))?;
    lab.guest.listening(port)?;
    let arguments = format!("-c -a {GUEST} -p {port} -C {ROUNDS} -S {size} -V");
    let client = Lab::stock(&format!("rping {arguments}"))?.finish(LIMIT)?;
    lab.guest.run("killall -q rping || true")?;
    let server = lab.guest.finish(server, LIMIT)?;
    let said = last_line(&server.output);
    ensure!(client.code == Some(0), "here: {client:?}; guest: {} {said}", server.status);
    Ok(Passed(format!("{ROUNDS} rounds of {size} bytes")))
}

/// The host is the server.
fn from_guest(lab: &mut Lab, size: u32) -> anyhow::Result<Outcome> {
    let (port, address) = (lab.port(), Device::Kernel.address());
    let server = Lab::stock(&format!("rping -s -a {address} -p {port} -C {ROUNDS} -S {size} -V"))?;
    Lab::listens(Device::Kernel, port)?;
    let command = format!("timeout 90 rping -c -a {address} -p {port} -C {ROUNDS} -S {size} -V");
    let client = lab.guest.start(&command)?;
    let client = lab.guest.finish(client, LIMIT + Duration::from_secs(5))?;
    let server = server.finish(Duration::from_secs(10))?;
    let said = last_line(&client.output);
    ensure!(client.status == 0, "guest: {} {said}; here: {server:?}", client.status);
    ensure!(server.code == Some(0), "here: {server:?}");
    Ok(Passed(format!("{ROUNDS} rounds of {size} bytes")))
}
