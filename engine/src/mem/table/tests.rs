use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::mem::{AtomicOp, Misaligned, SharedSlice};

const PD: PdNum = PdNum(1);
const QP: QpNum = QpNum(7);
const CANARY: u8 = 0xC5;
const REGION_LEN: usize = 4096;

fn table() -> RegionTable {
    RegionTable::new([42; 32])
}

/// 100 bytes in the middle of a region full of canaries, at tagged offset 1000.
fn registration() -> Registration {
    let region = Region::anonymous(REGION_LEN).unwrap();
    region.write(0, &[CANARY; REGION_LEN]).unwrap();
    Registration {
        region,
        offset: 200,
        len: 100,
        base: TaggedOffset(1000),
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        pd: PD,
        scope: Scope::Pd,
    }
}

/// Requests a write as the registered stream.
fn ask(table: &RegionTable, stag: Stag, to: u64, len: usize) -> Result<usize, Refusal> {
    let guard = table.read();
    guard.check(stag, TaggedOffset(to), len, Access::REMOTE_WRITE, PD, QP).map(|grant| grant.len())
}

fn octets(region: &Region) -> Vec<u8> {
    let mut octets = vec![0; region.len()];
    region.read(0, &mut octets).unwrap();
    octets
}

/// RFC 5040 §8.1.1(3), RFC 5041 §8.3: bounds are byte-granular.
// spec: DDP-8.3-1, SEC-R-3
#[test]
fn octets_before_and_after_the_range_are_refused() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    assert_eq!(ask(&table, stag, 1000, 100), Ok(100));
    assert_eq!(ask(&table, stag, 1099, 1), Ok(1));
    assert_eq!(ask(&table, stag, 1100, 0), Ok(0));
    for (to, len) in [
        (999, 1),
        (1100, 1),
        (999, 2),
        (1099, 2),
        (1000, 101),
        (0, 5000),
        (1101, 0),
        (1000, (1 << 32) - 1),
        (0, 0),
        (u64::MAX, 0),
    ] {
        assert_eq!(ask(&table, stag, to, len), Err(Refusal::BaseOrBounds), "{len} at {to}");
    }
}

#[test]
fn placement_changes_the_granted_octets_and_no_others() {
    let table = table();
    let registration = registration();
    let region = Arc::clone(&registration.region);
    let stag = table.register(registration).unwrap();
    let guard = table.read();
    let grant = guard.check(stag, TaggedOffset(1010), 20, Access::REMOTE_WRITE, PD, QP).unwrap();
    grant.place(0, SharedSlice::from_bytes(&[1; 8]));
    grant.place(8, SharedSlice::from_bytes(&[2; 12]));
    let mut expected = vec![CANARY; REGION_LEN];
    expected[210..218].fill(1);
    expected[218..230].fill(2);
    assert_eq!(octets(&region), expected);
    let mut out = [0; 20];
    grant.slice().copy_out(0, &mut out);
    assert_eq!(out, expected[210..230]);
}

#[test]
#[should_panic(expected = "part outside its shared slice")]
fn placement_beyond_the_grant_is_a_bug() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    let guard = table.read();
    let grant = guard.check(stag, TaggedOffset(1000), 20, Access::REMOTE_WRITE, PD, QP).unwrap();
    grant.place(1, SharedSlice::from_bytes(&[0; 20]));
}

#[test]
#[should_panic(expected = "without a right to write")]
fn placement_under_a_grant_to_read_is_a_bug() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    let guard = table.read();
    let grant = guard.check(stag, TaggedOffset(1000), 20, Access::REMOTE_READ, PD, QP).unwrap();
    grant.place(0, SharedSlice::from_bytes(&[0; 20]));
}

