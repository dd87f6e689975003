//! Atomic operations that must not be executed (RFC 7306 §5, §8.2).

use urnic_engine::verbs::Mr;

use crate::hostile::scene::{About, BASE, DEPTH, PART_LEN, Scene};
use urnic_testkit::octets::{
    ATOMIC_REQUEST, ATOMIC_RESPONSE, atomic_request, read_request, untagged,
};

const FETCH_ADD: u8 = 0;
const CMP_SWAP: u8 = 2;
/// Add 1, no field boundaries; compare with 0 in no bit.
const OPERANDS: [u64; 4] = [1, 0, 0, 0];

fn is_refused(pick: fn(&Scene) -> &Mr, to: u64, code: (u8, u8, u8)) {
    for op in [FETCH_ADD, CMP_SWAP] {
        let scene = Scene::ready();
        let target = (pick(&scene).stag().0, to);
        // RFC 7306 §8.1: the header of an Atomic Request is not returned.
        scene.dies_of(&atomic_request(1, op, target, OPERANDS), code, About::Segment);
    }
}

// spec: EXT-4.1-1, EXT-5.1.1-2, EXT-5.2.1-3, EXT-5.2.1-7, EXT-5.2.2-1
#[test]
fn an_atomic_is_executed_once_and_answered() {
    let mut scene = Scene::ready();
    let target = (scene.tags.all.stag().0, BASE + 8);
    let at = PART_LEN / 2 + 8;
    let before = u64::from_ne_bytes(scene.memory()[at..at + 8].try_into().unwrap());
    scene.send(&atomic_request(1, FETCH_ADD, target, [5, 0, 0, u64::MAX]));
    let after = u64::from_ne_bytes(scene.memory()[at..at + 8].try_into().unwrap());
    assert_eq!(after, before.wrapping_add(5));
    let mut body = 0x5A5A_0001_u32.to_be_bytes().to_vec();
    body.extend(before.to_be_bytes());
    assert_eq!(scene.answers(), [untagged(ATOMIC_RESPONSE, 3, 1, 0, &body)]);
}

// spec: RDMAP-5.2.1-2, EXT-1.1-1, EXT-5.2.1-1, EXT-5.2.1-2
#[test]
fn an_atomic_shares_the_sequence_of_reads() {
    let mut scene = Scene::ready();
    let target = (scene.tags.all.stag().0, BASE);
    scene.send(&atomic_request(1, FETCH_ADD, target, OPERANDS));
    scene.send(&read_request(2, (1, 1), 8, target));
    scene.send(&atomic_request(3, CMP_SWAP, target, OPERANDS));
    assert_eq!(scene.answers().len(), 3);
    scene.dies_of(&atomic_request(3, FETCH_ADD, target, OPERANDS), (1, 2, 3), About::Segment);
}

// spec: EXT-5-3, EXT-8.2-2
#[test]
fn a_misaligned_target_is_refused() {
    for skew in [1, 2, 4, 7] {
        is_refused(
            match skew {
                1 => |scene| &scene.tags.all,
                _ => |scene| &scene.tags.own,
            },
            if skew == 1 { BASE + 1 } else { skew },
            (0, 2, 7),
        );
    }
}

// spec: EXT-5.2.1-4
#[test]
fn an_unassigned_operation_is_refused() {
    for op in [1, 3, 4, 15] {
        let scene = Scene::ready();
        let target = (scene.tags.all.stag().0, BASE);
        scene.dies_of(&atomic_request(1, op, target, OPERANDS), (0, 2, 6), About::Segment);
    }
}

// spec: EXT-5.2.1-5
#[test]
fn reserved_bits_beside_the_operation_are_ignored() {
    let mut scene = Scene::ready();
    let mut ulpdu = atomic_request(1, FETCH_ADD, (scene.tags.all.stag().0, BASE), OPERANDS);
    ulpdu[18..22].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xF0]);
    scene.send(&ulpdu);
    assert_eq!(scene.answers().len(), 1);
}

