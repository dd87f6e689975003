//! Flags and fields of requests, and requests that are refused before they are posted.

use super::super::create::create_qp_ex;
use super::super::modify::{ibv_modify_qp, ibv_query_qp};
use super::*;
use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_QP_ACCESS_FLAGS,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET,
    IBV_SEND_FENCE, IBV_SEND_SOLICITED, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_qp_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr,
};
use crate::attributes::WR_MAX;
use crate::cq::extended::create_cq_ex;
use crate::gid;
use crate::mr::ibv_dereg_mr;
use crate::mr::rereg::ibv_rereg_mr;
use crate::object::CPtr;
use crate::srq::{ibv_create_srq, ibv_modify_srq, ibv_query_srq, post_srq_recv};

impl End {
    /// Posts one request by `ibv_post_send`, or by `ibv_wr_*` with `by_batch`: a Write to `at`, or
    /// a Send without `at`.
    fn ask(&self, by_batch: bool, (wr_id, flags): (u64, u32), at: Option<u64>, from: ibv_sge) {
        let mut elements = [from];
        let rkey = at.map_or(0, |_| Self::key(self.mr));
        self.ask_with(by_batch, (wr_id, flags), at.map(|at| (rkey, at)), &mut elements);
    }

    fn ask_with(
        &self,
        by_batch: bool,
        (wr_id, flags): (u64, u32),
        at: Option<(u32, u64)>,
        elements: &mut [ibv_sge; 1],
    ) {
        if !by_batch {
            let mut wr = ibv_send_wr::zeroed();
            let opcode = if at.is_some() { IBV_WR_RDMA_WRITE } else { IBV_WR_SEND };
            (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, flags);
            (wr.sg_list, wr.num_sge) = (elements.as_mut_ptr(), 1);
            let (rkey, remote_addr) = at.unwrap_or_default();
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            let mut bad = ptr::null_mut();
            // SAFETY: a live queue pair, and a request with its list.
            assert_eq!(unsafe { post_send(self.qp, &raw mut wr, &raw mut bad) }, 0);
            return;
        }
        let ex = self.qp.cast::<ibv_qp_ex>();
        // SAFETY: an extended queue pair, as it was made.
        let ops = unsafe { ex.read() };
        // SAFETY: a live queue pair.
        unsafe { ops.wr_start.unwrap()(ex) };
        // SAFETY: C's part of it.
        unsafe { (*ex).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*ex).wr_flags = flags };
        match at {
            // SAFETY: a live queue pair.
            Some((rkey, addr)) => unsafe { ops.wr_rdma_write.unwrap()(ex, rkey, addr) },
            // SAFETY: as above.
            None => unsafe { ops.wr_send.unwrap()(ex) },
        }
        let [ibv_sge { addr, length, lkey }] = *elements;
        // SAFETY: as above.
        unsafe { ops.wr_set_sge.unwrap()(ex, lkey, addr, length) };
        // SAFETY: as above.
        assert_eq!(unsafe { ops.wr_complete.unwrap()(ex) }, 0);
    }

    fn read_word(&self, at: usize) -> u64 {
        // SAFETY: memory of this test.
        unsafe { self.octets.wrapping_add(at).cast::<u64>().read_volatile() }
    }

    fn shared_queue(&self) -> *mut ibv_srq {
        let mut attr = ibv_srq_init_attr::zeroed();
        attr.attr.max_wr = 4;
        // SAFETY: a live domain, and attributes.
        unsafe { ibv_create_srq(self.pd, &raw mut attr) }
    }
}

