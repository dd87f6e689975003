use super::script::{Script, ack, config, seq};
use crate::tcp::{Config, DropReason, Flags, Header, State, TcpEvent};
use crate::time::Duration;

fn window(script: &Script, acked: u32, window: u16) -> Header {
    Header { window, ..script.header(0, acked, Flags::ACK) }
}

#[test]
fn every_second_full_segment_is_acknowledged_at_once() {
    let mut script = Script::established(&config());
    script.receive(0, 0, Flags::ACK, 1000);
    assert_eq!(script.acked(), None);
    script.receive(1000, 0, Flags::ACK, 1000);
    assert_eq!(script.acked(), Some((2000, vec![])));
    assert_eq!(script.acked(), None);
}

/// TCP-9293-18: a segment with an FPDU a little shorter than the MSS counts as full.
// spec: TCP-9293-18
#[test]
fn segments_slightly_below_the_mss_count_as_full() {
    let mut script = Script::established(&config());
    script.receive(0, 0, Flags::ACK, 504);
    script.receive(504, 0, Flags::ACK, 504);
    assert_eq!(script.acked(), Some((1008, vec![])));
}

#[test]
fn small_segments_wait_for_the_delayed_ack_timer() {
    let mut script = Script::established(&config());
    for index in 0..5 {
        script.receive(index * 100, 0, Flags::ACK, 100);
        assert_eq!(script.acked(), None);
    }
    assert_eq!(script.wait_for_timer(), Duration::from_micros(50));
    assert_eq!(script.acked(), Some((500, vec![])));
    assert_eq!(script.connection.poll_timeout(), None);
}

// spec: TCP-9293-18
#[test]
fn pushed_data_is_acknowledged_without_a_timer_and_once_a_burst() {
    let hold = Duration::from_micros(25);
    for ack_hold in [Duration::ZERO, hold] {
        for len in [1, 100, 499, 501, 1000] {
            let mut script = Script::established(&Config { ack_hold, ..config() });
            script.receive(0, 0, Flags::ACK | Flags::PSH, len);
            let end = u32::try_from(len).unwrap();
            assert_eq!(script.acked(), Some((end, vec![])), "{len} bytes");
            assert_eq!(script.connection.poll_timeout(), None, "{len} bytes");
            // A peer that sets PSH on each segment of a burst.
            for index in 1..=5 {
                script.receive(index * end, 0, Flags::ACK | Flags::PSH, len);
            }
            assert_eq!(script.acked(), Some((6 * end, vec![])), "{len} bytes");
            assert_eq!(script.acked(), None, "{len} bytes");
        }
    }
}

/// Receives `segments` of 1000 bytes from `seq` on, all at once; returns the number of
/// acknowledgments that they cause.
fn burst(script: &mut Script, seq: u32, segments: u32) -> usize {
    (0..segments)
        .filter(|index| {
            script.receive(seq + index * 1000, 0, Flags::ACK, 1000);
            script.acked().is_some()
        })
        .count()
}

#[test]
fn held_acknowledgments_are_for_ever_longer_bursts_while_those_come() {
    let hold = Duration::from_micros(25);
    let config = Config { ack_hold: hold, window_bytes: 1 << 20, ..config() };
    let mut script = Script::established(&config);
    // After 2, 4, 8, 16 and 32 segments, and then after as many as may be held.
    assert_eq!(burst(&mut script, 0, 62), 5);
    assert_eq!(burst(&mut script, 62_000, 640), 10);
    // An incomplete stretch is acknowledged when the time is over, and the next stretch is shorter.
    assert_eq!(burst(&mut script, 702_000, 40), 0);
    assert_eq!(script.wait_for_timer(), hold);
    assert_eq!(script.acked(), Some((742_000, vec![])));
    assert_eq!(burst(&mut script, 742_000, 32), 1);
    // A single segment waits for the whole delay.
    assert_eq!(burst(&mut script, 774_000, 1), 0);
    assert_eq!(script.wait_for_timer(), config.delayed_ack);
    assert_eq!(script.acked(), Some((775_000, vec![])));
}

#[test]
fn at_most_a_quarter_of_the_window_is_held_unacknowledged() {
    let config = Config { ack_hold: Duration::from_micros(25), ..config() };
    let mut script = Script::established(&config);
    // 60 000 bytes, so 15 segments.
    assert_eq!(burst(&mut script, 0, 14 + 150), 3 + 10);
}

