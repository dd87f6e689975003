use std::sync::Arc;

use super::script::{IRS, ISS, Script, ack, config, on_path, seq};
use crate::tcp::{
    Config, DropReason, Flags, Header, Options, PathConfig, SeqNum, State, Tcb, TcpEvent,
    Timestamps,
};
use crate::time::{Duration, Instant};

fn connecting(config: &Config) -> (Instant, Tcb) {
    let now = Instant::ZERO + Duration::from_secs(1);
    (now, Tcb::connect(now, &on_path(*config), 7, 9, ISS, 0))
}

fn answer(flags: Flags, number: SeqNum) -> Header {
    Header {
        src_port: 9,
        dst_port: 7,
        seq: IRS,
        ack: number,
        flags,
        window: 5000,
        ..Header::default()
    }
}

// spec: TCP-A.3-6
#[test]
fn a_syn_carries_every_option_we_want() {
    let config = Config { timestamps: true, window_bytes: 4 << 20, ..config() };
    let (now, mut connection) = connecting(&config);
    let syn = connection.poll_transmit(now).unwrap().header;
    assert_eq!((syn.flags, syn.seq, syn.ack), (Flags::SYN, ISS, SeqNum(0)));
    assert_eq!(syn.options.mss, Some(1000));
    assert_eq!(syn.options.window_scale, Some(7));
    assert!(syn.options.sack_permitted);
    assert_eq!(syn.options.timestamps, Some(Timestamps { value: 1000, echo: 0 }));
    assert_eq!(connection.poll_transmit(now), None);
}

/// RFC 9293 §3.5, Figure 6.
#[test]
fn the_three_way_handshake_establishes_and_acknowledges() {
    let (now, mut connection) = connecting(&config());
    connection.poll_transmit(now);
    connection.handle_segment(now, &answer(Flags::SYN | Flags::ACK, ack(0)), 0, 1);
    assert_eq!(connection.state(), State::Established);
    assert_eq!(connection.poll_event(), Some(TcpEvent::Established));
    let header = connection.poll_ack(now).unwrap();
    assert_eq!((header.flags, header.seq, header.ack), (Flags::ACK, ack(0), seq(0)));
}

/// RFC 7323 §2.2, §3.2, RFC 2018 §2: an option is used only if both SYNs carry it.
#[test]
fn options_the_peer_does_not_offer_are_not_used() {
    let config = Config { timestamps: true, window_bytes: 4 << 20, ..config() };
    let (now, mut connection) = connecting(&config);
    connection.poll_transmit(now);
    connection.handle_segment(now, &answer(Flags::SYN | Flags::ACK, ack(0)), 0, 1);
    let header = connection.poll_ack(now).unwrap();
    assert_eq!(header.options, Options::default());
    // The window is not scaled, so it is as large as the field allows.
    assert_eq!(header.window, 65_535);
    // RFC 9293 MUST-15: 536 without an MSS option.
    assert_eq!(connection.emss(), 536);
}

// spec: TCP-A.2-6, TCP-9293-3
#[test]
fn the_emss_subtracts_constant_options_and_is_a_multiple_of_eight() {
    for (timestamps, expected) in [(true, 1448), (false, 1456)] {
        let config = Config { timestamps, ..Config::default() };
        let config = Arc::new(PathConfig::new(config, 1500, 20));
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut connection = Tcb::connect(now, &config, 7, 9, ISS, 0);
        let mut syn_ack = answer(Flags::SYN | Flags::ACK, ack(0));
        syn_ack.options.mss = Some(1460);
        syn_ack.options.timestamps = Some(Timestamps { value: 1, echo: 1000 });
        connection.handle_segment(now, &syn_ack, 0, 1);
        assert_eq!(connection.emss(), expected);
        connection.set_path_mtu(now, 1380);
        assert_eq!(connection.emss(), if timestamps { 1344 } else { 1360 });
    }
}

