//! One connection: how it is opened, driven and closed. The checks after its end are in `oracle`.

mod oracle;

use std::io;

use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::{ConnectParams, ConnectionCounters, ConnectionId, Port, PortEvent};
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::time::{Duration, Instant};

use crate::address::address;
use crate::memory::Model;
use crate::plan::{Act, Deed, Ending, FlowPlan, Sabotage, SidePlan, Start};
use crate::shared::SharedPool;
use crate::side::Side;
use crate::world::{Node, World};

const TCP_PORT_FIRST: u16 = 7000;
/// Attempts while faults may prevent a connection.
const ATTEMPTS_MAX: u32 = 40;
/// Three unanswered transmissions, each at most a minute: TCP gives up a peer only after three.
const UNANSWERED: Duration = Duration::from_secs(3 * 60);
/// Limit until a user timeout is noticed: between two window probes, with data in flight when the
/// peer vanished.
const TIMER: Duration = Duration::from_secs(65);
/// Wait of an application for the other end's close.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not opened yet.
    Waiting,
    /// Opened; work proceeds at the ends that are established.
    Open,
    Ending,
    Over,
}

#[derive(Debug)]
pub(crate) struct Flow<'p> {
    pub(crate) plan: &'p FlowPlan,
    index: usize,
    sabotage: Option<Sabotage>,
    model: Model,
    pub(crate) sides: [Side; 2],
    pub(crate) stage: Stage,
    attempt: u32,
    close_at: Option<Instant>,
    told: [bool; 2],
    /// When and how each end will end the connection, if planned and not yet done.
    deeds: [Option<(Instant, Deed)>; 2],
    revokes: Option<(usize, Instant)>,
    /// Messages that an end had posted before it left; all must be delivered.
    left_behind: [usize; 2],
    rejected: u32,
    rejected_attempt: u32,
    pub(crate) opened_at: Option<Instant>,
    pub(crate) done_at: Option<Instant>,
    /// True once no frame reaches either end.
    is_silent: bool,
    /// First incomplete request and deadline of each end that waited when the silence began.
    gives_up: [Option<(usize, Instant)>; 2],
    pub(crate) counters: Vec<ConnectionCounters>,
}

impl<'p> Flow<'p> {
    pub(crate) fn new(
        plan: &'p FlowPlan,
        index: usize,
        nodes: &[Node],
        pool: Option<&SharedPool>,
        sabotage: Option<Sabotage>,
    ) -> io::Result<Self> {
        let [a, b] = plan.nodes;
        let pool = pool.filter(|_| plan.shares).cloned();
        let mut model = Model::of(plan);
        sabotage.inspect(|sabotage| sabotage.change(&mut model, plan));
        let mut sides =
            [Side::new(&nodes[a].rnic, plan, 0, None)?, Side::new(&nodes[b].rnic, plan, 1, pool)?];
        sides.iter_mut().for_each(|side| side.sabotage = sabotage);
        Ok(Self {
            plan,
            index,
            sabotage,
            model,
            sides,
            stage: Stage::Waiting,
            attempt: 0,
            close_at: None,
            told: [false; 2],
            deeds: [None; 2],
            revokes: None,
            left_behind: [0; 2],
            rejected: 0,
            rejected_attempt: 0,
            opened_at: None,
            done_at: None,
            is_silent: false,
            gives_up: [None; 2],
            counters: Vec::new(),
        })
    }

    pub(crate) const fn tcp_port(&self) -> u16 {
        TCP_PORT_FIRST + self.plan.listener
    }

    /// `None` if that is not known.
    pub(crate) fn opens_at(&self, stages: &[Stage]) -> Option<Instant> {
        match self.plan.start {
            Start::At(ns) => Some(Instant::from_nanos(ns)),
            Start::After(other) => {
                matches!(stages[other], Stage::Ending | Stage::Over).then_some(Instant::ZERO)
            }
        }
    }

