//! Queue pairs by C's operations, connected over loopback: accepted requests, completions and their
//! order.
#![allow(clippy::disallowed_methods, reason = "tests wait for another thread, with a bound")]

mod atomics;
mod batch;
mod domains;
mod events;
mod links;
mod requests;
mod reregister;
mod states;
mod windows;

use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;
use urnic::{ConnectOptions, Connection, ListenParams, Offer, QpState, StartupConfig};

use super::create::{Connects, create, ibv_destroy_qp};
use super::post::{post_recv, post_send};
use super::qp;
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED,
    IBV_EVENT_CQ_ERR, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_LOC_PROT_ERR, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_send_wr_imm, ibv_send_wr_rdma, ibv_sge, ibv_wc,
};
use crate::attributes::ELEMENTS_MAX;
use crate::context::context;
use crate::cq::{ibv_create_cq, ibv_resize_cq, poll_cq};
use crate::device::device;
use crate::mr::ibv_reg_mr;
use crate::operations::open;
use crate::pd;

const PATIENCE: Duration = Duration::from_secs(20);
const LEN: usize = 4096;
const IMMEDIATE: u32 = 0x0102_0304;
const ALL: c_int =
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE).cast_signed();

/// One end of a connection. C's objects stay until the process ends.
struct End {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    octets: *mut u8,
    /// All bytes, with every right.
    mr: *mut ibv_mr,
    /// All bytes, readable by this end only.
    read_only: *mut ibv_mr,
    connection: Option<Connection>,
}

impl End {
    fn new(cqe: c_int) -> Self {
        let context = open(device()).unwrap();
        // SAFETY: just opened.
        let pd = pd::alloc(context, unsafe { self::context(context) });
        // SAFETY: as above.
        let cq = unsafe { ibv_create_cq(context, cqe, ptr::null_mut(), ptr::null_mut(), 0) };
        let octets = Box::leak(vec![0_u8; LEN].into_boxed_slice()).as_mut_ptr();
        // SAFETY: memory that is never freed.
        let mr = unsafe { ibv_reg_mr(pd, octets.cast(), LEN, ALL) };
        // SAFETY: as above.
        let read_only = unsafe { ibv_reg_mr(pd, octets.cast(), LEN, 0) };
        let (qp, connection) = (ptr::null_mut(), None);
        let mut end = Self { context, pd, cq, qp, octets, mr, read_only, connection };
        end.qp = end.make_qp();
        end
    }

    fn make_qp(&self) -> *mut ibv_qp {
        let mut attr = ibv_qp_init_attr::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (self.cq, self.cq, IBV_QPT_RC);
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (8, 8);
        // SAFETY: live objects.
        unsafe { create(self.pd, &mut attr, true, Connects::Id) }.unwrap()
    }

    fn key(mr: *mut ibv_mr) -> u32 {
        // SAFETY: a live region.
        unsafe { (*mr).lkey }
    }

    fn element(&self, mr: *mut ibv_mr, at: usize, length: u32) -> ibv_sge {
        let addr = self.octets.wrapping_add(at).expose_provenance() as u64;
        ibv_sge { addr, length, lkey: Self::key(mr) }
    }

