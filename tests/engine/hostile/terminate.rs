//! Terminate messages from the peer (RFC 5040 §4.8, §5.4, §6.2).

use urnic_engine::stream::StreamEvent;
use urnic_engine::verbs::{QpState, WcStatus};
use urnic_engine::wire::terminate::{Terminate, TerminateCode};

use crate::hostile::scene::{BASE, MOMENT, Scene};
use urnic_testkit::octets::{TERMINATE, WRITE, send, tagged, untagged};

fn terminate(body: &[u8]) -> Vec<u8> {
    untagged(TERMINATE, 2, 1, 0, body)
}

/// Returns a victim with a Read open, a Send behind it and two receives.
fn busy() -> Scene {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    scene.post_receive(100);
    scene.post_read(100);
    scene.post_send();
    scene.run(MOMENT);
    assert_eq!(scene.answers().len(), 2);
    scene
}

fn terminations(scene: &Scene) -> Vec<Terminate> {
    scene
        .events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::Terminated(terminate) => Some(terminate.clone()),
            _ => None,
        })
        .collect()
}

/// Asserts that everything is flushed and only a FIN is sent.
fn is_over(scene: &mut Scene, first: WcStatus) {
    assert_eq!(scene.qp.state(), QpState::Error);
    assert_eq!(scene.answers().len(), 2, "a Terminate is not answered");
    assert!(scene.peer.fin_received);
    assert_eq!(scene.completed().status, first);
    assert_eq!(scene.completed().status, WcStatus::WrFlushErr);
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
    assert!(scene.send_cq.is_empty() && scene.recv_cq.is_empty());
}

// spec: RDMAP-5.4-3, RDMAP-5.4-4, RDMAP-6.2-2, RDMAP-6.2-3, RDMAP-5.5-15
#[test]
fn a_terminate_fails_the_oldest_request_and_flushes_the_rest() {
    let cases = [
        ((1, 1, 0), WcStatus::RemAccessErr),
        ((0, 1, 2), WcStatus::RemAccessErr),
        ((0, 2, 6), WcStatus::RemOpErr),
        ((1, 2, 5), WcStatus::RemInvReqErr),
        ((2, 0, 2), WcStatus::RemOpErr),
    ];
    for ((layer, etype, code), status) in cases {
        let mut scene = busy();
        scene.send(&terminate(&[layer << 4 | etype, code, 0, 0]));
        let code = TerminateCode { layer, etype, code };
        assert_eq!(terminations(&scene), [Terminate::new(code)]);
        is_over(&mut scene, status);
        scene.ends_in_order();
    }
}

// spec: RDMAP-5.4-1
#[test]
fn a_second_terminate_is_ignored() {
    for together in [true, false] {
        let mut scene = busy();
        let both = [terminate(&[0x11, 0, 0, 0]), terminate(&[0x12, 5, 0, 0])];
        if together {
            scene.send_all(&both);
        } else {
            scene.send(&both[0]);
            scene.send(&both[1]);
        }
        assert_eq!(terminations(&scene).len(), 1);
        assert_eq!(terminations(&scene)[0].code, TerminateCode::DDP_TAGGED_INVALID_STAG);
        is_over(&mut scene, WcStatus::RemAccessErr);
    }
}

#[test]
fn segments_after_a_terminate_are_neither_placed_nor_delivered() {
    for together in [true, false] {
        let mut scene = busy();
        let before = scene.memory();
        let stag = scene.tags.all.stag().0;
        let all = [
            terminate(&[0x11, 0, 0, 0]),
            tagged(WRITE, stag, BASE, b"too late"),
            send(1, b"too late"),
            tagged(WRITE, 0, 0, b"an error"),
        ];
        if together {
            scene.send_all(&all);
        } else {
            for ulpdu in &all {
                scene.send(ulpdu);
            }
        }
        assert!(scene.memory() == before, "together: {together}");
        is_over(&mut scene, WcStatus::RemAccessErr);
        scene.ends_in_order();
    }
}

#[test]
fn a_terminate_too_short_to_say_why_ends_the_stream_all_the_same() {
    for len in 0..4 {
        let mut scene = busy();
        scene.send(&terminate(&[0x11, 0, 0xE0, 0][..len]));
        assert_eq!(terminations(&scene).len(), 1);
        is_over(&mut scene, WcStatus::RemOpErr);
    }
}

// spec: RDMAP-4.8-3
#[test]
fn a_terminate_that_promises_headers_it_does_not_have_is_read_as_far_as_it_goes() {
    for len in 4..30 {
        let mut scene = busy();
        let mut body = vec![0x11, 0, 0xE0, 0, 0, 50, 0xC1, 0x40];
        body.resize(len, 0);
        scene.send(&terminate(&body));
        let terminate = &terminations(&scene)[0];
        assert_eq!(terminate.code, TerminateCode::DDP_TAGGED_INVALID_STAG);
        assert_eq!(terminate.rdmap_header, None);
        assert_eq!(terminate.ddp_header.is_some(), len >= 20);
        is_over(&mut scene, WcStatus::RemAccessErr);
    }
}

// spec: RDMAP-4.8-2
#[test]
fn reserved_bits_of_a_terminate_are_ignored() {
    let mut scene = busy();
    scene.send(&terminate(&[0x12, 5, 0x1F, 0xFF]));
    assert_eq!(terminations(&scene)[0].code, TerminateCode::DDP_UNTAGGED_TOO_LONG);
    is_over(&mut scene, WcStatus::RemInvReqErr);
}

#[test]
fn the_terminate_of_linux_is_understood() {
    // siw on little-endian machines: nibbles and flags swapped.
    let mut scene = busy();
    let mut body = vec![0x21, 5, 0x03, 0, 0, 100];
    body.extend(&send(1, b"")[..18]);
    scene.send(&terminate(&body));
    assert_eq!(terminations(&scene)[0].code, TerminateCode::DDP_UNTAGGED_TOO_LONG);
    is_over(&mut scene, WcStatus::RemInvReqErr);
}