/// RFC 7323 §2.3: "the TCP implementation MUST [..] use 14 instead of the specified value".
// spec: TCP-7323-1
#[test]
fn a_window_shift_above_fourteen_counts_as_fourteen() {
    let (now, mut connection) = connecting(&config());
    let mut syn_ack = answer(Flags::SYN | Flags::ACK, ack(0));
    syn_ack.options.window_scale = Some(15);
    connection.handle_segment(now, &syn_ack, 0, 1);
    let header = Header { window: 1, ..answer(Flags::ACK, ack(0)) };
    let header = Header { seq: seq(0), ..header };
    connection.handle_segment(now, &header, 0, 1);
    // The window of 5000 in the SYN was not scaled; the new one is 1 << 14, and larger.
    assert_eq!(connection.snd.window_room(), 1 << 14);
}

/// RFC 9293 §3.5, Figure 8.
#[test]
fn simultaneous_open_establishes_both_ends() {
    let now = Instant::ZERO + Duration::from_secs(1);
    let mut a = Tcb::connect(now, &on_path(config()), 7, 9, ISS, 0);
    let mut b = Tcb::connect(now, &on_path(config()), 9, 7, IRS, 0);
    let syn_a = a.poll_transmit(now).unwrap().header;
    let syn_b = b.poll_transmit(now).unwrap().header;
    a.handle_segment(now, &syn_b, 0, 1);
    b.handle_segment(now, &syn_a, 0, 1);
    assert_eq!((a.state(), b.state()), (State::SynReceived, State::SynReceived));
    let syn_ack_a = a.poll_transmit(now).unwrap().header;
    let syn_ack_b = b.poll_transmit(now).unwrap().header;
    assert_eq!(syn_ack_a.flags, Flags::SYN | Flags::ACK);
    a.handle_segment(now, &Header { window: 1234, ..syn_ack_b }, 0, 1);
    b.handle_segment(now, &syn_ack_a, 0, 1);
    assert_eq!((a.state(), b.state()), (State::Established, State::Established));
    assert_eq!(a.snd.window_room(), 1234, "the window is that of the last segment");
}

#[test]
fn a_lost_syn_ack_is_sent_again_when_the_syn_comes_again() {
    let now = Instant::ZERO + Duration::from_secs(1);
    let syn = answer(Flags::SYN, SeqNum(0));
    let mut connection = Tcb::accept(now, &on_path(config()), &syn, ISS, 0);
    assert!(connection.poll_transmit(now).is_some());
    assert_eq!(connection.poll_transmit(now), None);
    connection.handle_segment(now, &syn, 0, 1);
    let again = connection.poll_transmit(now).unwrap();
    assert_eq!(again.header.flags, Flags::SYN | Flags::ACK);
    assert!(again.retransmission);
}

/// RFC 9293 MUST-23: R2 for a SYN is at least 3 minutes.
// spec: TCP-9293-12
#[test]
fn an_unanswered_syn_is_repeated_and_given_up_after_three_minutes() {
    let (start, mut connection) = connecting(&config());
    let mut syns = 0;
    let mut now = start;
    loop {
        while let Some(outgoing) = connection.poll_transmit(now) {
            assert_eq!(outgoing.header.flags, Flags::SYN);
            assert_eq!(outgoing.retransmission, syns > 0);
            syns += 1;
        }
        let Some(next) = connection.poll_timeout() else { break };
        now = next;
        connection.handle_timeout(now);
    }
    assert_eq!(now - start, Duration::from_secs(180));
    assert_eq!(syns, 8, "at 0, 1, 3, 7, 15, 31, 63 and 123 s");
    assert_eq!(connection.poll_event(), Some(TcpEvent::TimedOut));
    assert_eq!(connection.state(), State::Closed);
}

