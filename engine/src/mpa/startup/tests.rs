mod depths;
mod fallback;
mod peer_to_peer;
mod rdmac;

use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::wire::mpa::StartupKind;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const OFFER: Offer<'_> = Offer { private_data: b"", ird: 16, ord: 8 };

fn plain() -> StartupConfig {
    StartupConfig { revision: Revision::One, ..StartupConfig::default() }
}

/// Builds a frame from its key, flags, revision and private data.
fn raw(key: [u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let mut frame = key.to_vec();
    frame.extend([flags, revision]);
    frame.extend(u16::try_from(private_data.len()).unwrap().to_be_bytes());
    frame.extend(private_data);
    frame
}

fn initiator(config: StartupConfig) -> Initiator {
    Initiator::new(&config, &OFFER).unwrap().0
}

fn responder(config: StartupConfig) -> Responder {
    Responder::new(&config).unwrap()
}

fn done<T: std::fmt::Debug>(progress: Result<Progress<T>, MpaStartupError>, len: usize) -> T {
    match progress {
        Ok(Progress::Done { consumed, value }) if consumed == len => value,
        other => panic!("{len} octets expected to be a frame: {other:?}"),
    }
}

fn accepted(config: StartupConfig, reply: &[u8]) -> Negotiated {
    match done(initiator(config).handle_bytes(reply), reply.len()) {
        ReplyOutcome::Accepted(negotiated) => negotiated,
        ReplyOutcome::Rejected(rejection) => panic!("{rejection:?}"),
    }
}

fn requested(config: StartupConfig, request: &[u8]) -> (Responder, PeerRequest) {
    let mut responder = responder(config);
    let peer = done(responder.handle_bytes(request), request.len());
    (responder, peer)
}

/// Connects both sides. Returns the terms of the initiator and of the responder.
fn connect(
    active: (StartupConfig, Offer<'_>),
    passive: (StartupConfig, Offer<'_>),
) -> (Result<ReplyOutcome, MpaStartupError>, Negotiated) {
    let (mut initiator, request) = Initiator::new(&active.0, &active.1).unwrap();
    let (mut responder, _) = requested(passive.0, &request);
    let (reply, negotiated) = responder.accept(&passive.1).unwrap();
    let outcome = initiator.handle_bytes(&reply).map(|progress| match progress {
        Progress::Done { consumed, value } if consumed == reply.len() => value,
        other => panic!("{other:?}"),
    });
    (outcome, negotiated)
}

// spec: DDP-3-6, MPA-1.2-1, MPA-4.4-1, MPA-7.1-4, MPA-7.1.2-1, MPA2-6-2, MPA2-9-1
#[test]
fn the_default_request_asks_for_crc_and_depths() {
    let (_, request) = Initiator::new(&StartupConfig::default(), &OFFER).unwrap();
    assert_eq!(request, raw(REQUEST_KEY, 0x50, 2, &hex!("0010 0008")));
    let (_, request) = Initiator::new(&plain(), &OFFER).unwrap();
    assert_eq!(request, raw(REQUEST_KEY, 0x40, 1, b""));
}

// spec: MPA2-10-5
#[test]
fn plain_request_is_sent_if_no_enhanced_feature_is_wanted() {
    let config = StartupConfig { negotiate_depths: false, ..StartupConfig::default() };
    let (_, request) = Initiator::new(&config, &OFFER).unwrap();
    assert_eq!(request, raw(REQUEST_KEY, 0x40, 2, b""));
    let negotiated = accepted(config, &raw(REPLY_KEY, 0x40, 2, b"x"));
    assert!(!negotiated.enhanced);
    assert_eq!((negotiated.ird, negotiated.ord), (16, 8));
    assert_eq!(negotiated.private_data, b"x");
}

// spec: MPA-4.4-2
#[test]
fn crc_is_off_only_if_both_sides_say_so() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let active = StartupConfig { crc: ours, ..StartupConfig::default() };
        let passive = StartupConfig { crc: theirs, ..StartupConfig::default() };
        let (outcome, responder) = connect((active, OFFER), (passive, OFFER));
        let Ok(ReplyOutcome::Accepted(initiator)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(initiator.framing.crc, ours || theirs);
        assert_eq!(responder.framing.crc, ours || theirs);
    }
}

#[test]
fn immediates_need_both_ends_and_the_reply_flag_needs_a_request() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let active = StartupConfig { immediates: ours, ..plain() };
        let passive = StartupConfig { immediates: theirs, ..plain() };
        let (outcome, responder) = connect((active, OFFER), (passive, OFFER));
        let Ok(ReplyOutcome::Accepted(initiator)) = outcome else { panic!("{outcome:?}") };
        assert_eq!((initiator.immediates, responder.immediates), (ours && theirs, ours && theirs));
        // RFC 5044 §7.1.1: reserved bits are 0 unless the extension is requested.
        let (_, request) = Initiator::new(&active, &OFFER).unwrap();
        assert_eq!(request, raw(REQUEST_KEY, 0x40 | u8::from(ours), 1, b""));
        let (mut responder, peer) = requested(passive, &request);
        assert_eq!(peer.immediates, ours);
        let (reply, _) = responder.accept(&OFFER).unwrap();
        assert_eq!(reply, raw(REPLY_KEY, 0x40 | u8::from(ours && theirs) << 1, 1, b""));
        // siw returns unknown bits of the Request: that is no answer.
        for unknown in [0x01, 0x03] {
            let (mut initiator, _) = Initiator::new(&active, &OFFER).unwrap();
            let echoed = raw(REPLY_KEY, 0x40 | unknown, 1, b"");
            let terms = match done(initiator.handle_bytes(&echoed), echoed.len()) {
                ReplyOutcome::Accepted(terms) => terms,
                other => panic!("{other:?}"),
            };
            assert!(!terms.immediates);
        }
    }
}

