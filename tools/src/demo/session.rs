//! A run from the connection to its orderly end.

use std::net::{Ipv4Addr, SocketAddr};

use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, ConnectionCounters, ListenParams, PortError, PortEvent};
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::time::{Duration, Instant};

use super::end::{End, Work};
use super::flow::{Flow, FlowConfig};
use super::pattern::Random;
use super::wire::Wire;
use super::{Failure, Options, Outcome};
use crate::clock::Stopwatch;
use crate::progress::Progress;

#[derive(Debug)]
pub(crate) struct Session<'a> {
    options: &'a Options,
    pub(super) wire: Wire,
    pub(super) ends: [End; 2],
    pub(super) flows: [Flow; 2],
    stage: Stage,
    /// Attempts to connect so far; a bad link may need several.
    attempt: u32,
    watch: StallWatch,
    /// Set if the link had nothing to do in the last step.
    silent: bool,
    /// Real and virtual time of the transfer, without set-up and close.
    pub(super) seconds: Duration,
    pub(super) virtual_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// MPA startup; `true` after the initiator has received the Reply.
    Starting(bool),
    Running,
    Closing,
}

impl<'a> Session<'a> {
    pub(crate) fn new(options: &'a Options) -> anyhow::Result<Self> {
        let mut random = Random::new(options.seed);
        let ends = [End::new("initiator", random.next()), End::new("responder", random.next())];
        let wire = Wire::new(options, &mut random, &ends, ADDRESSES)?;
        let mut flow = |number: usize| {
            let seed = random.next();
            let Options { bytes, message: len_max, mtu, .. } = *options;
            let config = FlowConfig { number, seed, bytes, len_max, mtu };
            Flow::new(config, &ends[number], &ends[1 - number])
        };
        let flows = [flow(0)?, flow(1)?];
        Ok(Self {
            options,
            wire,
            ends,
            flows,
            stage: Stage::Starting(false),
            attempt: 0,
            watch: StallWatch::default(),
            silent: false,
            seconds: Duration::ZERO,
            virtual_time: Duration::ZERO,
        })
    }

    /// A failed verification is a result; an error is a capture file that cannot be written.
    pub(crate) fn run(mut self, progress: &Progress) -> anyhow::Result<Outcome> {
        let result = self.run_all(progress);
        progress.clear();
        self.wire.finish(self.options)?;
        Ok(Outcome::of(self.options, &self, result.err()))
    }

    fn run_all(&mut self, progress: &Progress) -> Result<(), Failure> {
        self.connect().map_err(|failure| failure.within("connecting"))?;
        let start = self.wire.link.now();
        let stopwatch = Stopwatch::start();
        let result = self.transfer(progress);
        self.seconds = stopwatch.elapsed();
        self.virtual_time = self.wire.link.now() - start;
        result?;
        self.close().map_err(|failure| failure.within("closing"))?;
        for (flow, end) in self.flows.iter_mut().zip(&self.ends) {
            flow.verify_rest().map_err(|failure| failure.within(&from(end)))?;
        }
        Ok(())
    }

    // ---- connection ----

    /// Retries if a bad link takes more time than MPA allows for its startup.
    fn connect(&mut self) -> Result<(), Failure> {
        let listen = ListenParams {
            startup: self.startup(),
            lower_layer: self.options.lower_layer(),
            ..ListenParams::default()
        };
        self.wire.port(1).listen(TCP_PORT, listen).map_err(of_error)?;
        self.start_connection()?;
        while self.stage != Stage::Starting(true) {
            self.step()?;
            while let Some(event) = self.wire.port(1).poll_event() {
                self.responder_starts(event)?;
            }
            while let Some(event) = self.wire.port(0).poll_event() {
                if self.initiator_starts(event)? {
                    continue;
                }
                if self.attempt == CONNECT_ATTEMPTS {
                    let text = format!("no connection after {CONNECT_ATTEMPTS} attempts");
                    return Err(Failure::new(text));
                }
                self.start_connection()?;
            }
        }
        self.stage = Stage::Running;
        for (flow, receiver) in self.flows.iter_mut().zip([1, 0]) {
            flow.post_inboxes(&self.ends[receiver])?;
        }
        Ok(())
    }

    fn startup(&self) -> StartupConfig {
        let Options { markers, crc, .. } = *self.options;
        StartupConfig { markers, crc, ..StartupConfig::default() }
    }

    fn start_connection(&mut self) -> Result<(), Failure> {
        self.attempt += 1;
        let qp = self.ends[0].new_qp().map_err(of_error)?;
        let private_data = request_data(self.attempt);
        let params = ConnectParams {
            startup: self.startup(),
            offer: offer(&private_data),
            lower_layer: self.options.lower_layer(),
        };
        let (now, remote) = (self.wire.link.now(), SocketAddr::from((ADDRESSES[1], TCP_PORT)));
        let id = self.wire.port(0).connect(now, remote, &qp, &params).map_err(of_error)?;
        self.ends[0].connection = Some(id);
        Ok(())
    }

