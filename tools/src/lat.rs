//! Latency measurement: one message there and back, repeatedly.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use urnic::{Access, Mr, RemoteBuffer, SendOp, SendWr, WrId, monotonic_now};

use crate::bw::no_memory;
use crate::client::{Client, Depths, Happened};
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::measure::{Intervals, Op, Samples, Times, Timing};
use crate::protocol::{Hello, Session};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) op: Op,
    pub(crate) size: u32,
    pub(crate) iterations: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Moment {
    iterations: u64,
    #[serde(flatten)]
    times: Times,
}

pub(crate) fn measure(
    host: &Host,
    remotes: &[SocketAddr],
    plan: &Plan,
    interrupt: &Interrupt,
    intervals: &mut Intervals<Moment>,
) -> anyhow::Result<Samples> {
    let len = usize::try_from(plan.size)?;
    let registered = || -> anyhow::Result<Mr> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = host.memory(len).with_context(|| no_memory(plan.size))?;
        host.pd.reg_region(region, access).context("registering memory")
    };
    let (source, target) = (registered()?, registered()?);
    let (session, recv) = match plan.op {
        Op::Write => (Session::PingPong(target.remote(0)), 0),
        Op::Send | Op::Immediate => (Session::Echo, 1),
        Op::Read | Op::FetchAdd => (Session::Memory, 0),
    };
    let hello = Hello { session, len: u64::from(plan.size), depth: recv };
    let depths = Depths { send: SEND_DEPTH, recv: usize::try_from(recv)?, recv_len: len };
    let client = Client::connect(host, remotes, &hello, depths)?;
    interrupt.watch()?;
    host.note_framing(client.connection.terms().framing, plan.op.payload());
    let remote = client.welcome.region;
    let mut trips = Trips { client, source, target, remote, len, next: 1 };
    let (mut times, mut recent) = (Samples::new()?, Samples::new()?);
    trips.warm_up(plan, interrupt)?;
    intervals.start(monotonic_now());
    for _ in 0..plan.iterations {
        if interrupt.has_come() {
            break;
        }
        let started = monotonic_now();
        trips.make(plan.op)?;
        let now = monotonic_now();
        let ns = now.nanos_since(started);
        times.record(ns);
        recent.record(ns);
        if intervals.is_due(now) {
            intervals.end(now, |_| Moment::new(&recent, plan.op.timing()));
            recent.reset();
        }
    }
    if !recent.is_empty() {
        intervals.rest(monotonic_now(), |_| Moment::new(&recent, plan.op.timing()));
    }
    trips.client.close()?;
    ensure!(!times.is_empty(), "interrupted before anything was measured");
    Ok(times)
}

impl Moment {
    fn new(samples: &Samples, timing: Timing) -> (Self, String) {
        let (iterations, times) = (samples.len(), Times::of(samples, timing));
        (Self { iterations, times }, format!("{iterations:>9} messages: {times}"))
    }
}

struct Trips<'h> {
    client: Client<'h>,
    source: Mr,
    target: Mr,
    remote: RemoteBuffer,
    len: usize,
    /// Last byte of the next Write, and of its answer.
    next: u8,
}

impl Trips<'_> {
    /// Number and time are chosen so that both ends are in the caches, and on separate cores: a
    /// server that slept is often woken on its client's core, and stays there for some 20 ms.
    fn warm_up(&mut self, plan: &Plan, interrupt: &Interrupt) -> anyhow::Result<()> {
        let least = (plan.iterations / 10).clamp(WARM_UP_MIN, WARM_UP_MAX);
        let begin = monotonic_now();
        let mut made = 0;
        while made < least || monotonic_now().nanos_since(begin) < WARM_UP_NS {
            if interrupt.has_come() {
                break;
            }
            self.make(plan.op)?;
            made += 1;
        }
        Ok(())
    }

    #[inline]
    fn make(&mut self, op: Op) -> anyhow::Result<()> {
        let Self { client, source, target, remote, len, .. } = self;
        match op {
            Op::Write => self.write(),
            Op::Send => {
                client.post(SendWr::send(WrId(0), [source.sge(0..*len)]))?;
                self.await_echo()
            }
            Op::Immediate => {
                let op = SendOp::Immediate { value: 0, solicited: false };
                client.post(SendWr::new(WrId(0), op, []))?;
                self.await_echo()
            }
            Op::Read => {
                client.post(SendWr::read(WrId(0), *remote, target.sge(0..*len)))?;
                self.await_done()
            }
            Op::FetchAdd => {
                let op = SendOp::FetchAdd { remote: *remote, add: 1, mask: 0 };
                client.post(SendWr::new(WrId(0), op, []))?;
                self.await_done()
            }
        }
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let Self { client, source, target, remote, len, next } = self;
        let expected = [*next];
        *next = next.wrapping_add(1);
        // The last answer has arrived, so the source is no longer read.
        source.copy_in(*len - 1, &expected);
        client.post(SendWr::write(WrId(0), *remote, [source.sge(0..*len)]))?;
        let mut seen = [0];
        loop {
            client.idle(Duration::ZERO)?;
            target.copy_out(*len - 1, &mut seen);
            if seen == expected {
                break;
            }
            // A failure is reported as a completion.
            while let Some(event) = client.poll()? {
                match event {
                    Happened::Control(other) => return Err(client.unexpected(&other)),
                    Happened::Payload(_) => return Err(client.unasked()),
                    Happened::Done(_) => {}
                }
            }
        }
        Ok(())
    }

    fn await_echo(&mut self) -> anyhow::Result<()> {
        loop {
            match next(&mut self.client)? {
                Happened::Payload(wc) => return self.client.release(&wc),
                Happened::Done(_) => {}
                Happened::Control(other) => return Err(self.client.unexpected(&other)),
            }
        }
    }

    fn await_done(&mut self) -> anyhow::Result<()> {
        match next(&mut self.client)? {
            Happened::Done(_) => Ok(()),
            Happened::Control(other) => Err(self.client.unexpected(&other)),
            Happened::Payload(_) => Err(self.client.unasked()),
        }
    }
}

fn next(client: &mut Client<'_>) -> anyhow::Result<Happened> {
    loop {
        client.idle(Duration::ZERO)?;
        if let Some(event) = client.poll()? {
            return Ok(event);
        }
    }
}

const SEND_DEPTH: usize = 64;
/// Round trips before the measurement: a tenth of those measured, within these bounds.
const WARM_UP_MIN: u32 = 10;
const WARM_UP_MAX: u32 = 1_000;
const WARM_UP_NS: u64 = 100_000_000;
/// A thread with this spin time never sleeps.
pub(crate) const SPIN_ALWAYS: Duration = Duration::from_secs(3600);