/// RFC 5041 §7.1: the 64-bit sum must not wrap; a sum of exactly 2⁶⁴ does.
#[test]
fn a_tagged_offset_that_wraps_is_refused_as_such() {
    let table = table();
    let last = Registration { base: TaggedOffset(u64::MAX - 100), ..registration() };
    let stag = table.register(last).unwrap();
    assert_eq!(ask(&table, stag, u64::MAX - 8, 8), Ok(8));
    assert_eq!(ask(&table, stag, u64::MAX - 7, 8), Err(Refusal::TaggedOffsetWrap));
    assert_eq!(ask(&table, stag, u64::MAX, 1), Err(Refusal::TaggedOffsetWrap));
    assert_eq!(ask(&table, stag, u64::MAX, usize::MAX), Err(Refusal::TaggedOffsetWrap));

    let elsewhere = table.register(registration()).unwrap();
    assert_eq!(ask(&table, elsewhere, u64::MAX - 3, 8), Err(Refusal::TaggedOffsetWrap));
}

#[test]
fn a_registration_whose_offsets_wrap_is_refused() {
    let table = table();
    let wrapping = Registration { base: TaggedOffset(u64::MAX - 99), ..registration() };
    assert_eq!(table.register(wrapping).unwrap_err(), RegisterError::TaggedOffsetWrap);
    assert!(table.is_empty());
}

#[test]
fn a_registration_outside_its_region_is_refused() {
    let table = table();
    for (offset, len) in [(4000, 97), (4097, 0), (1, usize::MAX), (usize::MAX, 1)] {
        let outside = Registration { offset, len, ..registration() };
        assert_eq!(table.register(outside).unwrap_err(), RegisterError::OutsideRegion);
    }
    let whole = Registration { offset: 0, len: REGION_LEN, ..registration() };
    table.register(whole).unwrap();
    let nothing = Registration { offset: REGION_LEN, len: 0, ..registration() };
    let stag = table.register(nothing).unwrap();
    assert_eq!(ask(&table, stag, 1000, 0), Ok(0));
    assert_eq!(ask(&table, stag, 1000, 1), Err(Refusal::BaseOrBounds));
}

/// RFC 5042 §7.3.
// spec: SEC-P-4
#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn rights_to_write_read_only_memory_are_refused() {
    let table = table();
    let file = std::fs::File::open("Cargo.toml").unwrap();
    let region = Region::file_read_only(&file, 0, 100).unwrap();
    let of = |access| Registration {
        region: Arc::clone(&region),
        offset: 0,
        len: 100,
        access,
        ..registration()
    };
    for access in [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = table.register(of(access | Access::REMOTE_READ)).unwrap_err();
        assert_eq!(refused, RegisterError::ReadOnlyMemory);
    }
    let stag = table.register(of(Access::REMOTE_READ | Access::REMOTE_INVALIDATE)).unwrap();
    assert_eq!(ask(&table, stag, 1000, 1), Err(Refusal::AccessRights));
}

/// RFC 5040 §8.1.1(5).
// spec: SEC-R-5
#[test]
fn only_permitted_access_is_granted() {
    let table = table();
    let write_only = Registration { access: Access::REMOTE_WRITE, ..registration() };
    let stag = table.register(write_only).unwrap();
    let guard = table.read();
    let ask = |need| guard.check(stag, TaggedOffset(1000), 8, need, PD, QP).map(|_| ());
    assert_eq!(ask(Access::REMOTE_WRITE), Ok(()));
    assert_eq!(ask(Access::empty()), Ok(()), "its owner may always read");
    for need in [Access::REMOTE_READ, Access::LOCAL_WRITE, Access::FOR_ATOMIC] {
        assert_eq!(ask(need), Err(Refusal::AccessRights));
    }
}

