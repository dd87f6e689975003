//! Memory windows by C's operations.

use super::*;
use crate::abi::{
    IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_WC_BIND_MW,
    IBV_WC_LOCAL_INV, IBV_WC_MW_BIND_ERR, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, ibv_mw, ibv_mw_bind,
    ibv_mw_bind_info, ibv_send_wr_bind, ibv_send_wr_bind_mw,
};
use crate::mr::ibv_dereg_mr;
use crate::mw::{alloc_mw, bind_mw, dealloc_mw};

/// Offset of the bytes that windows open; their number follows.
const AT: usize = 256;
const SHOWN: u64 = 512;

impl End {
    fn showable(&self) -> *mut ibv_mr {
        let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND).cast_signed();
        // SAFETY: memory that is never freed.
        unsafe { ibv_reg_mr(self.pd, self.octets.cast(), LEN, access) }
    }

    fn window(&self, kind: u32) -> *mut ibv_mw {
        // SAFETY: a live domain.
        unsafe { alloc_mw(self.pd, kind) }
    }

    fn info(&self, mr: *mut ibv_mr, length: u64) -> ibv_mw_bind_info {
        let addr = self.octets.wrapping_add(AT).addr() as u64;
        ibv_mw_bind_info { mr, addr, length, mw_access_flags: IBV_ACCESS_REMOTE_WRITE }
    }

    /// Binds a window of type 1. Returns the result of the call.
    fn bind(&self, wr_id: u64, mw: *mut ibv_mw, bind_info: ibv_mw_bind_info) -> c_int {
        let mut bind = ibv_mw_bind { wr_id, send_flags: IBV_SEND_SIGNALED, bind_info };
        // SAFETY: live objects.
        unsafe { bind_mw(self.qp, mw, &raw mut bind) }
    }

    /// Posts a binding of a window of type 2.
    fn post_bind(&self, wr_id: u64, mw: *mut ibv_mw, rkey: u32, info: ibv_mw_bind_info) -> c_int {
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, IBV_WR_BIND_MW, IBV_SEND_SIGNALED);
        wr.bind = ibv_send_wr_bind { bind_mw: ibv_send_wr_bind_mw { mw, rkey, bind_info: info } };
        self.post_one(&mut wr)
    }

    fn invalidate(&self, wr_id: u64, rkey: u32) -> c_int {
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, IBV_WR_LOCAL_INV, IBV_SEND_SIGNALED);
        wr.imm = ibv_send_wr_imm { invalidate_rkey: rkey };
        self.post_one(&mut wr)
    }

    fn post_one(&self, wr: &mut ibv_send_wr) -> c_int {
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and one request.
        unsafe { post_send(self.qp, wr, &raw mut bad) }
    }

    /// Writes to the peer, and reads back so that the Write is placed. Returns the status of the
    /// Read.
    fn write_through(&self, remote_addr: u64, rkey: u32, proof: &Self) -> u32 {
        // SAFETY: memory of this test, which nothing else uses.
        unsafe { self.octets.write_bytes(9, 8) };
        let mut elements = [self.element(self.mr, 0, 8)];
        let mut wr = ibv_send_wr::zeroed();
        (wr.opcode, wr.sg_list, wr.num_sge) = (IBV_WR_RDMA_WRITE, elements.as_mut_ptr(), 1);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
        assert_eq!(self.post_one(&mut wr), 0);
        let mut sink = [self.element(self.mr, 8, 8)];
        assert_eq!(self.send(99, IBV_WR_RDMA_READ, proof, &mut sink), 0);
        loop {
            let wc = self.wait();
            if wc.wr_id == 99 || wc.status != IBV_WC_SUCCESS {
                return wc.status;
            }
        }
    }

    fn octet(&self, at: usize) -> u8 {
        // SAFETY: memory of this test, which the peer has written.
        unsafe { self.octets.wrapping_add(at).read_volatile() }
    }
}

fn rkey(mw: *mut ibv_mw) -> u32 {
    // SAFETY: a live window.
    unsafe { (*mw).rkey }
}

fn dereg(mr: *mut ibv_mr) -> c_int {
    // SAFETY: live, and not used again if the function returns 0.
    unsafe { ibv_dereg_mr(mr) }
}

#[test]
fn a_window_of_type_1_has_another_key_after_each_binding() {
    let [a, b] = &connected(64);
    let (mr, mw) = (b.showable(), b.window(IBV_MW_TYPE_1));
    let first = rkey(mw);
    assert_eq!(b.bind(1, mw, b.info(mr, SHOWN)), 0);
    let bound = rkey(mw);
    assert!(bound != first && (bound ^ first) >> 8 == 0);
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, IBV_WC_SUCCESS, IBV_WC_BIND_MW));
    let addr = b.octets.wrapping_add(AT).addr() as u64;
    assert_eq!(a.write_through(addr, bound, b), IBV_WC_SUCCESS);
    assert_eq!([b.octet(AT - 1), b.octet(AT), b.octet(AT + 8)], [0, 9, 0]);
    assert_eq!(dereg(mr), libc::EBUSY);
    // Zero-based: the peer counts from the window's first byte.
    let mut info = b.info(mr, SHOWN);
    (info.addr, info.mw_access_flags) =
        (info.addr + 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);
    assert_eq!(b.bind(2, mw, info), 0);
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    assert_eq!(a.write_through(0, rkey(mw), b), IBV_WC_SUCCESS);
    assert_eq!([b.octet(AT + 63), b.octet(AT + 64)], [0, 9]);
    // A binding to nothing frees the region.
    let nothing = ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
    assert_eq!(b.bind(3, mw, nothing), 0);
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    assert_eq!(dereg(mr), 0);
    assert_ne!(a.write_through(0, rkey(mw), b), IBV_WC_SUCCESS);
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { dealloc_mw(mw) }, 0);
}

