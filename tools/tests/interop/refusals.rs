//! Forbidden requests: the other end's Terminate has the code of the RFC, and the requester reports
//! it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use urnic_engine::mem::Access;
use urnic_engine::types::{Stag, TaggedOffset};
use urnic_engine::verbs::RemoteBuffer;
use urnic_engine::wire::terminate::TerminateCode;

use crate::lab::{Device, GUEST, Lab};
use crate::liar::{Fate, Liar, SIZE};
use crate::process::last_line;
use crate::table::Outcome::{Passed, Skipped};
use crate::table::{Outcome, Table};

/// Runs these cases.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    use TerminateCode as Code;
    // RFC 5040 §4.8 Figure 10 for Reads; RFC 5041 §7.2 for Writes, where no code says "no right".
    for (wrong, read, write) in [
        (Wrong::Stag, Code::RDMAP_INVALID_STAG, Code::DDP_TAGGED_INVALID_STAG),
        (Wrong::Bounds, Code::RDMAP_BASE_BOUNDS, Code::DDP_TAGGED_BASE_BOUNDS),
        (Wrong::Access, Code::RDMAP_ACCESS_RIGHTS, Code::DDP_TAGGED_INVALID_STAG),
        (Wrong::Domain, Code::RDMAP_STAG_NOT_ASSOCIATED, Code::DDP_TAGGED_STAG_NOT_ASSOCIATED),
    ] {
        table.case(lab, &format!("siw reads, {wrong:?} wrong: we refuse"), |lab| {
            refuse_read(lab, wrong, read)
        })?;
        table.case(lab, &format!("siw writes, {wrong:?} wrong: we refuse"), |lab| {
            refuse_write(lab, wrong, write)
        })?;
    }
    for (what, lie, code) in LIES {
        table.case(lab, &format!("we {what}: siw refuses"), |lab| be_refused(lab, lie, code))?;
    }
    for what in ["read or write without the right", "read or write in another domain"] {
        table.case(lab, &format!("we {what}: siw refuses"), |_| {
            Ok(Skipped("stock rping has one domain, and gives its buffers every right".to_owned()))
        })?;
    }
    Ok(())
}

/// The fault of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Stag,
    Bounds,
    Access,
    Domain,
}

/// Advertises a wrong buffer to siw.
fn advertise(liar: &Liar, wrong: Wrong, right: Access) -> anyhow::Result<urnic_engine::verbs::Mr> {
    let access = if wrong == Wrong::Access { Access::LOCAL_WRITE } else { right };
    let mr = liar.buffer(access, wrong != Wrong::Domain)?;
    let mut remote = mr.remote(0);
    match wrong {
        Wrong::Stag => remote.stag = Stag(remote.stag.0 ^ 0x5A5A_5A00),
        Wrong::Bounds => remote.to = TaggedOffset(remote.to.0 + 1),
        Wrong::Access | Wrong::Domain => {}
    }
    liar.advertise(remote, SIZE)?;
    Ok(mr)
}

fn refuse_read(lab: &mut Lab, wrong: Wrong, code: TerminateCode) -> anyhow::Result<Outcome> {
    client(lab, code, |liar| advertise(liar, wrong, Access::REMOTE_READ).map(drop_later))
}

fn refuse_write(lab: &mut Lab, wrong: Wrong, code: TerminateCode) -> anyhow::Result<Outcome> {
    client(lab, code, |liar| {
        let source = liar.buffer(Access::REMOTE_READ, true)?;
        // Stock rping writes bytes back up to the first zero.
        source.copy_in(0, &[b'x'; SIZE - 1]);
        liar.advertise(source.remote(0), SIZE)?;
        // "Go ahead".
        liar.advertised()?;
        let sink = advertise(liar, wrong, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?;
        Ok(vec![source, sink])
    })
}

/// Buffers that live until the connection is over.
fn drop_later(mr: urnic_engine::verbs::Mr) -> Vec<urnic_engine::verbs::Mr> {
    vec![mr]
}

fn client(
    lab: &mut Lab,
    code: TerminateCode,
    lie: impl FnOnce(&Liar) -> anyhow::Result<Vec<urnic_engine::verbs::Mr>>,
) -> anyhow::Result<Outcome> {
    let port = lab.port();
    let server = lab.guest.start(&format!("timeout 20 rping -s -a {GUEST} -p {port} -S {SIZE}"))?;
    lab.guest.listening(port)?;
    let mut liar = Liar::new()?;
    liar.connect(format!("{GUEST}:{port}").parse()?)?;
    let buffers = lie(&liar)?;
    let fate = liar.fate()?;
    drop(buffers);
    // It ends by itself, not by its `timeout`; its exit status has no meaning.
    let server =
        lab.guest.finish(server, Duration::from_secs(10)).context("stock rping goes on")?;
    ensure!(fate == Fate::Refused(code), "{fate:?} instead of {code}");
    Ok(Passed(format!("{code}; rping: {}", last_line(&server.output))))
}

/// A forbidden access to the buffer that stock rping has advertised.
type Lie = fn(&Liar, RemoteBuffer) -> anyhow::Result<()>;

const LIES: [(&str, Lie, TerminateCode); 5] = [
    (
        "read with a wrong STag",
        |liar, at| liar.read(RemoteBuffer { stag: Stag(at.stag.0 ^ 0x5A5A_5A00), ..at }, 64),
        TerminateCode::RDMAP_INVALID_STAG,
    ),
    (
        "read out of bounds",
        |liar, at| liar.read(RemoteBuffer { to: TaggedOffset(at.to.0 + 8), ..at }, SIZE),
        TerminateCode::RDMAP_BASE_BOUNDS,
    ),
    (
        "write with a wrong STag",
        |liar, at| liar.write(RemoteBuffer { stag: Stag(at.stag.0 ^ 0x5A5A_5A00), ..at }, 64),
        TerminateCode::DDP_TAGGED_INVALID_STAG,
    ),
    (
        "write out of bounds",
        |liar, at| liar.write(RemoteBuffer { to: TaggedOffset(at.to.0 + 8), ..at }, SIZE),
        TerminateCode::DDP_TAGGED_BASE_BOUNDS,
    ),
    // siw has one code for "no buffer" and "buffer too short".
    ("send too much", |liar, _| liar.send(SIZE), TerminateCode::DDP_UNTAGGED_NO_BUFFER),
];

fn be_refused(lab: &mut Lab, lie: Lie, code: TerminateCode) -> anyhow::Result<Outcome> {
    let (port, address) = (lab.port(), Device::Kernel.address());
    let local: SocketAddr = format!("{address}:{port}").parse()?;
    let mut liar = Liar::new()?;
    let mut client = None;
    liar.accept(local, || {
        let command = format!("timeout 20 rping -c -a {address} -p {port} -C 1 -S {SIZE}");
        client = Some(lab.guest.start(&command)?);
        Ok(())
    })?;
    let at = liar.advertised()?;
    lie(&liar, at)?;
    let fate = liar.fate()?;
    ensure!(fate == Fate::Terminated(code), "{fate:?} instead of {code}");
    if let Some(client) = client {
        lab.guest.finish(client, Duration::from_secs(30))?;
    }
    Ok(Passed(code.to_string()))
}
