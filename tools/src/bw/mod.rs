//! Throughput measurement: for some seconds, or for a number of messages.

mod budget;
mod flow;
mod result;

pub(crate) use crate::bw::result::{Bandwidth, Table, header};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use serde::Serialize;
use urnic::{Access, Mr, Region, monotonic_now};
use urnic_engine::time::Instant;

use crate::bw::budget::{Budget, message_time};
use crate::bw::flow::Flow;
use crate::client::{Client, Depths, SIGNAL_INTERVAL, close_all};
use crate::counters::Counters;
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::measure::{Intervals, Op, processor_time};
use crate::protocol::{Control, Hello, Session};
use crate::{figure, size};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) op: Op,
    pub(crate) size: u32,
    /// `None` for a measurement by count.
    pub(crate) time: Option<Duration>,
    pub(crate) count: Option<u64>,
    pub(crate) rate: Option<u64>,
    pub(crate) depth_asked: u32,
    /// Messages in flight on each connection; less than requested if they need too much memory.
    pub(crate) depth: u32,
    pub(crate) post_list: u32,
    pub(crate) signal_every: u32,
    pub(crate) connections: u32,
    /// Set if the server does the same at the same time.
    pub(crate) is_both: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) messages: u64,
    /// Messages of the server, in a bidirectional session.
    pub(crate) messages_of_server: u64,
    /// Calls that posted messages, and completions of messages, at this end.
    pub(crate) calls: u64,
    pub(crate) completions: u64,
    /// Time from the first request until the server had received all.
    pub(crate) time: Duration,
    pub(crate) depth: u32,
    /// Most messages that it could have had: the requested depth, or less.
    pub(crate) depth_max: u32,
    /// Reads and Atomics that the peer accepts at a time.
    pub(crate) reads_max: u32,
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    pub(crate) local: Counters,
    pub(crate) peer: Counters,
    pub(crate) processor: (Duration, Duration),
    pub(crate) was_interrupted: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Moment {
    messages: u64,
    bytes: u64,
    /// `None` if the interval was shorter than the clock's step.
    gbps: Option<f64>,
    messages_per_second: Option<f64>,
}

impl Moment {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    pub(crate) fn new(messages: u64, size: u32, seconds: f64) -> (Self, String) {
        let bytes = messages * u64::from(size);
        let per_second = |amount: f64| (seconds > 0.0).then(|| amount / seconds);
        let (gbps, messages_per_second) =
            (per_second(bytes as f64 * 8e-9), per_second(messages as f64));
        let bits = figure::known(gbps, |gbps| figure::bits_per_second(gbps * 1e9));
        let often = figure::known(messages_per_second, figure::frequency);
        let text = format!("{bits:>11} {often:>12} messages/s");
        (Self { messages, bytes, gbps, messages_per_second }, text)
    }
}

/// Reports each interval.
pub(crate) fn measure(
    host: &Host,
    remotes: &[SocketAddr],
    plan: &Plan,
    interrupt: &Interrupt,
    intervals: &mut Intervals<Moment>,
) -> anyhow::Result<Measured> {
    let plan = &Plan { depth: depth_within(plan), ..*plan };
    check_rate(plan)?;
    let region = || -> anyhow::Result<Arc<Region>> {
        host.memory(usize::try_from(plan.size)?).with_context(|| no_memory(plan.size))
    };
    let registered = |access| -> anyhow::Result<Mr> {
        host.pd.reg_region(region()?, access).context("registering memory")
    };
    let memory = registered(Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = plan.is_both.then(|| registered(access)).transpose()?;
    let mut flows = connect(host, remotes, plan, target.as_ref())?;
    interrupt.watch()?;
    let first = flows.first_mut().context("no connection")?;
    host.note_framing(first.client.connection.terms().framing, plan.op.payload());
    let processor_before = (first.client.processor_time()?, processor_time());
    for flow in flows.iter_mut().filter(|_| plan.is_both) {
        flow.client.send(&Control::Start)?;
    }
    let started = monotonic_now();
    run(host, plan, &mut flows, &memory, started, interrupt, intervals)
        .map_err(|error| with_what_was_measured(error, plan, &flows, started))?;
    let mut measured = finish(&mut flows, plan, started)?;
    let first = flows.first_mut().context("no connection")?;
    let (server, local) = (first.client.processor_time()?, processor_time());
    measured.processor =
        (local.saturating_sub(processor_before.1), server.saturating_sub(processor_before.0));
    measured.reads_max = u32::from(first.client.connection.terms().ord);
    measured.depth_max = depth_max(plan, measured.reads_max);
    let most = flows.iter().map(|flow| flow.most).max().unwrap_or(0);
    measured.depth = most.min(measured.depth_max);
    measured.was_interrupted = interrupt.has_come();
    close_all(flows.into_iter().map(|flow| flow.client).collect())?;
    Ok(measured)
}

fn connect<'h>(
    host: &'h Host,
    remotes: &[SocketAddr],
    plan: &Plan,
    target: Option<&Mr>,
) -> anyhow::Result<Vec<Flow<'h>>> {
    let (session, depth) = match (target, plan.op) {
        (Some(target), op) => {
            (Session::Both { remote: target.remote(0), is_read: op == Op::Read }, plan.depth)
        }
        (None, Op::Write | Op::Read | Op::FetchAdd) => (Session::Memory, 0),
        // All messages may be in flight while credits for half as many, or for a list, return.
        (None, Op::Send | Op::Immediate) => {
            (Session::Sink, plan.depth + plan.depth.div_ceil(2).max(plan.post_list.min(plan.depth)))
        }
    };
    let hello = Hello { session, len: u64::from(plan.size), depth };
    let depths = Depths { send: usize::try_from(plan.depth)?, recv: 0, recv_len: 0 };
    let mut remotes = remotes.to_vec();
    let mut flows = Vec::new();
    for _ in 0..plan.connections {
        let client = Client::connect(host, &remotes, &hello, depths)?;
        remotes = vec![client.remote()];
        flows.push(Flow::new(client, plan));
    }
    Ok(flows)
}

