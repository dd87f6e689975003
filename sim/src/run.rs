//! Executes a plan, from the first frame to the last check.

mod checks;

use std::cell::RefCell;
use std::io;

use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::{ConnectionId, ListenParams, LowerLayer, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};

use crate::address::address;
use crate::flow::{Flow, Stage};
use crate::liar::Liars;
use crate::plan::{FlowPlan, NodePlan, Plan, Sabotage, Says, Silence, Start};
use crate::shared::{Pool, SharedPool};
use crate::world::{self, Sink, World};
use crate::{Failure, Outcome};

/// More than any plan needs: stops two ends that keep each other busy for ever.
const STEPS_MAX: u64 = 5_000_000;
/// A startup may suffer from the last fault: RFC 5044's timeouts, and TCP's backed-off timer.
const AFTERMATH: Duration = Duration::from_secs(95);
/// Limit after the last fault, besides the time that the bytes take: a backed-off timer, another
/// attempt, TIME-WAIT.
const PATIENCE: Duration = Duration::from_secs(400);
/// Time limit if no frame is ever impaired, including TIME-WAIT.
const PATIENCE_CLEAN: Duration = Duration::from_secs(70);

/// Time until a vanished peer is noticed, besides the user timeout and the idle time: nine probes
/// and the wait for the last, 75 s each; a window probe or a SYN with a backed-off timer; a
/// startup; TIME-WAIT.
const GONE_UNNOTICED: Duration = Duration::from_secs(10 * 75 + 3 * 60 + 30 + 60);

/// Extra time beside hostile connections, on a link that loses nothing.
const UNNOTICED: Duration = Duration::from_secs(5);
const REJECT_ME: &[u8] = b"rejectme";
const IGNORE_ME: &[u8] = b"ignoreme";

struct Run<'p> {
    plan: &'p Plan,
    world: World,
    flows: Vec<Flow<'p>>,
    faulty_until: Instant,
    /// Nothing more is sent on these connections.
    idle: Vec<(usize, ConnectionId)>,
    idlers_done: usize,
    shared: Option<(SharedPool, Liars)>,
    lies: u64,
    /// `None` until that is known.
    silent_at: Option<Instant>,
    is_silent: bool,
}

