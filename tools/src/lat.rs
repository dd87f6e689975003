//! Measuring latency: one message to and fro, again and again.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use urnic::driver::monotonic_now;
use urnic::mem::{Access, Region};
use urnic::types::WrId;
use urnic::verbs::{Mr, RemoteBuffer, SendWr};

use crate::client::{Client, Depths, Happened};
use crate::cmd::lat::Op;
use crate::host::Host;
use crate::protocol::{Hello, Session};

/// Makes round trips; their times in nanoseconds.
///
/// # Errors
/// When the server cannot be reached, refuses, or falls silent.
pub(crate) fn measure(
    host: &Host,
    peer: SocketAddr,
    op: Op,
    size: u32,
    iterations: u32,
) -> anyhow::Result<Histogram<u64>> {
    let len = usize::try_from(size)?;
    let memory = || -> anyhow::Result<Mr> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        host.pd.reg_region(Region::huge(len)?, access).context("registering memory")
    };
    let (source, target) = (memory()?, memory()?);
    let (session, recv) = match op {
        Op::Write => (Session::PingPong(target.remote(0)), 0),
        Op::Send => (Session::Echo, 1),
        Op::Read => (Session::Memory, 0),
    };
    let hello = Hello { session, len: u64::from(size), depth: recv };
    let depths = Depths { send: SEND_DEPTH, recv: usize::try_from(recv)?, recv_len: len };
    let client = Client::connect(host, peer, &hello, depths)?;
    let remote = client.welcome.region;
    let mut trips = Trips { client, source, target, remote, len, next: 1 };
    let mut times = Histogram::new_with_max(TIME_MAX_NS, 3).context("making a histogram")?;
    for number in 0..iterations / 10 + WARM_UP_MIN + iterations {
        let started = monotonic_now();
        match op {
            Op::Write => trips.write()?,
            Op::Send => trips.send()?,
            Op::Read => trips.read()?,
        }
        let ns = monotonic_now().nanos_since(started);
        if number >= iterations / 10 + WARM_UP_MIN {
            times.saturating_record(ns);
        }
    }
    trips.client.close()?;
    Ok(times)
}

struct Trips<'h> {
    client: Client<'h>,
    source: Mr,
    target: Mr,
    remote: RemoteBuffer,
    len: usize,
    /// The octet that the next Write ends with, and its answer.
    next: u8,
}

impl Trips<'_> {
    fn write(&mut self) -> anyhow::Result<()> {
        let Self { client, source, target, remote, len, next } = self;
        let expected = [*next];
        *next = next.wrapping_add(1);
        // The answer to the last Write has come, so nobody reads the source any more.
        source.copy_in(*len - 1, &expected);
        client.post(SendWr::write(WrId(0), *remote, [source.sge(0..*len)]))?;
        let mut seen = [0];
        loop {
            client.idle(Duration::ZERO)?;
            target.copy_out(*len - 1, &mut seen);
            if seen == expected {
                break;
            }
            // A failure shows as a completion.
            while let Some(event) = client.poll()? {
                if let Happened::Control(other) = event {
                    return Err(client.unexpected(&other));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let Self { client, source, len, .. } = self;
        client.post(SendWr::send(WrId(0), [source.sge(0..*len)]))?;
        loop {
            match next(client)? {
                Happened::Payload(wc) => return client.release(&wc),
                Happened::Done(_) => {}
                Happened::Control(other) => return Err(client.unexpected(&other)),
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let Self { client, target, remote, len, .. } = self;
        client.post(SendWr::read(WrId(0), *remote, target.sge(0..*len)))?;
        match next(client)? {
            Happened::Done(_) => Ok(()),
            Happened::Control(other) => Err(client.unexpected(&other)),
            Happened::Payload(_) => bail!("the server sends what nobody asked for"),
        }
    }
}

/// Waits without ever sleeping.
fn next(client: &mut Client<'_>) -> anyhow::Result<Happened> {
    loop {
        client.idle(Duration::ZERO)?;
        if let Some(event) = client.poll()? {
            return Ok(event);
        }
    }
}

/// Longest time that is told from longer ones.
const TIME_MAX_NS: u64 = 10_000_000_000;
/// Requests that are done but not seen to be.
const SEND_DEPTH: usize = 64;
/// Round trips before the measurement, beside a tenth of those measured.
const WARM_UP_MIN: u32 = 10;
/// Never sleep.
pub(crate) const SPIN_ALWAYS: Duration = Duration::from_secs(3600);