/// ibv_post_send(3): a fenced request begins when the Reads before it have completed.
#[test]
fn a_fenced_request_waits_for_the_reads_before_it() {
    const READ_TO: usize = 1024;
    const WRITTEN_AT: usize = 512;
    for by_batch in [false, true] {
        let [a, b] = &connected(64);
        // SAFETY: memory of this test.
        unsafe { b.octets.cast::<u64>().write_volatile(77) };
        // The peer answers the Read when the message before it has a receive.
        assert_eq!(a.send(1, IBV_WR_SEND, b, &mut [a.element(a.mr, 2048, 8)]), 0);
        assert_eq!(a.send(2, IBV_WR_RDMA_READ, b, &mut [a.element(a.mr, READ_TO, 8)]), 0);
        let at = b.octets.wrapping_add(WRITTEN_AT).expose_provenance() as u64;
        let fenced = (3, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
        a.ask_with(
            by_batch,
            fenced,
            Some((End::key(b.mr), at)),
            &mut [a.element(a.mr, READ_TO, 8)],
        );
        assert_eq!(b.receive(1, &mut [b.element(b.mr, 2048, 8)]), 0);
        let expected = [1, 2, 3].map(|id| (id, IBV_WC_SUCCESS));
        assert_eq!(a.statuses(3), expected);
        until(|| b.read_word(WRITTEN_AT) == 77);
    }
}

#[test]
fn all_requests_of_a_queue_pair_made_so_are_signalled() {
    for by_batch in [false, true] {
        let (mut a, b) = (End::new(64), End::new(64));
        let mut attr = ibv_qp_init_attr::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (a.cq, a.cq, IBV_QPT_RC);
        (attr.cap.max_send_wr, attr.sq_sig_all) = (8, 1);
        // SAFETY: live objects.
        a.qp = unsafe { create(a.pd, &mut attr, true, Connects::Id) }.unwrap();
        let _connections = connect([&a, &b], false);
        assert_eq!(b.receive(1, &mut [b.element(b.mr, 0, 8)]), 0);
        a.ask(by_batch, (5, 0), None, a.element(a.mr, 0, 8));
        assert_eq!(a.statuses(1), [(5, IBV_WC_SUCCESS)]);
        let (mut said, mut made) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: a live queue pair, and places for the answer.
        assert_eq!(unsafe { ibv_query_qp(a.qp, &raw mut said, 0, &raw mut made) }, 0);
        assert_eq!((made.sq_sig_all, made.cap.max_send_wr, said.cap.max_send_wr), (1, 8, 8));
        assert_eq!((made.send_cq, made.recv_cq, made.qp_type), (a.cq, a.cq, IBV_QPT_RC));
    }
}

/// Only solicited completions wake a sleeping peer.
#[test]
fn requests_say_whether_their_completion_at_the_peer_is_solicited() {
    let [a, b] = &connected(64);
    // SAFETY: a live queue.
    let inner = &unsafe { crate::cq::cq(b.cq) }.inner;
    let next = || {
        let mut wc = None;
        until(|| {
            wc = inner.poll();
            wc.is_some()
        });
        wc.unwrap().solicited
    };
    let rkey = End::key(b.mr);
    for flags in [0, IBV_SEND_SOLICITED] {
        let is_solicited = flags != 0;
        for opcode in [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM] {
            assert_eq!(b.receive(1, &mut []), 0);
            let mut wr = ibv_send_wr::zeroed();
            (wr.opcode, wr.send_flags) = (opcode, flags);
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: b.octets.addr() as u64, rkey };
            let mut bad = ptr::null_mut();
            // SAFETY: a live queue pair, and a request.
            assert_eq!(unsafe { post_send(a.qp, &raw mut wr, &raw mut bad) }, 0);
            assert_eq!(next(), is_solicited, "{opcode}");
        }
        let ex = a.qp.cast::<ibv_qp_ex>();
        // SAFETY: an extended queue pair, as it was made.
        let ops = unsafe { ex.read() };
        for number in 0..3 {
            assert_eq!(b.receive(1, &mut []), 0);
            // SAFETY: a live queue pair.
            unsafe { ops.wr_start.unwrap()(ex) };
            // SAFETY: C's part of it.
            unsafe { (*ex).wr_flags = flags };
            match number {
                // SAFETY: as above.
                0 => unsafe { ops.wr_send.unwrap()(ex) },
                // SAFETY: as above.
                1 => unsafe { ops.wr_send_imm.unwrap()(ex, 1) },
                // SAFETY: as above.
                _ => unsafe { ops.wr_rdma_write_imm.unwrap()(ex, rkey, b.octets.addr() as u64, 1) },
            }
            // SAFETY: as above.
            assert_eq!(unsafe { ops.wr_complete.unwrap()(ex) }, 0);
            assert_eq!(next(), is_solicited, "call {number}");
        }
    }
}

