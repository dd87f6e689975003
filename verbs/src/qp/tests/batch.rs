//! `ibv_wr_*`: posts all requests of a batch or none, for one thread at a time, without heap
//! allocations.

use urnic_testkit::counting::Census;

use super::*;
use crate::abi::{IBV_ACCESS_REMOTE_ATOMIC, IBV_WC_FETCH_ADD, ibv_cq_ex, ibv_poll_cq_attr};
use crate::attributes::{ELEMENTS_MAX, INLINE_MAX};

/// The extended interface of an end's queue pair.
#[derive(Clone, Copy)]
struct Ex {
    c: *mut ibv_qp_ex,
    ops: ibv_qp_ex,
}

impl Ex {
    fn of(end: &End) -> Self {
        let c = end.qp.cast::<ibv_qp_ex>();
        // SAFETY: an extended queue pair, as it was made.
        Self { c, ops: unsafe { c.read() } }
    }

    fn start(&self) {
        // SAFETY: a live queue pair.
        unsafe { self.ops.wr_start.unwrap()(self.c) }
    }

    fn complete(&self) -> c_int {
        // SAFETY: as above.
        unsafe { self.ops.wr_complete.unwrap()(self.c) }
    }

    fn abort(&self) {
        // SAFETY: as above.
        unsafe { self.ops.wr_abort.unwrap()(self.c) }
    }

    fn named(&self, wr_id: u64) -> &Self {
        // SAFETY: C's part of a live queue pair.
        unsafe { (*self.c).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*self.c).wr_flags = IBV_SEND_SIGNALED };
        self
    }

    fn write(&self, wr_id: u64, to: &End) {
        let (rkey, addr) = (End::key(to.mr), to.octets.addr() as u64);
        // SAFETY: as above.
        unsafe { self.named(wr_id).ops.wr_rdma_write.unwrap()(self.c, rkey, addr) }
    }

    fn set(&self, element: ibv_sge) {
        let ibv_sge { addr, length, lkey } = element;
        // SAFETY: as above.
        unsafe { self.ops.wr_set_sge.unwrap()(self.c, lkey, addr, length) }
    }

    fn set_inline(&self, octets: &[u8]) {
        let addr = octets.as_ptr().cast_mut().cast();
        // SAFETY: as above, and bytes of this test.
        unsafe { self.ops.wr_set_inline_data.unwrap()(self.c, addr, octets.len()) }
    }

    fn fetch_add(&self, wr_id: u64, to: &End) {
        let (rkey, addr) = (End::key(to.mr), to.octets.addr() as u64);
        // SAFETY: as above.
        unsafe { self.named(wr_id).ops.wr_atomic_fetch_add.unwrap()(self.c, rkey, addr, 1) }
    }
}

fn octets(end: &End, len: usize) -> Vec<u8> {
    // SAFETY: memory of this test.
    (0..len).map(|at| unsafe { end.octets.wrapping_add(at).read_volatile() }).collect()
}

#[test]
fn one_wrong_request_and_none_of_the_batch_is_posted() {
    type Wrong = fn(&Ex, &End, &End);
    let cases: [(Wrong, c_int); 9] = [
        // More elements than there can be.
        (
            |ex, a, b| {
                ex.write(2, b);
                let many = [1; ELEMENTS_MAX as usize + 1].map(|_| a.element(a.mr, 0, 8));
                // SAFETY: a live queue pair, and as many elements.
                unsafe { ex.ops.wr_set_sge_list.unwrap()(ex.c, many.len(), many.as_ptr()) };
            },
            libc::EINVAL,
        ),
        // More bytes than fit inline, or inline data twice.
        (|ex, _, b| (ex.write(2, b), ex.set_inline(&[0; INLINE_MAX as usize + 1])).1, libc::EINVAL),
        (
            |ex, _, b| (ex.write(2, b), ex.set_inline(&[0; 8]), ex.set_inline(&[0; 8])).2,
            libc::EINVAL,
        ),
        // A Read, which has no bytes of its own.
        (
            |ex, _, b| {
                let (rkey, addr) = (End::key(b.mr), b.octets.addr() as u64);
                // SAFETY: a live queue pair.
                unsafe { ex.named(2).ops.wr_rdma_read.unwrap()(ex.c, rkey, addr) };
                ex.set_inline(&[0; 8]);
            },
            libc::EINVAL,
        ),
        // An atomic without a place for what it fetches, or with two.
        (|ex, _, b| ex.fetch_add(2, b), libc::EINVAL),
        (
            |ex, a, b| {
                ex.fetch_add(2, b);
                ex.set(a.element(a.mr, 0, 8));
                ex.set(a.element(a.mr, 8, 8));
            },
            libc::EINVAL,
        ),
        (|ex, _, b| (ex.fetch_add(2, b), ex.set_inline(&[0; 8])).1, libc::EINVAL),
        // Memory for a request that has none.
        (
            |ex, a, _| {
                // SAFETY: a live queue pair.
                unsafe { ex.ops.wr_local_inv.unwrap()(ex.c, 1) };
                ex.set(a.element(a.mr, 0, 8));
            },
            libc::EINVAL,
        ),
        // More than the queue of 8 entries holds.
        (|ex, _, b| (0..8).for_each(|_| ex.write(2, b)), libc::ENOMEM),
    ];
    for (wrong, errno) in cases {
        let [a, b] = &connected(64);
        let ex = Ex::of(a);
        ex.start();
        ex.write(1, b);
        ex.set_inline(b"first");
        wrong(&ex, a, b);
        ex.write(3, b);
        ex.set_inline(b"behind");
        assert_eq!(ex.complete(), errno);
        // SAFETY: a live queue pair.
        assert_eq!(unsafe { qp(a.qp) }.inner().sends_outstanding(), 0);
        // All entries are free, and the next batch works.
        ex.start();
        (0..8).for_each(|id| {
            ex.write(id, b);
            ex.set_inline(&[u8::try_from(id).unwrap(); 4]);
        });
        assert_eq!(ex.complete(), 0);
        let expected: Vec<_> = (0..8).map(|id| (id, IBV_WC_SUCCESS)).collect();
        assert_eq!(a.statuses(8), expected);
        until(|| octets(b, 5) == [7, 7, 7, 7, 0]);
    }
}

