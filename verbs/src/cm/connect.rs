//! The active side: resolves addresses and routes, and connects.
#![expect(unsafe_code, reason = "C's pointers to ids and parameters")]

use std::net::SocketAddr;
use std::sync::Arc;

use libc::{c_int, sockaddr};
use urnic::{ConnectOptions, Connecting, Error, WcStatus, monotonic_now};
use urnic_engine::limits::READS_OUTSTANDING_MAX;
use urnic_engine::time::Duration;

use super::address::{from_c, source_for};
use super::id::{Attempt, Depths, Id, Pending, Phase, Route, id};
use super::listen::bind;
use super::param::{check_depths, depth, private_data};
use super::ports::Asking;
use super::wait::{finish, finish_established};
use crate::abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_RESOLVED, rdma_cm_id, rdma_conn_param,
};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::fault::{self, Call};
use crate::network;
use crate::object::optional;
use crate::process::{process, startup};
use crate::turn;

pub(super) fn resolve(
    id: &Arc<Id>,
    source: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<(), Errno> {
    fault::check(Call::ResolveAddr)?;
    if source.is_some_and(|source| source.is_ipv4() != remote.is_ipv4()) {
        return Err(Errno::INVALID);
    }
    let is_idle = matches!(*locked(&id.phase), Phase::Idle);
    if is_idle {
        // Without an address from the application, the route decides. The TCP port is chosen now,
        // because applications may ask for it before they connect.
        let source = match source {
            Some(source) => source,
            None => match source_for(remote) {
                Ok(source) => source,
                Err(errno) => {
                    id.tell(Pending::new(id, RDMA_CM_EVENT_ADDR_ERROR, -errno.0));
                    return Ok(());
                }
            },
        };
        bind(id, source)?;
    }
    let mut phase = locked(&id.phase);
    let Phase::Bound(bound, keeper) = &mut *phase else { return Err(Errno::INVALID) };
    if bound.is_ipv4() != remote.is_ipv4() {
        return Err(Errno::INVALID);
    }
    let found = if bound.ip().is_unspecified() { source_for(remote) } else { Ok(*bound) };
    match found {
        Ok(mut local) => {
            local.set_port(bound.port());
            id.show_addresses(local, Some(remote));
            id.show_device()?;
            let keeper = keeper.take();
            *phase = Phase::Resolved(Route { local, remote, keeper, is_resolved: false });
            id.tell(Pending::new(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        }
        Err(errno) => id.tell(Pending::new(id, RDMA_CM_EVENT_ADDR_ERROR, -errno.0)),
    }
    Ok(())
}

/// The answer is available at once; the route is the kernel's.
///
/// # Safety
/// `of` is live, `source` NULL or an address, `remote` an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    of: *mut rdma_cm_id,
    source: *mut sockaddr,
    remote: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: an address, by this function's contract.
    let Some(remote) = (unsafe { from_c(remote) }) else {
        return minus_one(Err(Errno::INVALID));
    };
    let is_named = !source.is_null();
    // SAFETY: NULL or an address, by this function's contract.
    let source = unsafe { from_c(source) };
    if is_named && source.is_none() {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: live, by this function's contract.
    finish(of, resolve(unsafe { id(of) }, source, remote))
}

/// Shows a fixed route, since IP routes the packets. The event is queued before the call returns.
///
/// # Safety
/// `of` is live.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(
    of: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let resolving = unsafe { id(of) };
    let done =
        fault::check(Call::ResolveRoute).and_then(|()| match &mut *locked(&resolving.phase) {
            Phase::Resolved(route) if !route.is_resolved => {
                route.is_resolved = true;
                Ok(())
            }
            _ => Err(Errno::INVALID),
        });
    if done.is_ok() {
        resolving.show_route();
        resolving.tell(Pending::new(resolving, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    }
    finish(of, done)
}

pub(super) fn connect(id: &Arc<Id>, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    let is_rejected = fault::check_connect()?;
    check_depths(param)?;
    let mut phase = locked(&id.phase);
    let Phase::Resolved(Route { local, remote, is_resolved: true, keeper }) = &mut *phase else {
        return Err(Errno::INVALID);
    };
    let (local, remote, keeper) = (*local, *remote, keeper.take());
    let qp = id.carrier(param)?;
    if is_rejected {
        *phase = Phase::Ended;
        drop(phase);
        qp.give_up(WcStatus::WrFlushErr);
        id.tell(Pending::new(id, RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED));
        return Ok(());
    }
    let depths = requested_depths(param);
    let options = ConnectOptions {
        startup: startup(),
        private_data: param.map_or_else(Vec::new, private_data),
        ird: depths.responder_resources,
        ord: depths.initiator_depth,
        local: Some(from(local)),
        traffic_class: locked(&id.options).traffic_class,
        ..ConnectOptions::default()
    };
    let connecting = process()?.network.endpoint.connect(remote, &qp, &options)?;
    *locked(&id.depths) = depths;
    let until = monotonic_now() + REFUSED_FOR;
    *locked(&id.attempt) = Some(Attempt { remote, qp, options, until, failure: None, keeper });
    *locked(&id.asking) = Asking::start(remote);
    *phase = Phase::Connecting(Box::new(connecting));
    drop(phase);
    turn::request(id);
    Ok(())
}

/// The maximum without parameters.
fn requested_depths(param: Option<&rdma_conn_param>) -> Depths {
    let of = |wanted: Option<u8>| wanted.map_or(READS_OUTSTANDING_MAX, depth);
    Depths {
        responder_resources: of(param.map(|param| param.responder_resources)),
        initiator_depth: of(param.map(|param| param.initiator_depth)),
    }
}

/// Omits the port on an interface, whose endpoint chooses one.
fn from(local: SocketAddr) -> SocketAddr {
    if network::device().is_some() { SocketAddr::new(local.ip(), 0) } else { local }
}

/// Time for which a refusal is retried because nothing listens yet. Applications exchange a port
/// and listen right after; on InfiniBand, where resolving takes milliseconds, they are in time.
const REFUSED_FOR: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

impl Id {
    /// Returns false if the time for attempts is over.
    pub(super) fn try_later(self: &Arc<Self>) -> bool {
        let now = monotonic_now();
        let may = locked(&self.attempt).as_ref().is_some_and(|attempt| now < attempt.until);
        if may {
            self.timer.set(self, now + PAUSE);
        }
        may
    }

    /// Returns true if the next attempt is at the TCP port that the peer named, and records that
    /// port. `stands` is as in [`Asking::elsewhere`].
    pub(super) fn is_elsewhere(self: &Arc<Self>, stands: bool) -> bool {
        let mut asking = locked(&self.asking);
        let Some(question) = &mut *asking else { return false };
        let elsewhere = question.elsewhere(stands);
        if elsewhere.is_some() {
            *asking = None;
        } else if let Some(at) = question.next_look() {
            self.timer.set(self, at);
        }
        drop(asking);
        if let (Some(tcp_port), Some(attempt)) = (elsewhere, &mut *locked(&self.attempt)) {
            attempt.remote.set_port(tcp_port);
        }
        elsewhere.is_some()
    }

    /// Keeps the error while the peer may still name another TCP port: the attempt may have reached
    /// another application's TCP server. Returns it if no answer is awaited.
    pub(super) fn fail_later(self: &Arc<Self>, error: Error) -> Result<(), Error> {
        let is_asking = locked(&self.asking).as_ref().is_some_and(Asking::awaits_answer);
        match &mut *locked(&self.attempt) {
            Some(attempt) if is_asking => {
                attempt.failure = Some(error);
                self.timer.set(self, monotonic_now() + PAUSE);
                Ok(())
            }
            _ => Err(error),
        }
    }

    pub(super) fn take_failure(&self) -> Option<Error> {
        locked(&self.attempt).as_mut()?.failure.take()
    }

    pub(super) fn try_soon(self: &Arc<Self>) {
        self.timer.set(self, monotonic_now() + PAUSE);
    }

    pub(super) fn try_again(&self) -> Result<Connecting, Error> {
        let attempt = locked(&self.attempt);
        let Attempt { remote, qp, options, .. } = attempt.as_ref().ok_or(Error::Closed)?;
        let process = process().map_err(|_| Error::Down)?;
        process.network.endpoint.connect(*remote, qp, options)
    }
}

/// Allows the maximum number of Reads without parameters.
///
/// # Safety
/// `of` is live, `param` NULL or parameters.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(of: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: NULL or parameters, by this function's contract.
    let param = unsafe { optional(param) };
    // SAFETY: live, by this function's contract.
    finish_established(of, connect(unsafe { id(of) }, param))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES};

    fn param(responder_resources: u8, initiator_depth: u8) -> rdma_conn_param {
        rdma_conn_param {
            private_data: std::ptr::null(),
            private_data_len: 0,
            responder_resources,
            initiator_depth,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        }
    }

    #[test]
    fn reads_may_be_open_in_each_direction_as_its_field_says() {
        let asked = |param: Option<rdma_conn_param>| {
            let Depths { responder_resources, initiator_depth } = requested_depths(param.as_ref());
            (responder_resources, initiator_depth)
        };
        let all = READS_OUTSTANDING_MAX;
        assert_eq!(asked(None), (all, all));
        assert_eq!(asked(Some(param(3, 5))), (3, 5));
        assert_eq!(asked(Some(param(RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH))), (all, all));
    }

    #[test]
    fn more_reads_than_there_can_be_are_refused() {
        let most = u8::try_from(READS_OUTSTANDING_MAX).unwrap();
        let (any, none) = (RDMA_MAX_RESP_RES, 0);
        for (right, left) in [(none, none), (most, most), (any, any)] {
            assert_eq!(check_depths(Some(&param(right, left))), Ok(()));
        }
        assert_eq!(check_depths(None), Ok(()));
        assert_eq!(check_depths(Some(&param(most + 1, 0))), Err(Errno::INVALID));
        assert_eq!(check_depths(Some(&param(0, most + 1))), Err(Errno::INVALID));
    }
}
