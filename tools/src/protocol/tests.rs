use proptest::prelude::*;

use super::*;
use crate::counters::{Counters, FIELD_COUNT};

fn region() -> RemoteBuffer {
    RemoteBuffer { stag: Stag(0x1234_5678), to: TaggedOffset(9) }
}

#[test]
fn every_hello_reads_back() {
    let name = "dir/name".to_owned();
    for session in [
        Session::Memory,
        Session::Echo,
        Session::Sink,
        Session::PingPong(region()),
        Session::Both { remote: region(), is_read: true },
        Session::Both { remote: region(), is_read: false },
        Session::Put { name: name.clone(), force: true },
        Session::Put { name: name.clone(), force: false },
        Session::Get { name },
    ] {
        let hello = Hello { session, len: 1 << 40, depth: 16 };
        assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    }
    let welcome = Welcome { region: region(), len: 7, credits: 3, chunks_present: 2, idle_ms: 9 };
    assert_eq!(Welcome::parse(&welcome.emit()), Ok(welcome));
}

#[test]
fn the_longest_hello_fits_into_private_data() {
    let name = "n".repeat(NAME_LEN_MAX);
    let hello = Hello { session: Session::Put { name, force: false }, len: 0, depth: 0 };
    assert!(hello.emit().len() <= 508, "RFC 6581 leaves 508 bytes");
    assert!(emit_refusal(&"r".repeat(1000)).len() <= 508);
}

#[test]
fn every_control_message_reads_back() {
    let counters = Counters::from_fields(std::array::from_fn(|i| i as u64 + 1));
    let mut fields = counters.fields().to_vec();
    fields.dedup();
    assert_eq!(fields.len(), FIELD_COUNT, "no field stands for another");
    for message in [
        Control::CountersRequest,
        Control::Counters(counters),
        Control::Credit(5),
        Control::Check { index: 1, crc: 2 },
        Control::Verify { index: 3, crc: 4, place: 12 },
        Control::Fetch { index: 13, place: 14 },
        Control::Chunk { index: 5, is_good: true },
        Control::Chunk { index: 6, is_good: false },
        Control::Commit { sha256: [7; 32] },
        Control::Committed,
        Control::DigestRequest { index: 8 },
        Control::Digest { index: 9, crc: 10 },
        Control::ShaRequest,
        Control::Sha { sha256: [11; 32] },
        Control::Working,
        Control::NotVerified,
        Control::Failed("no".into()),
        Control::Start,
        Control::Stop,
        Control::Stopped { messages: 15 },
        Control::ProcessorTimeRequest,
        Control::ProcessorTime { ns: 16 },
    ] {
        let octets = message.emit();
        assert!(octets.len() <= CONTROL_LEN_MAX);
        assert_eq!(Control::parse(&octets), Ok(message));
    }
}

#[test]
fn foreign_and_other_versions_of_the_protocol_are_distinguished() {
    assert_eq!(Hello::parse(b""), Err(ProtocolError::Foreign));
    assert_eq!(Hello::parse(b"rping..."), Err(ProtocolError::Foreign));
    assert_eq!(Hello::parse(b"urnc\0\x09whatever"), Err(ProtocolError::Version(9)));
    assert_eq!(Hello::parse(b"urnc\0\x03"), Err(ProtocolError::Malformed));
    assert_eq!(refusal_from(b"go away"), None);
}

#[test]
fn a_reason_is_cut_at_a_character_and_cannot_command_a_terminal() {
    let long = "ü".repeat(400);
    let read = refusal_from(&emit_refusal(&long)).unwrap();
    assert!(long.starts_with(&read) && read.len() >= REASON_LEN_MAX - 1);
    assert_eq!(refusal_from(&emit_refusal("a\x1b[2Jb")).unwrap(), "a\u{fffd}[2Jb");
    let failed = Control::Failed("x".repeat(2000)).emit();
    assert_eq!(failed.len(), CONTROL_LEN_MAX);
    assert!(Control::parse(&failed).is_ok());
}

