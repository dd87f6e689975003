//! Flows over one bottleneck, under a virtual clock: speed of TCP on a bad path. No payload is
//! moved; everything follows from one seed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::tcp::{Config, Counters, Ecn, Header, PathConfig, SeqNum, Tcb};
use crate::time::{Duration, Instant};

/// Effects of the path on segments on their way to the receivers.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) seed: u64,
    /// Bottleneck, in bits per second.
    pub(super) rate: u64,
    /// Capacity of the queue before it, as time.
    pub(super) queue: Duration,
    /// Without queueing, in both directions.
    pub(super) round_trip: Duration,
    /// Queueing delay above which ECN-capable segments are marked.
    pub(super) mark_above: Option<Duration>,
    pub(super) loss: f64,
    /// Chance that a burst of losses begins, and its length in segments.
    pub(super) burst: (f64, u32),
    /// Chance that a segment is late, and its longest delay.
    pub(super) reorder: (f64, Duration),
    /// Chance that an acknowledgment is lost.
    pub(super) ack_loss: f64,
}

impl Path {
    /// 1 Gbit/s and 20 ms, with a queue of one round trip.
    pub(super) fn wan(seed: u64) -> Self {
        Self {
            seed,
            rate: 1_000_000_000,
            queue: Duration::from_millis(20),
            round_trip: Duration::from_millis(20),
            mark_above: None,
            loss: 0.0,
            burst: (0.0, 0),
            reorder: (0.0, Duration::ZERO),
            ack_loss: 0.0,
        }
    }
}

/// A one-way transfer.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) sender: Tcb,
    receiver: Option<Tcb>,
    config: Config,
    /// Bytes to send; `u64::MAX` for as many as the time allows.
    octets: u64,
    start: Instant,
    started: bool,
}

impl Flow {
    pub(super) fn delivered(&self) -> u64 {
        self.receiver.as_ref().map_or(0, |receiver| receiver.delivered().0)
    }

    pub(super) fn counters(&self) -> &Counters {
        self.sender.counters()
    }
}

struct Event {
    at: Instant,
    serial: u64,
    flow: usize,
    to_receiver: bool,
    header: Header,
    len: usize,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Event {}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

pub(super) struct Network {
    path: Path,
    pub(super) now: Instant,
    rng: ChaCha8Rng,
    pub(super) flows: Vec<Flow>,
    events: BinaryHeap<Event>,
    serial: u64,
    /// Time at which the bottleneck has sent its queue.
    busy_until: Instant,
    burst_left: u32,
    /// Segments dropped by the queue, and marked.
    pub(super) overflows: u64,
    pub(super) marks: u64,
    /// Data segments to drop, by their number on the path.
    pub(super) drop_data: Vec<u64>,
    data_segments: u64,
}

/// Bytes of an Ethernet, an IP and a TCP header with timestamps.
const HEADERS_LEN: u64 = 66;
/// Segments of one super-frame.
const RUN_MAX: usize = 44;

impl Network {
    pub(super) fn new(path: Path) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(path.seed);
        let now = Instant::ZERO + Duration::from_secs(100);
        Self {
            path,
            now,
            rng,
            flows: Vec::new(),
            events: BinaryHeap::new(),
            serial: 0,
            busy_until: now,
            burst_left: 0,
            overflows: 0,
            marks: 0,
            drop_data: Vec::new(),
            data_segments: 0,
        }
    }

    /// Adds a flow that starts after `delay`.
    pub(super) fn add(&mut self, config: &Config, octets: u64, delay: Duration) -> usize {
        let start = self.now + delay;
        let port = u16::try_from(1000 + self.flows.len()).unwrap();
        let sender = Tcb::connect(
            start,
            &Arc::new(PathConfig::new(*config, 1500, 20)),
            port,
            7,
            SeqNum(77),
            5,
        );
        self.flows.push(Flow {
            sender,
            receiver: None,
            config: *config,
            octets,
            start,
            started: false,
        });
        self.flows.len() - 1
    }

    /// Adds bytes to send to a flow.
    pub(super) fn offer(&mut self, flow: usize, octets: u64) {
        self.flows[flow].octets += octets;
        self.pump_sender(flow);
    }