/// RFC 5040 §8.1.1(1) and (2), RFC 5041 §8.2.
#[test]
fn other_domains_and_other_streams_are_refused() {
    let table = table();
    let shared = table.register(registration()).unwrap();
    let scoped = Registration { scope: Scope::Stream(QP), ..registration() };
    let scoped = table.register(scoped).unwrap();
    let guard = table.read();
    let ask = |stag, pd, qp| {
        guard.check(stag, TaggedOffset(1000), 8, Access::REMOTE_WRITE, pd, qp).map(|_| ())
    };
    assert_eq!(ask(shared, PD, QpNum(8)), Ok(()));
    assert_eq!(ask(shared, PdNum(2), QP), Err(Refusal::NotAssociated));
    assert_eq!(ask(scoped, PD, QP), Ok(()));
    assert_eq!(ask(scoped, PD, QpNum(8)), Err(Refusal::NotAssociated));
    assert_eq!(ask(scoped, PdNum(2), QP), Err(Refusal::NotAssociated));
}

#[test]
fn the_first_failing_check_decides() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    let guard = table.read();
    let (wrap, beyond) = ((u64::MAX, 8), (5000, 8));
    let ask = |stag, need, pd, (to, len)| {
        guard.check(stag, TaggedOffset(to), len, need, pd, QP).unwrap_err()
    };
    let (other_stag, other_pd) = (Stag(stag.0 ^ 1), PdNum(2));
    let (atomic, write) = (Access::FOR_ATOMIC, Access::REMOTE_WRITE);
    assert_eq!(ask(other_stag, atomic, other_pd, wrap), Refusal::InvalidStag);
    assert_eq!(ask(stag, atomic, other_pd, wrap), Refusal::NotAssociated);
    assert_eq!(ask(stag, atomic, PD, wrap), Refusal::AccessRights);
    assert_eq!(ask(stag, write, PD, wrap), Refusal::TaggedOffsetWrap);
    assert_eq!(ask(stag, write, PD, beyond), Refusal::BaseOrBounds);
}

// spec: DDP-8.3-1, SEC-R-4
#[test]
fn a_deregistered_tag_is_invalid_and_does_not_come_back() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    assert!(table.deregister(stag));
    assert!(!table.deregister(stag));
    assert_eq!(ask(&table, stag, 1000, 1), Err(Refusal::InvalidStag));
    for _ in 0..100 {
        let other = table.register(registration()).unwrap();
        assert_ne!(other, stag);
        assert!(table.deregister(other));
    }
    assert!(table.is_empty());
}

#[test]
fn the_owner_invalidates_within_its_domain() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    assert_eq!(table.invalidate_local(stag, PdNum(2), QP), Err(Refusal::NotAssociated));
    assert_eq!(ask(&table, stag, 1000, 1), Ok(1));
    assert_eq!(table.invalidate_local(stag, PD, QP), Ok(()));
    assert_eq!(table.invalidate_local(stag, PD, QP), Err(Refusal::InvalidStag));
    assert_eq!(ask(&table, stag, 1000, 1), Err(Refusal::InvalidStag));
}

/// RFC 5040 §8.1.1(7), RFC 5042 §6.4.5.
#[test]
fn peer_invalidates_only_tags_of_its_stream_or_marked_ones() {
    let table = table();
    let shared = table.register(registration()).unwrap();
    let invalidate = |stag, pd, qp| table.invalidate_remote(stag, pd, qp);
    assert_eq!(invalidate(shared, PD, QP), Err(Refusal::CannotInvalidate));
    assert_eq!(invalidate(shared, PdNum(2), QP), Err(Refusal::NotAssociated));
    assert_eq!(ask(&table, shared, 1000, 1), Ok(1));

    let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let marked = table.register(Registration { access, ..registration() }).unwrap();
    assert_eq!(invalidate(marked, PD, QpNum(8)), Ok(()));
    assert_eq!(invalidate(marked, PD, QpNum(8)), Err(Refusal::InvalidStag));

    let scoped = Registration { scope: Scope::Stream(QP), ..registration() };
    let scoped = table.register(scoped).unwrap();
    assert_eq!(invalidate(scoped, PD, QpNum(8)), Err(Refusal::NotAssociated));
    assert_eq!(invalidate(scoped, PD, QP), Ok(()));
    assert_eq!(ask(&table, scoped, 1000, 1), Err(Refusal::InvalidStag));
}