    pub(crate) fn open(&mut self, world: &mut World) -> Result<(), String> {
        self.stage = Stage::Open;
        self.opened_at.get_or_insert_with(|| world.now());
        self.attempt += 1;
        if self.attempt > 1 {
            for side in &mut self.sides {
                side.renew(self.plan).map_err(|error| error.to_string())?;
            }
        }
        for side in self.sides.iter_mut().filter(|_| !self.plan.waits) {
            side.post_receives(self.plan)?;
        }
        let SidePlan { startup, lower_layer, depths: [ird, ord], .. } = self.plan.sides[0];
        let private_data = self.private_data();
        let offer = Offer { private_data: &private_data, ird, ord };
        let params = ConnectParams { startup, offer, lower_layer };
        let [from, to] = self.plan.nodes;
        let remote = (address(to, self.plan.ipv6), self.tcp_port()).into();
        let now = world.now();
        let qp = self.sides[0].queues.qp.clone();
        let id = world.port(from).connect(now, remote, &qp, &params);
        self.sides[0].connection = Some(id.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Identifies the connection and the attempt.
    fn private_data(&self) -> [u8; 8] {
        let index = u32::try_from(self.index).expect("few flows");
        let mut data = [0; 8];
        data[..4].copy_from_slice(&index.to_be_bytes());
        data[4..].copy_from_slice(&self.attempt.to_be_bytes());
        data
    }

    pub(crate) fn asks(&self, node: usize, private_data: &[u8]) -> bool {
        self.plan.nodes[1] == node
            && self.sides[1].connection.is_none()
            && private_data == self.private_data()
    }

    /// Rejected attempts do not count.
    pub(crate) const fn was_tried_again(&self) -> bool {
        self.attempt > self.rejected + 1
    }

    pub(crate) fn answer(&mut self, port: &mut Port, id: ConnectionId) {
        if self.rejected < self.plan.rejects {
            self.rejected += 1;
            self.rejected_attempt = self.attempt;
            let offer = Offer { private_data: b"no", ird: 0, ord: 0 };
            // The connection may have ended meanwhile; the initiator tries again.
            let _gone = port.reject(id, &offer);
            return;
        }
        self.accept(port, id);
    }

    fn accept(&mut self, port: &mut Port, id: ConnectionId) {
        let SidePlan { depths: [ird, ord], .. } = self.plan.sides[1];
        let offer = Offer { private_data: b"yes", ird, ord };
        // The connection may have ended meanwhile; the initiator tries again.
        if port.accept(id, &self.sides[1].queues.qp, &offer).is_ok() {
            self.sides[1].connection = Some(id);
        }
    }

    pub(crate) fn side_of(&self, node: usize, id: ConnectionId) -> Option<usize> {
        (0..2)
            .find(|side| self.plan.nodes[*side] == node && self.sides[*side].connection == Some(id))
    }

    /// Begins the silence: no frame reaches the other end. Each end must notice that by its timers;
    /// none is asked to close.
    pub(crate) fn fall_silent(&mut self, now: Instant, user_timeouts: [Duration; 2]) {
        self.is_silent = true;
        self.close_at = None;
        for (side, timeout) in user_timeouts.into_iter().enumerate() {
            let end = &self.sides[side];
            let waits_with = end.waits_with(&self.plan.sides[side]);
            let longest = match self.sabotage {
                Some(Sabotage::Impatience) => Duration::from_nanos(0),
                _ => timeout.max(UNANSWERED) + TIMER,
            };
            self.gives_up[side] = waits_with.map(|index| (index, now + longest));
        }
    }

    /// An end that waited for an acknowledgment must learn in time that its connection is over.
    // RFC 9293 §3.8.3: data that is not acknowledged is given up after the user timeout.
    fn check_given_up(&self, side: usize, now: Instant) -> Result<(), String> {
        match self.gives_up[side] {
            Some((index, by)) if now > by && self.sides[side].has_completed() <= index => {
                Err(format!("side {side} waited for an acknowledgment of request {index} too long"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) const fn is_told(&self) -> bool {
        self.told[0] || self.told[1]
    }

    const fn fails_by_plan(&self) -> bool {
        self.is_silent
            || self.plan.is_hostile
            || matches!(
                self.plan.ending,
                Ending::Abort { .. }
                    | Ending::Mishap { .. }
                    | Ending::Overflow(_)
                    | Ending::Acts(_)
                    | Ending::Invalidate { .. }
            )
    }

    /// `faulty` is true if the link may be the cause of a failed startup.
    pub(crate) fn on_event(
        &mut self,
        world: &mut World,
        side: usize,
        event: PortEvent,
        faulty: bool,
    ) -> Result<(), String> {
        match event {
            PortEvent::Stream { event: StreamEvent::Failed(_), .. }
                if self.sabotage == Some(Sabotage::Gone) =>
            {
                Ok(())
            }
            PortEvent::Closed { counters, .. } => self.on_closed(world, side, &counters, faulty),
            PortEvent::Stream { event, .. } => self.on_stream_event(world, side, event, faulty),
            _ => Ok(()),
        }
    }

    fn on_stream_event(
        &mut self,
        world: &mut World,
        side: usize,
        event: StreamEvent,
        faulty: bool,
    ) -> Result<(), String> {
        let ends = self.stage == Stage::Ending;
        match event {
            StreamEvent::Established(_) => {
                let now = world.now();
                let end = &mut self.sides[side];
                end.established = true;
                end.next_pump = now;
                end.pause = self.plan.sides[side].pause_ns.map(|(after_ns, for_ns)| {
                    let start = now.plus_nanos(after_ns);
                    (start, start.plus_nanos(for_ns))
                });
                match self.plan.ending {
                    Ending::Acts(acts) if acts[side].what != Deed::Nothing => {
                        let Act { what, after_ns } = acts[side];
                        self.deeds[side] = Some((now.plus_nanos(after_ns), what));
                    }
                    Ending::Invalidate { side: of, after_ns } if of == side => {
                        self.revokes = Some((side, now.plus_nanos(after_ns)));
                    }
                    _ => {}
                }
                Ok(())
            }
            StreamEvent::PeerClosed => {
                if self.fails_by_plan() {
                    self.begin_ending(world.now());
                }
                self.close_at = Some(world.now());
                Ok(())
            }
            StreamEvent::StartupFailed(
                StartupFailure::Timeout
                | StartupFailure::ConnectionLost
                | StartupFailure::Refused
                | StartupFailure::Unreachable,
            ) if faulty || ends || self.plan.is_hostile => Ok(()),
            StreamEvent::Rejected(_) if self.rejected_attempt == self.attempt => {
                self.close_rejected(world);
                Ok(())
            }
            StreamEvent::Failed(_) | StreamEvent::Terminated(_) if self.fails_by_plan() || ends => {
                self.check_given_up(side, world.now())?;
                self.sides[side].failed = true;
                self.begin_ending(world.now());
                Ok(())
            }
            // The initiator gave up while the Reply was in flight, and tries again.
            StreamEvent::Failed(_) if faulty && !self.sides[0].established => Ok(()),
            other => Err(format!("side {side}: {other:?}")),
        }
    }

    /// The application does not need a rejected connection, which stays in streaming mode (RFC 5044
    /// §7.1.2 (6)).
    fn close_rejected(&self, world: &mut World) {
        let Some(id) = self.sides[0].connection else { return };
        let port = world.port(self.plan.nodes[0]);
        if self.attempt.is_multiple_of(2) {
            port.abort(id);
        } else {
            // The connection may be over already.
            let _over = port.disconnect(id);
        }
    }

    fn on_closed(
        &mut self,
        world: &mut World,
        side: usize,
        counters: &ConnectionCounters,
        faulty: bool,
    ) -> Result<(), String> {
        self.sides[side].closed = true;
        if !self.sides[side].failed {
            self.check_given_up(side, world.now())?;
        }
        if self.stage == Stage::Open {
            let is_rejected = self.rejected_attempt == self.attempt;
            if self.is_silent
                || self.plan.is_hostile
                || self.fails_by_plan() && self.sides[side].established
            {
                self.begin_ending(world.now());
            } else if (faulty || is_rejected)
                && !self.sides[0].established
                && self.attempt < ATTEMPTS_MAX
            {
                return if side == 0 { self.open(world) } else { Ok(()) };
            } else {
                return Err(format!(
                    "side {side}: the connection is over: {:?}",
                    self.sides[side].progress
                ));
            }
        }
        self.counters.push(*counters);
        if self.sides.iter().all(|side| side.closed || side.connection.is_none()) {
            self.stage = Stage::Over;
            self.check_end()?;
        }
        Ok(())
    }

    fn begin_ending(&mut self, now: Instant) {
        self.stage = Stage::Ending;
        if !self.is_silent {
            self.close_at.get_or_insert(now + PATIENCE);
        }
    }

    // ---- work ----

    /// Returns true if anything was done.
    pub(crate) fn pump(&mut self, world: &mut World) -> Result<bool, String> {
        if !matches!(self.stage, Stage::Open | Stage::Ending) {
            return Ok(false);
        }
        let now = world.now();
        let mut acted = false;
        let is_checked = self.confirms();
        for side in &mut self.sides {
            side.live.tick(&side.memory);
        }
        if let Some((side, _)) = self.revokes.take_if(|(_, at)| *at <= now) {
            let side = &mut self.sides[side];
            side.live.revoke(&side.memory);
            // Work that reads the invalidated memory cannot continue: do not wait longer than this.
            self.close_at.get_or_insert(now + PATIENCE);
        }
        for side in [0, 1] {
            let [a, b] = &mut self.sides;
            let (own, peer) = if side == 0 { (a, b) } else { (b, a) };
            if own.has_left || !own.established || !own.looks(&self.plan.sides[side], now) {
                continue;
            }
            let peer_live = peer.live_counter();
            let peer_memory = is_checked.then_some(&peer.memory);
            own.poll(self.plan, &self.model, peer_live, peer_memory)
                .map_err(|text| format!("side {side}: {text}"))?;
            acted = true;
            let receives_posted = own.progress.receives_posted;
            own.post_receives(self.plan)?;
            own.post_sends(self.plan, peer)?;
            // The peer may have waited for the receives that this side has just posted.
            peer.credit |= own.progress.receives_posted > receives_posted;
        }
        acted |= self.act(world, now)?;
        Ok(acted | self.end(world, now))
    }

    /// Returns true until an end closes: so long the peer answers.
    const fn confirms(&self) -> bool {
        !self.is_told() && !self.plan.is_hostile && !matches!(self.plan.ending, Ending::Acts(_))
    }

    /// Returns true if there was an action.
    fn act(&mut self, world: &mut World, now: Instant) -> Result<bool, String> {
        let mut acted = false;
        for side in [0, 1] {
            let Some((_, what)) = self.deeds[side].take_if(|(at, _)| *at <= now) else { continue };
            acted = true;
            let Some(id) = self.sides[side].connection else { continue };
            match what {
                Deed::Nothing => {}
                Deed::Abort => world.port(self.plan.nodes[side]).abort(id),
                Deed::Disconnect => self.tell(world, side),
                Deed::Leave => {
                    self.tell(world, side);
                    let end = &mut self.sides[side];
                    self.left_behind[side] = end.progress.messages;
                    end.leave(self.plan).map_err(|error| error.to_string())?;
                }
            }
            self.begin_ending(now);
        }
        Ok(acted)
    }

    /// Returns true if it did.
    fn end(&mut self, world: &mut World, now: Instant) -> bool {
        let before = (self.stage, self.told);
        if self.stage == Stage::Open {
            let done = self.sides.iter().all(|side| side.is_done(self.plan));
            if done {
                self.done_at.get_or_insert(now);
            }
            if self.sabotage == Some(Sabotage::Gone)
                && let Some(id) = self.sides[0].connection.filter(|_| self.sides[0].established)
            {
                world.port(self.plan.nodes[0]).abort(id);
            }
            match self.plan.ending {
                Ending::Abort { side, completions }
                    if self.sides[side].established
                        && (done || self.sides[side].progress.completions >= completions) =>
                {
                    if let Some(id) = self.sides[side].connection {
                        world.port(self.plan.nodes[side]).abort(id);
                    }
                    self.begin_ending(now);
                }
                Ending::Close(side) if done => {
                    self.begin_ending(now);
                    self.close_at = Some(now + PATIENCE * 100);
                    self.tell(world, side);
                }
                Ending::CloseBoth | Ending::Acts(_) | Ending::Invalidate { .. } if done => {
                    self.begin_ending(now);
                    self.close_at = Some(now);
                }
                _ => {}
            }
        }
        if self.stage == Stage::Ending && self.close_at.is_some_and(|at| at <= now) {
            self.close_at = None;
            self.tell(world, 0);
            self.tell(world, 1);
        }
        before != (self.stage, self.told)
    }

    /// Asks an end to close, once.
    fn tell(&mut self, world: &mut World, side: usize) {
        if let Some(id) = self.sides[side].connection
            && !std::mem::replace(&mut self.told[side], true)
        {
            // The connection may be over already.
            let _over = world.port(self.plan.nodes[side]).disconnect(id);
        }
    }

    pub(crate) fn wakeup(&self, now: Instant) -> Option<Instant> {
        let looks = |side: &&Side| side.established && !side.has_left && side.has_news();
        let sides = self.sides.iter().filter(looks);
        let pump = sides.map(|side| side.looks_at(now)).min();
        let close = self.close_at.filter(|_| self.stage == Stage::Ending);
        let deeds = self.deeds.iter().flatten().map(|(at, _)| *at);
        let own = deeds.chain(self.revokes.map(|(_, at)| at));
        match self.stage {
            Stage::Open | Stage::Ending => pump.into_iter().chain(close).chain(own).min(),
            Stage::Waiting | Stage::Over => None,
        }
    }
}