    pub(super) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end && self.step(end) {}
        self.now = end;
    }

    /// Runs until SND.UNA of `flow` is at `offset`; returns the time that this took.
    pub(super) fn run_until_acknowledged(&mut self, flow: usize, offset: u64) -> Duration {
        let start = self.now;
        let end = start + Duration::from_secs(100);
        while self.flows[flow].sender.snd_una().0 < offset {
            assert!(self.step(end), "nothing happens any more");
        }
        self.now - start
    }

    fn step(&mut self, end: Instant) -> bool {
        let mut next = self.events.peek().map_or(end, |event| event.at);
        let mut timer = None;
        for (index, flow) in self.flows.iter().enumerate() {
            let sender = if flow.started { flow.sender.poll_timeout() } else { Some(flow.start) };
            let receiver = flow.receiver.as_ref().and_then(Tcb::poll_timeout);
            for (at, is_sender) in [(sender, true), (receiver, false)] {
                if let Some(at) = at.filter(|&at| at < next) {
                    next = at;
                    timer = Some((index, is_sender));
                }
            }
        }
        if next >= end {
            return false;
        }
        self.now = self.now.max(next);
        match timer {
            Some((index, true)) => {
                self.flows[index].started = true;
                self.flows[index].sender.handle_timeout(self.now);
                self.pump_sender(index);
            }
            Some((index, false)) => {
                let receiver = self.flows[index].receiver.as_mut().unwrap();
                receiver.handle_timeout(self.now);
                self.pump_receiver(index);
            }
            None => {
                let event = self.events.pop().unwrap();
                self.deliver(&event);
            }
        }
        true
    }

    fn deliver(&mut self, event: &Event) {
        let now = self.now;
        let flow = &mut self.flows[event.flow];
        if !event.to_receiver {
            let arrival = flow.sender.handle_segment(now, &event.header, 0, 1);
            flow.sender.finish_arrival(now, &arrival, false);
            return self.pump_sender(event.flow);
        }
        let receiver = flow.receiver.get_or_insert_with(|| {
            Tcb::accept(
                now,
                &Arc::new(PathConfig::new(flow.config, 1500, 20)),
                &event.header,
                SeqNum(99),
                3,
            )
        });
        let arrival = receiver.handle_segment(now, &event.header, event.len, 1);
        let mut refused = false;
        if let Some(payload) = &arrival.payload {
            let mut from = payload.range.start;
            while let Some(missing) = receiver.next_missing(from..payload.range.end) {
                from = missing.end;
                if receiver.can_commit(&missing) {
                    receiver.commit(missing).unwrap();
                } else {
                    refused = true;
                }
            }
        }
        receiver.finish_arrival(now, &arrival, refused);
        self.pump_receiver(event.flow);
    }

    fn pump_receiver(&mut self, index: usize) {
        let now = self.now;
        let receiver = self.flows[index].receiver.as_mut().unwrap();
        let mut headers = Vec::new();
        while let Some(outgoing) = receiver.poll_transmit(now) {
            headers.push(outgoing.header);
        }
        while let Some(header) = receiver.poll_ack(now) {
            headers.push(header);
        }
        while receiver.poll_event().is_some() {}
        for header in headers {
            if self.rng.random_bool(self.path.ack_loss) {
                continue;
            }
            let at = now + self.path.round_trip / 2;
            self.push(at, index, false, header, 0);
        }
    }

    fn pump_sender(&mut self, index: usize) {
        let now = self.now;
        loop {
            while let Some(outgoing) = self.flows[index].sender.poll_transmit(now) {
                let len = outgoing.data.end.index_from(outgoing.data.start);
                self.transmit(index, outgoing.header, len);
            }
            let flow = &mut self.flows[index];
            let sender = &mut flow.sender;
            let left = usize::try_from(flow.octets - sender.snd_nxt().0).unwrap_or(usize::MAX);
            if left == 0 {
                break;
            }
            let budget = sender.send_budget(now).bytes;
            let emss = sender.emss();
            let len = budget.min(emss * RUN_MAX).min(left);
            let len = if len < left { len / emss * emss } else { len };
            if len == 0 {
                break;
            }
            let header = sender.record_sent(now, len, emss, len == left);
            let mut at = 0;
            while at < len {
                let part = emss.min(len - at);
                let seq = header.seq.plus(u32::try_from(at).unwrap());
                self.transmit(index, Header { seq, ..header.clone() }, part);
                at += part;
            }
        }
        let sender = &mut self.flows[index].sender;
        while sender.poll_event().is_some() {}
        let mut acks = Vec::new();
        while let Some(header) = sender.poll_ack(now) {
            acks.push(header);
        }
        for header in acks {
            self.transmit(index, header, 0);
        }
    }

    /// Sends a segment through the bottleneck.
    fn transmit(&mut self, flow: usize, mut header: Header, len: usize) {
        if len > 0 {
            self.data_segments += 1;
            if self.drop_data.contains(&self.data_segments) {
                return;
            }
        }
        let waiting = self.busy_until.nanos_since(self.now);
        if waiting > nanos(self.path.queue) {
            self.overflows += 1;
            return;
        }
        let marks = self.path.mark_above.is_some_and(|above| waiting > nanos(above));
        if marks && header.ecn != Ecn::NotCapable {
            header.ecn = Ecn::Experienced;
            self.marks += 1;
        }
        let wire_bits = (len as u64 + HEADERS_LEN + 24) * 8;
        let takes_ns = wire_bits * 1_000_000_000 / self.path.rate;
        self.busy_until = self.busy_until.max(self.now).plus_nanos(takes_ns);
        if self.is_lost() {
            return;
        }
        let (chance, late_max) = self.path.reorder;
        let late_ns = if chance > 0.0 && self.rng.random_bool(chance) {
            self.rng.random_range(0..nanos(late_max))
        } else {
            0
        };
        let at = (self.busy_until + self.path.round_trip / 2).plus_nanos(late_ns);
        self.push(at, flow, true, header, len);
    }

    fn is_lost(&mut self) -> bool {
        if self.burst_left > 0 {
            self.burst_left -= 1;
            return true;
        }
        let (chance, length) = self.path.burst;
        if chance > 0.0 && self.rng.random_bool(chance) {
            self.burst_left = length - 1;
            return true;
        }
        self.rng.random_bool(self.path.loss)
    }

    fn push(&mut self, at: Instant, flow: usize, to_receiver: bool, header: Header, len: usize) {
        self.serial += 1;
        self.events.push(Event { at, serial: self.serial, flow, to_receiver, header, len });
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}
