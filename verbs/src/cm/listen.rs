//! The passive side: binds and listens, accepts and rejects requests.
#![expect(unsafe_code, reason = "C's pointers to ids and parameters")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

use libc::{c_int, c_void, sockaddr};
use socket2::{Domain, Protocol, Socket, Type};
use tracing::warn;
use urnic::{Error, ListenParams, Offer, PortError};
use urnic_engine::limits::LISTEN_REQUESTED_MAX;

use super::address::from_c;
use super::id::{Depths, Id, Keeper, Options, Phase, id};
use super::param::{DEPTH, check_depths, depth, private_data};
use super::ports::{self, Announced};
use super::wait::finish_established;
use crate::abi::{RDMA_CM_EVENT_ESTABLISHED, rdma_cm_id, rdma_conn_param};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::fault::{self, Call};
use crate::network;
use crate::process::{process, startup};
use crate::turn;
use std::sync::Arc;

/// Backlog for an application that passes 0.
const BACKLOG: usize = 128;

/// Returns the requests that the application wants to queue, and the limit: at most
/// [`LISTEN_REQUESTED_MAX`].
/// [`LISTEN_REQUESTED_MAX`].
fn kept(backlog: c_int) -> (usize, usize) {
    let wanted = usize::try_from(backlog).unwrap_or(0);
    (wanted, if wanted == 0 { BACKLOG } else { wanted.min(LISTEN_REQUESTED_MAX) })
}

