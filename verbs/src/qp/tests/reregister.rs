//! `ibv_rereg_mr`: the keys do not change, and refer to the new memory and rights.

use super::*;
use crate::abi::{
    IBV_ACCESS_MW_BIND, IBV_MW_TYPE_1, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_INPUT, ibv_mw_bind, ibv_mw_bind_info,
};
use crate::mr::ibv_dereg_mr;
use crate::mr::rereg::ibv_rereg_mr;
use crate::mw::{alloc_mw, bind_mw, dealloc_mw};
use crate::pd::ibv_dealloc_pd;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the result of `ibv_rereg_mr` for the region with all rights.
fn rereg(end: &End, flags: u32, pd: *mut ibv_pd, place: *mut u8, len: usize, access: u32) -> c_int {
    let (flags, access) = (flags.cast_signed(), access.cast_signed());
    // SAFETY: live objects, and memory that is never freed.
    unsafe { ibv_rereg_mr(end.mr, flags, pd, place.cast(), len, access) }
}

fn another_domain(end: &End) -> *mut ibv_pd {
    // SAFETY: an open device.
    pd::alloc(end.context, unsafe { context(end.context) })
}

#[test]
fn a_region_moves_with_its_keys() {
    let [a, b] = &connected(64);
    let place = Box::leak(vec![0_u8; 64].into_boxed_slice()).as_mut_ptr();
    let translation = IBV_REREG_MR_CHANGE_TRANSLATION;
    let before = End::key(b.mr);
    assert_eq!(rereg(b, translation, ptr::null_mut(), place, 64, 0), 0);
    // SAFETY: C's part of a live region.
    let c = unsafe { b.mr.read() };
    assert_eq!((c.addr, c.length, c.lkey, c.rkey), (place.cast(), 64, before, before));
    // The key reaches the new memory, at both ends of its use.
    let moved = End { octets: place, ..*b_without_connection(b) };
    assert_eq!(a.send(1, IBV_WR_RDMA_WRITE, &moved, &mut [a.element(a.mr, 0, 64)]), 0);
    assert_eq!(a.statuses(1), [(1, IBV_WC_SUCCESS)]);
    assert_eq!(b.receive(2, &mut [moved.element(b.mr, 0, 64)]), 0);
    assert_eq!(a.send(2, IBV_WR_SEND, &moved, &mut [a.element(a.mr, 0, 64)]), 0);
    assert_eq!(b.statuses(1), [(2, IBV_WC_SUCCESS)]);
    assert_eq!(a.statuses(1), [(2, IBV_WC_SUCCESS)]);
    // The old memory is no longer registered.
    assert_eq!(b.receive(3, &mut [b.element(b.mr, 0, 64)]), 0);
    assert_eq!(a.send(3, IBV_WR_SEND, b, &mut [a.element(a.mr, 0, 64)]), 0);
    assert_eq!(b.statuses(1), [(3, IBV_WC_LOC_PROT_ERR)]);
}

/// Returns the same end without its connection, to use it with other memory.
fn b_without_connection(end: &End) -> Box<End> {
    let &End { context, pd, cq, qp, octets, mr, read_only, .. } = end;
    Box::new(End { context, pd, cq, qp, octets, mr, read_only, connection: None })
}

#[test]
fn a_region_changes_its_domain_and_keeps_it_in_use() {
    let [a, b] = &connected(64);
    let other = another_domain(b);
    let dealloc = || {
        // SAFETY: live, and not used again if the function returns 0.
        unsafe { ibv_dealloc_pd(other) }
    };
    assert_eq!(rereg(b, IBV_REREG_MR_CHANGE_PD, other, ptr::null_mut(), 0, 0), 0);
    // SAFETY: C's part of a live region.
    assert_eq!(unsafe { (*b.mr).pd }, other);
    assert_eq!(dealloc(), libc::EBUSY);
    assert_eq!(b.receive(1, &mut [b.element(b.mr, 0, 64)]), 0);
    assert_eq!(rereg(b, IBV_REREG_MR_CHANGE_PD, b.pd, ptr::null_mut(), 0, 0), 0);
    assert_eq!(dealloc(), 0);
    assert_eq!(b.receive(2, &mut [b.element(b.mr, 0, 64)]), 0);
    // Posted while the key was not of the queue pair's domain.
    assert_eq!(a.send(1, IBV_WR_SEND, b, &mut [a.element(a.mr, 0, 64)]), 0);
    assert_eq!(b.statuses(2), [(1, IBV_WC_LOC_PROT_ERR), (2, IBV_WC_WR_FLUSH_ERR)]);
}