/// Writes the frames on the links to `sink`, as a pcapng file.
pub(crate) fn run(plan: &Plan, sink: Option<Sink>) -> io::Result<Result<Outcome, Failure>> {
    let capture = sink.map(world::capture).transpose()?;
    let world = World::new(plan, capture.as_ref());
    let rnic = &world.nodes[0].rnic;
    let pool = plan.shared.as_ref().map(|shared| Pool::new(rnic, shared, plan.sabotage));
    let pool = pool.transpose()?.map(RefCell::new).map(SharedPool::new);
    let flows = plan.flows.iter().enumerate();
    let flows = flows
        .map(|(index, flow)| Flow::new(flow, index, &world.nodes, pool.as_ref(), plan.sabotage));
    let flows = flows.collect::<io::Result<Vec<_>>>()?;
    let faulty_until = if plan.is_clean() {
        Instant::ZERO
    } else {
        Instant::from_nanos(plan.faults_end_ns()) + AFTERMATH
    };
    let shared = pool.map(|pool| {
        let liars = Liars::new(plan, rnic, &pool);
        (pool, liars)
    });
    let mut run = Run {
        plan,
        world,
        flows,
        faulty_until,
        idle: Vec::new(),
        idlers_done: 0,
        shared,
        lies: 0,
        silent_at: None,
        is_silent: false,
    };
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
        while !self.is_over() {
            if self.fall_silent() {
                deadline = self.deadline();
            }
            self.open_flows()?;
            self.open_idle()?;
            if let Some((_, liars)) = &mut self.shared {
                liars.open(&mut self.world)?;
            }
            let moved = self.world.poll();
            while let Some(node) = self.world.next_relisten() {
                self.listen_again(node)?;
            }
            let mut acted = self.take_events()?;
            for flow in &mut self.flows {
                acted |= flow.pump(&mut self.world)?;
            }
            if let Some((_, liars)) = &mut self.shared {
                acted |= liars.pump()?;
            }
            if moved == 0 && !acted {
                let wakeup = self.wakeup();
                if !self.is_over() && !self.world.advance(wakeup) {
                    return Err(format!("nothing ever happens again: {}", self.describe()));
                }
            }
            self.check_sizes()?;
            if self.world.now() > deadline {
                return Err(format!("not over in time: {}", self.describe()));
            }
            let steps_max = if self.is_sabotaged(Sabotage::Endless) { 0 } else { STEPS_MAX };
            if self.world.steps > steps_max {
                return Err(format!("frames never end: {}", self.describe()));
            }
        }
        self.check_crcs()?;
        self.check_unnoticed()?;
        self.check_shared()?;
        self.let_go()?;
        let outcome = self.outcome();
        self.check_leaks()?;
        Ok(outcome)
    }

    fn is_over(&self) -> bool {
        let liars_are = self.shared.as_ref().is_none_or(|(_, liars)| liars.are_over());
        liars_are && self.flows.iter().all(|flow| flow.stage == Stage::Over)
    }

    fn is_sabotaged(&self, by: Sabotage) -> bool {
        self.plan.sabotage == Some(by)
    }

    fn listen(&mut self) -> Result<(), String> {
        if let Some((_, liars)) = &self.shared {
            liars.listen(&mut self.world)?;
        }
        (0..self.flows.len()).try_for_each(|flow| self.listen_for(flow))
    }

    fn listen_again(&mut self, node: usize) -> Result<(), String> {
        for index in 0..self.flows.len() {
            if self.flows[index].plan.nodes[1] == node {
                let tcp_port = self.flows[index].tcp_port();
                self.world.port(node).unlisten(tcp_port);
                self.listen_for(index)?;
            }
        }
        Ok(())
    }

    fn listen_for(&mut self, index: usize) -> Result<(), String> {
        let flow = &self.flows[index];
        let side = &flow.plan.sides[1];
        let params = ListenParams {
            startup: side.startup,
            lower_layer: side.lower_layer,
            ..ListenParams::default()
        };
        let port = self.world.port(flow.plan.nodes[1]);
        port.listen(flow.tcp_port(), params).map_err(|error| error.to_string())
    }

    fn open_idle(&mut self) -> Result<(), String> {
        let now = self.world.now();
        while let Some(idler) = self.plan.idlers.get(self.idlers_done) {
            if Instant::from_nanos(idler.at_ns) > now {
                break;
            }
            self.idlers_done += 1;
            let remote = (address(0, false), self.flows[0].tcp_port()).into();
            for number in 0..idler.count {
                let port = self.world.port(idler.node);
                let id = port.open(now, remote, LowerLayer::Layered);
                let id = id.map_err(|error| format!("an idle connection: {error}"))?;
                let octets = match idler.says {
                    Says::Nothing => Vec::new(),
                    Says::HalfRequest => b"MPA ID Req".to_vec(),
                    Says::Request { rejected } => {
                        let mut request = b"MPA ID Req Frame\x40\x01\x00\x08".to_vec();
                        request.extend(if rejected { REJECT_ME } else { IGNORE_ME });
                        request
                    }
                    Says::Garbage => vec![0x47; 20 + number % 40],
                };
                if !octets.is_empty() {
                    port.send_streaming(id, &octets).map_err(|error| error.to_string())?;
                }
                self.idle.push((idler.node, id));
            }
        }
        Ok(())
    }

    /// Time on a link that loses nothing, with windows, round trips and the application's pauses.
    fn time_alone(&self, flow: &FlowPlan) -> Duration {
        let round_ns = 2 * self.plan.link.latency_ns;
        let windows = flow.nodes.map(|node| u64::from(self.plan.nodes[node].window_bytes));
        let window = windows.into_iter().min().unwrap_or(1).max(1);
        let work = flow.sides.iter().flat_map(|side| &side.work);
        let octets: u64 = work.clone().map(|op| op.len as u64).sum();
        let rounds = octets.div_ceil(window) + 2 * work.count() as u64;
        let idle_ns: u64 = flow
            .sides
            .iter()
            .map(|side| {
                let polled_ns = side.poll_period_ns * 8 * (side.work.len() as u64 + 8);
                polled_ns + side.pause_ns.map_or(0, |(a, b)| a + b)
            })
            .sum();
        UNNOTICED + Duration::from_nanos(rounds * round_ns + idle_ns)
    }

    fn deadline(&self) -> Instant {
        let rate = self.plan.link.rate_bits_per_second.unwrap_or(u64::MAX);
        let crossing_ns = self.plan.octets().saturating_mul(64_000_000_000 / rate.max(64_000));
        let pauses = self.plan.flows.iter().flat_map(|flow| &flow.sides);
        let paused_ns: u64 = pauses.filter_map(|side| side.pause_ns).map(|(a, b)| a + b).sum();
        let polls = self.plan.flows.iter().flat_map(|flow| &flow.sides);
        let polled_ns: u64 =
            polls.map(|side| side.poll_period_ns * 8 * (side.work.len() as u64 + 8)).sum();
        let hostile = self.plan.flows.iter().any(|flow| flow.is_hostile);
        let each = if hostile {
            GONE_UNNOTICED
        } else if self.plan.is_clean() {
            PATIENCE_CLEAN
        } else {
            PATIENCE
        };
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

    /// Returns true if the silence starts.
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
        // No further attempt to connect can succeed.
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

    /// Neither a frame nor a timer of a port triggers it.
    fn wakeup(&self) -> Option<Instant> {
        let pumps = self.flows.iter().filter_map(|flow| flow.wakeup(self.world.now()));
        let stages: Vec<_> = self.flows.iter().map(|flow| flow.stage).collect();
        let waiting = self.flows.iter().filter(|flow| flow.stage == Stage::Waiting);
        let silence = self.silent_at.filter(|_| !self.is_silent);
        let idler = self.plan.idlers.get(self.idlers_done);
        let idler = idler.map(|idler| Instant::from_nanos(idler.at_ns));
        pumps
            .chain(idler)
            .chain(self.shared.as_ref().and_then(|(_, liars)| liars.wakeup()))
            .chain(waiting.filter_map(|flow| flow.opens_at(&stages)))
            .chain(silence)
            .min()
    }

    /// Returns true if there was one.
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
        if let Some((_, liars)) = &mut self.shared
            && liars.on_event(&mut self.world, node, &event)?
        {
            return Ok(());
        }
        let (PortEvent::Stream { connection: id, .. } | PortEvent::Closed { connection: id, .. }) =
            event
        else {
            return Ok(());
        };
        if let PortEvent::Stream { event: StreamEvent::Request(request), .. } = &event {
            let is_known = !self.is_sabotaged(Sabotage::Request);
            let asks = |flow: &&mut Flow<'_>| is_known && flow.asks(node, &request.private_data);
            if let Some(flow) = self.flows.iter_mut().find(asks) {
                flow.answer(self.world.port(node), id);
                return Ok(());
            }
            let data = &request.private_data[..];
            if data == REJECT_ME {
                let offer = Offer { private_data: b"no", ird: 0, ord: 0 };
                let _gone = self.world.port(node).reject(id, &offer);
            } else if data != IGNORE_ME && self.plan.guesses.is_some() {
                return Err("a Request that no flow made".to_owned());
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
        // A remnant of an attempt that was given up.
        Ok(())
    }

    /// Waits for TIME-WAIT, and for startups that time out.
    fn let_go(&mut self) -> Result<(), String> {
        let mut limit = self.world.now() + PATIENCE;
        if self.is_silent {
            limit = limit.max(self.deadline());
        }
        for (node, id) in std::mem::take(&mut self.idle) {
            // The ends that opened them vanish: no frame announces the end.
            self.world.silence(node);
            self.world.port(node).abort(id);
            limit = limit.max(self.world.now() + GONE_UNNOTICED);
        }
        while self.world.nodes.iter().any(|node| node.poller.port.connection_count() > 0)
            && self.world.now() < limit
            && (self.world.poll() > 0 || self.world.advance(None))
        {
            self.take_events()?;
        }
        Ok(())
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
        outcome.frames_forged = self.world.frames_forged();
        outcome.frames_astray = self.world.frames_astray();
        outcome.lies = self.lies;
        for counters in self.flows.iter().flat_map(|flow| &flow.counters) {
            outcome.connections += 1;
            outcome.retransmissions += counters.tcp.retransmissions;
            outcome.bytes_placed += counters.rdma.bytes_placed;
            outcome.bytes_placed_out_of_order += counters.rdma.bytes_placed_out_of_order;
            outcome.fpdus_by_marker += counters.mpa.fpdus_by_marker;
            outcome.bytes_held += counters.mpa.bytes_held;
            outcome.bytes_without_receive += counters.rdma.bytes_without_receive;
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
