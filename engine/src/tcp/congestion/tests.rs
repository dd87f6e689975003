use super::*;
use crate::time::Duration;

const EMSS: u32 = 1000;

fn ack(now: Instant, acked_bytes: u64) -> AckSample {
    AckSample {
        now,
        acked_bytes,
        srtt_ns: Some(1_000_000),
        rtt_ns: None,
        una: 0,
        nxt: 0,
        cwnd_limited: true,
        marked: false,
    }
}

fn both() -> [Congestion; 2] {
    [CongestionKind::NewReno, CongestionKind::Cubic]
        .map(|kind| Congestion::new(kind, EMSS, initial_window(EMSS, Some(4))))
}

#[test]
fn the_initial_window_is_that_of_rfc_6928() {
    assert_eq!(initial_window(8948, None), 2 * 8948);
    assert_eq!(initial_window(1460, None), 14_600);
    assert_eq!(initial_window(1448, None), 14_480);
    assert_eq!(initial_window(536, None), 5360);
    assert_eq!(initial_window(1448, Some(4)), 4 * 1448);
}

// spec: TCP-A.2-4, TCP-5681-2
#[test]
fn slow_start_adds_the_acknowledged_octets() {
    for mut controller in both() {
        assert_eq!(controller.cwnd(), 4000);
        controller.on_ack(&ack(Instant::ZERO, 1000));
        assert_eq!(controller.cwnd(), 5000);
    }
}

#[test]
fn a_window_that_limited_nothing_does_not_grow() {
    for mut controller in both() {
        let sample = AckSample { cwnd_limited: false, ..ack(Instant::ZERO, 1000) };
        controller.on_ack(&sample);
        assert_eq!(controller.cwnd(), 4000);
    }
}

// spec: TCP-5681-2, TCP-5681-3
#[test]
fn reno_halves_on_loss_and_then_adds_a_segment_per_window() {
    let [mut reno, _] = both();
    reno.on_loss(Instant::ZERO, 20_000);
    assert_eq!((reno.cwnd(), reno.ssthresh()), (10_000, 10_000));
    for _ in 0..10 {
        reno.on_ack(&ack(Instant::ZERO, 1000));
    }
    assert_eq!(reno.cwnd(), 11_000);
    reno.on_loss(Instant::ZERO, 1000);
    assert_eq!(reno.cwnd(), 2000);
}

// spec: TCP-5681-3
#[test]
fn a_timeout_leaves_one_segment_and_holds_ssthresh_when_it_repeats() {
    let now = Instant::ZERO;
    let [mut reno, mut cubic] = both();
    for (controller, expected) in [(&mut *reno, 10_000), (&mut *cubic, 14_000)] {
        controller.on_timeout(now, 20_000, true);
        assert_eq!((controller.cwnd(), controller.ssthresh()), (1000, expected));
        controller.on_timeout(now, 1000, false);
        assert_eq!(controller.ssthresh(), expected);
    }
}

#[test]
fn idle_time_restarts_from_the_initial_window() {
    for mut controller in both() {
        controller.on_ack(&ack(Instant::ZERO, 100_000));
        controller.on_idle();
        assert_eq!(controller.cwnd(), 4000);
    }
}