#[test]
fn a_region_changes_its_rights() {
    let [a, b] = &connected(64);
    let access = IBV_REREG_MR_CHANGE_ACCESS;
    let write = |id| {
        assert_eq!(a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
        let mut sink = [a.element(a.mr, 8, 8)];
        // The Read completes after the Write was placed or refused.
        assert_eq!(a.send(id + 1, IBV_WR_RDMA_READ, b, &mut sink), 0);
        a.statuses(2)[1].1
    };
    let all = ALL.cast_unsigned();
    assert_eq!(rereg(b, access, ptr::null_mut(), ptr::null_mut(), 0, 0), 0);
    assert_eq!(rereg(b, access, ptr::null_mut(), ptr::null_mut(), 0, all), 0);
    assert_eq!(write(1), IBV_WC_SUCCESS);
    assert_eq!(rereg(b, access, ptr::null_mut(), ptr::null_mut(), 0, IBV_ACCESS_LOCAL_WRITE), 0);
    assert_ne!(write(3), IBV_WC_SUCCESS);
}

/// As at the registration: memory that cannot be written is an error now, not a signal later.
#[test]
fn read_only_memory_gets_no_write_access() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let end = &mut End::new(4);
    let page = rustix::param::page_size();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let place =
        unsafe { mmap_anonymous(ptr::null_mut(), page, ProtFlags::READ, MapFlags::PRIVATE) };
    // SAFETY: memory that is never unmapped.
    end.mr = unsafe { ibv_reg_mr(end.pd, place.unwrap(), page, 0) };
    assert!(!end.mr.is_null());
    let access = IBV_REREG_MR_CHANGE_ACCESS;
    for rights in [IBV_ACCESS_LOCAL_WRITE, ALL.cast_unsigned()] {
        let answer = rereg(end, access, ptr::null_mut(), ptr::null_mut(), 0, rights);
        assert_eq!((answer, errno()), (IBV_REREG_MR_ERR_INPUT, libc::EFAULT));
    }
    assert_eq!(rereg(end, access, ptr::null_mut(), ptr::null_mut(), 0, 0), 0);
}

/// ibv_rereg_mr(3): IBV_REREG_MR_ERR_INPUT, the old region is valid.
#[test]
fn failed_reregistration_leaves_the_region_valid() {
    let [a, b] = &connected(64);
    let (none, no_pd) = (ptr::null_mut(), ptr::null_mut());
    let refused = |errno_expected, answer| {
        assert_eq!((answer, errno()), (IBV_REREG_MR_ERR_INPUT, errno_expected));
    };
    let (translation, access) = (IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_CHANGE_ACCESS);
    let page: *mut u8 = ptr::without_provenance_mut(4096);
    refused(libc::EINVAL, rereg(b, 0, no_pd, none, 0, 0));
    refused(libc::EINVAL, rereg(b, 8, no_pd, none, 0, 0));
    refused(libc::EINVAL, rereg(b, translation, no_pd, none, 8, 0));
    refused(libc::EINVAL, rereg(b, translation, no_pd, b.octets, 0, 0));
    refused(libc::EFAULT, rereg(b, translation, no_pd, page, 8, 0));
    refused(libc::EINVAL, rereg(b, IBV_REREG_MR_CHANGE_PD, no_pd, none, 0, 0));
    refused(libc::EINVAL, rereg(b, translation, no_pd, b.octets, 8, IBV_ACCESS_LOCAL_WRITE));
    refused(libc::EINVAL, rereg(b, access, no_pd, none, 0, IBV_ACCESS_REMOTE_WRITE));
    // A window is bound to it.
    let all = ALL.cast_unsigned() | IBV_ACCESS_MW_BIND;
    assert_eq!(rereg(b, access, no_pd, none, 0, all), 0);
    // SAFETY: a live domain.
    let mw = unsafe { alloc_mw(b.pd, IBV_MW_TYPE_1) };
    let addr = b.octets.addr() as u64;
    let bind_info = ibv_mw_bind_info { mr: b.mr, addr, length: 8, mw_access_flags: 0 };
    let mut bind = ibv_mw_bind { wr_id: 1, send_flags: IBV_SEND_SIGNALED, bind_info };
    // SAFETY: live objects.
    assert_eq!(unsafe { bind_mw(b.qp, mw, &raw mut bind) }, 0);
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    refused(libc::EBUSY, rereg(b, access, no_pd, none, 0, all));
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { dealloc_mw(mw) }, 0);
    assert_eq!(a.send(1, IBV_WR_RDMA_READ, b, &mut [a.element(a.mr, 0, 8)]), 0);
    assert_eq!(a.statuses(1), [(1, IBV_WC_SUCCESS)]);
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { ibv_dereg_mr(b.mr) }, 0);
}
