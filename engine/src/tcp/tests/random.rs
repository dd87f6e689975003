//! Two ends over random networks: every transfer finishes, whatever is lost.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::sim::{Plan, Sim};
use crate::tcp::{Config, CongestionKind, EcnUse, PathConfig, SeqNum};
use crate::time::Duration;

/// Returns a plan drawn from `seed`.
fn plan(seed: u64) -> Plan {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let mut config = || {
        let mtu = [100, 576, 1500, 9000][rng.random_range(0..4)];
        let windows = [300, 2000, 8000, 65_535, 300_000, 4 << 20];
        let config = Config {
            window_bytes: windows[rng.random_range(0..windows.len())],
            timestamps: rng.random_bool(0.7),
            sack: rng.random_bool(0.75),
            window_scaling: rng.random_bool(0.8),
            quick_acks: rng.random_range(0..4),
            congestion: [CongestionKind::NewReno, CongestionKind::Cubic, CongestionKind::Dctcp]
                [rng.random_range(0..3)],
            ecn: [EcnUse::Off, EcnUse::Accept, EcnUse::Ask][rng.random_range(0..3)],
            // Losses may be long: aborting is tested elsewhere.
            user_timeout: Duration::from_secs(100_000),
            syn_timeout: Duration::from_secs(100_000),
            time_wait: Duration::from_secs(200_000),
            ..Config::default()
        };
        PathConfig::new(config, mtu, 20)
    };
    let configs = [config(), config()];
    let near_wrap = |rng: &mut ChaCha8Rng| {
        SeqNum(0_u32.wrapping_sub(rng.random_range(0..60_000)).wrapping_add(10_000))
    };
    let iss = [near_wrap(&mut rng), near_wrap(&mut rng)];
    let losses = [0.0, 0.01, 0.05, 0.2, 0.4];
    let jitter_us = [0, 20, 500][rng.random_range(0..3)];
    let path_min = configs.iter().map(|config| config.path_payload_max).min().unwrap();
    Plan {
        seed,
        loss: losses[rng.random_range(0..losses.len())],
        burst: [0, 0, 5, 30][rng.random_range(0..4)],
        mark: [0.0, 0.05, 0.5][rng.random_range(0..3)],
        duplicate: [0.0, 0.02, 0.2][rng.random_range(0..3)],
        delay: Duration::from_micros([20, 300, 20_000][rng.random_range(0..3)]),
        jitter: Duration::from_micros(jitter_us),
        configs,
        // An end with nothing to send would close before it has opened.
        octets: [rng.random_range(1..60_000), rng.random_range(1..20_000)],
        record_max: [1500, 300, 9000][rng.random_range(0..3)],
        run_max: rng.random_range(1..5),
        iss,
        refuse: [0.0, 0.0, 0.05][rng.random_range(0..3)],
        renege: [0.0, 0.0, 0.0, 0.02][rng.random_range(0..4)],
        window_games: rng.random_bool(0.3),
        simultaneous_open: rng.random_bool(0.2),
        half_close: rng.random_bool(0.3),
        path_shrinks_to: rng.random_bool(0.15).then(|| usize::from(path_min.max(160)) / 2),
    }
}

fn run(seeds: impl Iterator<Item = u64>) {
    let mut short_ways = 0;
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut sim = Sim::new(plan(seed));
            sim.run();
            sim.short_ways
        });
        short_ways += outcome.unwrap_or_else(|_| panic!("seed {seed}: {:?}", plan(seed)));
    }
    assert!(short_ways > 100, "{short_ways} segments could have taken the short way");
}

/// Returns the seeds of a part: a thousand if tests that take long are asked for, else 500.
fn seeds(part: u64) -> std::ops::Range<u64> {
    let count = if urnic_testkit::runs_long_tests() { 1000 } else { 500 };
    1000 * part..1000 * part + count
}

#[test]
fn every_transfer_finishes_under_any_loss_part_1() {
    run(seeds(0));
}

#[test]
fn every_transfer_finishes_under_any_loss_part_2() {
    run(seeds(1));
}

#[test]
fn every_transfer_finishes_under_any_loss_part_3() {
    run(seeds(2));
}

/// Runs the same test for many more seeds.
#[test]
#[ignore = "a long run"]
fn every_transfer_finishes_over_many_seeds() {
    run(3000..60_000);
}

/// Sends 2 MB in one direction, with 100 µs round trip and no rate limit; measures recovery at
/// `loss`.
fn bulk(seed: u64, loss: f64, sack: bool) -> (Duration, f64) {
    let config = PathConfig::new(Config { sack, ..Config::default() }, 1500, 20);
    let plan = Plan {
        seed,
        loss,
        burst: 0,
        mark: 0.0,
        duplicate: 0.0,
        delay: Duration::from_micros(50),
        jitter: Duration::ZERO,
        configs: [config; 2],
        octets: [2_000_000, 0],
        record_max: 1448,
        run_max: 1,
        iss: [SeqNum(0); 2],
        refuse: 0.0,
        renege: 0.0,
        window_games: false,
        simultaneous_open: false,
        half_close: false,
        path_shrinks_to: None,
    };
    let mut sim = Sim::new(plan);
    let start = sim.now;
    sim.run();
    (sim.now - start, sim.resent_share(0))
}

#[test]
fn with_sack_little_more_is_sent_again_than_was_lost() {
    for loss in [0.0, 0.001, 0.01, 0.03] {
        for seed in 1..5 {
            let (time, resent) = bulk(seed, loss, true);
            assert!(resent <= loss * 1.5 + 0.005, "loss {loss}: {resent} resent");
            assert!(time < Duration::from_secs(4), "loss {loss}: {time:?}");
        }
    }
}

#[test]
fn without_loss_nothing_is_sent_again_even_without_sack() {
    let (_, resent) = bulk(1, 0.0, false);
    assert!(resent <= 0.0);
}
