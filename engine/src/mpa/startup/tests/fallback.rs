//! The next attempt of an initiator (RFC 6581 §10).

use super::*;

const REJECTION: Rejection =
    Rejection { peer_depths: PeerDepths { ird: None, ord: None }, private_data: Vec::new() };

fn marked() -> StartupConfig {
    StartupConfig { markers: true, ..StartupConfig::default() }
}

fn retry(config: StartupConfig, setback: Setback<'_>) -> Option<StartupConfig> {
    initiator(config).retry(&setback).map(|retry| retry.startup)
}

#[test]
fn retry_uses_revision_1_and_then_no_markers() {
    let second = retry(marked(), Setback::Closed).unwrap();
    assert_eq!((second.revision, second.markers), (Revision::One, true));
    let third = retry(second, Setback::Closed).unwrap();
    assert_eq!((third.revision, third.markers), (Revision::One, false));
    assert_eq!(retry(third, Setback::Closed), None, "each thing is done without once");
    let plain = retry(StartupConfig::default(), Setback::Closed).unwrap();
    assert_eq!(retry(plain, Setback::Closed), None);
}

#[test]
fn a_reply_that_does_not_answer_the_enhanced_request_leads_to_revision_1() {
    let mut initiator = initiator(StartupConfig::default());
    let error = initiator.handle_bytes(&raw(REPLY_KEY, 0x40, 1, b"")).unwrap_err();
    let retry = initiator.retry(&Setback::Unusable(error)).unwrap();
    assert_eq!(retry.startup.revision, Revision::One);
    assert!(!retry.startup.fallback.contains(Fallback::REVISION_1));
}

#[test]
fn rejection_without_private_data_retries_without_markers() {
    let second = retry(marked(), Setback::Rejected(&REJECTION)).unwrap();
    assert_eq!((second.revision, second.markers), (Revision::Two, false));
    assert_eq!(retry(second, Setback::Rejected(&REJECTION)), None);
    let said_why = Rejection { private_data: b"full".to_vec(), ..REJECTION };
    assert_eq!(retry(marked(), Setback::Rejected(&said_why)), None, "the application's decision");
    assert_eq!(retry(StartupConfig::default(), Setback::Rejected(&REJECTION)), None);
}

#[test]
fn no_retry_if_fallback_is_disallowed_or_useless() {
    let strict = StartupConfig { fallback: Fallback::empty(), ..marked() };
    assert_eq!(retry(strict, Setback::Closed), None);
    assert_eq!(retry(strict, Setback::Rejected(&REJECTION)), None);
    // Revision 1 has no peer-to-peer model.
    let p2p = StartupConfig { peer_to_peer: true, ..StartupConfig::default() };
    assert_eq!(retry(p2p, Setback::Closed), None);
    for error in [
        MpaStartupError::Frame(StartupFrameError::Key),
        MpaStartupError::Revision(3),
        MpaStartupError::EarlyData,
    ] {
        assert_eq!(retry(marked(), Setback::Unusable(error)), None);
    }
    let rdmac = StartupConfig { revision: Revision::Rdmac, ..marked() };
    assert_eq!(retry(rdmac, Setback::Closed), None);
}

#[test]
fn retry_repeats_the_offer_unchanged() {
    let offer = Offer { private_data: b"please", ird: 3, ord: 4 };
    let (initiator, _) = Initiator::new(&StartupConfig::default(), &offer).unwrap();
    assert_eq!(initiator.retry(&Setback::Closed).unwrap().offer(), offer);
}
