//! Windows of a table: keys, refusals, ends, bounds.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use super::*;
use crate::limits::STAGS_RETIRED_MAX;
use crate::mem::{Refusal, Region, SharedSlice};
use crate::types::TaggedOffset;

const PD: PdNum = PdNum(1);
const QP: QpNum = QpNum(7);
const OTHER_QP: QpNum = QpNum(8);
const LEN: usize = 4096;

/// A table with a region from tagged offset 1000 on, and a window of each type.
struct Scene {
    table: RegionTable,
    mr: Stag,
    one: Stag,
    two: Stag,
}

impl Scene {
    fn new() -> Self {
        let table = RegionTable::new([42; 32]);
        let registration = Registration {
            region: Region::anonymous(LEN).unwrap(),
            offset: 0,
            len: LEN,
            base: TaggedOffset(1000),
            access: Access::LOCAL_WRITE | Access::MW_BIND,
            pd: PD,
            scope: Scope::Pd,
        };
        let mr = table.register(registration).unwrap();
        let [one, two] =
            [MwType::One, MwType::Two].map(|mw_type| table.alloc_window(PD, mw_type).unwrap().0);
        Self { table, mr, one, two }
    }

    fn binding(&self, stag: Stag) -> MwBind {
        let (from, base) = (TaggedOffset(1100), TaggedOffset(0));
        MwBind { stag, mr: self.mr, from, len: 10, base, access: Access::REMOTE_WRITE }
    }

    fn ask(&self, stag: Stag, to: u64, len: usize, qp: QpNum) -> Result<(), Refusal> {
        let guard = self.table.read();
        guard.check(stag, TaggedOffset(to), len, Access::REMOTE_WRITE, PD, qp).map(|_| ())
    }
}

#[test]
fn a_window_is_not_valid_before_it_is_bound() {
    let scene = Scene::new();
    for stag in [scene.one, scene.two] {
        assert_eq!(scene.ask(stag, 0, 1, QP), Err(Refusal::InvalidStag));
        scene.table.bind(&scene.binding(stag), PD, QP).unwrap();
        assert_eq!(scene.ask(stag, 0, 10, QP), Ok(()));
        assert_eq!(scene.ask(stag, 0, 11, QP), Err(Refusal::BaseOrBounds));
    }
    assert_eq!(scene.ask(scene.one, 0, 1, OTHER_QP), Ok(()));
    assert_eq!(scene.ask(scene.two, 0, 1, OTHER_QP), Err(Refusal::NotAssociated));
}

/// The region's own rights are unchanged: only windows give access to it.
#[test]
fn window_may_grant_rights_that_its_region_lacks() {
    let scene = Scene::new();
    scene.table.bind(&scene.binding(scene.one), PD, QP).unwrap();
    assert_eq!(scene.ask(scene.mr, 1100, 1, QP), Err(Refusal::AccessRights));
    let guard = scene.table.read();
    let own = guard.check(scene.one, TaggedOffset(0), 1, Access::LOCAL_WRITE, PD, QP);
    assert!(own.is_err_and(|refusal| refusal == Refusal::AccessRights));
}

#[test]
fn window_cannot_be_bound_to_a_window() {
    let scene = Scene::new();
    scene.table.bind(&scene.binding(scene.one), PD, QP).unwrap();
    let bind = MwBind { mr: scene.one, ..scene.binding(scene.two) };
    assert_eq!(scene.table.bind(&bind, PD, QP), Err(BindError::NoRegion));
}

#[test]
fn failed_binding_leaves_the_window_unchanged() {
    let scene = Scene::new();
    scene.table.bind(&scene.binding(scene.one), PD, QP).unwrap();
    let next = Stag(scene.one.0 ^ 1);
    let wrong = MwBind { len: 1 << 20, ..scene.binding(next) };
    assert_eq!(scene.table.bind(&wrong, PD, QP), Err(BindError::BaseOrBounds));
    assert_eq!(scene.ask(scene.one, 0, 10, QP), Ok(()));
    assert_eq!(scene.ask(next, 0, 10, QP), Err(Refusal::InvalidStag));
    assert_eq!(scene.table.bind(&scene.binding(next), PdNum(2), QP), Err(BindError::NotAssociated));
}

