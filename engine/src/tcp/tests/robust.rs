use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::script::{Script, ack, config, seq};
use crate::tcp::{
    Config, DropReason, Flags, Header, KeepAliveTimes, Options, State, TcpEvent, Timestamps,
};
use crate::time::Duration;

fn dropped(script: &mut Script, header: &Header, len: usize) -> Option<DropReason> {
    script.connection.handle_segment(script.now, header, len, 1).drop
}

/// RFC 5961 §3.2: outside the window dropped, at RCV.NXT obeyed, elsewhere challenged.
#[test]
fn a_reset_counts_only_exactly_at_rcv_nxt() {
    let mut script = Script::established(&config());
    let outside = script.header(100_000, 0, Flags::RST);
    assert_eq!(dropped(&mut script, &outside, 0), Some(DropReason::BeyondWindow));
    let before = Header { seq: seq(0).plus(u32::MAX), ..script.header(0, 0, Flags::RST) };
    assert_eq!(dropped(&mut script, &before, 0), Some(DropReason::BeyondWindow));
    assert_eq!(script.acked(), None);
    let guess = script.header(500, 0, Flags::RST);
    assert_eq!(dropped(&mut script, &guess, 0), Some(DropReason::BlindReset));
    assert_eq!(script.acked(), Some((0, vec![])));
    assert_eq!(script.state(), State::Established);
    let exact = script.header(0, 0, Flags::RST);
    dropped(&mut script, &exact, 0);
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::Reset));
    assert_eq!(script.state(), State::Closed);
}

/// RFC 5961 §4.2.
#[test]
fn syn_on_an_open_connection_is_challenged_for_any_number() {
    let mut script = Script::established(&config());
    for at in [0, 500, 0x8000_0000] {
        let syn = script.header(at, 0, Flags::SYN);
        assert_eq!(dropped(&mut script, &syn, 0), Some(DropReason::UnexpectedSyn));
        assert_eq!(script.acked(), Some((0, vec![])));
    }
    assert_eq!(script.state(), State::Established);
}

/// RFC 5961 §7.
// spec: TCP-5961-4
#[test]
fn challenge_acks_are_limited() {
    let mut script = Script::established(&config());
    let flood = |script: &mut Script| {
        let mut acks = 0;
        for _ in 0..100 {
            let syn = script.header(500, 0, Flags::SYN);
            dropped(script, &syn, 0);
            acks += u32::from(script.acked().is_some());
        }
        acks
    };
    assert_eq!(flood(&mut script), 10);
    script.sleep(Duration::from_secs(5));
    assert_eq!(flood(&mut script), 10);
}

/// RFC 5961 §5.2.
#[test]
fn data_with_an_impossible_acknowledgment_is_dropped() {
    let mut script = Script::established(&config());
    script.send(100);
    for number in [101, 0x7000_0000, 0u32.wrapping_sub(60_001)] {
        let header = script.header(0, number, Flags::ACK);
        let arrival = script.connection.handle_segment(script.now, &header, 10, 1);
        assert_eq!((arrival.payload, arrival.drop), (None, Some(DropReason::AckOutOfRange)));
    }
    let old = script.header(0, 0u32.wrapping_sub(60_000), Flags::ACK);
    assert!(script.connection.handle_segment(script.now, &old, 10, 1).payload.is_some());
}

/// RFC 5961 §5.2 and §7: an acknowledgment of bytes never sent is answered, but not for ever.
#[test]
fn acknowledgments_of_unsent_data_are_answered_at_a_limited_rate() {
    let mut script = Script::established(&config());
    let mut answers = 0;
    for _ in 0..1000 {
        let header = script.header(0, 5000, Flags::ACK);
        assert_eq!(dropped(&mut script, &header, 0), Some(DropReason::AckOutOfRange));
        answers += u32::from(script.acked().is_some());
    }
    assert_eq!(answers, 10);
    assert_eq!(script.connection.snd_una().0, 0);
}

