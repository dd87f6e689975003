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
        Session::Put { name: name.clone(), force: true },
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
fn what_is_foreign_or_of_another_version_is_told_apart() {
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

proptest! {
    #[test]
    fn no_octets_make_a_parser_panic_and_what_is_read_is_written_the_same(
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