fn keep(id: &Id, local: SocketAddr) -> Result<(SocketAddr, Option<Keeper>), Errno> {
    if network::device().is_some() {
        let bound = process()?.network.bind(local)?;
        return Ok((bound.local, Some(Keeper::Interface(bound))));
    }
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    let only_ipv6 = locked(&id.options).only_ipv6;
    if local.is_ipv6() {
        socket.set_only_v6(only_ipv6)?;
    }
    match socket.bind(&local.into()) {
        Ok(()) => {
            let local = socket.local_addr()?.as_socket().ok_or(Errno::INVALID)?;
            Ok((local, Some(Keeper::Kernel(socket))))
        }
        // Another process uses the TCP port of the number: the number is free for RDMA.
        Err(error)
            if error.kind() == ErrorKind::AddrInUse && !ports::is_taken(local, only_ipv6) =>
        {
            Ok((local, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Binds the address, and reserves it from other processes until the id listens.
pub(super) fn bind(id: &Id, local: SocketAddr) -> Result<(), Errno> {
    fault::check(Call::BindAddr)?;
    let mut phase = locked(&id.phase);
    if !matches!(*phase, Phase::Idle) {
        return Err(Errno::INVALID);
    }
    id.has_chosen_port.store(local.port() != 0, Ordering::Release);
    let (local, keeper) = keep(id, local)?;
    id.show_addresses(local, None);
    if !local.ip().is_unspecified() {
        id.show_device()?;
    }
    *phase = Phase::Bound(local, keeper);
    Ok(())
}

pub(super) fn listen(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    fault::check(Call::Listen)?;
    let mut phase = locked(&id.phase);
    let local = match &mut *phase {
        Phase::Idle => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        Phase::Bound(local, keeper) => {
            drop(keeper.take());
            *local
        }
        _ => return Err(Errno::INVALID),
    };
    let (wanted, backlog) = kept(backlog);
    if wanted > LISTEN_REQUESTED_MAX {
        warn!(target: "urnic", wanted, backlog, "the backlog is smaller than the application asked for");
    }
    let Options { traffic_class, only_ipv6, .. } = *locked(&id.options);
    let is_chosen = id.has_chosen_port.load(Ordering::Acquire);
    let startup = startup();
    let params =
        ListenParams { backlog, startup, only_ipv6, traffic_class, ..ListenParams::default() };
    let (listener, announced) = match process()?.network.endpoint.listen(local, params.clone()) {
        Err(Error::Port(PortError::PortTaken(_)))
            if local.port() != 0 && network::device().is_none() =>
        {
            let (listener, announced) = Announced::listen(local, params)?;
            (listener, Some(announced))
        }
        listening => {
            let listener = listening?;
            let is_kernels = network::device().is_none();
            let hold = || Announced::hold(listener.local(), only_ipv6, is_chosen);
            let announced = if is_kernels { hold()? } else { None };
            (listener, announced)
        }
    };
    let shown = announced.as_ref().map_or_else(|| listener.local(), |announced| announced.local);
    *locked(&id.announced) = announced;
    id.show_addresses(shown, None);
    id.backlog.store(backlog, Ordering::Release);
    *phase = Phase::Listening(listener);
    drop(phase);
    turn::request(id);
    Ok(())
}

/// # Safety
/// `of` is live, `address` an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(
    of: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    // SAFETY: an address, by this function's contract.
    let Some(local) = (unsafe { from_c(address) }) else {
        return minus_one(Err(Errno::INVALID));
    };
    // SAFETY: live, by this function's contract.
    minus_one(bind(unsafe { id(of) }, local))
}

/// # Safety
/// `of` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(of: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: live, by this function's contract.
    minus_one(listen(unsafe { id(of) }, backlog))
}

pub(super) fn accept(id: &Arc<Id>, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    fault::check(Call::Accept)?;
    check_depths(param)?;
    let mut phase = locked(&id.phase);
    if !matches!(*phase, Phase::Requested(_)) {
        return Err(Errno::INVALID);
    }
    let qp = id.carrier(param)?;
    let request = match std::mem::replace(&mut *phase, Phase::Ended) {
        Phase::Requested(request) => request,
        other => {
            *phase = other;
            return Err(Errno::INVALID);
        }
    };
    let asked = request.request().depths;
    // Without parameters, the values that the peer asked for.
    let (asked_ird, asked_ord) = (asked.ord.unwrap_or(DEPTH), asked.ird.unwrap_or(DEPTH));
    let ird = param.map_or(asked_ird, |param| depth(param.responder_resources));
    let ord = param.map_or(asked_ord, |param| depth(param.initiator_depth));
    let octets = param.map_or_else(Vec::new, private_data);
    *locked(&id.depths) = Depths { responder_resources: ird, initiator_depth: ord };
    let offer = Offer { private_data: &octets, ird, ord };
    *phase = Phase::Connecting(Box::new(request.accept(&qp, &offer)?));
    id.accepted.store(true, Ordering::Release);
    drop(phase);
    // As in rdma-core, the queue pair is in RTS when the call returns.
    id.show_queue_pair(RDMA_CM_EVENT_ESTABLISHED);
    turn::request(id);
    Ok(())
}

/// Takes the depths that the peer asked for if there are no parameters.
///
/// # Safety
/// `of` is live, `param` NULL or parameters.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(of: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: NULL or parameters, by this function's contract.
    let param = unsafe { crate::object::optional(param) };
    // SAFETY: live, by this function's contract.
    finish_established(of, accept(unsafe { id(of) }, param))
}

/// # Safety
/// `of` is live, `octets` points at `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(of: *mut rdma_cm_id, octets: *const c_void, len: u8) -> c_int {
    let len = usize::from(len);
    let octets: &[u8] = if len == 0 || octets.is_null() {
        &[]
    } else {
        // SAFETY: of `len` bytes, by this function's contract.
        unsafe { std::slice::from_raw_parts(octets.cast(), len) }
    };
    // SAFETY: live, by this function's contract.
    minus_one(reject(unsafe { id(of) }, octets))
}

pub(super) fn reject(id: &Id, octets: &[u8]) -> Result<(), Errno> {
    let mut phase = locked(&id.phase);
    match std::mem::replace(&mut *phase, Phase::Ended) {
        Phase::Requested(request) => request.reject(octets).map_err(Errno::from),
        other => {
            *phase = other;
            Err(Errno::INVALID)
        }
    }
}

/// The wire has no field for the reason.
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(of: *mut rdma_cm_id, octets: *const c_void, len: u8) -> c_int {
    // SAFETY: as this function's contract.
    unsafe { rdma_reject(of, octets, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_of_the_application_is_clamped_to_its_range() {
        let most = c_int::try_from(LISTEN_REQUESTED_MAX).unwrap();
        let kept = [-1, 0, 1, 129, most, c_int::MAX].map(|backlog| kept(backlog).1);
        assert_eq!(kept, [BACKLOG, BACKLOG, 1, 129, LISTEN_REQUESTED_MAX, LISTEN_REQUESTED_MAX]);
    }
}