/// Two ends that disagree on both numbers must not answer one another for ever.
#[test]
fn empty_segments_beyond_the_window_are_answered_at_a_limited_rate() {
    let mut script = Script::established(&config());
    let mut answers = 0;
    for _ in 0..1000 {
        let header = script.header(1 << 20, 0, Flags::ACK);
        assert_eq!(dropped(&mut script, &header, 0), Some(DropReason::BeyondWindow));
        answers += u32::from(script.acked().is_some());
    }
    assert_eq!(answers, 100);
    script.sleep(Duration::from_secs(1));
    let header = script.header(1 << 20, 0, Flags::ACK);
    dropped(&mut script, &header, 0);
    assert!(script.acked().is_some(), "a second later there is room again");
}

#[test]
fn a_segment_without_ack_is_dropped() {
    let mut script = Script::established(&config());
    let header = script.header(0, 0, Flags::PSH);
    assert_eq!(dropped(&mut script, &header, 10), Some(DropReason::AckMissing));
}

/// RFC 7323 §5.3: before the sequence check, so that a stale duplicate never reaches memory.
// spec: TCP-A.3-2, TCP-7323-5
#[test]
fn a_stale_timestamp_is_acknowledged_and_dropped() {
    let mut script = Script::established(&Config { timestamps: true, ..config() });
    script.peer_clock = 200;
    script.receive(0, 0, Flags::ACK, 100);
    script.peer_clock = 199;
    let header = script.header(100, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 10, 1);
    assert_eq!((arrival.payload, arrival.drop), (None, Some(DropReason::Paws)));
    assert_eq!(script.acked(), Some((100, vec![])));
    // RFC 7323 §5.5: after 24 idle days TS.Recent no longer means anything.
    script.sleep(Duration::from_secs(24 * 24 * 3600));
    assert!(script.receive(100, 0, Flags::ACK, 10));
}

/// RFC 7323 §3.2: dropped, but the connection continues; a RST needs no timestamp.
#[test]
fn a_missing_timestamp_is_dropped() {
    let mut script = Script::established(&Config { timestamps: true, ..config() });
    let bare = |flags| Header { options: Options::default(), ..script.header(0, 0, flags) };
    let (data, reset) = (bare(Flags::ACK), bare(Flags::RST));
    assert_eq!(dropped(&mut script, &data, 10), Some(DropReason::TimestampMissing));
    assert_eq!(script.state(), State::Established);
    dropped(&mut script, &reset, 0);
    assert_eq!(script.state(), State::Closed);
}

/// RFC 7323 §4.3: the three cases of the echo rule.
#[test]
fn the_echoed_timestamp_is_that_of_the_segment_that_advanced_the_window() {
    let mut script = Script::established(&Config { timestamps: true, ..config() });
    let echo = |script: &mut Script| script.ack().unwrap().options.timestamps.unwrap().echo;
    // Delayed ACK: the first of the segments it covers.
    script.peer_clock = 110;
    script.receive(0, 0, Flags::ACK, 1000);
    script.peer_clock = 120;
    script.receive(1000, 0, Flags::ACK, 1000);
    assert_eq!(echo(&mut script), 110);
    // A gap: the last segment that advanced the window.
    script.peer_clock = 140;
    script.receive(3000, 0, Flags::ACK, 1000);
    assert_eq!(echo(&mut script), 110);
    // The gap filled: the timestamp of the segment that fills it.
    script.peer_clock = 150;
    script.receive(2000, 0, Flags::ACK, 1000);
    assert_eq!(echo(&mut script), 150);
}

#[test]
fn a_retransmitted_segment_with_timestamps_gives_a_sample() {
    let mut script = Script::established(&Config { timestamps: true, ..config() });
    script.send(1000);
    script.wait_for_timer();
    script.resent();
    script.sleep(Duration::from_millis(5));
    let clock = u32::try_from(script.now.as_nanos() / 1_000_000).unwrap();
    let mut header = script.header(0, 1000, Flags::ACK);
    header.options.timestamps = Some(Timestamps { value: 100, echo: clock - 5 });
    let before = script.connection.srtt().unwrap();
    script.receive_header(&header, 0);
    assert!(script.connection.srtt().unwrap() > before);
    assert_eq!(script.connection.consecutive_timeouts(), 0);
}

