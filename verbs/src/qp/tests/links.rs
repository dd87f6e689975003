//! Queue pairs connected by number: the peers that may connect to one, and the events of its end.

use urnic::{Error, StartupFailure};

use super::super::modify::ibv_modify_qp;
use super::*;
use crate::abi::{
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_WC_REM_ACCESS_ERR, ibv_qp_attr, ibv_srq_init_attr,
};
use crate::gid;
use crate::peer::hello::{Hello, Name, Psns};
use crate::process::startup;
use crate::srq::ibv_create_srq;

const RTR: u32 = IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const RTS: u32 =
    IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
const PSNS: [u32; 2] = [0x11_1111, 0x22_2222];

/// An end whose queue pair takes receives from a shared queue, and which the application connects.
fn own() -> End {
    let mut end = End::new(16);
    let mut shared = ibv_srq_init_attr::zeroed();
    shared.attr.max_wr = 4;
    let mut attr = ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.qp_type) = (end.cq, end.cq, IBV_QPT_RC);
    attr.cap.max_send_wr = 8;
    // SAFETY: a live domain, and attributes.
    attr.srq = unsafe { ibv_create_srq(end.pd, &raw mut shared) };
    // SAFETY: live objects.
    end.qp = unsafe { create(end.pd, &mut attr, true, Connects::Program) }.unwrap();
    // SAFETY: an open device.
    let events = &unsafe { context(end.context) }.events;
    rustix::io::ioctl_fionbio(borrowed(events.fd()), true).unwrap();
    end
}

fn number(end: &End) -> u32 {
    // SAFETY: C's part of a live queue pair.
    unsafe { (*end.qp).qp_num }
}

fn name(end: &End) -> Name {
    Name { address: gid::first_address(), number: number(end) }
}

/// Brings a queue pair to a state, with the PSNs of the peer and of the queue pair.
fn bring(end: &End, state: u32, mask: u32, peer: &End, [peer_psn, own_psn]: [u32; 2]) {
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.port_num) = (state, gid::PORT);
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    (attr.dest_qp_num, attr.rq_psn, attr.sq_psn) = (number(peer), peer_psn, own_psn);
    (attr.timeout, attr.retry_cnt) = (14, 7);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid.raw = gid::octets(gid::first_address());
    let mask = (mask | IBV_QP_STATE).cast_signed();
    // SAFETY: a live queue pair, and attributes.
    assert_eq!(unsafe { ibv_modify_qp(end.qp, &raw mut attr, mask) }, 0);
}

const INIT: u32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

/// Makes two queue pairs that name each other, and brings each to its state in `states`.
fn pair(states: [u32; 2]) -> [End; 2] {
    let ends = [own(), own()];
    let [a, b] = &ends;
    for (end, peer, state, psns) in [(a, b, states[0], [PSNS[1], PSNS[0]]), (b, a, states[1], PSNS)]
    {
        bring(end, IBV_QPS_INIT, INIT, peer, psns);
        if state >= IBV_QPS_RTR {
            bring(end, IBV_QPS_RTR, RTR, peer, psns);
        }
        if state >= IBV_QPS_RTS {
            bring(end, IBV_QPS_RTS, RTS, peer, psns);
        }
    }
    ends
}

/// Waits for the next asynchronous event.
fn event(end: &End) -> u32 {
    // SAFETY: an open device.
    let events = &unsafe { context(end.context) }.events;
    let mut event = None;
    until(|| {
        event = events.take().ok();
        event.is_some()
    });
    event.unwrap().event_type
}

