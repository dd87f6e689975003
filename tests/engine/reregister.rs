//! Registering anew: one steering tag with other bytes, rights or domain, and earlier posts that
//! still fit or not.

use urnic_engine::mem::{Access, Region, RegisterError};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_engine::types::{TaggedOffset, WrId};
use urnic_engine::verbs::{
    Cq, Mr, MrPart, MwType, Pd, RecvWr, RemoteBuffer, SendOp, SendWr, WcStatus,
};
use urnic_engine::wire::terminate::TerminateCode;
use urnic_testkit::pair::{Pair, Setup, all_access, content, fill};

const LEN: usize = 100;
const OK: WcStatus = WcStatus::Success;

fn rest(pair: &mut Pair) {
    pair.run_for(Duration::from_secs(5), |_| false);
}

fn drained(cq: &Cq) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll()).map(|wc| (wc.wr_id.0, wc.status)).collect()
}

fn part(base: u64, access: Access) -> MrPart {
    MrPart { range: 0..LEN, base: TaggedOffset(base), access, only: None }
}

/// Returns memory of the responder at tagged offset 1000, and a source of the initiator.
fn scene() -> (Pair, Mr, Mr) {
    let pair = Pair::connect(Setup::default());
    let region = Region::anonymous(LEN).unwrap();
    let old = pair.b.pd.reg_part(region, part(1000, all_access())).unwrap();
    let source = pair.a.pd.reg_mr(LEN, all_access()).unwrap();
    fill(&source, 3);
    (pair, old, source)
}

/// Sends a Write to a tagged offset. Returns the code of the Terminate, if there is one.
fn write(pair: &mut Pair, mr: &Mr, to: u64, source: &Mr) -> Option<TerminateCode> {
    let remote = RemoteBuffer { stag: mr.stag(), to: TaggedOffset(to) };
    pair.a.qp.post_send(SendWr::write(WrId(1), remote, [source.sge(0..LEN)])).unwrap();
    rest(pair);
    drained(&pair.a.cq);
    pair.a.events.iter().find_map(|event| match event {
        StreamEvent::Terminated(terminate) => Some(terminate.code),
        _ => None,
    })
}

#[test]
fn reregistered_tag_names_the_new_region_only() {
    let (mut pair, old, source) = scene();
    let region = Region::anonymous(LEN).unwrap();
    let new = old.reregister(&pair.b.pd, region, part(5000, all_access())).unwrap();
    assert_eq!(new.stag(), old.stag());
    assert_eq!(write(&mut pair, &new, 5000, &source), None);
    assert!(content(&new) == content(&source));
    assert!(content(&old) == [0; LEN]);
    let code = write(&mut pair, &new, 1000, &source);
    assert_eq!(code, Some(TerminateCode::DDP_TAGGED_BASE_BOUNDS));
    assert!(content(&old) == [0; LEN]);
}

#[test]
fn rights_and_domain_are_those_of_the_last_registration() {
    type Change = fn(&Pair) -> (Pd, Access);
    let other_domain: Change = |pair| (pair.b.rnic.alloc_pd(), all_access());
    let fewer_rights: Change = |pair| (pair.b.pd.clone(), Access::LOCAL_WRITE);
    for (change, code) in [
        (fewer_rights, TerminateCode::DDP_TAGGED_INVALID_STAG),
        (other_domain, TerminateCode::DDP_TAGGED_STAG_NOT_ASSOCIATED),
    ] {
        let (mut pair, old, source) = scene();
        let (pd, access) = change(&pair);
        let region = old.region().clone();
        let new = old.reregister(&pd, region.clone(), part(1000, access)).unwrap();
        // Back again: the peer finds everything as before.
        let again = new.reregister(&pair.b.pd, region.clone(), part(1000, all_access())).unwrap();
        assert_eq!(write(&mut pair, &again, 1000, &source), None);
        let last = again.reregister(&pd, region, part(1000, access)).unwrap();
        assert_eq!(write(&mut pair, &last, 1000, &source), Some(code));
    }
}

/// RFC 5040 §8.1.1 (6): the tag no longer names the memory with which a receive was posted.
#[test]
fn receive_posted_before_reregistration_fails_outside_the_new_range() {
    let (mut pair, old, source) = scene();
    pair.b.qp.post_recv(RecvWr::new(WrId(7), [old.sge(0..LEN)])).unwrap();
    let region = Region::anonymous(LEN).unwrap();
    let new = old.reregister(&pair.b.pd, region, part(5000, all_access())).unwrap();
    pair.a.qp.post_send(SendWr::send(WrId(1), [source.sge(0..LEN)])).unwrap();
    rest(&mut pair);
    assert_eq!(drained(&pair.b.cq), [(7, WcStatus::LocProtErr)]);
    assert!(content(&old) == [0; LEN] && content(&new) == [0; LEN]);
}

#[test]
fn the_tag_is_valid_until_its_last_handle_goes() {
    let (mut pair, old, source) = scene();
    let region = old.region().clone();
    let new = old.reregister(&pair.b.pd, region, part(1000, all_access())).unwrap();
    drop(old);
    assert_eq!(write(&mut pair, &new, 1000, &source), None);
    assert!(new.invalidate());
}

#[test]
fn failed_reregistration_leaves_the_region_unchanged() {
    let (mut pair, old, source) = scene();
    let again = |pd: &Pd, part| old.reregister(pd, old.region().clone(), part).err();
    let outside = MrPart { range: 0..1 << 20, ..part(1000, all_access()) };
    let backward = MrPart { range: std::ops::Range { start: 2, end: 1 }, ..outside.clone() };
    assert_eq!(again(&pair.b.pd, outside), Some(RegisterError::OutsideRegion));
    assert_eq!(again(&pair.b.pd, backward), Some(RegisterError::OutsideRegion));
    let wrapping = part(u64::MAX, all_access());
    assert_eq!(again(&pair.b.pd, wrapping), Some(RegisterError::TaggedOffsetWrap));
    assert_eq!(write(&mut pair, &old, 1000, &source), None);
    // A window that is bound to it keeps it from changing.
    let showable = part(1000, all_access() | Access::MW_BIND);
    let region = old.region().clone();
    let shown = old.reregister(&pair.b.pd, region.clone(), showable.clone()).unwrap();
    let mw = pair.b.pd.alloc_mw(MwType::One).unwrap();
    let bind = mw.bind(&shown, 0..8, Access::REMOTE_READ);
    pair.b.qp.post_send(SendWr::new(WrId(1), SendOp::BindMw { bind }, [])).unwrap();
    rest(&mut pair);
    assert_eq!(drained(&pair.b.cq), [(1, OK)]);
    let refused = shown.reregister(&pair.b.pd, region.clone(), showable.clone()).err();
    assert_eq!(refused, Some(RegisterError::WindowsBound));
    drop(mw);
    assert!(shown.invalidate());
    let refused = shown.reregister(&pair.b.pd, region, showable).err();
    assert_eq!(refused, Some(RegisterError::NotRegistered));
}
