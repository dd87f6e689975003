//! Memory windows and a hostile peer: invalidated keys, bytes beside the window, rights that only
//! the region has (RFC 5040 §8.1.1, RFC 5041 §7.1).

use urnic_engine::mem::Access;
use urnic_engine::types::{TaggedOffset, WrId};
use urnic_engine::verbs::{Mw, MwBind, MwType, SendOp, SendWr, WcOpcode, WcStatus};

use crate::hostile::scene::{About, BASE, MOMENT, PART_LEN, Scene};
use urnic_testkit::octets::{
    SEND_INVALIDATE, WRITE, atomic_request, read_request, send_invalidate, tagged,
};

const SINK: (u32, u64) = (1, 0);
/// Offset of windows in their region; `LEN` is their length.
const AT: usize = 1000;
const LEN: usize = 500;

impl Scene {
    fn bind(&mut self, bind: MwBind) {
        self.post(SendWr::new(WrId(0), SendOp::BindMw { bind }, []));
        self.run(MOMENT);
        let wc = self.completed();
        assert_eq!((wc.opcode, wc.status), (WcOpcode::BindMw, WcStatus::Success));
    }

    /// Binds a window to some bytes of the region with these rights.
    fn window(&mut self, mw_type: MwType, access: Access) -> (Mw, u32) {
        let mw = self.pd.alloc_mw(mw_type).unwrap();
        let bind = mw.bind(&self.tags.all, AT..AT + LEN, access);
        self.bind(bind);
        (mw, bind.stag.0)
    }
}

const BOTH: [MwType; 2] = [MwType::One, MwType::Two];

#[test]
fn a_window_takes_what_is_inside_and_nothing_beside() {
    for mw_type in BOTH {
        let mut scene = Scene::ready();
        let (_mw, stag) = scene.window(mw_type, Access::REMOTE_WRITE);
        let mut expected = scene.memory();
        scene.send_all(&[
            tagged(WRITE, stag, 0, b"first"),
            tagged(WRITE, stag, LEN as u64 - 4, b"last"),
        ]);
        // The first part begins after half a part of unused bytes.
        let start = PART_LEN / 2 + AT;
        expected[start..start + 5].copy_from_slice(b"first");
        expected[start + LEN - 4..start + LEN].copy_from_slice(b"last");
        assert!(scene.memory() == expected);
        assert!(scene.answers().is_empty());
        scene.dies_of(&tagged(WRITE, stag, LEN as u64 - 4, b"beyond"), (1, 1, 1), About::Segment);
    }
    for (to, code) in [(LEN as u64, 1), (BASE, 1), (BASE + AT as u64, 1), (u64::MAX, 3)] {
        let mut scene = Scene::ready();
        let (_mw, stag) = scene.window(MwType::One, Access::REMOTE_WRITE);
        scene.dies_of(&tagged(WRITE, stag, to, b"x"), (1, 1, code), About::Segment);
    }
}

#[test]
fn a_window_is_known_by_the_offsets_that_its_binding_says() {
    let mut scene = Scene::ready();
    let mw = scene.pd.alloc_mw(MwType::One).unwrap();
    let zero_based = mw.bind(&scene.tags.all, AT..AT + LEN, Access::REMOTE_WRITE);
    let base = TaggedOffset(BASE + AT as u64);
    assert_eq!(zero_based.from, base);
    scene.bind(MwBind { base, ..zero_based });
    scene.send(&tagged(WRITE, zero_based.stag.0, base.0, &[1; LEN]));
    assert!(scene.answers().is_empty());
    scene.dies_of(&tagged(WRITE, zero_based.stag.0, 0, b"x"), (1, 1, 1), About::Segment);
}

/// A right that a window lacks is refused, whatever its region permits.
#[test]
fn a_window_gives_its_own_rights_and_no_others() {
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    for mw_type in BOTH {
        let mut scene = Scene::ready();
        let (_mw, stag) = scene.window(mw_type, read);
        scene.dies_of(&tagged(WRITE, stag, 0, b"x"), (1, 1, 0), About::Segment);
        let mut scene = Scene::ready();
        let (_mw, stag) = scene.window(mw_type, write);
        scene.dies_of(&read_request(1, SINK, 8, (stag, 0)), (0, 1, 2), About::ReadRequest);
        let mut scene = Scene::ready();
        let (_mw, stag) = scene.window(mw_type, read | write);
        let ulpdu = atomic_request(1, 0, (stag, 0), [1, 0, 0, 0]);
        scene.dies_of(&ulpdu, (0, 1, 2), About::Segment);
    }
}

#[test]
fn a_window_serves_reads_and_atomics() {
    let mut scene = Scene::ready();
    let (_mw, stag) = scene.window(MwType::Two, Access::FOR_ATOMIC);
    scene.send(&read_request(1, SINK, 100, (stag, 0)));
    scene.send(&atomic_request(2, 0, (stag, 0), [1, 0, 0, 0]));
    assert_eq!(scene.answers().len(), 2, "{:?}", scene.events);
}