#[test]
fn a_reply_repeats_the_requests_c() {
    // If siw is set to require CRCs, it refuses a Reply with C = 0.
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let flags = if theirs { 0x40 } else { 0 };
        let mut responder = responder(StartupConfig { crc: ours, ..plain() });
        responder.handle_bytes(&raw(REQUEST_KEY, flags, 1, b"")).unwrap();
        let (reply, _) = responder.accept(&OFFER).unwrap();
        assert_eq!(reply[16] & 0x40 != 0, ours || theirs);
    }
}

// spec: MPA-4.3-1, MPA-4.3-10, MPA-7.1.1-2
#[test]
fn markers_are_per_direction() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let active = StartupConfig { markers: ours, ..plain() };
        let passive = StartupConfig { markers: theirs, ..plain() };
        let (outcome, responder) = connect((active, OFFER), (passive, OFFER));
        let Ok(ReplyOutcome::Accepted(initiator)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(initiator.framing.markers_to_us, ours);
        assert_eq!(initiator.framing.markers_to_peer, theirs);
        assert_eq!(responder.framing.markers_to_us, theirs);
        assert_eq!(responder.framing.markers_to_peer, ours);
    }
}

// spec: MPA-7.1.1-1
#[test]
fn every_wrong_key_octet_ends_the_startup_at_once() {
    for at in 0..16 {
        let mut request = raw(REQUEST_KEY, 0x40, 1, b"");
        request[at] ^= 0x80;
        let expected = Err(MpaStartupError::Frame(StartupFrameError::Key));
        assert_eq!(responder(plain()).handle_bytes(&request[..=at]), expected);
        let mut reply = raw(REPLY_KEY, 0x40, 1, b"");
        reply[at] ^= 0x80;
        let error = initiator(plain()).handle_bytes(&reply).unwrap_err();
        assert_eq!(error, MpaStartupError::Frame(StartupFrameError::Key));
        assert_eq!(error.terminates_in(), None);
    }
}

// spec: MPA-7.1.2-10
#[test]
fn two_initiators_and_two_responders_fail() {
    let kind = |kind| MpaStartupError::Frame(StartupFrameError::Kind(kind));
    let (mut initiator, request) = Initiator::new(&plain(), &OFFER).unwrap();
    assert_eq!(initiator.handle_bytes(&request), Err(kind(StartupKind::Request)));
    let reply = raw(REPLY_KEY, 0x40, 1, b"");
    assert_eq!(responder(plain()).handle_bytes(&reply), Err(kind(StartupKind::Reply)));
}

// spec: MPA-7.1.1-3, MPA-7.1.1-4
#[test]
fn r_and_reserved_flags_of_a_request_are_not_examined() {
    let (_, peer) = requested(plain(), &raw(REQUEST_KEY, 0x3F, 1, b"pd"));
    assert!(!peer.markers && !peer.crc && !peer.enhanced);
    assert_eq!(peer.private_data, b"pd");
}