/// ibv_post_recv(3): the receives before the bad one are posted.
#[test]
fn failed_receive_post_names_the_bad_request() {
    let end = &End::new(4);
    let srq = end.shared_queue();
    for is_shared in [false, true] {
        let mut too_many = [(); ELEMENTS_MAX as usize + 1].map(|()| end.element(end.mr, 0, 8));
        let mut wrs = [(); 3].map(|()| ibv_recv_wr::zeroed());
        let [first, second, third] = &mut wrs;
        (second.sg_list, second.num_sge) =
            (too_many.as_mut_ptr(), c_int::try_from(too_many.len()).unwrap());
        (first.next, second.next) = (&raw mut *second, &raw mut *third);
        let (begin, wrong) = (&raw mut *first, &raw mut *second);
        let mut bad = ptr::null_mut();
        let answer = if is_shared {
            // SAFETY: a live queue, and buffers with their lists.
            unsafe { post_srq_recv(srq, begin, &raw mut bad) }
        } else {
            receivable(end.qp);
            // SAFETY: as above.
            unsafe { post_recv(end.qp, begin, &raw mut bad) }
        };
        assert_eq!((answer, bad), (libc::EINVAL, wrong), "{is_shared}");
    }
}

/// Brings a queue pair of an id to INIT, by the attributes that the application must set.
fn receivable(qp: *mut ibv_qp) {
    modify(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

fn modify(qp: *mut ibv_qp, state: u32, mask: u32) {
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.port_num) = (state, gid::PORT);
    let mask = (mask | IBV_QP_STATE).cast_signed();
    // SAFETY: a live queue pair, and attributes.
    assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }, 0);
}

#[test]
fn a_queue_pair_takes_receives_from_init_on_and_no_sends_before_rts() {
    let mut end = End::new(4);
    let mut attr = ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.qp_type) = (end.cq, end.cq, IBV_QPT_RC);
    // SAFETY: live objects.
    end.qp = unsafe { create(end.pd, &mut attr, true, Connects::Program) }.unwrap();
    assert_eq!(end.receive(1, &mut []), libc::EINVAL);
    receivable(end.qp);
    assert_eq!(end.receive(1, &mut []), 0);
    assert_eq!(end.send(1, IBV_WR_SEND, &end, &mut []), libc::EINVAL);
}

/// Atomics with another sink complete with an error in their turn, and store nothing.
#[test]
fn an_atomic_stores_eight_bytes_that_may_be_written() {
    use crate::abi::{IBV_WR_ATOMIC_FETCH_AND_ADD, ibv_send_wr_atomic};
    type Sink = fn(&End) -> ibv_sge;
    let wrong: [Sink; 3] = [
        |end| end.element(end.mr, 64, 4),
        |end| end.element(end.mr, 64, 16),
        |end| end.element(end.read_only, 64, 8),
    ];
    for sink in wrong {
        let [a, b] = &connected(64);
        let mut element = sink(a);
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (1, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        let mut atomic = ibv_send_wr_atomic::zeroed();
        (atomic.remote_addr, atomic.rkey) = (b.octets.addr() as u64, End::key(b.mr));
        wr.wr.atomic = atomic;
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair, and a request with its list.
        assert_eq!(unsafe { post_send(a.qp, &raw mut wr, &raw mut bad) }, 0);
        assert_eq!(a.statuses(1), [(1, IBV_WC_LOC_PROT_ERR)]);
    }
}

/// A late Atomic, or one behind a move of its region, must not write: the application may use the
/// memory for something else by then.
#[test]
fn late_atomic_result_is_not_stored_in_a_released_region() {
    let end = &End::new(4);
    let place = Box::leak(vec![0_u64; 512].into_boxed_slice()).as_mut_ptr();
    let other = Box::leak(vec![0_u64; 512].into_boxed_slice()).as_mut_ptr();
    let stored = || {
        // SAFETY: memory of this test.
        unsafe { place.read_volatile() }
    };
    for moves in [false, true] {
        // SAFETY: memory that is never freed.
        let mr = unsafe { ibv_reg_mr(end.pd, place.cast(), LEN, ALL) };
        // SAFETY: a live domain.
        let region = unsafe { pd::pd(end.pd) }.region(End::key(mr)).unwrap();
        region.store(place.addr() as u64, 5);
        assert_eq!(stored(), 5);
        // SAFETY: memory of this test.
        unsafe { place.write_volatile(0) };
        if moves {
            let translation = crate::abi::IBV_REREG_MR_CHANGE_TRANSLATION.cast_signed();
            // SAFETY: a live region, and memory that is never freed.
            let moved =
                unsafe { ibv_rereg_mr(mr, translation, ptr::null_mut(), other.cast(), LEN, 0) };
            assert_eq!(moved, 0);
        } else {
            // SAFETY: live, and not used afterwards.
            assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
        }
        region.store(place.addr() as u64, 5);
        assert_eq!(stored(), 0, "{moves}");
    }
}

/// The event is raised once each time the queue pair enters the error state.
#[test]
fn last_wqe_event_is_raised_after_each_reset() {
    let end = &End::new(4);
    let mut attr = ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.qp_type) = (end.cq, end.cq, IBV_QPT_RC);
    attr.srq = end.shared_queue();
    // SAFETY: live objects.
    let qp = unsafe { create(end.pd, &mut attr, true, Connects::Program) }.unwrap();
    // SAFETY: an open device.
    let events = &unsafe { context(end.context) }.events;
    rustix::io::ioctl_fionbio(borrowed(events.fd()), true).unwrap();
    for round in 0..3 {
        modify(qp, IBV_QPS_ERR, 0);
        modify(qp, IBV_QPS_ERR, 0);
        let event = events.take().unwrap();
        assert_eq!(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED, "{round}");
        assert!(events.take().is_err(), "{round}");
        modify(qp, IBV_QPS_RESET, 0);
    }
}

