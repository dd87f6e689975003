//! Two connections joined by a network that loses, delays, reorders and duplicates, under a virtual
//! clock. Everything follows from one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::tcp::{Ecn, Flags, Header, PathConfig, SeqNum, State, Tcb, TcpEvent, check_syn};
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;

/// Behaviour of the network and of the ends.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Chance that a segment is lost.
    pub(super) loss: f64,
    /// Chance that a loss begins a burst, and the burst's length in segments.
    pub(super) burst: u32,
    /// Chance that an ECN-capable segment is marked.
    pub(super) mark: f64,
    pub(super) duplicate: f64,
    /// One-way delay, and the largest random addition (which reorders).
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    /// Per end: settings, bytes to send, longest record.
    pub(super) configs: [PathConfig; 2],
    pub(super) octets: [u64; 2],
    pub(super) record_max: usize,
    /// Segments of one super-frame.
    pub(super) run_max: usize,
    pub(super) iss: [SeqNum; 2],
    /// Chance that the layer above refuses a segment.
    pub(super) refuse: f64,
    /// Chance per arrival that a receiver discards what it received beyond a gap.
    pub(super) renege: f64,
    /// Windows close and reopen at random.
    pub(super) window_games: bool,
    pub(super) simultaneous_open: bool,
    /// End 0 closes only after end 1's FIN, as a half-close does.
    pub(super) half_close: bool,
    /// The path shrinks to this IP payload after 60 segments.
    pub(super) path_shrinks_to: Option<usize>,
}

struct End {
    connection: Option<Tcb>,
    config: PathConfig,
    iss: SeqNum,
    octets: u64,
    sent: u64,
    taken: Vec<bool>,
    peer_bytes: u64,
    events: Vec<TcpEvent>,
    closed: bool,
    /// Start of each segment sent, with its length: retransmissions must repeat these.
    segments: BTreeMap<u64, u64>,
    window_shut: bool,
    path: usize,
    resent_bytes: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    at: Instant,
    serial: u64,
    to: usize,
    octets: Vec<u8>,
    /// Bits of the ECN field.
    ecn: u8,
}

pub(super) struct Sim {
    plan: Plan,
    pub(super) now: Instant,
    rng: ChaCha8Rng,
    ends: [End; 2],
    network: BinaryHeap<Reverse<InFlight>>,
    serial: u64,
    burst_left: u32,
    /// Segments that both paths have processed: the fast path on a copy of the connection.
    pub(super) short_ways: u64,
}

