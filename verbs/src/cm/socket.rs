//! Ids of rsockets: like those of C, but no call waits, and C does not see them. The socket takes
//! over the connection of its id.
#![expect(unsafe_code, reason = "C's part of an id that C does not know")]

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use libc::c_int;
use urnic::Connection;

use super::address::from_c;
use super::end::rdma_destroy_id;
use super::id::channel::Attached;
use super::id::{Id, OfSocket, Phase, make};
use super::{connect, listen};
use crate::abi::{
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_PS_TCP, rdma_conn_param,
};
use crate::errno::Errno;
use crate::event_queue::locked;

/// Dropping it destroys it.
#[derive(Debug)]
pub(crate) struct SocketId(Arc<Id>);

#[derive(Debug)]
pub(crate) enum IdEvent {
    /// A peer requests a connection, with this Private Data.
    Request(SocketId, Vec<u8>),
    /// The connection is established. At the active end this is the Private Data of the Reply.
    Established(Vec<u8>),
    Failed(Errno),
}

/// Reads that a connection allows: kernel drivers like siw read once at its start, to tell the
/// passive end that it is open (RFC 6581 §9.2).
const READS: u8 = 1;

fn own(id: &Arc<Id>, waker: &Waker) -> Result<(), Errno> {
    let of_socket = OfSocket { waker: waker.clone(), qp: OnceLock::new() };
    drop(id.of_socket.set(of_socket));
    let channel = id.channel()?;
    // SAFETY: the channel owns the descriptor, and is held.
    let fd = unsafe { BorrowedFd::borrow_raw(channel.events.fd()) };
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

impl SocketId {
    pub(crate) fn new(waker: &Waker) -> Result<Self, Errno> {
        // SAFETY: NULL, for a channel of its own.
        let attached = unsafe { Attached::new(ptr::null_mut()) }?;
        let made = Self(make(attached, ptr::null_mut(), RDMA_PS_TCP, Phase::Idle)?);
        own(&made.0, waker)?;
        Ok(made)
    }

    pub(crate) fn watch(&self, waker: &Waker) -> Result<(), Errno> {
        own(&self.0, waker)
    }

    pub(crate) fn reject(self) {
        let _gone = listen::reject(&self.0, &[]);
    }

    pub(crate) fn fd(&self) -> Result<RawFd, Errno> {
        Ok(self.0.channel()?.events.fd())
    }

    pub(crate) fn bind(&self, local: SocketAddr) -> Result<(), Errno> {
        listen::bind(&self.0, local)
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        listen::listen(&self.0, backlog)
    }

    pub(crate) fn set_only_ipv6(&self, is_only: bool) {
        locked(&self.0.options).only_ipv6 = is_only;
    }

    fn carry(&self, qp: urnic::Qp) {
        if let Some(of_socket) = self.0.of_socket.get() {
            drop(of_socket.qp.set(qp));
        }
    }

    pub(crate) fn connect(
        &self,
        remote: SocketAddr,
        qp: urnic::Qp,
        private_data: &[u8],
    ) -> Result<(), Errno> {
        connect::resolve(&self.0, None, remote)?;
        if let Phase::Resolved(route) = &mut *locked(&self.0.phase) {
            route.is_resolved = true;
        } else {
            // An event says why: its address cannot be reached.
            return Ok(());
        }
        // Only now: after an earlier error the next attempt has a queue pair of its own.
        self.carry(qp);
        connect::connect(&self.0, Some(&param(private_data)))
    }

    pub(crate) fn accept(&self, qp: urnic::Qp, private_data: &[u8]) -> Result<(), Errno> {
        self.carry(qp);
        listen::accept(&self.0, Some(&param(private_data)))
    }

    pub(crate) fn next(&self) -> Option<IdEvent> {
        loop {
            let pending = self.0.channel().ok()?.take().ok()?;
            pending.counted().unacknowledged.acknowledged(1);
            return Some(match pending.kind {
                RDMA_CM_EVENT_ADDR_RESOLVED | RDMA_CM_EVENT_ROUTE_RESOLVED => continue,
                RDMA_CM_EVENT_CONNECT_REQUEST => {
                    IdEvent::Request(Self(pending.id), pending.private_data)
                }
                RDMA_CM_EVENT_ESTABLISHED => IdEvent::Established(pending.private_data),
                RDMA_CM_EVENT_REJECTED => IdEvent::Failed(Errno(libc::ECONNREFUSED)),
                _ if pending.status != 0 => IdEvent::Failed(Errno(pending.status.saturating_abs())),
                _ => IdEvent::Failed(Errno(libc::ECONNRESET)),
            });
        }
    }

    pub(crate) fn take_connection(&self) -> Option<Connection> {
        let mut phase = locked(&self.0.phase);
        match std::mem::replace(&mut *phase, Phase::Ended) {
            Phase::Connected(connection) => Some(*connection),
            other => {
                *phase = other;
                None
            }
        }
    }

    pub(crate) fn addresses(&self) -> [Option<SocketAddr>; 2] {
        // SAFETY: C's part of a live id, which only calls of the socket write.
        let addresses = unsafe { &raw const (*self.0.c.0).route.addr };
        // SAFETY: a place inside it.
        let source = unsafe { &raw const (*addresses).src };
        // SAFETY: an address, or zeros, which are of no family.
        let source = unsafe { from_c(source.cast()) };
        // SAFETY: a place inside it.
        let remote = unsafe { &raw const (*addresses).dst };
        // SAFETY: as above.
        [source, unsafe { from_c(remote.cast()) }]
    }
}

impl Drop for SocketId {
    fn drop(&mut self) {
        // SAFETY: made in `new`, or for a request; this is its one owner.
        unsafe { rdma_destroy_id(self.0.c.0) };
    }
}

/// `private_data` must stay valid while the parameters are used.
fn param(private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
        responder_resources: READS,
        initiator_depth: READS,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

/// Maximum of the field, as in rdma-core's rsockets.
const RETRIES: u8 = 7;
