//! Ids, which are to rdma_cm what sockets are to TCP.
#![expect(unsafe_code, reason = "C's pointers to ids")]

pub(crate) mod channel;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use libc::{c_int, c_void};
use socket2::Socket;
use urnic::{ConnectOptions, ConnectRequest, Connecting, Connection, Error, Listener};
use urnic_engine::time::Instant;

use channel::{Attached, Channel};

use super::addrinfo::Resolved;
use super::ports::{Announced, Asking};
use crate::abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_DISCONNECTED, ibv_pd, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id,
};
use crate::errno::Errno;
use crate::event_queue::{Unacknowledged, locked};
use crate::network::Bound;
use crate::object::{CPtr, Object, Place};
use crate::qp::{CarryingId, Qp};
use crate::turn::{OwnWaker, Timer};

#[derive(Debug)]
pub(crate) struct Id {
    pub(super) c: CPtr<rdma_cm_id>,
    /// `None` once it is destroyed.
    pub(super) channel: Mutex<Option<Attached>>,
    pub(super) phase: Mutex<Phase>,
    /// True if the application chose the port to which the id is bound, false if the kernel did.
    pub(super) has_chosen_port: AtomicBool,
    pub(super) qp: Mutex<Option<Arc<Qp>>>,
    /// True if the application made the queue pair and moves it to each state itself.
    pub(super) has_own_qp: AtomicBool,
    /// True if the application must call `rdma_establish` when its own queue pair is ready.
    pub(super) awaits_establish: AtomicBool,
    /// Number by which this host knows the peer's queue pair.
    pub(super) number_of_peer: OnceLock<u32>,
    pub(super) depths: Mutex<Depths>,
    pub(super) options: Mutex<Options>,
    pub(super) unacknowledged: Unacknowledged,
    /// Attributes of the queue pairs for requests at a listening endpoint (`rdma_create_ep`).
    pub(super) listener_attr: Mutex<Option<ListenerAttr>>,
    /// UDP port of a listener: names its TCP port to peers, and reserves its number.
    pub(super) announced: Mutex<Option<Announced>>,
    pub(super) asking: Mutex<Option<Asking>>,
    pub(super) attempt: Mutex<Option<Attempt>>,
    pub(super) timer: Timer,
    waker: OwnWaker,
    /// Next step while the peer has closed its side and the local side is open.
    pub(super) peer_end: Mutex<Option<PeerEnd>>,
    pub(super) accepted: AtomicBool,
    /// True once the disconnected event is queued for C.
    pub(super) disconnected: Mutex<bool>,
    /// Number of peers' requests whose event C has not taken.
    pub(super) untaken: AtomicUsize,
    pub(super) backlog: AtomicUsize,
    /// Set for an id of an rsocket, which advances its connection itself.
    pub(super) of_socket: OnceLock<OfSocket>,
    /// Answer of `rdma_resolve_addrinfo`.
    pub(super) resolved: Resolved,
    /// Memory for `path_rec` in C's part.
    pub(super) path: OnceLock<Box<Place<ibv_sa_path_rec>>>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Neither bound nor resolved.
    Idle,
    /// Bound to an address, which the keeper reserves until the id listens.
    Bound(SocketAddr, Option<Keeper>),
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

#[derive(Debug)]
pub(super) struct OfSocket {
    /// Woken at each event.
    pub(super) waker: Waker,
    pub(super) qp: OnceLock<urnic::Qp>,
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
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

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) remote: SocketAddr,
    pub(super) qp: urnic::Qp,
    pub(super) options: ConnectOptions,
    pub(super) until: Instant,
    /// Error of the last attempt, kept while the peer may still name another TCP port.
    pub(super) failure: Option<Error>,
    #[expect(dead_code, reason = "held until no attempt follows")]
    pub(super) keeper: Option<Keeper>,
}

#[derive(Debug)]
pub(super) struct ListenerAttr {
    pub(super) pd: CPtr<ibv_pd>,
    pub(super) attr: CPtr<ibv_qp_init_attr>,
}

impl Drop for ListenerAttr {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `rdma_create_ep`, and dropped once.
        drop(unsafe { Box::from_raw(self.attr.0) });
    }
}

/// Parameters of a connection that `rdma_init_qp_attr` needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    /// Maximum number of outstanding Reads of the peer.
    pub(super) responder_resources: u16,
    /// Maximum number of outstanding Reads of this end.
    pub(super) initiator_depth: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Type of service of IPv4 and traffic class of IPv6, which are the same byte.
    pub(super) traffic_class: Option<u8>,
    /// `::` covers addresses of IPv6 only.
    pub(super) only_ipv6: bool,
    /// InfiniBand's timeout for acknowledgments, in the encoding of queue pairs.
    pub(super) ack_timeout: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { traffic_class: None, only_ipv6: false, ack_timeout: ACK_TIMEOUT }
    }
}

/// Default of InfiniBand's connection manager: 4.096 us times two to the power of 14, 67 ms.
const ACK_TIMEOUT: u8 = 14;

/// Progress of an id after its peer has closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerEnd {
    /// C gets the event when no completion waits, or at this time.
    ToldAt(Instant),
    /// C got the event; this end closes when the application ends it, or at this time.
    ClosesAt(Instant),
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: Arc<Id>,
    /// The listening id, for a request.
    pub(super) listener: Option<Arc<Id>>,
    pub(super) kind: u32,
    pub(super) status: c_int,
    pub(super) private_data: Vec<u8>,
    /// Reads that the peer answers, and Reads that it may have outstanding.
    pub(super) depths: [u16; 2],
    pub(super) number_of_peer: u32,
    /// Argument of an event that the application has queued itself.
    pub(super) argument: Option<u64>,
}

impl Pending {
    pub(super) fn new(id: &Arc<Id>, kind: u32, status: c_int) -> Self {
        let (listener, private_data) = (None, Vec::new());
        Self {
            id: Arc::clone(id),
            listener,
            kind,
            status,
            private_data,
            depths: [0; 2],
            number_of_peer: 0,
            argument: None,
        }
    }

    /// Returns the id that must not be destroyed before the event is acknowledged.
    pub(super) fn counted(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

pub(super) type IdObject = Object<rdma_cm_id, Arc<Id>>;

/// # Safety
/// `id` was made by this library and not destroyed.
pub(super) unsafe fn id<'a>(id: *mut rdma_cm_id) -> &'a Arc<Id> {
    // SAFETY: made in `make`, by this function's contract.
    unsafe { IdObject::of(id) }
}

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
            resolved: Resolved::default(),
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

    /// Reports the end of the connection, once.
    pub(super) fn tell_disconnected(self: &Arc<Self>) {
        if !std::mem::replace(&mut *locked(&self.disconnected), true) {
            self.tell(Pending::new(self, RDMA_CM_EVENT_DISCONNECTED, 0));
        }
    }

    pub(super) fn leave_channel(self: &Arc<Self>) -> Vec<Pending> {
        let Some(attached) = locked(&self.channel).take() else { return Vec::new() };
        let untold = attached.channel.take_events_of(self);
        attached.leave();
        untold
    }

    pub(super) fn waker(self: &Arc<Self>) -> &Waker {
        self.waker.of(self)
    }

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

pub(super) const NOW: Duration = Duration::ZERO;
