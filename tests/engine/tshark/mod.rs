//! An external check: Wireshark's dissectors read the messages between two ends of urnic.
//!
//! A session is recorded on the memory link. `tshark` must find every FPDU that was sent, with
//! every CRC good and every field as in urnic's own headers, and nothing malformed. Without
//! `tshark` the tests are skipped; with `URNIC_REQUIRE` set that is a failure.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "test patterns are made of low octets")]

mod dissect;
mod sent;
mod session;

use urnic_engine::mpa::startup::{Revision, RtrKinds, StartupConfig};
use urnic_engine::port::LowerLayer;
use urnic_netdev::Medium;
use urnic_netdev::memory::LinkConfig;

use dissect::{Fields, Verdict, judge};
use session::{Session, Settings};

/// Compares the fields that `tshark` reads with the sent ones.
fn agrees(name: &str, session: &Session, crc: bool) {
    let capture = session.capture();
    let Some(Verdict { fields, crcs_good, text }) = judge(name, &capture) else { return };
    let mut expected = Fields::default();
    let mut fpdus = 0;
    for stream in session.streams() {
        fpdus += sent::read(&stream, &mut expected);
    }
    assert!(fpdus > 0, "{name} has FPDUs");
    for field in expected.names() {
        let (ours, theirs) = (expected.sorted(field), fields.sorted(field));
        assert_eq!(theirs, ours, "{name}: {field}");
    }
    assert_eq!(crcs_good, if crc { fpdus } else { 0 }, "{name}: every CRC is good");
    for complaint in
        ["Bad CRC32", "Malformed Packet: iWARP", "Malformed Packet: MPA", "Unreassembled"]
    {
        assert!(!text.contains(complaint), "{name}: {complaint}");
    }
}

fn all_operations(name: &str, settings: Settings) {
    let crc = settings.startup.crc;
    let mut session = Session::connect(settings);
    session.every_operation();
    session.terminate();
    agrees(name, &session, crc);
}

#[test]
fn every_operation_in_whole_segments() {
    for mtu in [576, 1500, 9000] {
        let link = LinkConfig { mtu, ..LinkConfig::default() };
        all_operations(&format!("aligned-{mtu}"), Settings { link, ..Settings::default() });
    }
}

#[test]
fn every_operation_in_segments_that_split_fpdus() {
    for mtu in [300, 576, 1500] {
        let link = LinkConfig { mtu, ..LinkConfig::default() };
        let settings = Settings { link, lower_layer: LowerLayer::Layered, ..Settings::default() };
        all_operations(&format!("layered-{mtu}"), settings);
    }
}

#[test]
fn every_operation_without_crcs() {
    let startup = StartupConfig { crc: false, ..StartupConfig::default() };
    all_operations("no-crc", Settings { startup, ..Settings::default() });
}

#[test]
fn every_operation_in_revision_1_and_over_ipv6() {
    let startup = StartupConfig { revision: Revision::One, ..StartupConfig::default() };
    all_operations("revision-1", Settings { startup, ..Settings::default() });
    all_operations("ipv6", Settings { ipv6: true, ..Settings::default() });
}

#[test]
fn every_kind_of_rtr() {
    for (name, rtr) in
        [("send", RtrKinds::SEND), ("write", RtrKinds::WRITE), ("read", RtrKinds::READ)]
    {
        let startup = StartupConfig { peer_to_peer: true, rtr, ..StartupConfig::default() };
        let mut session = Session::connect(Settings { startup, ..Settings::default() });
        session.sends(&[8]);
        agrees(&format!("rtr-{name}"), &session, true);
    }
}

#[test]
fn many_fpdus_in_a_segment() {
    let mut session = Session::connect(Settings::default());
    session.sends(&[1; 60]);
    assert!(session.fpdus_per_segment_max() >= 10, "they were packed");
    agrees("packed", &session, true);
}

#[test]
fn markers_in_segments_of_one_aligned_fpdu() {
    // tshark's support for markers is limited: both directions have them, and no FPDU has more than
    // two.
    let startup = StartupConfig { markers: true, ..StartupConfig::default() };
    let mut session = Session::connect(Settings { startup, ..Settings::default() });
    for len in [1, 100, 400, 480] {
        session.sends(&[len]);
    }
    agrees("markers", &session, true);
}

#[test]
fn a_sequence_number_that_wraps() {
    const LEN: usize = 2 << 20;
    // The initial sequence number follows from the seed; one in about two thousand is close to the
    // wrap.
    let link = LinkConfig { medium: Medium::Ethernet, ..LinkConfig::default() };
    let session = (0..200_000).find_map(|seed| {
        let session = Session::connect(Settings { link, seed, ..Settings::default() });
        let to_wrap = session.first_sequence_number().wrapping_neg() as usize;
        (100_000..LEN - 100_000).contains(&to_wrap).then_some(session)
    });
    let mut session = session.expect("some seed is near the end");
    session.write(LEN);
    assert!(session.wraps(), "the sequence number went through zero");
    agrees("wrap", &session, true);
}
