//! IRD and ORD (RFC 6581 §9.1).

use hex_literal::hex;

use super::*;

fn enhanced_reply(word: [u8; 4]) -> Vec<u8> {
    raw(REPLY_KEY, 0x50, 2, &word)
}

fn respond_to(word: [u8; 4], offer: &Offer<'_>) -> (Vec<u8>, Negotiated, PeerRequest) {
    let config = StartupConfig::default();
    let (mut responder, peer) = requested(config, &raw(REQUEST_KEY, 0x50, 2, &word));
    let (reply, negotiated) = responder.accept(offer).unwrap();
    (reply[20..].to_vec(), negotiated, peer)
}

// spec: MPA2-9.1-2
#[test]
fn responder_ord_does_not_exceed_initiator_ird() {
    let offer = Offer { private_data: b"", ird: 32, ord: 16 };
    let (word, negotiated, peer) = respond_to(hex!("0004 0008"), &offer);
    assert_eq!(word, hex!("0020 0004"));
    assert_eq!((negotiated.ird, negotiated.ord), (32, 4));
    assert_eq!(peer.depths, PeerDepths { ird: Some(4), ord: Some(8) });
    assert_eq!(negotiated.peer_depths, peer.depths);
}

// spec: MPA2-9.1-11
#[test]
fn huge_values_of_the_initiator_change_nothing_beyond_the_offer() {
    let (word, negotiated, _) = respond_to(hex!("3FFE 3FFE"), &OFFER);
    assert_eq!(word, hex!("0010 0008"));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 8));
    assert_eq!(negotiated.peer_depths.ird, Some(16382));
}

// spec: MPA2-9.1-9, MPA2-9.1-10
#[test]
fn unnegotiated_ird_and_ord_are_answered_independently() {
    let (word, negotiated, peer) = respond_to(hex!("0004 3FFF"), &OFFER);
    assert_eq!(word, hex!("3FFF 0004"));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 4));
    assert_eq!(peer.depths, PeerDepths { ird: Some(4), ord: None });
    let (word, negotiated, peer) = respond_to(hex!("3FFF 0004"), &OFFER);
    assert_eq!(word, hex!("0010 3FFF"));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 8));
    assert_eq!(peer.depths, PeerDepths { ird: None, ord: Some(4) });
}

// spec: RDMAP-6.1-2, MPA2-9.1-6, MPA2-9.1-8
#[test]
fn initiator_lowers_its_ord_to_the_responder_ird() {
    let negotiated = accepted(StartupConfig::default(), &enhanced_reply(hex!("0002 0000")));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 2));
    assert_eq!(negotiated.peer_depths, PeerDepths { ird: Some(2), ord: Some(0) });
}

// spec: MPA2-9.1-6
#[test]
fn initiator_raises_its_ird_to_the_responder_ord_as_far_as_it_can() {
    let negotiated = accepted(StartupConfig::default(), &enhanced_reply(hex!("0010 0080")));
    assert_eq!((negotiated.ird, negotiated.ord), (READS_OUTSTANDING_MAX, 8));
    for word in [hex!("0010 0081"), hex!("0010 00C8"), hex!("0010 3FFE")] {
        let mut initiator = initiator(StartupConfig::default());
        let error = initiator.handle_bytes(&enhanced_reply(word)).unwrap_err();
        assert!(matches!(error, MpaStartupError::InsufficientIrd(framing) if framing.crc));
        assert!(error.terminates_in().is_some());
    }
}

// spec: MPA2-9.1-9
#[test]
fn unnegotiated_values_keep_the_initiators_depths() {
    let negotiated = accepted(StartupConfig::default(), &enhanced_reply(hex!("3FFF 3FFF")));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 8));
    assert_eq!(negotiated.peer_depths, PeerDepths::default());
    let negotiated = accepted(StartupConfig::default(), &enhanced_reply(hex!("3FFF 0020")));
    assert_eq!((negotiated.ird, negotiated.ord), (32, 8));
    let negotiated = accepted(StartupConfig::default(), &enhanced_reply(hex!("0001 3FFF")));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 1));
}

// spec: MPA2-9.1-5, MPA2-9.1-8
#[test]
fn rejection_carries_the_required_depths() {
    let config = StartupConfig::default();
    let (mut initiator, request) = Initiator::new(&config, &OFFER).unwrap();
    let (mut responder, _) = requested(config, &request);
    let needed = Offer { private_data: b"why", ird: 16, ord: 64 };
    let reply = responder.reject(&needed).unwrap();
    assert_eq!(reply, raw(REPLY_KEY, 0x70, 2, &hex!("0010 0040 776879")));
    let outcome = done(initiator.handle_bytes(&reply), reply.len());
    let peer_depths = PeerDepths { ird: Some(16), ord: Some(64) };
    let expected = Rejection { peer_depths, private_data: b"why".to_vec() };
    assert_eq!(outcome, ReplyOutcome::Rejected(expected));
}

#[test]
fn depths_beyond_the_limit_are_misuse() {
    for offer in [
        Offer { ird: READS_OUTSTANDING_MAX + 1, ..OFFER },
        Offer { ord: EnhancedHeader::NOT_NEGOTIATED, ..OFFER },
    ] {
        let misuse = Initiator::new(&StartupConfig::default(), &offer).unwrap_err();
        assert_eq!(misuse, StartupMisuse::Depth);
    }
}
