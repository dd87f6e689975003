//! Sends and Writes with immediate data: their bytes, and false claims by a peer.

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{RemoteBuffer, SendOp, SendWr, WcOpcode};
use urnic_testkit::octets::{
    CRC, IMMEDIATE, REQUEST_KEY, WRITE, empty_write, read_request, send_invalidate, startup, tagged,
};
use urnic_testkit::pair::content;

use crate::hostile::scene::{About, BASE, MOMENT, Scene};

/// Flags of a Request and of a Reply by which an end negotiates immediate data.
const IMMEDIATES: u8 = 0x01;
const ANSWERED: u8 = 0x02;
/// Invalidate STag field of Immediate Data that belongs to a Write.
const ABOUT_A_WRITE: u32 = 1;

/// Returns a scene with a posted buffer, whose peer sends these flags in its Request.
fn ready(flags: u8) -> Scene {
    let mut scene =
        Scene::with_startup(StartupConfig { immediates: true, ..StartupConfig::default() });
    scene.open();
    scene.request(&startup(REQUEST_KEY, CRC | flags, 1, b""));
    scene.accept();
    // The Reply has the flag only if the Request has it.
    let answered = if flags == IMMEDIATES { ANSWERED } else { 0 };
    assert_eq!(scene.peer.received[16], CRC | answered);
    scene.send(&empty_write());
    scene.post_receive(100);
    scene
}

fn about_a_write(immediate: u32, len: u32) -> Vec<u8> {
    let octets = [immediate.to_be_bytes(), len.to_be_bytes()].concat();
    send_invalidate(IMMEDIATE, 1, ABOUT_A_WRITE, &octets)
}

#[test]
fn the_octets_on_the_wire_are_these() {
    let mut scene = ready(IMMEDIATES);
    let stag = scene.tags.all.stag().0;
    scene.send(&tagged(WRITE, stag, BASE, &[7; 12]));
    scene.send(&about_a_write(5, 12));
    let wc = scene.received();
    assert_eq!((wc.opcode, wc.value, wc.byte_len), (WcOpcode::RecvWriteImmediate, 5, 12));
    scene.post_receive(100);
    scene.send(&send_invalidate([0x41, 0x4D], 2, 0xA0B0_C0D0, b"four"));
    let wc = scene.received();
    assert_eq!((wc.opcode, wc.value, wc.byte_len), (WcOpcode::RecvSendImmediate, 0xA0B0_C0D0, 4));
    assert!(wc.solicited && wc.invalidated.is_none());
    // And the bytes that this end sends.
    let before = scene.answers().len();
    let remote = RemoteBuffer { stag: Stag(9), to: TaggedOffset(8) };
    let op = SendOp::RdmaWriteImmediate { remote, immediate: 0x0102_0305, solicited: false };
    let own = SendWr::new(WrId(0), op, [scene.tags.own.sge(0..4)]);
    let payload = content(&scene.tags.own)[..4].to_vec();
    scene.post(own);
    scene.run(MOMENT);
    let octets = [0x0102_0305_u32.to_be_bytes(), 4_u32.to_be_bytes()].concat();
    let expected =
        [tagged(WRITE, 9, 8, &payload), send_invalidate(IMMEDIATE, 1, ABOUT_A_WRITE, &octets)];
    assert_eq!(scene.answers()[before..], expected);
}

/// Answers to the peer alternate with requests, but do not split one.
#[test]
fn write_and_its_immediate_data_are_adjacent() {
    let mut scene = ready(IMMEDIATES);
    scene.peer.window = 0;
    let source = (scene.tags.readable.stag().0, 0);
    let reads: Vec<_> = (1..=4).map(|msn| read_request(msn, (7, 0), 4096, source)).collect();
    scene.send_all(&reads);
    for _ in 0..2 {
        let remote = RemoteBuffer { stag: Stag(9), to: TaggedOffset(8) };
        let op = SendOp::RdmaWriteImmediate { remote, immediate: 1, solicited: false };
        scene.post(SendWr::new(WrId(0), op, [scene.tags.own.sge(0..4)]));
    }
    scene.offer_window(u16::MAX);
    let kinds: Vec<_> = scene.answers().iter().map(|ulpdu| [ulpdu[0], ulpdu[1]]).collect();
    let writes: Vec<_> = (0..kinds.len()).filter(|at| kinds[*at] == WRITE).collect();
    assert_eq!(writes.len(), 2, "{kinds:?}");
    assert!(writes.iter().all(|at| kinds[at + 1] == IMMEDIATE), "{kinds:?}");
    assert!(writes[0] + 2 < writes[1], "answers come between: {kinds:?}");
}

/// Applications read as many bytes as the completion says were written.
#[test]
fn a_peer_cannot_claim_to_have_written_more_than_it_has() {
    for len in [11, 13, u32::MAX, 0] {
        let mut scene = ready(IMMEDIATES);
        let stag = scene.tags.all.stag().0;
        scene.send(&tagged(WRITE, stag, BASE, &[7; 12]));
        scene.dies_of(&about_a_write(5, len), (0, 2, 7), About::Segment);
    }
    // Nor may it claim the bytes of an incomplete Write.
    let mut scene = ready(IMMEDIATES);
    let stag = scene.tags.all.stag().0;
    scene.send(&tagged([WRITE[0] & !0x40, WRITE[1]], stag, BASE, &[7; 12]));
    scene.dies_of(&about_a_write(5, 12), (0, 2, 7), About::Segment);
}

#[test]
fn without_agreement_the_field_of_immediate_data_is_ignored() {
    let mut scene = ready(0);
    scene.send(&about_a_write(5, 12));
    let wc = scene.received();
    let value = 5 << 32 | 12;
    assert_eq!((wc.opcode, wc.value, wc.byte_len), (WcOpcode::RecvImmediate, value, 8));
    scene.post_receive(100);
    scene.dies_of(&send_invalidate([0x41, 0x4C], 2, 5, b"x"), (0, 2, 6), About::Segment);
}