/// RFC 9438 §4.2: W(K) = W_max, and the curve is flat there.
// spec: TCP-9438-1
#[test]
fn cubic_returns_to_the_old_window_after_k_seconds() {
    let mut cubic = Cubic::new(EMSS, 1_000_000);
    // A long round trip, so that the Reno-friendly estimate stays below the curve.
    let rtt = Duration::from_millis(100);
    cubic.on_loss(Instant::ZERO, 1_000_000);
    assert_eq!(cubic.cwnd(), 700_000);
    // K = cbrt(1000·0.3/0.4) = 9.09 s.
    let mut now = Instant::ZERO;
    let mut at_k = 0;
    let mut early = 0;
    while now < Instant::ZERO + Duration::from_secs(12) {
        let sample = AckSample { srtt_ns: Some(100_000_000), ..ack(now, cubic.cwnd()) };
        cubic.on_ack(&sample);
        now = now + rtt;
        if now <= Instant::ZERO + Duration::from_secs(2) {
            early = cubic.cwnd();
        }
        if now <= Instant::ZERO + Duration::from_millis(9_100) {
            at_k = cubic.cwnd();
        }
    }
    assert!(early > 800_000, "the curve starts steep: {early}");
    assert!((985_000..1_005_000).contains(&at_k), "W(K) is W_max: {at_k}");
    assert!(cubic.cwnd() > 1_005_000, "it grows again after K: {}", cubic.cwnd());
}

/// RFC 9438 §4.3: on a short path CUBIC is at least as fast as Reno at the same loss rate.
// spec: TCP-9438-2
#[test]
fn cubic_follows_the_reno_estimate_on_short_paths() {
    let mut cubic = Cubic::new(EMSS, 10_000);
    cubic.on_loss(Instant::ZERO, 10_000);
    let mut now = Instant::ZERO;
    for _ in 0..20 {
        now = now + Duration::from_micros(100);
        cubic.on_ack(&ack(now, cubic.cwnd()));
    }
    // 20 round trips at 0.53 segments each, then 1 segment each.
    assert!(cubic.cwnd() >= 7000 + 20 * 529, "{}", cubic.cwnd());
}

// spec: TCP-9438-4
#[test]
fn fast_convergence_lowers_the_target_of_a_window_that_shrinks() {
    let mut cubic = Cubic::new(EMSS, 100_000);
    cubic.on_loss(Instant::ZERO, 100_000);
    let loss_below_the_old_window = cubic.clone();
    cubic.on_loss(Instant::ZERO, 70_000);
    assert_eq!(loss_below_the_old_window.cwnd(), 70_000);
    assert_eq!(cubic.cwnd(), 49_000);
    // W_max is now 70·(1+β)/2 = 59.5 segments, not 70.
    let mut now = Instant::ZERO;
    let k = Duration::from_secs_f64(((59.5_f64 - 49.0) / 0.4).cbrt());
    let end = now + k;
    while now < end {
        cubic.on_ack(&AckSample { srtt_ns: Some(200_000_000), ..ack(now, 10_000) });
        now = now + Duration::from_millis(200);
    }
    assert!(cubic.cwnd() < 62_000, "{}", cubic.cwnd());
}

/// RFC 8257 §3.3: the share of marked bytes determines the reduction.
#[test]
fn dctcp_shrinks_by_the_share_of_marked_octets() {
    let mut dctcp = Dctcp::new(EMSS, 100_000);
    // Slow start doubles the window; alpha falls from 1 by a sixteenth per window without marks.
    for window in 1..=100 {
        let at = window * 1000;
        dctcp.on_ack(&AckSample { una: at, nxt: at + 999, ..ack(Instant::ZERO, 1000) });
    }
    let before = dctcp.cwnd();
    assert_eq!(before, 200_000);
    dctcp.on_mark(Instant::ZERO, before);
    assert!(dctcp.cwnd() > before * 99 / 100, "{}", dctcp.cwnd());
    for window in 101..=200 {
        let at = window * 1000;
        let sample = ack(Instant::ZERO, 1000);
        dctcp.on_ack(&AckSample { una: at, nxt: at + 999, marked: true, ..sample });
    }
    let before = dctcp.cwnd();
    dctcp.on_mark(Instant::ZERO, before);
    assert!(dctcp.cwnd() < before * 51 / 100, "all was marked: {}", dctcp.cwnd());
    dctcp.on_loss(Instant::ZERO, 50_000);
    assert_eq!(dctcp.cwnd(), 25_000);
}