#[test]
fn shared_queue_limit_is_below_its_depth_and_can_be_queried() {
    let end = &End::new(4);
    let srq = end.shared_queue();
    let modify = |srq_limit, mask: u32| {
        let mut attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit };
        // SAFETY: a live queue, and attributes.
        unsafe { ibv_modify_srq(srq, &raw mut attr, mask.cast_signed()) }
    };
    assert_eq!(modify(5, IBV_SRQ_LIMIT), libc::EINVAL);
    assert_eq!(modify(1, 1 << 5), libc::EINVAL);
    assert_eq!(modify(0, IBV_SRQ_MAX_WR), libc::EOPNOTSUPP);
    let buffer = || {
        let (mut wr, mut bad) = (ibv_recv_wr::zeroed(), ptr::null_mut());
        // SAFETY: a live queue, and a buffer.
        assert_eq!(unsafe { post_srq_recv(srq, &raw mut wr, &raw mut bad) }, 0);
    };
    (0..4).for_each(|_| buffer());
    assert_eq!(modify(3, IBV_SRQ_LIMIT), 0);
    let mut said = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
    // SAFETY: a live queue, and a place for the answer.
    assert_eq!(unsafe { ibv_query_srq(srq, &raw mut said) }, 0);
    assert_eq!((said.max_wr, said.max_sge, said.srq_limit), (4, ELEMENTS_MAX, 3));
}

fn extended_queue(end: &End, change: impl FnOnce(&mut ibv_cq_init_attr_ex)) -> *mut ibv_cq_ex {
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = 16;
    change(&mut attr);
    // SAFETY: an open device, and attributes.
    unsafe { create_cq_ex(end.context, &raw mut attr) }
}

#[test]
fn unsupported_extended_attributes_are_refused() {
    let end = &End::new(4);
    let errno = || std::io::Error::last_os_error().raw_os_error();
    assert!(!extended_queue(end, |_| ()).is_null());
    assert!(extended_queue(end, |attr| attr.wc_flags = 1 << 40).is_null());
    assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    let flags = |attr: &mut ibv_cq_init_attr_ex| {
        (attr.comp_mask, attr.flags) = (IBV_CQ_INIT_ATTR_MASK_FLAGS, 1 << 20);
    };
    assert!(extended_queue(end, flags).is_null());
    assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    let pair = |mask, send_ops_flags, create_flags| {
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (end.cq, end.cq, IBV_QPT_RC);
        attr.comp_mask = mask;
        (attr.pd, attr.send_ops_flags) = (end.pd, send_ops_flags);
        attr.create_flags = create_flags;
        // SAFETY: an open device, and attributes of live objects.
        unsafe { create_qp_ex(end.context, &raw mut attr) }
    };
    const PD: u32 = IBV_QP_INIT_ATTR_PD;
    const OPS: u32 = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const FLAGS: u32 = IBV_QP_INIT_ATTR_CREATE_FLAGS;
    // A field that the mask does not name is not looked at.
    for (mask, ops, flags) in
        [(PD, 0, 0), (PD, 1 << 40, 1), (PD | OPS, 1, 1), (PD | OPS | FLAGS, 1, 0)]
    {
        assert!(!pair(mask, ops, flags).is_null(), "{mask:#x} {ops:#x} {flags:#x}");
    }
    for (mask, ops, flags, error) in [
        (PD | OPS, 1 << 40, 0, libc::EOPNOTSUPP),
        (PD | FLAGS, 0, 1, libc::EOPNOTSUPP),
        (PD | 1 << 20, 0, 0, libc::EOPNOTSUPP),
        (OPS, 1, 0, libc::EINVAL),
    ] {
        assert!(pair(mask, ops, flags).is_null(), "{mask:#x} {ops:#x} {flags:#x}");
        assert_eq!(errno(), Some(error));
    }
}