#[test]
fn a_push_or_a_gap_ends_the_hold() {
    let config = Config { ack_hold: Duration::from_micros(25), ..config() };
    let mut script = Script::established(&config);
    // The first two are acknowledged; the next four would be.
    assert_eq!(burst(&mut script, 0, 4), 1);
    script.receive(4000, 0, Flags::ACK | Flags::PSH, 1000);
    assert_eq!(script.acked(), Some((5000, vec![])));
    assert_eq!(burst(&mut script, 5000, 2), 0);
    script.receive(8000, 0, Flags::ACK, 1000);
    assert_eq!(script.acked(), Some((7000, vec![(8000, 9000)])));
}

// spec: TCP-9293-19
#[test]
fn a_super_frame_counts_as_its_segments() {
    let mut script = Script::established(&config());
    let header = script.header(0, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 3000, 3);
    let range = arrival.payload.clone().unwrap().range;
    script.connection.commit(range).unwrap();
    script.connection.finish_arrival(script.now, &arrival, false);
    assert_eq!(script.acked(), Some((3000, vec![])));
}

#[test]
fn the_first_segments_are_acknowledged_one_by_one() {
    let mut script = Script::established(&Config { quick_acks: 2, ..config() });
    script.receive(0, 0, Flags::ACK, 10);
    assert_eq!(script.acked(), Some((10, vec![])));
    script.receive(10, 0, Flags::ACK, 10);
    assert_eq!(script.acked(), Some((20, vec![])));
    script.receive(20, 0, Flags::ACK, 10);
    assert_eq!(script.acked(), None);
}

#[test]
fn an_acknowledgment_rides_on_data_but_sack_blocks_never_do() {
    let mut script = Script::established(&config());
    script.receive(0, 0, Flags::ACK, 1000);
    script.receive(1000, 0, Flags::ACK, 1000);
    let header = script.send(500);
    assert_eq!(header.ack, seq(2000));
    assert_eq!(script.acked(), None);
    script.receive(3000, 0, Flags::ACK, 1000);
    let header = script.send(500);
    assert!(header.options.sack.is_empty());
    assert_eq!(script.acked(), Some((2000, vec![(3000, 4000)])));
}

/// RFC 2018 §4: the block with the newest segment first, then those reported before.
#[test]
fn the_newest_block_is_reported_first() {
    let mut script = Script::established(&config());
    let mut report = |at: u32| {
        script.receive(at, 0, Flags::ACK, 100);
        script.acked().unwrap().1
    };
    assert_eq!(report(1000), vec![(1000, 1100)]);
    assert_eq!(report(3000), vec![(3000, 3100), (1000, 1100)]);
    assert_eq!(report(5000), vec![(5000, 5100), (3000, 3100), (1000, 1100)]);
    assert_eq!(report(1100), vec![(1000, 1200), (5000, 5100), (3000, 3100)]);
    assert_eq!(report(7000).len(), 4);
    // Each block is reported in at least three acknowledgments; the oldest falls out.
    assert_eq!(report(9000), vec![(9000, 9100), (7000, 7100), (1000, 1200), (5000, 5100)]);
}

#[test]
fn with_timestamps_three_blocks_fit() {
    let mut script = Script::established(&Config { timestamps: true, ..config() });
    for at in [1000, 3000, 5000, 7000] {
        script.receive(at, 0, Flags::ACK, 100);
    }
    let header = script.ack().unwrap();
    assert_eq!(header.options.sack.len(), 3);
    assert_eq!(header.len(), 60);
}

#[test]
fn filling_a_gap_is_acknowledged_at_once() {
    let mut script = Script::established(&config());
    script.receive(100, 0, Flags::ACK, 100);
    assert_eq!(script.acked(), Some((0, vec![(100, 200)])));
    script.receive(0, 0, Flags::ACK, 100);
    assert_eq!(script.acked(), Some((200, vec![])));
}

/// RFC 2883 §4: a duplicate is the first block, once.
#[test]
fn a_duplicate_is_acknowledged_at_once_and_reported() {
    let mut script = Script::established(&config());
    script.receive(0, 0, Flags::ACK, 300);
    assert!(!script.receive(100, 0, Flags::ACK, 100));
    assert_eq!(script.acked(), Some((300, vec![(100, 200)])));
    script.receive(500, 0, Flags::ACK, 100);
    script.acked();
    assert!(!script.receive(500, 0, Flags::ACK, 100));
    assert_eq!(script.acked(), Some((300, vec![(500, 600), (500, 600)])));
}

#[test]
fn without_sack_each_out_of_order_segment_is_acknowledged() {
    let mut script = Script::established(&Config { sack: false, ..config() });
    for at in [1000, 2000, 3000] {
        script.receive(at, 0, Flags::ACK, 1000);
    }
    for _ in 0..3 {
        assert_eq!(script.acked(), Some((0, vec![])));
    }
    assert_eq!(script.acked(), None);
}

