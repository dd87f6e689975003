//! Cost of one data segment in TCP: sent and acknowledged, and received in order.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use urnic_engine::tcp::{Config, Header, PathConfig, SeqNum, Tcb};
use urnic_engine::time::{Duration, Instant};

const MSS: usize = 1448;
const SEGMENTS: usize = 32;

struct Pair {
    now: Instant,
    sender: Tcb,
    receiver: Tcb,
    headers: Vec<Header>,
    acks: Vec<Header>,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let config = Config { initial_window_segments: Some(1000), ..Config::default() };
        let config = Arc::new(PathConfig::new(config, 1500, 20));
        let mut sender = Tcb::connect(now, &config, 1, 2, SeqNum(7), 0);
        let syn = sender.poll_transmit(now).expect("a SYN is due").header;
        let mut receiver = Tcb::accept(now, &config, &syn, SeqNum(9), 0);
        let syn_ack = receiver.poll_transmit(now).expect("a SYN is due").header;
        sender.handle_segment(now, &syn_ack, 0, 1);
        let ack = sender.poll_ack(now).expect("an ACK is due");
        receiver.handle_segment(now, &ack, 0, 1);
        Self { now, sender, receiver, headers: Vec::new(), acks: Vec::new() }
    }

    fn send(&mut self) {
        for _ in 0..SEGMENTS {
            let budget = self.sender.send_budget(self.now);
            assert!(budget.bytes >= MSS);
            self.headers.push(self.sender.record_sent(self.now, MSS, MSS, false));
        }
    }

    fn receive(&mut self, index: usize) {
        let arrival = self.receiver.handle_segment(self.now, &self.headers[index], MSS, 1);
        let payload = arrival.payload.clone().expect("the window is open");
        if let Some(missing) = self.receiver.next_missing(payload.range) {
            assert!(self.receiver.can_commit(&missing));
            self.receiver.commit(missing).expect("there is no gap");
        }
        self.receiver.finish_arrival(self.now, &arrival, false);
        if let Some(ack) = self.receiver.poll_ack(self.now) {
            self.acks.push(ack);
        }
    }

    fn acknowledge(&mut self) {
        for ack in self.acks.drain(..) {
            black_box(self.sender.handle_segment(self.now, &ack, 0, 1));
        }
    }

    fn round(&mut self) {
        self.headers.clear();
        self.send();
        self.now = self.now + Duration::from_micros(20);
        for index in 0..self.headers.len() {
            self.receive(index);
        }
        if let Some(ack) = self.receiver.poll_ack(self.now) {
            self.acks.push(ack);
        }
        self.now = self.now + Duration::from_micros(20);
        self.acknowledge();
        black_box(self.sender.poll_timeout());
    }
}

fn segments(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp");
    group.throughput(Throughput::Elements(SEGMENTS as u64));
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    let mut pair = Pair::new();
    for _ in 0..10 {
        pair.round();
    }
    group.bench_function("both_ends", |b| b.iter(|| pair.round()));

    let mut pair = Pair::new();
    let mut one_side = |c: &mut criterion::BenchmarkGroup<'_, _>, name: &str, sending: bool| {
        c.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    pair.headers.clear();
                    let start = clock();
                    pair.send();
                    let sent = clock();
                    pair.now = pair.now + Duration::from_micros(20);
                    for index in 0..SEGMENTS {
                        pair.receive(index);
                    }
                    let received = clock();
                    pair.now = pair.now + Duration::from_micros(20);
                    pair.acknowledge();
                    let done = clock();
                    spent +=
                        if sending { (sent - start) + (done - received) } else { received - sent };
                }
                spent
            });
        });
    };
    one_side(&mut group, "sent_and_acked", true);
    one_side(&mut group, "received_in_order", false);
    group.finish();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

criterion_group!(benches, segments);
criterion_main!(benches);