/// Ends of different releases meet: a message has these bytes as long as [`VERSION`] stays.
#[test]
fn the_bytes_of_version_3_stay_as_they_are() {
    let hex = |octets: Vec<u8>| octets.iter().map(|octet| format!("{octet:02x}")).collect();
    let name = || "a".to_owned();
    // Code, length and depth, and the session's own fields.
    for (session, rest) in [
        (Session::Memory, "000000000000000102 00000003"),
        (Session::Echo, "010000000000000102 00000003"),
        (Session::Sink, "020000000000000102 00000003"),
        (Session::PingPong(region()), "030000000000000102 00000003 12345678 0000000000000009"),
        (Session::Put { name: name(), force: true }, "040000000000000102 00000003 01 61"),
        (Session::Put { name: name(), force: false }, "040000000000000102 00000003 00 61"),
        (Session::Get { name: name() }, "050000000000000102 00000003 61"),
        (
            Session::Both { remote: region(), is_read: true },
            "060000000000000102 00000003 01 12345678 0000000000000009",
        ),
    ] {
        let emitted: String = hex(Hello { session, len: 0x102, depth: 3 }.emit());
        assert_eq!(emitted, format!("75726e630003{}", rest.replace(' ', "")));
    }
    let welcome = Welcome { region: region(), len: 1, credits: 2, chunks_present: 3, idle_ms: 4 };
    let emitted: String = hex(welcome.emit());
    let fields = "12345678 0000000000000009 0000000000000001 00000002 0000000000000003 00000004";
    assert_eq!(emitted, format!("75726e630003{}", fields.replace(' ', "")));
    assert_eq!(emit_refusal("no"), b"urnc\0\x03no");
    for (message, expected) in [
        (Control::CountersRequest, "00"),
        (Control::Credit(5), "02 00000005"),
        (Control::Check { index: 1, crc: 2 }, "03 0000000000000001 00000002"),
        (Control::Verify { index: 3, crc: 4, place: 5 }, "04 0000000000000003 00000004 00000005"),
        (Control::Chunk { index: 5, is_good: true }, "05 0000000000000005 00000001"),
        (Control::Chunk { index: 5, is_good: false }, "05 0000000000000005 00000000"),
        (Control::Committed, "07"),
        (Control::DigestRequest { index: 8 }, "08 0000000000000008"),
        (Control::Digest { index: 9, crc: 10 }, "09 0000000000000009 0000000a"),
        (Control::ShaRequest, "0a"),
        (Control::Working, "0c"),
        (Control::Failed("no".into()), "0d 6e6f"),
        (Control::NotVerified, "0e"),
        (Control::Fetch { index: 13, place: 14 }, "0f 000000000000000d 0000000e"),
        (Control::Start, "10"),
        (Control::Stop, "11"),
        (Control::Stopped { messages: 15 }, "12 000000000000000f"),
        (Control::ProcessorTimeRequest, "13"),
        (Control::ProcessorTime { ns: 16 }, "14 0000000000000010"),
    ] {
        let emitted: String = hex(message.emit());
        assert_eq!(emitted, expected.replace(' ', ""), "{message:?}");
    }
    let digest = [0xab; 32];
    for (message, code) in
        [(Control::Commit { sha256: digest }, 6), (Control::Sha { sha256: digest }, 11)]
    {
        assert_eq!(message.emit(), [&[code][..], &digest].concat());
    }
}

#[test]
fn a_name_and_a_message_may_be_as_long_as_their_limits_and_no_longer() {
    let hello = |len| {
        let session = Session::Get { name: "n".repeat(len) };
        Hello::parse(&Hello { session, len: 0, depth: 0 }.emit())
    };
    assert!(hello(NAME_LEN_MAX).is_ok());
    assert_eq!(hello(NAME_LEN_MAX + 1), Err(ProtocolError::Malformed));
    // A byte less or more than the fields is malformed.
    let whole = Hello { session: Session::PingPong(region()), len: 0, depth: 0 }.emit();
    assert_eq!(Hello::parse(&whole[..whole.len() - 1]), Err(ProtocolError::Malformed));
    assert_eq!(Hello::parse(&[&whole[..], &[0]].concat()), Err(ProtocolError::Malformed));
    let control = Control::Credit(1).emit();
    assert_eq!(Control::parse(&control[..4]), Err(ProtocolError::Malformed));
    assert_eq!(Control::parse(&[&control[..], &[0]].concat()), Err(ProtocolError::Malformed));
    for unknown in [21, 255] {
        assert_eq!(Control::parse(&[unknown]), Err(ProtocolError::Malformed));
    }
    let unknown = [&header()[..], &[7], &[0; 12]].concat();
    assert_eq!(Hello::parse(&unknown), Err(ProtocolError::Malformed));
}

/// The server posts these receive buffers; a client that expects more would overrun them.
#[test]
fn both_ends_have_buffers_for_the_messages_of_the_other() {
    let name = || "a".to_owned();
    for (session, requests, answers, shown) in [
        (Session::Memory, 2, 4, "reads and writes"),
        (Session::Echo, 2, 4, "echo"),
        (Session::Sink, 2, 4, "sends"),
        (Session::PingPong(region()), 2, 4, "ping-pong"),
        (Session::Both { remote: region(), is_read: false }, 4, 4, "both ways"),
        (Session::Put { name: name(), force: false }, 32, 32, "put a"),
        (Session::Get { name: name() }, 32, 32, "get a"),
    ] {
        assert_eq!((session.requests_max(), session.answers_max()), (requests, answers), "{shown}");
        assert_eq!(session.name(), shown);
    }
}

proptest! {
    #[test]
    fn parsing_arbitrary_octets_never_panics_and_round_trips(
        octets in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut hello = b"urnc\0\x03".to_vec();
        hello.extend(&octets);
        if let Ok(read) = Hello::parse(&hello) {
            prop_assert_eq!(Hello::parse(&read.emit()), Ok(read));
        }
        let _any = Welcome::parse(&hello);
        if let Ok(read) = Control::parse(&octets) {
            prop_assert_eq!(Control::parse(&read.emit()).is_ok(), true);
        }
    }
}