    /// Returns `false` if the attempt has failed.
    fn initiator_starts(&mut self, event: PortEvent) -> Result<bool, Failure> {
        match event {
            PortEvent::Stream { connection, event } if self.is_current(0, connection) => {
                match event {
                    StreamEvent::Established(terms) => {
                        check_private_data(&terms.private_data, &reply_data(self.attempt))?;
                        let Options { markers, crc, .. } = *self.options;
                        let framing = terms.framing;
                        let agreed = (framing.markers_to_us, framing.markers_to_peer, framing.crc);
                        if agreed != (markers, markers, crc) {
                            return Err(Failure::new(format!(
                                "agreed on other terms: {framing:?}"
                            )));
                        }
                        self.stage = Stage::Starting(true);
                        Ok(true)
                    }
                    StreamEvent::StartupFailed(
                        StartupFailure::Timeout
                        | StartupFailure::ConnectionLost
                        | StartupFailure::Refused
                        | StartupFailure::Unreachable,
                    ) => Ok(false),
                    other => Err(Failure::new(format!("{other:?}"))),
                }
            }
            _ => Ok(true),
        }
    }

    fn responder_starts(&mut self, event: PortEvent) -> Result<(), Failure> {
        let PortEvent::Stream { connection, event: StreamEvent::Request(request) } = event else {
            return Ok(());
        };
        let stale = |attempt| request.private_data == request_data(attempt);
        // Frames of an earlier attempt may still arrive.
        if (1..self.attempt).any(stale) {
            return Ok(());
        }
        check_private_data(&request.private_data, &request_data(self.attempt))?;
        self.ends[1].connection = Some(connection);
        let qp = self.ends[1].new_qp().map_err(of_error)?;
        let private_data = reply_data(self.attempt);
        match self.wire.port(1).accept(connection, &qp, &offer(&private_data)) {
            // The initiator may have given up meanwhile; it retries.
            Ok(()) | Err(PortError::Phase(_) | PortError::NoConnection) => {}
            Err(other) => return Err(of_error(other)),
        }
        Ok(())
    }

    fn is_current(&self, end: usize, connection: urnic_engine::port::ConnectionId) -> bool {
        self.ends[end].connection == Some(connection)
    }

    // ---- transfer ----

    fn transfer(&mut self, progress: &Progress) -> Result<(), Failure> {
        let mut shown = 0;
        loop {
            let mut news = shown == 0;
            for end in 0..2 {
                self.check_events(end)?;
                news |= self.complete(end)?;
            }
            if news {
                self.issue()?;
                let done = self.flows.iter().map(Flow::verified_bytes).sum();
                if done - shown >= PROGRESS_STEP {
                    progress.set(done);
                    shown = done;
                }
                if self.flows.iter().all(Flow::is_done) && self.ends.iter().all(End::is_idle) {
                    return Ok(());
                }
            }
            self.step()?;
        }
    }

    fn issue(&mut self) -> Result<(), Failure> {
        let [a, b] = &mut self.ends;
        let [there, back] = &mut self.flows;
        there.issue(a, b).map_err(|failure| failure.within(&from(a)))?;
        back.issue(b, a).map_err(|failure| failure.within(&from(b)))
    }

    /// Returns true if there were any.
    fn complete(&mut self, end: usize) -> Result<bool, Failure> {
        let mut news = false;
        while let Some(wc) = self.ends[end].poll_recv()? {
            let sender = 1 - end;
            let result = self.flows[sender].received(&wc, &self.ends[end]);
            result.map_err(|failure| failure.within(&from(&self.ends[sender])))?;
            news = true;
        }
        while let Some((work, value)) = self.ends[end].poll_send()? {
            let failure = match work {
                Work::Toward => None,
                Work::Read { flow, target } => self.flows[flow].read_done(target).err(),
                Work::Atomic { original } => (value != original).then(|| {
                    Failure::new(format!("an atomic brought {value:#018x}, not {original:#018x}"))
                }),
                Work::Invalidate(window) => {
                    window.invalidate().then(|| Failure::new("the STag is still valid".into()))
                }
            };
            if let Some(failure) = failure {
                return Err(failure.within(&format!("completed at the {}", self.ends[end].name)));
            }
            news = true;
        }
        Ok(news)
    }

    fn check_events(&mut self, end: usize) -> Result<(), Failure> {
        while let Some(event) = self.wire.port(end).poll_event() {
            let name = self.ends[end].name;
            match event {
                PortEvent::Stream { connection, event } if self.is_current(end, connection) => {
                    let is_expected = match &event {
                        StreamEvent::Established(_) => true,
                        StreamEvent::PeerClosed => self.stage == Stage::Closing,
                        _ => false,
                    };
                    if !is_expected {
                        return Err(Failure::new(format!("the {name}'s stream: {event:?}")));
                    }
                }
                PortEvent::Closed { connection, counters } if self.is_current(end, connection) => {
                    if self.stage != Stage::Closing {
                        return Err(Failure::new(format!("the {name}'s connection ended")));
                    }
                    self.ends[end].counters = Some(counters);
                }
                // An event of an earlier attempt to connect.
                _ => {}
            }
        }
        Ok(())
    }