    /// Posts a signaled request. Returns the result of the call.
    fn send(&self, wr_id: u64, opcode: u32, to: &Self, elements: &mut [ibv_sge]) -> c_int {
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) =
            (elements.as_mut_ptr(), c_int::try_from(elements.len()).unwrap());
        wr.imm = ibv_send_wr_imm { imm_data: IMMEDIATE.to_be() };
        let remote_addr = to.octets.expose_provenance() as u64;
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey: Self::key(to.mr) };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair, and a request with its list.
        let answer = unsafe { post_send(self.qp, &raw mut wr, &raw mut bad) };
        assert_eq!(bad.is_null(), answer == 0, "the request that was not taken is named");
        answer
    }

    fn receive(&self, wr_id: u64, elements: &mut [ibv_sge]) -> c_int {
        let num_sge = c_int::try_from(elements.len()).unwrap();
        let mut wr = ibv_recv_wr::zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, elements.as_mut_ptr(), num_sge);
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair, and a buffer with its list.
        unsafe { post_recv(self.qp, &raw mut wr, &raw mut bad) }
    }

    fn poll(&self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::zeroed();
        // SAFETY: a live queue, and memory for one completion.
        let taken = unsafe { poll_cq(self.cq, 1, &raw mut wc) };
        (taken == 1).then_some(wc)
    }

    /// Waits for the next completion.
    fn wait(&self) -> ibv_wc {
        let mut wc = None;
        until(|| {
            wc = self.poll();
            wc.is_some()
        });
        wc.unwrap()
    }

    /// Waits for the next completions. Returns their ids and statuses.
    fn statuses(&self, count: usize) -> Vec<(u64, u32)> {
        (0..count).map(|_| self.wait()).map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

/// Borrows a descriptor of a queue that is never destroyed.
fn borrowed(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the devices of these tests stay open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "in time");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes two ends with connected queue pairs.
fn connected(cqe: c_int) -> [End; 2] {
    connected_as(cqe, false)
}

/// Like [`connected`]. A `foreign` peer knows only the extensions in the RFCs.
fn connected_as(cqe: c_int, foreign: bool) -> [End; 2] {
    let mut ends = [End::new(cqe), End::new(cqe)];
    let connections = connect([&ends[0], &ends[1]], foreign);
    for (end, connection) in ends.iter_mut().zip(connections) {
        end.connection = Some(connection);
    }
    ends
}

/// Connects two queue pairs.
fn connect(ends: [&End; 2], foreign: bool) -> [Connection; 2] {
    // SAFETY: live queue pairs.
    let [a, b] = ends.map(|end| unsafe { qp(end.qp) });
    let endpoint = &a.context.process.network.endpoint;
    let immediates = !foreign;
    let startup = StartupConfig { peer_to_peer: true, immediates, ..StartupConfig::default() };
    let local = "127.0.0.1:0".parse().unwrap();
    let listener = endpoint.listen(local, ListenParams { startup, ..ListenParams::default() });
    let listener = listener.unwrap();
    let options = ConnectOptions { startup, ird: 4, ord: 4, ..ConnectOptions::default() };
    let connecting = endpoint.connect(listener.local(), &a.inner(), &options).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().unwrap();
    let offer = Offer { ird: 4, ord: 4, ..Offer::default() };
    let accepted = request.accept(&b.inner(), &offer).unwrap();
    [connecting, accepted].map(|started| started.wait(PATIENCE).unwrap())
}

#[test]
fn a_bad_key_range_or_right_completes_in_its_turn() {
    type Bad = fn(&End) -> ibv_sge;
    let cases: [(u32, Bad); 4] = [
        (IBV_WR_RDMA_WRITE, |end| ibv_sge { lkey: 1, ..end.element(end.mr, 0, 8) }),
        (IBV_WR_SEND, |end| end.element(end.mr, LEN - 8, 9)),
        (IBV_WR_RDMA_WRITE, |end| ibv_sge { addr: 0, ..end.element(end.mr, 0, 8) }),
        (IBV_WR_RDMA_READ, |end| end.element(end.read_only, 0, 8)),
    ];
    for (opcode, bad) in cases {
        let [a, b] = &connected(64);
        let good = || [a.element(a.mr, 0, 100)];
        assert_eq!(a.send(1, IBV_WR_RDMA_WRITE, b, &mut good()), 0);
        assert_eq!(a.send(2, opcode, b, &mut [a.element(a.mr, 0, 8), bad(a)]), 0);
        // The request is accepted even after the one before has failed.
        assert_eq!(a.send(3, IBV_WR_RDMA_WRITE, b, &mut good()), 0);
        let expected = [(1, IBV_WC_SUCCESS), (2, IBV_WC_LOC_PROT_ERR), (3, IBV_WC_WR_FLUSH_ERR)];
        assert_eq!(a.statuses(3), expected, "{opcode}");
    }
}

#[test]
fn a_receive_with_a_bad_key_fails_when_a_message_comes_for_it() {
    let [a, b] = &connected(64);
    assert_eq!(b.receive(1, &mut [b.element(b.mr, 0, 64)]), 0);
    assert_eq!(b.receive(2, &mut [b.element(b.read_only, 0, 64)]), 0);
    assert_eq!(b.receive(3, &mut [b.element(b.mr, 0, 64)]), 0);
    for id in [1, 2] {
        assert_eq!(a.send(id, IBV_WR_SEND, b, &mut [a.element(a.mr, 0, 64)]), 0);
    }
    let expected = [(1, IBV_WC_SUCCESS), (2, IBV_WC_LOC_PROT_ERR), (3, IBV_WC_WR_FLUSH_ERR)];
    assert_eq!(b.statuses(3), expected);
}

#[test]
fn a_read_fills_several_elements_and_more_than_there_can_be_are_refused() {
    let [a, b] = &connected(64);
    // SAFETY: memory of this test, which nothing else uses.
    unsafe { b.octets.write_bytes(7, 30) };
    let mut elements = [a.element(a.mr, 100, 10), a.element(a.mr, 0, 0), a.element(a.mr, 300, 20)];
    assert_eq!(a.send(1, IBV_WR_RDMA_READ, b, &mut elements), 0);
    let wc = a.wait();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, IBV_WC_SUCCESS, 30));
    // SAFETY: as above; the Read has completed.
    let octets = unsafe { std::slice::from_raw_parts(a.octets, LEN) };
    assert_eq!(octets.iter().filter(|&&octet| octet == 7).count(), 30);
    assert!(octets[100..110].iter().chain(&octets[300..320]).all(|&octet| octet == 7));
    let mut too_many = [(); ELEMENTS_MAX as usize + 1].map(|()| a.element(a.mr, 0, 8));
    assert_eq!(a.send(2, IBV_WR_RDMA_WRITE, b, &mut too_many), libc::EINVAL);
    assert_eq!(a.receive(2, &mut too_many), libc::EINVAL);
}

