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
fn an_absurd_mss_leaves_room_for_something() {
    for (peer, path) in [(0, 1480), (1, 1480), (1460, 0), (1460, 21)] {
        assert_eq!(effective_mss(peer, path, 12), 8);
    }
}

#[test]
fn room_in_cwnd_is_whole_segments() {
    let mut sender = Sender::new(&Config::default(), SeqNum(0));
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
