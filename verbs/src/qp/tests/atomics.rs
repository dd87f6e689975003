//! Atomics by C's operations: each stores the fetched value in its own sink, whatever happens to
//! other requests.

use super::super::modify::ibv_modify_qp;
use super::*;
use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_QP_STATE, IBV_QPS_RESET, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD,
    IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, ibv_qp_attr, ibv_send_wr_atomic,
};

impl End {
    /// Posts an Atomic on the first word of `to`, which stores the fetched value at `sink`.
    fn atomic(
        &self,
        wr_id: u64,
        (opcode, flags): (u32, u32),
        to: &Self,
        (compare_add, swap): (u64, u64),
        sink: usize,
    ) -> c_int {
        let mut element = self.element(self.mr, sink, 8);
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, flags);
        (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        let (remote_addr, rkey) = (to.octets.expose_provenance() as u64, to.counter());
        let mut atomic = ibv_send_wr_atomic::zeroed();
        (atomic.remote_addr, atomic.rkey) = (remote_addr, rkey);
        (atomic.compare_add, atomic.swap) = (compare_add, swap);
        wr.wr.atomic = atomic;
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair, and a request with its list.
        unsafe { post_send(self.qp, &raw mut wr, &raw mut bad) }
    }

    /// Returns the key of a region whose first word Atomics may change.
    fn counter(&self) -> u32 {
        let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC).cast_signed();
        // SAFETY: memory that is never freed.
        Self::key(unsafe { ibv_reg_mr(self.pd, self.octets.cast(), LEN, access) })
    }

    fn add(&self, wr_id: u64, flags: u32, to: &Self, sink: usize) -> c_int {
        self.atomic(wr_id, (IBV_WR_ATOMIC_FETCH_AND_ADD, flags), to, (1, 0), sink)
    }

    fn word(&self, at: usize) -> u64 {
        // SAFETY: memory of this test, which no request uses now.
        unsafe { self.octets.wrapping_add(at).cast::<u64>().read_volatile() }
    }
}

const FIRST_SINK: usize = 64;

const fn sink(index: usize) -> usize {
    FIRST_SINK + 8 * index
}

#[test]
fn atomics_fetch_compare_and_swap() {
    let [a, b] = &connected(64);
    assert_eq!(a.add(1, IBV_SEND_SIGNALED, b, sink(0)), 0);
    let swap = (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_SEND_SIGNALED);
    assert_eq!(a.atomic(2, swap, b, (1, 70), sink(1)), 0);
    assert_eq!(a.atomic(3, swap, b, (1, 80), sink(2)), 0);
    let done: Vec<_> =
        (0..3).map(|_| a.wait()).map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    assert_eq!(
        done,
        [
            (1, IBV_WC_SUCCESS, IBV_WC_FETCH_ADD),
            (2, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP),
            (3, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP)
        ]
    );
    assert_eq!([0, 1, 2].map(|index| a.word(sink(index))), [0, 1, 70]);
    assert_eq!(b.word(0), 70, "the second swap found another value");
}

/// Requests that are refused leave nothing behind: each later Atomic stores in its own sink.
#[test]
fn an_atomic_that_is_not_posted_leaves_no_sink() {
    let [a, b] = &connected(64);
    // It waits for its receive, and later requests wait with it: the queue of 8 fills.
    assert_eq!(a.send(1, IBV_WR_SEND, b, &mut [a.element(a.mr, 2048, 8)]), 0);
    for index in 0..7 {
        assert_eq!(a.add(2, IBV_SEND_SIGNALED, b, sink(index)), 0);
    }
    for _ in 0..3 {
        assert_eq!(a.add(3, IBV_SEND_SIGNALED, b, sink(20)), libc::ENOMEM);
    }
    assert_eq!(b.receive(1, &mut [b.element(b.mr, 2048, 8)]), 0);
    assert!(a.statuses(8).iter().all(|(_, status)| *status == IBV_WC_SUCCESS));
    for index in 7..14 {
        assert_eq!(a.add(4, IBV_SEND_SIGNALED, b, sink(index)), 0);
        assert_eq!(a.statuses(1), [(4, IBV_WC_SUCCESS)]);
    }
    let fetched: Vec<_> = (0..14).map(|index| a.word(sink(index))).collect();
    assert_eq!(fetched, (0..14).collect::<Vec<_>>());
    assert_eq!(a.word(sink(20)), 0, "that one was not posted");
}

