//! Explicit congestion notification (RFC 3168, RFC 8257).

use super::path::{Network, Path};
use super::script::{IRS, Script, ack, config, on_path};
use crate::tcp::{Config, CongestionKind, Ecn, EcnUse, Flags, Header, State, Tcb};
use crate::time::{Duration, Instant};

const SETUP: Flags = Flags::ECE.union(Flags::CWR);

/// A connection with ECN at both ends.
fn agreed(config: &Config) -> Script {
    let mut script = Script::established_by(config, Flags::SYN | SETUP);
    assert_eq!(script.send(1000).ecn, Ecn::Capable0);
    script.sleep(Duration::from_micros(100));
    script.receive(0, 1000, Flags::ACK, 0);
    script
}

fn data(script: &mut Script, at: u32, flags: Flags, ecn: Ecn) {
    let header = Header { ecn, ..script.header(at, 1000, Flags::ACK | flags) };
    script.receive_header(&header, 1000);
}

/// RFC 3168 §6.1.1: the side that offers, the side that answers, and segments without ECN.
// spec: TCP-9293-11
#[test]
fn ecn_is_agreed_on_only_when_both_syns_say_so() {
    let ask = Config { ecn: EcnUse::Ask, ..config() };
    let answers =
        [(Flags::ECE, true), (Flags::empty(), false), (SETUP, false), (Flags::CWR, false)];
    for (bits, agreed) in answers {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut opening = Tcb::connect(now, &on_path(ask), 7, 9, ack(0), 0);
        let syn = opening.poll_transmit(now).unwrap().header;
        assert_eq!((syn.flags, syn.ecn), (Flags::SYN | SETUP, Ecn::NotCapable));
        let answer = Header {
            src_port: 9,
            dst_port: 7,
            seq: IRS,
            ack: ack(1),
            flags: Flags::SYN | Flags::ACK | bits,
            window: 1000,
            ..Header::default()
        };
        opening.handle_segment(now, &answer, 0, 1);
        assert_eq!(opening.state(), State::Established);
        let header = opening.record_sent(now, 100, 100, true);
        assert_eq!(header.ecn == Ecn::Capable0, agreed, "{bits:?}");
    }
    for (choice, bits, agreed) in [
        (EcnUse::Accept, SETUP, true),
        (EcnUse::Accept, Flags::ECE, false),
        (EcnUse::Off, SETUP, false),
    ] {
        let config = Config { ecn: choice, ..config() };
        let mut script = Script::established_by(&config, Flags::SYN | bits);
        assert_eq!(script.send(100).ecn == Ecn::Capable0, agreed, "{choice:?} {bits:?}");
    }
}

/// RFC 3168 §6.1.1.1.
#[test]
fn retransmitted_syn_does_not_offer_ecn() {
    let ask = Config { ecn: EcnUse::Ask, ..config() };
    let now = Instant::ZERO;
    let mut opening = Tcb::connect(now, &on_path(ask), 7, 9, ack(0), 0);
    opening.poll_transmit(now).unwrap();
    let later = opening.poll_timeout().unwrap();
    opening.handle_timeout(later);
    assert_eq!(opening.poll_transmit(later).unwrap().header.flags, Flags::SYN);
}

/// RFC 3168 §6.1.3: ECE until CWR arrives.
#[test]
fn a_mark_is_echoed_until_the_peer_has_reduced_its_window() {
    let mut script = agreed(&config());
    let echoes = |script: &mut Script| {
        let header = script.ack().unwrap();
        assert_eq!(header.ecn, Ecn::NotCapable, "pure acknowledgments are not ECN-capable");
        header.flags.contains(Flags::ECE)
    };
    let mut at = 0;
    let mut two = |script: &mut Script, flags, ecn| {
        data(script, at, flags, ecn);
        data(script, at + 1000, Flags::empty(), Ecn::Capable0);
        at += 2000;
        echoes(script)
    };
    assert!(!two(&mut script, Flags::empty(), Ecn::Capable0));
    assert!(two(&mut script, Flags::empty(), Ecn::Experienced));
    assert!(two(&mut script, Flags::empty(), Ecn::Capable0));
    assert!(!two(&mut script, Flags::CWR, Ecn::Capable0));
    assert!(two(&mut script, Flags::CWR, Ecn::Experienced), "a CWR segment marked itself");
}

/// RFC 3168 §6.1.2: once per window, and the next new data carries CWR.
#[test]
fn an_echo_halves_the_window_once_and_is_answered_with_cwr() {
    let mut script = agreed(&Config { congestion: CongestionKind::NewReno, ..config() });
    for _ in 0..8 {
        script.send(1000);
    }
    let before = script.connection.cwnd();
    script.sleep(Duration::from_micros(100));
    script.receive(0, 2000, Flags::ACK | Flags::ECE, 0);
    assert_eq!(script.connection.cwnd(), 3500, "half of what was in flight; was {before}");
    // For all data in flight at that time: the peer does not know of the reduction.
    for acked in [3000, 8000, 9000] {
        script.receive(0, acked, Flags::ACK | Flags::ECE, 0);
        assert_eq!(script.connection.cwnd(), 3500, "{acked}");
    }
    let budget = script.connection.send_budget(script.now).bytes;
    assert_eq!(budget, 1000, "CWR is on one segment only");
    assert!(script.send(1000).flags.contains(Flags::CWR));
    assert!(!script.send(1000).flags.contains(Flags::CWR));
    // Data sent after the reduction is a new window.
    script.receive(0, 10_000, Flags::ACK | Flags::ECE, 0);
    assert!(script.connection.cwnd() < 3500);
}

