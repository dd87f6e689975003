use super::script::{Script, ack, config, on_path, seq};
use crate::tcp::{Config, DropReason, Flags, Header, KeepAliveTimes, State, TcpEvent, Timestamps};
use crate::time::Duration;
use crate::types::StreamOffset;

const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);

#[test]
fn the_fin_waits_for_the_octets_before_it() {
    let mut script = Script::established(&config());
    script.send(100);
    script.connection.close(StreamOffset(300));
    assert_eq!(script.transmit(), None);
    assert_eq!(script.connection.send_budget(script.now).bytes, 200);
    script.send(200);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
    let fin = script.transmit().unwrap();
    assert_eq!((fin.header.flags, fin.header.seq), (FIN_ACK, ack(300)));
    assert_eq!(script.state(), State::FinWait1);
    assert_eq!(script.connection.snd_nxt(), StreamOffset(300));
}

/// RFC 9293 §3.6, Figure 12.
#[test]
fn a_normal_close_passes_through_time_wait() {
    let mut script = Script::established(&config());
    script.connection.close(StreamOffset(0));
    script.transmit().unwrap();
    script.receive(0, 1, Flags::ACK, 0);
    assert_eq!(script.state(), State::FinWait2);
    assert!(script.receive(0, 1, Flags::ACK, 10), "the other direction is still open");
    script.receive(10, 1, FIN_ACK, 0);
    assert_eq!(script.state(), State::TimeWait);
    assert_eq!(script.acked(), Some((11, vec![])));
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::PeerFin));
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::Closed));
    // The peer's FIN is retransmitted: it is acknowledged again, and 2·MSL restarts.
    script.sleep(Duration::from_secs(50));
    script.receive(10, 1, FIN_ACK, 0);
    assert_eq!(script.acked(), Some((11, vec![])));
    assert_eq!(script.wait_for_timer(), Duration::from_secs(60));
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.poll_event(), None);
}

/// RFC 9293 §3.6, Figure 13.
#[test]
fn a_simultaneous_close_passes_through_closing() {
    let mut script = Script::established(&config());
    script.connection.close(StreamOffset(0));
    script.transmit().unwrap();
    script.receive(0, 0, FIN_ACK, 0);
    assert_eq!(script.state(), State::Closing);
    assert_eq!(script.acked(), Some((1, vec![])));
    script.receive(1, 1, Flags::ACK, 0);
    assert_eq!(script.state(), State::TimeWait);
}

#[test]
fn the_passive_closer_ends_without_time_wait() {
    let mut script = Script::established(&config());
    script.receive(0, 0, FIN_ACK, 5);
    assert_eq!(script.state(), State::CloseWait);
    assert_eq!(script.acked(), Some((6, vec![])));
    script.send(10);
    script.connection.close(StreamOffset(10));
    assert_eq!(script.transmit().unwrap().header.flags, FIN_ACK);
    assert_eq!(script.state(), State::LastAck);
    script.receive(6, 11, Flags::ACK, 0);
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::PeerFin));
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::Closed));
    assert_eq!(script.connection.poll_timeout(), None);
}

/// RFC 9293 §3.10.7.4: the peer may have left TIME-WAIT while our FIN was lost.
#[test]
fn a_reset_after_both_ends_have_closed_is_no_failure() {
    let mut last_ack = Script::established(&config());
    last_ack.receive(0, 0, FIN_ACK, 0);
    last_ack.connection.close(StreamOffset(0));
    last_ack.transmit().unwrap();
    assert_eq!(last_ack.state(), State::LastAck);
    let mut closing = Script::established(&config());
    closing.connection.close(StreamOffset(0));
    closing.transmit().unwrap();
    closing.receive(0, 0, FIN_ACK, 0);
    assert_eq!(closing.state(), State::Closing);
    for mut script in [last_ack, closing] {
        assert_eq!(script.connection.poll_event(), Some(TcpEvent::PeerFin));
        script.receive(1, 0, Flags::RST, 0);
        assert_eq!(script.state(), State::Closed);
        assert_eq!(script.connection.poll_event(), Some(TcpEvent::Closed));
    }
}

#[test]
fn a_fin_beyond_a_gap_waits_for_the_gap() {
    let mut script = Script::established(&config());
    script.receive(100, 0, FIN_ACK, 50);
    assert_eq!(script.acked(), Some((0, vec![(100, 150)])));
    assert_eq!(script.connection.poll_event(), None);
    script.receive(0, 0, Flags::ACK, 100);
    assert_eq!(script.state(), State::CloseWait);
    assert_eq!(script.acked(), Some((151, vec![])));
}

#[test]
fn a_refused_segment_keeps_its_fin_waiting() {
    let mut script = Script::established(&config());
    let header = script.header(0, 0, FIN_ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 50, 1);
    script.connection.finish_arrival(script.now, &arrival, true);
    assert_eq!(script.state(), State::Established);
    assert_eq!(script.acked(), Some((0, vec![])));
    script.receive(0, 0, FIN_ACK, 50);
    assert_eq!(script.state(), State::CloseWait);
}

#[test]
fn octets_after_the_peers_fin_are_refused() {
    let mut script = Script::established(&config());
    script.receive(0, 0, FIN_ACK, 5);
    let header = script.header(6, 0, Flags::ACK);
    let arrival = script.connection.handle_segment(script.now, &header, 5, 1);
    assert_eq!(arrival.payload, None);
    assert_eq!(arrival.drop, Some(DropReason::AfterFin));
}

