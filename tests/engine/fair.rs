//! Many connections of one port that all have work all the time: each gets at least half of its
//! share of the link over a second, both of the sent and of the received bytes.

use std::num::NonZeroUsize;

use urnic_engine::poll::Lockstep;
use urnic_engine::port::{ConnectionId, Port};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::crowd;
use urnic_testkit::pair::{A, B, all_access, gigabit, poller};

const CONNECTIONS: usize = 1000;
/// Bytes of each Write, and number of Writes posted per connection.
const WRITE_LEN: usize = 32 << 10;
const POSTED: usize = 4;

/// Time until TCP knows the round trip through queues that all connections fill.
const WARM_UP: Duration = Duration::from_secs(2);

/// One end.
struct End {
    rnic: Rnic,
    cq: Cq,
    qps: Vec<Qp>,
    memory: Mr,
    connections: Vec<ConnectionId>,
}

impl End {
    fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(2 * POSTED * CONNECTIONS).unwrap());
        let config = || QpConfig { send_depth: POSTED, recv_depth: 1, ..QpConfig::new(&cq) };
        let qps = (0..CONNECTIONS).map(|_| pd.create_qp(config()).unwrap()).collect();
        let memory = pd.reg_mr(WRITE_LEN, all_access()).unwrap();
        Self { rnic, cq, qps, memory, connections: Vec::new() }
    }

    fn post(&self, index: u64, sink: &Mr) {
        let (remote, local) = (sink.remote(0), self.memory.sge(0..WRITE_LEN));
        let qp = &self.qps[usize::try_from(index).unwrap()];
        qp.post_send(SendWr::write(WrId(index), remote, [local])).unwrap();
    }

    /// Posts another Write for each completed one.
    fn go_on(&self, sink: &Mr) {
        while let Some(wc) = self.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            self.post(wc.wr_id.0, sink);
        }
    }

    /// Returns the bytes that each connection has sent, and has received, so far.
    fn octets(&self, port: &Port) -> Vec<[u64; 2]> {
        let of = |id: &ConnectionId| {
            let counters = port.counters(*id).unwrap();
            [counters.bytes_sent, counters.bytes_received]
        };
        self.connections.iter().map(of).collect()
    }
}

/// Two ports with all connections between them.
struct Crowd {
    link: Lockstep<MemoryDevice, MemoryDevice>,
    /// Poll interval of the ports, with their time in `now`; `None` polls whenever there is work.
    interval: Option<Duration>,
    now: Instant,
    a: End,
    b: End,
}

impl Crowd {
    fn connect(link: LinkConfig) -> Self {
        let (a, b) = (End::new(1), End::new(2));
        let (device_a, device_b) = memory::pair(link);
        let link = Lockstep::new(poller(&a.rnic, A, device_a), poller(&b.rnic, B, device_b));
        let mut crowd = Self { link, interval: None, now: Instant::ZERO, a, b };
        let Self { link, a, b, .. } = &mut crowd;
        let ends = crowd::connect(link, [&a.qps, &b.qps]);
        [a.connections, b.connections] = ends;
        crowd.run(Duration::from_secs(1), false);
        crowd
    }

    /// Makes the ports poll at intervals, as by threads that share a processor: at each poll the
    /// device has room for many frames.
    fn turned_each(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self.now = self.link.now();
        self
    }

    fn run_at_intervals(&mut self, duration: Duration, interval: Duration, both_ways: bool) {
        let until = self.now + duration;
        while self.now < until {
            self.now = self.now + interval;
            while self.link.a.poll(self.now) + self.link.b.poll(self.now) > 0 {
                self.a.go_on(&self.b.memory);
                if both_ways {
                    self.b.go_on(&self.a.memory);
                }
            }
        }
    }

    fn run(&mut self, duration: Duration, both_ways: bool) {
        if let Some(interval) = self.interval {
            return self.run_at_intervals(duration, interval, both_ways);
        }
        let until: Instant = self.link.now() + duration;
        while self.link.now() < until && self.link.step_within(until) {
            self.a.go_on(&self.b.memory);
            if both_ways {
                self.b.go_on(&self.a.memory);
            }
        }
    }

    /// Lets all connections write, from `a` or from both ends, and checks one second.
    fn check(mut self, both_ways: bool) {
        for index in (0..CONNECTIONS as u64).cycle().take(POSTED * CONNECTIONS) {
            self.a.post(index, &self.b.memory);
            if both_ways {
                self.b.post(index, &self.a.memory);
            }
        }
        self.run(WARM_UP, both_ways);
        let before = self.octets();
        self.run(Duration::from_secs(1), both_ways);
        let after = self.octets();
        // Sent by `a` and received by `b`, then the other direction.
        let directions = [(0, 0), (1, 1), (1, 0), (0, 1)];
        for (end, what) in directions.into_iter().take(if both_ways { 4 } else { 2 }) {
            let pairs = before[end].iter().zip(&after[end]);
            let each: Vec<u64> = pairs.map(|(before, after)| after[what] - before[what]).collect();
            let mean = each.iter().sum::<u64>() / CONNECTIONS as u64;
            let least = *each.iter().min().unwrap();
            assert!(2 * least >= mean, "end {end}: {least} octets, when the mean is {mean}");
        }
    }

    fn octets(&self) -> [Vec<[u64; 2]>; 2] {
        [self.a.octets(&self.link.a.port), self.b.octets(&self.link.b.port)]
    }
}

/// Returns a link of this rate.
fn link(megabits: u64) -> LinkConfig {
    LinkConfig { rate_bits_per_second: Some(megabits * 1_000_000), ..gigabit(50_000, 1024) }
}

#[test]
fn each_of_1000_senders_gets_half_of_its_share() {
    Crowd::connect(link(1000)).check(false);
}

#[test]
fn each_of_1000_bidirectional_flows_gets_half_of_its_share() {
    Crowd::connect(link(400)).check(true);
}

#[test]
fn each_of_1000_on_a_slow_link_gets_half_of_its_share() {
    Crowd::connect(link(200)).check(false);
}

#[test]
fn each_of_1000_with_super_frames_gets_half_of_its_share() {
    let super_frame_len_max = NonZeroUsize::new(65_000);
    let link = LinkConfig { super_frame_len_max, queue_frames: 64, ..link(1000) };
    Crowd::connect(link).check(false);
}

#[test]
fn each_of_1000_gets_half_of_its_share_on_a_rarely_polled_port() {
    let interval = Duration::from_millis(4);
    // Retransmission timers fire spuriously while all begin. The victims depend on the rate.
    for rate in [190, 198, 200, 205] {
        Crowd::connect(link(rate)).turned_each(interval).check(false);
        Crowd::connect(link(rate)).turned_each(interval).check(true);
    }
}

#[test]
fn each_of_1000_gets_half_of_its_share_with_rare_super_frames() {
    let super_frame_len_max = NonZeroUsize::new(65_000);
    let link = LinkConfig { super_frame_len_max, queue_frames: 64, ..link(200) };
    Crowd::connect(link).turned_each(Duration::from_millis(4)).check(false);
}