/// RFC 9293 §3.10.7.4: "an acknowledgment should be sent in reply"; two ends that disagree about
/// everything must still fall silent.
#[test]
fn stray_segments_without_data_are_answered_at_a_limited_rate() {
    let mut script = Script::established(&config());
    let mut answers = 0;
    for _ in 0..1000 {
        let stray = script.header(0, 0, Flags::ACK);
        let stray = Header { seq: seq(0).plus(u32::MAX), ..stray };
        assert_eq!(dropped(&mut script, &stray, 0), Some(DropReason::Old));
        answers += u32::from(script.acked().is_some());
    }
    assert_eq!(answers, 100);
}

/// An old segment with data is a retransmission whose acknowledgment was lost: each is answered.
#[test]
fn old_data_is_always_answered() {
    let mut script = Script::established(&config());
    script.receive(0, 0, Flags::ACK, 1000);
    for index in 0..300 {
        script.receive(0, 0, Flags::ACK, 1000);
        assert!(script.acked().is_some(), "{index}");
    }
}

// spec: TCP-9293-14
#[test]
fn urgent_data_stays_in_line() {
    let mut script = Script::established(&config());
    assert!(script.receive(0, 0, Flags::ACK | Flags::URG, 10));
    assert_eq!(script.connection.delivered().0, 10);
}

/// RFC 9293 §3.8.4: only when idle; a single unanswered probe does not end the connection.
// spec: TCP-9293-13
#[test]
fn keepalive_probes_an_idle_peer_and_gives_up_after_many() {
    let idle = Duration::from_secs(7200);
    let mut script =
        Script::established(&Config { keepalive: Some(KeepAliveTimes::after(idle)), ..config() });
    script.sleep(Duration::from_secs(100));
    script.receive(0, 0, Flags::ACK, 0);
    assert_eq!(script.wait_for_timer(), Duration::from_secs(7100) - Duration::ZERO);
    assert_eq!(script.transmit(), None, "something was heard since");
    script.wait_for_timer();
    let probe = script.transmit().unwrap().header;
    assert_eq!(probe.seq, ack(0).plus(u32::MAX));
    for _ in 0..8 {
        assert_eq!(script.wait_for_timer(), Duration::from_secs(75));
        assert!(script.transmit().is_some());
    }
    script.wait_for_timer();
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::TimedOut));
}

#[test]
fn an_answered_keepalive_starts_over() {
    let idle = Duration::from_secs(7200);
    let mut script =
        Script::established(&Config { keepalive: Some(KeepAliveTimes::after(idle)), ..config() });
    for _ in 0..40 {
        script.wait_for_timer();
        script.transmit();
        script.receive(0, 0, Flags::ACK, 0);
    }
    assert_eq!(script.state(), State::Established);
}

/// RFC 9293 MUST-24: on and off for each connection, at any time. MUST-26: "only [..] when no sent
/// data is outstanding", which is what retransmissions are for.
#[test]
fn keepalive_can_be_turned_on_and_off_and_leaves_data_to_the_retransmission_timer() {
    let idle = Duration::from_secs(100);
    let mut script = Script::established(&config());
    script.sleep(Duration::from_secs(30));
    script.connection.set_keepalive(script.now, Some(KeepAliveTimes::after(idle)));
    assert_eq!(script.wait_for_timer(), Duration::from_secs(70), "since something was heard");
    assert!(script.transmit().is_some());
    script.connection.set_keepalive(script.now, None);
    assert_eq!(script.connection.poll_timeout(), None);
    script.connection.set_keepalive(script.now, Some(KeepAliveTimes::after(idle)));
    assert_eq!(script.wait_for_timer(), Duration::ZERO, "the idle time is over already");
    script.transmit();
    script.receive(0, 0, Flags::ACK, 0);
    script.wait_for_timer();
    let probes = script.connection.counters().probes_sent;
    script.send(10);
    script.connection.handle_timeout(script.now + idle);
    while let Some(outgoing) = script.transmit() {
        assert!(outgoing.retransmission, "no probe: {outgoing:?}");
    }
    assert_eq!(script.connection.counters().probes_sent, probes);
}