// spec: EXT-8.2-3, SEC-R-18
#[test]
fn an_atomic_needs_the_rights_to_read_and_to_write() {
    is_refused(|scene| &scene.tags.readable, 0, (0, 1, 2));
    is_refused(|scene| &scene.tags.writable, 0, (0, 1, 2));
}

// spec: EXT-8.1-2, EXT-8.2-3
#[test]
fn an_atomic_outside_the_buffer_is_refused() {
    is_refused(|scene| &scene.tags.all, BASE - 8, (0, 1, 1));
    is_refused(|scene| &scene.tags.all, BASE + PART_LEN as u64 - 7, (0, 1, 1));
    is_refused(|scene| &scene.tags.all, BASE + PART_LEN as u64, (0, 1, 1));
    is_refused(|scene| &scene.tags.high, u64::MAX - 7, (0, 1, 4));
}

// spec: EXT-8.2-3, SEC-R-1, SEC-R-2
#[test]
fn an_atomic_on_memory_of_others_is_refused() {
    is_refused(|scene| &scene.tags.foreign, 0, (0, 1, 3));
    is_refused(|scene| &scene.tags.private, 0, (0, 1, 3));
    let scene = Scene::ready();
    let target = (!scene.tags.all.stag().0, BASE);
    scene.dies_of(&atomic_request(1, FETCH_ADD, target, OPERANDS), (0, 1, 0), About::Segment);
}

// spec: EXT-4.2-1
#[test]
fn an_atomic_request_of_another_length_is_refused() {
    for len in [0, 51, 53] {
        let scene = Scene::ready();
        let ulpdu = untagged(ATOMIC_REQUEST, 1, 1, 0, &vec![0; len]);
        scene.dies_of(&ulpdu, (0, 2, 7), About::Segment);
    }
}

// spec: EXT-5.2.2-2, SEC-T-5
#[test]
fn more_atomics_than_agreed_are_refused() {
    let mut scene = Scene::ready();
    let target = (scene.tags.all.stag().0, BASE);
    let all: Vec<Vec<u8>> = (1..=u32::from(DEPTH) + 1)
        .map(|msn| atomic_request(msn, FETCH_ADD, target, OPERANDS))
        .collect();
    scene.send_all(&all);
    let last = all.last().unwrap();
    let flushed = urnic_engine::verbs::WcStatus::WrFlushErr;
    scene.is_dead(last, (1, 2, 2), About::Segment, flushed);
}

// spec: EXT-4.2-1, EXT-5.2.2-3
#[test]
fn an_atomic_response_to_nothing_is_refused() {
    let ulpdu = untagged(ATOMIC_RESPONSE, 3, 1, 0, &[0; 12]);
    Scene::ready().dies_of(&ulpdu, (0, 2, 6), About::Segment);
    for len in [0, 11, 13] {
        let ulpdu = untagged(ATOMIC_RESPONSE, 3, 1, 0, &vec![0; len]);
        Scene::ready().dies_of(&ulpdu, (0, 2, 7), About::Segment);
    }
}

// spec: EXT-5.2.1-7, EXT-5.2.2-3, EXT-5.2.1-6
#[test]
fn an_atomic_response_with_another_identifier_is_refused() {
    let mut scene = Scene::ready();
    let remote = scene.tags.all.remote(0);
    let op = urnic_engine::verbs::SendOp::FetchAdd { remote, add: 1, mask: 0 };
    scene.post(urnic_engine::verbs::SendWr::new(urnic_engine::types::WrId(0), op, []));
    scene.run(crate::hostile::scene::MOMENT);
    let request = scene.answers().pop().unwrap();
    // RFC 7306 §5.2.1: Compare Data is zero, Compare Mask all ones.
    assert_eq!(request[54..], [[0; 8], [0xFF; 8]].concat());
    let mut body = request[22..26].to_vec();
    body[3] ^= 1;
    body.extend([0; 8]);
    scene.blamed = Some((urnic_engine::types::WrId(0), urnic_engine::verbs::WcStatus::BadRespErr));
    scene.dies_of(&untagged(ATOMIC_RESPONSE, 3, 1, 0, &body), (0, 2, 6), About::Segment);
}