#[test]
fn a_shared_queue_is_as_deep_as_the_device_allows_and_no_deeper() {
    let end = End::new(4);
    let queue = |max_wr, max_sge| {
        let mut init = ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: a live domain, and attributes.
        let made = unsafe { ibv_create_srq(end.pd, &raw mut init) };
        (!made.is_null()).then_some((init.attr.max_wr, init.attr.max_sge))
    };
    assert_eq!(queue(0, 0), Some((1, ELEMENTS_MAX)), "at least one");
    assert_eq!(queue(WR_MAX, ELEMENTS_MAX), Some((WR_MAX, ELEMENTS_MAX)));
    assert_eq!((queue(WR_MAX + 1, 1), queue(1, ELEMENTS_MAX + 1)), (None, None));
}

#[test]
fn extended_completions_are_read_and_empty_polls_release_the_lock() {
    let (a, mut b) = (End::new(16), End::new(16));
    let cq = extended_queue(&b, |_| ());
    b.cq = cq.cast();
    b.qp = b.make_qp();
    let _connections = connect([&a, &b], false);
    // SAFETY: C's part of a live queue.
    let ops = unsafe { cq.read() };
    let start = || {
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: a live queue, and attributes.
        unsafe { ops.start_poll.unwrap()(cq, &raw mut attr) }
    };
    assert_eq!(start(), libc::ENOENT);
    let (sender, taken) = std::sync::mpsc::channel();
    let shared = CPtr(b.cq);
    let other = thread::spawn(move || {
        let (shared, mut wc) = (&shared, ibv_wc::zeroed());
        // SAFETY: a live queue, and a place for one completion.
        sender.send(unsafe { poll_cq(shared.0, 1, &raw mut wc) }).unwrap();
    });
    assert_eq!(taken.recv_timeout(PATIENCE), Ok(0));
    other.join().unwrap();
    assert_eq!(b.receive(9, &mut [b.element(b.mr, 64, 64)]), 0);
    assert_eq!(a.send(1, IBV_WR_SEND_WITH_IMM, &b, &mut [a.element(a.mr, 0, 20)]), 0);
    until(|| start() == 0);
    // SAFETY: C's part of a live queue.
    let (wr_id, status) = (unsafe { (*cq).wr_id }, unsafe { (*cq).status });
    assert_eq!((wr_id, status), (9, IBV_WC_SUCCESS));
    // SAFETY: a live queue, between the two calls.
    let opcode = unsafe { ops.read_opcode.unwrap()(cq) };
    // SAFETY: as above.
    let len = unsafe { ops.read_byte_len.unwrap()(cq) };
    // SAFETY: as above.
    let flags = unsafe { ops.read_wc_flags.unwrap()(cq) };
    // SAFETY: as above.
    let imm = unsafe { ops.read_imm_data.unwrap()(cq) };
    assert_eq!((opcode, len), (IBV_WC_RECV, 20));
    assert_eq!((flags, imm), (IBV_WC_WITH_IMM, IMMEDIATE.to_be()));
    // SAFETY: as above, and C's part of a live queue pair.
    assert_eq!(unsafe { ops.read_qp_num.unwrap()(cq) }, unsafe { (*b.qp).qp_num });
    // SAFETY: as above.
    unsafe { ops.end_poll.unwrap()(cq) };
}

#[test]
fn a_list_may_name_as_much_memory_as_the_device_says() {
    let end = End::new(4);
    // SAFETY: a live domain.
    let domain = unsafe { pd::pd(end.pd) };
    let most = ELEMENTS_MAX as usize;
    let resolve = |elements: Vec<ibv_sge>| {
        let mut found = Vec::new();
        domain.resolve(&elements, false, &mut found).map(|usable| (usable, found.len()))
    };
    let (one, empty) = (end.element(end.mr, 0, 8), end.element(end.mr, 0, 0));
    assert_eq!(resolve(vec![one; most]), Ok((true, most)));
    assert_eq!(resolve([vec![one; most], vec![empty; 3]].concat()), Ok((true, most)));
    assert_eq!(resolve(vec![one; most + 1]), Err(crate::errno::Errno::INVALID));
    // A region that is gone leaves nothing in the domain's table.
    let key = End::key(end.read_only);
    assert!(domain.region(key).is_some());
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { ibv_dereg_mr(end.read_only) }, 0);
    assert!(domain.region(key).is_none());
}
