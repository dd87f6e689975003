//! Parent domains and thread domains: objects made with one, and deallocation.

use std::sync::mpsc;

use super::*;
use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_PD, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, ibv_cq_init_attr_ex,
    ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr,
};
use crate::cq::extended::create_cq_ex;
use crate::cq::ibv_destroy_cq;
use crate::errno::Errno;
use crate::mr::ibv_dereg_mr;
use crate::object::CPtr;
use crate::parent_domain::{alloc_parent_domain, alloc_td, dealloc_td};
use crate::pd::ibv_dealloc_pd;
use crate::process::{QueuePair, process};

fn td(end: &End) -> *mut ibv_td {
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: an open device, and attributes.
    unsafe { alloc_td(end.context, &raw mut attr) }
}

fn parent(end: &End, td: *mut ibv_td) -> *mut ibv_pd {
    let mut attr = ibv_parent_domain_init_attr::zeroed();
    (attr.pd, attr.td) = (end.pd, td);
    made(end, &mut attr)
}

fn made(end: &End, attr: &mut ibv_parent_domain_init_attr) -> *mut ibv_pd {
    // SAFETY: an open device, and attributes whose domains are live.
    unsafe { alloc_parent_domain(end.context, attr) }
}

fn dealloc(pd: *mut ibv_pd) -> c_int {
    // SAFETY: live, and not used again if the function returns 0.
    unsafe { ibv_dealloc_pd(pd) }
}

/// ibv_alloc_parent_domain(3): a parent domain is interchangeable with its protection domain.
#[test]
fn a_key_of_a_parent_domain_is_good_at_a_queue_pair_of_its_domain() {
    let [a, b] = &connected(64);
    let parent = parent(a, ptr::null_mut());
    // SAFETY: memory that is never freed.
    let mr = unsafe { ibv_reg_mr(parent, a.octets.cast(), LEN, ALL) };
    assert_eq!(a.send(1, IBV_WR_RDMA_WRITE, b, &mut [a.element(mr, 0, 8)]), 0);
    assert_eq!(a.statuses(1), [(1, IBV_WC_SUCCESS)]);
    assert_eq!(a.receive(2, &mut [a.element(mr, 0, 8)]), 0);
    let to = End { mr, ..End::new(4) };
    let to = End { octets: a.octets, ..to };
    assert_eq!(b.send(3, IBV_WR_RDMA_WRITE, &to, &mut [b.element(b.mr, 0, 8)]), 0);
    assert_eq!(b.statuses(1), [(3, IBV_WC_SUCCESS)]);
}

#[test]
fn domains_go_when_nothing_of_them_is_left() {
    let end = &End::new(4);
    let td = td(end);
    let parent = parent(end, td);
    let dealloc_td = || {
        // SAFETY: live, and not used again if the function returns 0.
        unsafe { dealloc_td(td) }
    };
    // SAFETY: memory that is never freed.
    let mr = unsafe { ibv_reg_mr(parent, end.octets.cast(), LEN, ALL) };
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    (attr.cqe, attr.comp_mask, attr.parent_domain) = (4, IBV_CQ_INIT_ATTR_MASK_PD, parent);
    // SAFETY: an open device, and attributes.
    let cq = unsafe { create_cq_ex(end.context, &raw mut attr) };
    assert!(!cq.is_null());
    let made = End { pd: parent, cq: cq.cast(), ..End::new(4) };
    let qp = made.make_qp();
    assert_eq!((dealloc(parent), dealloc(end.pd), dealloc_td()), (16, 16, 16));
    Errno(0).set();
    assert_eq!(dealloc(parent), libc::EBUSY);
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(errno, Some(libc::EBUSY), "by errno as well");
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    assert_eq!(dealloc(parent), libc::EBUSY);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    assert_eq!(dealloc(parent), libc::EBUSY);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_destroy_cq(cq.cast()) }, 0);
    assert_eq!((dealloc(parent), dealloc_td()), (0, 0));
}

/// A peer's request lends the queue pair to a thread of the library: `ibv_destroy_qp` waits for
/// that thread, so `ibv_dealloc_pd` finds no reference.
#[test]
fn a_domain_is_free_once_a_queue_pair_is_destroyed_that_was_lent() {
    let end = End::new(4);
    // SAFETY: an open device.
    let pd = pd::alloc(end.context, unsafe { context(end.context) });
    let qp = End { pd, ..End::new(4) }.make_qp();
    // SAFETY: live.
    let number = unsafe { (*qp).qp_num };
    let (lent, is_lent) = mpsc::channel();
    let (give_back, is_given_back) = mpsc::channel();
    let lender = thread::spawn(move || {
        let lend = |_: &Arc<dyn QueuePair>| {
            lent.send(()).unwrap();
            is_given_back.recv_timeout(PATIENCE).unwrap();
        };
        process().unwrap().with_qp(number, lend).unwrap();
    });
    is_lent.recv_timeout(PATIENCE).unwrap();
    let (qp, pd) = (CPtr(qp), CPtr(pd));
    let (ended, has_ended) = mpsc::channel();
    let ender = thread::spawn(move || {
        let (qp, pd) = (qp, pd);
        // SAFETY: live, and not used again.
        let destroyed = unsafe { ibv_destroy_qp(qp.0) };
        ended.send((destroyed, dealloc(pd.0))).unwrap();
    });
    // A call that does not wait would find the domain in use meanwhile.
    let early = has_ended.recv_timeout(Duration::from_millis(100));
    assert!(early.is_err(), "{early:?}");
    give_back.send(()).unwrap();
    assert_eq!(has_ended.recv_timeout(PATIENCE), Ok((0, 0)));
    lender.join().unwrap();
    ender.join().unwrap();
}

#[test]
fn attributes_that_make_no_sense_are_refused() {
    let end = &End::new(4);
    let refused = |change: &dyn Fn(&mut ibv_parent_domain_init_attr)| {
        let mut attr = ibv_parent_domain_init_attr::zeroed();
        attr.pd = end.pd;
        change(&mut attr);
        assert!(made(end, &mut attr).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    };
    extern "C" fn free(_: *mut ibv_pd, _: *mut libc::c_void, _: *mut libc::c_void, _: u64) {}
    refused(&|attr| attr.pd = ptr::null_mut());
    refused(&|attr| attr.comp_mask = 1 << 7);
    refused(&|attr| {
        attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        attr.free = Some(free);
    });
    let mut attr = ibv_td_init_attr { comp_mask: 1 };
    // SAFETY: an open device, and attributes.
    assert!(unsafe { alloc_td(end.context, &raw mut attr) }.is_null());
    // A completion queue accepts a parent domain or none.
    for domain in [ptr::null_mut(), end.pd] {
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        (attr.cqe, attr.comp_mask, attr.parent_domain) = (4, IBV_CQ_INIT_ATTR_MASK_PD, domain);
        // SAFETY: an open device, and attributes.
        assert!(unsafe { create_cq_ex(end.context, &raw mut attr) }.is_null());
    }
}
