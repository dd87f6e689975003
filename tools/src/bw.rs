//! Measuring throughput: as many messages as fit into some seconds.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use urnic::driver::monotonic_now;
use urnic::mem::{Access, Region};
use urnic::types::WrId;
use urnic::verbs::{Mr, SendWr};

use crate::client::{Client, Depths, Happened};
use crate::cmd::bw::Op;
use crate::counters::Counters;
use crate::host::Host;
use crate::protocol::{Control, Hello, Session};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) op: Op,
    pub(crate) size: u32,
    pub(crate) time: Duration,
    /// Messages under way on each connection.
    pub(crate) depth: u32,
    pub(crate) connections: u32,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) messages: u64,
    /// From the first request until the server had received all.
    pub(crate) time: Duration,
    /// Whether there were markers in the direction of the payload.
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    pub(crate) local: Counters,
    pub(crate) peer: Counters,
}

/// One connection.
struct Flow<'h> {
    client: Client<'h>,
    /// Messages under way.
    open: u32,
    /// Messages that the server has buffers for; for Sends.
    credits: u32,
    done: u64,
}

/// Measures.
///
/// # Errors
/// When the server cannot be reached, refuses, or falls silent.
pub(crate) fn measure(host: &Host, peer: SocketAddr, plan: &Plan) -> anyhow::Result<Measured> {
    let (session, depth) = match plan.op {
        Op::Write | Op::Read => (Session::Memory, 0),
        // As many are sent while credits for as many are on their way back.
        Op::Send => (Session::Sink, plan.depth * 2),
    };
    let hello = Hello { session, len: u64::from(plan.size), depth };
    let depths = Depths { send: usize::try_from(plan.depth)?, recv: 0, recv_len: 0 };
    let mut flows = Vec::new();
    for _ in 0..plan.connections {
        let client = Client::connect(host, peer, &hello, depths)?;
        let credits = match plan.op {
            Op::Write | Op::Read => u32::MAX,
            Op::Send => client.welcome.credits,
        };
        flows.push(Flow { client, open: 0, credits, done: 0 });
    }
    let region = Region::huge(usize::try_from(plan.size)?).context("no memory")?;
    let memory = host.pd.reg_region(region, Access::LOCAL_WRITE).context("registering memory")?;
    let started = monotonic_now();
    let end = started + plan.time;
    let mut silent_since = started;
    loop {
        let now = monotonic_now();
        let is_open = now < end;
        let mut happened = false;
        for flow in &mut flows {
            if is_open {
                flow.fill(plan, &memory)?;
            }
            happened |= flow.collect(plan.op)?;
        }
        if happened {
            silent_since = now;
        } else if now - silent_since > host.options.timeout {
            bail!(
                "{peer} has not answered for {:?}: it has stopped, or the way to it is broken",
                host.options.timeout
            );
        }
        if !is_open && flows.iter().all(|flow| flow.open == 0) {
            break;
        }
        // What was posted goes out here; only an idle endpoint sleeps.
        host.endpoint.turn(if happened { Duration::ZERO } else { SLEEP_MAX })?;
    }
    finish(flows, plan.op, started)
}

/// Waits until the server has received all, and adds up.
fn finish(
    mut flows: Vec<Flow<'_>>,
    op: Op,
    started: urnic::time::Instant,
) -> anyhow::Result<Measured> {
    let framing = flows.first().context("no connection")?.client.connection.terms().framing;
    let mut peer = Counters::default();
    for flow in &mut flows {
        peer = peer.plus(&flow.client.peer_counters()?);
    }
    let time = monotonic_now() - started;
    let (mut local, mut messages) = (Counters::default(), 0);
    for flow in flows {
        messages += flow.done;
        local = local.plus(&flow.client.counters()?);
        flow.client.close()?;
    }
    let markers = match op {
        Op::Write | Op::Send => framing.markers_to_peer,
        Op::Read => framing.markers_to_us,
    };
    Ok(Measured { messages, time, markers, crc: framing.crc, local, peer })
}

impl Flow<'_> {
    /// Posts as much as may be under way.
    #[inline]
    fn fill(&mut self, plan: &Plan, memory: &Mr) -> anyhow::Result<()> {
        while self.open < plan.depth && self.credits > 0 {
            let octets = memory.sge(0..memory.len());
            let remote = self.client.welcome.region;
            self.client.post(match plan.op {
                Op::Write => SendWr::write(WrId(0), remote, [octets]),
                Op::Read => SendWr::read(WrId(0), remote, octets),
                Op::Send => SendWr::send(WrId(0), [octets]),
            })?;
            self.open += 1;
            if plan.op == Op::Send {
                self.credits -= 1;
            }
        }
        Ok(())
    }

    /// Takes what is done; whether anything was.
    #[inline]
    fn collect(&mut self, op: Op) -> anyhow::Result<bool> {
        let mut happened = false;
        while let Some(event) = self.client.poll()? {
            happened = true;
            match event {
                Happened::Done(_) => {
                    self.open -= 1;
                    self.done += 1;
                }
                Happened::Control(Control::Credit(more)) if op == Op::Send => {
                    self.credits = self.credits.saturating_add(more);
                }
                Happened::Control(other) => return Err(self.client.unexpected(&other)),
                Happened::Payload(_) => bail!("the server sends what nobody asked for"),
            }
        }
        Ok(happened)
    }
}

/// How long to sleep when nothing happens.
const SLEEP_MAX: Duration = Duration::from_millis(100);
