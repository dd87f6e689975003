//! Executes a plan, and computes the expected result.

use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::{ConnectionCounters, ConnectionId, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_engine::verbs::Wc;

use crate::property::end::{self, End, NUMBERS, Place, SOURCE_LEN, room, source_octets, spots};
use crate::property::link::{self, Link};
use crate::property::plan::{Kind, Op, Plan};

/// The content of every region of both ends.
pub(crate) type Memory = [Vec<Vec<u8>>; 2];

/// Result of a plan.
pub(crate) struct Outcome {
    pub(crate) memory: Memory,
    /// Completions of each end, by queue.
    pub(crate) completions: [[Vec<Wc>; 2]; 2],
    pub(crate) counters: Vec<ConnectionCounters>,
}

/// Time limit, more than enough for any plan on any link.
const LIMIT: Duration = Duration::from_secs(600);

struct Runner<'p> {
    plan: &'p Plan,
    ends: [End; 2],
    link: Link,
    /// Expected memory at the end.
    expected: Memory,
    connections: [Option<ConnectionId>; 2],
    completions: [[Vec<Wc>; 2]; 2],
    established: [bool; 2],
    counters: Vec<ConnectionCounters>,
    failure: Option<String>,
    /// Number of polls of the ends.
    looks: usize,
}

/// Executes a plan, closes in order, and checks the remaining state.
pub(crate) fn run(plan: &Plan) -> Result<Outcome, String> {
    let ends = [End::new(plan, 0), End::new(plan, 1)];
    let link = link::link(plan, &ends);
    let mut runner = Runner {
        plan,
        ends,
        link,
        expected: expected_memory(plan),
        connections: [None; 2],
        completions: Default::default(),
        established: [false; 2],
        counters: Vec::new(),
        failure: None,
        looks: 0,
    };
    runner.connect();
    let expected = expected_counts(plan);
    runner.until("all work to complete", |runner| runner.counts() == expected)?;
    let memory = runner.ends.each_ref().map(End::memory);
    runner.close()?;
    if runner.counts() != expected {
        return Err("completions came after the last".to_owned());
    }
    Ok(Outcome { memory, completions: runner.completions, counters: runner.counters })
}

impl Runner<'_> {
    fn connect(&mut self) {
        let plan = self.plan;
        for (end, peer) in [(0, 1), (1, 0)] {
            self.ends[end].make_receives(&plan.work[peer]);
            while plan.late_receives.is_none() && self.ends[end].post_receive() {}
        }
        self.link.b.port.listen(urnic_testkit::pair::TCP_PORT, link::listen_params(plan)).unwrap();
        let params = link::connect_params(plan, self.offer());
        let now = self.link.now();
        let qp = &self.ends[0].qp;
        let id = self.link.a.port.connect(now, link::responder(), qp, &params).unwrap();
        self.connections[0] = Some(id);
    }

    fn offer(&self) -> Offer<'static> {
        Offer { private_data: b"", ird: self.plan.depth, ord: self.plan.depth }
    }

    /// Closes both halves; nothing may be left of the connection.
    fn close(&mut self) -> Result<(), String> {
        for end in [0, 1] {
            let id = self.connections[end].unwrap();
            self.port(end).disconnect(id).unwrap();
        }
        self.until("both ends to be closed", |runner| runner.counters.len() == 2)?;
        for end in [0, 1] {
            if self.port(end).bytes_held() != 0 {
                return Err(format!("end {end} keeps something of a closed connection"));
            }
        }
        self.until("TIME-WAIT to be over", |runner| {
            let ports = [&runner.link.a.port, &runner.link.b.port];
            ports.iter().all(|port| port.connection_count() == 0)
        })
    }

    const fn port(&mut self, end: usize) -> &mut urnic_engine::port::Port {
        if end == 0 { &mut self.link.a.port } else { &mut self.link.b.port }
    }

    fn counts(&self) -> [[usize; 2]; 2] {
        self.completions.each_ref().map(|queues| queues.each_ref().map(Vec::len))
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) -> Result<(), String> {
        let deadline = self.link.now() + LIMIT;
        let mut silent = false;
        loop {
            self.collect();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if done(self) {
                return Ok(());
            }
            silent &= !self.post_receives(silent);
            if silent || self.link.now() >= deadline {
                let (now, counts) = (self.link.now(), self.counts());
                return Err(format!("waited for {what} until {now}: completions {counts:?}"));
            }
            // The last step, after which nothing is due, may have delivered something.
            silent = !self.link.step();
        }
    }

    /// Posts the next late receives, if it is time or nothing else happens. Returns true if there
    /// were any.
    fn post_receives(&mut self, now: bool) -> bool {
        self.looks += 1;
        let is_time = self.plan.late_receives.is_some_and(|looks| self.looks.is_multiple_of(looks));
        (now || is_time) && self.ends.iter_mut().map(End::post_receive).fold(false, |a, b| a | b)
    }

    fn collect(&mut self) {
        for end in [0, 1] {
            while let Some(event) = self.port(end).poll_event() {
                self.on_event(end, event);
            }
            let seen = self.completions[end][0].len();
            self.ends[end].drain(&mut self.completions[end]);
            for index in seen..self.completions[end][0].len() {
                self.look_at_peer(end, index);
            }
        }
    }

    /// Checks that a completed Write or Send is at the peer, if completions mean that.
    fn look_at_peer(&mut self, end: usize, index: usize) {
        let wc = &self.completions[end][0][index];
        let number = usize::try_from(wc.wr_id.0).unwrap() - 1000;
        let work = &self.plan.work[end];
        let spot = spots(work)[number];
        let is_there =
            self.ends[1 - end].has(self.plan, &work[number], spot, &self.expected[1 - end]);
        if self.plan.placed && !is_there {
            self.failure = Some(format!("request {number} of end {end} is not there: {wc:?}"));
        }
    }

    fn on_event(&mut self, end: usize, event: PortEvent) {
        match event {
            PortEvent::Incoming { connection, .. } => self.connections[end] = Some(connection),
            PortEvent::Closed { counters, .. } => self.counters.push(*counters),
            PortEvent::Stream { connection, event } => match event {
                StreamEvent::Request(_) => {
                    let (offer, qp) = (self.offer(), self.ends[end].qp.clone());
                    self.port(end).accept(connection, &qp, &offer).unwrap();
                }
                StreamEvent::Established(_) => {
                    self.established[end] = true;
                    self.ends[end].post_sends(&self.plan.work[end], &self.ends[1 - end]);
                }
                StreamEvent::PeerClosed => {}
                other if self.counters.is_empty() => {
                    self.failure = Some(format!("end {end}: {other:?}"));
                }
                _ => {}
            },
            other => self.failure = Some(format!("end {end}: {other:?}")),
        }
    }
}