#[test]
fn setter_without_a_request_is_an_error_and_abort_posts_nothing() {
    let [a, b] = &connected(64);
    let ex = Ex::of(a);
    ex.start();
    ex.set(a.element(a.mr, 0, 8));
    assert_eq!(ex.complete(), libc::EINVAL);
    ex.start();
    ex.write(1, b);
    ex.set_inline(b"gone");
    ex.abort();
    ex.start();
    assert_eq!(ex.complete(), 0, "a batch of nothing");
    thread::sleep(Duration::from_millis(10));
    assert!(a.poll().is_none() && octets(b, 4) == [0; 4]);
}

/// An aborted batch has not written to the memory of earlier requests.
#[test]
fn aborted_batch_leaves_inline_data_of_outstanding_requests() {
    let [a, b] = &connected(64);
    let ex = Ex::of(a);
    for round in 0..200_u8 {
        ex.start();
        for at in 0..4 {
            let (rkey, addr) = (End::key(b.mr), b.octets.addr() as u64 + 64 * at);
            // SAFETY: a live queue pair.
            unsafe { ex.named(at).ops.wr_rdma_write.unwrap()(ex.c, rkey, addr) };
            ex.set_inline(&[round; 64]);
        }
        assert_eq!(ex.complete(), 0);
        ex.start();
        // Four entries are free, and perhaps some of the first four; the rest is refused.
        for _ in 0..8 {
            ex.write(9, b);
            ex.set_inline(&[0xEE; 64]);
        }
        ex.abort();
        let expected: Vec<_> = (0..4).map(|id| (id, IBV_WC_SUCCESS)).collect();
        assert_eq!(a.statuses(4), expected);
        until(|| octets(b, 256) == [round; 256]);
    }
}

#[test]
fn atomics_of_a_batch_fetch_in_their_order() {
    let [a, b] = &connected(64);
    let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC).cast_signed();
    // SAFETY: memory that is never freed.
    let counter = unsafe { ibv_reg_mr(b.pd, b.octets.cast(), LEN, access) };
    let ex = Ex::of(a);
    ex.start();
    for id in 0..4_u64 {
        let (rkey, addr) = (End::key(counter), b.octets.addr() as u64);
        // SAFETY: a live queue pair.
        unsafe { ex.named(id).ops.wr_atomic_fetch_add.unwrap()(ex.c, rkey, addr, 5) };
        ex.set(a.element(a.mr, 8 * usize::try_from(id).unwrap(), 8));
    }
    assert_eq!(ex.complete(), 0);
    for id in 0..4 {
        let wc = a.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (id, IBV_WC_SUCCESS, IBV_WC_FETCH_ADD));
    }
    let fetched = octets(a, 32);
    let numbers: Vec<u64> =
        fetched.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(numbers, [0, 5, 10, 15]);
}

/// ibv_wr_post(3), CONCURRENCY: no other thread enters between start and end.
#[test]
fn another_thread_waits_until_the_batch_is_posted() {
    let ends = connected(64);
    let [a, b] = &ends;
    let ex = Ex::of(a);
    ex.start();
    ex.write(1, b);
    ex.set_inline(b"one");
    // This thread would wait for itself.
    let refused = a.send(9, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]);
    assert_eq!(refused, libc::EINVAL);
    let (qp, to) = (crate::object::CPtr(a.qp), crate::object::CPtr(b.octets));
    let (lkey, rkey) = (End::key(a.mr), End::key(b.mr));
    let from = a.octets.addr() as u64;
    let other = thread::spawn(move || {
        let (qp, to) = (qp, to);
        let mut element = ibv_sge { addr: from, length: 8, lkey };
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (2, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: to.0.addr() as u64, rkey };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and one request.
        unsafe { post_send(qp.0, &raw mut wr, &raw mut bad) }
    });
    thread::sleep(Duration::from_millis(20));
    assert!(!other.is_finished(), "it waits");
    assert!(a.poll().is_none());
    assert_eq!(ex.complete(), 0);
    assert_eq!(other.join().unwrap(), 0);
    assert_eq!(a.statuses(2), [(1, IBV_WC_SUCCESS), (2, IBV_WC_SUCCESS)]);
}