// spec: MPA-7.1.1-5, MPA-C-3
#[test]
fn unknown_revisions_are_refused_before_the_private_data() {
    for revision in [0, 3, 255] {
        let request = raw(REQUEST_KEY, 0xC0, revision, &[0; 100]);
        let mut responder = responder(StartupConfig::default());
        let expected = Err(MpaStartupError::Revision(revision));
        assert_eq!(responder.handle_bytes(&request[..20]), expected);
        let reply = raw(REPLY_KEY, 0xC0, revision, &[0; 100]);
        let error = initiator(plain()).handle_bytes(&reply[..20]).unwrap_err();
        assert_eq!(error, MpaStartupError::Revision(revision));
    }
}

// spec: MPA-7.1.1-6, MPA-7.1.2-12
#[test]
fn private_data_of_512_octets_is_the_limit() {
    for len in [0, 1, 512] {
        let private_data = vec![7; len];
        let (_, peer) = requested(plain(), &raw(REQUEST_KEY, 0, 1, &private_data));
        assert_eq!(peer.private_data, private_data);
    }
    for len in [513, 65535] {
        let request = raw(REQUEST_KEY, 0, 1, &vec![7; usize::from(len)]);
        let expected = Err(MpaStartupError::Frame(StartupFrameError::PrivateDataLen(len)));
        assert_eq!(responder(plain()).handle_bytes(&request[..20]), expected);
    }
}

// spec: MPA-7.1-1
#[test]
fn a_dribbling_request_is_read_and_the_boundary_is_exact() {
    let mut request = raw(REQUEST_KEY, 0x40, 1, b"hello");
    let frame_len = request.len();
    let mut responder = responder(plain());
    for octet in &request[..frame_len - 1] {
        let octet = std::slice::from_ref(octet);
        assert_eq!(responder.handle_bytes(octet), Ok(Progress::NeedMore));
        assert_eq!(responder.handle_bytes(&[]), Ok(Progress::NeedMore));
        assert_eq!(responder.accept(&OFFER), Err(StartupMisuse::NoRequest));
    }
    request.extend([0xAA; 3]);
    let peer = done(responder.handle_bytes(&request[frame_len - 1..]), 1);
    assert_eq!(peer.private_data, b"hello");
}

// spec: MPA-7.1.2-14
#[test]
fn octets_between_request_and_reply_are_an_error() {
    let (mut responder, _) = requested(plain(), &raw(REQUEST_KEY, 0x40, 1, b""));
    assert_eq!(responder.handle_bytes(&[]), Ok(Progress::NeedMore));
    assert_eq!(responder.handle_bytes(&[0]), Err(MpaStartupError::EarlyData));
    let mut initiator = initiator(plain());
    done(initiator.handle_bytes(&raw(REPLY_KEY, 0x40, 1, b"")), 20);
    assert_eq!(initiator.handle_bytes(&[0]), Err(MpaStartupError::EarlyData));
}

#[test]
fn a_rejection_is_no_error() {
    let (mut responder, _) = requested(plain(), &raw(REQUEST_KEY, 0x40, 1, b""));
    let reply = responder.reject(&Offer { private_data: b"no", ..OFFER }).unwrap();
    assert_eq!(reply, raw(REPLY_KEY, 0x60, 1, b"no"));
    let outcome = done(initiator(plain()).handle_bytes(&reply), reply.len());
    let expected = Rejection { peer_depths: PeerDepths::default(), private_data: b"no".to_vec() };
    assert_eq!(outcome, ReplyOutcome::Rejected(expected));
    assert_eq!(responder.reject(&OFFER), Err(StartupMisuse::NoRequest));
    assert_eq!(responder.accept(&OFFER), Err(StartupMisuse::NoRequest));
}

#[test]
fn a_plain_rejection_of_an_enhanced_request_is_taken() {
    let reply = raw(REPLY_KEY, 0x20, 1, b"");
    let outcome = done(initiator(StartupConfig::default()).handle_bytes(&reply), 20);
    assert!(matches!(outcome, ReplyOutcome::Rejected(_)));
}