/// Returns the number of completions of each queue of each end.
fn expected_counts(plan: &Plan) -> [[usize; 2]; 2] {
    let signaled = |work: &[Op]| work.iter().filter(|op| op.signaled).count();
    let delivered = |work: &[Op]| {
        let kinds = [Kind::Send, Kind::SendInvalidate, Kind::Immediate];
        work.iter().filter(|op| kinds.contains(&op.kind)).count()
    };
    let [a, b] = &plan.work;
    [[signaled(a), delivered(b)], [signaled(b), delivered(a)]]
}

/// Computes the expected memory at the end without any protocol.
pub(crate) fn expected_memory(plan: &Plan) -> Memory {
    let mut memory: Memory = [0, 1].map(|end| {
        let (own, peer) = (&plan.work[end], &plan.work[1 - end]);
        let zeros = |len| vec![0; len];
        vec![
            source_octets(end),
            zeros(room(peer)),
            zeros(room(own)),
            zeros(room(peer)),
            zeros(8 * NUMBERS),
        ]
    });
    let sources = [0, 1].map(source_octets);
    debug_assert!(sources.iter().all(|source| source.len() == SOURCE_LEN));
    for end in [0, 1] {
        let (own, peer) = (&sources[end], &sources[1 - end]);
        let mut written = None;
        for (index, (op, spot)) in plan.work[end].iter().zip(spots(&plan.work[end])).enumerate() {
            let mut put = |end: usize, place: Place, octets: &[u8]| {
                let at = spot.to;
                memory[end][place as usize][at..at + octets.len()].copy_from_slice(octets);
            };
            let payload = &own[spot.from..spot.from + op.len];
            match op.kind {
                Kind::Send | Kind::SendInvalidate => put(1 - end, Place::Inbox, payload),
                Kind::Write => {
                    put(1 - end, Place::Sink, payload);
                    written = Some((spot.to, op.len));
                }
                Kind::Read | Kind::ReadBack => {
                    let (from_sink, source, len) = end::read_extent(op, spot, written);
                    let range = source.from..source.from + len;
                    let octets = if from_sink {
                        memory[1 - end][Place::Sink as usize][range].to_vec()
                    } else {
                        peer[range].to_vec()
                    };
                    let landing = &mut memory[end][Place::Landing as usize];
                    landing[spot.to..spot.to + len].copy_from_slice(&octets);
                }
                Kind::FetchAdd | Kind::CmpSwap => {
                    let at = 8 * (index % NUMBERS);
                    let numbers = &mut memory[1 - end][Place::Numbers as usize];
                    let number = &mut numbers[at..at + 8];
                    let before = u64::from_ne_bytes(number.try_into().unwrap());
                    number.copy_from_slice(&apply(op, before).to_ne_bytes());
                }
                Kind::Immediate | Kind::LocalInvalidate => {}
            }
        }
    }
    memory
}

/// Applies an Atomic as RFC 7306 §5.1 defines it.
fn apply(op: &Op, before: u64) -> u64 {
    let operand = op.len as u64;
    if op.kind == Kind::FetchAdd {
        return before.wrapping_add(operand);
    }
    let mask = u64::MAX >> (op.len % 60);
    if before & 0xFF == 0 { before & !mask | operand & mask } else { before }
}