#[test]
fn full_table_refuses_registrations_until_one_ends() {
    let table = RegionTable::with_limit([0; 32], 2);
    let stag = table.register(registration()).unwrap();
    table.register(registration()).unwrap();
    assert_eq!(table.register(registration()).unwrap_err(), RegisterError::TableFull);
    assert_eq!(table.len(), 2);
    table.deregister(stag);
    table.register(registration()).unwrap();
}

/// RFC 7306 §5.1.1: the buffer's address counts, not the tagged offset.
// spec: EXT-5-3
#[test]
fn an_atomic_needs_an_aligned_address_not_an_aligned_offset() {
    let table = table();
    let at = |offset, base| Registration {
        offset,
        base: TaggedOffset(base),
        access: Access::FOR_ATOMIC,
        ..registration()
    };
    let (aligned, odd) = (at(200, 1001), at(201, 1000));
    let region = Arc::clone(&aligned.region);
    let aligned = table.register(aligned).unwrap();
    let odd = table.register(odd).unwrap();
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let execute = |stag, to| {
        let guard = table.read();
        let grant = guard.check(stag, TaggedOffset(to), 8, Access::FOR_ATOMIC, PD, QP).unwrap();
        grant.execute(op)
    };
    let original = u64::from_ne_bytes([CANARY; 8]);
    assert_eq!(execute(aligned, 1001), Ok(original));
    assert_eq!(execute(aligned, 1001), Ok(original + 1));
    assert_eq!(execute(aligned, 1002), Err(Misaligned));
    assert_eq!(execute(odd, 1000), Err(Misaligned));
    assert_eq!(execute(odd, 1007), Ok(original), "odd offsets that make an aligned address");
    let mut expected = vec![CANARY; REGION_LEN];
    expected[200..208].copy_from_slice(&(original + 2).to_ne_bytes());
    assert_eq!(octets(&region), expected);
}

