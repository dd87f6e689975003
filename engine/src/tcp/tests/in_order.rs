//! The fast path for arriving data: segments that take it, segments that do not, and bytes that are
//! not kept. `sim.rs` compares it with the general path, for each segment of each transfer.

use super::script::{Script, ack, config, seq};
use crate::tcp::{Config, Ecn, EcnUse, Flags, Header, SeqNum, Timestamps};
use crate::types::StreamOffset;

/// Bytes that a script's window takes.
const WINDOW: usize = 60_000;

fn timestamps() -> Config {
    Config { timestamps: true, ..config() }
}

fn is_taken(script: &mut Script, header: &Header, len: usize) -> bool {
    let before = format!("{:?}", script.connection);
    let taken = script.connection.take_next(script.now, header, len, 1).is_some();
    assert!(taken || before == format!("{:?}", script.connection), "nothing has changed");
    taken
}

#[test]
fn in_order_data_without_news_takes_the_fast_path() {
    for config in [config(), timestamps()] {
        for (flags, len) in [(Flags::ACK, 1), (Flags::ACK | Flags::PSH, 1000), (Flags::ACK, WINDOW)]
        {
            let mut script = Script::established(&config);
            let header = script.header(0, 0, flags);
            let next = script.connection.take_next(script.now, &header, len, 1).expect("plain");
            let end = StreamOffset(len as u64);
            assert_eq!(next.range, StreamOffset::ZERO..end);
            script.connection.finish_next(script.now, next, end);
            assert_eq!(script.connection.delivered(), end);
            // The same holds for the next segment, with our data in flight.
            script.send(500);
            let header = script.header(u32::try_from(len).unwrap(), 0, flags);
            assert!(is_taken(&mut script, &header, 10), "behind {len} octets");
        }
    }
}

#[test]
fn other_segments_take_the_general_path() {
    let plain = |script: &Script| script.header(0, 0, Flags::ACK);
    let flags = [
        Flags::empty(),
        Flags::ACK | Flags::FIN,
        Flags::ACK | Flags::SYN,
        Flags::ACK | Flags::RST,
        Flags::ACK | Flags::URG,
        Flags::ACK | Flags::ECE,
        Flags::ACK | Flags::CWR,
    ];
    for config in [config(), timestamps()] {
        let mut script = Script::established(&config);
        script.send(500);
        for flags in flags {
            let header = Header { flags, ..plain(&script) };
            assert!(!is_taken(&mut script, &header, 10), "{flags:?}");
        }
        for wrong in [seq(1), SeqNum(seq(0).0.wrapping_sub(1))] {
            let header = Header { seq: wrong, ..plain(&script) };
            assert!(!is_taken(&mut script, &header, 10), "{wrong:?}");
        }
        for wrong in [ack(1), ack(500), ack(501), SeqNum(ack(0).0.wrapping_sub(1))] {
            let header = Header { ack: wrong, ..plain(&script) };
            assert!(!is_taken(&mut script, &header, 10), "{wrong:?}");
        }
        let header = plain(&script);
        assert!(!is_taken(&mut script, &header, 0), "no data");
        assert!(!is_taken(&mut script, &header, WINDOW + 1), "more than the window takes");
        let mut blocks = plain(&script);
        blocks.options.sack.push((ack(100), ack(200)));
        assert!(!is_taken(&mut script, &blocks, 10), "a SACK block");
        if config.timestamps {
            for timestamps in [None, Some(Timestamps { value: 99, echo: 0 })] {
                let mut header = plain(&script);
                header.options.timestamps = timestamps;
                assert!(!is_taken(&mut script, &header, 10), "{timestamps:?}");
            }
        }
        // A gap, and a known end of the stream.
        script.receive(20, 0, Flags::ACK | Flags::FIN, 10);
        assert!(!is_taken(&mut script, &header, 10), "something is beyond it");
        // The connection is not established now.
        let mut script = Script::established(&config);
        script.connection.close(StreamOffset::ZERO);
        assert!(script.transmit().is_some());
        let header = plain(&script);
        assert!(!is_taken(&mut script, &header, 10), "{:?}", script.state());
    }
}

#[test]
fn discarded_octets_are_accepted_again() {
    for kept in [0, 4] {
        let mut script = Script::established(&config());
        let header = script.header(0, 0, Flags::ACK);
        let next = script.connection.take_next(script.now, &header, 10, 1).expect("plain");
        script.connection.finish_next(script.now, next, StreamOffset(kept));
        assert_eq!(script.connection.counters().refused, 1);
        assert_eq!(script.connection.delivered(), StreamOffset(kept));
        let kept = u32::try_from(kept).unwrap();
        assert_eq!(script.acked(), Some((kept, vec![])), "at once");
        let header = script.header(kept, 0, Flags::ACK);
        assert!(is_taken(&mut script, &header, 10 - kept as usize), "what comes again");
    }
}

#[test]
fn ecn_marks_count_on_the_fast_path() {
    let config = Config { ecn: EcnUse::Accept, ..config() };
    let mut script = Script::established_by(&config, Flags::SYN | Flags::ECE | Flags::CWR);
    let header = Header { ecn: Ecn::Experienced, ..script.header(0, 0, Flags::ACK) };
    let next = script.connection.take_next(script.now, &header, 1000, 1).expect("plain");
    let end = next.range.end;
    script.connection.finish_next(script.now, next, end);
    script.receive(1000, 0, Flags::ACK, 1000);
    assert!(script.ack().expect("every second segment").flags.contains(Flags::ECE));
}

/// RFC 5681 §4.2: a segment that fills a gap is acknowledged at once, also if only the layer above
/// had kept the bytes behind the gap.
#[test]
fn a_segment_that_joins_what_was_kept_before_is_acknowledged_at_once_both_ways() {
    for (flags, is_next) in [(Flags::ACK, true), (Flags::ACK | Flags::URG, false)] {
        let mut script = Script::established(&config());
        let (header, end) = (script.header(0, 0, flags), StreamOffset(300));
        let tcp = &mut script.connection;
        if is_next {
            let next = tcp.take_next(script.now, &header, 100, 1).expect("next");
            tcp.finish_next(script.now, next, end);
        } else {
            let arrival = tcp.handle_segment(script.now, &header, 100, 1);
            tcp.commit(StreamOffset::ZERO..end).unwrap();
            tcp.finish_arrival(script.now, &arrival, false);
        }
        assert_eq!(script.acked(), Some((300, vec![])), "{flags:?}");
    }
}