/// Sends a request for a queue pair with these names and PSNs. Returns the answer.
fn answer(from: Name, to: Name, psns: Psns) -> Result<(), Error> {
    let process = crate::process::process().unwrap();
    let cq = process.rnic.create_cq(4).unwrap();
    let qp = process.rnic.alloc_pd().create_qp(urnic::QpConfig::new(&cq)).unwrap();
    let remote = (to.address, u16::try_from(to.number >> 8).unwrap()).into();
    let options = ConnectOptions {
        startup: startup(),
        private_data: Hello::new(from, to, psns).to_octets(),
        ..ConnectOptions::default()
    };
    let connecting = process.network.endpoint.connect(remote, &qp, &options).unwrap();
    connecting.wait(PATIENCE).map(drop)
}

/// Even the peer itself, which knows both PSNs, cannot take over an open connection by a request.
#[test]
fn a_connected_queue_pair_is_not_connected_once_more() {
    let [a, b] = &pair([IBV_QPS_RTS; 2]);
    let write = |id| {
        assert_eq!(a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
        a.statuses(1)
    };
    assert_eq!(write(1), [(1, IBV_WC_SUCCESS)]);
    for (from, to, psns) in [
        (a, b, Psns { peer: PSNS[1], own: Some(PSNS[0]) }),
        (b, a, Psns { peer: PSNS[0], own: Some(PSNS[1]) }),
    ] {
        let answer = answer(name(from), name(to), psns);
        assert!(matches!(answer, Err(Error::Rejected(_))), "{answer:?}");
    }
    assert_eq!(write(2), [(2, IBV_WC_SUCCESS)]);
}

/// Names are no secrets. A request from another address than its name is refused at once, and one
/// without a proof soon.
#[test]
fn invalid_requests_are_refused_at_once() {
    let [a, b] = &pair([IBV_QPS_INIT, IBV_QPS_RTR]);
    let elsewhere = Name { address: [192, 0, 2, 1].into(), ..name(a) };
    let refused = answer(elsewhere, name(b), Psns { peer: PSNS[1], own: Some(PSNS[0]) });
    assert!(matches!(refused, Err(Error::Rejected(_))), "{refused:?}");
    // The queue pair in RTR knows the PSN of its peer, and this end tells none of its own.
    let closed = answer(name(a), name(b), Psns { peer: PSNS[1], own: None });
    let is_late = matches!(closed, Err(Error::Timeout | Error::Startup(StartupFailure::Timeout)));
    assert!(closed.is_err() && !is_late, "{closed:?}");
}

#[test]
fn an_access_that_is_refused_is_an_event_at_both_ends() {
    let [a, b] = &pair([IBV_QPS_RTS; 2]);
    let nowhere = End { mr: b.read_only, octets: b.octets, ..own() };
    assert_eq!(a.send(1, IBV_WR_RDMA_WRITE, &nowhere, &mut [a.element(a.mr, 0, 8)]), 0);
    // The end that refused the access says what it was.
    for (end, kind) in [(a, IBV_EVENT_QP_FATAL), (b, IBV_EVENT_QP_ACCESS_ERR)] {
        let mut told = [event(end), event(end)];
        told.sort_unstable();
        let mut expected = [kind, IBV_EVENT_QP_LAST_WQE_REACHED];
        expected.sort_unstable();
        assert_eq!(told, expected);
    }
}

/// The region lets peers write; the queue pair does not (InfiniBand §10.2.3.2).
#[test]
fn a_queue_pair_gives_its_peer_only_the_rights_of_its_attributes() {
    let [a, b] = &pair([IBV_QPS_RTS; 2]);
    let write = |id| {
        assert_eq!(a.send(id, IBV_WR_RDMA_WRITE, b, &mut [a.element(a.mr, 0, 8)]), 0);
        a.statuses(1)
    };
    assert_eq!(write(1), [(1, IBV_WC_SUCCESS)]);
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
    // SAFETY: a live queue pair, and attributes.
    let modified = unsafe { ibv_modify_qp(b.qp, &raw mut attr, IBV_QP_ACCESS_FLAGS.cast_signed()) };
    assert_eq!(modified, 0);
    assert_eq!(write(2), [(2, IBV_WC_REM_ACCESS_ERR)]);
}