    // ---- close ----

    /// Closes in order, and waits until TCP has dropped the connection at both ends.
    fn close(&mut self) -> Result<(), Failure> {
        self.stage = Stage::Closing;
        for end in 0..2 {
            let id = self.ends[end].connection.expect("connected");
            self.wire.port(end).disconnect(id).map_err(of_error)?;
        }
        loop {
            for end in 0..2 {
                self.check_events(end)?;
            }
            if self.ends.iter().all(|end| end.counters.is_some()) {
                return Ok(());
            }
            self.step()?;
        }
    }

    // ---- time ----

    /// Lets the link work once. Fails if nothing will happen, or makes progress for a long time.
    fn step(&mut self) -> Result<(), Failure> {
        // The last timer may have raised an event that was not handled yet.
        let was_silent = std::mem::replace(&mut self.silent, !self.wire.link.step());
        if was_silent && self.silent {
            return Err(self.stuck("no frame is in flight and no timer is set".into()));
        }
        if !self.watch.is_due(self.wire.link.now()) {
            return Ok(());
        }
        let counters = [0, 1].map(|end| self.counters(end));
        let fpdus: u64 = counters.iter().map(|counters| counters.mpa.fpdus).sum();
        let operations: u64 = self.flows.iter().map(Flow::verified_operations).sum();
        match self.watch.look(self.wire.link.now(), (self.stage, fpdus + operations)) {
            None => Ok(()),
            Some(stall) => Err(self.stuck(stall)),
        }
    }

    fn stuck(&self, why: String) -> Failure {
        let done: u64 = self.flows.iter().map(Flow::verified_bytes).sum();
        Failure::new(format!(
            "stuck at {} of virtual time with {done} of {} bytes verified: {why}",
            self.wire.link.now(),
            self.options.total_bytes(),
        ))
    }

    pub(super) fn counters(&self, end: usize) -> ConnectionCounters {
        let End { connection, counters, .. } = &self.ends[end];
        let live = || {
            let port = if end == 0 { &self.wire.link.a.port } else { &self.wire.link.b.port };
            connection.and_then(|id| port.counters(id).ok()).unwrap_or_default()
        };
        counters.as_deref().copied().unwrap_or_else(live)
    }
}

/// Detects a stall by virtual time and by progress.
#[derive(Debug, Default)]
struct StallWatch {
    steps: u64,
    progress: Option<(Stage, u64)>,
    progress_at: Instant,
    progress_steps: u64,
    looked_at: Instant,
}

impl StallWatch {
    fn is_due(&mut self, now: Instant) -> bool {
        self.steps += 1;
        self.steps.is_multiple_of(LOOK_STEPS) || now - self.looked_at >= LOOK_TIME
    }

    fn look(&mut self, now: Instant, progress: (Stage, u64)) -> Option<String> {
        self.looked_at = now;
        if self.progress != Some(progress) {
            (self.progress, self.progress_at) = (Some(progress), now);
            self.progress_steps = self.steps;
            return None;
        }
        let (idle, steps) = (now - self.progress_at, self.steps - self.progress_steps);
        let is_stalled = idle >= STALL_TIME || steps >= STALL_STEPS;
        is_stalled.then(|| format!("no progress in {} s and {steps} steps", idle.as_secs()))
    }
}

fn offer(private_data: &[u8]) -> Offer<'_> {
    Offer { private_data, ird: READS, ord: READS }
}

fn request_data(attempt: u32) -> Vec<u8> {
    format!("urnic demo: request {attempt}").into_bytes()
}

fn reply_data(attempt: u32) -> Vec<u8> {
    format!("urnic demo: reply {attempt}").into_bytes()
}

fn check_private_data(found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let text = format!("private data {:?}", String::from_utf8_lossy(found));
    Err(Failure::new(text))
}

fn from(end: &End) -> String {
    format!("from the {}", end.name)
}

fn of_error(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const TCP_PORT: u16 = 7174;
/// Reads and Atomics in flight that each end accepts and requests.
const READS: u16 = 16;
const CONNECT_ATTEMPTS: u32 = 20;
const PROGRESS_STEP: u64 = 4 << 20;
const LOOK_STEPS: u64 = 1 << 16;
const LOOK_TIME: Duration = Duration::from_secs(60);
/// Longer than many retransmission timeouts of the largest length.
const STALL_TIME: Duration = Duration::from_secs(4 * 3600);
const STALL_STEPS: u64 = 1 << 24;