#[test]
fn a_lost_fin_is_sent_again() {
    let mut script = Script::established(&config());
    script.send(10);
    script.connection.close(StreamOffset(10));
    script.transmit().unwrap();
    script.receive(0, 10, Flags::ACK, 0);
    assert_eq!(script.state(), State::FinWait1, "the FIN is not acknowledged");
    script.wait_for_timer();
    let again = script.transmit().unwrap();
    assert_eq!((again.header.flags, again.header.seq), (FIN_ACK, ack(10)));
    assert!(again.retransmission && again.data.is_empty());
}

#[test]
fn abort_sends_a_reset_the_peer_accepts() {
    let mut script = Script::established(&config());
    script.send(10);
    script.receive(0, 0, Flags::ACK, 7);
    script.connection.abort();
    assert_eq!(script.state(), State::Closed);
    let reset = script.transmit().unwrap().header;
    assert_eq!((reset.flags, reset.seq, reset.ack), (Flags::RST | Flags::ACK, ack(10), seq(7)));
    assert_eq!((script.transmit(), script.ack()), (None, None));
    assert_eq!(script.connection.poll_timeout(), None);
    let arrival =
        script.connection.handle_segment(script.now, &script.header(7, 0, Flags::ACK), 1, 1);
    assert_eq!(arrival.drop, Some(DropReason::Closed));
}

#[test]
fn time_wait_gives_way_to_a_later_incarnation_only() {
    let mut script = Script::established(&config());
    script.connection.close(StreamOffset(0));
    script.transmit().unwrap();
    script.receive(0, 1, FIN_ACK, 0);
    assert_eq!(script.state(), State::TimeWait);
    let syn = |at| Header { seq: seq(at), flags: Flags::SYN, ..script.header(0, 0, Flags::SYN) };
    assert!(script.connection.may_be_replaced_by(&syn(1000)));
    assert!(!script.connection.may_be_replaced_by(&syn(0)));
    let not_syn = Header { flags: Flags::ACK, ..syn(1000) };
    assert!(!script.connection.may_be_replaced_by(&not_syn));
}

#[test]
fn closing_before_the_handshake_ends_sends_the_fin_after_it() {
    let config = config();
    let now = crate::time::Instant::ZERO;
    let mut opening = crate::tcp::Tcb::connect(now, &on_path(config), 1, 2, ack(0), 0);
    opening.close(StreamOffset(0));
    assert_eq!(opening.state(), State::Closed);
    assert_eq!(opening.poll_event(), Some(TcpEvent::Closed));
}

/// RFC 8985 §7.3: the probe repeats the last segment with all its flags.
#[test]
fn a_probe_of_a_lost_tail_carries_the_fin() {
    let mut script = Script::established(&config());
    script.send(10);
    script.connection.close(StreamOffset(10));
    assert_eq!(script.transmit().unwrap().header.flags, FIN_ACK);
    script.wait_for_timer();
    let again = script.transmit().unwrap();
    assert_eq!(script.connection.counters().loss_probes, 1);
    assert!(again.retransmission);
    assert_eq!((again.header.flags, again.header.seq), (FIN_ACK, ack(10)));
}

fn in_time_wait(config: &Config) -> Script {
    let mut script = Script::established(config);
    script.connection.close(StreamOffset(0));
    script.transmit().unwrap();
    script.receive(0, 1, FIN_ACK, 0);
    assert_eq!(script.state(), State::TimeWait);
    script
}

/// RFC 6191 §2: a later timestamp is enough, whatever the initial sequence number; with an equal
/// one, a later number is required.
#[test]
fn time_wait_goes_by_timestamps_when_there_are_any() {
    let mut script = in_time_wait(&Config { timestamps: true, ..config() });
    while script.ack().is_some() {}
    let syn = |at, value| {
        let mut syn = Header { seq: seq(at), ..script.header(0, 0, Flags::SYN) };
        syn.options.timestamps = Some(Timestamps { value, echo: 0 });
        syn
    };
    let may = |at, value| script.connection.may_be_replaced_by(&syn(at, value));
    assert!(may(0, 101), "a later timestamp");
    assert!(!may(1000, 1) && !may(1000, 99), "an earlier timestamp, though the number is later");
    assert!(!may(0, 100) && !may(0, 99), "neither");
    assert!(
        may(2, 100) && !may(1, 100),
        "the number after the peer's FIN is the first that is later"
    );
    let mut bare = syn(0, 0);
    bare.options.timestamps = None;
    assert!(!script.connection.may_be_replaced_by(&bare));
}

/// Only the 2·MSL timer runs in TIME-WAIT.
#[test]
fn time_wait_stops_every_other_timer() {
    let script = in_time_wait(&Config {
        keepalive: Some(KeepAliveTimes::after(Duration::from_secs(1))),
        ..config()
    });
    assert_eq!(script.connection.poll_timeout(), Some(script.now + Duration::from_secs(60)));
}

/// RFC 9293 §3.10.5: the peer has closed in order; it gets no RST.
#[test]
fn aborting_in_time_wait_is_silent() {
    let mut script = in_time_wait(&config());
    while script.ack().is_some() {}
    script.connection.abort();
    assert_eq!((script.state(), script.transmit()), (State::Closed, None));
}

/// RFC 9293 §3.10.7.4, TIME-WAIT: "If the RST bit is set, then enter the CLOSED state". It must be
/// exact, as in any state (RFC 5961 §3), and the application has its event already.
#[test]
fn an_exact_reset_ends_time_wait_and_no_other_does() {
    let mut script = in_time_wait(&config());
    while script.connection.poll_event().is_some() {}
    for at in [0, 2, 500] {
        script.receive(at, 1, Flags::RST, 0);
        assert_eq!(script.state(), State::TimeWait, "{at}");
    }
    script.receive(1, 1, Flags::RST, 0);
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.poll_event(), None);
    assert_eq!(script.connection.poll_timeout(), None);
}