// spec: MPA2-6-3, MPA2-6-7
#[test]
fn a_revision_1_request_takes_a_revision_1_reply() {
    // Bit 0x10 is reserved in revision 1.
    let request = raw(REQUEST_KEY, 0x50, 1, b"data");
    let (mut responder, peer) = requested(StartupConfig::default(), &request);
    assert_eq!((peer.revision, peer.enhanced), (Revision::One, false));
    assert_eq!(peer.private_data, b"data");
    let (reply, negotiated) = responder.accept(&OFFER).unwrap();
    assert_eq!(reply, raw(REPLY_KEY, 0x40, 1, b""));
    assert_eq!(negotiated.framing.revision, Revision::One);
    assert_eq!((negotiated.ird, negotiated.ord), (16, 8));
}

#[test]
fn a_plain_revision_2_request_takes_a_plain_revision_2_reply() {
    let (mut responder, _) = requested(StartupConfig::default(), &raw(REQUEST_KEY, 0, 2, b"d"));
    let (reply, negotiated) = responder.accept(&OFFER).unwrap();
    assert_eq!(reply, raw(REPLY_KEY, 0x40, 2, b""));
    assert!(!negotiated.enhanced);
    assert_eq!(negotiated.private_data, b"d");
}

// spec: MPA2-10-3
#[test]
fn a_revision_1_responder_refuses_an_enhanced_request() {
    let (_, request) = Initiator::new(&StartupConfig::default(), &OFFER).unwrap();
    let expected = Err(MpaStartupError::Revision(2));
    assert_eq!(responder(plain()).handle_bytes(&request), expected);
}

// spec: MPA2-10-1
#[test]
fn reply_format_must_match_the_request() {
    let mismatch = Err(MpaStartupError::EnhancedMismatch);
    let mut enhanced = initiator(StartupConfig::default());
    assert_eq!(enhanced.handle_bytes(&raw(REPLY_KEY, 0x40, 2, b"")), mismatch);
    let mut enhanced = initiator(StartupConfig::default());
    assert_eq!(enhanced.handle_bytes(&raw(REPLY_KEY, 0x50, 1, &[0; 4])), mismatch);
    let config = StartupConfig { negotiate_depths: false, ..StartupConfig::default() };
    let reply = raw(REPLY_KEY, 0x50, 2, &[0; 4]);
    assert_eq!(initiator(config).handle_bytes(&reply), mismatch);
    let expected = Err(MpaStartupError::Revision(2));
    assert_eq!(initiator(plain()).handle_bytes(&reply), expected);
}