/// `IBV_ACCESS_ZERO_BASED`: addresses of such a region are offsets.
#[test]
fn a_region_based_at_zero_is_named_by_offsets() {
    let [a, b] = &connected(64);
    let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED).cast_signed();
    // SAFETY: memory that is never freed.
    let based = unsafe { ibv_reg_mr(a.pd, a.octets.cast(), LEN, access) };
    // SAFETY: memory of this test, which nothing else uses.
    unsafe { a.octets.wrapping_add(100).write_volatile(9) };
    let at = |addr| ibv_sge { addr, length: 1, lkey: End::key(based) };
    assert_eq!(a.send(1, IBV_WR_RDMA_WRITE, b, &mut [at(100)]), 0);
    assert_eq!(a.statuses(1), [(1, IBV_WC_SUCCESS)]);
    // SAFETY: as above; the Write was placed.
    assert_eq!(unsafe { b.octets.read_volatile() }, 9);
    assert_eq!(a.send(2, IBV_WR_RDMA_WRITE, b, &mut [at(a.octets.addr() as u64)]), 0);
    assert_eq!(a.statuses(1), [(2, IBV_WC_LOC_PROT_ERR)]);
}

#[test]
fn immediate_data_arrives_in_network_order() {
    let [a, b] = &connected(64);
    assert_eq!(b.receive(1, &mut [b.element(b.mr, 64, 64)]), 0);
    assert_eq!((b.receive(2, &mut []), b.receive(3, &mut []), b.receive(4, &mut [])), (0, 0, 0));
    assert_eq!(a.send(1, IBV_WR_SEND_WITH_IMM, b, &mut [a.element(a.mr, 0, 20)]), 0);
    assert_eq!(a.send(2, IBV_WR_RDMA_WRITE_WITH_IMM, b, &mut [a.element(a.mr, 0, 30)]), 0);
    let ex = a.qp.cast::<ibv_qp_ex>();
    // SAFETY: an extended queue pair, as it was made.
    let c = unsafe { ex.read() };
    let rkey = End::key(b.mr);
    // SAFETY: a live queue pair.
    unsafe { c.wr_start.unwrap()(ex) };
    // SAFETY: as above.
    unsafe { c.wr_send_imm.unwrap()(ex, IMMEDIATE.to_be()) };
    // SAFETY: as above.
    unsafe { c.wr_rdma_write_imm.unwrap()(ex, rkey, b.octets.addr() as u64, IMMEDIATE.to_be()) };
    // SAFETY: as above.
    assert_eq!(unsafe { c.wr_complete.unwrap()(ex) }, 0);
    let expected = [
        (1, IBV_WC_RECV, 20),
        (2, IBV_WC_RECV_RDMA_WITH_IMM, 30),
        (3, IBV_WC_RECV, 0),
        (4, IBV_WC_RECV_RDMA_WITH_IMM, 0),
    ];
    for (id, opcode, len) in expected {
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (id, IBV_WC_SUCCESS, opcode));
        assert_eq!((wc.byte_len, wc.wc_flags), (len, IBV_WC_WITH_IMM));
        // SAFETY: the flag says which field it is.
        assert_eq!(unsafe { wc.imm.imm_data }, IMMEDIATE.to_be());
    }
    let sent: Vec<_> = (0..2).map(|_| a.wait()).map(|wc| (wc.wr_id, wc.opcode)).collect();
    assert_eq!(sent, [(1, IBV_WC_SEND), (2, IBV_WC_RDMA_WRITE)]);
}

