//! Ids, which are to rdma_cm what sockets are to TCP.
#![expect(unsafe_code, reason = "C's pointers to ids")]

use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use libc::{c_int, c_void};
use socket2::Socket;
use urnic::{ConnectRequest, Connecting, Connection, Listener};

use super::channel::{Attached, Channel};
use super::connect::Attempt;
use super::ep::ListenerAttr;
use super::event::{Pending, rdma_ack_cm_event};
use super::options::Options;
use super::own_qp::Depths;
use super::peer_end::PeerEnd;
use super::ports::{Announced, Asking};
use super::sync::complete;
use crate::abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_ESTABLISHED, RDMA_PS_IB,
    RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel,
};
use crate::errno::{Errno, minus_one};
use crate::event_queue::{Unacknowledged, locked};
use crate::fault::{self, Call};
use crate::network::Bound;
use crate::object::{CPtr, Object, Place};
use crate::qp::{CarryingId, Qp};
use crate::turn::{OwnWaker, Timer};

/// An id.
#[derive(Debug)]
pub(crate) struct Id {
    pub(super) c: CPtr<rdma_cm_id>,
    /// Channel of the id's events. `None` once the id is destroyed.
    channel: Mutex<Option<Attached>>,
    pub(super) phase: Mutex<Phase>,
    /// True if the application chose the port to which the id is bound, false if the kernel did.
    pub(super) has_chosen_port: AtomicBool,
    pub(super) qp: Mutex<Option<Arc<Qp>>>,
    /// True if the queue pair is the application's own, which the application moves to each state
    /// itself.
    pub(super) has_own_qp: AtomicBool,
    /// True if the application got the event of the peer's Reply, and must call `rdma_establish`
    /// when its own queue pair is ready.
    pub(super) awaits_establish: AtomicBool,
    /// Number by which this host knows the peer's queue pair.
    pub(super) number_of_peer: OnceLock<u32>,
    pub(super) depths: Mutex<Depths>,
    pub(super) options: Mutex<Options>,
    pub(super) unacknowledged: Unacknowledged,
    /// Attributes of the queue pairs that a listening endpoint (`rdma_create_ep`) makes for its
    /// requests.
    pub(super) listener_attr: Mutex<Option<ListenerAttr>>,
    /// UDP port of a listener: names its TCP port to peers, and reserves its number.
    pub(super) announced: Mutex<Option<Announced>>,
    /// Question to the peer for its TCP port, while this id connects.
    pub(super) asking: Mutex<Option<Asking>>,
    /// Parameters of the connection attempt, kept to repeat it.
    pub(super) attempt: Mutex<Option<Attempt>>,
    pub(super) timer: Timer,
    waker: OwnWaker,
    /// Next step while the peer has closed its side and the local side is open.
    pub(super) peer_end: Mutex<Option<PeerEnd>>,
    /// True once the id has accepted a peer's request.
    pub(super) accepted: AtomicBool,
    /// True once the disconnected event is queued for C.
    pub(super) disconnected: Mutex<bool>,
    /// Number of peers' requests whose event C has not taken.
    pub(super) untaken: AtomicUsize,
    /// Maximum of `untaken`.
    pub(super) backlog: AtomicUsize,
    /// Set for an id of an rsocket, which advances its connection itself.
    pub(super) of_socket: OnceLock<OfSocket>,
    /// Memory for `path_rec` in C's part.
    pub(super) path: OnceLock<Box<Place<ibv_sa_path_rec>>>,
}

/// State of an id, with the objects of that state.
#[derive(Debug)]
pub(super) enum Phase {
    /// Neither bound nor resolved.
    Idle,
    /// Bound to an address, which the keeper reserves until the id listens.
    Bound(SocketAddr, Option<Keeper>),
    /// The peer's address is resolved.
    Resolved(Route),
    Listening(Listener),
    /// A peer has sent a request, and waits for the application to accept or reject it.
    Requested(Box<ConnectRequest>),
    Connecting(Box<Connecting>),
    Connected(Box<Connection>),
    /// The last attempt failed. Another one may follow.
    Refused,
    /// The connection or the last attempt has ended.
    Ended,
}

