//! Doing what a plan says, from the first frame to the last check.

use std::io;
use std::sync::{Arc, Weak};

use urnic::limits::{PIECE_BLOCK_LEN, PIECE_BLOCKS_MAX};
use urnic::mem::Region;
use urnic::mpa::pieces::PieceStore;
use urnic::port::{ListenParams, PortEvent};
use urnic::stream::StreamEvent;
use urnic::time::{Duration, Instant};

use crate::Outcome;
use crate::failure::Failure;
use crate::flow::{Flow, Stage};
use crate::plan::{NodePlan, Plan, Silence, Start};
use crate::world::{self, Node, Sink, World};

/// Steps that no plan needs: two ends that keep each other busy for ever are stopped there.
const STEPS_MAX: u64 = 5_000_000;
/// How long a startup may still suffer from the last fault: RFC 5044's timeouts, and what TCP's
/// timer has backed off to.
const AFTERMATH: Duration = Duration::from_secs(95);
/// How long everything may take after the last fault, besides the time that its octets take: a
/// timer that has backed off, a connection tried again, TIME-WAIT.
const PATIENCE: Duration = Duration::from_secs(400);
/// The same where nothing ever happens to a frame, TIME-WAIT included.
const PATIENCE_CLEAN: Duration = Duration::from_secs(70);

/// How long a peer may be gone before that is noticed, besides the user timeout and the idle time
/// before keep-alive probes: nine of those and the wait for the last, 75 s each; a window probe or a
/// SYN whose timer has backed off; a startup; TIME-WAIT.
const GONE_UNNOTICED: Duration = Duration::from_secs(10 * 75 + 3 * 60 + 30 + 60);

struct Run<'p> {
    plan: &'p Plan,
    world: World,
    flows: Vec<Flow<'p>>,
    faulty_until: Instant,
    /// When nobody is heard any more, as soon as that is known.
    silent_at: Option<Instant>,
    is_silent: bool,
}

/// Does everything in a plan. What crosses the links is written to `sink`, as a pcapng file.
pub(crate) fn run(plan: &Plan, sink: Option<Sink>) -> io::Result<Result<Outcome, Failure>> {
    let capture = sink.map(world::capture).transpose()?;
    let world = World::new(plan, capture.as_ref());
    let flows = plan.flows.iter().enumerate();
    let flows = flows.map(|(index, flow)| Flow::new(flow, index, &world.nodes));
    let flows = flows.collect::<io::Result<Vec<_>>>()?;
    let faulty_until = if plan.is_clean() {
        Instant::ZERO
    } else {
        Instant::from_nanos(plan.faults_end_ns()) + AFTERMATH
    };
    let mut run = Run { plan, world, flows, faulty_until, silent_at: None, is_silent: false };
    let result = run.all();
    if let Some(capture) = capture {
        capture.finish()?;
    }
    Ok(result.map_err(|text| Failure::new(run.world.now().as_nanos(), text)))
}