/// RFC 5681 §3.1 and RFC 6298 §5.7.
// spec: TCP-5681-1
#[test]
fn after_a_lost_syn_one_segment_goes_out_and_the_timeout_is_three_seconds() {
    let (now, mut connection) = connecting(&config());
    connection.poll_transmit(now);
    let now = connection.poll_timeout().unwrap();
    connection.handle_timeout(now);
    connection.poll_transmit(now);
    let mut syn_ack = answer(Flags::SYN | Flags::ACK, ack(0));
    syn_ack.options.mss = Some(1000);
    connection.handle_segment(now, &syn_ack, 0, 1);
    assert_eq!(connection.send_budget(now).bytes, 1000);
    connection.record_sent(now, 100, 100, true);
    let deadline = connection.poll_timeout().unwrap();
    assert_eq!(deadline - now, Duration::from_secs(3));
}

/// RFC 9293 §3.10.7.3.
#[test]
fn in_syn_sent_a_wrong_ack_is_reset_and_a_blind_reset_ignored() {
    let (now, mut connection) = connecting(&config());
    connection.poll_transmit(now);
    let arrival = connection.handle_segment(now, &answer(Flags::RST, ack(0)), 0, 1);
    assert_eq!(arrival.drop, Some(DropReason::BlindReset));
    connection.handle_segment(now, &answer(Flags::SYN | Flags::ACK, ack(77)), 0, 1);
    let reset = connection.poll_transmit(now).unwrap().header;
    assert_eq!((reset.flags, reset.seq), (Flags::RST, ack(77)));
    assert_eq!(connection.state(), State::SynSent);
    connection.handle_segment(now, &answer(Flags::RST | Flags::ACK, ack(0)), 0, 1);
    assert_eq!(connection.poll_event(), Some(TcpEvent::Refused));
    assert_eq!(connection.state(), State::Closed);
}

#[test]
fn a_syn_received_connection_is_refused_by_a_bad_ack_and_ended_by_a_reset() {
    let now = Instant::ZERO + Duration::from_secs(1);
    let mut connection =
        Tcb::accept(now, &on_path(config()), &answer(Flags::SYN, SeqNum(0)), ISS, 0);
    connection.poll_transmit(now);
    let bad = Header { seq: seq(0), ..answer(Flags::ACK, ack(5)) };
    connection.handle_segment(now, &bad, 0, 1);
    let reset = connection.poll_transmit(now).unwrap().header;
    assert_eq!((reset.flags, reset.seq), (Flags::RST, ack(5)));
    assert_eq!(connection.state(), State::SynReceived);
    connection.handle_segment(now, &Header { flags: Flags::RST, ..bad }, 0, 1);
    assert_eq!(connection.poll_event(), Some(TcpEvent::Reset));
}

#[test]
fn a_repeated_syn_ack_is_acknowledged_again() {
    let (now, mut connection) = connecting(&config());
    let syn_ack = answer(Flags::SYN | Flags::ACK, ack(0));
    connection.handle_segment(now, &syn_ack, 0, 1);
    assert!(connection.poll_ack(now).is_some());
    assert_eq!(connection.poll_ack(now), None);
    connection.handle_segment(now, &syn_ack, 0, 1);
    assert!(connection.poll_ack(now).is_some());
}

#[test]
fn data_with_the_last_ack_of_the_handshake_is_taken() {
    let now = Instant::ZERO + Duration::from_secs(1);
    let mut connection =
        Tcb::accept(now, &on_path(config()), &answer(Flags::SYN, SeqNum(0)), ISS, 0);
    connection.poll_transmit(now);
    let first = Header { seq: seq(0), ..answer(Flags::ACK, ack(0)) };
    let arrival = connection.handle_segment(now, &first, 20, 1);
    assert_eq!(arrival.payload.unwrap().range.end.0, 20);
    assert_eq!(connection.state(), State::Established);
}

#[test]
fn the_peers_timestamp_is_echoed() {
    let config = Config { timestamps: true, ..config() };
    let mut script = Script::established(&config);
    script.peer_clock = 150;
    script.receive(0, 0, Flags::ACK, 1000);
    script.receive(1000, 0, Flags::ACK, 1000);
    let echo = script.ack().unwrap().options.timestamps.unwrap().echo;
    assert_eq!(echo, 150);
}