// spec: MPA2-6-5, MPA2-6-6
#[test]
fn enhanced_private_data_is_508_octets_at_most_without_the_word() {
    let data = [9; 509];
    let offer = |len| Offer { private_data: &data[..len], ..OFFER };
    let config = StartupConfig::default();
    let (outcome, responder) = connect((config, offer(508)), (config, offer(3)));
    let Ok(ReplyOutcome::Accepted(initiator)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(responder.private_data, [9; 508]);
    assert_eq!(initiator.private_data, [9; 3]);
    let misuse = StartupMisuse::PrivateDataLen { len: 509, len_max: 508 };
    assert_eq!(Initiator::new(&config, &offer(509)).unwrap_err(), misuse);
    assert!(Initiator::new(&plain(), &offer(509)).is_ok());
    let misuse = StartupMisuse::PrivateDataLen { len: 513, len_max: 512 };
    let offer = Offer { private_data: &[0; 513], ..OFFER };
    assert_eq!(Initiator::new(&plain(), &offer).unwrap_err(), misuse);
}

#[test]
fn a_misused_answer_can_be_repeated() {
    let (mut responder, _) = requested(plain(), &raw(REQUEST_KEY, 0x40, 1, b""));
    let deep = Offer { ird: READS_OUTSTANDING_MAX + 1, ..OFFER };
    assert_eq!(responder.accept(&deep), Err(StartupMisuse::Depth));
    assert!(responder.accept(&OFFER).is_ok());
}

// spec: MPA2-9.2-3
#[test]
fn senseless_configurations_are_refused() {
    let error = |config: StartupConfig| Responder::new(&config).unwrap_err();
    let rdmac = StartupConfig { revision: Revision::Rdmac, markers: true, ..plain() };
    assert_eq!(error(StartupConfig { markers: false, ..rdmac }), StartupMisuse::RdmacFraming);
    assert_eq!(error(StartupConfig { crc: false, ..rdmac }), StartupMisuse::RdmacFraming);
    assert!(Responder::new(&rdmac).is_ok());
    assert_eq!(error(StartupConfig { rtr: RtrKinds::empty(), ..plain() }), StartupMisuse::NoRtr);
    assert_eq!(
        error(StartupConfig { peer_to_peer: true, ..plain() }),
        StartupMisuse::PeerToPeerRevision
    );
}

// spec: MPA-3-7
#[test]
fn upper_layers_use_the_version_of_the_revision() {
    assert_eq!(Revision::Two.protocol_version(), ProtocolVersion::IETF);
    assert_eq!(Revision::One.protocol_version(), ProtocolVersion::IETF);
    assert_eq!(Revision::Rdmac.protocol_version(), ProtocolVersion::RDMAC);
    for revision in [Revision::Rdmac, Revision::One, Revision::Two] {
        assert_eq!(Revision::from_wire(revision.to_wire()), Some(revision));
    }
    assert_eq!(Revision::from_wire(3), None);
}

fn any_config() -> impl Strategy<Value = StartupConfig> {
    (any::<[bool; 5]>(), 1..8_u8).prop_map(|([markers, crc, two, depths, p2p], rtr)| {
        StartupConfig {
            markers,
            crc,
            revision: if two { Revision::Two } else { Revision::One },
            negotiate_depths: depths,
            peer_to_peer: p2p && two,
            rtr: RtrKinds::from_bits_truncate(rtr),
            ..StartupConfig::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // spec: MPA2-9.1-3
    #[test]
    fn both_sides_agree_for_any_configuration(
        active in any_config(),
        passive in any_config(),
        depths in prop::array::uniform4(0..=READS_OUTSTANDING_MAX),
    ) {
        let passive = StartupConfig { revision: Revision::Two, ..passive };
        let [ird, ord, peer_ird, peer_ord] = depths;
        let offer = Offer { private_data: b"a", ird, ord };
        let answer = Offer { private_data: b"p", ird: peer_ird, ord: peer_ord };
        let (outcome, responder) = connect((active, offer), (passive, answer));
        match outcome {
            Ok(ReplyOutcome::Accepted(initiator)) => {
                prop_assert_eq!(initiator.framing.crc, responder.framing.crc);
                prop_assert_eq!(initiator.framing.revision, responder.framing.revision);
                prop_assert_eq!(initiator.enhanced, responder.enhanced);
                if initiator.enhanced && active.negotiate_depths {
                    // RFC 6581 §9.1, state after success.
                    prop_assert!(initiator.ord <= responder.ird);
                    prop_assert!(responder.ord <= initiator.ird);
                }
                match (initiator.rtr, responder.rtr) {
                    (Rtr::None, Rtr::None) => prop_assert!(!active.peer_to_peer),
                    (Rtr::Send(kind), Rtr::Expect(kinds)) => {
                        let kind = match kind {
                            RtrKind::SendZero => RtrKinds::SEND,
                            RtrKind::WriteZero => RtrKinds::WRITE,
                            RtrKind::ReadZero => RtrKinds::READ,
                        };
                        prop_assert!(active.rtr.contains(kind) && kinds.contains(kind));
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            Err(MpaStartupError::NoMatchingRtr(_)) => {
                prop_assert!(active.peer_to_peer && (active.rtr & passive.rtr).is_empty());
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn parsing_arbitrary_octets_in_pieces_never_panics(
        key_len in 0..=16_usize,
        mut octets in prop::collection::vec(any::<u8>(), 0..600),
        small in any::<bool>(),
        piece in 1..50_usize,
    ) {
        if small && octets.len() > 3 {
            octets[1] = 2;
            octets[2] = 0;
        }
        let bytes = |key: [u8; 16]| -> Vec<u8> {
            key[..key_len].iter().chain(&octets).copied().collect()
        };
        let mut responder = responder(StartupConfig::default());
        for piece in bytes(REQUEST_KEY).chunks(piece) {
            if let Err(error) = responder.handle_bytes(piece) {
                prop_assert!(error.terminates_in().is_none());
                break;
            }
        }
        let mut initiator = initiator(StartupConfig::default());
        for piece in bytes(REPLY_KEY).chunks(piece) {
            match initiator.handle_bytes(piece) {
                Ok(Progress::NeedMore) => {}
                Ok(Progress::Done { consumed, .. }) => {
                    prop_assert!(consumed <= piece.len());
                    break;
                }
                Err(error) => {
                    // The error persists.
                    prop_assert_eq!(initiator.handle_bytes(&[]), Err(error));
                    break;
                }
            }
        }
    }
}
