//! Goodput of one long flow of Writes through bad links: 1 Gbit/s, 20 ms round trip, a queue of
//! 1000 frames, both directions impaired. The clock is virtual: only the engine and the seeds
//! decide.
//!
//! `cargo test --release -p urnic-engine --test engine goodput:: -- --nocapture` prints the table;
//! with debug assertions the runs are shorter.
#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]
#![allow(clippy::print_stderr, reason = "prints the table")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::{ConnectionCounters, LowerLayer};
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{SendWr, WcStatus};
use urnic_netdev::impair::{BurstLoss, ImpairConfig};
use urnic_netdev::memory::LinkConfig;
use urnic_testkit::pair::{Pair, Setup, all_access};

/// Bytes of one Write, and number of outstanding Writes: more than the path and its queue hold.
const MESSAGE_LEN: usize = 64 << 10;
const DEPTH: usize = 128;
/// Seconds before the measurement, for slow start and its overflow.
const WARM_UP: u64 = 1;
/// Mbit/s of TCP payload that the bottleneck carries: 1448 bytes in each frame of 1514.
const LINE_RATE: f64 = 1000.0 * 1448.0 / 1514.0;

/// Length of a run in seconds, and number of runs: for a flow that fills the path, and for one that
/// losses keep slow.
const FAST: (u64, u64) = if cfg!(debug_assertions) { (3, 1) } else { (10, 3) };
const SLOW: (u64, u64) = (10, 5);

#[derive(Clone, Copy, Debug)]
enum Mode {
    Optimized,
    Markers,
    Layered,
}

/// Returns the link of every cell.
fn path() -> ImpairConfig {
    ImpairConfig {
        delay_ns: 10_000_000,
        rate_bits_per_second: Some(1_000_000_000),
        queue_frames_max: 1000,
        held_max: 1 << 16,
        ..ImpairConfig::default()
    }
}

/// Returns the goodput in Mbit/s, and the counters of the ends.
fn run(
    impair: ImpairConfig,
    mode: Mode,
    seed: u64,
    seconds: u64,
) -> (f64, [ConnectionCounters; 2]) {
    let link = LinkConfig { mtu: 1500, queue_frames: 1 << 16, ..LinkConfig::default() };
    let markers = matches!(mode, Mode::Markers);
    let startup = StartupConfig { markers, ..StartupConfig::default() };
    let lower_layer = match mode {
        Mode::Optimized | Mode::Markers => LowerLayer::Optimized,
        Mode::Layered => LowerLayer::Layered,
    };
    let setup = Setup { link, impair, startup, lower_layer, seed, ..Setup::default() };
    let mut pair = Pair::connect(setup);
    let source = pair.a.pd.reg_mr(MESSAGE_LEN, Access::LOCAL_WRITE).unwrap();
    let sink = pair.b.pd.reg_mr(MESSAGE_LEN, all_access()).unwrap();
    let post = |pair: &Pair| {
        let wr = SendWr::write(WrId(0), sink.remote(0), [source.sge(0..MESSAGE_LEN)]);
        pair.a.qp.post_send(wr).unwrap();
    };
    (0..DEPTH).for_each(|_| post(&pair));
    let cq = pair.a.cq.clone();
    let mut completed = 0_u64;
    let mut run = |seconds| {
        let before = completed;
        pair.run_for(Duration::from_secs(seconds), |pair| {
            while let Some(wc) = cq.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                completed += 1;
                post(pair);
            }
            false
        });
        completed - before
    };
    run(WARM_UP);
    let bits = run(seconds) * MESSAGE_LEN as u64 * 8;
    let a = pair.link.a.port.counters(pair.a.connection.unwrap()).unwrap();
    let b = pair.link.b.port.counters(pair.b.connection.unwrap()).unwrap();
    (bits as f64 / 1e6 / seconds as f64, [a, b])
}

/// Returns the means over the seeds, for each mode. Whatever the path does, the receiver itself
/// loses nothing.
fn cell(name: &str, impair: ImpairConfig, (seconds, seeds): (u64, u64)) -> [f64; 3] {
    [Mode::Optimized, Mode::Markers, Mode::Layered].map(|mode| {
        let mut sum = 0.0;
        for seed in 0..seeds {
            let (mbps, [sender, receiver]) = run(impair, mode, seed, seconds);
            let tcp = sender.tcp;
            eprintln!(
                "{name:24} {mode:9?} seed {seed} {mbps:7.2} Mbit/s: {} of {} resent, {} timeouts, \
                 {} recoveries, {} undone, {} probes; {} out of order, {} twice, {} octets held",
                tcp.retransmissions,
                tcp.segments_sent,
                tcp.rtos,
                tcp.fast_retransmits,
                tcp.recoveries_undone,
                tcp.loss_probes,
                receiver.tcp.out_of_order,
                receiver.tcp.duplicates,
                receiver.mpa.bytes_held_peak,
            );
            assert_eq!(receiver.mpa.refused_for_room, 0, "{name}, {mode:?}, seed {seed}");
            sum += mbps;
        }
        sum / seeds as f64
    })
}

/// Asserts that all modes of a cell reach `mbps_min`, and the optimized mode 0.9 of the layered
/// one.
fn assert_cell(name: &str, impair: ImpairConfig, length: (u64, u64), mbps_min: f64) {
    let [optimized, markers, layered] = cell(name, impair, length);
    for mbps in [optimized, markers, layered] {
        assert!(mbps >= mbps_min, "{name}: {optimized:.1}, {markers:.1}, {layered:.1} Mbit/s");
    }
    assert!(optimized >= 0.9 * layered, "{name}: {optimized:.1} to {layered:.1} Mbit/s");
}

#[test]
fn a_flow_without_loss_fills_the_path() {
    assert_cell("no loss", path(), FAST, 0.95 * LINE_RATE);
}

#[test]
fn reordering_costs_next_to_nothing() {
    let impair = ImpairConfig { reorder: 0.05, reorder_frames_max: 3, ..path() };
    assert_cell("5 % reordered", impair, FAST, 0.95 * LINE_RATE);
}

#[test]
fn goodput_with_one_loss_in_a_thousand() {
    assert_cell("0.1 % loss", ImpairConfig { loss: 0.001, ..path() }, SLOW, 20.0);
}

#[test]
fn goodput_with_one_loss_in_a_hundred() {
    assert_cell("1 % loss", ImpairConfig { loss: 0.01, ..path() }, SLOW, 6.5);
}

#[test]
fn goodput_with_three_losses_in_a_hundred() {
    assert_cell("3 % loss", ImpairConfig { loss: 0.03, ..path() }, SLOW, 4.0);
}

#[test]
fn goodput_with_burst_losses_of_eight() {
    if urnic_testkit::is_too_long("goodput_with_burst_losses_of_eight") {
        return;
    }
    let burst = BurstLoss { enter: 0.0002, leave: 0.125, loss: 1.0 };
    assert_cell("bursts", ImpairConfig { burst, ..path() }, SLOW, 40.0);
}

#[test]
fn loss_and_reordering_at_once_are_distinguished() {
    let impair = ImpairConfig { loss: 0.01, reorder: 0.05, ..path() };
    assert_cell("1 % loss, 5 % reordered", impair, SLOW, 6.5);
}