/// Returns a connection in SYN-RECEIVED, opened by us: both SYNs have crossed.
fn crossed() -> (Instant, Tcb) {
    let (now, mut connection) = connecting(&config());
    connection.poll_transmit(now);
    connection.handle_segment(now, &answer(Flags::SYN, SeqNum(0)), 0, 1);
    assert_eq!(connection.state(), State::SynReceived);
    connection.poll_transmit(now);
    (now, connection)
}

/// RFC 5961 §4.2: a SYN that is no retransmission of the peer's is challenged, and changes nothing.
#[test]
fn another_syn_in_syn_received_is_challenged() {
    for flags in [Flags::SYN, Flags::SYN | Flags::ACK] {
        let (now, mut connection) = crossed();
        let forged = Header { seq: IRS.plus(7), ..answer(flags, ack(0)) };
        let arrival = connection.handle_segment(now, &forged, 0, 1);
        assert_eq!(arrival.drop, Some(DropReason::UnexpectedSyn));
        assert_eq!(connection.state(), State::SynReceived);
        let challenge = connection.poll_transmit(now).unwrap().header;
        assert_eq!((challenge.flags, challenge.ack), (Flags::SYN | Flags::ACK, seq(0)));
    }
}

/// RFC 9293 §3.10.7.4: a RST in SYN-RECEIVED means "connection refused" to the end that opened
/// actively.
// spec: TCP-9293-5
#[test]
fn a_reset_of_a_simultaneous_open_is_a_refusal() {
    let (now, mut connection) = crossed();
    let reset = Header { seq: seq(0), ..answer(Flags::RST, ack(0)) };
    connection.handle_segment(now, &reset, 0, 1);
    assert_eq!(connection.poll_event(), Some(TcpEvent::Refused));
}

/// Karn: the answer may be to the first SYN or to the second.
#[test]
fn retransmitted_syn_gives_no_round_trip_sample() {
    for times in [1, 2] {
        let (mut now, mut connection) = connecting(&config());
        connection.poll_transmit(now);
        for _ in 1..times {
            now = connection.poll_timeout().unwrap();
            connection.handle_timeout(now);
            connection.poll_transmit(now);
        }
        now = now + Duration::from_millis(3);
        connection.handle_segment(now, &answer(Flags::SYN | Flags::ACK, ack(0)), 0, 1);
        let expected = (times == 1).then(|| Duration::from_millis(3));
        assert_eq!(connection.srtt(), expected);
    }
}

/// RFC 7323 §2.2: "The window field in a segment where the SYN bit is set [..] MUST NOT be scaled."
// spec: TCP-7323-1
#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let (now, mut connection) = connecting(&config());
    let mut syn_ack = answer(Flags::SYN | Flags::ACK, ack(0));
    syn_ack.options.window_scale = Some(7);
    connection.handle_segment(now, &syn_ack, 0, 1);
    assert_eq!(connection.snd.window_room(), 5000);
}

/// RFC 5927 §4.1: an ICMP message that quotes a SYN is accepted once a SYN was sent, and ends the
/// connection only while it is opening (§5.2).
#[test]
fn an_icmp_error_ends_only_a_connection_that_is_opening() {
    let (now, mut connection) = connecting(&config());
    assert!(!connection.is_unanswered(ISS));
    connection.poll_transmit(now);
    assert!(connection.is_unanswered(ISS) && !connection.is_unanswered(ISS.plus(1)));
    let mut open = connection.clone();
    for event in [TcpEvent::Refused, TcpEvent::Unreachable] {
        let mut connection = connection.clone();
        assert!(connection.give_up_opening(event));
        assert_eq!(connection.poll_event(), Some(event));
    }
    open.handle_segment(now, &answer(Flags::SYN | Flags::ACK, ack(0)), 0, 1);
    assert!(!open.is_unanswered(ISS));
    assert!(!open.give_up_opening(TcpEvent::Refused));
    assert_eq!(open.state(), State::Established);
}
