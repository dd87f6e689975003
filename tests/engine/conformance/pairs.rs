//! Segments that arrive in one burst have the same effect as if each came alone.
//!
//! A port polls a connection again only after a whole burst. State that it keeps between two
//! segments of a burst must not change the effect of the second. So each pair of segments is
//! delivered both ways, at each place of each table where the peer sends something, and all output
//! and counters are compared.

use urnic_engine::port::{ConnectionCounters, PortDrops};
use urnic_engine::tcp::{DropReason, Flags, Header};
use urnic_engine::time::{Duration, Instant};

use crate::conformance::script::{START_NS, Script, rows};

/// The outcome of two segments.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<String>,
    connections: usize,
    waiting: usize,
    /// Sorted by number; equal ones count once, because a burst may be answered once.
    syns: Vec<Control>,
    resets: Vec<Control>,
    /// Sequence number behind the last byte sent, or behind the FIN.
    sent_to: Option<u32>,
    /// Acknowledgment number of the last segment.
    acked_to: Option<u32>,
    /// `None` if the connection is over: it or the port may count the segment that ended it.
    counted: Option<Counted>,
    drops: PortDrops,
    cookies: (u64, u64),
    evicted: u64,
}

/// A SYN or RST: its flags, number and acknowledgment.
type Control = (Flags, u32, u32);

/// Counters of a connection that do not depend on the number of its answers.
type Counted = (u64, u64, u64, u64, [u64; DropReason::COUNT]);

fn counted(counters: &ConnectionCounters) -> Counted {
    let tcp = &counters.tcp;
    let received = (tcp.segments_received, tcp.duplicates, tcp.out_of_order);
    (received.0, received.1, received.2, counters.bytes_received, tcp.dropped)
}

/// Compares both ways for the pairs of a table: each of its segments with the following ones, and
/// with segments that end or begin connections.
pub(super) fn compare(fresh: &dyn Fn() -> Script, table: &str) {
    let rows: Vec<&str> = rows(table).map(|(_, row)| row).collect();
    let arrivals = rows.iter().enumerate().filter_map(|(at, row)| Some((at, arrival(row)?)));
    let arrivals: Vec<(usize, &str)> = arrivals.collect();
    for (place, &(at, here)) in arrivals.iter().enumerate() {
        // The RST of an abort leaves before the next segment.
        if at > 0 && rows[at - 1].contains("!+") {
            continue;
        }
        let before = || {
            let mut script = fresh();
            for row in &rows[..at] {
                script.row(row).unwrap();
            }
            script.sleep_until(time(rows[at]));
            script
        };
        let ends = ends(&before());
        let mut pairs = Vec::new();
        let next = arrivals.get(place + 1).map(|(_, row)| (*row).to_owned());
        for other in ends.iter().cloned().chain(next) {
            pairs.push((here.to_owned(), other.clone()));
            pairs.push((other, here.to_owned()));
        }
        // Begin and end of a table.
        if place == 0 || place + 1 == arrivals.len() {
            let all = ends.iter().flat_map(|a| ends.iter().map(move |b| (a.clone(), b.clone())));
            pairs.extend(all);
        }
        let mut failed = Vec::new();
        for (first, second) in pairs {
            let mut apart = before();
            deliver(&mut apart, &first);
            apart.settle();
            // The second segment may make the output of the first one unnecessary, or acknowledge
            // it.
            if apart.sent.iter().any(|sent| sent.len > 0 || sent.header.flags.contains(Flags::FIN))
            {
                continue;
            }
            deliver(&mut apart, &second);
            let mut burst = before();
            deliver(&mut burst, &first);
            deliver(&mut burst, &second);
            let (mut burst, apart) = (outcome(burst), outcome(apart));
            // One RST is enough, and a connection whose SYN-ACK was acknowledged need not send one.
            let is_part =
                |some: &[Control], all: &[Control]| some.iter().all(|one| all.contains(one));
            if is_part(&burst.resets, &apart.resets) && !burst.resets.is_empty() {
                burst.resets.clone_from(&apart.resets);
            }
            if is_part(&burst.syns, &apart.syns) && !second.starts_with('S') {
                burst.syns.clone_from(&apart.syns);
            }
            if burst != apart {
                failed
                    .push(format!("{first} | {second} instead of row {at}\n{burst:?}\n{apart:?}"));
            }
        }
        assert!(failed.is_empty(), "{}\nof\n{table}", failed.join("\n"));
    }
}

