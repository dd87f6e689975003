//! The record of a connection in TIME-WAIT answers as the whole connection does.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::script::{Script, config};
use crate::tcp::{
    Config, CongestionKind, Ecn, EcnUse, Flags, Header, SeqNum, State, Tcb, TimeWait,
    TimeWaitOutcome, Timestamps,
};
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;

const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);
const TIME_WAIT: Duration = Duration::from_secs(60);

/// Returns a random element.
fn one<T: Copy>(rng: &mut impl Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// Returns a connection in TIME-WAIT, closed in a random way and after some bytes.
fn in_time_wait(rng: &mut ChaCha8Rng) -> Script {
    let config = Config {
        timestamps: rng.random_bool(0.6),
        sack: rng.random_bool(0.5),
        window_bytes: one(rng, &[700, 60_000, 1 << 20]),
        ecn: one(rng, &[EcnUse::Off, EcnUse::Accept]),
        congestion: one(rng, &[CongestionKind::Cubic, CongestionKind::Dctcp]),
        ..config()
    };
    let syn = if rng.random_bool(0.5) { Flags::SYN } else { Flags::SYN | Flags::ECE | Flags::CWR };
    let mut script = Script::established_by(&config, syn);
    let sent = one(rng, &[0, 1, 900]);
    if sent > 0 {
        script.send(sent);
    }
    let sent = u32::try_from(sent).unwrap();
    let mut at = 0;
    for _ in 0..rng.random_range(0..4) {
        let len = one(rng, &[1, 100]);
        let mut header = script.header(at, sent, Flags::ACK);
        header.ecn = one(rng, &[Ecn::NotCapable, Ecn::Experienced]);
        script.receive_header(&header, len);
        at += u32::try_from(len).unwrap();
        script.peer_clock += rng.random_range(0..3);
        while rng.random_bool(0.5) && script.ack().is_some() {}
    }
    script.connection.close(StreamOffset(sent.into()));
    while script.transmit().is_some() {}
    if rng.random_bool(0.5) {
        // Both at once, and then the acknowledgment of our FIN.
        script.receive(at, sent, FIN_ACK, 0);
        assert_eq!(script.state(), State::Closing);
        while rng.random_bool(0.5) && script.ack().is_some() {}
        script.receive(at + 1, sent + 1, Flags::ACK, 0);
    } else {
        script.receive(at, sent + 1, FIN_ACK, 0);
    }
    assert_eq!(script.state(), State::TimeWait);
    while script.connection.poll_event().is_some() {}
    // The connection itself sends an acknowledgment of data before a change of marks.
    while script.connection.time_wait().is_none() {
        script.ack().unwrap();
    }
    script
}

/// Returns a segment that is right, nearly right or random.
fn segment(rng: &mut ChaCha8Rng, rcv_nxt: SeqNum, snd_nxt: SeqNum, clock: u32) -> (Header, usize) {
    let near = [0, 0, 1, 2, 101, 1000, 70_000, 1 << 30, 0x7fff_ffff, 0x8000_0000];
    let around = |rng: &mut ChaCha8Rng, number: SeqNum| {
        let off: u32 = one(rng, &near);
        SeqNum(if rng.random_bool(0.3) {
            number.0.wrapping_add(off)
        } else {
            number.0.wrapping_sub(off)
        })
    };
    let flags = match rng.random_range(0..10) {
        0..4 => Flags::ACK,
        4..6 => FIN_ACK,
        6 => Flags::RST,
        7 => Flags::SYN,
        _ => Flags::from_bits_truncate(rng.random()),
    };
    let mut header = Header {
        src_port: 9,
        dst_port: 7,
        seq: around(rng, rcv_nxt),
        ack: around(rng, snd_nxt),
        flags,
        window: one(rng, &[0, 1, 60_000, 60_001]),
        ..Header::default()
    };
    if rng.random_bool(0.9) {
        let off = one(rng, &[0, 0, 1, 100, 5000, 1 << 30]);
        let value =
            if rng.random_bool(0.5) { clock.wrapping_add(off) } else { clock.wrapping_sub(off) };
        header.options.timestamps = Some(Timestamps { value, echo: rng.random() });
    }
    if rng.random_bool(0.1) {
        header.options.sack.push((snd_nxt, snd_nxt.plus(rng.random_range(0..9))));
    }
    header.ecn = one(rng, &[Ecn::NotCapable, Ecn::Experienced]);
    (header, one(rng, &[0, 0, 0, 1, 2, 100, 1000, 65_000]))
}

/// Both get the same input; the record reports its end, the connection ends by its timer.
struct Both {
    whole: Tcb,
    rest: TimeWait,
    until: Instant,
    now: Instant,
}

impl Both {
    /// Returns true if both are over.
    fn receive(&mut self, header: &Header, payload_len: usize) -> bool {
        let arrival = self.whole.handle_segment(self.now, header, payload_len, 1);
        assert_eq!(arrival.payload, None, "no text is taken in TIME-WAIT");
        match self.rest.handle_segment(self.now, header, payload_len) {
            TimeWaitOutcome::Lasts => {}
            TimeWaitOutcome::Restarts => self.until = self.now + TIME_WAIT,
            TimeWaitOutcome::Ends => {
                assert_eq!((self.whole.state(), self.whole.poll_event()), (State::Closed, None));
                return true;
            }
        }
        assert_eq!(self.whole.state(), State::TimeWait);
        assert_eq!(self.whole.poll_timeout(), Some(self.until));
        assert_eq!(self.whole.poll_transmit(self.now), None);
        false
    }

    /// Compares at most `max` acknowledgments.
    fn send(&mut self, max: usize) {
        for _ in 0..max {
            let owes = self.rest.owes();
            let (whole, rest) = (self.whole.poll_ack(self.now), self.rest.poll_ack(self.now, 7, 9));
            assert_eq!((&whole, whole.is_some()), (&rest, owes));
        }
    }
}

#[test]
fn time_wait_record_answers_like_the_connection() {
    let (mut restarts, mut ends, mut answers, mut replaced) = (0, 0, 0, 0);
    for seed in 0..3000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut script = in_time_wait(&mut rng);
        let (now, mut clock) = (script.now, script.peer_clock);
        let (rest, until) = script.connection.time_wait().unwrap();
        let rcv_nxt = script.connection.rcv.ack_number();
        let snd_nxt = script.connection.snd_end_seq();
        assert_eq!((until, rest.snd_end_seq()), (now + TIME_WAIT, snd_nxt));
        let mut both = Both { whole: script.connection, rest, until, now };
        for _ in 0..rng.random_range(1..60) {
            let (header, len) = segment(&mut rng, rcv_nxt, snd_nxt, clock);
            let may = both.whole.may_be_replaced_by(&header);
            assert_eq!(both.rest.may_be_replaced_by(&header), may, "seed {seed}");
            replaced += u32::from(may);
            if both.receive(&header, len) {
                ends += 1;
                break;
            }
            answers += u32::from(both.rest.owes());
            restarts += u32::from(both.until == both.now + TIME_WAIT && both.now > now);
            both.send(one(&mut rng, &[0, 1, 2, 70]));
            let pause = one(&mut rng, &[0, 0, 1000, 2_000_000, 900_000_000]);
            if both.now.plus_nanos(pause) < both.until {
                both.now = both.now.plus_nanos(pause);
            }
            clock = clock.wrapping_add(rng.random_range(0..3));
        }
    }
    // The random segments cause each of these outcomes.
    assert!(restarts > 500 && ends > 100 && answers > 5000 && replaced > 500);
}