fn run(
    host: &Host,
    plan: &Plan,
    flows: &mut [Flow<'_>],
    memory: &Mr,
    started: Instant,
    interrupt: &Interrupt,
    intervals: &mut Intervals<Moment>,
) -> anyhow::Result<()> {
    let end = plan.time.map(|time| started + time);
    let mut budget = Budget::new(plan.count, plan.rate, plan.size, started);
    let (mut silent_since, mut told) = (started, 0);
    intervals.start(started);
    loop {
        let now = monotonic_now();
        budget.set_time(now);
        let is_open =
            end.is_none_or(|end| now < end) && !budget.is_spent() && !interrupt.has_come();
        let (mut happened, mut was_stopped) = (false, false);
        for flow in &mut *flows {
            was_stopped |= flow.client.was_stopped(now);
            if is_open {
                flow.fill(memory, &mut budget)?;
            }
            happened |= flow.collect()?;
        }
        let is_idle = flows.iter().all(|flow| flow.open == 0);
        if happened || was_stopped || !flows.iter().any(Flow::is_waiting) {
            silent_since = now;
        } else if now - silent_since > host.options.timeout {
            let first = flows.first().context("no connection")?;
            return Err(first.client.silent(host.options.timeout));
        }
        if intervals.is_due(now) {
            let done: u64 = flows.iter().map(|flow| flow.done).sum();
            intervals.end(now, |seconds| Moment::new(done - told, plan.size, seconds));
            told = done;
        }
        if !is_open && is_idle {
            let done: u64 = flows.iter().map(|flow| flow.done).sum();
            intervals.rest(now, |seconds| Moment::new(done - told, plan.size, seconds));
            return Ok(());
        }
        // Posted messages are sent here; only an idle endpoint sleeps.
        let sleep = if happened { Duration::ZERO } else { budget.pause(SIGNAL_INTERVAL) };
        host.endpoint
            .turn(end.filter(|end| now < *end).map_or(sleep, |end| sleep.min(end - now)))?;
    }
}

fn with_what_was_measured(
    error: anyhow::Error,
    plan: &Plan,
    flows: &[Flow<'_>],
    started: Instant,
) -> anyhow::Error {
    let messages: u64 = flows.iter().map(|flow| flow.done).sum();
    let seconds = (monotonic_now() - started).as_secs_f64();
    if messages == 0 || seconds == 0.0 {
        return error;
    }
    let (_, rate) = Moment::new(messages, plan.size, seconds);
    anyhow!("{error:#}; until then {messages} messages in {seconds:.2} s: {}", rate.trim_start())
}

/// The requested depth, unless the total exceeds [`UNDER_WAY_MAX`] and the total of one connection.
fn depth_within(plan: &Plan) -> u32 {
    let message = u64::from(plan.size);
    let budget = UNDER_WAY_MAX.max(message * u64::from(plan.depth));
    let fit = budget / (message * u64::from(plan.connections)).max(1);
    plan.depth.min(u32::try_from(fit).unwrap_or(u32::MAX)).max(1)
}

/// The peer's IRD also limits Reads and Atomics.
const fn depth_max(plan: &Plan, reads_max: u32) -> u32 {
    if plan.op.is_read() && reads_max < plan.depth { reads_max } else { plan.depth }
}

/// Fails if a message does not fit into the time at the requested rate: nothing would be measured.
fn check_rate(plan: &Plan) -> anyhow::Result<()> {
    let Some(rate) = plan.rate else { return Ok(()) };
    let message = message_time(plan.size, rate);
    let shown = figure::seconds(message.as_secs_f64());
    let size = size::format(u64::from(plan.size));
    let longest = plan.time.unwrap_or(LONE_MESSAGE_MAX);
    ensure!(
        message <= longest,
        "--rate: a message of {size} takes {shown} at {}, and there are {}: ask for a smaller --size, a \
         higher --rate, or more time",
        figure::bits_per_second(rate_of(rate)),
        figure::seconds(longest.as_secs_f64()),
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
const fn rate_of(rate: u64) -> f64 {
    rate as f64
}

fn finish(flows: &mut [Flow<'_>], plan: &Plan, started: Instant) -> anyhow::Result<Measured> {
    let framing = flows.first().context("no connection")?.client.connection.terms().framing;
    let (mut peer, mut messages_of_server) = (Counters::default(), 0);
    for flow in &mut *flows {
        if plan.is_both {
            messages_of_server = u64::saturating_add(messages_of_server, flow.client.stop()?);
        }
        flow.client.ask_counters()?;
    }
    for flow in &mut *flows {
        peer = peer.plus(&flow.client.wait_counters()?);
    }
    let time = monotonic_now() - started;
    let (mut local, mut messages) = (Counters::default(), 0);
    let (mut calls, mut completions) = (0, 0);
    for flow in flows {
        messages += flow.done;
        calls += flow.calls;
        completions += flow.completions;
        local = local.plus(&flow.client.counters()?);
    }
    let markers = if plan.op == Op::Read { framing.markers_to_us } else { framing.markers_to_peer };
    let processor = (Duration::ZERO, Duration::ZERO);
    let (crc, was_interrupted) = (framing.crc, false);
    Ok(Measured {
        messages,
        messages_of_server,
        calls,
        completions,
        time,
        depth: plan.depth,
        depth_max: plan.depth,
        reads_max: u32::MAX,
        markers,
        crc,
        local,
        peer,
        processor,
        was_interrupted,
    })
}

pub(crate) fn no_memory(size: u32) -> String {
    format!("memory for messages of {}: ask for a smaller --size", size::format(u64::from(size)))
}

/// Longest time of a message at a rate, for a measurement by count.
const LONE_MESSAGE_MAX: Duration = Duration::from_secs(86_400);

/// Bytes in flight on all connections: more would only lengthen the queue, and the wait at the end.
const UNDER_WAY_MAX: u64 = 128 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(op: Op, size: u32, depth: u32) -> Plan {
        let (time, count, rate) = (Some(Duration::from_secs(2)), None, None);
        let (depth_asked, connections, is_both) = (depth, 1, false);
        let (post_list, signal_every) = (1, 1);
        Plan {
            op,
            size,
            time,
            count,
            rate,
            depth_asked,
            depth,
            post_list,
            signal_every,
            connections,
            is_both,
        }
    }

    #[test]
    fn an_interval_without_time_has_no_rate() {
        let (moment, text) = Moment::new(3, 1 << 20, 0.0);
        assert_eq!((moment.gbps, moment.messages_per_second), (None, None));
        assert!(text.contains('–') && !text.contains("inf"), "{text}");
        let (moment, text) = Moment::new(1000, 125_000, 2.0);
        assert_eq!((moment.gbps, moment.messages_per_second), (Some(0.5), Some(500.0)));
        assert!(text.contains("500 Mbit/s") && text.contains(" 500 messages/s"), "{text}");
    }

    #[test]
    fn the_depth_of_reads_is_bounded_by_the_peer() {
        assert_eq!(depth_max(&plan(Op::Read, 8, 64), 16), 16);
        assert_eq!(depth_max(&plan(Op::FetchAdd, 8, 64), 7), 7);
        assert_eq!(depth_max(&plan(Op::Read, 8, 4), 16), 4);
        assert_eq!(depth_max(&plan(Op::Write, 8, 64), 16), 64);
    }

    #[test]
    fn a_rate_at_which_no_message_ends_is_refused() {
        let at = |rate| Plan { rate: Some(rate), ..plan(Op::Write, 64 << 10, 16) };
        let refused = check_rate(&at(1000)).unwrap_err().to_string();
        assert!(refused.contains("a message of 64K takes 524 s at 1.00 kbit/s"), "{refused}");
        // 64 KiB in 2 s are 262,144 bit/s.
        assert!(check_rate(&at(262_143)).is_err());
        assert!(check_rate(&at(262_144)).is_ok());
        let by_count = Plan { time: None, count: Some(1), ..at(1000) };
        assert!(check_rate(&by_count).is_ok(), "however long that takes");
        assert!(check_rate(&Plan { rate: None, ..at(1) }).is_ok());
    }

    #[test]
    fn the_depth_of_a_connection_shrinks_only_when_many_share_a_link() {
        let within = |size, depth, connections| {
            depth_within(&Plan { connections, ..plan(Op::Write, size, depth) })
        };
        assert_eq!(within(64 << 10, 16, 1), 16);
        assert_eq!(within(64 << 10, 16, 128), 16, "exactly the limit of bytes in flight");
        assert_eq!(within(64 << 10, 16, 129), 15);
        assert_eq!(within(64 << 10, 16, 1024), 2);
        assert_eq!(within(u32::MAX, 4096, 1), 4096, "one connection has what it asks for");
        assert_eq!(within(u32::MAX, 16, 1024), 1, "each has one at least");
        assert_eq!(within(1, 4096, 1024), 4096);
    }
}