/// A handle of a region that has ended does not affect a window that has its tag by now.
#[test]
fn stale_region_handle_does_not_revoke_a_window_with_its_tag() {
    let scene = Scene::new();
    scene.table.bind(&scene.binding(scene.two), PD, QP).unwrap();
    assert!(!scene.table.deregister(scene.two));
    assert_eq!(scene.table.revoke(scene.two), Err(Refusal::InvalidStag));
    assert_eq!(scene.ask(scene.two, 0, 1, QP), Ok(()));
}

#[test]
fn window_tags_are_never_allocated_to_regions() {
    let scene = Scene::new();
    let mut taken = std::collections::HashSet::new();
    for _ in 0..1000 {
        let (stag, step) = scene.table.alloc_window(PD, MwType::One).unwrap();
        assert!(taken.insert(index_of(stag.0)) && step % 2 == 1);
    }
    // The same cipher from its start, so all of these tags are drawn again.
    let mut inner = scene.table.write();
    let Inner { entries, windows, stags, .. } = &mut *inner;
    for _ in 0..100_000 {
        let stag =
            stags.draw(|tag| entries.contains_key(&tag) || windows.contains_key(&index_of(tag)));
        assert!(!taken.contains(&index_of(stag.0)));
    }
}

#[test]
fn window_count_is_limited_and_a_free_slot_is_reused() {
    let scene = Scene::new();
    for _ in 2..WINDOWS_MAX {
        scene.table.alloc_window(PD, MwType::Two).unwrap();
    }
    let refused = scene.table.alloc_window(PD, MwType::Two);
    assert_eq!(refused, Err(RegisterError::TableFull));
    scene.table.dealloc_window(scene.two);
    assert!(scene.table.alloc_window(PD, MwType::Two).is_ok());
}

/// Bindings use no place of registrations, and no memory remains for each.
#[test]
fn window_can_be_rebound_without_limit() {
    let scene = Scene::new();
    for key in 0..STAGS_RETIRED_MAX {
        let stag = Stag(scene.one.0 & !0xff | u32::try_from(key % 256).unwrap());
        scene.table.bind(&scene.binding(stag), PD, QP).unwrap();
    }
    assert_eq!(scene.table.len(), 2);
    assert_eq!(scene.table.revoke(scene.mr), Err(Refusal::WindowsBound));
    scene.table.dealloc_window(scene.one);
    assert_eq!(scene.table.len(), 1);
    assert_eq!(scene.table.revoke(scene.mr), Ok(()));
}

#[test]
fn only_windows_of_type_2_at_the_queue_pair_are_unbound_with_it() {
    let scene = Scene::new();
    let (other, _) = scene.table.alloc_window(PD, MwType::Two).unwrap();
    scene.table.bind(&scene.binding(scene.one), PD, QP).unwrap();
    scene.table.bind(&scene.binding(scene.two), PD, QP).unwrap();
    scene.table.bind(&scene.binding(other), PD, OTHER_QP).unwrap();
    scene.table.unbind_at(PD, QP);
    assert_eq!(scene.ask(scene.one, 0, 1, QP), Ok(()));
    assert_eq!(scene.ask(scene.two, 0, 1, QP), Err(Refusal::InvalidStag));
    assert_eq!(scene.ask(other, 0, 1, OTHER_QP), Ok(()));
    scene.table.bind(&scene.binding(scene.two), PD, OTHER_QP).unwrap();
}

#[test]
fn the_end_of_a_region_is_the_end_of_its_windows() {
    let scene = Scene::new();
    for stag in [scene.one, scene.two] {
        scene.table.bind(&scene.binding(stag), PD, QP).unwrap();
    }
    assert!(scene.table.deregister(scene.mr));
    assert!(scene.table.is_empty());
    for stag in [scene.one, scene.two] {
        assert_eq!(scene.ask(stag, 0, 1, QP), Err(Refusal::InvalidStag));
        assert_eq!(scene.table.bind(&scene.binding(stag), PD, QP), Err(BindError::NoRegion));
    }
}

