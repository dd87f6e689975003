//! AF_XDP sockets: creation, memory registration, ring mapping, binding and wake-up.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::mapping::Mapping;
use crate::sys::xdp_ring::{Ring, RingOffsets};

#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) fill: Ring,
    pub(crate) completion: Ring,
    pub(crate) receive: Ring,
    pub(crate) transmit: Ring,
}

const ADDRESS_LEN: usize = size_of::<u64>();
const DESCRIPTOR_LEN: usize = size_of::<libc::xdp_desc>();

/// Opens a socket, not bound yet: `EPERM` without CAP_NET_RAW, `EAFNOSUPPORT` if the kernel has no
/// AF_XDP.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned this descriptor, and nothing else holds it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T>(fd: BorrowedFd<'_>, name: i32, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `fd` is open, and `value` is `len` readable bytes; the only address in an option,
    // that of packet memory, is checked where it is set.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The memory must stay mapped as long as the socket is open. `ENOBUFS` if the process may not lock
/// that much memory.
pub(crate) fn register(fd: BorrowedFd<'_>, memory: &Mapping, chunk_len: u32) -> io::Result<()> {
    let address = memory.as_ptr().expose_provenance();
    let registration = libc::xdp_umem_reg {
        addr: u64::try_from(address).expect("addresses have at most 64 bits"),
        len: u64::try_from(memory.len()).expect("lengths have at most 64 bits"),
        chunk_size: chunk_len,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(fd, libc::XDP_UMEM_REG, &registration)
}

/// Creates the rings, with powers of two: `receive` entries in the receive and the fill ring,
/// `transmit` entries in the transmit and the completion ring.
pub(crate) fn rings(fd: BorrowedFd<'_>, receive: u32, transmit: u32) -> io::Result<Rings> {
    set(fd, libc::XDP_UMEM_FILL_RING, &receive)?;
    set(fd, libc::XDP_UMEM_COMPLETION_RING, &transmit)?;
    set(fd, libc::XDP_RX_RING, &receive)?;
    set(fd, libc::XDP_TX_RING, &transmit)?;
    let offsets = offsets(fd)?;
    let page = |offset: u64| libc::off_t::try_from(offset).expect("rings are at small offsets");
    let ring = |at: libc::off_t, offsets: &libc::xdp_ring_offset, entries: u32, entry_len| {
        let number = |value: u64| usize::try_from(value).map_err(io::Error::other);
        let offsets = RingOffsets {
            producer: number(offsets.producer)?,
            consumer: number(offsets.consumer)?,
            flags: number(offsets.flags)?,
            entries: number(offsets.desc)?,
        };
        let len = usize::try_from(entries).map_err(io::Error::other)? * entry_len;
        let mapping = Mapping::of(fd, at, offsets.entries.saturating_add(len))?;
        Ok::<_, io::Error>(Ring::new(mapping, offsets, entries, entry_len))
    };
    Ok(Rings {
        fill: ring(page(libc::XDP_UMEM_PGOFF_FILL_RING), &offsets.fr, receive, ADDRESS_LEN)?,
        completion: ring(
            page(libc::XDP_UMEM_PGOFF_COMPLETION_RING),
            &offsets.cr,
            transmit,
            ADDRESS_LEN,
        )?,
        receive: ring(libc::XDP_PGOFF_RX_RING, &offsets.rx, receive, DESCRIPTOR_LEN)?,
        transmit: ring(libc::XDP_PGOFF_TX_RING, &offsets.tx, transmit, DESCRIPTOR_LEN)?,
    })
}

fn offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: a C struct of integers, for which all zeroes are valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let whole = libc::socklen_t::try_from(size_of_val(&offsets)).expect("small");
    let mut len = whole;
    let to = (&raw mut offsets).cast();
    let (fd, name) = (fd.as_raw_fd(), libc::XDP_MMAP_OFFSETS);
    // SAFETY: `fd` is open; `to` is `len` writable bytes.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, to, &raw mut len) };
    match result {
        0 if len == whole => Ok(offsets),
        // Kernels before 5.4 have no flags in their rings.
        0 => Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `EBUSY` if the queue has a socket, `EINVAL` if there is no such queue, `EOPNOTSUPP` and others
/// if the driver has no zero-copy mode.
pub(crate) fn bind(
    fd: BorrowedFd<'_>,
    interface_index: u32,
    queue: u32,
    zero_copy: bool,
) -> io::Result<()> {
    let mode = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).expect("small"),
        sxdp_flags: mode | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface_index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = libc::socklen_t::try_from(size_of_val(&address)).expect("small");
    // SAFETY: `fd` is open, and the address is `len` readable bytes.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Wakes the kernel to send: `EAGAIN` if it sent only a part; `EBUSY` and `ENOBUFS` if the
/// interface is congested; `ENETDOWN`, `ENXIO` if it is down or deleted.
pub(crate) fn wake_transmit(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (nothing, flags) = (std::ptr::null(), libc::MSG_DONTWAIT);
    // SAFETY: `fd` is open; no bytes and no address are given.
    let result = unsafe { libc::sendto(fd.as_raw_fd(), nothing, 0, flags, std::ptr::null(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The fill ring has chunks again. Errors: as [`wake_transmit`].
pub(crate) fn wake_receive(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (nowhere, flags) = (std::ptr::null_mut(), libc::MSG_DONTWAIT);
    let no_address = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: `fd` is open; there is room for no bytes, and no address is requested.
    let result =
        unsafe { libc::recvfrom(fd.as_raw_fd(), nowhere, 0, flags, no_address.0, no_address.1) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