impl Run<'_> {
    fn all(&mut self) -> Result<Outcome, String> {
        self.listen()?;
        let mut deadline = self.deadline();
        while !self.flows.iter().all(|flow| flow.stage == Stage::Over) {
            if self.fall_silent() {
                deadline = self.deadline();
            }
            self.open_flows()?;
            let moved = self.world.poll();
            let mut acted = self.take_events()?;
            for flow in &mut self.flows {
                acted |= flow.pump(&mut self.world)?;
            }
            if moved == 0 && !acted {
                let wakeup = self.wakeup();
                let is_over = self.flows.iter().all(|flow| flow.stage == Stage::Over);
                if !is_over && !self.world.advance(wakeup) {
                    return Err(format!("nothing ever happens again: {}", self.describe()));
                }
            }
            if self.world.now() > deadline {
                return Err(format!("not over in time: {}", self.describe()));
            }
            if self.world.steps > STEPS_MAX {
                return Err(format!("no end of frames: {}", self.describe()));
            }
        }
        self.let_go()?;
        let outcome = self.outcome();
        self.check_leaks()?;
        Ok(outcome)
    }

    fn listen(&mut self) -> Result<(), String> {
        for flow in &self.flows {
            let side = &flow.plan.sides[1];
            let params = ListenParams {
                startup: side.startup,
                lower_layer: side.lower_layer,
                ..ListenParams::default()
            };
            let port = self.world.port(flow.plan.nodes[1]);
            port.listen(flow.tcp_port(), params).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn deadline(&self) -> Instant {
        let rate = self.plan.link.rate_bits_per_second.unwrap_or(u64::MAX);
        let crossing_ns = self.plan.octets().saturating_mul(64_000_000_000 / rate.max(64_000));
        let pauses = self.plan.flows.iter().flat_map(|flow| &flow.sides);
        let paused_ns: u64 = pauses.filter_map(|side| side.pause_ns).map(|(a, b)| a + b).sum();
        let polls = self.plan.flows.iter().flat_map(|flow| &flow.sides);
        let polled_ns: u64 =
            polls.map(|side| side.poll_period_ns * 8 * (side.work.len() as u64 + 8)).sum();
        let each = if self.plan.is_clean() { PATIENCE_CLEAN } else { PATIENCE };
        let rounds = self.plan.flows.iter().filter(|flow| matches!(flow.start, Start::After(_)));
        let rounds = u32::try_from(rounds.count() + 1).unwrap_or(u32::MAX);
        if let Some(silent_at) = self.silent_at.filter(|_| self.is_silent) {
            let each = |of: fn(&NodePlan) -> u64| self.plan.nodes.iter().map(of).max().unwrap_or(0);
            let timeout_ns = each(|node| node.user_timeout_ns);
            let idle_ns = each(|node| node.keepalive_ns.unwrap_or(0));
            return silent_at.plus_nanos(timeout_ns + idle_ns + paused_ns + polled_ns)
                + GONE_UNNOTICED;
        }
        Instant::from_nanos(self.plan.faults_end_ns() + crossing_ns + paused_ns + polled_ns)
            + each * rounds
    }

    /// Whether this is the moment from which on nobody is heard any more; makes it so.
    fn fall_silent(&mut self) -> bool {
        let now = self.world.now();
        self.silent_at = self.silent_at.or_else(|| match self.plan.silence? {
            Silence::At(ns) => Some(Instant::from_nanos(ns)),
            Silence::Completions(count) => {
                let sides = self.flows.iter().flat_map(|flow| &flow.sides);
                let seen: usize = sides.map(|side| side.progress.completions).sum();
                (seen >= count).then_some(now)
            }
            Silence::Closing(after_ns) => {
                self.flows.iter().any(Flow::is_told).then(|| now.plus_nanos(after_ns))
            }
        });
        if self.is_silent || self.silent_at.is_none_or(|at| at > now) {
            return false;
        }
        self.is_silent = true;
        // No attempt to connect can be made again with success.
        self.faulty_until = Instant::from_nanos(u64::MAX);
        self.world.fall_silent();
        for flow in &mut self.flows {
            let timeout_ns = |node: usize| self.plan.nodes[node].user_timeout_ns;
            flow.fall_silent(now, flow.plan.nodes.map(timeout_ns).map(Duration::from_nanos));
        }
        true
    }

    fn open_flows(&mut self) -> Result<(), String> {
        if self.flows.iter().all(|flow| flow.stage != Stage::Waiting) {
            return Ok(());
        }
        let stages: Vec<_> = self.flows.iter().map(|flow| flow.stage).collect();
        for flow in &mut self.flows {
            if flow.stage == Stage::Waiting
                && flow.opens_at(&stages).is_some_and(|at| at <= self.world.now())
            {
                flow.open(&mut self.world)?;
            }
        }
        Ok(())
    }

    /// When there is something to do that no frame and no timer of a port brings about.
    fn wakeup(&self) -> Option<Instant> {
        let pumps = self.flows.iter().filter_map(|flow| flow.wakeup(self.world.now()));
        let stages: Vec<_> = self.flows.iter().map(|flow| flow.stage).collect();
        let waiting = self.flows.iter().filter(|flow| flow.stage == Stage::Waiting);
        let silence = self.silent_at.filter(|_| !self.is_silent);
        pumps.chain(waiting.filter_map(|flow| flow.opens_at(&stages))).chain(silence).min()
    }

    /// Returns whether there was one.
    fn take_events(&mut self) -> Result<bool, String> {
        let mut any = false;
        for node in 0..self.world.nodes.len() {
            while let Some(event) = self.world.port(node).poll_event() {
                self.on_event(node, event)?;
                any = true;
            }
        }
        Ok(any)
    }

    fn on_event(&mut self, node: usize, event: PortEvent) -> Result<(), String> {
        let (PortEvent::Stream { connection: id, .. } | PortEvent::Closed { connection: id, .. }) =
            event
        else {
            return Ok(());
        };
        if let PortEvent::Stream { event: StreamEvent::Request(request), .. } = &event {
            let asks = |flow: &&mut Flow<'_>| flow.asks(node, &request.private_data);
            if let Some(flow) = self.flows.iter_mut().find(asks) {
                flow.accept(self.world.port(node), id);
            }
            return Ok(());
        }
        let faulty = self.world.now() < self.faulty_until;
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if let Some(side) = flow.side_of(node, id) {
                return flow
                    .on_event(&mut self.world, side, event, faulty)
                    .map_err(|text| format!("flow {index}: {text}"));
            }
        }
        // What is left of an attempt that has been given up.
        Ok(())
    }

    /// Waits for what attempts that failed have left: TIME-WAIT, and startups that time out.
    fn let_go(&mut self) -> Result<(), String> {
        let mut limit = self.world.now() + PATIENCE;
        if self.is_silent {
            limit = limit.max(self.deadline());
        }
        while self.world.nodes.iter().any(|node| node.poller.port.connection_count() > 0)
            && self.world.now() < limit
            && (self.world.poll() > 0 || self.world.advance(None))
        {
            self.take_events()?;
        }
        Ok(())
    }

    /// Nothing may be left of connections that are over.
    fn check_leaks(&mut self) -> Result<(), String> {
        for (node, Node { poller, .. }) in self.world.nodes.iter().enumerate() {
            let (connections, octets) = (poller.port.connection_count(), poller.port.bytes_held());
            if connections != 0 || octets != 0 {
                return Err(format!(
                    "node {node} keeps {connections} connections, {octets} octets"
                ));
            }
            let blocks = self.plan.nodes[node].piece_blocks;
            let blocks = blocks.clamp(PieceStore::BLOCKS_MIN, PIECE_BLOCKS_MAX);
            let held_max = (blocks * PIECE_BLOCK_LEN) as u64;
            if poller.port.bytes_held_peak() > held_max {
                return Err(format!("node {node} has held more than {held_max} octets"));
            }
        }
        let sides = self.flows.iter().flat_map(|flow| &flow.sides);
        let regions: Vec<Weak<Region>> =
            sides.map(|side| Arc::downgrade(&side.memory.region)).collect();
        self.flows.clear();
        match regions.iter().filter(|region| region.strong_count() > 0).count() {
            0 => Ok(()),
            kept => Err(format!("{kept} regions are kept after their last use")),
        }
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome {
            runs: 1,
            steps: self.world.steps,
            virtual_ns: self.world.now().as_nanos(),
            ..Outcome::default()
        };
        for counters in self.world.impair_counters() {
            outcome.frames += counters.frames;
            outcome.frames_lost += counters.dropped;
        }
        for counters in self.flows.iter().flat_map(|flow| &flow.counters) {
            outcome.connections += 1;
            outcome.retransmissions += counters.tcp.retransmissions;
            outcome.octets_placed += counters.rdma.bytes_placed;
            outcome.octets_placed_out_of_order += counters.rdma.bytes_placed_out_of_order;
            outcome.fpdus_by_marker += counters.mpa.fpdus_by_marker;
            outcome.octets_held += counters.mpa.bytes_held;
            outcome.refused_for_room += counters.mpa.refused_for_room;
        }
        outcome
    }

    fn describe(&self) -> String {
        let flows = self.flows.iter().enumerate().filter(|(_, flow)| flow.stage != Stage::Over);
        let describe = |(index, flow): (usize, &Flow<'_>)| {
            let [a, b] = flow.sides.each_ref().map(|side| side.progress);
            format!("flow {index} {:?}: {a:?} {b:?}", flow.stage)
        };
        flows.map(describe).collect::<Vec<_>>().join("; ")
    }
}
