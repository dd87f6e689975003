//! Compatibility of both ends: the table of RFC 5044 Appendix C, cell by cell.

use super::*;

/// A kind of RNIC, in the words of RFC 5044 Appendix C.1. The flag is M.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rnic {
    Rdmac,
    NonPermissive(bool),
    Permissive(bool),
}
use Rnic::{NonPermissive, Permissive, Rdmac};

impl Rnic {
    fn config(self) -> StartupConfig {
        let (revision, markers, permissive) = match self {
            Rdmac => (Revision::Rdmac, true, false),
            NonPermissive(markers) => (Revision::One, markers, false),
            Permissive(markers) => (Revision::One, markers, true),
        };
        StartupConfig { revision, markers, permissive, ..StartupConfig::default() }
    }
}

/// Version of DDP and RDMAP, markers toward the initiator, markers toward the responder.
type Terms = (u8, bool, bool);

/// The result: the same terms at both ends, or `None` if one of them closes.
fn outcome(initiator: Rnic, responder: Rnic) -> Option<Terms> {
    let (mut active, request) = Initiator::new(&initiator.config(), &OFFER).unwrap();
    let mut passive = Responder::new(&responder.config()).unwrap();
    match passive.handle_bytes(&request) {
        Ok(Progress::Done { .. }) => {}
        Err(MpaStartupError::Revision(_)) => return None,
        other => panic!("{other:?}"),
    }
    let (reply, at_responder) = passive.accept(&OFFER).unwrap();
    let at_initiator = match active.handle_bytes(&reply) {
        Ok(Progress::Done { value: ReplyOutcome::Accepted(terms), .. }) => terms,
        Err(MpaStartupError::Revision(_)) => return None,
        other => panic!("{other:?}"),
    };
    let [i, r] = [at_initiator.framing, at_responder.framing];
    assert_eq!((i.revision, i.crc), (r.revision, r.crc));
    assert!(i.crc, "each side of the table asks for CRCs");
    assert_eq!((i.markers_to_us, i.markers_to_peer), (r.markers_to_peer, r.markers_to_us));
    Some((i.revision.protocol_version().bits(), i.markers_to_us, i.markers_to_peer))
}

const ALL: [Rnic; 5] =
    [Rdmac, NonPermissive(false), NonPermissive(true), Permissive(false), Permissive(true)];

const fn v(version: u8, to_initiator: u8, to_responder: u8) -> Option<Terms> {
    Some((version, to_initiator == 1, to_responder == 1))
}

// spec: MPA-C-1
#[test]
fn every_cell_of_the_table_of_appendix_c() {
    const CLOSE: Option<Terms> = None;
    // Columns are responders: RDMAC, non-permissive M=0 and M=1, permissive M=0 and M=1. The RFC
    // omits (RDMAC, permissive M=0): such a responder sends M=1 to an RDMAC initiator.
    let table = [
        (Rdmac, [v(0, 1, 1), CLOSE, CLOSE, v(0, 1, 1), v(0, 1, 1)]),
        (NonPermissive(false), [CLOSE, v(1, 0, 0), v(1, 0, 1), v(1, 0, 0), v(1, 0, 1)]),
        (NonPermissive(true), [CLOSE, v(1, 1, 0), v(1, 1, 1), v(1, 1, 0), v(1, 1, 1)]),
        (Permissive(false), [v(0, 1, 1), v(1, 0, 0), v(1, 0, 1), v(1, 0, 0), v(1, 0, 1)]),
        (Permissive(true), [v(0, 1, 1), v(1, 1, 0), v(1, 1, 1), v(1, 1, 0), v(1, 1, 1)]),
    ];
    for (initiator, row) in table {
        for (responder, expected) in ALL.into_iter().zip(row) {
            let came = outcome(initiator, responder);
            assert_eq!(came, expected, "{initiator:?} to {responder:?}");
        }
    }
}

// spec: MPA-C-4
#[test]
fn a_permissive_responder_answers_an_rdmac_request_in_kind() {
    for markers in [false, true] {
        let config = StartupConfig { crc: false, ..Permissive(markers).config() };
        let (mut responder, peer) = requested(config, &raw(REQUEST_KEY, 0xC0, 0, b"pd"));
        // RFC 5044 Appendix C.2.4: the ULP learns that version 0 is in use.
        assert_eq!(peer.revision, Revision::Rdmac);
        let (reply, terms) = responder.accept(&Offer { private_data: b"ok", ..OFFER }).unwrap();
        assert_eq!(reply, raw(REPLY_KEY, 0xC0, 0, b"ok"));
        assert!(terms.framing.crc && terms.framing.markers_to_us && terms.framing.markers_to_peer);
        assert_eq!(terms.framing.revision.protocol_version(), ProtocolVersion::RDMAC);
    }
}

// spec: MPA-C-5
#[test]
fn a_permissive_initiator_says_revision_1_and_goes_over_to_0() {
    let config = StartupConfig { crc: false, ..Permissive(false).config() };
    let (_, request) = Initiator::new(&config, &OFFER).unwrap();
    assert_eq!(request, raw(REQUEST_KEY, 0x00, 1, b""));
    let terms = accepted(config, &raw(REPLY_KEY, 0xC0, 0, b""));
    assert!(terms.framing.crc && terms.framing.markers_to_us && terms.framing.markers_to_peer);
    assert_eq!(terms.framing.revision, Revision::Rdmac);
}

#[test]
fn a_permissive_side_that_knows_rfc_6581_works_with_rdmac_too() {
    let config = StartupConfig { revision: Revision::Two, ..Permissive(false).config() };
    let (_, peer) = requested(config, &raw(REQUEST_KEY, 0xC0, 0, b""));
    assert_eq!(peer.revision, Revision::Rdmac);
    // The enhanced word is Private Data for such a responder: the initiator must retry without it.
    let mut initiator = initiator(config);
    let error = initiator.handle_bytes(&raw(REPLY_KEY, 0xC0, 0, b"")).unwrap_err();
    assert_eq!(error, MpaStartupError::EnhancedMismatch);
    let retry = initiator.retry(&Setback::Unusable(error)).unwrap();
    assert_eq!(
        accepted(retry.startup, &raw(REPLY_KEY, 0xC0, 0, b"")).framing.revision,
        Revision::Rdmac
    );
}

#[test]
fn s_is_a_reserved_bit_in_revision_0() {
    let (_, peer) = requested(Permissive(true).config(), &raw(REQUEST_KEY, 0xD0, 0, b"data"));
    assert!(!peer.enhanced);
    assert_eq!(peer.private_data, b"data");
}

#[test]
fn revision_0_without_markers_is_refused() {
    let request = raw(REQUEST_KEY, 0x40, 0, b"");
    let refused = responder(Permissive(true).config()).handle_bytes(&request);
    assert_eq!(refused, Err(MpaStartupError::Revision(0)));
    let reply = raw(REPLY_KEY, 0x40, 0, b"");
    let refused = initiator(Permissive(true).config()).handle_bytes(&reply);
    assert_eq!(refused, Err(MpaStartupError::Revision(0)));
}

#[test]
fn an_rdmac_initiator_closes_on_a_reply_of_revision_1() {
    // RFC 5044 Appendix C.2.1: a Reply that a non-permissive responder may send before it closes.
    let refused = initiator(Rdmac.config()).handle_bytes(&raw(REPLY_KEY, 0x40, 1, b""));
    assert_eq!(refused, Err(MpaStartupError::Revision(1)));
}
