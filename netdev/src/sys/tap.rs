//! Calls of the TUN driver.
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::interface::{Name, Operation, Request, run};

/// `IFF_TUN`: IP datagrams.
pub(crate) const TUN: u16 = 0x0001;
/// `IFF_TAP`: Ethernet frames.
pub(crate) const TAP: u16 = 0x0002;
/// `IFF_NO_PI`: nothing in front of a frame except the header below, if enabled.
pub(crate) const NO_PACKET_INFO: u16 = 0x1000;
/// `IFF_VNET_HDR`: a `virtio_net_hdr` in front of every frame.
pub(crate) const VNET_HEADER: u16 = 0x4000;
/// `IFF_MULTI_QUEUE`: several descriptors, each a queue.
pub(crate) const MULTI_QUEUE: u16 = 0x0100;

/// Attaches the descriptor to the TAP or TUN interface `name`, or creates it. `EPERM` without the
/// right, `EBUSY` if the interface has no free queue, `EINVAL` if it is of another kind.
pub(crate) fn attach(fd: BorrowedFd<'_>, name: Name, flags: u16) -> io::Result<()> {
    run(fd, Operation::TUN_ATTACH, &mut Request::new(name).with_short(flags))
}

/// Returns the interface that the descriptor is attached to, and the flags; `EBADFD` if it is
/// deleted.
pub(crate) fn attached(fd: BorrowedFd<'_>) -> io::Result<(Name, u16)> {
    let any = "tap".parse().expect("a good name");
    let mut request = Request::new(any);
    run(fd, Operation::TUN_INTERFACE, &mut request)?;
    Ok((request.name(), request.short()))
}

/// Received frames with partial checksums, and uncut TCP super-frames. An interface keeps the
/// setting of its last user. `EINVAL` if the kernel is too old.
pub(crate) fn set_offload(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let offloads = if on { all } else { 0 };
    // SAFETY: `fd` is open, and TUNSETOFFLOAD takes a number, no pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, u64::from(offloads)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `EINVAL` if the kernel does not know a `virtio_net_hdr` of that length.
pub(crate) fn set_vnet_header_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = i32::try_from(len).map_err(io::Error::other)?;
    // SAFETY: `fd` is open, and TUNSETVNETHDRSZ reads an int at the address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `EBADFD` if the interface is deleted, `EINVAL` if it is not set up or the kernel is older than
/// 4.20.
pub(crate) fn set_carrier(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let on = i32::from(on);
    // SAFETY: `fd` is open, and TUNSETCARRIER reads an int at the address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETCARRIER, &raw const on) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
