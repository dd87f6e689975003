//! The peer-to-peer model and its RTR message (RFC 6581 §9.2).

use hex_literal::hex;

use super::*;

fn peer_to_peer(rtr: RtrKinds) -> StartupConfig {
    StartupConfig { peer_to_peer: true, rtr, ..StartupConfig::default() }
}

fn rtr_after(config: StartupConfig, word: [u8; 4]) -> Result<Rtr, MpaStartupError> {
    match initiator(config).handle_bytes(&raw(REPLY_KEY, 0x50, 2, &word))? {
        Progress::Done { value: ReplyOutcome::Accepted(negotiated), .. } => Ok(negotiated.rtr),
        other => panic!("{other:?}"),
    }
}

fn reply_word(rtr: RtrKinds, word: [u8; 4]) -> (Vec<u8>, Negotiated) {
    let config = StartupConfig { rtr, ..StartupConfig::default() };
    let (mut responder, _) = requested(config, &raw(REQUEST_KEY, 0x50, 2, &word));
    let (reply, negotiated) = responder.accept(&Offer { ird: 0, ..OFFER }).unwrap();
    (reply[20..].to_vec(), negotiated)
}

// spec: MPA2-9.1-1, MPA2-9.2-2
#[test]
fn the_request_names_every_supported_message() {
    let offer = Offer { private_data: b"", ird: 1, ord: 2 };
    let word = |rtr| Initiator::new(&peer_to_peer(rtr), &offer).unwrap().1[20..].to_vec();
    assert_eq!(word(RtrKinds::WRITE | RtrKinds::READ), hex!("8001 C002"));
    assert_eq!(word(RtrKinds::all()), hex!("C001 C002"));
}

// spec: MPA2-5-1
#[test]
fn peer_to_peer_model_works_without_depth_negotiation() {
    let config = StartupConfig { negotiate_depths: false, ..peer_to_peer(RtrKinds::WRITE) };
    let (_, request) = Initiator::new(&config, &OFFER).unwrap();
    assert_eq!(request[20..], hex!("BFFF BFFF"));
    // The answer should be 0x3FFF twice. A number for IRD is respected, one for ORD is ignored.
    let negotiated = accepted(config, &raw(REPLY_KEY, 0x50, 2, &hex!("8004 BFF0")));
    assert_eq!((negotiated.ird, negotiated.ord), (16, 4));
}

// spec: MPA2-9.2-8
#[test]
fn the_client_server_model_has_no_flags() {
    let (_, request) = Initiator::new(&StartupConfig::default(), &OFFER).unwrap();
    assert_eq!(request[20..], hex!("0010 0008"));
    // B, C, D of the peer have no meaning then.
    assert_eq!(rtr_after(StartupConfig::default(), hex!("4010 C008")), Ok(Rtr::None));
    let (word, negotiated) = reply_word(RtrKinds::all(), hex!("4010 C008"));
    assert_eq!(word, hex!("0000 0008"));
    assert_eq!(negotiated.rtr, Rtr::None);
}

// spec: MPA2-9.2-1, MPA2-9.2-4
#[test]
fn responder_names_the_requested_rtr_messages_that_it_supports() {
    let (word, negotiated) = reply_word(RtrKinds::WRITE | RtrKinds::SEND, hex!("8010 C008"));
    assert_eq!(word, hex!("8000 8008"));
    assert_eq!(negotiated.rtr, Rtr::Expect(RtrKinds::WRITE));
}

// spec: MPA2-9.1-4
#[test]
fn the_responder_raises_its_ird_for_a_read() {
    let (word, negotiated) = reply_word(RtrKinds::READ, hex!("8010 C000"));
    assert_eq!(word, hex!("8001 4008"));
    assert_eq!(negotiated.ird, 1);
}

// spec: MPA2-9.2-5
#[test]
fn the_responder_names_its_own_when_none_of_the_requested_is_supported() {
    let (word, _) = reply_word(RtrKinds::WRITE, hex!("C010 0008"));
    assert_eq!(word, hex!("8000 8008"));
    let error = rtr_after(peer_to_peer(RtrKinds::SEND), hex!("8001 8008")).unwrap_err();
    assert!(matches!(error, MpaStartupError::NoMatchingRtr(_)));
    assert!(error.terminates_in().is_some());
}

// spec: MPA2-9.2-6, MPA2-9.2-11
#[test]
fn the_initiator_follows_the_flags_of_the_reply() {
    let config = peer_to_peer(RtrKinds::all());
    assert_eq!(rtr_after(config, hex!("C001 C001")), Ok(Rtr::Send(RtrKind::WriteZero)));
    assert_eq!(rtr_after(config, hex!("C001 4001")), Ok(Rtr::Send(RtrKind::ReadZero)));
    assert_eq!(rtr_after(config, hex!("C001 0001")), Ok(Rtr::Send(RtrKind::SendZero)));
    // No Read toward a responder that accepts none.
    assert_eq!(rtr_after(config, hex!("C000 4001")), Ok(Rtr::Send(RtrKind::SendZero)));
    for word in [hex!("8000 4001"), hex!("8001 0001"), hex!("0001 C001")] {
        let error = rtr_after(config, word).unwrap_err();
        assert!(matches!(error, MpaStartupError::NoMatchingRtr(_)), "{word:x?}");
    }
}

#[test]
fn a_read_as_rtr_has_an_ord_even_if_the_application_wants_none() {
    let offer = Offer { ord: 0, ..OFFER };
    let config = peer_to_peer(RtrKinds::READ);
    let (outcome, responder) = connect((config, offer), (config, Offer { ird: 0, ..OFFER }));
    let Ok(ReplyOutcome::Accepted(initiator)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(initiator.rtr, Rtr::Send(RtrKind::ReadZero));
    assert_eq!((initiator.ord, responder.ird), (1, 1));
}

#[test]
fn the_framing_of_the_last_terminate_follows_both_frames() {
    let config = StartupConfig { markers: true, crc: false, ..peer_to_peer(RtrKinds::SEND) };
    let error =
        initiator(config).handle_bytes(&raw(REPLY_KEY, 0xD0, 2, &hex!("8001 8001"))).unwrap_err();
    let expected =
        Framing { revision: Revision::Two, crc: true, markers_to_peer: true, markers_to_us: true };
    assert_eq!(error, MpaStartupError::NoMatchingRtr(expected));
}