/// RFC 5040 §8.1.1(6): a flood of Writes against a revocation, and against a reregistration.
// spec: SEC-R-6
#[test]
fn placement_stops_before_revocation_returns() {
    let rounds = if cfg!(miri) { 2 } else { 200 };
    let revoke = |table: &RegionTable, stag| assert!(table.deregister(stag));
    let move_away = |table: &RegionTable, stag| table.reregister(stag, registration()).unwrap();
    let ends: [fn(&RegionTable, Stag); 2] = [revoke, move_away];
    for round in 0..rounds {
        let table = table();
        let registration = registration();
        let region = Arc::clone(&registration.region);
        let stag = table.register(registration).unwrap();
        let placed = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let guard = table.read();
                    let need = Access::REMOTE_WRITE;
                    if let Ok(grant) = guard.check(stag, TaggedOffset(1000), 100, need, PD, QP) {
                        grant.place(0, SharedSlice::from_bytes(&[1; 100]));
                        placed.fetch_add(1, SeqCst);
                    }
                }
            });
            while placed.load(SeqCst) == 0 {
                thread::yield_now();
            }
            ends[round % 2](&table, stag);
            region.write(200, &[2; 100]).unwrap();
            thread::yield_now();
            assert_eq!(octets(&region)[200..300], [2; 100]);
            stop.store(true, SeqCst);
        });
        assert_eq!(octets(&region)[200..300], [2; 100]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Register { offset: usize, len: usize, base: u64, access: u8 },
    Deregister(prop::sample::Index),
    Write { pick: prop::sample::Index, to: u64, len: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let base = prop_oneof![0..50_u64, Just(u64::MAX - 60), Just(u64::MAX - 10)];
    let to = prop_oneof![0..120_u64, u64::MAX - 80..=u64::MAX];
    let step =
        prop_oneof![
            (0..70_usize, 0..70_usize, base, 0..32_u8).prop_map(|(offset, len, base, access)| {
                Step::Register { offset, len, base, access }
            }),
            any::<prop::sample::Index>().prop_map(Step::Deregister),
            (any::<prop::sample::Index>(), to, 0..70_usize)
                .prop_map(|(pick, to, len)| Step::Write { pick, to, len }),
        ];
    proptest::collection::vec(step, 0..60)
}

/// The expected table: intervals in wide arithmetic.
struct Modelled {
    stag: Stag,
    live: bool,
    offset: usize,
    range: std::ops::Range<u128>,
    access: Access,
}

impl Modelled {
    fn expect(&self, to: u64, len: usize) -> Result<usize, Refusal> {
        let (first, end) = (u128::from(to), u128::from(to) + len as u128);
        if !self.live {
            Err(Refusal::InvalidStag)
        } else if !self.access.contains(Access::REMOTE_WRITE) {
            Err(Refusal::AccessRights)
        } else if end >= 1 << 64 {
            Err(Refusal::TaggedOffsetWrap)
        } else if first < self.range.start || end > self.range.end {
            Err(Refusal::BaseOrBounds)
        } else {
            Ok(self.offset + usize::try_from(first - self.range.start).unwrap())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn the_table_agrees_with_a_list_of_intervals(steps in steps()) {
        const LEN: usize = 100;
        let table = table();
        let region = Region::anonymous(LEN).unwrap();
        let mut memory = vec![0; LEN];
        let mut model: Vec<Modelled> = Vec::new();
        for (round, step) in steps.into_iter().enumerate() {
            match step {
                Step::Register { offset, len, base, access } => {
                    let access = Access::from_bits_truncate(access);
                    let (scope, base) = (Scope::Pd, TaggedOffset(base));
                    let registered = table.register(Registration {
                        region: Arc::clone(&region), offset, len, base, access, pd: PD, scope,
                    });
                    let range = u128::from(base.0)..u128::from(base.0) + len as u128;
                    let legal = offset + len <= LEN && range.end < 1 << 64;
                    prop_assert_eq!(registered.is_ok(), legal);
                    if let Ok(stag) = registered {
                        model.push(Modelled { stag, live: true, offset, range, access });
                    }
                }
                Step::Deregister(pick) if !model.is_empty() => {
                    let entry = pick.index(model.len());
                    let was_live = std::mem::replace(&mut model[entry].live, false);
                    prop_assert_eq!(table.deregister(model[entry].stag), was_live);
                }
                Step::Write { pick, to, len } if !model.is_empty() => {
                    let entry = &model[pick.index(model.len())];
                    let octet = u8::try_from(round + 1).unwrap();
                    let guard = table.read();
                    let need = Access::REMOTE_WRITE;
                    let grant = guard.check(entry.stag, TaggedOffset(to), len, need, PD, QP);
                    let expected = entry.expect(to, len);
                    prop_assert_eq!(grant.map(|_| ()), expected.map(|_| ()));
                    if let (Ok(grant), Ok(at)) = (grant, expected) {
                        grant.place(0, SharedSlice::from_bytes(&vec![octet; len]));
                        memory[at..at + len].fill(octet);
                    }
                }
                Step::Deregister(_) | Step::Write { .. } => {}
            }
            prop_assert_eq!(&octets(&region), &memory);
        }
    }
}

#[test]
fn table_lease_blocks_changes_only_while_the_table_is_open() {
    let table = table();
    let stag = table.register(registration()).unwrap();
    let mut lease = TableLease::new(&table);
    assert!(table.deregister(stag), "it has not opened the table yet");
    let stag = table.register(registration()).unwrap();
    let check = |guard: &TableGuard<'_>| {
        guard
            .check(stag, TaggedOffset(1000), 1, Access::REMOTE_WRITE, PD, QP)
            .map(|grant| grant.len())
    };
    assert_eq!(check(lease.open()), Ok(1));
    lease.close();
    assert!(table.deregister(stag));
    assert_eq!(check(lease.open()), Err(Refusal::InvalidStag));
}