/// The byte of `end`'s stream at `offset`.
fn octet(end: usize, offset: u64) -> u8 {
    let mixed = (offset ^ ((end as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

const STEPS_MAX: u64 = 3_000_000;

impl Sim {
    pub(super) fn new(plan: Plan) -> Self {
        let mut now = Instant::ZERO + Duration::from_secs(1000);
        let rng = ChaCha8Rng::seed_from_u64(plan.seed);
        // The timestamp clock may be near its wrap.
        if plan.seed.is_multiple_of(3) {
            now = now + Duration::from_millis((1 << 32) - 1_000_500);
        }
        let end = |index: usize| End {
            connection: None,
            config: plan.configs[index],
            iss: plan.iss[index],
            octets: plan.octets[index],
            sent: 0,
            taken: Vec::new(),
            peer_bytes: plan.octets[1 - index],
            events: Vec::new(),
            closed: false,
            segments: BTreeMap::new(),
            window_shut: false,
            path: usize::from(plan.configs[index].path_payload_max),
            resent_bytes: 0,
        };
        let ends = [end(0), end(1)];
        let mut sim = Self {
            plan,
            now,
            rng,
            ends,
            network: BinaryHeap::new(),
            serial: 0,
            burst_left: 0,
            short_ways: 0,
        };
        sim.open(0);
        if sim.plan.simultaneous_open {
            sim.open(1);
        }
        sim
    }

    fn open(&mut self, index: usize) {
        let end = &mut self.ends[index];
        let ports = [7000, 8000];
        let connection = Tcb::connect(
            self.now,
            &Arc::new(end.config),
            ports[index],
            ports[1 - index],
            end.iss,
            [0, 0xffff_ff00][index],
        );
        end.connection = Some(connection);
        self.pump(index);
    }

    /// Runs until both ends are done.
    pub(super) fn run(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.is_done() {
                self.pump(0);
                self.pump(1);
                return self.check_end();
            }
            self.step();
        }
        panic!("no end in sight: {}", self.describe());
    }

    /// Bytes that `end` retransmitted, as a share of its stream.
    pub(super) fn resent_share(&self, end: usize) -> f64 {
        let end = &self.ends[end];
        f64::from(u32::try_from(end.resent_bytes).unwrap())
            / f64::from(u32::try_from(end.octets).unwrap())
    }

    fn describe(&self) -> String {
        let states = self.ends.each_ref().map(|end| {
            let connection = end.connection.as_ref();
            connection.map(|c| {
                let (state, una, nxt) = (c.state(), c.snd_una(), c.snd_nxt());
                let timers = c.poll_timeout();
                format!("{state} una {una} nxt {nxt} got {} timer {timers:?}", c.delivered())
            })
        });
        format!("now {} {states:?} {:?}", self.now, self.plan)
    }

    fn is_done(&self) -> bool {
        self.ends.iter().all(|end| {
            let connection = end.connection.as_ref();
            let over = |c: &Tcb| matches!(c.state(), State::TimeWait | State::Closed);
            connection.is_some_and(over)
        })
    }

    fn check_end(&self) {
        for end in &self.ends {
            let connection = end.connection.as_ref().unwrap();
            assert_eq!(connection.delivered().0, end.peer_bytes, "{}", self.describe());
            assert!(end.taken.iter().all(|&taken| taken), "{}", self.describe());
            let expected = [TcpEvent::Established, TcpEvent::PeerFin, TcpEvent::Closed];
            assert_eq!(end.events, expected, "{}", self.describe());
        }
    }

    /// Advances to the next event.
    fn step(&mut self) {
        let timers = self.ends.each_ref().map(|end| {
            let connection = end.connection.as_ref();
            connection.and_then(Tcb::poll_timeout).unwrap_or(Instant::from_nanos(u64::MAX))
        });
        let arrival = self.network.peek().map(|Reverse(next)| next.at);
        let arrival = arrival.unwrap_or(Instant::from_nanos(u64::MAX));
        let next = arrival.min(timers[0]).min(timers[1]);
        assert!(next.as_nanos() != u64::MAX, "nothing will ever happen: {}", self.describe());
        self.now = self.now.max(next);
        if arrival <= timers[0].min(timers[1]) {
            let Reverse(InFlight { to, octets, ecn, .. }) = self.network.pop().unwrap();
            self.deliver(to, &octets, Ecn::from_bits(ecn));
            // Sometimes more is read before anything is sent.
            if self.rng.random_bool(0.8) {
                self.pump(to);
            } else {
                let more = self.network.peek().is_some_and(|Reverse(next)| next.to == to);
                if !more {
                    self.pump(to);
                }
            }
        } else {
            let index = usize::from(timers[1] < timers[0]);
            self.ends[index].connection.as_mut().unwrap().handle_timeout(self.now);
            self.pump(index);
        }
        self.play_window_games();
    }

    fn play_window_games(&mut self) {
        if !self.plan.window_games {
            return;
        }
        for index in 0..2 {
            let full = self.plan.configs[index].window_bytes;
            let end = &mut self.ends[index];
            let Some(connection) = &mut end.connection else { continue };
            if end.window_shut {
                if self.rng.random_bool(0.05) || self.network.is_empty() {
                    connection.set_receive_window(full);
                    end.window_shut = false;
                    self.pump(index);
                }
            } else if self.rng.random_bool(0.02) {
                connection.set_receive_window(self.rng.random_range(0..2) * full / 16);
                end.window_shut = true;
            }
        }
    }

    fn deliver(&mut self, to: usize, octets: &[u8], ecn: Ecn) {
        let (mut header, payload_at) = Header::parse(octets).unwrap();
        header.ecn = ecn;
        let payload = &octets[payload_at..];
        let end = &mut self.ends[to];
        let Some(connection) = &mut end.connection else {
            if check_syn(&header).is_ok() {
                let accepted =
                    Tcb::accept(self.now, &Arc::new(end.config), &header, end.iss, 0xffff_ff00);
                end.connection = Some(accepted);
            } else if let Some(reset) = crate::tcp::listen::reset_for(&header, payload.len()) {
                assert!(!header.flags.contains(Flags::SYN), "{reset:?}");
            }
            return;
        };
        if self.rng.random_bool(self.plan.renege) && connection.rcv.has_gap() {
            connection.rcv.renege();
            let from = usize::try_from(connection.delivered().0).unwrap();
            end.taken.truncate(from);
        }
        let refused = self.rng.random_bool(self.plan.refuse);
        let mut short = connection.clone();
        let kept_of = |range: &Range<StreamOffset>| if refused { range.start } else { range.end };
        let taken_short = short.take_next(self.now, &header, payload.len(), 1).map(|next| {
            let kept = kept_of(&next.range);
            short.finish_next(self.now, next, kept);
            short
        });
        self.short_ways += u64::from(taken_short.is_some());
        let arrival = connection.handle_segment(self.now, &header, payload.len(), 1);
        let Some(offered) = arrival.payload.clone() else {
            assert!(taken_short.is_none(), "{header:?}");
            return connection.finish_arrival(self.now, &arrival, false);
        };
        if !refused {
            let Range { mut start, end: stop } = offered.range.clone();
            while let Some(missing) = connection.next_missing(start..stop) {
                let at = offered.skip + missing.start.index_from(offered.range.start);
                let bytes = &payload[at..][..missing.end.index_from(missing.start)];
                start = missing.end;
                if !connection.can_commit(&missing) {
                    continue;
                }
                take(end.peer_bytes, 1 - to, &mut end.taken, missing.start.0, bytes);
                connection.commit(missing).unwrap();
            }
        }
        connection.finish_arrival(self.now, &arrival, refused);
        if let Some(short) = taken_short {
            assert_eq!(format!("{short:?}"), format!("{connection:?}"), "both ways are the same");
        }
    }

    /// Sends all that an end must send.
    fn pump(&mut self, index: usize) {
        if self.ends[index].connection.is_none() {
            return;
        }
        let now = self.now;
        loop {
            while let Some(outgoing) = self.connection(index).poll_transmit(now) {
                self.check_retransmission(index, &outgoing.data, outgoing.retransmission);
                self.transmit(index, &outgoing.header, &outgoing.data);
            }
            if !self.send_new(index) {
                break;
            }
        }
        while let Some(header) = self.connection(index).poll_ack(now) {
            self.transmit(index, &header, &(StreamOffset(0)..StreamOffset(0)));
        }
        self.take_events(index);
        self.ends[index].connection.as_ref().unwrap().snd.board.check();
    }

    fn connection(&mut self, index: usize) -> &mut Tcb {
        self.ends[index].connection.as_mut().unwrap()
    }

    fn take_events(&mut self, index: usize) {
        let end = &mut self.ends[index];
        let connection = end.connection.as_mut().unwrap();
        let before = end.events.len();
        while let Some(event) = connection.poll_event() {
            end.events.push(event);
        }
        let waits = self.plan.half_close && index == 0;
        let may_close = !waits || end.events.contains(&TcpEvent::PeerFin);
        if !end.closed && end.sent == end.octets && may_close {
            end.closed = true;
            connection.close(StreamOffset(end.octets));
            self.pump(index);
        } else if end.events.len() > before {
            self.pump(index);
        }
    }

    /// Sends records while the budget lasts; returns true if something was sent.
    fn send_new(&mut self, index: usize) -> bool {
        let (now, run_max) = (self.now, self.plan.run_max);
        let end = &mut self.ends[index];
        let connection = end.connection.as_mut().unwrap();
        if end.sent == end.octets {
            return false;
        }
        let budget = connection.send_budget(now);
        let left = usize::try_from(end.octets - end.sent).unwrap();
        let record = self.rng.random_range(1..=self.plan.record_max).min(connection.emss());
        let record = record.min(left);
        let (len, segment) = if budget.bytes >= record {
            let run = self.rng.random_range(1..=run_max) * record;
            (run.min(left).min(budget.bytes / record * record), record)
        } else if budget.forced && budget.bytes > 0 {
            (budget.bytes.min(record), budget.bytes.min(record))
        } else {
            return false;
        };
        let start = connection.snd_nxt().0;
        assert_eq!(start, end.sent);
        let header = connection.record_sent(now, len, segment, len == left);
        end.sent += len as u64;
        let mut at = start;
        while at < start + len as u64 {
            let part = (segment as u64).min(start + len as u64 - at);
            self.ends[index].segments.insert(at, part);
            let ahead = u32::try_from(at - start).unwrap();
            let header = Header { seq: header.seq.plus(ahead), ..header.clone() };
            self.transmit(index, &header, &(StreamOffset(at)..StreamOffset(at + part)));
            at += part;
        }
        true
    }

    fn check_retransmission(&mut self, index: usize, data: &Range<StreamOffset>, again: bool) {
        let end = &mut self.ends[index];
        if data.start == data.end {
            return;
        }
        assert!(again);
        end.resent_bytes += data.end.0 - data.start.0;
        let emss = end.connection.as_ref().unwrap().emss() as u64;
        assert!(data.end.0 - data.start.0 <= emss);
        if self.plan.path_shrinks_to.is_none() {
            // The end of an original segment; its start, unless that was acknowledged.
            let (&start, &len) = end.segments.range(..=data.start.0).next_back().unwrap();
            assert_eq!(start + len, data.end.0, "boundaries are kept");
        }
    }

    fn transmit(&mut self, from: usize, header: &Header, data: &Range<StreamOffset>) {
        let mut octets = vec![0; header.len()];
        header.emit(&mut octets);
        octets.extend((data.start.0..data.end.0).map(|at| octet(from, at)));
        if let Some(shrunk) = self.plan.path_shrinks_to
            && self.serial > 60
            && octets.len() > shrunk
        {
            // "Packet too big" arrives at once.
            self.ends[from].path = shrunk;
            let now = self.now;
            return self.connection(from).set_path_mtu(now, shrunk);
        }
        assert!(octets.len() <= self.ends[from].path, "a segment above the path MTU");
        let copies = 1 + usize::from(self.rng.random_bool(self.plan.duplicate));
        for _ in 0..copies {
            if self.is_lost() {
                continue;
            }
            let jitter = self.plan.jitter.as_nanos();
            let jitter = u64::try_from(jitter).unwrap();
            let jitter = if jitter > 0 { self.rng.next_u64() % jitter } else { 0 };
            let at = (self.now + self.plan.delay).plus_nanos(jitter);
            self.serial += 1;
            let octets = octets.clone();
            let capable = header.ecn != Ecn::NotCapable;
            let marked = capable && self.rng.random_bool(self.plan.mark);
            let ecn = if marked { Ecn::Experienced } else { header.ecn }.bits();
            let (serial, to) = (self.serial, 1 - from);
            self.network.push(Reverse(InFlight { at, serial, to, octets, ecn }));
        }
    }

    fn is_lost(&mut self) -> bool {
        if self.burst_left > 0 {
            self.burst_left -= 1;
            return true;
        }
        let lost = self.rng.random_bool(self.plan.loss);
        if lost && self.plan.burst > 0 {
            self.burst_left = self.rng.random_range(0..self.plan.burst);
        }
        lost
    }
}

/// Checks bytes against the sender's stream, and that each is taken once.
fn take(total: u64, from: usize, taken: &mut Vec<bool>, start: u64, bytes: &[u8]) {
    assert!(start + bytes.len() as u64 <= total, "octets nobody sent");
    let first = usize::try_from(start).unwrap();
    if taken.len() < first + bytes.len() {
        taken.resize(first + bytes.len(), false);
    }
    for (index, &byte) in bytes.iter().enumerate() {
        assert!(!std::mem::replace(&mut taken[first + index], true), "taken twice");
        assert_eq!(byte, octet(from, start + index as u64), "wrong octet");
    }
}
