//! `urnic get` and `urnic put` of a server that lies.
#![allow(clippy::too_many_lines, reason = "tables of cases")]

use sha2::{Digest, Sha256};
use urnic::{SendOp, Stag};
use urnic_engine::wire::crc32c::crc32c;

use super::{Case, case, check};
use crate::commands::liar::{After, HONEST, Talk, Welcome, chunk, failed, sha};

const GET: &str = "get ADDRESS/file OWN/file --timeout 1s";
const GET_BEGUN: &str = "get ADDRESS/file OWN/begun --timeout 1s";
const PUT: &str = "put OWN/source ADDRESS/file --timeout 1s";
/// Welcome of a session that resumes a file.
const BEGUN: Welcome = Welcome { len: 12 << 20, ..HONEST };

/// Gives a file of 1000 bytes correctly, except for the end.
fn give(talk: &Talk) -> bool {
    talk.hear_of(15).is_some()
        && talk.say(&chunk(9, 0, crc32c(&[0; 1000])))
        && talk.hear_of(10).is_some()
}

fn say(octets: Vec<u8>) -> impl Fn(&Talk) -> After + Send + Sync + 'static {
    move |talk| {
        talk.say(&octets);
        After::Silence
    }
}

fn silence(_: &Talk) -> After {
    After::Silence
}

