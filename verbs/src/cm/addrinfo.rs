//! `rdma_getaddrinfo`: resolves names and services to addresses for ids.
#![expect(unsafe_code, reason = "C's strings and lists")]

use std::net::SocketAddr;
use std::ptr;
use std::sync::Mutex;

use libc::{addrinfo, c_char, c_int, c_void, socklen_t};

use super::address::{from_c, storage};
use crate::abi::{
    IBV_QPT_RC, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_TCP, rdma_addrinfo,
};
use crate::errno::{Errno, minus_one};
use crate::event_queue::locked;
use crate::object::{CPtr, optional};

/// Returns the first address of a name; with `RAI_PASSIVE`, an address to listen at.
///
/// # Safety
/// The strings and `hints` are NULL or valid, `place` points at memory for the answer.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    place: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: NULL or hints, by this function's contract.
    let hints = unsafe { optional(hints) };
    if node.is_null() && service.is_null() {
        // As in rdma-core, the answer repeats the hints.
        let Some(hints) = hints else { return minus_one(Err(Errno::INVALID)) };
        // SAFETY: NULL or addresses, by this function's contract.
        let addresses = [hints.ai_src_addr, hints.ai_dst_addr].map(|of| unsafe { from_c(of) });
        let made = answer(hints, addresses[0], addresses[1]);
        // SAFETY: the caller's memory for the answer, by this function's contract.
        unsafe { place.write(made) };
        return 0;
    }
    let none = rdma_addrinfo::zeroed();
    let hints = hints.unwrap_or(&none);
    let flags = hints.ai_flags;
    let mut wanted = empty_addrinfo();
    wanted.ai_socktype = libc::SOCK_STREAM;
    if flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_FAMILY != 0 {
        wanted.ai_family = hints.ai_family;
    }
    let mut found: *mut addrinfo = ptr::null_mut();
    // SAFETY: strings as C's library requires them, by this function's contract, and memory of this
    // function.
    let status = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) };
    if status != 0 || found.is_null() {
        // As in rdma-core, returns the error number of `getaddrinfo`, which is not of `errno.h`.
        return if status == 0 { minus_one(Err(Errno::INVALID)) } else { status };
    }
    // SAFETY: an answer of C's library.
    let first = unsafe { (*found).ai_addr };
    // SAFETY: an address of that answer.
    let address = unsafe { from_c(first) };
    // SAFETY: that answer, freed once.
    unsafe { libc::freeaddrinfo(found) };
    let Some(address) = address else { return minus_one(Err(Errno(libc::EAFNOSUPPORT))) };
    let passive = flags & RAI_PASSIVE != 0;
    let source = if passive {
        Some(address)
    } else {
        // As in rdma-core, the source that the application names, without a look at the route.
        // SAFETY: NULL or an address, by this function's contract.
        unsafe { from_c(hints.ai_src_addr) }
    };
    let made = answer(hints, source, (!passive).then_some(address));
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { place.write(made) };
    0
}

/// Each part is memory of C's library: [`rdma_freeaddrinfo`] also frees answers of applications,
/// which may replace parts of the library's.
fn answer(
    hints: &rdma_addrinfo,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
) -> *mut rdma_addrinfo {
    let len = |address: Option<SocketAddr>| -> socklen_t {
        let len = match address {
            None => 0,
            Some(SocketAddr::V4(_)) => size_of::<libc::sockaddr_in>(),
            Some(SocketAddr::V6(_)) => size_of::<libc::sockaddr_in6>(),
        };
        socklen_t::try_from(len).unwrap_or(0)
    };
    let place = |address: Option<SocketAddr>| {
        address.map_or(ptr::null_mut(), |address| allocated(storage(address)).cast())
    };
    let mut c = rdma_addrinfo::zeroed();
    let is_v6 = source.or(destination).is_some_and(|address| address.is_ipv6());
    (c.ai_flags, c.ai_family) =
        (hints.ai_flags, if is_v6 { libc::AF_INET6 } else { libc::AF_INET });
    // For datagrams the answer is made; an id from it is not.
    let or = |hint: c_int, usual: u32| if hint == 0 { usual.cast_signed() } else { hint };
    c.ai_qp_type = or(hints.ai_qp_type, IBV_QPT_RC);
    c.ai_port_space = or(hints.ai_port_space, RDMA_PS_TCP);
    (c.ai_src_len, c.ai_dst_len) = (len(source), len(destination));
    (c.ai_src_addr, c.ai_dst_addr) = (place(source), place(destination));
    allocated(c)
}

/// NULL if there is no memory.
fn allocated<T: Copy>(value: T) -> *mut T {
    // SAFETY: any length may be asked for.
    let place = unsafe { libc::malloc(size_of::<T>()) }.cast::<T>();
    if !place.is_null() {
        // SAFETY: memory of the length and, as all of `malloc`, of the alignment of the value.
        unsafe { place.write(value) };
    }
    place
}

fn empty_addrinfo() -> addrinfo {
    addrinfo {
        ai_flags: 0,
        ai_family: libc::AF_UNSPEC,
        ai_socktype: 0,
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    }
}

/// # Safety
/// `res` is NULL or a list of answers whose parts are memory of C's library; it is freed once.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_freeaddrinfo(mut res: *mut rdma_addrinfo) {
    // SAFETY: NULL or an answer, by this function's contract.
    while let Some(&of) = unsafe { optional(res) } {
        for part in [
            of.ai_src_canonname.cast(),
            of.ai_dst_canonname.cast(),
            of.ai_src_addr.cast::<c_void>(),
            of.ai_dst_addr.cast(),
            of.ai_route,
            of.ai_connect,
            res.cast(),
        ] {
            // SAFETY: NULL or memory of C's library, by this function's contract.
            unsafe { libc::free(part) };
        }
        res = of.ai_next;
    }
}

#[derive(Debug, Default)]
pub(super) struct Resolved(pub(super) Mutex<Resolution>);

#[derive(Debug, Default)]
pub(super) enum Resolution {
    #[default]
    None,
    Resolving,
    Answer(CPtr<rdma_addrinfo>),
}

impl Drop for Resolved {
    fn drop(&mut self) {
        if let Resolution::Answer(answer) = std::mem::take(&mut *locked(&self.0)) {
            // SAFETY: an answer of `rdma_getaddrinfo` that the application has not got.
            unsafe { rdma_freeaddrinfo(answer.0) };
        }
    }
}
