//! The effect of markers: the same impaired run with markers, without, and layered.
//!
//! RFC 5044 §6 and appendix A.3: FPDUs are passed up in arrival order; beyond a gap only a marker
//! shows where one starts.

use urnic_engine::limits::MARKER_SPACING;
use urnic_netdev::impair::ImpairConfig;
use urnic_testkit::one_way::{Outcome, WIDE, Way, run};

/// Runs the same transfer in the three ways.
fn each_way(impair: ImpairConfig) -> [Outcome; 3] {
    [Way::Markers, Way::NoMarkers, Way::Layered].map(|way| run(&WIDE, impair, way, 200, 3))
}

/// Returns the mean time from arrival to placement over all bytes placed, in nanoseconds.
fn wait_ns(outcome: &Outcome) -> u128 {
    outcome.counters.mpa.held_byte_ns / u128::from(outcome.counters.rdma.bytes_placed)
}

#[test]
fn with_markers_data_beyond_a_gap_is_placed_at_once() {
    for impair in [
        ImpairConfig { loss: 0.002, ..ImpairConfig::default() },
        ImpairConfig { reorder: 0.05, ..ImpairConfig::default() },
    ] {
        let [markers, without, layered] = each_way(impair);
        let mpa = &markers.counters.mpa;
        assert!(mpa.fpdus_out_of_order > 20 && mpa.fpdus_by_marker > 0, "{impair:?}: {mpa:?}");
        // Only the last segment of a message, if shorter than the marker spacing, may have no
        // marker.
        assert!(mpa.bytes_held_peak < MARKER_SPACING, "{impair:?}: {mpa:?}");
        for other in [&without, &layered] {
            let mpa = &other.counters.mpa;
            assert_eq!(other.counters.rdma.bytes_placed_out_of_order, 0, "{impair:?}");
            assert!(mpa.bytes_held_peak > 2 * 1448, "{impair:?}: {mpa:?}");
            // A reordered frame is at most 1 ms late; a lost one at least a round trip.
            let least = if impair.loss > 0.0 { 20_000_000 } else { 10_000 };
            assert!(mpa.held_ns_max > least && wait_ns(other) > 100, "{impair:?}: {mpa:?}");
            assert!(100 * wait_ns(&markers) < wait_ns(other), "{impair:?}");
        }
    }
}

#[test]
fn behind_a_middlebox_that_cuts_segments_markers_leave_little_waiting() {
    let impair = ImpairConfig {
        loss: 0.002,
        reorder: 0.02,
        resegment: 0.5,
        coalesce: 0.5,
        ..ImpairConfig::default()
    };
    let [markers, without, layered] = each_way(impair);
    assert!(markers.counters.mpa.bytes_held > 0, "FPDUs are cut");
    for other in [&without, &layered] {
        let waits = (wait_ns(&markers), wait_ns(other));
        assert!(10 * waits.0 < waits.1, "{waits:?} ns");
        let peak = |outcome: &Outcome| outcome.counters.mpa.bytes_held_peak;
        let peaks = (peak(&markers), peak(other));
        assert!(5 * peaks.0 < peaks.1, "{peaks:?} octets");
    }
}

#[test]
fn equal_seeds_give_equal_counters() {
    let impair = ImpairConfig { loss: 0.01, resegment: 0.2, ..ImpairConfig::default() };
    let figures = || {
        let outcome = run(&WIDE, impair, Way::NoMarkers, 50, 9);
        (outcome.counters.mpa, outcome.latencies_ns, outcome.transfer_ns)
    };
    assert_eq!(figures(), figures());
}