#[test]
fn a_window_of_type_2_has_the_key_of_its_request() {
    let [a, b] = &connected(64);
    let (mr, mw) = (b.showable(), b.window(IBV_MW_TYPE_2));
    let key = rkey(mw) & !0xff | 0x5a;
    // Only the lowest byte of the request's key counts.
    assert_eq!(b.post_bind(1, mw, 0x5a, b.info(mr, SHOWN)), 0);
    assert_eq!(b.wait().opcode, IBV_WC_BIND_MW);
    let addr = b.octets.wrapping_add(AT).addr() as u64;
    assert_eq!(a.write_through(addr, key, b), IBV_WC_SUCCESS);
    assert_eq!(dereg(mr), libc::EBUSY);
    assert_eq!(b.invalidate(2, key), 0);
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (2, IBV_WC_SUCCESS, IBV_WC_LOCAL_INV));
    // By the extended interface; deallocated at its owner.
    let ex = b.qp.cast::<ibv_qp_ex>();
    // SAFETY: an extended queue pair, as it was made.
    let c = unsafe { ex.read() };
    // SAFETY: a live queue pair.
    unsafe { c.wr_start.unwrap()(ex) };
    let info = b.info(mr, SHOWN);
    // SAFETY: as above, and C's part of it.
    unsafe { (*ex).wr_id = 3 };
    // SAFETY: as above.
    unsafe { (*ex).wr_flags = IBV_SEND_SIGNALED };
    // SAFETY: a live window and region.
    unsafe { c.wr_bind_mw.unwrap()(ex, mw, key ^ 1, &raw const info) };
    // SAFETY: as above.
    assert_eq!(unsafe { c.wr_complete.unwrap()(ex) }, 0);
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, IBV_WC_SUCCESS, IBV_WC_BIND_MW));
    assert_eq!(a.write_through(addr, key ^ 1, b), IBV_WC_SUCCESS);
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { dealloc_mw(mw) }, 0);
    assert_eq!(dereg(mr), 0);
    assert_ne!(a.write_through(addr, key ^ 1, b), IBV_WC_SUCCESS);
}

#[test]
fn invalid_bindings_are_refused_by_the_call() {
    let [_, b] = &connected(64);
    let mr = b.showable();
    let (one, two) = (b.window(IBV_MW_TYPE_1), b.window(IBV_MW_TYPE_2));
    assert!(b.window(3).is_null());
    let info = || b.info(mr, SHOWN);
    let keys = (rkey(one), rkey(two));
    let invalid = libc::EINVAL;
    assert_eq!(b.bind(1, two, info()), invalid);
    assert_eq!(b.post_bind(1, one, rkey(one), info()), invalid);
    assert_eq!(b.post_bind(1, ptr::null_mut(), rkey(two), info()), invalid);
    let without = ibv_mw_bind_info { mr: ptr::null_mut(), ..info() };
    assert_eq!(b.bind(1, one, without), invalid);
    assert_eq!(b.post_bind(1, two, rkey(two), without), invalid);
    let rights = ibv_mw_bind_info { mw_access_flags: IBV_ACCESS_MW_BIND, ..info() };
    assert_eq!(b.bind(1, one, rights), invalid);
    assert!(b.poll().is_none());
    assert_eq!((rkey(one), rkey(two)), keys, "a call that fails gives no key");
    // A refusal that needs the table of regions arrives as a completion, in its turn.
    let before = rkey(one);
    assert_eq!(b.bind(2, one, b.info(b.mr, SHOWN)), 0);
    assert_ne!(rkey(one), before);
    assert_eq!(b.statuses(1), [(2, IBV_WC_MW_BIND_ERR)], "a region that permits no windows");
}

/// Another queue pair may get the number of the destroyed one.
#[test]
fn a_destroyed_queue_pair_takes_its_windows_of_type_2_along() {
    let [_, b] = &connected(64);
    let (mr, two) = (b.showable(), b.window(IBV_MW_TYPE_2));
    assert_eq!(b.post_bind(1, two, rkey(two), b.info(mr, SHOWN)), 0);
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    assert_eq!(dereg(mr), libc::EBUSY);
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { ibv_destroy_qp(b.qp) }, 0);
    assert_eq!(dereg(mr), 0);
}