/// RFC 5681 §3.1: slow start is used while cwnd is below ssthresh. The rest of an acknowledgment
/// that reaches ssthresh counts as in congestion avoidance.
#[test]
fn slow_start_ends_at_ssthresh() {
    let [mut reno, mut cubic] = both();
    for (controller, ssthresh) in [(&mut *reno, 10_000), (&mut *cubic, 14_000)] {
        controller.on_timeout(Instant::ZERO, 20_000, true);
        controller.on_ack(&ack(Instant::ZERO, ssthresh - 1500));
        assert_eq!(controller.cwnd(), ssthresh - 500);
        controller.on_ack(&ack(Instant::ZERO, 500));
        assert_eq!(controller.cwnd(), ssthresh);
        controller.on_timeout(Instant::ZERO, 20_000, false);
        controller.on_ack(&ack(Instant::ZERO, 50_000));
        let beyond = controller.cwnd() - ssthresh;
        assert!((1..=3000).contains(&beyond), "{beyond}");
    }
}

/// Bytes of an acknowledgment that slow start used do not count again.
#[test]
fn reno_waits_for_a_whole_window_after_slow_start() {
    let [mut reno, _] = both();
    reno.on_timeout(Instant::ZERO, 20_000, true);
    reno.on_ack(&ack(Instant::ZERO, 9000));
    assert_eq!(reno.cwnd(), 10_000);
    reno.on_ack(&ack(Instant::ZERO, 9999));
    assert_eq!(reno.cwnd(), 10_000);
    reno.on_ack(&ack(Instant::ZERO, 1));
    assert_eq!(reno.cwnd(), 11_000);
}

/// RFC 9438 §5.8: time in which cwnd did not limit sending does not move the curve.
// spec: TCP-9438-3
#[test]
fn cubic_does_not_grow_while_application_limited() {
    let mut cubic = Cubic::new(EMSS, 1_000_000);
    cubic.on_loss(Instant::ZERO, 1_000_000);
    let sample = |seconds, acked| AckSample {
        srtt_ns: Some(100_000_000),
        ..ack(Instant::ZERO + Duration::from_secs(seconds), acked)
    };
    cubic.on_ack(&sample(0, 1000));
    for seconds in 1..=9 {
        cubic.on_ack(&AckSample { cwnd_limited: false, ..sample(seconds, 1000) });
    }
    let before = cubic.cwnd();
    cubic.on_ack(&sample(9, before));
    // A tenth of a second up the curve, not nine.
    assert!(cubic.cwnd() - before < 20_000, "{before} to {}", cubic.cwnd());
}

/// RFC 9438 §4.2: the target is at most 1.5 times the window.
// spec: TCP-9438-1
#[test]
fn cubic_grows_by_half_at_most_in_a_round_trip() {
    let mut cubic = Cubic::new(EMSS, 1_000_000);
    cubic.on_loss(Instant::ZERO, 1_000_000);
    cubic.on_ack(&ack(Instant::ZERO, 1000));
    let before = cubic.cwnd();
    cubic.on_ack(&ack(Instant::ZERO + Duration::from_secs(60), before));
    let after = cubic.cwnd();
    assert!(after > before * 14 / 10 && after <= before * 15 / 10, "{before} to {after}");
}

/// Sends one acknowledgment per segment, for `seconds`, with a round trip of 200 ms; returns the
/// window in segments after it.
fn run(cubic: &mut Cubic, now: &mut Instant, seconds: f64) -> f64 {
    let rtt = Duration::from_millis(200);
    let end = *now + Duration::from_secs_f64(seconds);
    while *now < end {
        for _ in 0..cubic.cwnd() / 1000 {
            cubic.on_ack(&AckSample { srtt_ns: Some(200_000_000), ..ack(*now, 1000) });
        }
        *now = *now + rtt;
    }
    f64::from(u32::try_from(cubic.cwnd()).unwrap()) / 1000.0
}