/// ibv_create_cq_ex(3): a round of polling belongs to one thread, and a round without a completion
/// is over.
#[test]
fn another_thread_polls_when_the_round_is_over() {
    let [a, b] = &connected(64);
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    let c = crate::cq::extended::operations();
    let cq = a.cq.cast::<ibv_cq_ex>();
    // SAFETY: a live queue, and attributes.
    let mut start = || unsafe { c.start_poll.unwrap()(cq, &raw mut attr) };
    assert_eq!(start(), libc::ENOENT);
    for id in 1..3 {
        assert_eq!(a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
    }
    until(|| start() == 0);
    let queue = crate::object::CPtr(a.cq);
    let other = thread::spawn(move || {
        let (queue, mut wc) = (queue, ibv_wc::zeroed());
        loop {
            // SAFETY: a live queue, and memory for one completion.
            if unsafe { poll_cq(queue.0, 1, &raw mut wc) } == 1 {
                return wc.wr_id;
            }
        }
    });
    thread::sleep(Duration::from_millis(20));
    assert!(!other.is_finished(), "it waits");
    // SAFETY: a live queue.
    assert_eq!(unsafe { (*cq).wr_id }, 1);
    // SAFETY: as above.
    unsafe { c.end_poll.unwrap()(cq) };
    assert_eq!(other.join().unwrap(), 2);
}

/// Posting allocates nothing on the heap, by either interface, once buffers have their size.
#[test]
fn a_posted_request_allocates_nothing() {
    let [a, b] = &connected(64);
    let ex = Ex::of(a);
    let mut counted = 0;
    for round in 0..400 {
        // How many requests wait at once depends on the thread that takes them, so the first rounds
        // have buffers grow beyond what a later one can need.
        let (census, more) = match round {
            0..200 => (Census::begin_quietly(), 5..9),
            _ => (Census::begin(), 5..5),
        };
        ex.start();
        for id in more.clone() {
            ex.write(id, b);
            ex.set(a.element(a.mr, 0, 64));
        }
        ex.write(1, b);
        ex.set(a.element(a.mr, 0, 64));
        ex.write(2, b);
        ex.set_inline(&[1; 64]);
        ex.write(3, b);
        let two = [a.element(a.mr, 0, 8), a.element(a.mr, 64, 8)];
        // SAFETY: a live queue pair, and as many elements.
        unsafe { ex.ops.wr_set_sge_list.unwrap()(ex.c, 2, two.as_ptr()) };
        assert_eq!(ex.complete(), 0);
        assert_eq!(a.send(4, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
        let allocations = census.end();
        let ids: Vec<_> = more.chain(1..=4).map(|id| (id, IBV_WC_SUCCESS)).collect();
        assert_eq!(a.statuses(ids.len()), ids);
        if round >= 200 {
            counted += allocations;
        }
    }
    assert_eq!(counted, 0);
}

#[test]
fn another_thread_enters_when_a_batch_is_given_up() {
    let [a, b] = &connected(64);
    let ex = Ex::of(a);
    ex.start();
    ex.write(1, b);
    ex.abort();
    let qp = crate::object::CPtr(a.qp);
    let (sender, posted) = std::sync::mpsc::channel();
    let (from, to) = (a.element(a.mr, 0, 8), b.octets.addr() as u64);
    let rkey = End::key(b.mr);
    thread::spawn(move || {
        let (qp, mut element) = (qp, from);
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (2, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: to, rkey };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and one request.
        sender.send(unsafe { post_send(qp.0, &raw mut wr, &raw mut bad) })
    });
    assert_eq!(posted.recv_timeout(PATIENCE), Ok(0));
    assert_eq!(a.statuses(1), [(2, IBV_WC_SUCCESS)], "nothing of the batch");
}

#[test]
fn an_extended_queue_pair_has_every_operation() {
    let mut c = ibv_qp_ex::zeroed();
    crate::qp::batch::install(&mut c);
    let there = [
        c.wr_start.is_some(),
        c.wr_complete.is_some(),
        c.wr_abort.is_some(),
        c.wr_rdma_write.is_some(),
        c.wr_rdma_write_imm.is_some(),
        c.wr_rdma_read.is_some(),
        c.wr_send.is_some(),
        c.wr_send_imm.is_some(),
        c.wr_send_inv.is_some(),
        c.wr_local_inv.is_some(),
        c.wr_bind_mw.is_some(),
        c.wr_atomic_cmp_swp.is_some(),
        c.wr_atomic_fetch_add.is_some(),
        c.wr_set_sge.is_some(),
        c.wr_set_sge_list.is_some(),
        c.wr_set_inline_data.is_some(),
        c.wr_set_inline_data_list.is_some(),
    ];
    assert_eq!(there, [true; 17]);
}
