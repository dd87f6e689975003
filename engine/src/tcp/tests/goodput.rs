//! Speed of a transfer on a bad path, and time to repair a lost tail.

use super::path::{Flow, Network, Path};
use crate::tcp::{AckSample, Config, CongestionKind, Controller, Counters};
use crate::time::{Duration, Instant};

const SECONDS: u64 = 10;

/// Returns the goodput in Mbit/s of a transfer that lasts ten seconds, and its counters.
fn goodput(config: &Config, path: Path) -> (f64, Counters) {
    let mut network = Network::new(path);
    let flow = network.add(config, u64::MAX / 4, Duration::ZERO);
    network.run_for(Duration::from_secs(SECONDS));
    let flow = &network.flows[flow];
    let bits = f64::from(u32::try_from(flow.delivered() >> 3).unwrap()) * 64.0;
    (bits / 1e6 / f64::from(u32::try_from(SECONDS).unwrap()), *flow.counters())
}

/// Name, change of the path, required goodput in Mbit/s, and number of runs.
type Cell = (&'static str, fn(&mut Path), f64, u32);

/// Cells of the table, with the required goodput in Mbit/s.
const CELLS: [Cell; 8] = [
    ("no loss", |_| {}, 900.0, 1),
    ("loss 0.1 %", |path| path.loss = 0.001, 25.0, 3),
    ("loss 1 %", |path| path.loss = 0.01, 8.0, 3),
    ("loss 3 %", |path| path.loss = 0.03, 4.5, 3),
    ("reorder 5 %, 1 ms", |path| path.reorder = (0.05, Duration::from_millis(1)), 900.0, 1),
    ("reorder 5 %, 10 ms", |path| path.reorder = (0.05, Duration::from_millis(10)), 900.0, 1),
    ("bursts of 20", |path| path.burst = (0.0005, 20), 35.0, 3),
    ("small queue", |path| path.queue = Duration::from_millis(2), 700.0, 1),
];

#[expect(
    clippy::print_stderr,
    reason = "the table is what one runs this test with --nocapture for"
)]
fn cell(config: &Config, cell: &Cell) -> f64 {
    let &(name, impair, _, seeds) = cell;
    let mut total = 0.0;
    for seed in 0..seeds {
        let mut path = Path::wan(u64::from(seed));
        impair(&mut path);
        let (mbps, counters) = goodput(config, path);
        total += mbps;
        let Counters { rtos, fast_retransmits, recoveries_undone, loss_probes, .. } = counters;
        eprintln!(
            "{name:20} seed {seed} {mbps:8.2} Mbit/s: {rtos} timeouts, {fast_retransmits} \
             recoveries, {recoveries_undone} undone, {loss_probes} probes, {} resent of {}",
            counters.retransmissions, counters.segments_sent
        );
    }
    total / f64::from(seeds)
}

// spec: TCP-9293-11
#[test]
fn goodput_over_a_long_path_survives_loss_and_reordering() {
    let config = Config::default();
    for expected in &CELLS {
        let mbps = cell(&config, expected);
        assert!(mbps >= expected.2, "{}: {mbps} Mbit/s", expected.0);
    }
}

/// Keeps a window of 64 segments.
#[derive(Clone, Debug)]
struct Fixed(u32);

impl Controller for Fixed {
    fn cwnd(&self) -> u64 {
        64 * u64::from(self.0)
    }
    fn ssthresh(&self) -> u64 {
        self.cwnd()
    }
    fn on_ack(&mut self, _ack: &AckSample) {}
    fn on_loss(&mut self, _now: Instant, _flight: u64) {}
    fn on_timeout(&mut self, _now: Instant, _flight: u64, _first: bool) {}
    fn on_idle(&mut self) {}
    fn set_emss(&mut self, emss: u32) {
        self.0 = emss;
    }
    fn boxed_clone(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

/// 64 segments in each round trip of 20 ms.
#[test]
fn an_external_controller_sets_the_rate() {
    let congestion = CongestionKind::External(|emss, _initial_window| Box::new(Fixed(emss)));
    let config = Config { congestion, ..Config::default() };
    let (mbps, counters) = goodput(&config, Path::wan(1));
    let expected = 64.0 * 1448.0 * 8.0 / 20_000.0;
    assert!((0.95 * expected..=expected).contains(&mbps), "{mbps} Mbit/s");
    assert_eq!(counters.retransmissions, 0);
    // Losses are repaired, and reduce nothing.
    let mut path = Path::wan(1);
    path.loss = 0.01;
    let (lossy, counters) = goodput(&config, path);
    assert!(counters.fast_retransmits > 0 && lossy > 0.5 * expected, "{lossy} Mbit/s");
}

/// Time from a Send's first segment to its acknowledgment if its last segment is lost, in round
/// trips.
fn lost_tail(round_trip: Duration, segments: u64, seed: u64) -> f64 {
    let config = Config::default();
    let rate = 10_000_000_000;
    let mut network = Network::new(Path { round_trip, rate, ..Path::wan(seed) });
    let flow = network.add(&config, 1448, Duration::ZERO);
    let mut sent = 1448;
    network.run_until_acknowledged(flow, sent);
    // Some Sends before, so that there is a history.
    for _ in 0..10 {
        network.offer(flow, 1448 * segments);
        sent += 1448 * segments;
        network.run_until_acknowledged(flow, sent);
        network.run_for(round_trip);
    }
    network.drop_data = vec![1 + 11 * segments];
    network.offer(flow, 1448 * segments);
    sent += 1448 * segments;
    let took = network.run_until_acknowledged(flow, sent);
    assert_eq!(network.flows[flow].counters().rtos, 0);
    assert!(network.flows[flow].counters().loss_probes > 0);
    took.as_secs_f64() / round_trip.as_secs_f64()
}

/// RFC 8985 §7: the tail of a single Send arrives within three round trips, not after a timeout.
#[test]
fn a_lost_tail_is_repaired_within_three_round_trips() {
    for round_trip_us in [50, 200, 1000, 20_000, 100_000] {
        for segments in [1, 2, 5, 8] {
            let took = lost_tail(Duration::from_micros(round_trip_us), segments, 1);
            assert!(took < 3.0, "{round_trip_us} us, {segments} segments: {took:.2} round trips");
        }
    }
}

/// Jain's index of the bytes that flows delivered in `seconds` after the first `warm_up`.
fn fairness(config: &Config, path: Path, flows: usize, warm_up: u64, seconds: u64) -> f64 {
    let mut network = Network::new(path);
    for index in 0..flows {
        let delay = Duration::from_millis(500 * index as u64);
        network.add(config, u64::MAX / 4, delay);
    }
    network.run_for(Duration::from_secs(warm_up));
    let before: Vec<_> = network.flows.iter().map(Flow::delivered).collect();
    network.run_for(Duration::from_secs(seconds));
    let shares =
        network.flows.iter().zip(before).map(|(flow, before)| {
            f64::from(u32::try_from((flow.delivered() - before) >> 10).unwrap())
        });
    let (sum, squares) =
        shares.fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    sum * sum / (squares * f64::from(u32::try_from(flows).unwrap()))
}

#[test]
fn two_flows_share_a_bottleneck_fairly() {
    let config = Config::default();
    for seed in 0..3 {
        let path = Path {
            rate: 100_000_000,
            queue: Duration::from_millis(20),
            // Some randomness: without it two deterministic senders can stay unfair for ever.
            loss: 0.000_01,
            ..Path::wan(seed)
        };
        let jain = fairness(&config, path, 2, 10, 40);
        assert!(jain >= 0.95, "seed {seed}: Jain's index {jain:.3}");
    }
}
