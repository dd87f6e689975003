//! MPA started on a connection that is in use already (RFC 5044 §7.1, §7.1.5).

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::{ConnectionId, ListenParams, LowerLayer, PortError};
use urnic_engine::stream::{PhaseError, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::verbs::WcStatus;
use urnic_netdev::impair::ImpairConfig;

use crate::teardown::duo::{Duo, LINK, OFFER, Queues, is_established, is_request};
use urnic_testkit::pair::TCP_PORT;

/// Returns two ends in streaming mode.
fn streaming(lower_layer: LowerLayer, impair: ImpairConfig, seed: u64) -> (Duo, [ConnectionId; 2]) {
    let mut duo = Duo::new(LINK, impair, seed);
    let params = ListenParams { delayed: true, lower_layer, ..ListenParams::default() };
    duo.port(1).listen(TCP_PORT, params).unwrap();
    let now = duo.now();
    let opened = duo.port(0).open(now, Duo::listener(), lower_layer).unwrap();
    duo.until(|duo| !duo.sides[1].incoming.is_empty());
    let accepted = duo.sides[1].incoming[0];
    (duo, [opened, accepted])
}

/// Sends bytes and waits until the other end has read all of them.
fn say(duo: &mut Duo, ids: [ConnectionId; 2], from: usize, octets: &[u8]) {
    duo.port(from).send_streaming(ids[from], octets).unwrap();
    hear(duo, ids, 1 - from, octets);
}

fn hear(duo: &mut Duo, ids: [ConnectionId; 2], at: usize, expected: &[u8]) {
    let mut heard: Vec<u8> = Vec::new();
    duo.until(|duo| {
        let mut octets = [0; 1000];
        loop {
            let len = duo.port(at).receive_streaming(ids[at], &mut octets).unwrap();
            heard.extend_from_slice(&octets[..len]);
            if len == 0 {
                return heard.len() >= expected.len();
            }
        }
    });
    assert!(heard == expected);
}

/// Asserts that RDMA works from the initiator on `side` to the other end, and back.
fn rdma_works(duo: &mut Duo, queues: &[Queues; 2], side: usize) {
    for (from, to) in [(side, 1 - side), (1 - side, side)] {
        queues[to].post_receive(1, &duo.sides[to].memory, 20_000);
        queues[from].post_send(2, &duo.sides[from].memory, 20_000);
        duo.until(|_| queues[to].recv.len() == 1 && queues[from].send.len() == 1);
        assert_eq!(queues[to].received(), [(1, WcStatus::Success)]);
        assert_eq!(queues[from].sent(), [(2, WcStatus::Success)]);
    }
}

// spec: RDMAP-6.1-1, MPA-7.1.5-1, MPA-7.1.5-2
#[test]
fn rdma_starts_after_some_streaming() {
    for seed in 0..20 {
        let impair = ImpairConfig {
            loss: 0.02,
            reorder: 0.1,
            resegment: 0.3,
            coalesce: 0.2,
            ..ImpairConfig::default()
        };
        let impair = if seed < 2 { ImpairConfig::default() } else { impair };
        let layers = [LowerLayer::Optimized, LowerLayer::Layered];
        let (mut duo, ids) = streaming(layers[(seed % 2) as usize], impair, seed);
        say(&mut duo, ids, 0, b"login: user");
        say(&mut duo, ids, 1, &[7; 3000]);
        say(&mut duo, ids, 0, b"go to RDMA mode");
        let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
        let startup = StartupConfig { markers: seed % 3 == 0, ..StartupConfig::default() };
        let now = duo.now();
        // RFC 5044 §7.1.5: the last streaming message is sent with the responder's activation.
        duo.port(1).start_responder(now, ids[1], &startup, b"ok").unwrap();
        hear(&mut duo, ids, 0, b"ok");
        let now = duo.now();
        duo.port(0).start_initiator(now, ids[0], &queues[0].qp, &startup, &OFFER).unwrap();
        duo.until(|duo| duo.sides[1].saw(ids[1], is_request));
        duo.port(1).accept(ids[1], &queues[1].qp, &OFFER).unwrap();
        duo.until(|duo| duo.sides[0].saw(ids[0], is_established));
        rdma_works(&mut duo, &queues, 0);
        for side in [0, 1] {
            let again = duo.port(side).send_streaming(ids[side], b"x");
            assert_eq!(again, Err(PortError::Phase(PhaseError::NotStreaming)));
            duo.port(side).disconnect(ids[side]).unwrap();
        }
        duo.ends_empty();
    }
}

// spec: MPA-7.1-3
#[test]
fn the_end_that_was_connected_to_may_be_the_initiator() {
    // RFC 5044 §7.1: the role in MPA does not depend on the sender of the SYN.
    let (mut duo, ids) = streaming(LowerLayer::Optimized, ImpairConfig::default(), 0);
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let (now, startup) = (duo.now(), StartupConfig::default());
    duo.port(0).start_responder(now, ids[0], &startup, b"").unwrap();
    duo.port(1).start_initiator(now, ids[1], &queues[1].qp, &startup, &OFFER).unwrap();
    duo.until(|duo| duo.sides[0].saw(ids[0], is_request));
    duo.port(0).accept(ids[0], &queues[0].qp, &OFFER).unwrap();
    duo.until(|duo| duo.sides[1].saw(ids[1], is_established));
    rdma_works(&mut duo, &queues, 1);
}

#[test]
fn a_request_that_came_before_the_responder_was_started_is_not_lost() {
    let (mut duo, ids) = streaming(LowerLayer::Optimized, ImpairConfig::default(), 0);
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let (now, startup) = (duo.now(), StartupConfig::default());
    duo.port(0).start_initiator(now, ids[0], &queues[0].qp, &startup, &OFFER).unwrap();
    duo.until(|duo| duo.sides[1].saw(ids[1], |event| *event == StreamEvent::StreamingBytes));
    let now = duo.now();
    duo.port(1).start_responder(now, ids[1], &startup, b"").unwrap();
    duo.until(|duo| duo.sides[1].saw(ids[1], is_request));
    duo.port(1).accept(ids[1], &queues[1].qp, &OFFER).unwrap();
    duo.until(|duo| duo.sides[0].saw(ids[0], is_established));
    rdma_works(&mut duo, &queues, 0);
}

#[test]
fn two_initiators_find_out_and_both_fail() {
    let (mut duo, ids) = streaming(LowerLayer::Optimized, ImpairConfig::default(), 0);
    let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
    let (now, startup) = (duo.now(), StartupConfig::default());
    for side in [0, 1] {
        let qp = &queues[side].qp;
        duo.port(side).start_initiator(now, ids[side], qp, &startup, &OFFER).unwrap();
    }
    duo.ends_empty();
    for side in [0, 1] {
        let failed = |event: &StreamEvent| matches!(event, StreamEvent::StartupFailed(_));
        assert!(duo.sides[side].saw(ids[side], failed), "side {side}");
    }
}

#[test]
fn streaming_mode_takes_a_bounded_number_of_octets() {
    let (mut duo, ids) = streaming(LowerLayer::Optimized, ImpairConfig::default(), 0);
    let mut sent = 0;
    let refused = loop {
        match duo.port(0).send_streaming(ids[0], &[1; 10_000]) {
            Ok(()) => sent += 10_000,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, PortError::Phase(PhaseError::StreamingFull));
    // Unread bytes wait in TCP, and are delivered when they are read.
    duo.run(Duration::from_secs(5));
    hear(&mut duo, ids, 1, &vec![1; sent]);
}

#[test]
fn a_connection_may_end_without_mpa_ever_starting() {
    let (mut duo, ids) = streaming(LowerLayer::Optimized, ImpairConfig::default(), 0);
    say(&mut duo, ids, 0, b"only this");
    duo.port(0).disconnect(ids[0]).unwrap();
    duo.until(|duo| duo.sides[1].saw(ids[1], |event| *event == StreamEvent::PeerClosed));
    say(&mut duo, ids, 1, b"and that");
    duo.port(1).disconnect(ids[1]).unwrap();
    duo.ends_empty();
}