/// Unsignaled Atomics complete in the library, which stores their fetched values: a queue with room
/// for the signaled ones suffices.
#[test]
fn silent_atomics_do_not_fill_the_queue() {
    let [a, b] = &connected(1);
    // SAFETY: an open device.
    let events = &unsafe { context(a.context) }.events;
    rustix::io::ioctl_fionbio(borrowed(events.fd()), true).unwrap();
    for round in 0..4 {
        for index in 0..7 {
            assert_eq!(a.add(1, 0, b, sink(index)), 0);
        }
        assert_eq!(a.add(2, IBV_SEND_SIGNALED, b, sink(7)), 0);
        assert_eq!(a.statuses(1), [(2, IBV_WC_SUCCESS)], "{round}");
        let fetched: Vec<_> = (0..8).map(|index| a.word(sink(index))).collect();
        assert_eq!(fetched, (0..8).map(|index| 8 * round + index).collect::<Vec<_>>());
    }
    assert!(events.take().is_err(), "the queue has not overflowed");
    assert!(a.poll().is_none());
}

/// A reset queue pair drops the posted requests and the sinks of its Atomics.
#[test]
fn a_queue_pair_that_is_reset_forgets_its_sinks() {
    let [a, b] = &connected(64);
    let other = &End::new(64);
    assert_eq!(a.send(1, IBV_WR_SEND, b, &mut [a.element(a.mr, 2048, 8)]), 0);
    assert_eq!(a.add(2, IBV_SEND_SIGNALED, b, sink(0)), 0);
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RESET;
    // SAFETY: a live queue pair, and attributes.
    assert_eq!(unsafe { ibv_modify_qp(a.qp, &raw mut attr, IBV_QP_STATE.cast_signed()) }, 0);
    assert!(a.poll().is_none(), "without completions");
    // SAFETY: memory of this test.
    unsafe { a.octets.wrapping_add(sink(0)).cast::<u64>().write_volatile(99) };
    let _connected = connect([a, other], false);
    for id in 3..6 {
        assert_eq!(a.add(id, IBV_SEND_SIGNALED, other, sink(1)), 0);
        assert_eq!(a.statuses(1), [(id, IBV_WC_SUCCESS)]);
    }
    assert_eq!((a.word(sink(0)), a.word(sink(1))), (99, 2));
}

/// The right to atomics gives a peer no other one.
#[test]
fn a_region_for_atomics_is_neither_readable_nor_writable() {
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let [a, b] = &connected(64);
        assert_eq!(a.add(1, IBV_SEND_SIGNALED, b, sink(0)), 0);
        assert_eq!(a.statuses(1), [(1, IBV_WC_SUCCESS)]);
        let mut element = a.element(a.mr, 100, 8);
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (2, opcode, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        let remote_addr = b.octets.expose_provenance() as u64;
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey: b.counter() };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair, and a request with its list.
        assert_eq!(unsafe { post_send(a.qp, &raw mut wr, &raw mut bad) }, 0);
        assert_eq!(a.statuses(1), [(2, IBV_WC_REM_ACCESS_ERR)]);
        assert_eq!(b.word(0), 1, "unchanged");
    }
}

#[test]
fn an_atomic_on_a_misaligned_number_is_an_invalid_request() {
    let [a, b] = &connected(64);
    let odd = End { octets: b.octets.wrapping_add(4), ..End::new(4) };
    let odd = End { pd: b.pd, ..odd };
    assert_eq!(a.add(1, IBV_SEND_SIGNALED, &odd, sink(0)), 0);
    assert_eq!(a.statuses(1), [(1, IBV_WC_REM_INV_REQ_ERR)]);
}