/// The peer may invalidate a window of type 2. Afterwards its key is invalid.
#[test]
fn a_window_that_the_peer_invalidated_is_closed() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    let (mw, stag) = scene.window(MwType::Two, Access::REMOTE_WRITE);
    scene.send(&send_invalidate(SEND_INVALIDATE, 1, stag, b"done"));
    let wc = scene.received();
    assert_eq!((wc.status, wc.invalidated), (WcStatus::Success, Some(mw.stag())));
    scene.dies_of(&tagged(WRITE, stag, 0, b"too late"), (1, 1, 0), About::Segment);
}

#[test]
fn a_peer_cannot_invalidate_a_window_of_type_1_nor_a_region_with_windows() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    let (_mw, stag) = scene.window(MwType::One, Access::REMOTE_WRITE);
    let ulpdu = send_invalidate(SEND_INVALIDATE, 1, stag, b"x");
    scene.dies_of(&ulpdu, (0, 1, 9), About::Segment);
    // A tag of this stream alone, which the peer could invalidate without the window.
    for mw_type in BOTH {
        let mut scene = Scene::ready();
        scene.post_receive(100);
        let mw = scene.pd.alloc_mw(mw_type).unwrap();
        let bind = mw.bind(&scene.tags.own, 0..8, Access::REMOTE_WRITE);
        scene.bind(bind);
        let ulpdu = send_invalidate(SEND_INVALIDATE, 1, scene.tags.own.stag().0, b"x");
        scene.dies_of(&ulpdu, (0, 1, 9), About::Segment);
    }
    // Nor may it invalidate by the window, which has only the region's scope.
    let mut scene = Scene::ready();
    scene.post_receive(100);
    let mw = scene.pd.alloc_mw(MwType::One).unwrap();
    let bind = mw.bind(&scene.tags.own, 0..8, Access::REMOTE_WRITE);
    scene.bind(bind);
    let ulpdu = send_invalidate(SEND_INVALIDATE, 1, bind.stag.0, b"x");
    scene.dies_of(&ulpdu, (0, 1, 9), About::Segment);
}

/// After every way in which a window ends, nothing of a flood of Writes is placed.
#[test]
fn writes_through_an_ended_window_change_nothing() {
    type End = fn(&mut Scene, &mut Option<Mw>);
    let invalidate: End = |scene, mw| {
        let stag = mw.as_ref().unwrap().stag();
        scene.post(SendWr::new(WrId(0), SendOp::LocalInvalidate { stag }, []));
        scene.run(MOMENT);
        assert_eq!(scene.completed().status, WcStatus::Success);
    };
    let unbind: End = |scene, mw| scene.bind(mw.as_ref().unwrap().unbind());
    let bind_again: End = |scene, mw| {
        let bind = mw.as_ref().unwrap().bind(&scene.tags.all, 0..8, Access::REMOTE_WRITE);
        scene.bind(bind);
    };
    let dealloc: End = |_, mw| drop(mw.take());
    let end_of_region: End = |scene, _| assert!(scene.tags.all.invalidate());
    let one: [End; 4] = [unbind, bind_again, dealloc, end_of_region];
    let two: [End; 3] = [invalidate, dealloc, end_of_region];
    let ends = one.map(|end| (MwType::One, end)).into_iter();
    for (mw_type, end) in ends.chain(two.map(|end| (MwType::Two, end))) {
        let mut scene = Scene::ready();
        let (mw, stag) = scene.window(mw_type, Access::REMOTE_WRITE);
        let mut mw = Some(mw);
        scene.send(&tagged(WRITE, stag, 0, &[1; 64]));
        end(&mut scene, &mut mw);
        let before = scene.memory();
        let flood: Vec<_> = (0..20).map(|i| tagged(WRITE, stag, 16 * i, &[0xEE; 16])).collect();
        scene.send_all(&flood);
        assert!(scene.memory() == before);
        scene.is_dead(&flood[0], (1, 1, 0), About::Segment, WcStatus::WrFlushErr);
    }
}

/// A Response is cut off at the point where the window ended (RFC 5042 §6.3.3).
#[test]
fn a_read_through_a_window_that_has_ended_is_not_answered_further() {
    let mut scene = Scene::ready();
    let (mw, stag) = scene.window(MwType::One, Access::REMOTE_READ);
    scene.peer.window = 0;
    let request = read_request(1, SINK, LEN as u32, (stag, 0));
    scene.send(&request);
    drop(mw);
    scene.offer_window(u16::MAX);
    scene.is_dead(&request, (0, 1, 0), About::ReadRequest, WcStatus::WrFlushErr);
}

/// A window has 256 keys; all but the bound one open nothing.
#[test]
fn other_keys_of_a_bound_window_open_nothing() {
    for mw_type in BOTH {
        for change in [1, 0x80, 0xff, 0x100] {
            let mut scene = Scene::ready();
            let (_mw, stag) = scene.window(mw_type, Access::REMOTE_WRITE);
            scene.dies_of(&tagged(WRITE, stag ^ change, 0, b"x"), (1, 1, 0), About::Segment);
        }
    }
}