/// RFC 5044 appendix A.3: bytes received before are not offered again.
// spec: TCP-9293-21
#[test]
fn only_octets_never_committed_are_missing() {
    let mut script = Script::established(&config());
    script.receive(100, 0, Flags::ACK, 100);
    let header = script.header(50, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 200, 1);
    let payload = arrival.payload.unwrap();
    assert_eq!((payload.skip, payload.range.start.0, payload.range.end.0), (0, 50, 250));
    let missing = script.connection.next_missing(payload.range.clone()).unwrap();
    assert_eq!((missing.start.0, missing.end.0), (50, 100));
    let missing = script.connection.next_missing(missing.end..payload.range.end).unwrap();
    assert_eq!((missing.start.0, missing.end.0), (200, 250));
}

#[test]
fn octets_beyond_the_window_are_cut_off() {
    let mut script = Script::established(&Config { window_bytes: 2000, ..config() });
    let header = script.header(1500, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 1000, 1);
    assert_eq!(arrival.payload.unwrap().range.end.0, 2000);
    let header = script.header(2001, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 1000, 1);
    assert_eq!((arrival.payload, arrival.drop), (None, Some(DropReason::BeyondWindow)));
}

/// RFC 9293 §3.8.6.2.2: the right edge moves in steps, and never back.
// spec: TCP-9293-15, TCP-9293-17
#[test]
fn the_window_opens_in_steps_and_never_shrinks() {
    let mut script = Script::established(&Config { window_bytes: 4000, ..config() });
    script.receive(0, 0, Flags::ACK, 999);
    script.wait_for_timer();
    assert_eq!(script.ack().unwrap().window, 3001);
    script.receive(999, 0, Flags::ACK, 1001);
    script.wait_for_timer();
    assert_eq!(script.ack().map(|header| header.window), Some(4000));
    script.connection.set_receive_window(1000);
    script.receive(2000, 0, Flags::ACK, 1000);
    script.wait_for_timer();
    assert_eq!(script.ack().unwrap().window, 3000, "the right edge stays");
}

#[test]
fn opening_a_closed_window_sends_an_update() {
    let mut script = Script::established(&Config { window_bytes: 1000, ..config() });
    script.connection.set_receive_window(0);
    script.receive(0, 0, Flags::ACK, 1000);
    script.wait_for_timer();
    assert_eq!(script.ack().unwrap().window, 0);
    // A probe with one byte: acknowledged, not taken.
    let header = script.header(1000, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 1, 1);
    assert_eq!((arrival.payload, arrival.drop), (None, Some(DropReason::WindowClosed)));
    assert_eq!(script.acked(), Some((1000, vec![])));
    script.connection.set_receive_window(100);
    assert_eq!(script.ack().map(|header| header.window), Some(100));
    script.connection.set_receive_window(5000);
    assert_eq!(script.ack().map(|header| header.window), Some(5000));
}

#[test]
fn an_acknowledgment_counts_while_our_window_is_closed() {
    let mut script = Script::established(&Config { window_bytes: 1000, ..config() });
    script.connection.set_receive_window(0);
    script.receive(0, 0, Flags::ACK, 1000);
    script.send(10);
    script.receive(1000, 10, Flags::ACK, 1);
    assert_eq!(script.connection.snd_una().0, 10);
}

// spec: TCP-9293-16
#[test]
fn a_closed_window_is_probed_at_growing_intervals_and_kept_while_probes_are_answered() {
    let mut script = Script::established(&config());
    let closed = window(&script, 0, 0);
    script.receive_header(&closed, 0);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
    let start = script.now;
    let mut intervals = Vec::new();
    while script.now - start < Duration::from_secs(3600) {
        intervals.push(script.wait_for_timer());
        let probe = script.transmit().unwrap();
        // No byte of the stream is used: records stay whole.
        assert!(probe.data.is_empty());
        assert_eq!((probe.header.seq, probe.header.flags), (ack(0).plus(u32::MAX), Flags::ACK));
        script.receive_header(&closed, 0);
    }
    assert_eq!(intervals[0], Duration::from_micros(10_100));
    assert_eq!(intervals[1], 2 * intervals[0]);
    assert_eq!(intervals.last(), Some(&Duration::from_secs(60)));
    let open = window(&script, 0, 5000);
    script.receive_header(&open, 0);
    assert_eq!(script.connection.send_budget(script.now).bytes, 5000);
    assert_eq!(script.connection.poll_timeout(), None);
}

#[test]
fn unanswered_probes_end_the_connection_at_r2() {
    let mut script = Script::established(&config());
    let closed = window(&script, 0, 0);
    script.receive_header(&closed, 0);
    script.connection.send_budget(script.now);
    let start = script.now;
    while script.connection.poll_timeout().is_some() {
        script.wait_for_timer();
        script.transmit();
    }
    assert!(script.now - start >= Duration::from_secs(100));
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::TimedOut));
}