#[test]
fn retransmissions_are_not_ecn_capable() {
    let mut script = agreed(&config());
    script.send(1000);
    script.wait_for_timer();
    let again = script.transmit().unwrap();
    assert!(again.retransmission && again.header.ecn == Ecn::NotCapable);
}

#[test]
fn without_agreement_marks_and_echoes_mean_nothing() {
    let mut script = Script::established(&config());
    script.send(1000);
    script.sleep(Duration::from_micros(100));
    script.receive(0, 1000, Flags::ACK | Flags::ECE, 0);
    assert!(script.connection.cwnd() >= 10_000);
    data(&mut script, 0, Flags::empty(), Ecn::Experienced);
    data(&mut script, 1000, Flags::empty(), Ecn::Experienced);
    assert_eq!(script.ack().unwrap().flags, Flags::ACK);
}

/// RFC 8257 §3.2: data before a change is acknowledged first, with its own mark.
#[test]
fn dctcp_echoes_marks_segment_by_segment() {
    let config = Config { congestion: CongestionKind::Dctcp, ..config() };
    let mut script = agreed(&config);
    data(&mut script, 0, Flags::empty(), Ecn::Capable0);
    assert_eq!(script.ack(), None, "delayed");
    data(&mut script, 1000, Flags::empty(), Ecn::Experienced);
    let acks: Vec<_> = std::iter::from_fn(|| script.ack())
        .map(|header| {
            (header.ack.distance_from(super::script::seq(0)), header.flags, header.window)
        })
        .collect();
    let right_edge = |(number, _, window): &(i32, Flags, u16)| *number + i32::from(*window);
    assert_eq!((acks[0].0, acks[0].1), (1000, Flags::ACK));
    assert_eq!((acks[1].0, acks[1].1), (2000, Flags::ACK | Flags::ECE));
    assert_eq!(right_edge(&acks[0]), right_edge(&acks[1]), "the window does not shrink");
}

#[test]
fn the_window_beside_an_earlier_mark_is_scaled() {
    let congestion = CongestionKind::Dctcp;
    let mut script = agreed(&Config { congestion, window_bytes: 4 << 20, ..config() });
    // Odd lengths would be rounded: 128 bytes are one unit of the window field.
    let arrive = |script: &mut Script, at, ecn| {
        let header = Header { ecn, ..script.header(at, 0, Flags::ACK) };
        script.receive_header(&header, 1280);
    };
    arrive(&mut script, 0, Ecn::Capable0);
    arrive(&mut script, 1280, Ecn::Experienced);
    let (early, late) = (script.ack().unwrap(), script.ack().unwrap());
    assert_eq!(late.ack.distance_from(early.ack), 1280);
    assert_eq!(early.window - late.window, 10);
}

/// A queue that marks stays short, and nothing is lost.
#[test]
fn with_marks_a_transfer_fills_the_path_without_loss() {
    for (congestion, round_trip_us, mark_us) in
        [(CongestionKind::Cubic, 20_000, 5000), (CongestionKind::Dctcp, 200, 100)]
    {
        let config = Config { congestion, ecn: EcnUse::Ask, ..Config::default() };
        let round_trip = Duration::from_micros(round_trip_us);
        let path = Path {
            round_trip,
            queue: Duration::from_millis(40),
            mark_above: Some(Duration::from_micros(mark_us)),
            ..Path::wan(1)
        };
        let mut network = Network::new(path);
        let flow = network.add(&config, u64::MAX / 4, Duration::ZERO);
        network.run_for(Duration::from_secs(3));
        let delivered = network.flows[flow].delivered();
        assert!(network.marks > 0);
        assert_eq!(network.overflows, 0);
        assert_eq!(network.flows[flow].counters().retransmissions, 0);
        assert!(delivered > 3 * 80_000_000, "{congestion:?}: {delivered} octets");
        let srtt = network.flows[flow].sender.srtt().unwrap();
        assert!(srtt < 2 * round_trip + Duration::from_micros(mark_us), "{srtt:?}");
    }
}

/// RFC 3168 §6.1.2: a recovery has reduced the window already.
#[test]
fn an_echo_in_a_recovery_reduces_nothing() {
    let congestion = CongestionKind::NewReno;
    let mut script = agreed(&Config { congestion, ..config() });
    for _ in 0..8 {
        script.send(1000);
    }
    script.sleep(Duration::from_micros(100));
    script.receive_sack(1000, &[(2000, 5000)]);
    assert_eq!((script.connection.ssthresh(), script.resent().len()), (4000, 1));
    script.sleep(Duration::from_micros(100));
    script.receive(0, 5000, Flags::ACK | Flags::ECE, 0);
    assert_eq!(script.connection.ssthresh(), 4000);
}
