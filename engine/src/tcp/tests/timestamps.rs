//! Timestamps: old segments, and updates of TS.Recent (RFC 7323 §4, §5).

use super::script::{Script, ack, config, on_path, seq};
use crate::tcp::{Arrival, Config, DropReason, Flags, Header, Tcb, Timestamps};
use crate::time::{Duration, Instant};

fn with_timestamps() -> Config {
    Config { timestamps: true, ..config() }
}

/// Ten segments in flight, and the peer's clock at 200.
fn ten_in_flight() -> Script {
    let mut script = Script::established(&with_timestamps());
    for _ in 0..10 {
        script.send(1000);
    }
    script.peer_clock = 200;
    script.receive(0, 0, Flags::ACK, 100);
    script.receive(100, 0, Flags::ACK, 0);
    script.wait_for_timer();
    script.ack().unwrap();
    script
}

fn handle(script: &mut Script, header: &Header, len: usize) -> Arrival {
    script.connection.handle_segment(script.now, header, len, 1)
}

/// A pure acknowledgment of SND.UNA that is late by `ticks`, and reports the second segment.
fn late_ack(script: &Script, ticks: u32) -> Header {
    let mut header = script.header(100, 0, Flags::ACK);
    header.options.timestamps = Some(Timestamps { value: 200 - ticks, echo: 0 });
    header.options.sack.push((ack(1000), ack(2000)));
    header
}

/// The rule is Linux's, beyond RFC 7323: reordering on the way back loses no SACK blocks and causes
/// no traffic.
#[test]
fn an_overtaken_acknowledgment_is_taken_despite_its_timestamp() {
    let mut script = ten_in_flight();
    let late = late_ack(&script, 10);
    assert_eq!(handle(&mut script, &late, 0).drop, None);
    assert_eq!(script.connection.snd.board.sacked_bytes(), 1000);
    assert_eq!(script.ack(), None);
    // TS.Recent does not go back: a segment beyond a gap, which does not move it either, is
    // answered.
    script.peer_clock = 210;
    script.receive(5000, 0, Flags::ACK, 100);
    assert_eq!(script.ack().unwrap().options.timestamps.unwrap().echo, 200);
}

#[test]
fn everything_else_with_an_old_timestamp_is_dropped_and_answered() {
    let changes: [fn(&mut Header); 8] = [
        |header| header.flags |= Flags::FIN,
        |header| header.flags = Flags::PSH,
        |header| header.seq = seq(99),
        |header| header.seq = seq(101),
        |header| header.ack = ack(1000),
        |header| header.ack = ack(0).plus(u32::MAX),
        |header| header.window = 60_001,
        |header| header.window = 0,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut script = ten_in_flight();
        let mut late = late_ack(&script, 1);
        change(&mut late);
        assert_eq!(handle(&mut script, &late, 0).drop, Some(DropReason::Paws), "change {index}");
        assert_eq!(script.connection.snd.board.sacked_bytes(), 0);
        assert!(script.ack().is_some(), "change {index}");
    }
    let mut script = ten_in_flight();
    let late = late_ack(&script, 1);
    assert_eq!(handle(&mut script, &late, 1).drop, Some(DropReason::Paws), "it has data");
    // The retransmission timeout is 10.1 ms.
    let late = late_ack(&script, 11);
    assert_eq!(handle(&mut script, &late, 0).drop, Some(DropReason::Paws), "it is too late");
}

/// An ACK that is older than the peer's SYN establishes nothing.
#[test]
fn an_old_timestamp_ends_no_handshake() {
    let now = Instant::ZERO + Duration::from_secs(5000);
    let template = Script::established(&with_timestamps());
    let mut syn = template.header(u32::MAX, 0, Flags::SYN);
    syn.options.timestamps = Some(Timestamps { value: 200, echo: 0 });
    let mut connection = Tcb::accept(now, &on_path(with_timestamps()), &syn, super::script::ISS, 0);
    connection.poll_transmit(now);
    let mut last = template.header(0, 0, Flags::ACK);
    last.window = syn.window;
    last.options.timestamps = Some(Timestamps { value: 199, echo: 0 });
    let arrival = connection.handle_segment(now, &last, 0, 1);
    assert_eq!(arrival.drop, Some(DropReason::Paws));
}

/// RFC 5961 §5.2 before RFC 7323 §4.3: a sender that does not know the acknowledgment number cannot
/// make the peer's timestamps old.
#[test]
fn a_segment_whose_acknowledgment_is_impossible_leaves_ts_recent() {
    for flags in [Flags::ACK, Flags::PSH] {
        let mut script = Script::established(&with_timestamps());
        script.receive(0, 0, Flags::ACK, 100);
        script.wait_for_timer();
        script.ack().unwrap();
        let mut forged = script.header(50, 0x5000_0000, flags);
        forged.options.timestamps = Some(Timestamps { value: 0x7000_0000, echo: 0 });
        let dropped = handle(&mut script, &forged, 100).drop;
        let reasons = [DropReason::AckOutOfRange, DropReason::AckMissing];
        assert!(dropped.is_some_and(|reason| reasons.contains(&reason)), "{dropped:?}");
        script.sleep(Duration::from_secs(3600));
        assert!(script.receive(100, 0, Flags::ACK, 100), "the peer goes on");
    }
}

/// §5.4: a tick of 1 ms; the clock neither stops nor goes back, even at its wrap.
// spec: TCP-7323-6
#[test]
fn the_timestamp_clock_ticks_every_millisecond() {
    let mut script = Script::established(&with_timestamps());
    let value = |script: &mut Script, at: u32| {
        script.receive(at, 0, Flags::ACK | Flags::PSH, 2000);
        script.ack().unwrap().options.timestamps.unwrap().value
    };
    let mut last = value(&mut script, 0);
    for step in 1..=20 {
        script.sleep(Duration::from_micros(500));
        let next = value(&mut script, step * 2000);
        assert!(next.wrapping_sub(last) <= 1);
        last = next;
    }
    let before = value(&mut script, 42_000);
    script.sleep(Duration::from_millis(u64::from(u32::MAX)));
    script.peer_clock = script.peer_clock.wrapping_add(u32::MAX);
    assert_eq!(value(&mut script, 44_000), before.wrapping_sub(1));
}

/// An echo that was never sent, or is hours old, is no sample.
#[test]
fn an_impossible_echo_gives_no_sample() {
    for offset in [1, 1000, 0_u32.wrapping_sub(1 << 24)] {
        let mut script = Script::established(&with_timestamps());
        script.send(1000);
        script.wait_for_rto();
        script.resent();
        let srtt = script.connection.srtt();
        let clock = u32::try_from(script.now.as_nanos() / 1_000_000).unwrap();
        let mut header = script.header(0, 1000, Flags::ACK);
        header.options.timestamps =
            Some(Timestamps { value: 100, echo: clock.wrapping_add(offset) });
        script.receive_header(&header, 0);
        assert_eq!(script.connection.snd_una().0, 1000);
        assert_eq!(script.connection.srtt(), srtt, "{offset}");
    }
}