/// Additional state of an rsocket's id, which C does not know.
#[derive(Debug)]
pub(super) struct OfSocket {
    /// Woken at each event.
    pub(super) waker: Waker,
    /// Queue pair of its connection.
    pub(super) qp: OnceLock<urnic::Qp>,
}

/// Addresses of a connection to a peer.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Keeps the local address.
    pub(super) keeper: Option<Keeper>,
    /// `rdma_resolve_route` was called.
    pub(super) is_resolved: bool,
}

/// Keeps an address reserved.
#[derive(Debug)]
#[expect(dead_code, reason = "held until the address is used")]
pub(super) enum Keeper {
    /// From other processes.
    Kernel(Socket),
    /// From other ids, on an interface with urnic's own TCP.
    Interface(Bound),
}

pub(super) type IdObject = Object<rdma_cm_id, Arc<Id>>;

/// Returns the id behind C's pointer.
///
/// # Safety
/// `id` was made by this library and not destroyed.
pub(super) unsafe fn id<'a>(id: *mut rdma_cm_id) -> &'a Arc<Id> {
    // SAFETY: made in `make`, by this function's contract.
    unsafe { IdObject::of(id) }
}

/// Makes an id.
pub(super) fn make(
    attached: Attached,
    user: *mut c_void,
    ps: u32,
    phase: Phase,
) -> Result<Arc<Id>, Errno> {
    let mut c = rdma_cm_id::zeroed();
    (c.channel, c.context, c.ps, c.qp_type) = (attached.c.0, user, ps, IBV_QPT_RC);
    let mut made = None;
    IdObject::make(c, |c| {
        let id = Arc::new(Id {
            c,
            channel: Mutex::new(Some(attached)),
            phase: Mutex::new(phase),
            qp: Mutex::default(),
            has_own_qp: AtomicBool::new(false),
            awaits_establish: AtomicBool::new(false),
            has_chosen_port: AtomicBool::new(false),
            number_of_peer: OnceLock::new(),
            depths: Mutex::new(Depths { responder_resources: 0, initiator_depth: 0 }),
            options: Mutex::default(),
            unacknowledged: Unacknowledged::default(),
            listener_attr: Mutex::default(),
            announced: Mutex::default(),
            asking: Mutex::default(),
            attempt: Mutex::default(),
            timer: Timer::default(),
            waker: OwnWaker::default(),
            peer_end: Mutex::default(),
            accepted: AtomicBool::new(false),
            disconnected: Mutex::default(),
            untaken: AtomicUsize::new(0),
            backlog: AtomicUsize::new(0),
            of_socket: OnceLock::new(),
            path: OnceLock::new(),
        });
        made = Some(Arc::clone(&id));
        id
    });
    made.ok_or(Errno::NO_MEMORY)
}

impl Id {
    pub(super) fn channel(&self) -> Result<Arc<Channel>, Errno> {
        let attached = locked(&self.channel);
        attached.as_ref().map(|attached| Arc::clone(&attached.channel)).ok_or(Errno::INVALID)
    }

    /// Returns true if the id was made without a channel: each call waits for its result.
    pub(super) fn is_synchronous(&self) -> bool {
        locked(&self.channel).as_ref().is_some_and(|attached| attached.is_own)
    }

    /// Queues an event for C, or for the rsocket of the id.
    pub(super) fn tell(&self, pending: Pending) {
        // Under the lock: an id that migrates to another channel takes all its events along, in
        // order.
        if let Some(attached) = &*locked(&self.channel) {
            attached.channel.events.push(pending);
        }
        if let Some(of_socket) = self.of_socket.get() {
            of_socket.waker.wake_by_ref();
        }
    }

    /// Detaches the id from its channel, and returns the events that C has not taken.
    pub(super) fn leave_channel(self: &Arc<Self>) -> Vec<Pending> {
        let Some(attached) = locked(&self.channel).take() else { return Vec::new() };
        let untold = attached.channel.take_events_of(self);
        attached.leave();
        untold
    }

    /// Returns the waker that requests a turn of the id.
    pub(super) fn waker(self: &Arc<Self>) -> &Waker {
        self.waker.of(self)
    }