#[test]
fn impossible_lengths_do_not_panic() {
    let mut script = Script::established(&config());
    for len in [usize::MAX, 1 << 40, u32::MAX as usize] {
        for at in [0, u32::MAX, 0x7fff_ffff, 0x8000_0000] {
            let header = script.header(at, 0, Flags::ACK | Flags::FIN);
            let arrival = script.connection.handle_segment(script.now, &header, len, usize::MAX);
            if let Some(payload) = &arrival.payload {
                assert!(payload.range.end.0 <= 60_000);
            }
            script.connection.finish_arrival(script.now, &arrival, true);
        }
    }
    assert_eq!(script.state(), State::Established);
}

/// A hostile peer that knows the connection's numbers: no segment of it may cause a panic, break
/// the scoreboard, or offer a byte twice or beyond the window.
#[test]
fn random_segments_near_the_window_break_nothing() {
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let timestamps = rng.random_bool(0.3);
        let sack = rng.random_bool(0.7);
        let mut script = Script::established(&Config { timestamps, sack, ..config() });
        for _ in 0..400 {
            if script.state() == State::Closed {
                break;
            }
            hostile_step(&mut script, &mut rng);
            script.connection.snd.board.check();
        }
    }
}

fn hostile_step(script: &mut Script, rng: &mut ChaCha8Rng) {
    let near = |rng: &mut ChaCha8Rng, at: u64| {
        let base = u32::try_from(at & 0xffff_ffff).unwrap();
        let spread = [3, 2000, 70_000, u32::MAX / 2][rng.random_range(0..4)];
        base.wrapping_add(rng.random_range(0..=spread)).wrapping_sub(spread / 2)
    };
    let (delivered, una) = (script.connection.delivered().0, script.connection.snd_una().0);
    let nxt = script.connection.snd_nxt().0;
    let rare = [Flags::SYN, Flags::RST, Flags::FIN, Flags::URG][rng.random_range(0..4)];
    let flags = if rng.random_bool(0.03) { Flags::ACK | rare } else { Flags::ACK };
    let about = if rng.random() { una } else { nxt };
    let (at, acked) = (near(rng, delivered), near(rng, about));
    let mut header = script.header(at, acked, flags);
    header.window = rng.random();
    script.peer_clock = script.peer_clock.wrapping_add(rng.random_range(0..3));
    for _ in 0..rng.random_range(0..4) {
        let (left, right) = (near(rng, una), near(rng, nxt));
        header.options.sack.push((ack(left), ack(right)));
    }
    let len = [0, 0, 1, 100, 3000, 65_535][rng.random_range(0..6)];
    let arrival = script.connection.handle_segment(script.now, &header, len, 1);
    if let Some(payload) = &arrival.payload {
        assert!(payload.range.end.0 <= delivered + 60_000 && payload.range.start.0 >= delivered);
        assert!(
            payload.skip as u64 + payload.range.end.bytes_since(payload.range.start) <= len as u64
        );
        if let Some(missing) = script.connection.next_missing(payload.range.clone())
            && script.connection.can_commit(&missing)
        {
            script.connection.commit(missing).unwrap();
        }
    }
    script.connection.finish_arrival(script.now, &arrival, rng.random_bool(0.1));
    let budget = script.connection.send_budget(script.now).bytes.min(5000);
    if budget > 0 && rng.random() {
        script.connection.record_sent(script.now, budget, 700, rng.random());
    }
    while script.transmit().is_some() {}
    while script.ack().is_some() {}
    if rng.random_bool(0.02) {
        script.connection.set_path_mtu(script.now, rng.random_range(0..1500));
    }
    if rng.random_bool(0.05) {
        script.connection.set_receive_window(rng.random_range(0..60_000));
    }
    if rng.random_bool(0.2) && script.connection.poll_timeout().is_some() {
        script.wait_for_timer();
    }
}