/// RFC 5040 §8.1.1 (6), for windows: after the call that ends one has returned, nothing is placed.
#[test]
fn ending_a_window_waits_for_placements_in_progress() {
    let ends: [fn(&Scene); 4] = [
        |scene| scene.table.dealloc_window(scene.two),
        |scene| scene.table.invalidate_local(scene.two, PD, QP).unwrap(),
        |scene| scene.table.unbind_at(PD, QP),
        |scene| assert!(scene.table.deregister(scene.mr)),
    ];
    for end in ends {
        let scene = Scene::new();
        scene.table.bind(&scene.binding(scene.two), PD, QP).unwrap();
        let placed = AtomicBool::new(false);
        thread::scope(|scope| {
            let guard = scene.table.read();
            let (to, need) = (TaggedOffset(0), Access::REMOTE_WRITE);
            let grant = guard.check(scene.two, to, 10, need, PD, QP).unwrap();
            scope.spawn(|| {
                end(&scene);
                assert!(placed.load(SeqCst), "ended while octets were placed");
            });
            for _ in 0..1000 {
                thread::yield_now();
            }
            grant.place(0, SharedSlice::from_bytes(&[1; 10]));
            placed.store(true, SeqCst);
            drop(guard);
        });
        assert_eq!(scene.ask(scene.two, 0, 1, QP), Err(Refusal::InvalidStag));
    }
}

/// RFC 5040 §8.1.1 (5): a region without local write right gives no peer a right to change it.
#[test]
fn a_region_that_is_not_written_permits_no_window_that_writes() {
    let scene = Scene::new();
    let registration = Registration {
        region: Region::anonymous(LEN).unwrap(),
        offset: 0,
        len: LEN,
        base: TaggedOffset(1000),
        access: Access::MW_BIND | Access::REMOTE_READ,
        pd: PD,
        scope: Scope::Pd,
    };
    let mr = scene.table.register(registration).unwrap();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::FOR_ATOMIC] {
        for stag in [scene.one, scene.two] {
            let bind = MwBind { mr, access, ..scene.binding(stag) };
            assert_eq!(scene.table.bind(&bind, PD, QP), Err(BindError::AccessRights));
        }
    }
    let bind = MwBind { mr, access: Access::REMOTE_READ, ..scene.binding(scene.one) };
    assert_eq!(scene.table.bind(&bind, PD, QP), Ok(()));
}

#[test]
fn window_never_grants_local_rights() {
    let scene = Scene::new();
    for stag in [scene.one, scene.two] {
        let access = Access::all();
        scene.table.bind(&MwBind { access, ..scene.binding(stag) }, PD, QP).unwrap();
        let guard = scene.table.read();
        for (need, may) in [
            (Access::REMOTE_WRITE, true),
            (Access::REMOTE_READ, true),
            (Access::LOCAL_WRITE, false),
            (Access::MW_BIND, false),
        ] {
            let found = guard.check(stag, TaggedOffset(0), 1, need, PD, QP).map(|_| ());
            let expected = if may { Ok(()) } else { Err(Refusal::AccessRights) };
            assert_eq!(found, expected, "{need:?}");
        }
    }
}

/// The limit is one of registrations: windows take none of their places.
#[test]
fn windows_do_not_count_as_registrations() {
    let table = RegionTable::with_limit([42; 32], 2);
    let registration = || Registration {
        region: Region::anonymous(LEN).unwrap(),
        offset: 0,
        len: LEN,
        base: TaggedOffset(1000),
        access: Access::LOCAL_WRITE | Access::MW_BIND,
        pd: PD,
        scope: Scope::Pd,
    };
    let mr = table.register(registration()).unwrap();
    let [one, two] =
        [MwType::One, MwType::Two].map(|mw_type| table.alloc_window(PD, mw_type).unwrap().0);
    for stag in [one, two] {
        let (from, base) = (TaggedOffset(1100), TaggedOffset(0));
        let bind = MwBind { stag, mr, from, len: 10, base, access: Access::REMOTE_WRITE };
        table.bind(&bind, PD, QP).unwrap();
    }
    assert!(table.register(registration()).is_ok());
    assert!(table.register(registration()).is_err(), "the table is full");
}