/// RFC 9438 §4.8.
// spec: TCP-9438-3
#[test]
fn after_a_timeout_cubic_starts_flat_at_the_end_of_slow_start() {
    let (mut cubic, mut now) = (Cubic::new(EMSS, 100_000), Instant::ZERO);
    cubic.on_timeout(now, 100_000, true);
    while cubic.cwnd() < 70_000 {
        run(&mut cubic, &mut now, 0.2);
    }
    let start = run(&mut cubic, &mut now, 0.0);
    let after = run(&mut cubic, &mut now, 2.0);
    // C·t³ is 3.2 segments, and Reno's estimate 0.53 for each of ten round trips.
    assert!((3.0..8.0).contains(&(after - start)), "{start} to {after}");
}

/// A loss between the timeout and congestion avoidance begins an epoch of its own.
#[test]
fn a_loss_after_a_timeout_has_its_own_curve() {
    let (mut cubic, mut now) = (Cubic::new(EMSS, 100_000), Instant::ZERO);
    cubic.on_timeout(now, 100_000, true);
    while cubic.cwnd() < 40_000 {
        cubic.on_ack(&ack(now, 1000));
    }
    cubic.on_loss(now, 40_000);
    assert_eq!(cubic.cwnd(), 28_000);
    // W_max is 40·(1+β)/2 = 34 segments, and K 2.47 s.
    let after = run(&mut cubic, &mut now, 1.2);
    assert!(after > 32.0, "{after}");
}

/// The curve is in segments: a smaller MTU does not change it in bytes.
#[test]
fn a_smaller_segment_leaves_the_curve_where_it_was() {
    let mut cubic = Cubic::new(EMSS, 1_000_000);
    cubic.on_loss(Instant::ZERO, 1_000_000);
    cubic.set_emss(EMSS / 2);
    // K = cbrt(2000·0.3/0.4) = 11.4 s.
    let (mut now, mut early) = (Instant::ZERO, 0);
    while now < Instant::ZERO + Duration::from_millis(11_400) {
        cubic.on_ack(&AckSample { srtt_ns: Some(100_000_000), ..ack(now, cubic.cwnd()) });
        now = now + Duration::from_millis(100);
        if now <= Instant::ZERO + Duration::from_secs(2) {
            early = cubic.cwnd();
        }
    }
    assert!(early > 780_000, "{early}");
    assert!((985_000..1_005_000).contains(&cubic.cwnd()), "{}", cubic.cwnd());
}

/// RFC 8257 §3.3: the estimate is updated once per window of data.
#[test]
fn dctcp_estimates_once_per_window() {
    let mut dctcp = Dctcp::new(EMSS, 100_000);
    // The first window ends at once; then there are ten acknowledgments in one.
    dctcp.on_ack(&AckSample { una: 1, nxt: 10_000, ..ack(Instant::ZERO, 1000) });
    for index in 1..=10 {
        dctcp.on_ack(&AckSample { una: index * 1000, nxt: 20_000, ..ack(Instant::ZERO, 1000) });
    }
    let before = dctcp.cwnd();
    dctcp.on_mark(Instant::ZERO, before);
    // Alpha is 15/16.
    assert_eq!(dctcp.cwnd(), before * 17 / 32);
}

/// RFC 9438 §4.3: once the estimate has reached the window before the reduction, α is 1.
// spec: TCP-9438-2
#[test]
fn cubic_grows_as_reno_above_the_old_window_on_short_paths() {
    let mut cubic = Cubic::new(EMSS, 10_000);
    cubic.on_loss(Instant::ZERO, 10_000);
    let mut now = Instant::ZERO;
    for _ in 0..30 {
        now = now + Duration::from_micros(100);
        cubic.on_ack(&ack(now, cubic.cwnd()));
    }
    // Six round trips to 10 segments, then a segment each.
    assert!((32_000..36_000).contains(&cubic.cwnd()), "{}", cubic.cwnd());
}