#[test]
fn the_limits_of_answers_are_those_of_the_connection() {
    for (flags, seq_off, allowed) in [(Flags::SYN, 0, 10), (Flags::ACK, 5, 100)] {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut script = in_time_wait(&mut rng);
        while script.ack().is_some() {}
        let (mut rest, _) = script.connection.time_wait().unwrap();
        let header = Header {
            seq: script.connection.rcv.ack_number().plus(seq_off),
            ack: script.connection.snd_end_seq(),
            flags,
            options: script.header(0, 0, Flags::ACK).options,
            ..Header::default()
        };
        let answered = (0..200).filter(|_| {
            rest.handle_segment(script.now, &header, 0);
            rest.poll_ack(script.now, 7, 9).is_some()
        });
        assert_eq!(answered.count(), allowed, "{flags:?}");
        // A period later the limit allows the same number again.
        script.sleep(Duration::from_secs(5));
        rest.handle_segment(script.now, &header, 0);
        assert!(rest.owes());
    }
}

#[test]
fn only_a_connection_in_time_wait_becomes_a_record() {
    let mut script = Script::established(&config());
    assert!(script.connection.time_wait().is_none());
    script.connection.close(StreamOffset(0));
    script.transmit().unwrap();
    script.receive(0, 1, FIN_ACK, 0);
    assert!(script.connection.time_wait().is_none(), "events are to be told first");
    while script.connection.poll_event().is_some() {}
    let (mut rest, until) = script.connection.time_wait().unwrap();
    assert_eq!(until, script.now + TIME_WAIT);
    assert_eq!(rest.poll_ack(script.now, 7, 9), script.ack(), "that of the FIN is owed still");
    script.connection.abort();
    assert!(script.connection.time_wait().is_none());
}

/// RFC 6191 §2: with timestamps, only a SYN with a later one opens the next connection, or one with
/// an equal timestamp and a later number.
#[test]
fn syn_with_an_older_timestamp_opens_nothing() {
    let config = Config { timestamps: true, ..config() };
    let mut script = Script::established(&config);
    script.peer_clock = 1 << 31;
    script.receive(0, 0, Flags::ACK, 100);
    script.connection.close(StreamOffset(0));
    while script.transmit().is_some() {}
    script.receive(100, 1, FIN_ACK, 0);
    assert_eq!(script.state(), State::TimeWait);
    while script.connection.poll_event().is_some() {}
    let (record, _) = script.connection.time_wait().unwrap();
    let opens = |value: u32, at: u32| {
        let mut syn = script.header(at, 0, Flags::SYN);
        syn.options.timestamps = Some(Timestamps { value, echo: 0 });
        let opens = record.may_be_replaced_by(&syn);
        assert_eq!(opens, script.connection.may_be_replaced_by(&syn));
        opens
    };
    let (before, after) = (0, 1_000_000);
    for older in [1, 1000, 1 << 30] {
        assert!(!opens(script.peer_clock - older, before));
        assert!(!opens(script.peer_clock - older, after), "{older} ticks older");
        assert!(opens(script.peer_clock + older, before), "{older} ticks later");
    }
    assert!(opens(script.peer_clock, after));
    assert!(!opens(script.peer_clock, before));
}