    /// Returns the channel and C's context for an id made by a peer's request.
    pub(super) fn inherited(&self) -> Result<(Attached, *mut c_void), Errno> {
        let attached = locked(&self.channel);
        let attached = attached.as_ref().ok_or(Errno::INVALID)?.inherited()?;
        // SAFETY: C's part of a live id.
        let user = unsafe { (*self.c.0).context };
        Ok((attached, user))
    }
}

impl CarryingId for Id {
    fn qp_goes(&self, qp: &Arc<Qp>) {
        let mut own = locked(&self.qp);
        if own.as_ref().is_some_and(|own| Arc::ptr_eq(own, qp)) {
            *own = None;
            drop(own);
            if let Phase::Connected(connection) = &*locked(&self.phase) {
                connection.disconnect();
            }
        }
    }

    fn close(&self) {
        if let Phase::Connected(connection) = &*locked(&self.phase) {
            connection.disconnect();
        }
    }
}

/// Zero timeout: returns only what is available now.
pub(super) const NOW: Duration = Duration::ZERO;

/// `rdma_create_id`.
///
/// # Safety
/// `of_channel` is NULL or live, `place` points at memory for the id.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    of_channel: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_id,
    user: *mut c_void,
    ps: u32,
) -> c_int {
    let made = match ps {
        RDMA_PS_TCP | RDMA_PS_IB => {
            // SAFETY: NULL or live, by this function's contract.
            let attached = unsafe { Attached::new(of_channel) };
            fault::check(Call::CreateId)
                .and(attached)
                .and_then(|attached| make(attached, user, ps, Phase::Idle))
        }
        // iWARP carries no datagrams.
        RDMA_PS_UDP | RDMA_PS_IPOIB => Err(Errno::NOT_SUPPORTED),
        _ => Err(Errno::INVALID),
    };
    minus_one(made.map(|made| {
        // SAFETY: the caller's memory for the answer, by this function's contract.
        unsafe { place.write(made.c.0) };
    }))
}

/// Moves the id, with its pending events, to another channel.
fn migrate(of: *mut rdma_cm_id, to: Attached) {
    // SAFETY: live, by the contract of C's function.
    let migrating = unsafe { id(of) };
    // SAFETY: C's part of a live id.
    let kept = unsafe { (*of).event };
    if !kept.is_null() {
        // SAFETY: as above.
        unsafe { (*of).event = ptr::null_mut() };
        // SAFETY: the event that a synchronous call left there.
        unsafe { rdma_ack_cm_event(kept) };
    }
    let mut channel = locked(&migrating.channel);
    if let Some(from) = &*channel {
        for event in from.channel.take_events_of(migrating) {
            to.channel.events.push(event);
        }
    }
    // SAFETY: C's part of a live id.
    unsafe { (*of).channel = to.c.0 };
    let from = channel.replace(to);
    drop(channel);
    migrating.unacknowledged.wait();
    if let Some(from) = from {
        from.leave();
    }
}

/// `rdma_migrate_id`: moves the id, with its pending events, to another channel. With NULL, calls
/// wait for their events from now on.
///
/// # Safety
/// `of` is live, `of_channel` NULL or live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    of: *mut rdma_cm_id,
    of_channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: live, by this function's contract.
    if unsafe { id(of) }.is_synchronous() && of_channel.is_null() {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: NULL or live, by this function's contract.
    minus_one(unsafe { Attached::new(of_channel) }.map(|to| migrate(of, to)))
}

/// As [`finish`], for a call that establishes a connection: any other event is an error.
pub(super) fn finish_established(of: *mut rdma_cm_id, done: Result<(), Errno>) -> c_int {
    let answer = finish(of, done);
    // SAFETY: C's part of a live id.
    let kept = unsafe { (*of).event };
    if answer == 0 && !kept.is_null() {
        // SAFETY: the event that the call left there.
        let event = unsafe { (*kept).event };
        if !matches!(event, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_RESPONSE) {
            return minus_one(Err(Errno(libc::ECONNRESET)));
        }
    }
    answer
}

/// Waits for the result of a call, if the id was made without a channel.
pub(super) fn finish(of: *mut rdma_cm_id, done: Result<(), Errno>) -> c_int {
    // SAFETY: callers have used its Rust part already.
    let waits = unsafe { id(of) }.is_synchronous();
    minus_one(done.and_then(|()| if waits { complete(of) } else { Ok(()) }))
}