#[test]
fn a_peer_that_knows_no_immediate_data_is_sent_none() {
    let [a, b] = &connected_as(64, true);
    for opcode in [IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM] {
        assert_eq!(a.send(1, opcode, b, &mut [a.element(a.mr, 0, 20)]), libc::EINVAL);
    }
}

#[test]
fn resized_completion_queue_keeps_its_completions() {
    let [a, b] = &connected(4);
    for id in 0..4 {
        assert_eq!(a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
    }
    // SAFETY: a live queue.
    let resize = |cqe| unsafe { ibv_resize_cq(a.cq, cqe) };
    // SAFETY: C's part of a live queue.
    let cqe = || unsafe { (*a.cq).cqe };
    // SAFETY: as above.
    let waiting = || unsafe { crate::cq::cq(a.cq) }.inner.len();
    until(|| waiting() == 4);
    assert_eq!((resize(3), resize(0), resize(c_int::MAX), cqe()), (22, 22, 22, 4));
    assert_eq!((resize(8), cqe()), (0, 8));
    for id in 4..8 {
        assert_eq!(a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
    }
    let expected: Vec<_> = (0..8).map(|id| (id, IBV_WC_SUCCESS)).collect();
    assert_eq!(a.statuses(8), expected);
}

#[test]
fn a_destroyed_queue_pair_takes_its_completions_along() {
    let [a, b] = &connected(64);
    assert_eq!(a.receive(1, &mut []), 0);
    assert_eq!(a.send(2, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
    // SAFETY: a live queue.
    let inner = &unsafe { crate::cq::cq(a.cq) }.inner;
    until(|| inner.len() == 1);
    // SAFETY: live, and not used again.
    let gone = Arc::clone(unsafe { qp(a.qp) });
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_destroy_qp(a.qp) }, 0);
    assert!(a.poll().is_none(), "the Write's");
    // The connection ends some time later, and flushes the receive.
    b.connection.as_ref().unwrap().abort();
    until(|| gone.inner().state() == QpState::Error);
    thread::sleep(Duration::from_millis(10));
    assert!(a.poll().is_none(), "the receive's");
}

#[test]
fn a_queue_that_overflows_tells_the_device() {
    let [a, b] = &connected(1);
    // SAFETY: an open device.
    let events = &unsafe { context(a.context) }.events;
    for id in 0..3 {
        if a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]) != 0 {
            break;
        }
    }
    let event = events.take().unwrap();
    // SAFETY: the event is of a queue.
    assert_eq!((event.event_type, unsafe { event.element.cq }), (IBV_EVENT_CQ_ERR, a.cq));
}