/// TCP-A.1-5: a window that is always smaller than a record still makes progress.
#[test]
fn window_below_one_fpdu_is_used_by_the_override_timer() {
    let mut script = Script::established(&Config { window_scaling: false, ..config() });
    // The largest window ever advertised is large: the override timer must expire first.
    script.send(100);
    let small = window(&script, 100, 300);
    script.receive_header(&small, 0);
    let budget = script.connection.send_budget(script.now);
    assert_eq!((budget.bytes, budget.forced), (300, false));
    assert_eq!(script.wait_for_timer(), Duration::from_millis(100));
    let budget = script.connection.send_budget(script.now);
    assert_eq!((budget.bytes, budget.forced), (300, true));
    script.send(300);
    let budget = script.connection.send_budget(script.now);
    assert_eq!((budget.bytes, budget.forced), (0, false));
}

// spec: TCP-9293-15
#[test]
fn a_shrinking_window_is_survived() {
    let mut script = Script::established(&config());
    for _ in 0..5 {
        script.send(1000);
    }
    let shrunk = window(&script, 1000, 500);
    script.receive_header(&shrunk, 0);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
    script.wait_for_rto();
    // Only the first segment, though it reaches beyond the window: it is the probe.
    assert_eq!(script.resent(), vec![(1000, 1000)]);
    let closed = window(&script, 1000, 0);
    for _ in 0..40 {
        script.wait_for_timer();
        script.resent();
        script.receive_header(&closed, 0);
    }
    assert_eq!(script.state(), State::Established, "the peer answers, so it is alive");
}

#[test]
fn a_reordered_older_window_does_not_close_a_newer_one() {
    let mut script = Script::established(&config());
    script.send(100);
    let newer = window(&script, 100, 5000);
    script.receive_header(&newer, 0);
    let older = window(&script, 0, 100);
    script.receive_header(&older, 0);
    assert_eq!(script.connection.send_budget(script.now).bytes, 5000);
}

/// A lone FIN needs no room: a closed window does not keep the connection open for ever.
#[test]
fn a_fin_gets_through_a_window_that_stays_shut() {
    let mut script = Script::established(&config());
    let closed = window(&script, 0, 0);
    script.receive_header(&closed, 0);
    script.connection.close(crate::types::StreamOffset(0));
    assert_eq!(script.transmit(), None);
    script.wait_for_timer();
    assert_eq!(script.transmit().unwrap().header.flags, Flags::FIN | Flags::ACK);
}

/// RFC 7323 §2.4: the window field is rounded down, so a later acknowledgment may advertise a
/// little less than an earlier one. "A TCP receiver must be prepared" for what the earlier one
/// advertised: all of it is accepted.
// spec: TCP-7323-2
#[test]
fn every_advertised_window_is_honoured_despite_rounding() {
    let config = Config { window_bytes: 4 << 20, ..config() };
    let mut script = Script::established(&config);
    // 4 MiB need a shift of 7.
    let (mut at, mut edge_max, mut shrank) = (0_u32, 0_u32, false);
    for len in [1000, 1001, 999, 37, 129, 128, 127, 1, 1447, 1435, 600, 63, 65, 1000, 3, 1001] {
        script.receive(at, 0, Flags::ACK | Flags::PSH, len);
        at += u32::try_from(len).unwrap();
        if script.connection.poll_timeout().is_some() {
            script.wait_for_timer();
        }
        let Some(header) = script.ack() else { continue };
        let edge = at + (u32::from(header.window) << 7);
        shrank |= edge < edge_max;
        edge_max = edge_max.max(edge);
        let mut clone = script.connection.clone();
        let last = script.header(edge_max - 1000, 0, Flags::ACK);
        let arrival = clone.handle_segment(script.now, &last, 1000, 1);
        assert_eq!(arrival.payload.map(|payload| payload.range.end.0), Some(u64::from(edge_max)));
    }
    assert!(shrank, "the lengths are such that rounding shows");
}

/// RFC 9293 §3.10.7.4: the window counts "if SND.UNA =< SEG.ACK", whatever the sequence number.
#[test]
fn the_window_of_an_old_acknowledgment_does_not_count() {
    let mut script = Script::established(&config());
    script.send(100);
    let newer = window(&script, 100, 5000);
    script.receive_header(&newer, 0);
    let older = Header { seq: seq(10), ..window(&script, 0, 200) };
    script.receive_header(&older, 0);
    assert_eq!(script.connection.send_budget(script.now).bytes, 5000);
}
