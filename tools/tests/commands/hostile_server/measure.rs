//! `urnic ping`, `bw` and `lat` of a server that lies. `urnic info` asks no server.

use super::{Case, case, check};
use crate::commands::liar::{After, HONEST, Talk, Welcome, counters, credit, failed, number};

const PING: &str = "ping ADDRESS --timeout 1s --interval 100ms";
const LAT: &str = "lat ADDRESS --timeout 1s";
const LAT_SEND: &str = "lat ADDRESS --timeout 1s --op send";
const LAT_READ: &str = "lat ADDRESS --timeout 1s --op read";
const BW: &str = "bw ADDRESS --timeout 1s --seconds 0.1";
const BW_SEND: &str = "bw ADDRESS --timeout 1s --count 1000 --op send --size 64";
const BW_BOTH: &str = "bw ADDRESS --timeout 1s --count 10 --bidir --connections 2 --size 64";

fn silence(_: &Talk) -> After {
    After::Silence
}

fn flood(octets: Vec<u8>) -> impl Fn(&Talk) -> After + Send + Sync + 'static {
    move |talk| {
        talk.flood(&octets);
        After::Silence
    }
}

fn drip(octets: Vec<u8>) -> impl Fn(&Talk) -> After + Send + Sync + 'static {
    move |talk| {
        talk.drip(&octets);
        After::Silence
    }
}

fn for_all(command: &'static str) -> Vec<Case> {
    let nowhere = Welcome { region: Some((0xdead_beef, u64::MAX)), ..HONEST };
    vec![
        case(
            "nothing said",
            command,
            HONEST,
            silence,
            &["has not answered", "ended the session", "failed here"],
        ),
        case("closed", command, HONEST, |_| After::Close, &["closed the connection", "was lost"]),
        // Messages that arrive while its memory is withdrawn are refused first, with a Terminate.
        case(
            "reset",
            command,
            HONEST,
            |_| After::Abort,
            &["was lost", "reset", "failed here", "ended the session"],
        ),
        case(
            "a region that is none",
            command,
            nowhere,
            silence,
            &["has not answered", "ended the session", "failed here"],
        ),
        case(
            "work without end",
            command,
            HONEST,
            drip(vec![12]),
            &["has not answered", "ended the session", "failed here"],
        ),
        case(
            "work without end or pause",
            command,
            HONEST,
            flood(vec![12]),
            &["has not answered", "ended the session", "failed here"],
        ),
        case(
            "a reason that moves the cursor",
            command,
            HONEST,
            drip(failed(b"\x1b[2J\x9b")),
            &["malformed"],
        ),
        case("half a message", command, HONEST, drip(vec![1, 0]), &["malformed"]),
        case(
            "a digest",
            command,
            HONEST,
            drip([&[11][..], &[0; 32]].concat()),
            &["not valid here"],
        ),
        case(
            "a tag that does not exist",
            command,
            HONEST,
            |talk| {
                talk.write(0x1234_5678, 0, &[1; 64]);
                After::Silence
            },
            &["failed here"],
        ),
    ]
}

#[test]
fn measurements_end_well() {
    let commands = [PING, LAT, LAT_SEND, BW, BW_SEND, BW_BOTH];
    check(commands.into_iter().flat_map(for_all).collect());
}

#[test]
fn invalid_echoes_are_reported() {
    let answer = |answers: &'static [&'static [u8]]| {
        move |talk: &Talk| {
            while talk.hear().is_some() {
                for octets in answers {
                    talk.payload(octets);
                }
            }
            After::Silence
        }
    };
    let changed: &[&str] = &["came back changed"];
    check(vec![
        case("another message", PING, HONEST, answer(&[&[0xee; 56]]), changed),
        case("a shorter one", PING, HONEST, answer(&[&[0]]), changed),
        case("an empty one", PING, HONEST, answer(&[&[]]), changed),
        case("a longer one", PING, HONEST, answer(&[&[0; 2000]]), &["failed here"]),
        case(
            "one that was not asked for",
            PING,
            HONEST,
            |talk| {
                let Some(octets) = talk.hear() else { return After::Silence };
                talk.payload(&octets);
                while talk.payload(&octets) {}
                After::Silence
            },
            &["was not requested", "came back changed", "failed here"],
        ),
        case(
            "many",
            LAT_READ,
            HONEST,
            |talk| {
                while talk.payload(&[0; 8]) {}
                After::Silence
            },
            &["was not requested"],
        ),
    ]);
}

/// Answers the request for processor time, and then grants no credits.
fn begin(talk: &Talk) {
    let _asked = talk.hear_of(19);
    talk.say(&number(20, u64::MAX));
}

#[test]
fn impossible_credits_are_refused_and_missing_ones_time_out() {
    let none = Welcome { credits: 0, ..HONEST };
    let then = |octets: Vec<u8>| {
        move |talk: &Talk| {
            begin(talk);
            talk.drip(&octets);
            After::Silence
        }
    };
    let lie: &[&str] = &["credits"];
    check(vec![
        case(
            "none at first",
            BW_SEND,
            none.clone(),
            |talk| {
                begin(talk);
                After::Silence
            },
            &["has not answered"],
        ),
        case(
            "none later",
            BW_SEND,
            HONEST,
            |talk| {
                begin(talk);
                while talk.hear().is_some() {}
                After::Silence
            },
            &["has not answered"],
        ),
        case("of nothing", BW_SEND, HONEST, then(credit(0)), lie),
        case("of nothing, without a first one", BW_SEND, none, then(credit(0)), lie),
        case("of too much", BW_SEND, HONEST, then(credit(u32::MAX)), lie),
        case(
            "instead of the processor time",
            BW_SEND,
            HONEST,
            drip(credit(1)),
            &["has not answered", "credits"],
        ),
        case(
            "instead of counters",
            "bw ADDRESS --timeout 1s --count 4 --op send --size 64",
            HONEST,
            |talk| {
                begin(talk);
                let _asked = talk.hear_of(0);
                talk.drip(&credit(1));
                After::Silence
            },
            &["has not answered", "credits"],
        ),
        case("without sends", BW, HONEST, then(credit(1)), &["not valid here", "has not answered"]),
    ]);
}

#[test]
fn huge_counters_are_printed_unchanged() {
    let mut cases = vec![case(
        "numbers without end",
        BW_BOTH,
        HONEST,
        |talk| {
            // The client asks for processor time on the first connection, at the beginning and at
            // the end.
            while let Some(asked) = talk.hear() {
                match asked.first() {
                    Some(0) => talk.say(&counters(u64::MAX)),
                    Some(17) => talk.say(&number(18, u64::MAX)),
                    Some(19) => talk.say(&number(20, u64::MAX)),
                    _ => true,
                };
            }
            After::Close
        },
        &[""],
    )];
    cases[0].status = 0;
    check(cases);
}
