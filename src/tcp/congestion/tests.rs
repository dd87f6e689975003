use super::*;
use crate::time::Duration;

const EMSS: u32 = 1000;

fn ack(now: Instant, acked_octets: u64) -> AckSample {
    AckSample {
        now,
        acked_octets,
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

#[test]
fn slow_start_adds_what_was_acknowledged() {
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

#[test]
fn a_timeout_leaves_one_segment_and_holds_ssthresh_when_it_repeats() {
    let now = Instant::ZERO;
    let [mut reno, mut cubic] = both();
    for (controller, expected) in [(&mut reno as &mut dyn Controller, 10_000), (&mut cubic, 14_000)]
    {
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

/// RFC 8257 §3.3: the share of marked octets decides.
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