/// Faults that `put` and `get` have in common.
fn for_both(command: &'static str) -> Vec<Case> {
    vec![
        case("nothing said", command, HONEST, silence, &["has not answered"]),
        case("closed", command, HONEST, |_| After::Close, &["closed the connection", "was lost"]),
        // Messages that arrive while its memory is withdrawn are refused first, with a Terminate.
        case(
            "reset",
            command,
            HONEST,
            |_| After::Abort,
            &["was lost", "reset", "failed here", "ended the session"],
        ),
        case("no place", command, Welcome { credits: 0, ..HONEST }, silence, &["no room"]),
        case(
            "a region that is none",
            command,
            Welcome { region: Some((0xdead_beef, 0)), credits: u32::MAX, ..HONEST },
            |talk| {
                talk.say(&chunk(9, 0, 0));
                After::Silence
            },
            &["ended the session", "was not requested"],
        ),
        case(
            "a region at the end of all addresses",
            command,
            Welcome { region: Some((0xdead_beef, u64::MAX - 5)), ..HONEST },
            |talk| {
                let _asked = talk.hear();
                talk.say(&chunk(9, 0, 0));
                After::Silence
            },
            &["ended the session", "failed here", "was lost", "not valid here"],
        ),
        case(
            "signs of life all the time",
            command,
            Welcome { idle_ms: 0, ..HONEST },
            silence,
            &["has not answered"],
        ),
        case(
            "another protocol",
            command,
            Welcome { magic: b"http\0\x03", ..HONEST },
            silence,
            &["is no 'urnic serve'"],
        ),
        case(
            "another version",
            command,
            Welcome { magic: b"urnc\xff\xff", ..HONEST },
            silence,
            &["version 65535"],
        ),
        case(
            "a welcome cut short",
            command,
            Welcome { surplus: -1, ..HONEST },
            silence,
            &["malformed"],
        ),
        case(
            "a welcome too long",
            command,
            Welcome { surplus: 1, ..HONEST },
            silence,
            &["malformed"],
        ),
        case(
            "no welcome",
            command,
            Welcome { surplus: -99, ..HONEST },
            silence,
            &["is no 'urnic serve'"],
        ),
        case(
            "work without end",
            command,
            HONEST,
            |talk| {
                talk.drip(&[12]);
                After::Silence
            },
            &["has not answered"],
        ),
        case(
            "work without end or pause",
            command,
            HONEST,
            |talk| {
                talk.flood(&[12]);
                After::Silence
            },
            &["has not answered", "failed here"],
        ),
        case(
            "a reason that moves the cursor",
            command,
            HONEST,
            say(failed(b"\x1b[2J\x1b]0;x\x07\xe2\x80\xae")),
            &["says: \u{fffd}[2J"],
        ),
        case("a reason that is no text", command, HONEST, say(failed(b"\xff\xfe")), &["malformed"]),
        case("a reason without end", command, HONEST, say(failed(&[b'x'; 1900])), &["failed here"]),
        case("no message at all", command, HONEST, say(Vec::new()), &["malformed"]),
        case("an unknown message", command, HONEST, say(vec![255]), &["malformed"]),
        case("a message of the client's", command, HONEST, say(vec![10]), &["not valid here"]),
        case("half a message", command, HONEST, say(vec![5, 0, 0]), &["malformed"]),
        case("credits", command, HONEST, say(vec![2, 0, 0, 0, 1]), &["not valid here"]),
        case(
            "payload",
            command,
            HONEST,
            |talk| {
                while talk.payload(&[7; 100]) {}
                After::Silence
            },
            &["was not requested"],
        ),
        case(
            "immediate data",
            command,
            HONEST,
            |talk| {
                while talk.send(&[], SendOp::Immediate { value: 9, solicited: true }) {}
                After::Silence
            },
            &["was not requested"],
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
        case(
            "an invalidation of what does not exist",
            command,
            HONEST,
            |talk| {
                let invalidate = Some(Stag(0x1234_5678));
                talk.send(&[12], SendOp::Send { invalidate, solicited: true });
                After::Silence
            },
            &["failed here"],
        ),
    ]
}

#[test]
fn get_and_put_end_well() {
    let (mut cases, put) = (for_both(GET), for_both(PUT));
    cases.extend(put);
    check(cases);
}

#[test]
fn file_with_a_wrong_length_or_digest_gets_no_name() {
    let long = |len| Welcome { len, ..HONEST };
    let mut wrong_digest = case(
        "another digest",
        GET,
        HONEST,
        |talk| {
            give(talk);
            talk.say(&sha([7; 32]));
            After::Silence
        },
        &["not the one that was sent"],
    );
    wrong_digest.status = 1;
    check(vec![
        wrong_digest,
        case("longer than any disk", GET, long(u64::MAX), silence, &["the disk has"]),
        case("longer than a signed number", GET, long(1 << 63), silence, &["the disk has"]),
        case(
            "longer than any disk, to standard output",
            "get ADDRESS/file - --timeout 1s",
            long(u64::MAX),
            silence,
            &["the disk has"],
        ),
        case(
            "longer than the region",
            GET,
            Welcome { region_len: 999, ..HONEST },
            |talk| {
                let _asked = talk.hear();
                talk.say(&chunk(9, 0, 0));
                After::Silence
            },
            &["ended the session"],
        ),
        case(
            "ends before the digest",
            GET,
            HONEST,
            |talk| {
                give(talk);
                After::Close
            },
            &["closed the connection", "was lost"],
        ),
        case(
            "no digest",
            GET,
            HONEST,
            |talk| {
                give(talk);
                talk.drip(&[12]);
                After::Silence
            },
            &["has not answered"],
        ),
        case(
            "the digest before the file",
            GET,
            HONEST,
            |talk| {
                talk.say(&sha(Sha256::digest([0; 1000]).into()));
                After::Silence
            },
            &["not valid here"],
        ),
        case(
            "a chunk that is always wrong",
            GET,
            HONEST,
            |talk| {
                while talk.hear_of(15).is_some() && talk.say(&chunk(9, 0, 1)) {}
                After::Silence
            },
            &["again and again"],
        ),
    ]);
}

#[test]
fn unrequested_chunks_are_refused() {
    let answers = |message: Vec<u8>| {
        move |talk: &Talk| {
            let _asked = talk.hear();
            talk.drip(&message);
            After::Silence
        }
    };
    let unasked = |message: Vec<u8>| {
        move |talk: &Talk| {
            talk.drip(&message);
            After::Silence
        }
    };
    let present = Welcome { chunks_present: u64::MAX, ..HONEST };
    let what: &[&str] = &["was not requested"];
    check(vec![
        case("a chunk there is not", GET, HONEST, answers(chunk(9, 1, 0)), what),
        case("the last chunk of all", GET, HONEST, answers(chunk(9, u64::MAX, 0)), what),
        case(
            "the same chunk again and again",
            GET,
            HONEST,
            answers(chunk(9, 0, 0)),
            &["was not requested", "again and again"],
        ),
        case(
            "the same chunk again and again, slowly",
            "get ADDRESS/file OWN/file --timeout 1s --rate 8",
            HONEST,
            answers(chunk(9, 0, 0)),
            what,
        ),
        case(
            "a check of a chunk there is not",
            GET_BEGUN,
            BEGUN,
            answers(chunk(9, 1 << 40, 7)),
            what,
        ),
        case("the same check again and again", GET_BEGUN, BEGUN, answers(chunk(9, 1, 7)), what),
        case("no check", GET_BEGUN, BEGUN, silence, &["has not answered"]),
        case("a result before there is anything", PUT, HONEST, unasked(chunk(5, 0, 1)), what),
        case("a result of a chunk there is not", PUT, HONEST, unasked(chunk(5, u64::MAX, 1)), what),
        case(
            "the same result again and again",
            PUT,
            HONEST,
            |talk| {
                let _verify = talk.hear_of(4);
                talk.flood(&chunk(5, 0, 1));
                After::Silence
            },
            what,
        ),
        case(
            "a check that was not asked for",
            PUT,
            present.clone(),
            answers(chunk(5, 99, 0)),
            what,
        ),
        case("the same answer to all checks", PUT, present.clone(), answers(chunk(5, 0, 1)), what),
        case("no check", PUT, present, silence, &["has not answered"]),
    ]);
}

/// Answers each chunk of a put with `is_good`, up to the end of the file.
fn take(talk: &Talk, is_good: u32) -> bool {
    for _ in 0..2 {
        let Some(verify) = talk.hear_of(4) else { return false };
        let index = u64::from_be_bytes(verify[..8].try_into().unwrap());
        talk.say(&chunk(5, index, is_good));
    }
    talk.hear_of(6).is_some()
}

#[test]
fn put_reports_no_success_for_a_file_that_was_not_taken() {
    let put = "put OWN/source ADDRESS/file --timeout 1s";
    let mut not_verified = case(
        "not verified",
        put,
        HONEST,
        |talk| {
            let _verify = talk.hear_of(4);
            talk.say(&[14]);
            After::Silence
        },
        &["not the one that was sent"],
    );
    not_verified.status = 1;
    check(vec![
        not_verified,
        case(
            "never right",
            put,
            HONEST,
            |talk| {
                while let Some(verify) = talk.hear_of(4) {
                    let index = u64::from_be_bytes(verify[..8].try_into().unwrap());
                    talk.say(&chunk(5, index, 0));
                }
                After::Silence
            },
            &["again and again"],
        ),
        case(
            "never committed",
            put,
            HONEST,
            |talk| {
                take(talk, 1);
                talk.drip(&[12]);
                After::Silence
            },
            &["has not answered"],
        ),
        case(
            "closed instead of committed",
            put,
            HONEST,
            |talk| {
                take(talk, 1);
                After::Close
            },
            &["closed the connection", "was lost"],
        ),
        case("committed at once", put, HONEST, say(vec![7]), &["not valid here"]),
    ]);
}