/// Returns the segment that arrives in a row.
fn arrival(row: &str) -> Option<&str> {
    let (_, rest) = row.split_once(' ')?;
    let rest = rest.trim_start();
    let segment = rest.strip_prefix("<+").or_else(|| rest.strip_prefix('<'))?;
    Some(segment.trim())
}

fn time(row: &str) -> Instant {
    let seconds: f64 = row.split_whitespace().next().unwrap().parse().unwrap();
    Instant::from_nanos(START_NS + (seconds * 1e9) as u64)
}

/// Returns segments that end the connection or begin a new one, and one with data.
fn ends(script: &Script) -> Vec<String> {
    let (sent_to, next) = script.last_told;
    let later = next + 100_000;
    vec![
        format!("R {next}:{next}"),
        format!("S {later}:{later} win 60000 <mss=1000,sackOK>"),
        "S 0:0 port 50001 win 60000 <mss=1000,sackOK>".to_owned(),
        format!("F. {next}:{next} ack {sent_to}"),
        format!("P. {next}:{} ack {sent_to}", next + 10),
        format!(". {next}:{next} ack {}", sent_to + 1),
    ]
}

fn deliver(script: &mut Script, segment: &str) {
    script.receive(&segment.split_whitespace().collect::<Vec<_>>()).unwrap();
}

fn outcome(mut script: Script) -> Outcome {
    script.settle();
    // Until a delayed acknowledgment has been sent.
    script.sleep_until(script.now + Duration::from_millis(50));
    let sent = || script.sent.iter().map(|sent| (&sent.header, sent.len));
    let is_control = |flags: Flags| flags.intersects(Flags::SYN | Flags::RST);
    // A repeated answer to the first SYN is useless if the next segment acknowledges it. So is an
    // answer for a connection that has ended.
    let is_open = script.closed.is_empty() && script.port.time_wait_count() == 0;
    let is_needless = |header: &Header| {
        let is_reset = header.flags.contains(Flags::RST);
        !is_reset && (Some(header.seq) == script.our_iss || script.port.connection_count() == 0)
    };
    let controls = sent().filter(|(header, _)| is_control(header.flags) && !is_needless(header));
    let controls = controls.map(|(header, _)| (header.flags, header.seq.0, header.ack.0));
    let is_reset = |control: &Control| control.0.contains(Flags::RST);
    let (mut resets, mut syns): (Vec<_>, Vec<_>) = controls.partition(is_reset);
    // Cookies and the host stack's answers leave first.
    for controls in [&mut resets, &mut syns] {
        controls.sort_by_key(|(_, seq, ack)| (*seq, *ack));
        controls.dedup();
    }
    let lasting = || sent().filter(|(header, _)| !is_control(header.flags));
    let end = |len: u32, flags: Flags| len + u32::from(flags.contains(Flags::FIN));
    let sent_to = lasting()
        .filter(|(header, len)| end(*len, header.flags) > 0)
        .map(|(header, len)| header.seq.0.wrapping_add(end(len, header.flags)))
        .next_back();
    // The RST of an ended connection or the next SYN carries numbers that the connection did not
    // send.
    let acked_to = lasting().next_back().map(|(header, _)| header.ack.0).filter(|_| is_open);
    let sent_to = sent_to.filter(|_| is_open);
    let open = script.connection.and_then(|id| script.port.counters(id).ok());
    let counted = open.as_ref().filter(|_| is_open).map(counted);
    let of_port = *script.port.port_counters();
    Outcome {
        connections: script.port.connection_count(),
        waiting: script.port.time_wait_count(),
        drops: of_port.drops,
        cookies: (of_port.cookies_sent, of_port.cookies_redeemed),
        evicted: of_port.backlog_evicted,
        events: script.events,
        syns,
        resets,
        sent_to,
        acked_to,
        counted,
    }
}
