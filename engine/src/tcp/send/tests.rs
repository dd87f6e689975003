use super::*;

#[test]
fn the_emss_is_the_smaller_of_peer_and_path_less_options() {
    assert_eq!(effective_mss(1460, 1480, 12), 1448);
    assert_eq!(effective_mss(1460, 1480, 0), 1456);
    assert_eq!(effective_mss(8960, 1480, 12), 1448);
    assert_eq!(effective_mss(536, 8980, 12), 520);
    // TCP-A.5.2-1: an MTU of 100 works.
    assert_eq!(effective_mss(1460, 80, 12), 48);
}

#[test]
fn a_peer_that_names_a_tiny_mss_gets_the_smallest_mulpdu() {
    for peer in [0, 1, 8, 20, 48, 127, 140, 147] {
        assert_eq!(effective_mss(peer, 1480, 12), 128, "{peer}");
    }
    assert_eq!(effective_mss(148, 1480, 12), 136);
    assert_eq!(effective_mss(127, 1480, 0), 128);
    assert_eq!(effective_mss(1, 80, 12), 48, "but no more than the path takes");
}

#[test]
fn an_absurd_path_leaves_room_for_something() {
    for path in [0, 21, 39] {
        assert_eq!(effective_mss(1460, path, 12), 8);
    }
    assert_eq!(effective_mss(1460, 48, 12), 16);
}

#[test]
fn room_in_cwnd_is_counted_in_whole_segments() {
    let mut sender = SendHalf::new(&PathConfig::default(), SeqNum(0));
    sender.agree(Some(1000), 0, false, true);
    sender.begin(&Config { initial_window_segments: Some(4), ..Config::default() }, false);
    assert_eq!(sender.cwnd_room(), 4000);
    sender.sent(Instant::ZERO, 2999, 1000, false);
    assert_eq!(sender.cwnd_room(), 2000);
    sender.sent(Instant::ZERO, 1000, 1000, false);
    assert_eq!(sender.cwnd_room(), 1000);
    sender.sent(Instant::ZERO, 1, 1000, false);
    assert_eq!(sender.cwnd_room(), 0);
}

/// Pacing never limits by itself: in slow start the window doubles in a round trip.
#[test]
fn slow_start_is_paced_at_twice_the_window_per_round_trip() {
    let mut sender = SendHalf::new(&PathConfig::default(), SeqNum(0));
    sender.begin(&Config::default(), false);
    sender.rtt.sample(Instant::ZERO, 20_000_000);
    let cwnd = sender.congestion.cwnd();
    assert_eq!(sender.pace(), Some(Pace::new(cwnd, 20_000_000, true)));
    sender.congestion.on_loss(Instant::ZERO, cwnd);
    let cwnd = sender.congestion.cwnd();
    assert_eq!(sender.pace(), Some(Pace::new(cwnd, 20_000_000, false)));
}

/// RFC 9293 §3.8.6.2.1: Fs is a half.
#[test]
fn half_of_the_largest_window_is_not_silly() {
    let mut sender = SendHalf::new(&PathConfig::default(), SeqNum(0));
    sender.first_window(&Header { window: 1000, ..Header::default() });
    assert!(sender.fills_half_the_window(500) && !sender.fills_half_the_window(499));
}
